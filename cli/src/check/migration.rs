//! `gpufrac check --migration`: what changes for users, as a text for the site's announcement. Before gpufrac goes live
//! it compares gpufrac.toml with Slurm's files; afterwards it knows what ended by the requests of waiting and of recent
//! jobs.

mod asked;
mod request;
mod translate;

use std::collections::{BTreeMap, BTreeSet};

use gpufrac_core::config::Config;
use gpufrac_core::finding::Finding;
use gpufrac_node::node::Node;
use gpufrac_slurm_settings::propose::Gpus;
use gpufrac_slurm_settings::{self as settings, Settings, Sources};
use serde_json::{Value, json};

use super::report::{self, Form, Verdict};
use crate::args::CheckArgs;
use crate::{finding, init};
use asked::Asked;
use translate::Partition;

struct Migration {
    partitions: BTreeSet<String>,
    /// Kinds of requests that end, a sentence each.
    ends: Vec<String>,
    /// The requests that end.
    requests: Vec<EndingRequest>,
    /// Jobs that wait with such a request.
    pending: Vec<Pending>,
    /// Limits, prices and reservations.
    findings: Vec<Finding>,
    /// What could not be asked.
    unknown: Vec<String>,
}

/// A request that ends, what to write instead, and its users.
struct EndingRequest {
    partition: String,
    old: String,
    new: String,
    jobs: usize,
    users: BTreeSet<String>,
}

struct Pending {
    job: String,
    asked: Asked,
    new: String,
}

pub fn run(args: &CheckArgs) -> Verdict {
    let config = match args.config.read_strictly() {
        Ok(config) => config,
        Err(error) => {
            report::refused(&args.config.path(), &error, Form::of(args));
            return Verdict::Errors;
        }
    };
    let node = Node::new(config, &args.config.node_name());
    let settings = settings::gather(&Sources {
        slurm_conf: args.slurm_conf.clone(),
        limits: true,
        here: node.has_pools().then(|| super::here(&node)),
        ..Sources::default()
    });
    if let Err(error) = init::are_text(&settings) {
        error.print();
        return Verdict::Errors;
    }
    if settings.is_empty() {
        let why = settings.unknown.join("; ");
        // The same, for `gpufrac check --migration`. Cure: Name the file with `--slurm-conf FILE`.
        eprintln!(
            "gpufrac: reading Slurm's settings failed: {why}; name its slurm.conf with --slurm-conf FILE"
        );
        return Verdict::Errors;
    }
    let list = Migration::of(&settings, &node.config, args.slurm_conf.is_none());
    if args.json {
        println!("{}", list.json())
    } else {
        list.print()
    }
    if list.is_empty() { Verdict::Good } else { Verdict::Warnings }
}

impl Migration {
    /// `asks`: whether there is a running Slurm to ask for jobs.
    fn of(settings: &Settings, config: &Config, asks: bool) -> Migration {
        let partitions = config.pools.iter().flat_map(|pool| pool.partitions.clone());
        let partitions: BTreeSet<String> = partitions.collect();
        let mut unknown = settings.unknown.clone();
        unknown.extend(settings.limits.unknown.iter().cloned());
        let silent = settings.no_answer.iter();
        unknown.extend(silent.map(|why| format!("{why}: limits and reservations are not judged")));
        let ends = init::proposal(settings, config, Gpus::default());
        let ends = ends.map(|proposal| proposal.consequences);
        let ends = ends.unwrap_or_else(|error| {
            unknown.push(error.to_string());
            Vec::new()
        });
        let (mut waiting, mut recent) = (Vec::new(), Vec::new());
        if asks {
            waiting = known(asked::pending(&partitions, config), &mut unknown);
            recent = known(asked::recent(&partitions, config), &mut unknown);
        }
        let places: BTreeMap<&String, Partition> = partitions
            .iter()
            .map(|name| (name, Partition::of(name, settings, config)))
            .collect();
        let new = |asked: &Asked| places.get(&asked.partition)?.instead(&asked.request);
        let pending = waiting.into_iter().filter_map(|(job, asked)| {
            let new = new(&asked)?;
            Some(Pending { job, asked, new })
        });
        let pending: Vec<Pending> = pending.collect();
        let ended = recent
            .into_iter()
            .filter_map(|asked| Some((new(&asked)?, asked)));
        let waits = pending.iter();
        let waits = rows(waits.map(|job| (job.new.clone(), job.asked.clone())));
        Migration {
            requests: with(rows(ended), waits),
            pending,
            ends,
            findings: settings::limits_and_prices(settings, config),
            partitions,
            unknown,
        }
    }

