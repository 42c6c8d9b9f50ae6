//! The loop of a client process.

use std::collections::BTreeSet;
use std::fs::OpenOptions;
use std::io::{self, BufRead, Write};
use std::path::Path;
use std::time::{Duration, Instant};

use nix::sys::prctl::set_pdeathsig;
use nix::sys::signal::Signal;
use serde::Serialize;
use serde_json::Value;

use crate::cuda::{Attribute, Device, Driver, Grid, Kernel, Memory};
use crate::order::{self, Begun, Computed, Failure, Largest, Opened, Order, Seen};

const MIB: usize = 1 << 20;
/// `CUDA_ERROR_OUT_OF_MEMORY`
const OUT_OF_MEMORY: i32 = 2;
/// What allocations are counted in.
const PIECE: usize = 2 * MIB;
/// Blocks and threads of a computation: enough to fill every GPU several times.
const WHOLE: Grid = Grid {
    blocks: 2048,
    threads: 256,
};
/// As many blocks, which last long enough to be on all multiprocessors at once.
const SPREAD: Grid = Grid {
    threads: 32,
    ..WHOLE
};
const SPREAD_ROUNDS: u32 = 2000;
/// The rounds of a kernel of a computation: milliseconds on a whole GPU.
const ROUNDS: u32 = 20_000;
/// Kernels between two looks at the clock.
const BATCH: u32 = 4;
/// Operations of a kernel: four fused multiplications and additions in each round of a thread.
const OPERATIONS: f64 = WHOLE.blocks as f64 * WHOLE.threads as f64 * ROUNDS as f64 * 8.0;

type OrderResult = Result<Value, Failure>;

/// Obeys the orders on stdin until its end. The process must have no other task, and dies with the thread that started
/// it. Errors: stdin or stdout cannot be used.
pub fn serve() -> io::Result<()> {
    set_pdeathsig(Signal::SIGKILL)?;
    let mut worker = Worker::default();
    let say = |answer: &OrderResult| {
        let mut out = io::stdout().lock();
        writeln!(out, "{}", serde_json::to_string(answer)?)?;
        out.flush()
    };
    for line in io::stdin().lock().lines() {
        let order: Order = serde_json::from_str(&line?)?;
        if matches!(order, Order::Compute(_)) {
            let begun = worker.warm_up().and_then(answer);
            say(&begun)?;
            if begun.is_err() {
                continue;
            }
        }
        say(&worker.obey(order))?;
    }
    Ok(())
}

fn answer(value: impl Serialize) -> OrderResult {
    serde_json::to_value(value).map_err(|error| Failure::Process(error.to_string()))
}

/// A context with its kernels.
struct Context {
    device: Device,
    burn: Kernel,
    place: Kernel,
    fault: Kernel,
    /// Room for a number of 32 bits of each block.
    scratch: Memory,
}

#[derive(Default)]
struct Worker {
    driver: Option<Driver>,
    context: Option<Context>,
}

impl Worker {
    fn obey(&mut self, order: Order) -> OrderResult {
        match order {
            Order::Look => self.list_devices().and_then(answer),
            Order::Begin => self.begin().and_then(answer),
            Order::Blocks => self.blocks().and_then(answer),
            Order::Largest => self.largest().and_then(answer),
            Order::Hold(mib) => self.hold(mib).and_then(answer),
            Order::Compute(seconds) => self.compute(seconds).and_then(answer),
            Order::Fault => self.fault().and_then(answer),
            Order::Work => self.work().and_then(answer),
            Order::Open(path, write) => answer(open(&path, write)),
        }
    }

    /// The driver, started at the first order that needs it.
    fn driver(&mut self) -> Result<&Driver, Failure> {
        let started = match self.driver.take() {
            Some(started) => started,
            None => Driver::start()?,
        };
        Ok(self.driver.insert(started))
    }

    fn context(&self) -> Result<(&Driver, &Context), Failure> {
        let both = self.driver.as_ref().zip(self.context.as_ref());
        both.ok_or_else(|| Failure::Process("an order came before its context".into()))
    }

    fn list_devices(&mut self) -> Result<Seen, Failure> {
        let driver = self.driver()?;
        let seen = |number| {
            let device = driver.device(number)?;
            Ok(order::Device {
                name: driver.name(device)?,
                uuid: driver.uuid(device)?,
                memory_mib: (driver.memory(device)? / MIB) as u64,
                multiprocessors: count(driver.attribute(device, Attribute::Multiprocessors)?),
                compute_mode: driver.attribute(device, Attribute::ComputeMode)?,
            })
        };
        let devices = (0..driver.count()?).map(seen);
        Ok(Seen {
            devices: devices.collect::<Result<_, Failure>>()?,
            cuda: driver.version()?,
        })
    }

