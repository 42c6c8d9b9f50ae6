//! Further sessions with NVML: child processes that take orders as lines of JSON, and end with their parent's end of
//! the pipe.

use std::io::{self, BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use gpufrac_core::ids::GpuIndex;
use gpufrac_nvml::single::DeviceHandle;
use gpufrac_nvml::{Gpu, NvmlError, codes};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::Program;
use crate::driver::Stop;

/// What a session has to do.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Order {
    /// Open the library, and find the GPU.
    Open { nvml: PathBuf, index: u32 },
    /// Measure each call that changes nothing, over and over; answer [`Durations`].
    Measure { on: Target, ms: u64 },
    /// Take handles of an instance, and keep them; answer [`View`].
    Hold(Target),
    /// Look at an instance again; answer [`View`].
    Look(Target),
}

/// An instance in another session.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Target {
    pub profile_id: u32,
    /// The GPU instance id.
    pub gi_id: u32,
    /// The compute instance id.
    pub ci_id: u32,
    /// `MIG-...`
    pub uuid: String,
    /// The GPU's address on the PCI bus, if it is known.
    pub pci: Option<String>,
}

/// Functions with durations in milliseconds.
pub type Durations = Vec<(String, Vec<f64>)>;

/// How a session sees an instance: NVML's codes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct View {
    /// Of the GPU instance by its id.
    pub by_id: u32,
    /// Of the MIG device by its UUID.
    pub by_uuid: u32,
    /// Whether a walk over the MIG devices meets the UUID.
    pub in_walk: bool,
    /// Whether the list of its profile has the id.
    pub in_list: bool,
}

impl View {
    /// Where the instance is seen.
    pub fn seen(&self) -> String {
        let places = [
            (self.by_id == codes::SUCCESS, "by its id"),
            (self.by_uuid == codes::SUCCESS, "by its UUID"),
            (self.in_walk, "in a walk"),
            (self.in_list, "in the list"),
        ];
        let seen: Vec<&str> = places.iter().filter(|it| it.0).map(|it| it.1).collect();
        if seen.is_empty() {
            "not seen".to_owned()
        } else {
            format!("seen {}", seen.join(", "))
        }
    }
}

