//! gpufrac's parts of a job's `AdminComment`.

use slurm_sys::client::JobInfo;

/// The first words of a prolog's part of a job's `AdminComment`. The reaper recognises gpufrac's parts by the first
/// word.
const OURS: &str = "gpufrac: prolog: ";
/// The words about a full slice, until the next run.
const FULL: &str = "gpufrac: a task failed with a full slice: ";
/// The separator between the parts.
const PARTS: &str = " | ";

/// The comment with the reason, or without it; text of others stays.
pub fn explained_in(comment: &str, why: &str) -> String {
    let parts = comment.split(PARTS).map(str::to_owned);
    let mut parts: Vec<String> = parts
        .filter(|part| !part.is_empty() && !part.starts_with(OURS) && !part.starts_with(FULL))
        .collect();
    if !why.is_empty() {
        parts.push(format!("{OURS}{}", why.replace(PARTS, ", ")));
    }
    parts.join(PARTS)
}

/// The comment with the words about a task that failed with a full slice; None if it has them.
pub fn full_in(comment: &str, told: &str) -> Option<String> {
    let mut parts: Vec<&str> = comment.split(PARTS).collect();
    parts.retain(|part| !part.is_empty());
    let own = format!("{FULL}{}", told.replace(PARTS, ", "));
    let is_told = parts.iter().any(|part| part.starts_with(FULL));
    parts.push(&own);
    (!is_told).then(|| parts.join(PARTS))
}

/// Whether a prolog explained something to this job's user.
pub fn is_explained(job: &JobInfo) -> bool {
    let mut parts = job.admin_comment.split(PARTS);
    parts.any(|part| part.starts_with(OURS))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_slice_is_told_once_and_until_the_next_run() {
        let told = full_in("ticket 7", "used 1 | 2").unwrap();
        let expected = "ticket 7 | gpufrac: a task failed with a full slice: used 1, 2";
        assert_eq!(told, expected);
        assert_eq!(full_in(&told, "used 2"), None);
        assert_eq!(explained_in(&told, ""), "ticket 7");
    }

    #[test]
    fn comments_of_others_on_a_job_stay() {
        for others in [
            "",
            "ticket 7",
            "ticket 7: ask | first",
            "gpufrac: job 7 is idle",
        ] {
            let first = explained_in(others, "the job waits");
            assert!(first.starts_with(others), "{first}");
            assert!(first.ends_with("gpufrac: prolog: the job waits"), "{first}");
            let second = explained_in(&first, "it is | over");
            assert!(second.ends_with("gpufrac: prolog: it is, over"), "{second}");
            assert_eq!(second.matches(OURS).count(), 1);
            assert_eq!(explained_in(&second, ""), others);
        }
    }
}
