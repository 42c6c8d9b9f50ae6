//! A running lab, and its end.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::errno::Errno;
use nix::mount::{MsFlags, mount};
use nix::sys::signal::Signal;

use crate::cgroups::Groups;
use crate::claims::Claims;
use crate::daemons::{self, Daemon, Environment, Way};
use crate::ending::{self, Record};
use crate::folder::write;
use crate::keeper::Keeper;
use crate::times::{Times, Waiting};
use crate::{Folder, LabError, Slurm, SlurmCommand, User};

/// When the folder of a lab is kept; with `GPUFRAC_LAB_KEEP` in the environment always.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Keeping {
    /// The folder existed before the lab.
    Always,
    /// The caller named the folder, and the lab created it.
    OnceStarted,
    /// The folder is temporary; it is kept for its logs.
    AfterPanic,
}

/// A running cluster. Dropping it stops the cluster and removes its folder, unless the thread panics: then the folder
/// is kept for its logs (always with `GPUFRAC_LAB_KEEP` in the environment).
#[derive(Debug)]
pub struct Lab {
    folder: Folder,
    keeping: Keeping,
    keeper: Option<Keeper>,
    record: Record,
    daemons: Vec<Daemon>,
    users: Vec<User>,
    environment: Environment,
    way: Way,
    slurm: Slurm,
    claims: Claims,
    times: Times,
    quiet: bool,
    up: bool,
}

impl Lab {
    /// Creates the folder and writes the record, so that everything that is started later will be stopped.
    pub(crate) fn new(
        build: &Path,
        folder: Folder,
        keeping: Keeping,
        record: Record,
        users: Vec<User>,
        slurm: Slurm,
    ) -> Result<Self, LabError> {
        let keeper = Keeper::start(build, &folder)?;
        let lab = Self {
            slurm,
            folder,
            keeping,
            keeper: Some(keeper),
            record,
            daemons: Vec::new(),
            users,
            environment: Environment::new(),
            way: Way::default(),
            claims: Claims::default(),
            times: Times::begin(),
            quiet: false,
            up: true,
        };
        fs::create_dir_all(lab.folder.root())
            .map_err(LabError::file("creating", lab.folder.root()))?;
        lab.save()?;
        lab.folder.create(&[])?;
        Ok(lab)
    }

    /// The lab does not print its times and logs at its end.
    pub(crate) fn be_quiet(&mut self) {
        self.quiet = true;
    }

    /// Reserves names and ports against other labs.
    pub(crate) fn hold(&mut self, claims: Claims) {
        self.claims = claims;
    }

    pub(crate) fn start_ends(&self) {
        self.times.start_ends();
    }

    /// Counts as waiting until the returned value is dropped.
    pub(crate) fn count_wait(&self) -> Waiting<'_> {
        self.times.wait()
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

