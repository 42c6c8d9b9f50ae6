//! The process's use of CUDA, after `cuInit`.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::thread::sleep;
use std::time::{Duration, Instant};

use gpusim::mps::{Connection, MpsError, Server, Settings};
use gpusim::program::{self, Plan, Size};
use nvidia_ml::pattern::Pattern;
use nvidia_ml::processes::{self, Role};
use nvidia_ml::store::Store;

use crate::code::Code;
use crate::lies::Lies;
use crate::life::Life;

const MIB: u64 = 1 << 20;
/// The time of a kernel of 20,000 rounds on the whole device.
const KERNEL: Duration = Duration::from_micros(250);
/// How many times slower a falsified computation is: more than the noise of a busy machine.
const FALSE_SPEED: u32 = 20;
/// How often a process that waits for kernels looks at its connection.
const LOOK: Duration = Duration::from_millis(2);

/// A kernel of the program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kernel {
    /// Computes for a number of rounds.
    Burn,
    /// Writes the multiprocessor of each block.
    Place,
    /// Writes to an address without memory.
    Fault,
}

/// The process after `cuInit`.
pub struct Session {
    store: Store,
    lies: Lies,
    plan: Plan,
    mps: Option<Connection>,
    pub size: Size,
    context: Option<Context>,
}

struct Context {
    life: Life,
    /// Bytes by address.
    memory: BTreeMap<u64, u64>,
    last_address: u64,
    /// The time of the kernels that were launched.
    queued: Duration,
    /// The error that the context has.
    broken: Option<Code>,
    /// The most clients that its server had.
    neighbours: usize,
}

impl Session {
    /// Starts CUDA: connects to MPS, and finds the device.
    pub fn start() -> Result<Session, Code> {
        let root = nvidia_ml::root().ok_or(Code(999))?;
        let store = Store::open(&root).map_err(|_| Code(999))?;
        let lies = Lies::of(&root);
        for (lie, code) in [("no_device", 100), ("not_ready", 802)] {
            if lies.has(lie) {
                return Err(Code(code));
            }
        }
        let settings = Settings::from_environment();
        let mut settings = settings.map_err(|error| Code(error.number().into()))?;
        if lies.has("outside") {
            settings.pipe = None;
        }
        let is_root = nix::unistd::getuid().is_root();
        if settings.pipe.is_some() && lies.has("one_user") && !is_root {
            return Err(Code(805));
        }
        let mps = Connection::open(&settings).map_err(|error| Code(error.number().into()))?;
        if settings.pipe.is_some() && mps.is_none() && lies.has("no_fallback") {
            return Err(Code(805));
        }
        let plan = Plan {
            visible: std::env::var("CUDA_VISIBLE_DEVICES").ok(),
            memory_mib: 0,
            time: None,
            pattern: Pattern::Idle,
            name: "cuda-client".into(),
            mps: settings,
        };
        let mut size = program::look(&store, &plan, mps.as_ref().map(Connection::server))?;
        if lies.has("memory") {
            size.memory_mib /= 2;
        }
        Ok(Session {
            store,
            lies,
            plan,
            mps,
            size,
            context: None,
        })
    }

    /// The server with its limits, as this process takes them.
    fn server(&self) -> Option<Server> {
        let mut server = self.mps.as_ref()?.server().clone();
        let limits = std::env::var("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT").unwrap_or_default();
        if self.lies.has("memory_limit")
            || self.lies.has("uuid_limit") && limits.contains("GPU-0000")
        {
            server.limits.clear();
        }
        let raise = [
            (
                "defaults_reach",
                "get_default_active_thread_percentage".to_owned(),
            ),
            (
                "at_run_time",
                format!("get_active_thread_percentage {}", server.pid),
            ),
        ];
        for (_, command) in raise.iter().filter(|(lie, _)| self.lies.has(lie)) {
            let percentage = self.ask(command).and_then(|text| text.trim().parse().ok());
            server.percentage = server.percentage.max(percentage.unwrap_or_default());
        }
        if self.lies.has("stubborn") {
            server.percentage = server.percentage.min(25.0);
            let quarter = self.size.memory_mib / 4;
            for limit in server.limits.values_mut() {
                *limit = quarter.min(*limit);
            }
        }
        Some(server)
    }

