//! Starts a lab: its folder, configuration, devices and daemons.

use std::cell::Cell;
use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::chown;
use std::path::PathBuf;
use std::time::Duration;

use gpufrac_core::config::Config;
use nix::sys::stat::{Mode, SFlag, makedev, mknod};

use crate::claims::Claims;
use crate::conf::{self, NodeGres, NodeLine, SlurmConf};
use crate::ending::Record;
use crate::folder::write;
use crate::lab::{Keeping, Lab};
use crate::patience::poll;
use crate::{
    CgroupVersion, Folder, LabBuilder, LabError, Slurm, User, accounting, artifacts, daemons, gpus,
    users,
};

/// Major number of the placeholders of a lab without gpufrac: "local or experimental" in the kernel's
/// list, so that no driver answers.
const PLACEHOLDER_MAJOR: u64 = 240;

/// `ClusterName`.
const CLUSTER: &str = "lab";

/// The time limit until every node is idle: for one node, and for each further one.
const START_LIMIT: Duration = Duration::from_secs(30);
const START_LIMIT_MORE: Duration = Duration::from_secs(2);

impl LabBuilder {
    /// Starts the cluster and waits until every node is idle.
    /// Errors: the machine lacks something, or a daemon does not start; the error contains the ends of the logs.
    pub fn start(self) -> Result<Lab, LabError> {
        if !nix::unistd::geteuid().is_root() {
            return Err(LabError::Machine {
                what: "the lab's daemons need root: they make control groups and device nodes"
                    .into(),
                hint: "run as root, on a machine for tests".into(),
            });
        }
        let users = users::unprivileged()?;
        let slurm = match &self.slurm {
            Some(slurm) => slurm.clone(),
            None => Slurm::of_environment()?,
        };
        let build = self.build()?;
        let mut claims = Claims::default();
        let prefix = self.prefix(&mut claims)?;
        let nodes: Vec<String> = (1..=self.nodes).map(|n| format!("{prefix}{n}")).collect();
        let alone = !slurm.has_several_nodes()?;
        if alone {
            self.stand_alone(&mut claims)?;
        }
        let record = Record::new(self.name.clone(), nodes, alone);
        let (folder, keeping) = self.place()?;
        let mut lab = Lab::new(&build, folder, keeping, record, users, slurm.clone())?;
        // One for slurmctld, one for slurmdbd, the others for the nodes.
        let count = lab.nodes().len() + 2;
        let mut ports = claims.ports(count);
        // slurmdbd would refuse another `SlurmUser` than its own.
        let accounting = self.accounting || slurm.needs_accounting() && !self.slurm_user;
        let slurmdbd = ports.pop().filter(|_| accounting);
        if ports.len() + 1 < count {
            return Err(LabError::Machine {
                what: "this machine has too few free TCP ports".into(),
                hint: "stop other labs".into(),
            });
        }
        lab.hold(claims);
        if self.quiet {
            lab.be_quiet();
        }
        // As `/run` and the driver's files on a real node: a disk slows every prolog down, and measurements vary.
        for place in ["run", "gpus"] {
            lab.mount_tmpfs(lab.folder().root().join(place))?;
        }
        lab.folder().create(lab.nodes())?;
        self.write_configuration(&mut lab, ports, slurmdbd)?;
        self.prepare_devices(&lab)?;
        self.start_daemons(&mut lab, slurmdbd)?;
        lab.start_ends();
        Ok(lab)
    }

    fn place(&self) -> Result<(Folder, Keeping), LabError> {
        if let Some(path) = &self.folder {
            let keeping = if path.exists() { Keeping::Always } else { Keeping::OnceStarted };
            return Ok((Folder::new(path), keeping));
        }
        let temporary = tempfile::Builder::new()
            .prefix("gpufrac-lab-")
            .tempdir()
            .map_err(LabError::file("creating a folder in", std::env::temp_dir()))?;
        // The lab itself decides whether the folder is removed; it is kept after a failure.
        Ok((Folder::new(temporary.keep()), Keeping::AfterPanic))
    }

    fn prefix(&self, claims: &mut Claims) -> Result<String, LabError> {
        if let Some(prefix) = &self.node_prefix {
            if claims.prefix(prefix) {
                return Ok(prefix.to_string());
            }
            if let Some(name) = &self.name {
                return Err(LabError::Machine {
                    what: format!(
                        "the nodes of the lab `{name}` would be named {prefix}1, ..., and this machine has a lab with such nodes"
                    ),
                    hint: "stop that lab where it was started, or give this one another name"
                        .into(),
                });
            }
        }
        claims.any_prefix().ok_or_else(|| LabError::Machine {
            what: "every name for nodes is taken on this machine".into(),
            hint: "remove what is left of old labs in /sys/fs/cgroup: slurm_lab*, lab*_slurmstepd.scope".into(),
        })
    }

