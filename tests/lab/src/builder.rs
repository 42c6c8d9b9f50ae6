//! The settings of a lab.

use std::path::PathBuf;

#[cfg(doc)]
use crate::Folder;
use crate::{CgroupVersion, Lab, Slurm};

/// The settings of a lab.
#[derive(Debug, Clone)]
pub struct LabBuilder {
    pub(crate) nodes: usize,
    pub(crate) name: Option<String>,
    pub(crate) node_prefix: Option<String>,
    /// In gpusim's notation.
    pub(crate) gpus: Vec<String>,
    pub(crate) mig: bool,
    pub(crate) driver: Option<String>,
    /// Percent of the model's latencies.
    pub(crate) latency: Option<u32>,
    pub(crate) pools: Option<String>,
    pub(crate) partitions: Vec<(String, String)>,
    pub(crate) gpufrac: bool,
    pub(crate) cgroup: Option<CgroupVersion>,
    pub(crate) cores_per_node: u32,
    pub(crate) slurm_conf_extra: String,
    pub(crate) folder: Option<PathBuf>,
    pub(crate) build_folder: Option<PathBuf>,
    /// The folder of the files built against Slurm's headers.
    pub(crate) series_folder: Option<PathBuf>,
    pub(crate) plugin_folder: Option<PathBuf>,
    /// Further paths in gpufrac.toml.
    pub(crate) paths: Vec<(&'static str, PathBuf)>,
    pub(crate) mps_standin: bool,
    /// `[reaper]` and the text after it.
    pub(crate) reaper: Option<String>,
    pub(crate) shared: bool,
    /// Types, and positions in the node's list of GPUs.
    pub(crate) plain_gpus: Vec<(String, u32)>,
    pub(crate) accounting: bool,
    pub(crate) slurm: Option<Slurm>,
    pub(crate) powered_down: bool,
    /// Names, and texts.
    pub(crate) scripts: Vec<(String, String)>,
    /// Names and texts of files beside slurm.conf.
    pub(crate) conf_files: Vec<(String, String)>,
    pub(crate) slurm_user: bool,
    pub(crate) configless: bool,
    pub(crate) quiet: bool,
}

impl Default for LabBuilder {
    fn default() -> Self {
        Self {
            nodes: 1,
            name: None,
            node_prefix: None,
            gpus: vec!["H100-80:2".into()],
            mig: true,
            driver: None,
            latency: None,
            pools: None,
            partitions: vec![("gpu".into(), String::new())],
            gpufrac: true,
            cgroup: None,
            cores_per_node: 64,
            slurm_conf_extra: String::new(),
            folder: None,
            build_folder: None,
            series_folder: None,
            plugin_folder: None,
            paths: Vec::new(),
            mps_standin: false,
            reaper: None,
            shared: false,
            plain_gpus: Vec::new(),
            accounting: false,
            slurm: None,
            powered_down: false,
            scripts: Vec::new(),
            conf_files: Vec::new(),
            slurm_user: false,
            configless: false,
            quiet: false,
        }
    }
}

impl Lab {
    /// Describes a lab.
    pub fn builder() -> LabBuilder {
        LabBuilder::default()
    }
}

impl LabBuilder {
    /// The number of nodes; default 1.
    pub fn nodes(mut self, count: usize) -> Self {
        self.nodes = count;
        self
    }

    /// The first part of node names, unless another lab has it. By default a name is chosen; control groups are named
    /// after nodes.
    pub fn node_prefix(mut self, prefix: &str) -> Self {
        self.node_prefix = Some(prefix.into());
        self
    }

    /// The lab's name, by which it can be stopped, and the first part of node names. The start fails if another lab
    /// has such nodes.
    pub fn name(mut self, name: &str, node_prefix: &str) -> Self {
        self.name = Some(name.into());
        self.node_prefix(node_prefix)
    }

    /// The simulated GPUs of each node: model and count; default two H100.
    pub fn gpus(mut self, model: &str, count: u32) -> Self {
        self.gpus = vec![format!("{model}:{count}")];
        self
    }

    /// Different GPUs on each node, in the notation of `gpusim init`: those with `:mig` (`H100-80:mig`) are in MIG
    /// mode, others are not.
    pub fn gpu_list(mut self, gpus: &[&str]) -> Self {
        self.gpus = gpus.iter().map(|gpu| (*gpu).to_owned()).collect();
        self.mig = false;
        self
    }

    /// Whether MIG mode is on at the start of the nodes, on all GPUs that have it; default on.
    pub fn mig(mut self, on: bool) -> Self {
        self.mig = on;
        self
    }

    /// The driver version that the simulated NVML reports; nvidia-smi requires its own.
    pub fn driver(mut self, version: &str) -> Self {
        self.driver = Some(version.into());
        self
    }

    /// Switches on the latencies of docs/design/tests.md, in percent of their values.
    pub fn latency(mut self, percent: u32) -> Self {
        self.latency = Some(percent);
        self
    }

    /// The part of gpufrac.toml after `[paths]`, with `@NODES@` for the node list and `@NODE1@` for a node. By
    /// default one pool of halves serves the first partition.
    pub fn pools(mut self, toml: &str) -> Self {
        self.pools = Some(toml.into());
        self
    }

