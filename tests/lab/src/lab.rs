//! A running lab, and its end.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sys::signal::Signal;
use serde::{Deserialize, Serialize};

use crate::daemons::{self, Daemon, Environment, Way};
use crate::folder::write;
use crate::process::Process;
use crate::{Folder, LabBuilder, LabError, Slurm, SlurmCommand, User, cgroups, leftovers, mps};

/// What the lab's folder remembers, so that another program can stop the lab.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Record {
    nodes: Vec<String>,
    /// In the order of their start.
    processes: Vec<Process>,
    mounts: Vec<PathBuf>,
}

impl Record {
    pub fn new(nodes: Vec<String>) -> Self {
        Self {
            nodes,
            processes: Vec::new(),
            mounts: Vec::new(),
        }
    }
}

/// A running cluster. Dropping it stops all of it and removes its folder, unless the thread panics: then
/// the folder stays, for its logs (always with `GPUFRAC_LAB_KEEP` in the environment).
#[derive(Debug)]
pub struct Lab {
    folder: Folder,
    temporary: bool,
    record: Record,
    daemons: Vec<Daemon>,
    users: Vec<User>,
    environment: Environment,
    way: Way,
    slurm: Slurm,
    up: bool,
}

impl Lab {
    /// Describes a lab.
    pub fn builder() -> LabBuilder {
        LabBuilder::default()
    }

    pub(crate) fn new(
        folder: Folder,
        temporary: bool,
        record: Record,
        users: Vec<User>,
        slurm: Slurm,
    ) -> Self {
        Self {
            slurm,
            folder,
            temporary,
            record,
            daemons: Vec::new(),
            users,
            environment: Environment::new(),
            way: Way::default(),
            up: true,
        }
    }

    /// The Slurm that it runs.
    pub fn slurm(&self) -> &Slurm {
        &self.slurm
    }

    /// Where its files are.
    pub fn folder(&self) -> &Folder {
        &self.folder
    }

    /// Names of its nodes.
    pub fn nodes(&self) -> &[String] {
        &self.record.nodes
    }

    /// At least two unprivileged users.
    pub fn users(&self) -> &[User] {
        &self.users
    }

    /// A command with the lab's environment, as root unless said.
    pub fn command(&self, program: &str) -> SlurmCommand {
        SlurmCommand::new(&self.folder, program)
    }

    /// Writes a file that everybody can read and run in the jobs' working directory.
    ///
    /// # Errors
    /// When it can not be written.
    pub fn write_work(&self, name: &str, text: &str) -> Result<PathBuf, LabError> {
        let path = self.folder.work().join(name);
        write(&path, text, 0o755)?;
        Ok(path)
    }

    /// Takes over a daemon and writes it down.
    pub(crate) fn adopt(&mut self, daemon: Daemon) -> Result<(), LabError> {
        self.record.processes.push(daemon.process.clone());
        self.daemons.push(daemon);
        self.save()
    }

    /// Mounts a tmpfs until the lab's end.
    pub(crate) fn mount_tmpfs(&mut self, path: PathBuf) -> Result<(), LabError> {
        fs::create_dir_all(&path).map_err(LabError::file("cannot make", &path))?;
        let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV;
        mount(
            Some("tmpfs"),
            &path,
            Some("tmpfs"),
            flags,
            Some("mode=0755"),
        )
        .map_err(|error| LabError::file("cannot mount a tmpfs on", &path)(error.into()))?;
        self.record.mounts.push(path);
        self.save()
    }

    fn save(&self) -> Result<(), LabError> {
        let text = serde_json::to_string_pretty(&self.record)
            .map_err(|error| LabError::file("cannot write", self.folder.record())(error.into()))?;
        write(&self.folder.record(), &text, 0o644)
    }

    /// Names of daemons that ended though nobody asked them to.
    pub fn ended_daemons(&self) -> Vec<String> {
        self.daemons
            .iter()
            .filter(|daemon| !daemon.process.is_alive())
            .map(|daemon| daemon.process.name.clone())
            .collect()
    }

    /// Stops a daemon (`slurmctld`, or `slurmd.<node>`) with a signal and waits for its end.
    ///
    /// # Errors
    /// When the lab's record can not be written.
    pub fn stop_daemon(&mut self, name: &str, signal: Signal) -> Result<(), LabError> {
        if let Some(index) = self
            .daemons
            .iter()
            .position(|daemon| daemon.process.name == name)
        {
            let mut daemon = self.daemons.remove(index);
            daemon.stop(signal);
            self.record
                .processes
                .retain(|process| *process != daemon.process);
        }
        self.save()
    }

    /// Sets variables for daemons that are started from now on.
    pub fn set_daemon_environment(&mut self, variables: &[(&str, &str)]) {
        let owned = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
        self.environment = variables.iter().map(owned).collect();
    }

    /// Who runs slurmctld, if it is not root.
    pub fn slurm_user(&self) -> Option<&User> {
        self.way.slurm_user.as_ref()
    }

    pub(crate) fn way(&mut self) -> &mut Way {
        &mut self.way
    }

    /// Starts slurmctld again.
    ///
    /// # Errors
    /// When it does not answer in 30 s.
    pub fn start_slurmctld(&mut self) -> Result<(), LabError> {
        self.adopt(daemons::slurmctld(
            &self.folder,
            &self.environment,
            &self.way,
        )?)?;
        self.wait_for_slurmctld()
    }

