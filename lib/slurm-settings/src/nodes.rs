//! Judges the devices and counts of each node with a pool: in gres.conf, in `Gres=` of slurm.conf, and in slurmctld.

mod fault;
mod without_pool;

use std::collections::{BTreeSet, HashSet};
use std::path::PathBuf;

use gpufrac_core::config::Config;
use gpufrac_core::count_name::CountName;
use gpufrac_core::finding::{Finding, Severity};
use gpufrac_core::gres::GresLines;
use gpufrac_core::hostlist;
use gpufrac_core::slurm_release::{SlurmRelease, SlurmSeries};

use super::gpu_count::{self, GpuCount, Gpus};
use super::gres_lines::{Gpu, NodeLines, is_own_type};
use super::{Running, Settings};
use fault::{Fault, Shards, Wrong, WrongLine};
use gpufrac_slurm_conf::{ConfFile, Counts, Node, Record, counts};

/// The place of findings about slurmctld's node records.
const NODE_RECORD: &str = "scontrol show node";

/// From this release on, with `Cores=` Slurm no longer gives a device with fractions to a job of a whole GPU.
const CORES_ARE_SAFE: SlurmRelease = SlurmSeries::new(23, 11).release(5);

/// From this series on a node whose shares have Types needs shares of the Type of each GPU.
const SHARES_OF_EACH_TYPE: SlurmSeries = SlurmSeries::new(23, 11);

pub(super) fn judge(settings: &Settings, config: &Config, found: &mut Vec<Finding>) {
    let mut seen = HashSet::new();
    let names = config.pools.iter().flat_map(|pool| pool.nodes.names());
    let nodes: Vec<&str> = names
        .map(String::as_str)
        .filter(|name| settings.only.as_deref().is_none_or(|only| only == *name))
        .filter(|name| seen.insert(*name))
        .collect();
    let mut groups: Vec<(Fault, Vec<&str>)> = Vec::new();
    for node in nodes {
        for fault in faults(settings, config, node) {
            match groups.iter_mut().find(|(known, _)| *known == fault) {
                Some((_, names)) => names.push(node),
                None => groups.push((fault, vec![node])),
            }
        }
    }
    let findings = groups.into_iter();
    found.extend(findings.map(|(fault, nodes)| fault.finding(&hostlist::short(&nodes))));
    if settings.only.is_none() {
        without_pool::judge(settings, config, found);
    }
}

/// The lines that a node needs; None if its number of GPUs is unknown.
pub(super) fn wanted(
    settings: &Settings,
    config: &Config,
    node: &str,
    told: Gpus,
) -> Option<GresLines> {
    let known = || gpu_count::of(settings, config, node).number();
    expected(config, node, told.told.or_else(known)?)
}

/// Whether gres.conf has a fault that affects a node.
pub(super) fn is_wrong_in_gres_conf(settings: &Settings, node: &str, wanted: &GresLines) -> bool {
    let Some(files) = &settings.files else {
        return false;
    };
    let release = settings.running.as_ref().and_then(Running::release);
    let lines = NodeLines::of(&files.gres, node, &wanted.name);
    let mut found = Vec::new();
    devices(node, &files.gres, &lines, wanted, release, &mut found);
    found.iter().any(|fault| fault.severity != Severity::Note)
        || !no_share(&files.gres, &lines, None).is_empty()
}

/// Whether a `Gres=` differs from the needed one. `lines`: gres.conf, which has the GPUs without a pool.
pub(super) fn is_wrong_gres(wanted: &GresLines, gres: Option<&str>, lines: &NodeLines) -> bool {
    let right = counts(&wanted.gres);
    let is = counts(gres.unwrap_or_default());
    let has_share = |name: &&str| is.contains_key(&("shard".to_owned(), (*name).to_owned()));
    differs(&right, gres).is_some()
        || types_of_shares(&right, gres).is_some()
        || !lines.plain_gpus().keys().all(has_share)
}

