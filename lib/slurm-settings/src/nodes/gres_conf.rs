//! Compares gres.conf with the lines that a node needs.

use gpufrac_core::config::Config;
use gpufrac_core::finding::{Finding, Severity};
use gpufrac_core::gres::GresLines;
use gpufrac_core::slurm_release::{SlurmRelease, SlurmSeries};
use gpufrac_slurm_conf::{ConfFile, Counts};

use super::super::gres_lines::{Detect, GresDevice, NodeLines, PLAIN, share_line, short_files};
use super::super::{Settings, near};
use super::{NODES, named};

/// From this series on a node whose shares have Types needs shares of the Type of each GPU.
const SHARES_OF_EACH_TYPE: SlurmSeries = SlurmSeries::new(23, 11);

/// Whether gres.conf has a fault that affects a node.
pub(in super::super) fn is_wrong(settings: &Settings, node: &str, wanted: &GresLines) -> bool {
    let Some(files) = &settings.files else {
        return false;
    };
    let lines = NodeLines::of(&files.gres, node, &wanted.name);
    let mut found = Vec::new();
    judge(
        node,
        &files.gres,
        &lines,
        wanted,
        settings.release(),
        &mut found,
    );
    found.iter().any(|fault| fault.severity != Severity::Note)
        || !no_share(&files.gres, &lines, None).is_empty()
}

/// GPUs without a pool whose Type has no share in gres.conf, or in `Gres=`.
pub(super) fn no_share(file: &ConfFile, lines: &NodeLines, gres: Option<&Counts>) -> Vec<Finding> {
    let counted = |name: &str| {
        let key = ("shard".to_owned(), name.to_owned());
        gres.is_none_or(|gres| gres.contains_key(&key))
    };
    let missing = lines.plain_gpus().into_iter();
    let missing = missing.filter(|(name, _)| !lines.plain_shares.contains(*name) || !counted(name));
    let finding = |(type_name, files): (&str, Vec<&str>)| {
        let (what, name) = match type_name {
            "" => (
                format!(
                    "{NODES} has GPUs without a pool and without a Type: beside GPUs with Types slurmd does not start"
                ),
                PLAIN,
            ),
            name => (
                format!(
                    "{NODES} has GPUs of Type {name} without a pool, and no share of that Type: from 23.11 on Slurm then drains the node"
                ),
                name,
            ),
        };
        let fix = format!(
            "write for them in gres.conf, behind the lines of gpufrac:\nNodeName={NODES} Name=gpu Type={name} File={}\nNodeName={NODES} {}\n\
             and in Gres= of slurm.conf: gpu:{name}:{count},shard:{name}:{count}",
            short_files(&files),
            share_line(name, &files),
            count = files.len(),
        );
        Finding::at(file.path.display(), Severity::Error, what, fix)
    };
    missing.map(finding).collect()
}

/// MIG instances of the site beside the devices of pools, in a series that drains such a node.
pub(super) fn instances_beside(
    file: &ConfFile,
    lines: &NodeLines,
    release: Option<SlurmRelease>,
) -> Option<Finding> {
    let types: Vec<&str> = lines.instances_beside().into_keys().collect();
    let is_refused = release.is_none_or(|release| release.series >= SHARES_OF_EACH_TYPE);
    (is_refused && !types.is_empty()).then(|| {
        Finding::at(
            file.path.display(),
            Severity::Error,
            format!(
                "{NODES} has MIG instances of the site ({}) beside gpufrac's devices: from 23.11 on Slurm wants shares of each Type, \
                 which an instance cannot have, and drains the node",
                types.join(", ")
            ),
            "add the GPUs of these instances to a pool (`gpus` in gpufrac.toml), or take the node out of the pools",
        )
    })
}

/// The finding about the first node that the running slurmctld would drain, because instances of the site stay beside
/// the devices of pools.
pub(in super::super) fn refused(settings: &Settings, config: &Config) -> Option<Finding> {
    let (files, running) = (settings.files.as_ref()?, settings.running.as_ref()?);
    let release = running.release();
    let mut names = config.pools.iter().flat_map(|pool| pool.nodes.names());
    names.find_map(|node| {
        let lines = NodeLines::of(&files.gres, node, &config.count_name);
        let finding = instances_beside(&files.gres, &lines, release)?;
        Some(named(finding, node))
    })
}

