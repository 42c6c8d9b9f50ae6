//! Tries a proposal with the Slurm of this host, before it is written: slurmctld, then `slurmd -G`, each with the files
//! of today and with those of the proposal. What they print only about the proposal speaks against it, where a second
//! trial finds something, too.
//!
//! The files are copies in a folder of their own, and the programs have a network of their own, in which nothing of the
//! cluster can be reached and no port of it is opened.

mod copy;
mod network;

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use gpufrac_core::config::{Config, PATH_ENV};
use gpufrac_host::pause::Pause;
use gpufrac_host::subprocess::{self, Outcome};
use gpufrac_slurm_conf::{Record, Running};
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;

use super::Settings;
use super::ask::{first, places, slurm_says};
use super::propose::Change;
use copy::Copy;

/// slurmctld's time until it serves.
const START: Duration = Duration::from_secs(30);
/// slurmd waits 20 s for each file of gres.conf that is not there.
const GRES: Duration = Duration::from_secs(60);
/// What slurmctld writes to its log when it serves.
const SERVES: &str = "Running as primary controller";
/// Fields of nodes and partitions that change by themselves, or follow from the devices of the nodes.
const CHANGING: [&str; 12] = [
    "state",
    "reason",
    "boottime",
    "slurmdstarttime",
    "lastbusytime",
    "resumeaftertime",
    "cpuload",
    "freemem",
    "cfgtres",
    "alloctres",
    "tres",
    "version",
];

/// The result of a trial.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Trial {
    /// The programs that read the files of the proposal.
    pub readers: Vec<&'static str>,
    /// What speaks against the proposal.
    pub against: Vec<String>,
    /// What was not tried, with the reason.
    pub untried: Vec<String>,
}

/// Tries the changes of Slurm's files. `config`: gpufrac.toml with the proposal, and its text.
pub fn run(settings: &Settings, changes: &[Change], config: (&Config, &str)) -> Trial {
    let attempt = || -> io::Result<Trial> {
        let copy = Copy::new(settings, config)?;
        network::alone(|| {
            let trial = both(settings, changes, &copy)?;
            if trial.against.is_empty() {
                Ok(trial)
            } else {
                Ok(trial.or_second(both(settings, changes, &copy)?))
            }
        })?
    };
    attempt().unwrap_or_else(|error| {
        let why = match error.kind() {
            io::ErrorKind::PermissionDenied => {
                "only root, with the right to make a network (CAP_SYS_ADMIN), can try it".to_owned()
            }
            _ => format!("making a copy of Slurm's files in a network of its own failed: {error}"),
        };
        Trial {
            untried: vec![why],
            ..Trial::default()
        }
    })
}

/// Tries the files of today, then those of the proposal.
fn both(settings: &Settings, changes: &[Change], copy: &Copy) -> io::Result<Trial> {
    let has_pool = |node: &str| !copy.config.pools_of_node(node).is_empty();
    let node = settings.gpus.as_ref().map(|gpus| gpus.node.as_str());
    let node = node.filter(|node| has_pool(node));
    let today = |path: &Path| fs::read_to_string(path);
    let proposed = |path: &Path| match changes.iter().find(|change| change.path == path) {
        Some(change) => Ok(change.after.clone()),
        None => today(path),
    };
    copy.write(&today)?;
    let before = (controller(copy)?, devices(copy, node)?);
    copy.write(&proposed)?;
    let mut trial = Trial::default();
    let mut after = (controller(copy)?, devices(copy, node)?);
    // The files may be those of another cluster, and this host without gpufrac's plugins.
    let is_elsewhere = settings.running.is_none();
    if let Some(refused) = after.0.take_if(|it| is_elsewhere && it.lacks_plugin()) {
        copy.leave_plugins_out()?;
        after.0 = controller(copy)?;
        trial.untried.push(format!(
            "slurmctld of this host does not start with gpufrac's plugins ({}): install gpufrac-plugins-SERIES where slurmctld runs",
            refused.reason()
        ));
    }

    trial.judge_controller(before.0.zip(after.0), &has_pool);
    trial.judge_devices(node, before.1.zip(after.1));
    Ok(trial)
}

impl Trial {
    /// The second of two trials, as Slurm has errors that come by chance, for instance where munged of a busy host
    /// answers late. A second trial by other programs clears nothing.
    fn or_second(self, second: Trial) -> Trial {
        if second.readers == self.readers { second } else { self }
    }

