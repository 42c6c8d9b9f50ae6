//! A node of the configuration, with access to its parts.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use gpufrac_core::config::{self, Config, ConfigErrors};
use gpufrac_core::lease::{Lease, LeaseState};

use crate::clock::{Clock as _, SystemClock};
use crate::gpu::capability_files::Caps;
use crate::hami;
use crate::mps::visit::Silences;
use crate::state::last_good;
use crate::state::leases::{LeaseStore, StoreError};
use crate::state::locks::Locks;
use crate::state::record::{NodeRecord, RecordError};
use gpufrac_host::files::{FileError, RootDir};
use gpufrac_nvml::{NvmlError, Session};

/// The reasons why the configuration of a node cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum NodeError {
    #[error(transparent)]
    File(#[from] FileError),
    /// The host has no gpufrac.toml.
    /// Cure: Copy the file from slurmctld's host to /etc/gpufrac, or name it with `--config FILE` or `GPUFRAC_CONFIG`.
    #[error("`{}` does not exist; the same file belongs on every host", path.display())]
    NoConfig {
        /// Where it should be.
        path: PathBuf,
    },
    /// The configuration is wrong.
    #[error("{0}")]
    Config(ConfigErrors),
}

/// A node for programs that serve jobs.
#[derive(Debug)]
pub struct Served {
    pub node: Node,
    /// The fault of a configuration that can still be used.
    pub complaint: Option<Complaint>,
    /// The text of the file, if it is used.
    pub text: Option<String>,
}

/// The faults of a configuration that can still be used.
#[derive(Debug, thiserror::Error)]
pub enum Complaint {
    /// A part of gpufrac.toml that slices do not need has a mistake.
    /// Cure: Correct the file; `gpufrac check --file-only`.
    #[error("{0}; slices are still made; correct the file and run `gpufrac check --file-only`")]
    Reaper(ConfigErrors),
    /// gpufrac.toml has a mistake. The node uses its last good copy.
    /// Cure: Correct the file, then run `gpufrac node-setup`.
    #[error(
        "{0}; the node uses its last good configuration; correct the file and run `gpufrac check --file-only`"
    )]
    LastGood(NodeError),
}

/// How long one step of a program that has the GPU may take before waiting programs give up: longer than any step
/// that ends. NVIDIA's driver needs ten seconds for a handle by UUID if many programs ask for one, and an MPS control
/// daemon may need as long to start.
pub const LOCK_PATIENCE: Duration = Duration::from_secs(20);
/// How long a GPU without MIG may take to be in its NVSwitch fabric: assumed; a prolog's own time is at least 45 s.
pub const FABRIC_PATIENCE: Duration = Duration::from_secs(30);

/// The folder in `<run>` with a folder for each job that uses HAMi-core.
const HAMI: &str = "hami";
/// The file of the library in the job's folder.
const HAMI_CACHE: &str = "cache";
/// The space that a job can fill there, in bytes. The library's file has 2 MiB.
const HAMI_SPACE: u64 = 8 << 20;

#[derive(Debug)]
pub struct Node {
    /// Its name in Slurm.
    pub name: String,
    /// The configuration of the cluster.
    pub config: Config,
    /// `<run>`: leases, locks, record.
    pub run: PathBuf,
    /// `<state>`: usage records.
    pub state: PathBuf,
    /// Placeholder nodes.
    pub devices: PathBuf,
    /// Prefix of the driver's files.
    pub driver_root: PathBuf,
    pub nvml: PathBuf,
    /// The control daemon of MPS.
    pub mps_control: PathBuf,
    pub nvidia_smi: PathBuf,
    /// The files of CDI, which runtimes of containers read.
    pub cdi: PathBuf,
    /// The folder that all nodes share.
    pub shared: Option<PathBuf>,
    /// The folder that lists the nodes of this machine with pools; [`config::NODES`] except in tests.
    pub nodes: PathBuf,
    /// MPS control daemons that did not answer recently.
    pub silences: Arc<Silences>,
    /// How long one step of a program that has the GPU may take; [`LOCK_PATIENCE`] except in tests.
    pub lock_patience: Duration,
    /// How long a GPU without MIG may take to be in its NVSwitch fabric; [`FABRIC_PATIENCE`] except in tests.
    pub fabric_patience: Duration,
}

impl Node {
    /// Reads the configuration file for root's programs; only root may be able to change it.
    pub fn load(config: &Path, name: &str) -> Result<Node, NodeError> {
        let text = read_text(config)?;
        let config = Config::parse(&text, &config.to_string_lossy()).map_err(NodeError::Config)?;
        Ok(Node::new(config, name))
    }

    /// As [`Node::load`], for programs that serve jobs while an admin corrects the file: a mistake in `[reaper]` does
    /// not matter, and if the file cannot be used, its last valid copy is. Errors: neither can be used.
    pub fn load_to_serve(config: &Path, name: &str, last_good: &Path) -> Result<Served, NodeError> {
        let parse = |text: &str| Config::parse_pools(text, &config.to_string_lossy());
        let read = read_text(config);
        let error = match read.map(|text| (parse(&text), text)) {
            Ok((Ok((config, of_reaper)), text)) => {
                return Ok(Served {
                    node: Node::new(config, name),
                    complaint: of_reaper.map(Complaint::Reaper),
                    text: Some(text),
                });
            }
            Ok((Err(errors), _)) => NodeError::Config(errors),
            Err(error) => error,
        };
        let copy = last_good::read(last_good, config, name).ok().flatten();
        match copy.and_then(|text| parse(&text).ok()) {
            Some((config, _)) => Ok(Served {
                node: Node::new(config, name),
                complaint: Some(Complaint::LastGood(error)),
                text: None,
            }),
            None => Err(error),
        }
    }