/// As [`is_wrong_gres`], for slurmctld's record, which has no Types of shares.
pub(super) fn is_wrong_in_running(wanted: &GresLines, gres: Option<&str>) -> bool {
    differs(&counts(&wanted.gres), gres).is_some()
}

fn faults(settings: &Settings, config: &Config, node: &str) -> Vec<Fault> {
    let mut found = Vec::new();
    let files = settings.files.as_ref();
    let line = files.and_then(|files| files.site.node(node));
    let record = settings
        .running
        .as_ref()
        .and_then(|running| running.nodes.get(node));
    let lines = files.map(|files| NodeLines::of(&files.gres, node, &config.count_name));
    if line.is_none() && record.is_none() {
        // Dynamic nodes (`slurmd -Z`) register by themselves, so they need no line.
        let comes_and_goes = settings.value("MaxNodeCount").is_some();
        found.push(Fault {
            severity: if comes_and_goes { Severity::Warning } else { Severity::Error },
            place: settings.slurm_conf(),
            wrong: Wrong::Unknown,
        });
        return found;
    }
    let wanted = match gpu_count::of(settings, config, node) {
        GpuCount::Known(count) | GpuCount::Assumed(count) => {
            expected(config, node, count).ok_or(Wrong::Uncounted {
                instances: String::new(),
            })
        }
        GpuCount::Unknown { instances } => Err(Wrong::Uncounted { instances }),
        GpuCount::Differs(facts) => Err(Wrong::Counts(facts)),
    };
    let wanted = match wanted {
        Ok(wanted) => wanted,
        Err(wrong) => {
            found.push(Fault {
                severity: Severity::Error,
                place: place_of(line),
                wrong,
            });
            return found;
        }
    };
    if let (Some(files), Some(lines)) = (files, &lines) {
        let release = settings.running.as_ref().and_then(Running::release);
        devices(node, &files.gres, lines, &wanted, release, &mut found);
        let gres = line.and_then(Node::gres).map(counts);
        found.extend(no_share(&files.gres, lines, gres.as_ref()));
        found.extend(instances_beside(&files.gres, lines, release));
    }
    let right = counts(&wanted.gres);
    let mut wrong_file = false;
    if let Some(line) = line {
        let gres = line.gres();
        let differs = differs(&right, gres).or_else(|| types_of_shares(&right, gres));
        wrong_file = differs.is_some();
        let parameters = settings.value("SlurmdParameters");
        found.extend(differs.map(|(severity, why)| Fault {
            severity,
            place: line.entry.place().to_string(),
            wrong: Wrong::Written {
                why,
                config_overrides: parameters.is_some_and(|all| all.contains("config_overrides")),
                right: wanted.gres.clone(),
            },
        }));
    }
    if let Some(record) = record.filter(|_| !wrong_file) {
        let differs = differs(&right, record.get("Gres"));
        found.extend(differs.map(|(severity, why)| Fault {
            severity,
            place: NODE_RECORD.into(),
            wrong: Wrong::Running {
                why,
                is_written: line.is_some(),
                right: wanted.gres.clone(),
            },
        }));
        // Slurm keeps the reason of a node that was resumed.
        let reason = record.get("Reason").filter(|_| is_out_of_service(record));
        if let Some(reason) = reason.filter(|reason| reason.contains("gres/")) {
            found.push(Fault {
                severity: Severity::Error,
                place: NODE_RECORD.into(),
                wrong: Wrong::Drained {
                    reason: reason.to_owned(),
                },
            });
        }
    }
    found.extend(record.and_then(left_drained));
    found
}

/// The beginnings of the reasons with which gpufrac, and Slurm after a prolog or epilog that failed, drain a node
/// (`slurmd/req.c`, `slurmctld/proc_req.c`).
const OF_HOOKS: [&str; 4] = [
    "gpufrac: ",
    "Prolog error",
    "Epilog error",
    "batch job complete failure",
];

/// Whether a node takes no job, by its state.
fn is_out_of_service(record: &Record) -> bool {
    let state = record.get("State").unwrap_or_default();
    ["DRAIN", "DOWN", "INVAL", "UNKNOWN"]
        .iter()
        .any(|word| state.contains(word))
}