    /// Judges what slurmctld makes of the files of today and of those of the proposal; None where this host has none.
    fn judge_controller(
        &mut self,
        tried: Option<(Controller, Controller)>,
        has_pool: &dyn Fn(&str) -> bool,
    ) {
        let Some((before, after)) = tried else {
            let why = "slurmctld does not exist on this host";
            return self.untried.push(why.to_owned());
        };
        if !before.serves {
            return self.untried.push(format!(
                "slurmctld does not start with a copy of today's files: {}",
                before.reason()
            ));
        }
        self.readers.push("slurmctld");
        self.against
            .extend(only_in(&before.said, &after.said, "slurmctld"));
        if !after.serves && self.against.is_empty() {
            let why = after.reason();
            self.against
                .push(format!("slurmctld does not start: {why}"));
        }
        if let Some((before, after)) = before.site.zip(after.site) {
            self.against.extend(differences(&before, &after, has_pool));
        }
    }

    /// Judges the errors of `slurmd -G` about the files of today and about those of the proposal. `node`: this host as
    /// a node of a pool.
    fn judge_devices(&mut self, node: Option<&str>, tried: Option<(Vec<String>, Vec<String>)>) {
        match (node, tried) {
            (None, _) => self.untried.push(
                "`slurmd -G` is for a node of a pool, and NVML shows no such node here".to_owned(),
            ),
            (Some(_), None) => self
                .untried
                .push("slurmd does not exist on this host".to_owned()),
            (Some(_), Some((before, after))) => {
                self.readers.push("slurmd -G");
                self.against.extend(only_in(&before, &after, "slurmd -G"));
            }
        }
    }
}

/// The lines that only the second has.
fn only_in(before: &[String], after: &[String], program: &str) -> Vec<String> {
    let known: BTreeSet<&String> = before.iter().collect();
    let mut seen = BTreeSet::new();
    let new = after
        .iter()
        .filter(|line| !known.contains(line) && seen.insert(*line));
    new.map(|line| format!("{program}: {line}")).collect()
}

/// What slurmctld makes of the files.
struct Controller {
    said: Vec<String>,
    serves: bool,
    /// Its nodes and partitions; None if it does not answer.
    site: Option<Running>,
}

impl Controller {
    /// Whether it does not serve because of its plugins of job_submit.
    fn lacks_plugin(&self) -> bool {
        !self.serves && self.reason().contains("job_submit")
    }

    /// Why it does not serve.
    fn reason(&self) -> &str {
        let is_fatal = |line: &&String| line.starts_with("fatal: ");
        let line = self.said.iter().find(is_fatal).or(self.said.last());
        line.map_or("it says nothing", String::as_str)
    }
}

/// Starts a slurmctld on the copy, asks it, and ends it; None where this host has none.
fn controller(copy: &Copy) -> io::Result<Option<Controller>> {
    let log = copy.path("slurmctld.log");
    let (conf, config) = (copy.slurm_conf(), copy.path("gpufrac.toml"));
    let start = |program: &Path| {
        let (out, errors) = (
            File::create(&log)?,
            File::options().append(true).open(&log)?,
        );
        let mut command = Command::new(program);
        command.arg("-D").arg("-f").arg(&conf);
        command.env("SLURM_CONF", &conf).env(PATH_ENV, &config);
        command.env_remove("NOTIFY_SOCKET");
        command.stdin(Stdio::null()).stdout(out).stderr(errors);
        let (user, group) = copy.user;
        command.uid(user.as_raw()).gid(group.as_raw());
        command.process_group(0).spawn()
    };
    let Some(child) = first(&places("slurmctld"), start)? else {
        return Ok(None);
    };
    let mut daemon = Daemon(child);
    let said = || fs::read_to_string(&log).unwrap_or_default();
    let begun = Instant::now();
    let mut pause = Pause::new(Duration::from_millis(5), Duration::from_millis(50));
    let mut serves = false;
    while !serves && begun.elapsed() < START && daemon.0.try_wait()?.is_none() {
        serves = said().contains(SERVES);
        pause.sleep(START);
    }
    let site = serves.then(|| ask(&conf)).flatten();
    drop(daemon);
    Ok(Some(Controller {
        said: copy.errors(&said()),
        serves,
        site,
    }))
}

/// The nodes and partitions of the slurmctld of the trial.
fn ask(conf: &Path) -> Option<Running> {
    let conf = conf.to_string_lossy();
    let environment = [("SLURM_CONF", conf.as_ref())];
    let show = |what| slurm_says("scontrol", &["-a", "-o", "show", what], &environment);
    let (nodes, partitions) = (show("node").ok()?, show("partition").ok()?);
    Some(Running::parse("", &nodes.stdout, &partitions.stdout))
}

/// The errors of `slurmd -G`; None where this host has no slurmd, or is no node.
fn devices(copy: &Copy, node: Option<&str>) -> io::Result<Option<Vec<String>>> {
    let Some(node) = node else { return Ok(None) };
    let conf = copy.slurm_conf();
    let ended = first(&places("slurmd"), |program| {
        let mut command = Command::new(program);
        command.args(["-G", "-N", node, "-f"]).arg(&conf);
        command.env("SLURM_CONF", &conf);
        subprocess::run(&mut command, b"", GRES)
    })?;
    Ok(ended.map(|outcome| match outcome {
        Outcome::Ended(ended) => copy.errors(&ended.text()),
        Outcome::Silent => vec![format!("no answer within {} s", GRES.as_secs())],
    }))
}