    fn plan(&self) -> Plan {
        let mut plan = self.plan.clone();
        if self.lies.has("memory_limit") {
            plan.mps.own_limits.clear();
        }
        if self.lies.has("at_run_time") {
            plan.mps.own_percentage = None;
        }
        plan
    }

    /// The multiprocessors of this process, unless `lie` says all.
    pub fn multiprocessors(&self, lie: &str) -> u32 {
        match self.server() {
            Some(server) if lie.is_empty() || !self.lies.has(lie) => self
                .plan()
                .mps
                .multiprocessors(&server, self.size.multiprocessors),
            _ => self.size.multiprocessors,
        }
    }

    /// The compute mode of the GPU.
    pub fn compute_mode(&self) -> Result<u32, Code> {
        let node = self.store.node().map_err(|_| Code(999))?;
        let mut gpus = node.gpus.iter();
        let own = gpus.find(|gpu| gpu.uuid == self.size.gpu_uuid);
        own.map(|gpu| gpu.compute_mode).ok_or(Code(100))
    }

    /// Makes the context: the process is on NVML's list from now on.
    pub fn make_context(&mut self) -> Result<(), Code> {
        let started = program::start(&self.store, &self.plan(), self.server().as_ref())?;
        self.context = Some(Context {
            life: Life::begin(self.store.root(), started.process, started.role),
            memory: BTreeMap::new(),
            last_address: 1 << 32,
            queued: Duration::ZERO,
            broken: None,
            neighbours: 0,
        });
        Ok(())
    }

    fn context(&mut self) -> Result<&mut Context, Code> {
        let context = self.context.as_mut().ok_or(Code(201))?;
        match context.broken {
            Some(code) => Err(code),
            None => Ok(context),
        }
    }

    /// Free memory within the limits, and the device's memory, in bytes.
    pub fn memory(&mut self) -> Result<(u64, u64), Code> {
        let used: u64 = self.context()?.memory.values().sum();
        let room = self.room(self.lies.has("free_memory"))?;
        let free = (room.free_mib * MIB).saturating_sub(used);
        Ok((free, self.size.memory_mib * MIB))
    }

    fn room(&self, unlimited: bool) -> Result<program::Room, Code> {
        let context = self.context.as_ref().ok_or(Code(201))?;
        let (mut plan, mut server) = (self.plan(), self.server());
        if unlimited {
            plan.mps.own_limits.clear();
            server.iter_mut().for_each(|server| server.limits.clear());
        }
        if self.lies.has("uuid_limit") && server.as_ref().is_some_and(|it| it.limits.is_empty()) {
            plan.mps.own_limits.clear();
        }
        let process = context.life.process();
        Ok(program::room_of(
            &self.store,
            &plan,
            server.as_ref(),
            &process,
        )?)
    }

    /// Allocates bytes, and returns the address.
    pub fn allocate(&mut self, bytes: u64) -> Result<u64, Code> {
        self.context()?;
        let lock = self.store.lock().map_err(|_| Code(999))?;
        let room = self.room(false)?;
        let context = self.context()?;
        let used = context.memory.values().sum::<u64>() + bytes;
        if used.div_ceil(MIB) > room.free_mib {
            return Err(Code(2));
        }
        context.last_address += 1 << 40;
        context.memory.insert(context.last_address, bytes);
        let address = context.last_address;
        context.life.take(used.div_ceil(MIB));
        drop(lock);
        Ok(address)
    }

    /// Frees memory.
    pub fn free(&mut self, address: u64) -> Result<(), Code> {
        let context = self.context()?;
        context.memory.remove(&address).ok_or(Code(1))?;
        let used: u64 = context.memory.values().sum();
        context.life.take(used.div_ceil(MIB));
        Ok(())
    }

