//! `gpufrac doctor`: collects the data of Slurm, this node and the records about a job.

mod bundle;

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use gpufrac_core::ids::JobId;
use gpufrac_core::lease::read_name;
use gpufrac_host::exit::Exit;
use gpufrac_host::subprocess::{self, Outcome};
use gpufrac_node::node::{Node, now_unix};
use gpufrac_node::state::put_back;
use gpufrac_page::words::span;
use gpufrac_records::find::find;
use gpufrac_slurm_settings::{AskError, ask_slurm};
use gpufrac_view::why;

use crate::args::DoctorArgs;
use crate::error::CliError;
use crate::{own, slurm, status, why as records};

/// Fields of `scontrol show job` about the state and end of a job.
const OF_JOB: [&str; 15] = [
    "JobId",
    "UserId",
    "Priority",
    "JobState",
    "Requeue",
    "RunTime",
    "StartTime",
    "Partition",
    "ReqNodeList",
    "NodeList",
    "TresPerNode",
    "Comment",
    "AdminComment",
    "SystemComment",
    "GRES",
];
/// Fields of `scontrol show node`.
const OF_NODE: [&str; 5] = ["State", "Reason", "Gres", "GresUsed", "Comment"];
/// The bytes at the end of a log file that are searched.
const TAIL_BYTES: u64 = 4 << 20;
/// The most lines of a log that are shown, the last ones.
const MOST_LINES: usize = 20;
/// The time limit of journalctl.
const JOURNAL_LIMIT: Duration = Duration::from_secs(10);
/// The usual log files of syslog daemons.
const LOGS: [&str; 3] = [
    "/var/log/syslog",
    "/var/log/messages",
    "/var/log/daemon.log",
];
const WIDTH: usize = 100;

pub fn run(args: &DoctorArgs) -> Result<Exit, CliError> {
    let job = args.job.as_deref().map(records::job_id).transpose()?;
    if args.bundle {
        bundle::print(&args.config);
        println!();
    }
    match job {
        Some(job) => of_job(job, args),
        None => Ok(Exit::Done),
    }
}

fn of_job(job: JobId, args: &DoctorArgs) -> Result<Exit, CliError> {
    let config = args.config.read()?;
    let node = Node::new(config, &args.config.node_name());
    let nodes = by_slurm(job);
    of_nodes(&nodes);
    let is_here = nodes.contains(&node.name);
    if !nodes.is_empty() && !is_here {
        println!();
        println!(
            "its lease, usage and log lines are on its node: `ssh {} gpufrac doctor {job}`",
            nodes[0]
        );
    }
    if node.has_pools() {
        head(&format!("lease on {}", node.name));
        lease(job, &node);
        head(&format!("usage records of {}", node.name));
        used(job, &node);
        stuck(job, &node);
    }
    head("records of gpufrac-reaperd");
    reaped(job, &node);
    head("log of this host");
    logged(job);
    Ok(Exit::Done)
}

fn head(title: &str) {
    println!("\n{title}:");
}

/// Prints each text on one line, because users choose names and comments.
fn say<'a>(lines: impl IntoIterator<Item = &'a str>, if_none: &str) {
    let mut none = true;
    for line in lines {
        println!("  {}", line.trim().replace(char::is_control, " "));
        none = false;
    }
    if none {
        println!("  {if_none}");
    }
}

/// Prints the job's record in slurmctld, or in accounting. Returns its nodes.
fn by_slurm(job: JobId) -> Vec<String> {
    println!("job {job} by Slurm:");
    let number = job.to_string();
    match ask_slurm("scontrol", &["-d", "show", "job", &number]) {
        Ok(text) => {
            let lines = text.lines().filter(|line| {
                let key = line.trim().split('=').next().unwrap_or_default();
                OF_JOB.contains(&key) || line.contains("GRES=") || line.contains("gpufrac")
            });
            say(lines, "nothing");
        }
        Err(error) => {
            match &error {
                AskError::Refused(_, why) if why.contains("Invalid job id") => {
                    println!("  slurmctld has no such job now");
                }
                other => println!("  {other}"),
            }
            let fields = "JobIDRaw,User,State,ExitCode,Start,End,NodeList,AdminComment,Comment";
            let asked = ask_slurm("sacct", &["-n", "-P", "-X", "-j", &number, "-o", fields]);
            match asked {
                Ok(text) => say(text.lines(), "sacct knows nothing of it"),
                Err(error) => println!("  {error}"),
            }
        }
    }
    slurm::job(job)
        .ok()
        .flatten()
        .map_or_else(Vec::new, |job| job.nodes)
}

