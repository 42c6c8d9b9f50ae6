//! How many slices a job holds here that has one for each task.
//!
//! No variable of Prolog tells it and the entry can not: which tasks start where is decided when the job starts. Slurm's
//! record of the job has what it holds on each node, in a text of `_build_shared_gres_details` (from 23.11):
//! `gpufrac(CNT:50),shard:50(50/50,0/50)`.

use gpufrac_core::fraction::Units;
use gpufrac_core::hostlist::Hostlist;
use slurm_sys::client::JobInfo;

/// The slices of a job on `node`, each of `units`. None where the record does not say it: the job has no nodes yet,
/// or the text is another.
pub fn slices(info: &JobInfo, node: &str, units: Units) -> Option<u32> {
    let nodes = Hostlist::parse(&info.nodes).ok()?;
    // Every node of such a job has tasks, and so shares.
    if nodes.names().len() != info.gres_of_nodes.len() {
        return None;
    }
    let position = nodes.names().iter().position(|name| name == node)?;
    let shards = shards(info.gres_of_nodes.get(position)?)?;
    let whole = units.0 > 0 && shards > 0 && shards.is_multiple_of(units.0);
    whole.then(|| shards / units.0)
}

/// The shares in `gpufrac(CNT:50),shard:half:50(50/50,0/50)`: 50.
fn shards(gres: &str) -> Option<u32> {
    let mut depth = 0_i32;
    let outside = |character: char| {
        match character {
            '(' => depth += 1,
            ')' => depth -= 1,
            _ => {}
        }
        depth == 0 && character == ','
    };
    let item = gres
        .split(outside)
        .find_map(|item| item.strip_prefix("shard:"))?;
    // What is in use follows: without it the text was cut short, and the number may be another.
    let (counted, _) = item.split_once('(')?;
    counted.rsplit(':').next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_read_from_slurms_text() {
        for (text, expected) in [
            ("gpufrac(CNT:50),shard:50(50/50,0/50,0/50,0/50)", Some(50)),
            ("shard:half:26(26/50,0/50),gpufrac(CNT:26)", Some(26)),
            ("shard:39", None),
            ("gpu:half:1(IDX:0)", None),
            ("gpufrac(CNT:50)", None),
            ("shard:(50/50)", None),
            ("shard:-1(1/2)", None),
            ("", None),
        ] {
            assert_eq!(shards(text), expected, "{text}");
        }
    }

    #[test]
    fn a_text_that_was_cut_short_says_no_other_number() {
        let text = "gpufrac(CNT:50),shard:half:50(50/50,0/50)";
        let complete = text.find("(50/50").unwrap();
        for end in 0..text.len() {
            let expected = (end > complete).then_some(50);
            assert_eq!(shards(&text[..end]), expected, "{}", &text[..end]);
        }
    }
}
