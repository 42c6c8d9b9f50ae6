//! The requests of waiting jobs, by squeue, and of the last 30 days, by sacct. Scripts of users are not read.

use std::collections::BTreeSet;

use gpufrac_core::config::Config;
use gpufrac_core::request::{names_fraction, without_mark};
use gpufrac_slurm_conf::table::Header;
use gpufrac_slurm_settings::ask_slurm;

use super::request::{self, Request};

/// A request for GPUs, and who asked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Asked {
    pub user: String,
    /// The partition with pools.
    pub partition: String,
    pub request: Request,
}

/// squeue's field of GRES for all nodes of a job.
const PER_JOB: &str = "tres-per-job";

/// squeue's fields of GRES.
const FIELDS: [&str; 4] = ["tres-per-node", PER_JOB, "tres-per-task", "tres-per-socket"];

/// The fields of sacct.
const FIELDS_OF_SACCT: &str = "User,Partition,ReqTRES,SubmitLine";

fn list(partitions: &BTreeSet<String>) -> String {
    let names: Vec<&str> = partitions.iter().map(String::as_str).collect();
    names.join(",")
}

/// The waiting jobs with their ids.
pub fn pending(
    partitions: &BTreeSet<String>,
    config: &Config,
) -> Result<Vec<(String, Asked)>, String> {
    let mut format = "JobArrayID:64|,UserName:64|,Partition:512|,NumNodes:16".to_owned();
    for field in FIELDS {
        format.push_str(&format!("|,{field}:256"));
    }
    // Other users' jobs may be hidden; `-a` shows hidden partitions.
    let said = ask_slurm(
        "squeue",
        &[
            "-a",
            "-h",
            "-t",
            "PENDING",
            "-p",
            &list(partitions),
            "-O",
            &format,
        ],
    );
    let text = said.map_err(|error| format!("{error}: waiting jobs are not listed"))?;
    Ok(text
        .lines()
        .filter_map(|line| waiting(line, partitions, config))
        .collect())
}

fn waiting(line: &str, partitions: &BTreeSet<String>, config: &Config) -> Option<(String, Asked)> {
    let fields: Vec<&str> = line.split('|').map(str::trim).collect();
    let [job, user, named, nodes, requests @ ..] = fields.as_slice() else {
        return None;
    };
    let texts: Vec<_> = requests
        .iter()
        .map(|text| config.count_name.read(text))
        .collect();
    // With one fraction the whole request is gpufrac's.
    if texts.iter().any(|text| names_fraction(text)) {
        return None;
    }
    let mut requests = FIELDS.iter().zip(&texts).filter_map(|(field, text)| {
        let items: Vec<&str> = text.split(',').map(without_mark).collect();
        let request = Request::of_option("--gres", &items.join(","))?;
        let nodes = if *field == PER_JOB { nodes.parse().unwrap_or(1) } else { 1 };
        let gres = request::on_node(&request.gres, nodes);
        Some(Request { gres, ..request })
    });
    let asked = Asked {
        user: (*user).to_owned(),
        partition: of_pools(named, partitions)?,
        request: requests.next()?,
    };
    Some(((*job).to_owned(), asked))
}

/// The requests of jobs that were submitted in the last 30 days.
pub fn recent(partitions: &BTreeSet<String>, config: &Config) -> Result<Vec<Asked>, String> {
    let arguments = [
        "-a",
        "-X",
        "-n",
        "-P",
        "-S",
        "now-30days",
        "-r",
        &list(partitions),
        "-o",
        FIELDS_OF_SACCT,
    ];
    let said = ask_slurm("sacct", &arguments);
    let text =
        said.map_err(|error| format!("{error}: requests of the last 30 days are not listed"))?;
    Ok(text
        .lines()
        .filter_map(|line| ended(line, partitions, config))
        .collect())
}

fn ended(line: &str, partitions: &BTreeSet<String>, config: &Config) -> Option<Asked> {
    // A submit line may contain the separator and line ends.
    let header = Header::of(FIELDS_OF_SACCT);
    let row = header.open_line(line).ok()?;
    let text = |name| row.text(&[name]).ok();
    let tres = config.count_name.read(text("ReqTRES")?);
    if names_fraction(&tres) {
        return None;
    }
    Some(Asked {
        user: text("User")?.to_owned(),
        partition: of_pools(text("Partition")?, partitions)?,
        request: Request::of_job(text("SubmitLine")?, &tres)?,
    })
}

/// The first partition of a list that has pools.
fn of_pools(named: &str, partitions: &BTreeSet<String>) -> Option<String> {
    let mut names = named.split(',').map(str::trim);
    names
        .find(|name| partitions.contains(*name))
        .map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waiting_and_recent_jobs_of_each_series_are_read() {
        let partitions = BTreeSet::from(["gpu".to_owned()]);
        let config = Config::parse("version = 1\n[gres]\nname = \"frac\"\n", "x")
            .unwrap_or_else(|_| Config::empty());
        let waiting = |line: &str| {
            waiting(line, &partitions, &config).map(|(job, it)| (job, it.request.gres))
        };
        for mark in ["gres:", "gres/"] {
            let line = format!("7_[1-5]   |ann   |cpu,gpu   |2|{mark}gpu:h100:1   |N/A  |N/A |N/A");
            assert_eq!(
                waiting(&line),
                Some(("7_[1-5]".to_owned(), "gpu:h100:1".to_owned()))
            );
            for (nodes, on_node) in [("1", "gpu:8"), ("2", "gpu:4"), ("3", "gpu:8")] {
                let line = format!("8|ann|gpu|{nodes}|N/A|{mark}gpu:8|N/A|N/A");
                assert_eq!(waiting(&line).unwrap().1, on_node);
            }
            let line = format!("8|ann|gpu|1|{mark}gpufrac:25,{mark}shard:half:25|N/A|N/A|N/A");
            assert_eq!(waiting(&line), None);
        }
        assert_eq!(waiting("9|ann|cpu|1|gres/gpu:1|N/A|N/A|N/A"), None);
        let ended = |line: &str| ended(line, &partitions, &config).map(|it| it.request.text);
        let old = "ann|gpu|cpu=1,gres/gpu=1|sbatch --gres=gpu:h100:1 --wrap a | b";
        assert_eq!(ended(old).as_deref(), Some("--gres=gpu:h100:1"));
        assert_eq!(
            ended("ann|gpu|cpu=1,gres/gpu=1|sbatch job.sh").as_deref(),
            Some("--gres=gpu:1")
        );
        assert_eq!(
            ended("ann|gpu|cpu=1,gres/gpufrac=50,gres/shard=50|sbatch job.sh"),
            None
        );
        assert_eq!(ended("the rest of a line"), None);
    }
}