    pub(crate) fn wait_for_slurmctld(&self) -> Result<(), LabError> {
        self.wait("slurmctld answers", Duration::from_secs(30), || {
            let ping = self.command("scontrol").args(["ping"]).run()?;
            Ok(ping.stdout.contains("is UP").then_some(()))
        })
    }

    /// Starts the slurmd of a node again.
    ///
    /// # Errors
    /// When it can not be started.
    pub fn start_slurmd(&mut self, node: &str) -> Result<(), LabError> {
        self.adopt(daemons::slurmd(
            &self.folder,
            &self.environment,
            &self.way,
            node,
        )?)
    }

    /// Starts the reaper of a node, again.
    ///
    /// # Errors
    /// When it can not be started.
    pub fn start_reaper(&mut self, node: &str) -> Result<(), LabError> {
        self.adopt(daemons::reaper(&self.folder, &self.environment, node)?)
    }

    /// Stops the reaper of a node with a signal and waits for its end.
    ///
    /// # Errors
    /// When the lab's record can not be written.
    pub fn stop_reaper(&mut self, node: &str, signal: Signal) -> Result<(), LabError> {
        self.stop_daemon(&daemons::reaper_name(node), signal)
    }

    /// What the reaper of a node wrote.
    ///
    /// # Errors
    /// When there is no such file.
    pub fn reaper_log(&self, node: &str) -> Result<String, LabError> {
        let path = self
            .folder
            .log()
            .join(format!("{}.out", daemons::reaper_name(node)));
        fs::read_to_string(&path).map_err(LabError::file("cannot read", &path))
    }

    /// The process id of a daemon that the lab started.
    pub fn daemon_pid(&self, name: &str) -> Option<i32> {
        let mut daemons = self.daemons.iter();
        let found = daemons.find(|daemon| daemon.process.name == name)?;
        Some(found.process.pid)
    }

    /// Sends a signal to a daemon and goes on.
    pub fn signal_daemon(&self, name: &str, signal: Signal) {
        for daemon in self
            .daemons
            .iter()
            .filter(|daemon| daemon.process.name == name)
        {
            daemon.process.signal(signal);
        }
    }

    /// Lets the lab run on after this program; [`stop_folder`] ends it.
    pub fn detach(mut self) -> Folder {
        self.up = false;
        self.folder.clone()
    }

    /// Cancels all jobs and stops everything.
    ///
    /// # Errors
    /// When a control group can not be removed.
    pub fn stop(mut self) -> Result<(), LabError> {
        self.shut_down()
    }

    fn shut_down(&mut self) -> Result<(), LabError> {
        if !self.up {
            return Ok(());
        }
        self.up = false;
        let stopped = end(&self.folder, &self.record);
        for daemon in &mut self.daemons {
            daemon.stop(Signal::SIGKILL);
        }
        stopped?;
        let keep = std::thread::panicking() || std::env::var_os("GPUFRAC_LAB_KEEP").is_some();
        if self.temporary && !keep {
            let root = self.folder.root();
            fs::remove_dir_all(root).map_err(LabError::file("cannot remove", root))?;
        }
        Ok(())
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        let panicking = std::thread::panicking();
        if let Err(error) = self.shut_down() {
            eprintln!("lab: {error}");
        }
        if panicking {
            eprintln!("lab: the logs are in {}", self.folder.log().display());
        }
    }
}

/// Stops the lab whose folder this is and removes the folder.
///
/// # Errors
/// When the folder holds no lab, or a control group can not be removed.
pub fn stop_folder(root: &Path) -> Result<(), LabError> {
    let folder = Folder::new(root);
    let path = folder.record();
    let text =
        fs::read_to_string(&path).map_err(LabError::file("no lab here: cannot read", &path))?;
    let record: Record = serde_json::from_str(&text)
        .map_err(|error| LabError::file("cannot read", &path)(error.into()))?;
    end(&folder, &record)?;
    fs::remove_dir_all(root).map_err(LabError::file("cannot remove", root))
}

/// Cancels jobs so that their epilogs run, then stops daemons in reverse order, then whatever is left.
fn end(folder: &Folder, record: &Record) -> Result<(), LabError> {
    cancel_jobs(folder);
    for process in record.processes.iter().rev() {
        daemons::stop(process, Signal::SIGTERM);
    }
    for process in leftovers::of_lab(folder) {
        process.signal(Signal::SIGKILL);
    }
    mps::kill(folder);
    for path in &record.mounts {
        umount2(path, MntFlags::MNT_DETACH)
            .map_err(|error| LabError::file("cannot unmount", path)(error.into()))?;
    }
    record
        .nodes
        .iter()
        .try_for_each(|node| cgroups::remove(node))
}

/// Gives jobs some seconds to end in the regular way. That this fails is no reason to keep anything.
fn cancel_jobs(folder: &Folder) {
    let squeue = || {
        let command = SlurmCommand::new(folder, "squeue").args(["-h", "-o", "%A"]);
        let jobs = command
            .limit(Duration::from_secs(5))
            .stdout()
            .unwrap_or_default();
        jobs.split_whitespace()
            .map(str::to_owned)
            .collect::<Vec<_>>()
    };
    let jobs = squeue();
    if jobs.is_empty() {
        return;
    }
    let _ = SlurmCommand::new(folder, "scancel")
        .args(jobs)
        .limit(Duration::from_secs(5))
        .run();
    for _ in 0..100 {
        if squeue().is_empty() {
            return;
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}