    fn is_empty(&self) -> bool {
        self.ends.is_empty()
            && self.requests.is_empty()
            && self.pending.is_empty()
            && self.findings.is_empty()
    }

    fn print(&self) {
        let names: Vec<&str> = self.partitions.iter().map(String::as_str).collect();
        println!("GPUs of partition {} are lent in parts.", names.join(", "));
        section("What ends", &self.ends);
        let rows: Vec<String> = self.requests.iter().map(EndingRequest::text).collect();
        section("What to write instead", &rows);
        let findings = self.findings.iter();
        let findings = findings.map(|one| format!("{}\n      {}", finding::line(one), one.fix));
        section(
            "Limits, prices and reservations",
            &findings.collect::<Vec<_>>(),
        );
        let pending: Vec<String> = self.pending.iter().map(Pending::text).collect();
        section("Waiting jobs that do not start", &pending);
        section("Not known", &self.unknown);
        if self.is_empty() {
            println!("\nNothing changes for users.");
        }
    }

    fn json(&self) -> Value {
        let requests = self.requests.iter().map(|row| {
            json!({"partition": row.partition, "old": row.old, "new": row.new, "jobs": row.jobs, "users": row.users})
        });
        let pending = self.pending.iter().map(|job| {
            json!({"job": job.job, "user": job.asked.user, "partition": job.asked.partition, "old": job.asked.request.text, "new": job.new})
        });
        json!({
            "partitions": self.partitions,
            "ends": self.ends,
            "requests": requests.collect::<Vec<_>>(),
            "pending": pending.collect::<Vec<_>>(),
            "limits": self.findings.iter().map(|it| json!({"place": it.place, "what": it.what, "fix": it.fix})).collect::<Vec<_>>(),
            "unknown": self.unknown,
        })
    }
}

fn known<T>(answer: Result<Vec<T>, String>, unknown: &mut Vec<String>) -> Vec<T> {
    answer.unwrap_or_else(|why| {
        unknown.push(why);
        Vec::new()
    })
}

/// Equal requests together, the most frequent ones of a partition first.
fn rows(asked: impl Iterator<Item = (String, Asked)>) -> Vec<EndingRequest> {
    let mut found: Vec<EndingRequest> = Vec::new();
    for (new, asked) in asked {
        let old = asked.request.text;
        let same = found
            .iter_mut()
            .find(|row| row.partition == asked.partition && row.old == old);
        match same {
            Some(row) => {
                row.jobs += 1;
                row.users.insert(asked.user);
            }
            None => found.push(EndingRequest {
                partition: asked.partition,
                old,
                new,
                jobs: 1,
                users: BTreeSet::from([asked.user]),
            }),
        }
    }
    found.sort_by(|one, other| {
        let frequent = other.jobs.cmp(&one.jobs);
        one.partition.cmp(&other.partition).then(frequent)
    });
    found
}

/// The requests of sacct, and those of squeue that sacct does not know.
fn with(mut rows: Vec<EndingRequest>, waiting: Vec<EndingRequest>) -> Vec<EndingRequest> {
    for row in waiting {
        let is_same =
            |known: &EndingRequest| known.partition == row.partition && known.old == row.old;
        if !rows.iter().any(is_same) {
            rows.push(row);
        }
    }
    rows
}

impl EndingRequest {
    fn text(&self) -> String {
        let users: Vec<&str> = self.users.iter().map(String::as_str).collect();
        let jobs = if self.jobs == 1 { "job" } else { "jobs" };
        format!(
            "partition {}: {} -> {} ({} {jobs} of {})",
            self.partition,
            self.old,
            self.new,
            self.jobs,
            users.join(", ")
        )
    }
}

impl Pending {
    fn text(&self) -> String {
        format!(
            "job {} of {}, partition {}: {} -> {}",
            self.job, self.asked.user, self.asked.partition, self.asked.request.text, self.new
        )
    }
}

fn section(title: &str, lines: &[String]) {
    if !lines.is_empty() {
        println!("\n{title}:");
    }
    for line in lines {
        println!("  - {line}");
    }
}