/// The parent's end.
pub struct Session {
    child: Child,
    orders: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Drop for Session {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn failed(error: impl std::fmt::Display) -> Stop {
    Stop::Failed(format!("a further session with NVML failed: {error}"))
}

impl Session {
    /// Starts a process and lets it open the library.
    pub fn start(program: &Program, nvml: &Path, index: GpuIndex) -> Result<Session, Stop> {
        let mut command = Command::new(&program.path);
        command.args(&program.session);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().map_err(failed)?;
        let (Some(orders), Some(answers)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(failed("it has no pipes"));
        };
        let mut session = Session {
            child,
            orders,
            answers: BufReader::new(answers),
        };
        let (nvml, index) = (nvml.to_owned(), index.0);
        session.send(&Order::Open { nvml, index })?;
        session.answer::<()>()?;
        Ok(session)
    }

    pub fn begin_to_measure(&mut self, on: &Target, time: Duration) -> Result<(), Stop> {
        let ms = u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        self.send(&Order::Measure { on: on.clone(), ms })
    }

    /// What was measured.
    pub fn measured(&mut self) -> Result<Durations, Stop> {
        self.answer()
    }

    /// Takes handles of an instance, and keeps them.
    pub fn hold(&mut self, target: &Target) -> Result<View, Stop> {
        self.send(&Order::Hold(target.clone()))?;
        self.answer()
    }

    /// How the session sees an instance.
    pub fn view(&mut self, target: &Target) -> Result<View, Stop> {
        self.send(&Order::Look(target.clone()))?;
        self.answer()
    }

    fn send(&mut self, order: &Order) -> Result<(), Stop> {
        let mut line = serde_json::to_string(order).map_err(failed)?;
        line.push('\n');
        self.orders.write_all(line.as_bytes()).map_err(failed)
    }

    fn answer<T: DeserializeOwned>(&mut self) -> Result<T, Stop> {
        let mut line = String::new();
        self.answers.read_line(&mut line).map_err(failed)?;
        let answer: Result<T, String> = serde_json::from_str(&line).map_err(failed)?;
        answer.map_err(failed)
    }
}

/// The child: takes orders from stdin and answers on stdout. Errors: a pipe cannot be read or written.
pub fn serve() -> io::Result<()> {
    let mut lines = io::stdin().lock().lines();
    let Some(first) = lines.next().transpose()? else {
        return Ok(());
    };
    let Ok(Order::Open { nvml, index }) = serde_json::from_str(&first) else {
        return Err(io::ErrorKind::InvalidInput.into());
    };
    let session = gpufrac_nvml::Session::deferred(&nvml);
    let gpu = session.gpu(GpuIndex(index));
    say(&gpu.as_ref().map(|_| ()).map_err(NvmlError::to_string))?;
    let Ok(gpu) = gpu else { return Ok(()) };
    let mut held: Vec<DeviceHandle<'_>> = Vec::new();
    for line in lines {
        match serde_json::from_str(&line?) {
            Ok(Order::Measure { on, ms }) => {
                let durations = measure(&gpu, &nvml, &on, Duration::from_millis(ms));
                say(&durations.map_err(|error| error.to_string()))?;
            }
            Ok(Order::Hold(target)) => {
                let handle = gpu.calls().by_uuid(&target.uuid);
                if let Ok(device) = handle {
                    let _ = gpu.calls().memory(device);
                    held.push(device);
                }
                say(&Ok::<_, String>(view_of(&gpu, &target)))?;
            }
            Ok(Order::Look(target)) => say(&Ok::<_, String>(view_of(&gpu, &target)))?,
            Ok(Order::Open { .. }) | Err(_) => return Err(io::ErrorKind::InvalidInput.into()),
        }
    }
    Ok(())
}

fn say<T: Serialize>(answer: &Result<T, String>) -> io::Result<()> {
    let mut out = io::stdout().lock();
    writeln!(out, "{}", serde_json::to_string(answer)?)?;
    out.flush()
}

fn code<T>(result: &Result<T, NvmlError>) -> u32 {
    match result {
        Ok(_) => codes::SUCCESS,
        Err(error) => error.code().unwrap_or(codes::UNKNOWN),
    }
}

fn view_of(gpu: &Gpu<'_>, target: &Target) -> View {
    let calls = gpu.calls();
    let named = calls.by_uuid(&target.uuid);
    let slots = calls.mig_slots().unwrap_or(0);
    let mut walk = (0..slots).filter_map(|index| calls.mig_by_index(index).ok());
    let list = calls.gpu_instances(target.profile_id).unwrap_or_default();
    let mut list = list.into_iter();
    View {
        by_id: code(&calls.gpu_instance_by_id(target.gi_id)),
        by_uuid: code(&named),
        in_walk: walk.any(|mig| calls.uuid(mig).is_ok_and(|uuid| uuid == target.uuid)),
        in_list: list.any(|gi| {
            let info = calls.gpu_instance_info(gi);
            info.is_ok_and(|info| info.gi_id == target.gi_id)
        }),
    }
}

/// Measures all calls in turn until the time is over, at least once. Failed calls have no duration: others may change
/// the GPU meanwhile.
fn measure(
    gpu: &Gpu<'_>,
    nvml: &Path,
    on: &Target,
    time: Duration,
) -> Result<Durations, NvmlError> {
    let mut all: Durations = Vec::new();
    let begin = Instant::now();
    while all.is_empty() || begin.elapsed() < time {
        let opened = Instant::now();
        drop(gpufrac_nvml::Session::open(nvml)?);
        note(&mut all, "nvmlInit_v2 and nvmlShutdown", opened);
        measure_once(gpu, on, &mut all);
    }
    Ok(all)
}

fn note(all: &mut Durations, call: &str, begin: Instant) {
    let ms = begin.elapsed().as_secs_f64() * 1000.0;
    match all.iter_mut().find(|(known, _)| known == call) {
        Some((_, durations)) => durations.push(ms),
        None => all.push((call.to_owned(), vec![ms])),
    }
}

fn measure_once(gpu: &Gpu<'_>, on: &Target, all: &mut Durations) {
    let calls = gpu.calls();
    macro_rules! timed {
        ($name:literal, $call:expr) => {{
            let begin = Instant::now();
            let result = $call;
            if result.is_ok() {
                note(all, $name, begin);
            }
            result.ok()
        }};
    }
    let _ = timed!("nvmlDeviceGetHandleByIndex_v2", calls.by_index());
    if let Some(pci) = &on.pci {
        let _ = timed!("nvmlDeviceGetHandleByPciBusId_v2", calls.by_pci(pci));
    }
    let _ = timed!("nvmlDeviceGetMigMode", calls.mig_mode());
    if let Some(whole) = timed!("nvmlDeviceGetHandleByUUID (GPU)", calls.by_uuid(&gpu.uuid)) {
        let _ = timed!("nvmlDeviceGetUUID", calls.uuid(whole));
        let _ = timed!(
            "nvmlDeviceGetComputeRunningProcesses_v3",
            calls.processes(whole)
        );
        let _ = timed!("nvmlDeviceGetMemoryInfo (GPU)", calls.memory(whole));
    }
    if on.uuid.is_empty() {
        return;
    }
    let _ = timed!(
        "nvmlDeviceGetGpuInstances",
        calls.gpu_instances(on.profile_id)
    );
    let gi = timed!(
        "nvmlDeviceGetGpuInstanceById",
        calls.gpu_instance_by_id(on.gi_id)
    );
    if let Some(gi) = gi {
        let _ = timed!("nvmlGpuInstanceGetInfo", calls.gpu_instance_info(gi));
        let ci = timed!(
            "nvmlGpuInstanceGetComputeInstanceById",
            calls.compute_instance_by_id(gi, on.ci_id)
        );
        if let Some(ci) = ci {
            let _ = timed!(
                "nvmlComputeInstanceGetInfo_v2",
                calls.compute_instance_info(ci)
            );
        }
    }
    let _ = timed!("nvmlDeviceGetMigDeviceHandleByIndex", calls.mig_by_index(0));
    if let Some(mig) = timed!("nvmlDeviceGetHandleByUUID (MIG)", calls.by_uuid(&on.uuid)) {
        let _ = timed!("nvmlDeviceGetMemoryInfo (MIG)", calls.memory(mig));
    }
}