/// Compares gres.conf with the lines that the node needs.
pub(super) fn judge(
    node: &str,
    file: &ConfFile,
    lines: &NodeLines,
    wanted: &GresLines,
    release: Option<SlurmRelease>,
    found: &mut Vec<Finding>,
) {
    let text = wanted.gres_conf(node).join("\n");
    let printed = gpufrac_slurm_conf::read_conf(&file.path, &|_| Ok(text.clone()));
    let Ok(printed) = printed else { return };
    let right = NodeLines::of(&printed, node, &wanted.name);
    if let Some(Detect { place, how, is_own }) = lines.detects() {
        found.push(Finding::at(
            place,
            Severity::Error,
            format!(
                "AutoDetect={how} holds for {NODES}: Slurm then looks for GPUs itself, and the placeholders are none"
            ),
            if *is_own {
                format!(
                    "write AutoDetect=off there, as in each line with AutoDetect and NodeName of {NODES}: slurmd does not start where they differ"
                )
            } else {
                format!("add the line: NodeName={NODES} AutoDetect=off")
            },
        ));
    }
    let place = match (&lines.place, file.exists) {
        (Some(place), _) => place.to_string(),
        (None, true) => file.path.display().to_string(),
        (None, false) => format!("{} (missing)", file.path.display()),
    };
    let on_lines = |what| (Severity::Error, place.clone(), what);
    let flag = lines.flag.map(|(name, flag)| {
        format!(
            "Flags={flag} on a line with Name={name} of {NODES}: jobs then get no device of Slurm, or wait while devices are idle"
        )
    });
    let mps = lines.mps.as_ref().map(|place| {
        let what = format!(
            "a line with Name=mps holds for {NODES}, whose GPUs are in pools: a job that asks for mps gets none of them"
        );
        (Severity::Error, place.to_string(), what)
    });
    let (is, count) = (lines.fractions, right.fractions);
    let fractions = (is != count).then(|| {
        format!(
            "{NODES} has Name={} Count={is} and must have {count}",
            wanted.name
        )
    });
    let wrong = [
        wrong_cores(lines, &right, release),
        flag.map(on_lines),
        wrong_gpu(lines, &right).map(on_lines),
        vague_shards(lines, &right),
        wrong_shards(lines, &right).map(on_lines),
        fractions.map(on_lines),
        mps,
    ];
    // All faults at one place have the same cure.
    let fix = format!("write for {NODES}:\n{}", wanted.gres_conf(NODES).join("\n"));
    let mut places: Vec<Finding> = Vec::new();
    for (severity, place, what) in wrong.into_iter().flatten() {
        match places.last_mut() {
            Some(last) if last.severity == severity && last.place.as_ref() == Some(&place) => {
                last.what += &format!("; {what}");
            }
            _ => places.push(Finding::at(place, severity, what, &fix)),
        }
    }
    found.extend(places);
}

/// A fault of the lines, with its place.
type WrongLine = (Severity, String, String);

/// `Cores=` of GPUs before the release that counts them correctly, or missing ones from it on.
fn wrong_cores(
    lines: &NodeLines,
    right: &NodeLines,
    release: Option<SlurmRelease>,
) -> Option<WrongLine> {
    let is_safe = release.map(near::takes_cores);
    match (lines.cores.first(), right.cores.first(), is_safe) {
        (Some((place, cores)), _, None | Some(false)) => Some((
            if is_safe.is_some() { Severity::Error } else { Severity::Warning },
            place.to_string(),
            format!(
                "Cores={cores} on a line of gpus of {NODES}: before Slurm 23.11.5 a job of a whole GPU can then get one with fractions on it"
            ),
        )),
        (None, Some(_), Some(true)) => Some((
            Severity::Note,
            lines.place.as_ref().map(ToString::to_string)?,
            format!(
                "no Cores= on the lines of gpus of {NODES}: Slurm may give a job CPUs of another socket than that of its slice"
            ),
        )),
        _ => None,
    }
}

/// The first device of the pools that is missing or differs, otherwise a device that occurs twice.
fn wrong_gpu(lines: &NodeLines, right: &NodeLines) -> Option<String> {
    let mut ours = right.gpus.iter().enumerate();
    if let Some((at, gpu)) = ours.find(|(at, gpu)| lines.gpus.get(*at) != Some(gpu)) {
        return Some(match lines.gpus.get(at) {
            None => format!("{NODES} lacks the device {}", show(gpu)),
            Some(is) => format!(
                "{NODES} has {} where {} must stand: devices are known by their number",
                show(is),
                show(gpu)
            ),
        });
    }
    let is_like = |ours: &GresDevice, more: &GresDevice| {
        ours.type_name == more.type_name || ours.file == more.file
    };
    let mut further = lines.gpus.iter().skip(right.gpus.len());
    let more = further.find(|more| right.gpus.iter().any(|ours| is_like(ours, more)))?;
    Some(format!("{NODES} has {} too many", show(more)))
}

fn show(gpu: &GresDevice) -> String {
    let type_name = gpu.type_name.as_deref().unwrap_or("without one");
    format!("Type {type_name} File={}", gpu.file)
}

/// Shards whose line names no Type or no file of a placeholder, though their number is right.
fn vague_shards(lines: &NodeLines, right: &NodeLines) -> Option<WrongLine> {
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
    let what = format!(
        "shards of {NODES} without Type= or File=: Slurm forgets the Type that a job asked for and refuses its steps, and divides shards among whole GPUs, too"
    );
    Some((severity, place.to_string(), what))
}

/// Shards that are not those of the pools' devices. [`vague_shards`] reports lines without files with the right number.
fn wrong_shards(lines: &NodeLines, right: &NodeLines) -> Option<String> {
    let same_count = lines.shard_count == right.shard_count;
    if same_count && (lines.vague.is_some() || lines.shards == right.shards) {
        return None;
    }
    if same_count && lines.shards.len() == right.shards.len() {
        return Some(format!("the shards of {NODES} are on other devices"));
    }
    Some(format!(
        "{NODES} has {} shards on {} devices and must have {} on {}",
        lines.shard_count,
        lines.shards.len(),
        right.shard_count,
        right.shards.len()
    ))
}
