//! `gpusim`: sets up, shows and disturbs a simulated node, and runs a fake CUDA program.

#![forbid(unsafe_code)]

use std::collections::BTreeMap;
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, bail};
use clap::{Parser, Subcommand};
use gpusim::{admin, mps, program, show};
use nvidia_ml::code::Code;
use nvidia_ml::disturb::{self, Disturbances, Rule, What};
use nvidia_ml::journal;
use nvidia_ml::latency::{Change, Latency, TABLE};
use nvidia_ml::node::MigDeviceBy;
use nvidia_ml::node::falsify::FALSEHOODS;
use nvidia_ml::pattern::Pattern;
use nvidia_ml::store::Store;
use nvidia_ml::symbols::{self, FUNCTIONS};

/// Version of the driver, unless one is given.
const DRIVER: &str = "570.172.08";

/// Simulated GPUs: set up, show, disturb; and a fake CUDA program.
#[derive(Parser)]
#[command(version)]
struct Arguments {
    /// Folder of the simulated node.
    #[arg(long, env = "NVML_SIM_ROOT", global = true)]
    root: Option<PathBuf>,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Make a node, in place of one that was there.
    Init {
        /// MODEL or MODEL:COUNT, such as H100-80:2, with :mig behind for MIG mode; repeat for other models.
        #[arg(long = "gpu", required_unless_present = "like", num_args = 1..)]
        gpus: Vec<String>,
        /// A file of `gpufrac prove`: the model, the driver and its answers and times are those of the file [default:
        /// one GPU].
        #[arg(long)]
        like: Option<PathBuf>,
        /// Switch MIG mode on, on every GPU that has it.
        #[arg(long)]
        mig: bool,
        /// Driver version that NVML reports.
        #[arg(long)]
        driver: Option<String>,
        /// The way from a compute instance to its MIG device: `info`, nvmlComputeInstanceGetInfo_v2; `name`, the
        /// name MIG-GPU-UUID/GI/CI; `walk`, nothing but a walk over all.
        #[arg(long, default_value = "info", value_parser = ["info", "name", "walk"])]
        mig_device_by: String,
        /// What the driver uses itself of each instance: MiB for each of its memory slices.
        #[arg(long, default_value_t = 0)]
        idle_memory: u64,
        /// What this driver does where drivers differ; tests/nvml-sim/README.md has the names.
        #[arg(long = "manner")]
        manners: Vec<String>,
        /// The library to install [default: the one built beside this program].
        #[arg(long)]
        lib: Option<PathBuf>,
    },
    /// Show GPUs, instances and processes.
    Show {
        /// As JSON.
        #[arg(long)]
        json: bool,
    },
    /// Make calls of NVML fail.
    Fault {
        /// Function, such as nvmlDeviceCreateGpuInstanceWithPlacement; `any` for all together.
        #[arg(long)]
        call: String,
        /// The first call that fails, counted from now.
        #[arg(long, default_value_t = 1)]
        nth: u64,
        /// How many calls fail; 0: all that follow.
        #[arg(long, default_value_t = 1)]
        count: u64,
        /// Their answer: a name such as IN_USE, or a number.
        #[arg(long, required_unless_present = "kill")]
        code: Option<String>,
        /// Kill the caller with SIGKILL instead.
        #[arg(long, conflicts_with = "code")]
        kill: bool,
        /// Only after the call has done its work.
        #[arg(long)]
        after: bool,
    },
    /// Make calls of NVML slow.
    Delay {
        /// Function; `any` for all.
        #[arg(long)]
        call: String,
        /// Milliseconds.
        #[arg(long)]
        ms: u64,
        /// The first call that is slow, counted from now.
        #[arg(long, default_value_t = 1)]
        nth: u64,
        /// How many calls are slow; 0: all that follow.
        #[arg(long, default_value_t = 0)]
        count: u64,
        /// Those on this GPU alone, by its index.
        #[arg(long)]
        gpu: Option<usize>,
    },
    /// The model of how long the driver takes.
    Latency {
        #[command(subcommand)]
        what: LatencyCommand,
    },
    /// Let the driver give one wrong answer, for programs that measure drivers.
    Falsify {
        /// The answer; without it their names are printed.
        name: Option<String>,
    },
    /// Let GPM, utilisation rates and processes' utilisation tell of no activity.
    DeadTelemetry {
        /// on or off.
        #[arg(value_parser = ["on", "off"])]
        state: String,
    },
    /// End all faults, delays, counting, falsehoods and dead telemetry. Latencies stay: they are how the driver is.
    Clear,
    /// Print how often each function was called since counting began.
    Calls {
        /// Begin to count, from zero.
        #[arg(long)]
        start: bool,
        /// Those of processes with this SLURM_JOB_ID, with the time that they took.
        #[arg(long, conflicts_with = "start")]
        job: Option<u32>,
        /// Those of this process, with the time that they took.
        #[arg(long, conflicts_with = "start")]
        pid: Option<u32>,
    },
    /// Give the driver these manners, and no others.
    Manner {
        /// Names, as in `init --manner`.
        names: Vec<String>,
    },
    /// Switch MIG mode, as a reset of the GPU would.
    Mig {
        /// GPU index.
        gpu: usize,
        /// on or off.
        #[arg(value_parser = ["on", "off"])]
        mode: String,
    },
    /// Create an instance behind everyone's back.
    Create {
        /// GPU index.
        gpu: usize,
        /// Profile name or id.
        profile: String,
        /// START or START:SIZE in memory slices [default: the driver's choice].
        placement: Option<String>,
        /// Leave it without a compute instance.
        #[arg(long)]
        no_compute: bool,
    },
    /// Destroy an instance.
    Destroy {
        /// MIG UUID, or GPU/GI such as 0/7.
        instance: String,
        /// Processes or not.
        #[arg(long)]
        force: bool,
    },
    /// Let memory be held without a process, as long as the instance stands or until the GPU is reset.
    Leak {
        /// MIG UUID, GPU UUID or GPU index.
        device: String,
        /// How much: bytes, or with K, M, G; 0 for none.
        #[arg(long, value_parser = mebibytes)]
        memory: u64,
    },
    /// Hold a device until a signal, as monitoring does: no program sees a process on it. The MIG mode of a GPU stays;
    /// an instance cannot be destroyed.
    Hold {
        /// GPU index or MIG UUID.
        device: String,
        /// Hold the counters of the GPU too, as DCGM's profiling: GPM answers INVALID_STATE.
        #[arg(long)]
        profiling: bool,
        /// Let the MIG mode be switched, and its first instance be refused.
        #[arg(long)]
        parent: bool,
    },
    /// Reset a GPU: instances and compute mode are lost, a pending MIG mode comes into force.
    Reset {
        /// GPU index.
        gpu: usize,
    },
    /// Reboot: instances and compute modes are lost; MIG mode too, from Hopper on.
    Reboot,
    /// Run a fake CUDA program on the device that CUDA_VISIBLE_DEVICES gives; as a client of MPS, where
    /// CUDA_MPS_PIPE_DIRECTORY leads to a daemon.
    Run {
        /// Device memory to hold: bytes, or with K, M, G.
        #[arg(long, default_value = "512M", value_parser = mebibytes)]
        memory: u64,
        /// How long to run [default: until a signal].
        #[arg(long)]
        seconds: Option<f64>,
        /// busy, idle, burst:PERIOD:DUTY (seconds, 0 to 1) or steps:BUSY@SECONDS,... (0 to 1), which
        /// repeat with `,...` behind the last.
        #[arg(long, default_value = "busy")]
        pattern: Pattern,
        /// A device to try instead of CUDA_VISIBLE_DEVICES.
        #[arg(long = "try")]
        device: Option<String>,
        /// Command that NVML reports.
        #[arg(long, default_value = "gpusim")]
        name: String,
    },
}