    /// Takes the whole machine, for a Slurm of which one slurmd runs on a machine.
    fn stand_alone(&self, claims: &mut Claims) -> Result<(), LabError> {
        if self.nodes > 1 {
            return Err(LabError::NotHere {
                why: "this Slurm was built without --enable-multiple-slurmd: a lab has one node",
            });
        }
        if claims.alone() {
            return Ok(());
        }
        Err(LabError::Machine {
            what: "another slurmd has the control groups that this Slurm needs: it was built without --enable-multiple-slurmd"
                .into(),
            hint: "stop other labs, or remove what is left of them: /sys/fs/cgroup/*/slurm, slurmstepd.scope".into(),
        })
    }

    fn build(&self) -> Result<PathBuf, LabError> {
        match &self.build_folder {
            Some(build) => Ok(build.clone()),
            None => artifacts::build_folder(),
        }
    }

    fn series(&self, build: &std::path::Path) -> PathBuf {
        match &self.series_folder {
            Some(folder) => folder.clone(),
            None => artifacts::series_folder(build),
        }
    }

    /// Installs gpufrac's plugins, programs and configuration in the lab's folder.
    fn install_gpufrac(&self, folder: &Folder, nodes: &[String]) -> Result<(), LabError> {
        let build = self.build()?;
        artifacts::install(&build, &self.series(&build), folder)?;
        if let Some(plugins) = &self.plugin_folder {
            artifacts::install_plugins(plugins, folder)?;
        }
        let mut paths = self.paths.clone();
        if self.mps_standin {
            artifacts::install_mps_standin(&build, folder)?;
            paths.push(("mps_control", folder.mps_standin()));
        }
        if self.shared {
            let shared = folder.shared();
            fs::create_dir_all(&shared).map_err(LabError::file("creating", &shared))?;
            paths.push(("shared", shared));
        }
        let mut pools = match &self.pools {
            Some(pools) => with_nodes(pools, nodes),
            None => conf::default_pool(self.first_model(), &self.partitions[0].0, nodes),
        };
        if let Some(reaper) = &self.reaper {
            pools.push('\n');
            pools.push_str(&with_nodes(reaper, nodes));
        }
        let text = conf::gpufrac_conf(folder, &paths, &pools);
        write(&folder.gpufrac_conf(), &text, 0o644)?;
        for (name, program) in [("prolog", "gpufrac-prolog"), ("epilog", "gpufrac-epilog")] {
            let text = conf::wrapper(folder, program);
            write(&folder.bin().join(name), &text, 0o755)?;
        }
        Ok(())
    }

    /// Writes gres.conf, if nodes have GRES. Returns the values for the nodes' lines in slurm.conf.
    fn write_gres(&self, lab: &Lab, ports: Vec<u16>) -> Result<Vec<NodeLine>, LabError> {
        let folder = lab.folder();
        let config = self.config(folder)?;
        let mut gres_conf = String::new();
        let mut lines = Vec::new();
        for (name, port) in lab.nodes().iter().zip(ports) {
            let gres = self.gres(lab, config.as_ref(), name)?;
            if let Some(gres) = &gres {
                gres_conf.push_str(&gres.gres_conf);
            }
            lines.push(NodeLine {
                name: name.clone(),
                port,
                types: gres.as_ref().map(|gres| gres.types.clone()),
                gres: gres.map(|gres| gres.slurm_conf),
            });
        }
        if !gres_conf.is_empty() {
            write(&folder.etc().join("gres.conf"), &gres_conf, 0o644)?;
        }
        Ok(lines)
    }

