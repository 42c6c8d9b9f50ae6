//! Programs of others that replace what gpufrac writes into `AdminComment`.
//!
//! gpufrac keeps what others wrote there, and adds a part of its own: why a job waits, was held or reclaimed. A program
//! that sets the field at the end of a job, such as that of jobstats, replaces all of it in slurmdbd.

use gpufrac_core::finding::{Finding, Severity};

use super::Settings;
use super::scripts::{beside_slurm_conf, code_of, glob, hooks};

/// The setting whose program runs when a job has ended.
const KEY: &str = "EpilogSlurmctld";

/// Where the value of [`KEY`] stands, and the value, of each program that names `AdminComment`.
pub(super) fn writers(settings: &Settings) -> Vec<(String, String)> {
    let names_it = |value: &str| {
        let mut files = glob(&beside_slurm_conf(settings, value)).into_iter();
        files.any(|path| code_of(&path).is_some_and(|code| sets_admin_comment(&code)))
    };
    let found = hooks(settings, KEY).into_iter();
    found
        .filter(|(_, value)| names_it(value))
        .map(|(place, value)| (place, value.to_owned()))
        .collect()
}

/// Whether a script names the field. Names are the same to sacctmgr in capital and in small letters. `AdminComment+=`
/// adds.
fn sets_admin_comment(code: &str) -> bool {
    let code = code.to_ascii_lowercase();
    code.match_indices("admincomment").any(|(at, word)| {
        code.get(at + word.len()..)
            .is_some_and(|rest| rest.starts_with('='))
    })
}

pub(super) fn judge(settings: &Settings, found: &mut Vec<Finding>) {
    let writers = settings.comment_writers.iter();
    // A program of another tool, such as jobstats, replaces the field when a job ends. Cure: Let the program store its
    // text elsewhere; jobstats can have an external database. `gpufrac why` and the nodes' logs have the reasons.
    found.extend(writers.map(|(place, value)| Finding {
        severity: Severity::Warning,
        place: Some(place.clone()),
        what: format!(
            "EpilogSlurmctld={value} sets AdminComment: sacct then lacks what gpufrac wrote there, why a job was held or reclaimed"
        ),
        fix: "let it store its text elsewhere: jobstats can have an external database; `gpufrac why JOBID` and \
              the nodes' logs have gpufrac's reasons in any case"
            .into(),
    }));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scripts_that_set_the_field() {
        for (code, sets) in [
            (
                "OUT=\"`sacctmgr -i update job where jobid=$ID set AdminComment=JS1:$STATS 2>&1`\"",
                true,
            ),
            ("sacctmgr update job where jobid=1 set admincomment=x", true),
            ("scontrol update jobid=1 AdminComment=x", true),
            ("sacct -o JobID,AdminComment -j $SLURM_JOB_ID", false),
            ("logger done", false),
        ] {
            assert_eq!(sets_admin_comment(code), sets, "{code}");
        }
    }
}
