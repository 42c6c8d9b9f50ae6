//! `gpufrac prove`: measures on a GPU what gpufrac takes for true of NVIDIA's driver.
//!
//! A run makes and removes instances on one GPU of a drained node, whose lock it holds. It stops at the first answer
//! that it does not understand, and puts back what it changed (`remains`). [`document`] is what it leaves, [`page`]
//! the same for people. `steps` has the questions.

#![forbid(unsafe_code)]

mod aliases;
pub mod document;
mod driver;
mod head;
pub mod page;
mod record;
mod remains;
mod removal;
mod session;
mod statistics;
mod steps;
mod work;

use std::path::PathBuf;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use gpufrac_core::ids::GpuIndex;
use gpufrac_host::files::FileError;
use gpufrac_node::gpu::capability_files::Caps;
use gpufrac_node::state::leases::{LeaseStore, StoreError};
use gpufrac_node::state::line::GpuLock;
use gpufrac_node::state::locks::{LockError, Locks};
use gpufrac_nvml::{NvmlError, Session, codes};

use document::{Document, Stopped};
use driver::{Driver, Stop};
use record::Record;
use remains::{Intent, IntentFile};
use work::Work;

pub use gpufrac_compute::client::Program as Client;
pub use session::serve as serve_session;

/// How long a run waits for the lock of its GPU: an epilog may be ending.
const LOCK_WAIT: Duration = Duration::from_secs(5);

/// What a run needs.
#[derive(Debug, Clone)]
pub struct Settings {
    /// NVML's library.
    pub nvml: PathBuf,
    /// The prefix of the driver's files.
    pub driver_root: PathBuf,
    /// The folder of leases and locks.
    pub run: PathBuf,
    /// `nvidia-cuda-mps-control`.
    pub mps_control: PathBuf,
    pub gpu: GpuIndex,
    /// Whether MIG mode may be switched, where the model does it without a reset.
    pub mode: bool,
    /// How much is measured.
    pub pace: Pace,
    /// How further processes are started.
    pub program: Program,
    /// The version of gpufrac.
    pub version: String,
}

/// How further processes are started.
#[derive(Debug, Clone)]
pub struct Program {
    pub path: PathBuf,
    /// Its arguments for [`serve_session`].
    pub session: Vec<String>,
    /// Program and arguments for [`gpufrac_compute::serve`].
    pub client: Client,
}

/// How much is measured.
#[derive(Debug, Clone)]
pub struct Pace {
    /// Random orders of jobs.
    pub orders: u32,
    /// Arrivals and departures of an order.
    pub events: u32,
    /// The time of all orders.
    pub order_time: Duration,
    /// How often an instance is made again at its place.
    pub repeats: u32,
    /// How long calls are measured alone, and with seven sessions.
    pub sample: Duration,
    /// How long a program computes.
    pub load: Duration,
    /// How long a removal may be refused.
    pub patience: Duration,
    /// The time of the whole run. A step that has begun ends; later ones are not measured.
    pub all: Duration,
    /// The times of MPS.
    pub mps: gpufrac_compute::mps::Pace,
}

impl Default for Pace {
    /// For a real GPU: about ten minutes.
    fn default() -> Pace {
        Pace {
            orders: 200,
            events: 12,
            order_time: Duration::from_secs(120),
            repeats: 3,
            sample: Duration::from_secs(10),
            load: Duration::from_secs(3),
            patience: Duration::from_secs(10),
            all: Duration::from_secs(600),
            mps: gpufrac_compute::mps::Pace {
                all: Duration::from_secs(180),
                ..gpufrac_compute::mps::Pace::default()
            },
        }
    }
}

impl Pace {
    /// For a simulated GPU, which answers at once.
    pub fn quick() -> Pace {
        let ms = Duration::from_millis;
        Pace {
            orders: 10,
            sample: ms(100),
            load: ms(400),
            patience: ms(1000),
            mps: gpufrac_compute::mps::Pace {
                compute: ms(50),
                interrupted: ms(200),
                answer: ms(2000),
                wait: ms(300),
                all: ms(20_000),
            },
            ..Pace::default()
        }
    }
}