    fn write_configuration(
        &self,
        lab: &mut Lab,
        mut ports: Vec<u16>,
        slurmdbd: Option<u16>,
    ) -> Result<(), LabError> {
        let folder = &lab.folder().clone();
        let etc = folder.etc();
        let nodes = &lab.nodes().to_vec();
        let mut plugin_path = lab.slurm().plugins()?.display().to_string();
        let mut plugstack = String::new();
        if self.gpufrac {
            self.install_gpufrac(folder, nodes)?;
            plugin_path = format!("{}:{plugin_path}", folder.lib().display());
            let plugin = folder.lib().join("spank_gpufrac.so");
            plugstack = format!(
                "required {} config={}\n",
                plugin.display(),
                folder.gpufrac_conf().display()
            );
        }
        write(&etc.join("plugstack.conf"), &plugstack, 0o644)?;
        let cgroup = match self.cgroup {
            Some(version) => version,
            None => CgroupVersion::usual(lab.slurm())?,
        };
        cgroup.require()?;
        if cgroup.needs_view() {
            artifacts::install_cgroup_view(&self.build()?, folder)?;
        }
        write(&etc.join("cgroup.conf"), &cgroup.conf(), 0o644)?;

        let controller_port = ports.pop().unwrap_or_default();
        let lines = self.write_gres(lab, ports)?;
        let root = folder.root().display().to_string();
        for (name, text) in &self.scripts {
            let text = text.replace("@ROOT@", &root);
            write(&folder.bin().join(name), &text, 0o755)?;
        }
        let host = nix::unistd::gethostname()
            .map_err(|e| LabError::file("reading the name of", "this host")(e.into()))?;
        let mut partitions = self.partitions.clone();
        for (_, options) in &mut partitions {
            *options = with_nodes(options, nodes);
        }
        for (name, text) in &self.conf_files {
            write(&etc.join(name), text, 0o644)?;
        }
        let mut extra = self.slurm_conf_extra.replace("@ROOT@", &root);
        if self.slurm_user {
            extra.push_str(&self.hand_over(lab)?);
        }
        if self.configless {
            lab.way().conf_server = Some(format!("127.0.0.1:{controller_port}"));
        }
        let slurm_conf = SlurmConf {
            folder,
            cluster: CLUSTER,
            host: &host.to_string_lossy(),
            controller_port,
            nodes: &lines,
            cores_per_node: self.cores_per_node,
            gather: cgroup.accounting(),
            partitions: &partitions,
            plugin_path,
            gpufrac: self.gpufrac,
            accounting: slurmdbd,
            powered_down: self.powered_down,
            extra: &extra,
        };
        write(&folder.slurm_conf(), &slurm_conf.text(), 0o644)
    }

    /// Gives slurmctld's files to its user; returns the lines for slurm.conf.
    fn hand_over(&self, lab: &mut Lab) -> Result<String, LabError> {
        let user = match lab.users().last() {
            Some(user) => user.clone(),
            None => User::root(),
        };
        let folder = lab.folder();
        let (state, log) = (folder.state(), folder.log().join("slurmctld.log"));
        write(&log, "", 0o644)?;
        for path in [&state, &log] {
            chown(path, Some(user.uid), Some(user.gid))
                .map_err(LabError::file("giving away", path))?;
        }
        let lines = format!(
            "SlurmUser={}\nSlurmctldPidFile={}\n",
            user.name,
            state.join("pid").display()
        );
        lab.way().slurm_user = Some(user);
        Ok(lines)
    }

    fn first_model(&self) -> &str {
        let first = self.gpus.first().map_or("", String::as_str);
        first.split(':').next().unwrap_or_default()
    }

    /// How many GPUs a node has.
    fn gpu_count(&self) -> u32 {
        let count = |gpu: &String| {
            let second = gpu.split(':').nth(1);
            second.and_then(|text| text.parse().ok()).unwrap_or(1)
        };
        self.gpus.iter().map(count).sum()
    }

    /// gpufrac.toml, parsed by gpufrac.
    fn config(&self, folder: &Folder) -> Result<Option<Config>, LabError> {
        if !self.gpufrac {
            return Ok(None);
        }
        let path = folder.gpufrac_conf();
        let text = fs::read_to_string(&path).map_err(LabError::file("reading", &path))?;
        Config::parse(&text, &path.display().to_string())
            .map(Some)
            .map_err(|errors| LabError::Unexpected {
                what: "reading the lab's configuration failed".into(),
                found: errors.to_string(),
            })
    }

    /// The GRES lines of a node, as gpufrac prints them; none for a node without a pool.
    fn gres(
        &self,
        lab: &Lab,
        config: Option<&Config>,
        node: &str,
    ) -> Result<Option<NodeGres>, LabError> {
        let gpus = self.gpu_count();
        if gpus == 0 {
            return Ok(None);
        }
        let Some(config) = config else {
            return Ok(Some(conf::plain_gres(lab.folder(), node, gpus)));
        };
        if config.pools_of_node(node).is_empty() {
            return Ok(None);
        }
        let args = ["conf", "--node", node, "--gpus", &gpus.to_string()];
        let text = lab.command("gpufrac").args(args).stdout()?;
        let Some(mut gres) = conf::printed_gres(&text) else {
            return Err(LabError::Unexpected {
                what: args.join(" "),
                found: text,
            });
        };
        for (type_name, position) in &self.plain_gpus {
            let file = lab
                .folder()
                .gpus(node)
                .join(format!("dev/nvidia{position}"));
            gres.add_gpu(node, type_name, &file);
        }
        Ok(Some(gres))
    }