    /// With a configuration that was read already.
    pub fn new(config: Config, name: &str) -> Node {
        let paths = config.paths.for_node(name);
        Node {
            name: name.to_owned(),
            run: paths.run.into(),
            state: paths.state.into(),
            devices: paths.devices.into(),
            driver_root: paths.driver_root.into(),
            nvml: paths.nvml.into(),
            mps_control: paths.mps_control.into(),
            nvidia_smi: paths.nvidia_smi.into(),
            cdi: paths.cdi.into(),
            shared: paths.shared.map(PathBuf::from),
            nodes: config::NODES.into(),
            silences: Arc::default(),
            lock_patience: LOCK_PATIENCE,
            fabric_patience: FABRIC_PATIENCE,
            config,
        }
    }

    /// Whether a pool has GPUs on this node.
    pub fn has_pools(&self) -> bool {
        !self.config.pools_of_node(&self.name).is_empty()
    }

    pub fn leases(&self) -> Result<LeaseStore, StoreError> {
        LeaseStore::open(&self.run)
    }

    pub fn locks(&self) -> Result<Locks, FileError> {
        Locks::open(&self.run)
    }

    /// The findings of node-setup.
    pub fn record(&self) -> Result<NodeRecord, RecordError> {
        NodeRecord::read(&self.run)
    }

    /// The driver's capability files.
    pub fn caps(&self) -> Caps {
        Caps::new(&self.driver_root)
    }

    /// The folder of a control daemon, by its name; the folders above are created when the daemon starts.
    pub fn mps_folder(&self, name: &str) -> String {
        self.run
            .join("mps")
            .join(name)
            .to_string_lossy()
            .into_owned()
    }

    /// The path of HAMi-core's file for a lease, by the lease's name.
    pub fn hami_cache(&self, name: &str) -> String {
        let folder = self.run.join(HAMI).join(name);
        folder.join(HAMI_CACHE).to_string_lossy().into_owned()
    }

    /// Creates this file for the job's user, unless it exists. The user can write to it without limit, so it is in a
    /// separate file system.
    pub fn make_hami_cache(&self, lease: &Lease) -> Result<(), FileError> {
        let (dir, _) = RootDir::create(&self.run.join(HAMI), 0o711)?;
        let name = lease.name();
        if dir.exists(&name)? {
            if lease.state == LeaseState::Active {
                return Ok(());
            }
            self.remove_hami_cache(lease)?;
        }
        let own = dir.confine(&name, HAMI_SPACE, 0o711)?;
        own.make_for(HAMI_CACHE, lease.user_id, lease.group_id)
    }

    /// Lets HAMi-core keep to the limit of a lease with such a file, or lifts it. None where the file is gone.
    pub fn limit_hami(
        &self,
        lease: &Lease,
        limited: bool,
    ) -> Result<Option<hami::Region>, FileError> {
        let folder = self.run.join(HAMI).join(lease.name());
        let Some(dir) = RootDir::find(&folder)? else {
            return Ok(None);
        };
        let Some(file) = dir.file_of(HAMI_CACHE, lease.user_id)? else {
            return Ok(None);
        };
        let set = hami::limit(&file, limited).map_err(|source| FileError::Io {
            action: "changing",
            path: folder.join(HAMI_CACHE),
            source,
        })?;
        Ok(Some(set))
    }

    /// Removes it, even if it is open.
    pub fn remove_hami_cache(&self, lease: &Lease) -> Result<(), FileError> {
        let Some(dir) = RootDir::find(&self.run.join(HAMI))? else {
            return Ok(());
        };
        let name = lease.name();
        dir.unconfine(&name)?;
        dir.remove_all(&name).map(|_| ())
    }

    pub fn nvml(&self) -> Result<Session, NvmlError> {
        Session::open(&self.nvml)
    }

    /// NVML, started by the first call.
    pub fn nvml_later(&self) -> Session {
        Session::deferred(&self.nvml)
    }
}

fn read_text(config: &Path) -> Result<String, NodeError> {
    let absent = || NodeError::NoConfig {
        path: config.to_owned(),
    };
    let (Some(folder), Some(file)) = (
        config.parent(),
        config.file_name().and_then(|name| name.to_str()),
    ) else {
        return Err(absent());
    };
    let Some(dir) = RootDir::find(folder)? else {
        return Err(absent());
    };
    dir.read(file)?.ok_or_else(absent)
}

/// Milliseconds since the node was booted, by a clock that nobody sets (`CLOCK_BOOTTIME`, clock_gettime(2)).
pub fn now_boot_ms() -> u64 {
    SystemClock.now().milliseconds()
}

/// Seconds since 1970.
pub fn now_unix() -> u64 {
    SystemClock.unix_now()
}