#[derive(Subcommand)]
enum LatencyCommand {
    /// Switch it on.
    On {
        /// All times in percent of what they are.
        #[arg(long, default_value_t = 100)]
        percent: u64,
    },
    /// Switch it off, and forget other times than its own.
    Off,
    /// Give a step another time, and switch the model on.
    Set {
        /// The step, such as create-gpu-instance; `gpusim latency show` lists them.
        step: String,
        /// Milliseconds, alone on the node.
        ms: u64,
        /// Milliseconds more for each other session that is open.
        #[arg(long, default_value_t = 0)]
        session_ms: u64,
        /// On this GPU alone, by its index.
        #[arg(long)]
        gpu: Option<usize>,
        /// For GPU instances of this profile alone, such as 1g.10gb.
        #[arg(long)]
        profile: Option<String>,
    },
    /// Print the steps with their times and where these are from.
    Show,
}

fn mebibytes(text: &str) -> Result<u64, String> {
    let (digits, unit) = match text.trim_end_matches(['i', 'B']).split_at_checked(
        text.find(|c: char| c.is_ascii_alphabetic())
            .unwrap_or(text.len()),
    ) {
        Some((digits, unit)) => (digits, unit),
        None => (text, ""),
    };
    let number: f64 = digits
        .parse()
        .map_err(|_| format!("`{text}` is no amount of memory: write 4G or 512M"))?;
    let mib = match unit {
        "G" | "g" => number * 1024.0,
        "M" | "m" => number,
        "K" | "k" => number / 1024.0,
        "" => number / 1_048_576.0,
        _ => return Err(format!("`{text}` is no amount of memory: write 4G or 512M")),
    };
    if !(0.0..1e12).contains(&mib) {
        return Err(format!("`{text}` is no amount of memory: write 4G or 512M"));
    }
    Ok(mib.ceil() as u64)
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    match run(arguments) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("gpusim: {error:#}");
            let status = error.downcast_ref::<program::ProgramError>();
            ExitCode::from(status.map_or(1, program::ProgramError::status))
        }
    }
}