/// Prints the state of the job's nodes, with the reason if they are drained.
fn of_nodes(nodes: &[String]) {
    for node in nodes {
        head(&format!("node {node} by Slurm"));
        match ask_slurm("scontrol", &["show", "node", node]) {
            Ok(text) => {
                let lines = text.lines().filter(|line| {
                    let key = line.trim().split('=').next().unwrap_or_default();
                    OF_NODE.contains(&key)
                });
                say(lines, "nothing");
            }
            Err(error) => println!("  {error}"),
        }
    }
}

fn lease(job: JobId, node: &Node) {
    let (leases, damaged) = match own::leases(node) {
        Ok(found) => found,
        Err(error) => {
            println!("  {error}");
            return;
        }
    };
    let own: Vec<_> = leases
        .into_iter()
        .filter(|lease| lease.job_id == job)
        .collect();
    for error in damaged {
        let name = error.path().and_then(|path| path.file_name()?.to_str());
        if name.and_then(read_name).is_some_and(|(id, _)| id == job) {
            println!("  {error}; {}", error.fix());
        }
    }
    match own.is_empty() {
        true if own::alone(node) => println!("  none that you may see; root sees all"),
        true => println!("  none: the job holds nothing here"),
        false => status::table(&own)
            .iter()
            .for_each(|line| println!("  {line}")),
    }
}

fn used(job: JobId, node: &Node) {
    let path = own::usage_file(node);
    match tail(&path) {
        Ok(text) => {
            let wanted = format!("\"job\":{job},");
            say(
                text.lines().filter(|line| line.contains(&wanted)),
                "none yet: one is written when a slice ends",
            );
        }
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            println!("  none: no slice ended on this node yet")
        }
        Err(error) => println!("  `{}` cannot be read: {error}", path.display()),
    }
}

/// Prints whether this node gave the job back, and its places that are stuck. The records are root's.
fn stuck(job: JobId, node: &Node) {
    let given_back = put_back::list(node).unwrap_or_default();
    let given_back = given_back.iter().filter(|it| it.job_id == job);
    let now = now_unix();
    let mut lines: Vec<String> = given_back
        .map(|it| {
            let age = span(now.saturating_sub(it.unix));
            if it.excluded { format!(
                "{} gave the job back {age} ago: it goes to other nodes (`ExcNodeList`), and may come back when the places are free",
                node.name
            ) } else { format!("{} gave the job back {age} ago", node.name) }
        })
        .collect();
    let shown = status::files::own(node).map_or_else(Vec::new, |file| file.stuck);
    lines.extend(shown.iter().map(|place| place.text(now)));
    if !lines.is_empty() {
        head(&format!("what {} cannot do", node.name));
        say(lines.iter().map(String::as_str), "nothing");
    }
}

fn reaped(job: JobId, node: &Node) {
    let found = find(job, &records::places(&node.config, &node.name));
    for problem in &found.problems {
        println!("  {problem}");
    }
    for record in &found.records {
        why::explain(record, WIDTH)
            .iter()
            .for_each(|line| println!("  {line}"));
    }
    if found.records.is_empty() {
        println!("  none here: nothing was decided about it so far, or it ran on another node");
    }
}

/// Prints the log lines of gpufrac's programs about the job, from the journal, otherwise from the files of syslog.
fn logged(job: JobId) {
    let marks = [
        format!("gpufrac: job {job}:"),
        format!("]: job {job}:"),
        format!("reaper: job {job}:"),
    ];
    let of_job = |line: &&str| {
        line.contains("gpufrac") && marks.iter().any(|mark| line.contains(mark.as_str()))
    };
    let mut texts = Vec::new();
    let mut refused = Vec::new();
    let mut journal = Command::new("journalctl");
    journal.args([
        "-q",
        "--no-pager",
        "-o",
        "short-iso",
        "-t",
        "gpufrac",
        "-n",
        "5000",
    ]);
    if let Ok(Outcome::Ended(ended)) = subprocess::run(&mut journal, b"", JOURNAL_LIMIT) {
        texts.push(ended.stdout);
    }
    for path in LOGS {
        match tail(Path::new(path)) {
            Ok(text) => texts.push(text),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(error) => refused.push(format!("`{path}`: {error}")),
        }
    }
    let mut lines: Vec<&str> = texts
        .iter()
        .flat_map(|text| text.lines())
        .filter(of_job)
        .collect();
    lines.dedup();
    let last = lines.len().saturating_sub(MOST_LINES);
    let none = if refused.is_empty() {
        "no line of gpufrac about it".to_owned()
    } else {
        format!("cannot be read ({}); root can", refused.join("; "))
    };
    say(lines.split_off(last), &none);
}

/// The end of a file.
fn tail(path: &Path) -> std::io::Result<String> {
    let mut file = File::open(path)?;
    let length = file.metadata()?.len();
    file.seek(SeekFrom::Start(length.saturating_sub(TAIL_BYTES)))?;
    let mut bytes = Vec::new();
    file.take(TAIL_BYTES).read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}