    fn begin(&mut self) -> Result<Begun, Failure> {
        let begun = Instant::now();
        let driver = self.driver()?;
        let device = driver.device(0)?;
        driver.make_context(device)?;
        let ms = begun.elapsed().as_secs_f64() * 1e3;
        let [burn, place, fault] = driver.kernels([c"burn", c"place", c"fault"])?;
        let room = WHOLE.blocks as usize * size_of::<u32>();
        let scratch = driver.allocate(room)?;
        let (free, total) = driver.free_memory()?;
        let answer = Begun {
            ms,
            multiprocessors: count(driver.attribute(device, Attribute::Multiprocessors)?),
            // Drivers without MPS answer with an error.
            affinity: driver.affinity().ok(),
            memory_mib: (total / MIB) as u64,
            free_mib: (free / MIB) as u64,
        };
        self.context = Some(Context {
            device,
            burn,
            place,
            fault,
            scratch,
        });
        Ok(answer)
    }

    fn blocks(&self) -> Result<u32, Failure> {
        let (driver, context) = self.context()?;
        driver.launch(context.place, SPREAD, context.scratch, SPREAD_ROUNDS)?;
        driver.wait()?;
        let mut places = vec![0; SPREAD.blocks as usize];
        driver.copy(context.scratch, &mut places)?;
        Ok(places.into_iter().collect::<BTreeSet<u32>>().len() as u32)
    }

    fn largest(&self) -> Result<Largest, Failure> {
        let (driver, context) = self.context()?;
        let total = driver.memory(context.device)?;
        let (mut fits, mut fails) = (0, total / PIECE + 1);
        while fails - fits > 1 {
            let middle = usize::midpoint(fits, fails);
            match fitting(driver, middle * PIECE)? {
                None => fails = middle,
                Some(memory) => {
                    fits = middle;
                    driver.free(memory)?;
                }
            }
        }
        let (mut pieces, mut held, mut size) = (Vec::new(), 0, 1024 * MIB);
        while size >= PIECE {
            // Never more than the device has.
            let memory = if held + size <= total { fitting(driver, size)? } else { None };
            match memory {
                None => size /= 2,
                Some(memory) => {
                    pieces.push(memory);
                    held += size;
                }
            }
        }
        for memory in pieces {
            driver.free(memory)?;
        }
        Ok(Largest {
            single_mib: (fits * PIECE / MIB) as u64,
            pieces_mib: (held / MIB) as u64,
        })
    }

    fn hold(&self, mib: u64) -> Result<(), Failure> {
        let (driver, _) = self.context()?;
        driver.allocate(mib as usize * MIB).map(drop)
    }

    /// Runs a batch: the first launch loads the code, and the device is busy from now on.
    fn warm_up(&self) -> Result<(), Failure> {
        let (driver, context) = self.context()?;
        for _ in 0..BATCH {
            driver.launch(context.burn, WHOLE, context.scratch, ROUNDS)?;
        }
        driver.wait()
    }

    fn compute(&self, seconds: f64) -> Result<Computed, Failure> {
        let time = Duration::try_from_secs_f64(seconds).unwrap_or_default();
        let begun = Instant::now();
        let mut batches = 0_u32;
        while begun.elapsed() < time {
            self.warm_up()?;
            batches += 1;
        }
        let seconds = begun.elapsed().as_secs_f64();
        let operations = f64::from(batches * BATCH) * OPERATIONS;
        Ok(Computed {
            seconds,
            tflops: operations / seconds / 1e12,
        })
    }

    fn fault(&self) -> Result<(), Failure> {
        let (driver, context) = self.context()?;
        let one = Grid {
            blocks: 1,
            threads: 1,
        };
        driver.launch(context.fault, one, Memory::NOWHERE, 0)?;
        driver.wait()
    }

    fn work(&self) -> Result<(), Failure> {
        let (driver, context) = self.context()?;
        driver.launch(context.burn, WHOLE, context.scratch, 10)?;
        driver.wait()
    }
}

/// Memory; None if there is too little.
fn fitting(driver: &Driver, bytes: usize) -> Result<Option<Memory>, Failure> {
    match driver.allocate(bytes) {
        Err(failure) if failure.code() == Some(OUT_OF_MEMORY) => Ok(None),
        other => other.map(Some),
    }
}

fn count(attribute: i32) -> u32 {
    u32::try_from(attribute).unwrap_or_default()
}

fn open(path: &Path, write: bool) -> Opened {
    let opened = OpenOptions::new().read(true).write(write).open(path);
    Opened {
        errno: opened
            .err()
            .map(|error| error.raw_os_error().unwrap_or_default()),
    }
}
