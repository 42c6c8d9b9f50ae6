//! The reaper on real Slurm. Windows are seconds instead of hours, only by configuration.

use std::path::Path;
use std::time::Duration;

use gpufrac_lab::{JobId, Lab, LabBuilder, LabError, User};
use nix::sys::signal::Signal;

mod daemon;
mod escalation;
mod nodes;
mod pages;
mod patterns;
mod policy;
mod private;
mod reclaim;
mod replay;
mod spared;
mod stalls;
mod usage;

/// Windows of a few seconds, without breaker and limits.
///
/// The reaper counts a gap of three intervals of a suspected slice as activity, so a machine that stops the reaper
/// for this long ends an escalation. Therefore the interval is as long as possible. The grace is the time that a busy
/// machine needs from a lease to the first activity of the job's program.
const QUICK: &str = "\
[reaper]
mode = \"on\"
interval = \"1s\"
metrics = \"off\"
grace = \"5s\"
never_used = \"6s\"
idle = \"6s\"
finished = \"off\"
over_share = \"4s\"
warn = [\"3s\"]
reaps_per_hour = 100
breaker = { node_share = 100, cluster_share = 100 }
";

/// [`QUICK`] with other values for some keys of `[reaper]`, then further tables.
fn quick(changes: &[(&str, &str)], more: &str) -> String {
    let mut text = QUICK.to_owned();
    for (key, value) in changes {
        let is_key = |line: &str| line.split(" = ").next() == Some(key);
        let lines = text.lines().filter(|line| !is_key(line));
        let kept: Vec<&str> = lines.collect();
        text = format!("{}\n{key} = {value}\n", kept.join("\n"));
    }
    format!("{text}\n{more}")
}

/// A lab with a reaper on each node.
fn lab(changes: &[(&str, &str)], more: &str) -> LabBuilder {
    Lab::builder().reaper(&quick(changes, more))
}

/// Submits a batch job whose script can start CUDA programs with `gpu PATTERN [SECONDS] [MEMORY]`.
fn submit(lab: &Lab, user: &User, args: &[&str], script: &str) -> Result<JobId, LabError> {
    let gpus = lab.folder().root().join("gpus");
    let text = format!(
        "gpu() {{ gpusim --root {}/$SLURMD_NODENAME run --pattern \"$1\" ${{2:+--seconds $2}} --memory ${{3:-500M}}; }}\n{script}\n",
        gpus.display()
    );
    let mut all = args.to_vec();
    all.extend(["--wrap", &text]);
    lab.sbatch(user, &all)
}

/// The reaper's words when it cancels a warning because the machine stood still for seconds.
const STOOD_STILL: &str = "no sample was taken for too long";

/// Removes each escalation that ended because the machine stood still; `read` returns a decision's name and whether
/// it says so.
fn without_standstills<T>(decided: Vec<T>, read: impl Fn(&T) -> (String, bool)) -> Vec<T> {
    let mut left: Vec<T> = Vec::new();
    for decision in decided {
        match read(&decision) {
            (word, true) if word == "clear" => {
                let is_step = |it: &mut T| ["warn", "signal"].contains(&read(it).0.as_str());
                while left.pop_if(is_step).is_some() {}
            }
            _ => left.push(decision),
        }
    }
    left
}

/// Decisions about a job in the log of a node's reaper, in order: `warn`, `cancel`, ... without escalations that
/// ended because the machine stood still.
fn decisions(lab: &Lab, node: &str, job: JobId) -> Result<Vec<String>, LabError> {
    let log = lab.reaper_log(node)?;
    let own = format!(" job={job} ");
    let lines = log.lines().filter(|line| line.contains(&own));
    let decided = lines.filter_map(|line| {
        let word = line.split("decision=").nth(1)?.split(' ').next()?;
        Some((word.to_owned(), line.contains(STOOD_STILL)))
    });
    let left = without_standstills(decided.collect(), Clone::clone);
    Ok(left.into_iter().map(|(word, _)| word).collect())
}

/// Waits until a decision about a job is in the log.
fn wait_for_decision(lab: &Lab, node: &str, job: JobId, word: &str) -> Result<(), LabError> {
    let what = format!("decision {word} about job {job}");
    lab.wait(&what, Duration::from_secs(60), || {
        let found = decisions(lab, node, job)?.iter().any(|found| found == word);
        Ok(found.then_some(()))
    })
}

/// Waits until a node's reaper cancelled a job and logged it, which it does after Slurm ended the job.
fn wait_until_cancelled(lab: &Lab, node: &str, job: JobId) -> Result<(), LabError> {
    let ended = lab.wait_for_end(job)?;
    let log = lab.reaper_log(node)?;
    assert_eq!(ended.state(), "CANCELLED", "job {job}: {log}");
    lab.wait("the record of the end", Duration::from_secs(10), || {
        let runs = kept(lab, node, job)?;
        let cancelled = runs.iter().any(|told| words(told).contains(&"cancel"));
        Ok(cancelled.then_some(()))
    })
}

/// Checks that the reaper spared a job which still runs, then ends it.
fn expect_spared(lab: &Lab, node: &str, job: JobId) -> Result<(), LabError> {
    let log = lab.reaper_log(node)?;
    assert_eq!(lab.job(job)?.state(), "RUNNING", "{log}");
    lab.command("scancel").args([job.to_string()]).stdout()?;
    lab.wait_for_end(job).map(drop)
}

/// Decisions about a job, each with its stall and source: `warn idle gpm`.
fn findings(lab: &Lab, node: &str, job: JobId) -> Result<Vec<String>, LabError> {
    let log = lab.reaper_log(node)?;
    let own = format!(" job={job} ");
    let lines = log.lines().filter(|line| line.contains(&own));
    let value = |line: &str, key: &str| {
        let rest = line.split(key).nth(1)?;
        rest.split(' ').next().map(str::to_owned)
    };
    let found = lines.filter_map(|line| {
        let words = ["decision=", " stall=", " source="].map(|key| value(line, key));
        let words: Option<Vec<String>> = words.into_iter().collect();
        Some(words?.join(" "))
    });
    Ok(found.collect())
}

/// Waits until a job was cancelled, and checks the reason. If the machine stood still, a warning may be missing.
fn expect_reclaimed(lab: &Lab, node: &str, job: JobId, why: &str) -> Result<(), LabError> {
    wait_until_cancelled(lab, node, job)?;
    let log = lab.reaper_log(node)?;
    let found = findings(lab, node, job)?;
    let last = found.len().saturating_sub(2);
    let steps = |why: &str| [format!("warn {why}"), format!("cancel {why}")];
    // With CPU time as the source, the job's own start may count as activity, more so on later versions of Slurm.
    let by_cpu = why == "never-used mps-clients" || why == "never-used processes";
    if by_cpu && found[last..] == steps(&why.replace("never-used", "idle")) {
        return Ok(());
    }
    assert_eq!(found[last..], steps(why), "job {job}, of {found:?}: {log}");
    Ok(())
}

/// Checks that there was no decision about a running job.
fn expect_unnoticed(lab: &Lab, node: &str, job: JobId, what: &str) -> Result<(), LabError> {
    let log = lab.reaper_log(node)?;
    let found = decisions(lab, node, job)?;
    assert_eq!(found, Vec::<String>::new(), "job {job}, {what}: {log}");
    assert_eq!(lab.job(job)?.state(), "RUNNING", "job {job}, {what}: {log}");
    Ok(())
}

/// A decision in the records of a node's reaper.
#[derive(Debug)]
struct Decided {
    word: String,
    dry_run: bool,
    rule: String,
    detail: String,
    /// The time after the start of the record.
    at: Duration,
    /// The length of the stall.
    stalled: Duration,
    /// The window of the rule.
    window: Duration,
}

/// The decisions about each run of a job on a node, from the kept records.
fn kept(lab: &Lab, node: &str, job: JobId) -> Result<Vec<Vec<Decided>>, LabError> {
    let place = lab.folder().var(node).join("reaper");
    let entries = std::fs::read_dir(&place).map_err(failed(&place))?;
    let names = entries.flatten().map(|entry| entry.file_name());
    let mut names: Vec<String> = names
        .filter_map(|name| name.into_string().ok())
        .filter(|name| name.starts_with(&format!("{job}-")) && name.ends_with(".json"))
        .collect();
    names.sort();
    let records = names.into_iter().map(|name| {
        let path = place.join(name);
        let text = std::fs::read(&path).map_err(failed(&path))?;
        let record: serde_json::Value =
            serde_json::from_slice(&text).map_err(|error| failed(&path)(error.into()))?;
        let events = record["events"].as_array().cloned().unwrap_or_default();
        Ok(events.iter().map(decided).collect())
    });
    records.collect()
}

fn decided(event: &serde_json::Value) -> Decided {
    let text = |key: &str| event[key].as_str().unwrap_or_default().to_owned();
    let time = |key: &str| Duration::from_millis(event[key].as_u64().unwrap_or_default());
    Decided {
        word: text("decision"),
        dry_run: event["dry_run"] == true,
        rule: text("rule"),
        detail: text("detail"),
        at: time("at_ms"),
        stalled: time("stalled_ms"),
        window: time("window_ms"),
    }
}

/// As [`kept`], for a job that ran once, without escalations that ended because the machine stood still.
fn kept_once(lab: &Lab, node: &str, job: JobId) -> Result<Vec<Decided>, LabError> {
    let mut runs = kept(lab, node, job)?;
    let log = lab.reaper_log(node)?;
    assert_eq!(runs.len(), 1, "records of job {job}: {runs:?}\n{log}");
    Ok(steady(runs.remove(0)))
}

fn steady(told: Vec<Decided>) -> Vec<Decided> {
    without_standstills(told, |told| (told.word.clone(), told.detail == STOOD_STILL))
}

/// As [`kept_once`], after a certain decision was made.
fn wait_until_kept(
    lab: &Lab,
    node: &str,
    job: JobId,
    word: &str,
) -> Result<Vec<Decided>, LabError> {
    wait_for_decision(lab, node, job, word)?;
    lab.wait("the record", Duration::from_secs(10), || {
        let last = kept(lab, node, job)?.pop().map(steady);
        Ok(last.filter(|told| words(told).contains(&word)))
    })
}

/// The names of decisions.
fn words(decided: &[Decided]) -> Vec<&str> {
    let words = decided.iter().map(|decided| decided.word.as_str());
    words.collect()
}

/// Writes another `[reaper]` with the text after it, for daemons that read it later.
fn write_reaper(lab: &Lab, toml: &str) -> Result<(), LabError> {
    let path = lab.folder().gpufrac_conf();
    let text = std::fs::read_to_string(&path).map_err(failed(&path))?;
    let pools = text.split("[reaper]").next().unwrap_or_default();
    std::fs::write(&path, format!("{pools}{toml}")).map_err(failed(&path))
}

/// Makes a node's daemon the daemon read its configuration again, and waits until it logs `answer`.
fn reload(lab: &Lab, node: &str, answer: &str) -> Result<(), LabError> {
    // A daemon that has not started yet would be ended by the signal.
    wait_for_log(lab, node, "watching the slices of node")?;
    let said = |log: String| log.matches(answer).count();
    let before = said(lab.reaper_log(node)?);
    lab.signal_daemon(&format!("reaperd.{node}"), Signal::SIGHUP);
    lab.wait(answer, Duration::from_secs(30), || {
        Ok((said(lab.reaper_log(node)?) > before).then_some(()))
    })
}

/// Gives all daemons another `[reaper]` with the text after it.
fn configure(lab: &Lab, toml: &str) -> Result<(), LabError> {
    write_reaper(lab, toml)?;
    let mut nodes = lab.nodes().iter();
    nodes.try_for_each(|node| reload(lab, node, "the daemon read its configuration again"))
}

fn admin_comment(lab: &Lab, job: JobId) -> Result<String, LabError> {
    let shown = scontrol(lab, &["show", "job", &job.to_string()])?;
    let mut lines = shown.lines();
    let comment = lines.find_map(|line| line.trim().strip_prefix("AdminComment="));
    Ok(comment.unwrap_or_default().to_owned())
}

fn scontrol(lab: &Lab, args: &[&str]) -> Result<String, LabError> {
    lab.command("scontrol").args(args).stdout()
}

/// Waits for a job that another command than sbatch created.
fn job_named(lab: &Lab, name: &str) -> Result<JobId, LabError> {
    lab.wait(&format!("job {name} runs"), Duration::from_secs(60), || {
        let mut jobs = lab.jobs()?.into_iter();
        let found = jobs.find(|job| job.field("JobName") == name && job.state() == "RUNNING");
        Ok(found.map(|job| job.id()))
    })
}

/// Waits until a node's reaper has logged these words.
fn wait_for_log(lab: &Lab, node: &str, words: &str) -> Result<(), LabError> {
    lab.wait(words, Duration::from_secs(60), || {
        Ok(lab.reaper_log(node)?.contains(words).then_some(()))
    })
}

/// An error for a file that cannot be read or written.
fn failed(path: &Path) -> impl FnOnce(std::io::Error) -> LabError {
    let what = path.display().to_string();
    move |error| LabError::Unexpected {
        what,
        found: error.to_string(),
    }
}

/// Times of a job in whole seconds since 1970.
struct Lifetime {
    job: u32,
    /// The index in an array.
    task: Option<usize>,
    state: String,
    begin: f64,
    end: f64,
}

/// The lifetimes of all jobs that Slurm still knows.
fn lifetimes(lab: &Lab) -> Result<Vec<Lifetime>, LabError> {
    let command = lab.command("scontrol").env("SLURM_TIME_FORMAT", "%s");
    let text = command.args(["-o", "show", "jobs"]).stdout()?;
    let lifetime = |line: &str| {
        let field = |name: &str| {
            let mut words = line.split_whitespace();
            words.find_map(|word| word.strip_prefix(name))
        };
        Some(Lifetime {
            job: field("JobId=")?.parse().ok()?,
            task: field("ArrayTaskId=").and_then(|task| task.parse().ok()),
            state: field("JobState=")?.to_owned(),
            begin: field("StartTime=")?.parse().ok()?,
            end: field("EndTime=")?.parse().ok()?,
        })
    };
    Ok(text.lines().filter_map(lifetime).collect())
}
