//! The sources of the settings: scontrol, the files, and this host.

use std::cell::RefCell;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use gpufrac_host::subprocess::Outcome;

use super::ask::{AskError, ask, ask_slurm, joined, of_prefix};
use super::scripts::{glob, scripts};
use super::{HostGpu, HostGpus, Settings};
use gpufrac_slurm_conf::Files;
use gpufrac_slurm_conf::Running;

/// The usual paths of slurm.conf; the second on nodes that get it from slurmctld.
const USUAL: [&str; 2] = ["/etc/slurm/slurm.conf", "/run/slurm/conf/slurm.conf"];
/// The sources to read.
#[derive(Debug, Clone, Default)]
pub struct Sources<'a> {
    /// This slurm.conf and the files beside it are judged, without a running Slurm.
    pub slurm_conf: Option<PathBuf>,
    /// The gpufrac.toml in use, to judge who can read it; None for a file that is only tested.
    pub config: Option<PathBuf>,
    /// Whether to check the files of gpufrac on this host.
    pub host: bool,
    /// Whether to ask slurmctld about this node only. Thousands of nodes ask every few minutes, so each question must
    /// cost slurmctld little.
    pub this_node_alone: bool,
    /// Whether to ask slurmdbd for limits on any host; otherwise only slurmctld's host asks, and not for this node
    /// alone.
    pub limits: bool,
    /// The node that this host is, if it is one.
    pub here: Option<Here<'a>>,
}

/// This host as a node of a pool.
#[derive(Debug, Clone)]
pub struct Here<'a> {
    pub node: &'a str,
    /// The GPUs in the order of NVML's indexes; None if NVML does not answer.
    pub gpus: Option<Vec<HostGpu>>,
    /// Whether one of the node's pools has MPS control daemons.
    pub uses_mps: bool,
}

/// Reads all sources. [`Settings::unknown`] lists those that could not be read.
pub fn gather(sources: &Sources<'_>) -> Settings {
    let mut settings = Settings::default();
    let here = sources.here.as_ref().filter(|_| sources.this_node_alone);
    settings.only = here.map(|here| here.node.to_owned());
    if sources.slurm_conf.is_none() {
        let only = settings.only.as_deref();
        // Both run programs that wait for slurmctld, so they run in parallel.
        let (running, pools) = std::thread::scope(|scope| {
            let asked = sources.config.as_ref();
            let asked = asked.map(|_| scope.spawn(super::pools::ask));
            let running = running(only);
            (running, asked.and_then(|it| it.join().ok().flatten()))
        });
        settings.pools = pools;
        match running {
            Ok(running) => settings.running = Some(running),
            Err(error @ (AskError::Refused(..) | AskError::Silent(_))) => {
                settings.no_answer = Some(error.to_string());
            }
            Err(error) => {
                let why = format!("{error}: the running Slurm is not judged");
                settings.unknown.push(why);
            }
        }
    }
    let told = settings.running_value("SLURM_CONF");
    let from_environment = || std::env::var_os("SLURM_CONF").map(PathBuf::from);
    let asked = sources.slurm_conf.clone().or_else(from_environment);
    let candidates: Vec<PathBuf> = match asked {
        // The files beside it need its folder.
        Some(path) => vec![std::path::absolute(&path).unwrap_or(path)],
        None => {
            let usual = told.into_iter().chain(USUAL).map(PathBuf::from);
            usual.chain(of_prefix("etc/slurm.conf")).collect()
        }
    };
    let not_text = RefCell::new(Vec::new());
    let read = |path: &Path| {
        let text = fs::read_to_string(path);
        if text
            .as_ref()
            .is_err_and(|error| error.kind() == ErrorKind::InvalidData)
        {
            not_text.borrow_mut().push(path.to_owned());
        }
        text
    };
    let mut why = None;
    for path in &candidates {
        match Files::read(path, &read, &glob) {
            Ok(files) => {
                settings.files = Some(files);
                break;
            }
            Err(error) => {
                why.get_or_insert_with(|| format!("reading `{}` failed: {error}", path.display()));
            }
        }
    }
    settings.not_text = not_text.into_inner();
    if settings.files.is_none() {
        settings.unknown.extend(why);
    }
    settings.plugstack_is_odd = settings.files.iter().any(|files| {
        let kind = fs::metadata(&files.plugstack);
        kind.is_ok_and(|kind| !kind.is_file())
    });
    settings.scripts = scripts(&settings);
    settings.comment_writers = super::comments::writers(&settings);
    settings.config = sources.config.clone();
    let config = sources.config.as_deref();
    settings.closed = config.and_then(|config| super::access::closed(config, &settings));
    // A slurm.conf that is only tried has no slurmctld, and so no slurmdbd.
    let is_tried = sources.slurm_conf.is_some();
    let is_asked = sources.limits || settings.is_of_controller();
    if is_asked && !is_tried && !sources.this_node_alone && settings.running.is_some() {
        settings.limits = super::limits::ask(&settings);
    }
    if let Some(here) = &sources.here {
        settings.kill_mode = if here.uses_mps { kill_mode() } else { None };
        settings.gpus = here.gpus.clone().map(|gpus| HostGpus {
            node: here.node.to_owned(),
            gpus,
        });
    }
    if sources.host {
        let (role, troubles) = super::host::inspect(&settings, sources.here.is_some());
        (settings.role, settings.troubles) = (Some(role), troubles);
    }
    settings
}

/// The state of all nodes and partitions, or of one node only.
fn running(only: Option<&str>) -> Result<Running, AskError> {
    let scontrol = |arguments: &[&str]| ask_slurm("scontrol", arguments);
    // Each is a program that waits for slurmctld, so they run in parallel.
    let (config, nodes, partitions) = std::thread::scope(|scope| {
        let nodes = scope.spawn(move || match only {
            Some(node) => scontrol(&["-o", "show", "node", node]),
            None => scontrol(&["-a", "-o", "show", "node"]),
        });
        let partitions = scope.spawn(move || match only {
            Some(_) => Ok(String::new()),
            None => scontrol(&["-a", "-o", "show", "partition"]),
        });
        let config = scontrol(&["show", "config"]);
        let program = "scontrol";
        (config, joined(program, nodes), joined(program, partitions))
    });
    Ok(Running::parse(&config?, &nodes?, &partitions?))
}

/// `KillMode=` of slurmd's unit on this host. MPS control daemons must outlive slurmd.
fn kill_mode() -> Option<String> {
    let arguments = ["show", "--property=LoadState,KillMode", "slurmd.service"];
    let Ok(Outcome::Ended(ended)) = ask(Path::new("systemctl"), &arguments, &[]) else {
        return None;
    };
    let mut lines = ended.stdout.lines();
    let loaded = ended.status.success() && lines.any(|line| line == "LoadState=loaded");
    let mut lines = ended.stdout.lines();
    let mode = lines.find_map(|line| line.strip_prefix("KillMode="));
    mode.filter(|_| loaded).map(str::to_owned)
}