    fn prepare_devices(&self, lab: &Lab) -> Result<(), LabError> {
        let config = self.config(lab.folder())?;
        for node in lab.nodes() {
            if let Some(config) = &config {
                gpus::init(lab, node, &self.gpus, self.mig, self.driver.as_deref())?;
                if let Some(percent) = self.latency {
                    let percent = percent.to_string();
                    lab.gpusim(node, &["latency", "on", "--percent", &percent])?;
                }
                if !config.pools_of_node(node).is_empty() && !self.powered_down {
                    gpus::node_setup(lab, node)?;
                }
                continue;
            }
            for minor in 0..2 * u64::from(self.gpu_count()) {
                let path = lab.folder().devices(node).join(format!("half{minor}"));
                let id = makedev(PLACEHOLDER_MAJOR, minor);
                mknod(&path, SFlag::S_IFCHR, Mode::from_bits_truncate(0o666), id)
                    .map_err(|e| LabError::file("creating", &path)(e.into()))?;
            }
        }
        Ok(())
    }

    fn start_daemons(&self, lab: &mut Lab, slurmdbd: Option<u16>) -> Result<(), LabError> {
        let folder = lab.folder().clone();
        if slurmdbd.is_some() {
            // Before the namespace is created, because the database is the machine's.
            lab.mount_tmpfs(folder.database())?;
            lab.adopt(accounting::mariadb(&folder)?)?;
        }
        if let Some(namespace) = lab.slurm().enter(&folder)? {
            lab.adopt(namespace)?;
        }
        lab.adopt(daemons::munged(&folder)?)?;
        if let Some(port) = slurmdbd {
            // A lab that did not ask for accounting does with it what it would do without.
            let (lines, accounts): (_, &[_]) = if self.accounting {
                ("", &[])
            } else {
                ("PrivateData=jobs\n", &accounting::NAMED)
            };
            lab.adopt(accounting::slurmdbd(&folder, port, lines)?)?;
            lab.open_accounts(CLUSTER, accounts)?;
        }
        lab.start_slurmctld()?;
        if self.powered_down {
            return Ok(());
        }
        for node in lab.nodes().to_vec() {
            lab.start_slurmd(&node)?;
        }
        let more = u32::try_from(lab.nodes().len()).unwrap_or(u32::MAX);
        lab.wait_until_idle(START_LIMIT + START_LIMIT_MORE.saturating_mul(more))?;
        if self.reaper.is_some() {
            for node in lab.nodes().to_vec() {
                lab.start_reaper(&node)?;
            }
        }
        Ok(())
    }
}

fn with_nodes(text: &str, nodes: &[String]) -> String {
    let mut text = text.replace("@NODES@", &nodes.join(","));
    for (name, number) in nodes.iter().zip(1..) {
        text = text.replace(&format!("@NODE{number}@"), name);
    }
    text
}

impl Lab {
    /// Waits until every node is idle.
    /// Errors: a daemon ended or not all nodes become idle; `limit` is as in [`Lab::wait`].
    pub fn wait_until_idle(&self, limit: Duration) -> Result<(), LabError> {
        let _waiting = self.count_wait();
        let states = Cell::new(String::new());
        let step = Duration::from_millis(20);
        let found = poll("the start of all nodes", limit, step, || {
            let sinfo = self.command("sinfo").args(["-h", "-N", "-o", "%N %T"]);
            let seen = sinfo.run()?;
            let idle: BTreeSet<&str> = seen.stdout.lines().collect();
            let is_idle = |node: &String| idle.contains(format!("{node} idle").as_str());
            if self.nodes().iter().all(is_idle) {
                return Ok(Some(()));
            }
            states.set(format!("{}{}", seen.stdout, seen.stderr));
            match self.ended_daemons().into_iter().next() {
                Some(daemon) => Err(LabError::Ended {
                    daemon,
                    logs: self.folder().log_tails(15),
                }),
                None => Ok(None),
            }
        })?;
        let what = || format!("not all nodes are idle: {}", states.take().trim());
        found.ok_or_else(|| self.folder().deadline(&what(), limit))
    }
}