    /// A GPU without a pool, by its position on each node; Slurm itself allocates it under this Type.
    pub fn plain_gpu(mut self, type_name: &str, position: u32) -> Self {
        self.plain_gpus.push((type_name.into(), position));
        self
    }

    /// A further partition, with the other keys of its line in slurm.conf (`@NODE1@` for a node).
    pub fn partition(mut self, name: &str, options: &str) -> Self {
        self.partitions.push((name.into(), options.into()));
        self
    }

    /// Only these partitions; the first one is the default.
    pub fn only_partitions(mut self, partitions: &[(&str, &str)]) -> Self {
        let owned = |(name, options): &(&str, &str)| ((*name).to_owned(), (*options).to_owned());
        self.partitions = partitions.iter().map(owned).collect();
        self
    }

    /// Whether gpufrac's plugins, Prolog and Epilog are installed; default yes.
    pub fn plugins(mut self, on: bool) -> Self {
        self.gpufrac = on;
        self
    }

    /// Other control groups than those of the environment.
    pub fn cgroup(mut self, version: CgroupVersion) -> Self {
        self.cgroup = Some(version);
        self
    }

    /// Another Slurm than that of the environment.
    pub fn slurm(mut self, slurm: Slurm) -> Self {
        self.slurm = Some(slurm);
        self
    }

    /// The number of cores of each node, on two sockets; default 64. Each has two threads, and a job gets whole cores.
    pub fn cores_per_node(mut self, count: u32) -> Self {
        self.cores_per_node = count;
        self
    }

    /// Whether nodes are cloud machines that are off: without setup and slurmd until Slurm's ResumeProgram starts them.
    pub fn powered_down(mut self) -> Self {
        self.powered_down = true;
        self
    }

    /// A script in the lab's `bin`, with `@ROOT@` for the lab's folder.
    pub fn script(mut self, name: &str, text: &str) -> Self {
        self.scripts.push((name.into(), text.into()));
        self
    }

    /// A file beside slurm.conf.
    pub fn conf_file(mut self, name: &str, text: &str) -> Self {
        self.conf_files.push((name.into(), text.into()));
        self
    }

    /// Runs slurmctld as an unprivileged user, the last of the lab's: [`Lab::slurm_user`].
    pub fn slurm_user(mut self) -> Self {
        self.slurm_user = true;
        self
    }

    /// Nodes get Slurm's files from slurmctld and see no other ones; each has its own `/run`.
    pub fn configless(self) -> Self {
        let mut own = self.slurm_conf_extra("SlurmctldParameters=enable_configless");
        own.configless = true;
        own
    }

    /// Lines to add to slurm.conf, with `@ROOT@` for the lab's folder.
    pub fn slurm_conf_extra(mut self, lines: &str) -> Self {
        self.slurm_conf_extra.push_str(lines);
        self.slurm_conf_extra.push('\n');
        self
    }

    /// A folder to use instead of a temporary one; it remains when the lab is stopped.
    pub fn folder(mut self, path: impl Into<PathBuf>) -> Self {
        self.folder = Some(path.into());
        self
    }

    /// The folder of cargo's results; by default that of the running program's build.
    pub fn build_folder(mut self, path: impl Into<PathBuf>) -> Self {
        self.build_folder = Some(path.into());
        self
    }

    /// The folder of cargo's results that were built against the headers of the lab's Slurm; by default
    /// `GPUFRAC_SERIES_DIR`, otherwise [`build_folder`](Self::build_folder).
    pub fn series_folder(mut self, path: impl Into<PathBuf>) -> Self {
        self.series_folder = Some(path.into());
        self
    }

    /// Takes the plugins from another folder of cargo than the programs.
    pub fn plugin_folder(mut self, path: impl Into<PathBuf>) -> Self {
        self.plugin_folder = Some(path.into());
        self
    }

    /// NVIDIA's MPS control program, in `[paths]` of gpufrac.toml.
    pub fn mps_control(mut self, path: impl Into<PathBuf>) -> Self {
        self.paths.push(("mps_control", path.into()));
        self
    }

    /// A stand-in for the MPS control program, with servers and clients without a GPU, at [`Folder::mps_standin`].
    pub fn mps_standin(mut self) -> Self {
        self.mps_standin = true;
        self
    }

    /// Starts a reaper on every node, with this part of gpufrac.toml: `[reaper]` and its tables.
    pub fn reaper(mut self, toml: &str) -> Self {
        self.reaper = Some(toml.into());
        self
    }

    /// Starts a slurmdbd with its own database; all of the lab's users have the account `lab`.
    /// [`slurm_conf_extra`](Self::slurm_conf_extra) sets what is enforced.
    pub fn accounting(mut self) -> Self {
        self.accounting = true;
        self
    }

    /// A folder that all nodes share, in `[paths]` of gpufrac.toml.
    pub fn shared(mut self) -> Self {
        self.shared = true;
        self
    }

    /// nvidia-smi, in `[paths]` of gpufrac.toml.
    pub fn nvidia_smi(mut self, path: impl Into<PathBuf>) -> Self {
        self.paths.push(("nvidia_smi", path.into()));
        self
    }

    /// The lab does not print times and logs at its end: for programs that are not tests.
    pub fn quiet(mut self) -> Self {
        self.quiet = true;
        self
    }
}