/// A daemon in a process group of its own, which ends with the value. Nothing of its state is needed.
struct Daemon(Child);

impl Drop for Daemon {
    fn drop(&mut self) {
        // The group has the pid of the daemon, which started as its leader.
        let _ = killpg(Pid::from_raw(self.0.id() as i32), Signal::SIGKILL);
        let _ = self.0.wait();
    }
}

/// What the proposal changes and should not: all of nodes and partitions but the devices of the pools' nodes.
fn differences(before: &Running, after: &Running, has_pool: &dyn Fn(&str) -> bool) -> Vec<String> {
    let gres = |name: &str| has_pool(name).then_some("gres");
    let mut found = compared("node", &before.nodes, &after.nodes, &gres);
    let none = |_: &str| None;
    found.extend(compared(
        "partition",
        &before.partitions,
        &after.partitions,
        &none,
    ));
    found
}

fn compared(
    kind: &str,
    before: &BTreeMap<String, Record>,
    after: &BTreeMap<String, Record>,
    changes: &dyn Fn(&str) -> Option<&'static str>,
) -> Vec<String> {
    let mut found = Vec::new();
    let names: BTreeSet<&String> = before.keys().chain(after.keys()).collect();
    for name in names {
        let (Some(before), Some(after)) = (before.get(name), after.get(name)) else {
            let what = if after.contains_key(name) { "comes" } else { "goes" };
            found.push(format!("{kind} {name} {what}"));
            continue;
        };
        let pairs = before.pairs().into_iter().chain(after.pairs());
        let keys: BTreeSet<String> = pairs.map(|(key, _)| key).collect();
        for key in keys {
            let is_expected = CHANGING.contains(&key.as_str()) || changes(name) == Some(&key);
            let (old, new) = (before.get(&key), after.get(&key));
            if !is_expected && old != new {
                let shown = |value: Option<&str>| value.unwrap_or("nothing").to_owned();
                let (old, new) = (shown(old), shown(new));
                found.push(format!(
                    "{key} of {kind} {name} would change from {old} to {new}"
                ));
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_both_say_speaks_against_nothing() {
        let said =
            |lines: &[&str]| -> Vec<String> { lines.iter().map(ToString::to_string).collect() };
        let before = said(&["error: Configured MailProg is invalid"]);
        let after = said(&[
            "error: Configured MailProg is invalid",
            "fatal: no plugin",
            "fatal: no plugin",
        ]);
        assert_eq!(
            only_in(&before, &after, "slurmctld"),
            ["slurmctld: fatal: no plugin"]
        );
        assert_eq!(only_in(&after, &before, "slurmctld"), [""; 0]);
    }

    #[test]
    fn a_second_trial_by_the_same_programs_clears_a_proposal_only_if_it_finds_nothing() {
        let trial = |readers: &[&'static str], against: &[&str]| Trial {
            readers: readers.to_vec(),
            against: against.iter().map(ToString::to_string).collect(),
            untried: Vec::new(),
        };
        let both = ["slurmctld", "slurmd -G"];
        let first = trial(&both, &["slurmctld: fatal: pid 7"]);
        let clean = trial(&both, &[]);
        assert_eq!(first.clone().or_second(clean.clone()), clean);
        let again = trial(&both, &["slurmctld: fatal: pid 8"]);
        assert_eq!(first.clone().or_second(again.clone()), again);
        let without_slurmctld = trial(&["slurmd -G"], &[]);
        assert_eq!(first.clone().or_second(without_slurmctld), first);
    }

    #[test]
    fn only_devices_of_pools_may_change() {
        let running = |nodes: &str, partitions: &str| Running::parse("", nodes, partitions);
        let before = running(
            "NodeName=gn1 State=UNKNOWN Gres=gpu:4 RealMemory=1000\nNodeName=gn2 Gres=gpu:2 RealMemory=1000\n",
            "PartitionName=gpu Nodes=gn1 MaxTime=1-00:00:00\n",
        );
        let after = running(
            "NodeName=gn1 State=DOWN Gres=gpu:half:8 RealMemory=1000\nNodeName=gn2 Gres=gpu:1 RealMemory=1\n",
            "PartitionName=gpu Nodes=gn1 MaxTime=UNLIMITED\nPartitionName=more Nodes=gn2\n",
        );
        assert_eq!(
            differences(&before, &after, &|node| node == "gn1"),
            [
                "gres of node gn2 would change from gpu:2 to gpu:1",
                "realmemory of node gn2 would change from 1000 to 1",
                "maxtime of partition gpu would change from 1-00:00:00 to UNLIMITED",
                "partition more comes",
            ]
        );
        assert!(differences(&before, &before, &|_| false).is_empty());
    }
}