/// The fault of a node that is out of service until an admin resumes it, even after its cause was removed.
fn left_drained(record: &Record) -> Option<Fault> {
    let is_drained = record.get("State")?.contains("DRAIN");
    let reason = record.get("Reason").filter(|_| is_drained)?;
    OF_HOOKS
        .iter()
        .any(|start| reason.starts_with(start))
        .then(|| Fault {
            severity: Severity::Warning,
            place: NODE_RECORD.into(),
            wrong: Wrong::LeftDrained {
                reason: reason.to_owned(),
            },
        })
}

fn place_of(line: Option<&Node>) -> String {
    line.map_or(NODE_RECORD.into(), |line| line.entry.place().to_string())
}

fn expected(config: &Config, name: &str, gpus: u32) -> Option<GresLines> {
    let folder = PathBuf::from(config.paths.for_node(name).devices);
    let devices = config.devices_of_node(name, gpus);
    let lines = GresLines::of(&devices, &folder, &config.count_name);
    (!lines.gres.is_empty()).then_some(lines)
}

/// GPUs without a pool whose Type has no share in gres.conf, or in `Gres=`.
fn no_share(file: &ConfFile, lines: &NodeLines, gres: Option<&Counts>) -> Vec<Fault> {
    let counted = |name: &str| {
        let key = ("shard".to_owned(), name.to_owned());
        gres.is_none_or(|gres| gres.contains_key(&key))
    };
    let missing = lines.plain_gpus().into_iter();
    let missing = missing.filter(|(name, _)| !lines.plain_shares.contains(*name) || !counted(name));
    let fault = |(name, files): (&str, Vec<&str>)| Fault {
        severity: Severity::Error,
        place: file.path.display().to_string(),
        wrong: Wrong::NoShare {
            type_name: name.to_owned(),
            files: files.iter().map(ToString::to_string).collect(),
        },
    };
    missing.map(fault).collect()
}

/// MIG instances of the site beside the devices of pools, in a series that drains such a node.
fn instances_beside(
    file: &ConfFile,
    lines: &NodeLines,
    release: Option<SlurmRelease>,
) -> Option<Fault> {
    let types = lines.instances_beside();
    let is_refused = release.is_none_or(|release| release.series >= SHARES_OF_EACH_TYPE);
    (is_refused && !types.is_empty()).then(|| Fault {
        severity: Severity::Error,
        place: file.path.display().to_string(),
        wrong: Wrong::Instances {
            types: types.keys().copied().collect::<Vec<_>>().join(", "),
        },
    })
}

/// The finding about the first node that the running slurmctld would drain, because instances of the site stay beside
/// the devices of pools.
pub(super) fn refused(settings: &Settings, config: &Config) -> Option<Finding> {
    let (files, running) = (settings.files.as_ref()?, settings.running.as_ref()?);
    let release = running.release();
    let mut names = config.pools.iter().flat_map(|pool| pool.nodes.names());
    names.find_map(|node| {
        let lines = NodeLines::of(&files.gres, node, &config.count_name);
        Some(instances_beside(&files.gres, &lines, release)?.finding(node))
    })
}