    /// The variables with which slurmd starts Prolog and Epilog for a job of a user, without those of its GPUs.
    pub fn hook_environment(node: &str, user: &User, job: &str) -> [(&'static str, String); 7] {
        [
            ("SLURMD_NODENAME", node.to_owned()),
            ("SLURM_JOB_ID", job.to_owned()),
            ("SLURM_JOB_UID", user.uid.to_string()),
            ("SLURM_JOB_GID", user.gid.to_string()),
            ("SLURM_JOB_USER", user.name.clone()),
            ("SLURM_JOB_PARTITION", "gpu".to_owned()),
            ("SLURM_JOB_RESTART_COUNT", "0".to_owned()),
        ]
    }

    /// A command with the lab's environment, as root by default.
    pub fn command(&self, program: &str) -> SlurmCommand {
        SlurmCommand::new(&self.folder, program)
    }

    /// Writes a file to the jobs' working directory that all users can read and run. Errors: it cannot be written.
    pub fn write_work(&self, name: &str, text: &str) -> Result<PathBuf, LabError> {
        let path = self.folder.work().join(name);
        write(&path, text, 0o755)?;
        Ok(path)
    }

    /// Adds a daemon to the record.
    pub(crate) fn adopt(&mut self, daemon: Daemon) -> Result<(), LabError> {
        self.record.processes.push(daemon.process.clone());
        self.daemons.push(daemon);
        self.save()
    }

    /// Mounts a tmpfs until the lab's end, where root may mount; in some containers root may not.
    pub(crate) fn mount_tmpfs(&mut self, path: PathBuf) -> Result<(), LabError> {
        fs::create_dir_all(&path).map_err(LabError::file("creating", &path))?;
        // The record is written first, because an absent mount can be recognised later.
        self.record.mounts.push(path.clone());
        self.save()?;
        let kind = Some("tmpfs");
        match mount(kind, &path, kind, MsFlags::MS_NOSUID, Some("mode=0755")) {
            Ok(()) | Err(Errno::EPERM) => Ok(()),
            Err(error) => Err(LabError::file("mounting a tmpfs on", &path)(error.into())),
        }
    }

    fn save(&self) -> Result<(), LabError> {
        let text = serde_json::to_string_pretty(&self.record)
            .map_err(|error| LabError::file("writing", self.folder.record())(error.into()))?;
        // Replaced as a whole, because the keeper may read it at any moment.
        let next = self.folder.record().with_extension("next");
        write(&next, &text, 0o644)?;
        fs::rename(&next, self.folder.record()).map_err(LabError::file("renaming", &next))
    }

    /// Names of daemons that ended unexpectedly.
    pub fn ended_daemons(&self) -> Vec<String> {
        self.daemons
            .iter()
            .filter(|daemon| !daemon.process.is_alive())
            .map(|daemon| daemon.process.name.clone())
            .collect()
    }

    /// Stops a daemon (`slurmctld`, or `slurmd.<node>`) by a signal and waits for its end.
    /// Errors: the lab's record cannot be written.
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

    /// Sets environment variables of daemons that are started later.
    pub fn set_daemon_environment(&mut self, variables: &[(&str, &str)]) {
        let owned = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
        self.environment = variables.iter().map(owned).collect();
    }

    /// The user of slurmctld, if that is not root.
    pub fn slurm_user(&self) -> Option<&User> {
        self.way.slurm_user.as_ref()
    }

    /// The control groups of one of its nodes.
    pub(crate) fn groups(&self, node: &str) -> &Groups {
        let mut nodes = self.record.nodes.iter().zip(&self.record.groups);
        let found = nodes.find(|(name, _)| *name == node);
        found.map_or(&Groups::Alone, |(_, groups)| groups)
    }

    pub(crate) fn way(&mut self) -> &mut Way {
        &mut self.way
    }

    /// Starts slurmctld again. Errors: it ends, or does not answer.
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
            if ping.stdout.contains("is UP") {
                return Ok(Some(()));
            }
            let mut daemons = self.daemons.iter();
            // The last one, because an earlier one may have been killed.
            let newest = daemons.rfind(|daemon| daemon.process.name == "slurmctld");
            if newest.is_some_and(|daemon| !daemon.process.is_alive()) {
                Err(LabError::Ended {
                    daemon: "slurmctld".into(),
                    logs: self.folder.log_tails(15),
                })
            } else {
                Ok(None)
            }
        })
    }

    /// Starts the slurmd of a node again. Errors: when it cannot be started.
    pub fn start_slurmd(&mut self, node: &str) -> Result<(), LabError> {
        self.adopt(daemons::slurmd(
            &self.folder,
            &self.environment,
            &self.way,
            node,
        )?)
    }

    /// Starts the reaper of a node, again. Errors: when it cannot be started.
    pub fn start_reaper(&mut self, node: &str) -> Result<(), LabError> {
        self.adopt(daemons::reaper(&self.folder, &self.environment, node)?)
    }

    /// Stops the reaper of a node by a signal and waits for its end. Errors: the lab's record cannot be written.
    pub fn stop_reaper(&mut self, node: &str, signal: Signal) -> Result<(), LabError> {
        self.stop_daemon(&daemons::reaper_name(node), signal)
    }

    /// The log of a node's reaper. Errors: there is no such file.
    pub fn reaper_log(&self, node: &str) -> Result<String, LabError> {
        let path = self
            .folder
            .log()
            .join(format!("{}.out", daemons::reaper_name(node)));
        fs::read_to_string(&path).map_err(LabError::file("reading", &path))
    }

    /// The process id of a daemon that the lab started.
    pub fn daemon_pid(&self, name: &str) -> Option<i32> {
        let mut daemons = self.daemons.iter();
        let found = daemons.find(|daemon| daemon.process.name == name)?;
        Some(found.process.pid)
    }

    /// Sends a signal to a daemon without waiting.
    pub fn signal_daemon(&self, name: &str, signal: Signal) {
        for daemon in self
            .daemons
            .iter()
            .filter(|daemon| daemon.process.name == name)
        {
            daemon.process.signal(signal);
        }
    }

    /// Lets the lab continue after this program; [`crate::stop_folder`] ends it.
    pub fn detach(mut self) -> Folder {
        self.up = false;
        self.dismiss_keeper();
        self.folder.clone()
    }

    /// Cancels all jobs and stops everything. Errors: when a control group cannot be removed.
    pub fn stop(mut self) -> Result<(), LabError> {
        self.shut_down()
    }

    /// Prints the lab's times and the ends of its logs, for programs that capture a test's output. An error of the
    /// start contains the logs itself.
    fn report(&self) {
        if self.quiet || !self.times.is_started() {
            return;
        }
        println!("{}", self.times);
        print!("{}", self.folder.log_tails(15));
    }

    fn shut_down(&mut self) -> Result<(), LabError> {
        if !self.up {
            return Ok(());
        }
        self.up = false;
        self.report();
        let stopped = ending::end(&self.folder, &self.record);
        for daemon in &mut self.daemons {
            daemon.stop(Signal::SIGKILL);
        }
        // Without a goodbye the keeper tries again.
        stopped?;
        let stays = match self.keeping {
            Keeping::Always => true,
            Keeping::OnceStarted => self.times.is_started(),
            Keeping::AfterPanic => std::thread::panicking(),
        };
        if !stays && !ending::keeps_folders() {
            ending::remove(self.folder.root())?;
        }
        self.dismiss_keeper();
        Ok(())
    }

    fn dismiss_keeper(&mut self) {
        if let Some(keeper) = self.keeper.take() {
            keeper.dismiss();
        }
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