/// Why a run does not begin.
#[derive(Debug, thiserror::Error)]
pub enum ProveError {
    /// A lease exists.
    #[error("job {0} has a slice on this node")]
    Leased(String),
    /// The leases cannot be read.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// Another program has the GPU.
    #[error(transparent)]
    Lock(#[from] LockError),
    /// A folder cannot be used.
    #[error(transparent)]
    File(#[from] FileError),
    /// The driver does not answer.
    #[error(transparent)]
    Nvml(#[from] NvmlError),
    /// Instances of an admin, or of leases that were lost.
    #[error("GPU {0} has MIG instances that this program did not make ({1} of them)")]
    Instances(GpuIndex, usize),
    /// Programs have contexts on the GPU.
    #[error("{1} processes use GPU {0}")]
    Processes(GpuIndex, usize),
    /// The driver refuses to remove an instance of a killed run, or to switch MIG mode back.
    #[error("putting back what an earlier run left on GPU {0} failed: {1}")]
    Remains(GpuIndex, String),
}

impl ProveError {
    /// What to do next; also the last cell of the message's row in docs/admin/messages.
    pub fn hint(&self) -> String {
        let cure = str::to_owned;
        match self {
            ProveError::Leased(_) => cure("drain the node and wait until its jobs have ended"),
            ProveError::Store(error) => error.fix(),
            ProveError::Lock(_) => cure("wait until prologs and epilogs have ended"),
            ProveError::Instances(..) => cure(
                "destroy them: `gpufrac clean` for those without a lease, or `nvidia-smi mig -dci` and `-dgi`",
            ),
            ProveError::Processes(..) => cure("end them: `nvidia-smi` names them"),
            ProveError::File(_) => cure("correct the file or folder, and try again"),
            ProveError::Nvml(_) => cure("load the NVIDIA driver; `nvidia-smi` must work"),
            ProveError::Remains(..) => cure(
                "end the programs that use the GPU, or reset it with `nvidia-smi -r`, and run this again",
            ),
        }
    }
}

/// Measures a GPU. The document also names what stopped the run. `progress` gets the name of each step.
/// Errors: the run did not begin, and changed nothing.
pub fn run(
    settings: &Settings,
    stop: &AtomicBool,
    progress: &dyn Fn(&str),
) -> Result<Document, ProveError> {
    no_lease(settings)?;
    let file = IntentFile::open(&settings.run)?;
    let locks = Locks::create(&settings.run)?;
    let session = Session::open(&settings.nvml)?;
    if let Some(left) = file.read()? {
        progress("what an earlier run left");
        put_back_remains(settings, &locks, &session, &file, &left)?;
    }
    let _lock = locks.gpu(settings.gpu, LOCK_WAIT)?;
    let gpu = session.gpu(settings.gpu)?;
    let geometry = gpu.geometry()?;
    let standing = gpu.instances(&geometry)?.len();
    if standing > 0 {
        return Err(ProveError::Instances(settings.gpu, standing));
    }
    let processes = gpu.processes()?.len();
    if processes > 0 {
        return Err(ProveError::Processes(settings.gpu, processes));
    }
    let record = Record::default();
    record.aliases.of("GPU", &gpu.uuid);
    let caps = Caps::new(&settings.driver_root);
    if let Some(pci) = caps.pci_of(&gpu.uuid) {
        record.aliases.of("PCI", &pci);
    }
    let mode = match gpu.calls().mig_mode() {
        Ok((now, _)) => Some(now),
        Err(error) if error.code() == Some(codes::NOT_SUPPORTED) => None,
        Err(error) => return Err(error.into()),
    };
    let switches = mode.is_some() && gpu.mig_switches_without_reset()?;
    let mut document = Document {
        version: document::VERSION,
        made_up: false,
        date: jiff::Zoned::now().date().to_string(),
        gpufrac: settings.version.clone(),
        head: head::of(&gpu, &session, &caps, mode)?,
        geometry: geometry.clone(),
        stopped: None,
        answers: Vec::new(),
        places: Vec::new(),
        times: Vec::new(),
        calls: Vec::new(),
        mps: None,
    };
    let intent = Intent {
        gpu: gpu.uuid.clone(),
        mig: mode == Some(true),
        places: Vec::new(),
        nodes: remains::nodes(&settings.driver_root),
    };
    let end = Instant::now() + settings.pace.all;
    let driver = Driver::new(gpu, caps, &record, stop, end);
    let root = settings.driver_root.clone();
    let how = (&settings.pace, &settings.program);
    let begun = Work::begin(driver, geometry, root, how, (&file, intent));
    let work = begun.map_err(|stop| ProveError::Remains(settings.gpu, stop.to_string()))?;
    let measured = measure(&work, settings, (mode, switches), progress, &mut document);
    if let Err(stopped) = measured {
        document.stopped = Some(Stopped {
            step: record.step().to_owned(),
            reason: record.aliases.scrub(&stopped.to_string()),
        });
    }
    progress("cleanup");
    record.begin("cleanup");
    clean_up(&work, &file, switches);
    document.answers = record.answers();
    document.places = record.places.take();
    document.times = record.times();
    document.calls = record.calls();
    Ok(document)
}

fn no_lease(settings: &Settings) -> Result<(), ProveError> {
    let leases = match LeaseStore::open(&settings.run) {
        Err(StoreError::Absent { .. }) => return Ok(()),
        other => other?.list()?,
    };
    match leases.first() {
        Some(lease) => Err(ProveError::Leased(lease.name())),
        None => Ok(()),
    }
}

fn measure(
    work: &Work<'_, '_>,
    settings: &Settings,
    (mode, switches): (Option<bool>, bool),
    progress: &dyn Fn(&str),
    document: &mut Document,
) -> Result<(), Stop> {
    let record = work.record;
    let begin = |name: &'static str| {
        progress(name);
        record.begin(name);
    };
    let mut reason = match (mode, switches, settings.mode) {
        (Some(true), ..) => None,
        (None, ..) => Some("the model has no MIG"),
        (Some(false), true, true) => None,
        (Some(false), true, false) => Some("MIG mode is off; `--mode` switches it"),
        (Some(false), false, _) => Some("MIG mode is off, and this model needs a reset for it"),
    };
    if mode == Some(false) && reason.is_none() {
        begin("MIG mode");
        if !steps::switch(work, true)? {
            reason = Some("MIG mode did not go on");
        }
    }
    if let Some(reason) = reason {
        begin("times");
        steps::without_mig(work)?;
        for (name, _) in steps::STEPS.iter().filter(|(name, _)| *name != "times") {
            record.begin(name);
            record.not_measured("all", reason);
        }
    } else {
        for (name, step) in steps::STEPS {
            begin(name);
            if work.out_of_time() {
                record.not_measured("all", "the time of the run was over")
            } else {
                step(work)?
            }
        }
        begin("MIG mode");
        match (switches, settings.mode) {
            (true, true) => steps::mode(work)?,
            (true, false) => record.not_measured("a change of MIG mode", "`--mode` was not given"),
            (false, _) => record.not_measured("a change of MIG mode", "this model needs a reset"),
        }
    }
    begin("mps");
    document.mps = steps::mps(work, settings)?;
    Ok(())
}

/// Puts back all that the run changed. The intent stays on disk if that fails.
fn clean_up(work: &Work<'_, '_>, file: &IntentFile, switches: bool) {
    let intent = work.intent();
    let left = put_back(
        &work.driver,
        &intent,
        work.pace.patience,
        switches,
        &work.driver_root,
    );
    let record = work.record;
    let none = || "nothing".to_owned();
    let found = match &left {
        Ok(left) if left.is_empty() => none(),
        Ok(left) => left.join("; "),
        Err(stop) => stop.to_string(),
    };
    record.check("what the run left behind", "", none(), &found);
    if found == none()
        && let Err(error) = file.remove()
    {
        record.check("what the run left behind", "", none(), error);
    }
}

/// Removes instances, gives MIG mode and device nodes back. Says what is left.
fn put_back(
    driver: &Driver<'_, '_>,
    intent: &Intent,
    patience: Duration,
    switches: bool,
    driver_root: &std::path::Path,
) -> Result<Vec<String>, Stop> {
    let mut left = removal::clear(driver, intent, patience)?;
    let mode = driver.ask("nvmlDeviceGetMigMode", "", |calls| calls.mig_mode())?;
    if let Ok((now, _)) = mode
        && now != intent.mig
    {
        let word = if intent.mig { "on" } else { "off" };
        if switches {
            let _ = driver.change("nvmlDeviceSetMigMode", "alone", word, |calls| {
                calls.set_mig_mode(intent.mig)
            })?;
        }
        let after = driver.ask("nvmlDeviceGetMigMode", "", |calls| calls.mig_mode())?;
        if after.map(|(now, _)| now) != Ok(intent.mig) {
            left.push(format!("MIG mode is not {word} again"));
        }
    }
    if let Err(error) = remains::restore_nodes(driver_root, &intent.nodes) {
        left.push(error.to_string());
    }
    Ok(left)
}

/// Puts back what a killed run left, on whichever GPU that was.
fn put_back_remains(
    settings: &Settings,
    locks: &Locks,
    session: &Session,
    file: &IntentFile,
    left: &Intent,
) -> Result<(), ProveError> {
    let Some(gpu) = session.gpu_with_uuid(&left.gpu)? else {
        // The GPU has gone, and its instances with it.
        return Ok(file.remove()?);
    };
    let index = gpu.index;
    let _lock: GpuLock = locks.gpu(index, LOCK_WAIT)?;
    let switches = gpu.mig_switches_without_reset()?;
    let record = Record::default();
    let stop = AtomicBool::new(false);
    let caps = Caps::new(&settings.driver_root);
    let driver = Driver::new(gpu, caps, &record, &stop, Instant::now());
    let patience = settings.pace.patience;
    let remain = put_back(&driver, left, patience, switches, &settings.driver_root);
    match remain {
        Ok(remain) if remain.is_empty() => Ok(file.remove()?),
        Ok(remain) => Err(ProveError::Remains(index, remain.join("; "))),
        Err(stop) => Err(ProveError::Remains(index, stop.to_string())),
    }
}