/// Compares gres.conf with the lines that the node needs.
fn devices(
    node: &str,
    file: &ConfFile,
    lines: &NodeLines,
    wanted: &GresLines,
    release: Option<SlurmRelease>,
    found: &mut Vec<Fault>,
) {
    let text = wanted.gres_conf(node).join("\n");
    let printed = gpufrac_slurm_conf::read_conf(&file.path, &|_| Ok(text.clone()));
    let Ok(printed) = printed else { return };
    let right = NodeLines::of(&printed, node, &wanted.name);
    let detect = lines.detect.as_ref();
    if let Some((place, how)) = detect.filter(|(_, how)| !super::rules::is(how, "off")) {
        found.push(Fault {
            severity: Severity::Error,
            place: place.to_string(),
            wrong: Wrong::AutoDetect {
                how: how.to_owned(),
            },
        });
    }
    let place = match (&lines.place, file.exists) {
        (Some(place), _) => place.to_string(),
        (None, true) => file.path.display().to_string(),
        (None, false) => format!("{} (missing)", file.path.display()),
    };
    let on_lines = |why| (Severity::Error, place.clone(), why);
    let wrong = [
        wrong_cores(lines, release),
        lines
            .flag
            .map(|(name, flag)| on_lines(WrongLine::Flag { name, flag })),
        wrong_gpu(lines, &right).map(on_lines),
        vague_shards(lines, &right),
        wrong_shards(lines, &right).map(on_lines),
        wrong_fractions(lines, &right, &wanted.name).map(on_lines),
        lines
            .mps
            .as_ref()
            .map(|place| (Severity::Error, place.to_string(), WrongLine::Mps)),
    ];
    // All faults at one place have the same cure.
    let mut places: Vec<(Severity, String, Vec<WrongLine>)> = Vec::new();
    for (severity, place, why) in wrong.into_iter().flatten() {
        match places.last_mut() {
            Some((same, known, whys)) if *same == severity && *known == place => whys.push(why),
            _ => places.push((severity, place, vec![why])),
        }
    }
    found.extend(places.into_iter().map(|(severity, place, why)| Fault {
        severity,
        place,
        wrong: Wrong::Lines {
            why,
            right: wanted.clone(),
        },
    }));
}

fn wrong_cores(
    lines: &NodeLines,
    release: Option<SlurmRelease>,
) -> Option<(Severity, String, WrongLine)> {
    let (place, cores) = lines.cores.first()?;
    let severity = match release {
        Some(release) if release >= CORES_ARE_SAFE => Severity::Note,
        Some(_) => Severity::Error,
        None => Severity::Warning,
    };
    Some((severity, place.to_string(), WrongLine::Cores(cores.clone())))
}

/// The first device of the pools that is missing or differs, otherwise a device that occurs twice.
fn wrong_gpu(lines: &NodeLines, right: &NodeLines) -> Option<WrongLine> {
    let mut ours = right.gpus.iter().enumerate();
    let wrong = ours.find(|(at, gpu)| lines.gpus.get(*at) != Some(gpu));
    if let Some((at, gpu)) = wrong {
        return Some(match lines.gpus.get(at) {
            None => WrongLine::Missing(gpu.clone()),
            Some(is) => WrongLine::Other {
                is: is.clone(),
                right: gpu.clone(),
            },
        });
    }
    let is_like =
        |ours: &Gpu, more: &Gpu| ours.type_name == more.type_name || ours.file == more.file;
    let mut further = lines.gpus.iter().skip(right.gpus.len());
    let more = further.find(|more| right.gpus.iter().any(|ours| is_like(ours, more)))?;
    Some(WrongLine::TooMany(more.clone()))
}

/// Shards whose line names no file of a placeholder, though their number is right.
fn vague_shards(lines: &NodeLines, right: &NodeLines) -> Option<(Severity, String, WrongLine)> {
    let place = lines.vague.as_ref()?;
    if lines.shard_count != right.shard_count {
        return None;
    }
    let same_files = lines.shards == right.shards;
    let same = |count: &u64| right.shards.values().all(|other| other == count);
    let all_share = right.shards.len() == right.gpus.len() && right.shards.values().all(same);
    let severity = if same_files || (lines.shards.is_empty() && all_share) {
        Severity::Warning
    } else {
        Severity::Error
    };
    Some((severity, place.to_string(), WrongLine::Vague))
}

/// Shards that are not those of the pools' devices. [`vague_shards`] reports lines without files with the right number.
fn wrong_shards(lines: &NodeLines, right: &NodeLines) -> Option<WrongLine> {
    let same_count = lines.shard_count == right.shard_count;
    if same_count && (lines.vague.is_some() || lines.shards == right.shards) {
        return None;
    }
    let shards = |of: &NodeLines| Shards {
        count: of.shard_count,
        devices: of.shards.len(),
    };
    Some(WrongLine::Shards {
        is: shards(lines),
        right: shards(right),
    })
}