fn function(name: &str) -> anyhow::Result<Option<String>> {
    if name == "any" {
        return Ok(None);
    }
    if symbols::position(name).is_none() {
        bail!("NVML has no function `{name}`");
    }
    Ok(Some(name.to_owned()))
}

fn add_rule(
    store: &Store,
    call: &str,
    gpu: Option<usize>,
    nth: u64,
    count: u64,
    what: What,
) -> anyhow::Result<()> {
    let call = function(call)?;
    if let Some(index) = gpu.filter(|index| store.node().is_ok_and(|n| n.gpus.len() <= *index)) {
        bail!("there is no GPU {index} on this node");
    }
    let counted = disturb::counted(&*store.counters()?, call.as_deref());
    store.disturb(|all| {
        all.rules.push(Rule {
            call,
            gpu,
            first: counted + nth.max(1),
            count,
            what,
        });
    })?;
    Ok(())
}

/// The fault with this code of NVML; without one the caller is killed.
fn fault(code: Option<&str>, after: bool) -> anyhow::Result<What> {
    let Some(code) = code else {
        return Ok(if after { What::KillAfter } else { What::Kill });
    };
    let known = Code::parse(code);
    let number = known
        .with_context(|| format!("NVML has no code `{code}`"))?
        .0;
    Ok(if after { What::FailAfter(number) } else { What::Fail(number) })
}

/// Counts calls from zero. Rules that count from an older zero would come too late.
fn begin_to_count(store: &Store) -> anyhow::Result<()> {
    let counters = store.counters()?;
    for position in 0..=FUNCTIONS.len() {
        counters
            .word(position)
            .store(0, std::sync::atomic::Ordering::Relaxed);
    }
    journal::forget(store.root())?;
    store.disturb(|all| {
        all.counting = true;
        all.journal = true;
        all.rules.clear();
    })?;
    Ok(())
}