    pub fn launch(&mut self, kernel: Kernel, rounds: u32) -> Result<(), Code> {
        let share = self.multiprocessors("");
        let mut time = KERNEL * self.size.multiprocessors / share.max(1);
        time = time * rounds / 20_000;
        if self.mps.is_some() && self.lies.has("slow") {
            time *= FALSE_SPEED;
        }
        let has_fault = kernel == Kernel::Fault && !self.lies.has("faultless");
        let context = self.context()?;
        match kernel {
            Kernel::Burn => {
                context.queued += time;
                context.life.work();
            }
            Kernel::Place => {}
            Kernel::Fault if has_fault => {
                context.broken = Some(Code(700));
                self.tell_of_fault();
            }
            Kernel::Fault => {}
        }
        Ok(())
    }

    /// As the server notices a client's fault.
    fn tell_of_fault(&self) {
        if let Some(mps) = &self.mps {
            self.ask(&format!("standin fault {}", mps.server().pid));
        }
    }

    /// Sends the control daemon a command, and returns its answer.
    fn ask(&self, command: &str) -> Option<String> {
        let socket = self.plan.mps.pipe.as_ref()?.join("control_privileged");
        let mut stream = UnixStream::connect(socket).ok()?;
        writeln!(stream, "{command}").ok()?;
        let mut answer = Vec::new();
        BufReader::new(stream).read_until(0, &mut answer).ok()?;
        String::from_utf8(answer)
            .ok()
            .map(|text| text.replace('\0', ""))
    }

    /// Waits for the kernels.
    pub fn wait(&mut self) -> Result<(), Code> {
        let turns = self.turns()?;
        let context = self.context()?;
        let time = std::mem::take(&mut context.queued) * turns;
        let begun = Instant::now();
        loop {
            if let Err(code) = self.look() {
                self.context()?.broken = Some(code);
                return Err(code);
            }
            match time.saturating_sub(begun.elapsed()) {
                Duration::ZERO => break,
                left => sleep(left.min(LOOK)),
            }
        }
        if !time.is_zero() {
            self.context()?.life.work();
        }
        Ok(())
    }

    /// How many processes without MPS take turns on the device.
    fn turns(&mut self) -> Result<u32, Code> {
        let own = self.context()?.life.process();
        if self.mps.is_some() {
            return Ok(1);
        }
        let present = processes::present(self.store.root()).map_err(|_| Code(999))?;
        let others = present.iter().filter(|record| {
            let other = &record.process;
            record.role == Role::Alone
                && other.pid != own.pid
                && other.pattern == Pattern::Busy
                && (&other.gpu_uuid, other.instance) == (&own.gpu_uuid, own.instance)
        });
        Ok(match others.count() as u32 {
            1.. if self.lies.has("turns") => FALSE_SPEED,
            others => 1 + others,
        })
    }

    /// Whether MPS still serves the process.
    fn look(&mut self) -> Result<(), Code> {
        let Some(mps) = &self.mps else {
            return Ok(());
        };
        match mps.check() {
            Err(MpsError::Terminated) if self.lies.has("survives_terminate") => {}
            Err(MpsError::Ended(_)) if self.lies.has("survives_server") => {}
            Err(MpsError::Fault) if self.lies.has("contained") => {}
            Err(error) => return Err(Code(error.number().into())),
            Ok(()) => {}
        }
        if self.lies.has("dies_with_daemon")
            && let Some(pipe) = &self.plan.mps.pipe
            && UnixStream::connect(pipe.join("control")).is_err()
        {
            return Err(Code(806));
        }
        if self.lies.has("killed_disturbs") {
            let role = Role::Client(mps.server().pid);
            let present = processes::present(self.store.root()).map_err(|_| Code(999))?;
            let clients = present.iter().filter(|record| record.role == role).count();
            let context = self.context()?;
            if clients < context.neighbours {
                return Err(Code(719));
            }
            context.neighbours = clients;
        }
        Ok(())
    }

    /// The multiprocessors on which blocks run, one for each block.
    pub fn places(&self, blocks: &mut [u32]) {
        let count = self.multiprocessors("blocks");
        for (block, place) in blocks.iter_mut().zip((0..count).cycle()) {
            *block = place;
        }
    }
}