fn wrong_fractions(lines: &NodeLines, right: &NodeLines, name: &CountName) -> Option<WrongLine> {
    (lines.fractions != right.fractions).then_some(WrongLine::Fractions {
        name: name.clone(),
        is: lines.fractions,
        right: right.fractions,
    })
}

/// The number of a GRES, without the shares of GPUs that have no pool.
fn sum(of: &Counts, name: &str) -> u64 {
    let of_name = of.iter().filter(|((known, type_name), _)| {
        known == name && (name != "shard" || type_name.is_empty() || is_own_type(type_name))
    });
    of_name.map(|(_, count)| count).sum()
}

/// The Types and counts of GPUs without a pool.
fn plain_gpus(of: &Counts) -> impl Iterator<Item = (&String, u64)> {
    of.iter().filter_map(|((name, type_name), count)| {
        let is_plain = name == "gpu" && !type_name.is_empty() && !is_own_type(type_name);
        is_plain.then_some((type_name, *count))
    })
}

/// The difference between a `Gres=` and the needed one; it may have GRES of other names and Types.
fn differs(right: &Counts, text: Option<&str>) -> Option<(Severity, String)> {
    let is = counts(text.unwrap_or_default());
    if is.is_empty() {
        return Some((Severity::Error, "nothing is counted".into()));
    }
    if sum(&is, "mps") > 0 {
        return Some((
            Severity::Error,
            "mps is counted, and a job that asks for it gets no GPU of a pool".into(),
        ));
    }
    // slurmctld gives shares the Types that nodes register, even if they are not in the file.
    let names: BTreeSet<&str> = right.keys().map(|(name, _)| name.as_str()).collect();
    // Where shares have no Types, those of GPUs without a pool are among them.
    let plain: u64 = plain_gpus(&is).map(|(_, count)| count).sum();
    for name in names.into_iter().rev().filter(|name| *name != "gpu") {
        let (is, right) = (sum(&is, name), sum(right, name));
        if is != right && (name != "shard" || is != right + plain) {
            return Some((
                Severity::Error,
                format!("{name} is {is} and must be {right}"),
            ));
        }
    }
    let untyped = is.get(&("gpu".into(), String::new()));
    if untyped.is_some() && is.keys().filter(|(name, _)| name == "gpu").count() > 1 {
        let fault = "gpu is counted with a Type and without one, and slurmd does not start";
        return Some((Severity::Error, fault.into()));
    }
    let gpus = right.iter().filter(|((name, _), _)| name == "gpu");
    for ((_, type_name), count) in gpus {
        match is.get(&("gpu".into(), type_name.clone())) {
            Some(known) if known == count => {}
            Some(known) => {
                let fault = format!("gpu:{type_name} is {known} and must be {count}");
                return Some((Severity::Error, fault));
            }
            None if untyped == Some(&sum(right, "gpu")) => {
                let fault = format!("gpu without its Type `{type_name}`, which requests ask for");
                return Some((Severity::Warning, fault));
            }
            None => return Some((Severity::Error, format!("gpu:{type_name} is missing"))),
        }
    }
    None
}

/// The Types of shares, if their number is right.
fn types_of_shares(right: &Counts, text: Option<&str>) -> Option<(Severity, String)> {
    let is = counts(text.unwrap_or_default());
    let shares = |of: &Counts| -> Counts {
        let is_plain = |name: &str| plain_gpus(of).any(|(plain, _)| plain == name);
        let shares = of.iter();
        let shares =
            shares.filter(|((name, type_name), _)| name == "shard" && !is_plain(type_name));
        shares.map(|(key, count)| (key.clone(), *count)).collect()
    };
    let (is, right) = (shares(&is), shares(right));
    if is == right {
        return None;
    }
    if is.keys().all(|(_, type_name)| type_name.is_empty()) {
        Some((
            Severity::Warning,
            "shard without its Type: steps of jobs that ask for it are refused".into(),
        ))
    } else {
        Some((
            Severity::Error,
            "shard has other Types than the pools".into(),
        ))
    }
}