/// How often a job or a process called each function, and how long that took.
fn print_calls_of(
    store: &Store,
    job: Option<u32>,
    pid: Option<u32>,
    out: &mut impl Write,
) -> anyhow::Result<()> {
    let mut entries = journal::read(store.root())?;
    entries.retain(|entry| job.is_none_or(|job| entry.job == Some(job)));
    entries.retain(|entry| pid.is_none_or(|pid| entry.pid == pid));
    let took: Duration = entries.iter().map(|entry| entry.took).sum();
    writeln!(out, "{} any {} ms", entries.len(), took.as_millis())?;
    let mut of_names: BTreeMap<&str, (usize, Duration)> = BTreeMap::new();
    for entry in &entries {
        let (count, took) = of_names.entry(&entry.call).or_default();
        *count += 1;
        *took += entry.took;
    }
    for (name, (count, took)) in of_names {
        writeln!(out, "{count} {name} {} ms", took.as_millis())?;
    }
    Ok(())
}

fn latency(store: &Store, what: LatencyCommand, out: &mut impl Write) -> anyhow::Result<()> {
    match what {
        LatencyCommand::On { percent } => store.disturb(|all| {
            all.latencies.get_or_insert_default().percent = percent;
        })?,
        LatencyCommand::Off => store.disturb(|all| all.latencies = None)?,
        LatencyCommand::Set {
            step,
            ms,
            session_ms,
            gpu,
            profile,
        } => {
            let names: Vec<&str> = TABLE.iter().map(|latency| latency.name).collect();
            let known = names.join(", ");
            let found = Latency::named(&step);
            let step =
                found.with_context(|| format!("there is no step `{step}`; there are {known}"))?;
            let change = Change {
                step: step.step,
                gpu,
                profile,
                alone_ms: ms,
                session_ms,
            };
            store.disturb(|all| all.latencies.get_or_insert_default().changes.push(change))?;
        }
        LatencyCommand::Show => {
            match &store.disturbances()?.latencies {
                None => writeln!(out, "off")?,
                Some(model) => {
                    writeln!(out, "on, at {} %", model.percent)?;
                    for change in &model.changes {
                        writeln!(out, "changed: {change}")?;
                    }
                }
            }
            for latency in &TABLE {
                writeln!(out, "{latency}")?;
            }
        }
    }
    Ok(())
}

/// How often each function was called.
fn print_counts(store: &Store, out: &mut impl Write) -> anyhow::Result<()> {
    let counters = store.counters()?;
    writeln!(out, "{} any", disturb::counted(&counters, None))?;
    for name in FUNCTIONS.iter() {
        let count = disturb::counted(&counters, Some(name));
        if count > 0 {
            writeln!(out, "{count} {name}")?;
        }
    }
    Ok(())
}

fn run(arguments: Arguments) -> anyhow::Result<ExitCode> {
    let root = arguments
        .root
        .context("no node: name its folder with --root, or in NVML_SIM_ROOT")?;
    let mut out = std::io::stdout();
    if let Command::Init {
        gpus,
        like,
        mig,
        driver,
        mig_device_by,
        idle_memory,
        manners,
        lib,
    } = &arguments.command
    {
        let like = like.as_deref().map(admin::recorded).transpose()?;
        let recorded_model = like.as_ref().and_then(|file| file.head.model.clone());
        let gpus = match (gpus.is_empty(), recorded_model) {
            (true, Some(model)) => vec![model],
            (true, None) => bail!("the file names no model; name one with --gpu"),
            (false, _) => gpus.clone(),
        };
        let mut parsed = Vec::new();
        for text in &gpus {
            parsed.extend(admin::parse_gpus(text)?);
        }
        let recorded_driver = like.as_ref().map(|file| file.head.driver.clone());
        let driver = driver.clone().or(recorded_driver);
        let driver = driver.as_deref().unwrap_or(DRIVER);
        let library = match lib {
            Some(path) => path.clone(),
            None => admin::built_library()?,
        };
        let store = admin::init(&root, &parsed, *mig, driver, *idle_memory, &library)?;
        let by = match mig_device_by.as_str() {
            "walk" => MigDeviceBy::Walk,
            "name" => MigDeviceBy::Name,
            _ => MigDeviceBy::Info,
        };
        admin::mig_device_by(&store, by)?;
        admin::set_manners(&store, manners)?;
        if let Some(file) = like {
            admin::be_like(&store, &file)?;
        }
        return Ok(ExitCode::SUCCESS);
    }
    let store =
        Store::open(&root).with_context(|| format!("{} is no simulated node", root.display()))?;
    match arguments.command {
        Command::Init { .. } => {}
        Command::Show { json } => {
            let view = show::view(&store)?;
            if json {
                writeln!(out, "{}", serde_json::to_string_pretty(&view)?)?;
            } else {
                write!(out, "{}", show::text(&view))?;
            }
        }
        Command::Fault {
            call,
            nth,
            count,
            code,
            kill: _,
            after,
        } => {
            add_rule(
                &store,
                &call,
                None,
                nth,
                count,
                fault(code.as_deref(), after)?,
            )?;
        }
        Command::Delay {
            call,
            ms,
            nth,
            count,
            gpu,
        } => add_rule(&store, &call, gpu, nth, count, What::Delay(ms))?,
        Command::Latency { what } => latency(&store, what, &mut out)?,
        Command::Clear => {
            admin::be_true(&store)?;
            store.disturb(|all| {
                *all = Disturbances {
                    latencies: all.latencies.take(),
                    ..Disturbances::default()
                };
            })?;
        }
        Command::Calls { start, job, pid } => match (start, job, pid) {
            (true, ..) => begin_to_count(&store)?,
            (false, None, None) => print_counts(&store, &mut out)?,
            (false, job, pid) => print_calls_of(&store, job, pid, &mut out)?,
        },
        Command::Falsify { name: Some(name) } => {
            if !store.falsify(&name)? {
                bail!("there is no falsehood `{name}`; `gpusim falsify` lists them");
            }
        }
        Command::Falsify { name: None } => {
            for falsehood in FALSEHOODS {
                writeln!(out, "{}", falsehood.name)?;
            }
        }
        Command::DeadTelemetry { state } => {
            store.disturb(|all| all.dead_telemetry = state == "on")?;
        }
        Command::Leak { device, memory } => admin::leak(&store, &device, memory)?,
        Command::Mig { gpu, mode } => admin::set_mig(&store, gpu, mode == "on")?,
        Command::Create {
            gpu,
            profile,
            placement,
            no_compute,
        } => {
            let (gi, uuid) =
                admin::create(&store, gpu, &profile, placement.as_deref(), !no_compute)?;
            writeln!(out, "{gpu}/{gi} {}", uuid.as_deref().unwrap_or("-"))?;
        }
        Command::Destroy { instance, force } => admin::destroy(&store, &instance, force)?,
        Command::Hold {
            device,
            profiling,
            parent,
        } => admin::hold(&store, &device, profiling, parent)?,
        Command::Manner { names } => admin::set_manners(&store, &names)?,
        Command::Reset { gpu } => admin::reset(&store, gpu)?,
        Command::Reboot => admin::reboot(&store)?,
        Command::Run {
            memory,
            seconds,
            pattern,
            device,
            name,
        } => {
            let plan = program::Plan {
                visible: device.or_else(|| std::env::var("CUDA_VISIBLE_DEVICES").ok()),
                memory_mib: memory,
                time: seconds.map(|seconds| Duration::from_secs_f64(seconds.max(0.0))),
                pattern,
                name,
                mps: mps::Settings::from_environment()?,
            };
            let signal = program::run(&store, &plan, |line| {
                let _ = writeln!(std::io::stdout(), "{line}");
                let _ = std::io::stdout().flush();
            })?;
            if let Some(signal) = signal {
                return Ok(ExitCode::from(128 + signal as u8));
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}
