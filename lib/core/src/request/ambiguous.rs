//! Texts that Slurm reads differently from [`parse`](super::parse).
//!
//! [`refuse_ambiguous`] refuses a user's text that has two readings. [`refuse_misread`] is for a text that slurmctld
//! counts as it is; it also refuses a text in which Slurm reads nothing or another number.
//!
//! Up to 23.02 Slurm looks for `gres:` anywhere in the rest of a text and takes the text behind it as the next item;
//! from 23.11 on it looks for `gres` and skips a `/` behind it. It ignores the text before. Of two counts for one name
//! and Type it takes the last (`_get_next_gres` in src/common/gres.c of 22.05, `slurm_get_next_tres` in
//! src/common/slurm_protocol_defs.c of 24.11). So a text can show one count to a reader of items and another to Slurm.

use super::error::RequestError;
use super::item::{GresForm, Kind};
use super::{counted, item, names_fraction, quoted};
use crate::mechanism::Mechanism;
use crate::pool::Pool;

/// Refuses a text about GPUs that a Slurm with this form could read in another way: an item with a mark inside or
/// with several marks, one name and Type twice, a name that only contains that of the fraction, characters that no
/// count has. Texts that name neither GPUs nor shares are not checked.
pub fn refuse_ambiguous(list: &str, form: GresForm) -> Result<(), RequestError> {
    if !is_about_gpus(list) {
        return Ok(());
    }
    let mut seen: Vec<(String, &str)> = Vec::new();
    for text in list.split(',') {
        let refused = |why| {
            let item = quoted(text);
            Err(RequestError::Ambiguous { item, why })
        };
        let marked = mark(text);
        if marked.is_none() && text.contains("gres") {
            return refused("`gres` stands inside of it");
        }
        let body = marked.map_or(text, |(_, body)| body);
        if !is_about_gpus(body) {
            continue;
        }
        // From 23.11 on Slurm takes the old mark for the new one.
        if form == GresForm::Colon && marked.is_some_and(|(found, _)| found == GresForm::Slash) {
            return refused("the mark of this Slurm is `gres:`");
        }
        if body.len() >= 5 && body.is_char_boundary(5) && is_mark(&body[..5]) {
            return refused("it has two marks");
        }
        // A wrong fraction has its own message.
        let kind = item(text)?.kind;
        // The one mechanism with another character. gpufrac rewrites the item, so that Slurm never reads it.
        let by_both = matches!(
            kind,
            Kind::Gpufrac {
                mechanism: Some(Mechanism::MigMps),
                ..
            }
        );
        let plain = if by_both {
            body.replacen(Mechanism::MigMps.name(), "", 1)
        } else {
            body.to_owned()
        };
        // As in the Types of AutoDetect: `a100_1g.5gb+me`. In front of a count it would be a sign.
        let is_in_type =
            matches!(kind, Kind::Gpu(_)) && !plain.contains(":+") && !plain.contains("=+");
        if !plain
            .bytes()
            .all(|byte| is_plain(byte) || byte == b'+' && is_in_type)
        {
            return refused("a name or a count has no such character");
        }
        let (name, type_name) = match &kind {
            // Slurm ignores items with a count of zero.
            Kind::Gpu(count) | Kind::Shard(count) if count.count == Some(0) => continue,
            Kind::Gpufrac { .. } => ("gpufrac", ""),
            Kind::Gpu(count) => ("gpu", count.type_name.unwrap_or("")),
            Kind::Shard(count) => ("shard", count.type_name.unwrap_or("")),
            Kind::Mps(_) | Kind::None | Kind::Other if names_fraction(body) => {
                return refused("there is no GRES of this name");
            }
            // GPUs of pools have no `mps`, so Slurm counts nothing of them for it.
            Kind::Mps(_) | Kind::None | Kind::Other => continue,
        };
        let key = (name.to_owned(), type_name);
        if seen.contains(&key) {
            return refused("the same name stands twice");
        }
        seen.push(key);
    }
    Ok(())
}

/// Refuses a text about GPUs that slurmctld counts as it is, if Slurm could count something else: everything that
/// [`refuse_ambiguous`] refuses, an item about GPUs without this Slurm's mark or in capital letters, an item at which
/// Slurm stops reading the list, counts and Types that Slurm reads differently, and a Type that Slurm takes for
/// another one.
pub fn refuse_misread(list: &str, form: GresForm) -> Result<(), RequestError> {
    refuse_ambiguous(list, form)?;
    if !is_about_gpus(list) {
        return Ok(());
    }
    let mut seen: Vec<(&str, u32)> = Vec::new();
    for text in list.split(',') {
        let refused = |why| {
            let item = quoted(text);
            Err(RequestError::Ambiguous { item, why })
        };
        let body = text.strip_prefix(form.prefix());
        if text.contains("gres") && !body.is_some_and(begins_with_letter) {
            return refused(match body {
                Some("") => "a comma stands at the beginning or the end, or two stand together",
                _ => "Slurm reads no further where no name follows its mark",
            });
        }
        let name = match item(text)?.kind {
            Kind::Gpufrac { .. } => "gpufrac",
            Kind::Gpu(_) => "gpu",
            Kind::Shard(_) => "shard",
            Kind::Mps(_) | Kind::None | Kind::Other => continue,
        };
        let Some(body) = body else {
            return refused(match form {
                GresForm::Colon => "the mark of this Slurm is `gres:`",
                GresForm::Slash => "the mark of this Slurm is `gres/`",
            });
        };
        let Some(rest) = body.strip_prefix(name) else {
            return refused("names of GRES are in small letters");
        };
        let Some(counted) = counted::read(rest, form) else {
            return refused("Slurm reads its Type or its count in another way");
        };
        if counted.count == 0 {
            continue;
        }
        if name == "gpufrac" && counted.type_name.is_some() {
            return refused("gpufrac has no Types");
        }
        let number = counted.type_name.map_or(0, counted::number);
        if let Some(type_name) = counted.type_name {
            let is_other = |known: &&str| *known != type_name && counted::number(known) == number;
            if number == 0 || Pool::TYPE_NAMES.iter().any(is_other) {
                return refused("Slurm takes its Type for another one");
            }
        }
        if seen.contains(&(name, number)) {
            return refused("the same name stands twice");
        }
        seen.push((name, number));
    }
    Ok(())
}

fn begins_with_letter(body: &str) -> bool {
    body.starts_with(|first: char| first.is_ascii_alphabetic())
}

/// Whether a text names GPUs or shares in any spelling.
fn is_about_gpus(text: &str) -> bool {
    let names = |name: &str| {
        let mut parts = text.as_bytes().windows(name.len());
        parts.any(|part| part.eq_ignore_ascii_case(name.as_bytes()))
    };
    names("gpu") || names("shard")
}

/// The mark of an item as Slurm writes it, and the text behind it.
fn mark(text: &str) -> Option<(GresForm, &str)> {
    let forms = [GresForm::Colon, GresForm::Slash];
    forms
        .into_iter()
        .find_map(|form| Some((form, text.strip_prefix(form.prefix())?)))
}

fn is_mark(text: &str) -> bool {
    ["gres:", "gres/"]
        .iter()
        .any(|mark| text.eq_ignore_ascii_case(mark))
}

/// The characters of names, Types and counts.
fn is_plain(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"_-.:=/".contains(&byte)
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOTH: [GresForm; 2] = [GresForm::Colon, GresForm::Slash];

    /// Promise (users): a GRES text that Slurm would read differently is refused; a job that has one is held.
    /// With `texts_that_slurm_and_gpufrac_read_alike_are_accepted`,
    /// `texts_that_slurm_counts_differently_are_refused_where_they_are_counted`,
    /// `texts_that_slurm_counts_unchanged_are_accepted`, `random_texts_are_read_as_this_slurm_reads_them_or_refused`,
    /// `a_text_that_slurm_reads_otherwise_holds_the_job`, `a_text_that_slurm_reads_otherwise_is_refused`.
    #[test]
    fn texts_that_slurm_reads_differently_are_refused() {
        for text in [
            // Slurm takes the last item, and finds a mark anywhere in the text.
            "gres/gpufrac:50,gres/shard:50,xgres/shard:1,xgres/gpufrac:1",
            "gres:gpufrac:50,gres:shard:50,xgres:shard:1,xgres:gpufrac:1",
            "gres/gpu:whole:1,gres/gpufrac:100,licensegres/gpu:whole:1",
            "gres/shard:50,gres/gpufrac:50,gres/shard:1",
            "gres/shard:50,shard:1",
            "gpu:1,GPU:2",
            "gres/gres/shard:1",
            "gres/Gres:shard:1",
            "xgres/shard:1,zgpufrac:1",
            "gres/shard:1,gres/zgpufrac:1",
            "gres/shard:+50",
            "gpufrac:mig+mps+mps:0.25",
            "gres/shard:mig+mps:5",
            "gres/shard: 50",
            "gres/gpu:1,gres/shard:50\n",
        ] {
            for form in BOTH {
                assert!(refuse_ambiguous(text, form).is_err(), "{text}");
            }
        }
        assert!(refuse_ambiguous("gres/shard:50", GresForm::Colon).is_err());
    }

    #[test]
    fn texts_that_slurm_counts_differently_are_refused_where_they_are_counted() {
        for text in [
            // No mark, the mark of another series, capital letters: Slurm counts nothing.
            "gpu:1",
            "gres:gpu:1,shard:5",
            "gres:GPU:1",
            // Slurm stops reading the list at these items.
            "gres:shard:3,gres:5,gres:gpufrac:13",
            "gres:shard:3,gres:,gres:gpufrac:13",
            // Names whose number collides: with that of `half`, and with that of no Type.
            "gres:shard:x063x063x:25,gres:gpufrac:25",
            // Counts and Types.
            "gres:shard:5mib",
            "gres:shard:1kb",
            "gres:gpu:::1",
            "gres:gpu::1",
            "gres:gpu:a:b:1",
            "gres:gpu:",
            "gres:gpu:5kb",
            "gres:gpu:99999999999999999999",
            "gres:gpu:mib",
            "gres:gpu:+5:1",
            "gres:gpu:a:+5",
            "gres:shard:18446744073709551615",
            "gres:shard:99999999999999999999",
            "gres:shard:18014398509481984p",
            "gres:shard:1,gres:gpufrac:mig:5",
        ] {
            let later = text.replace("gres:", "gres/");
            assert!(refuse_misread(text, GresForm::Colon).is_err(), "{text}");
            assert!(refuse_misread(&later, GresForm::Slash).is_err(), "{later}");
        }
        for (text, form) in [
            ("gres/gpu:1", GresForm::Colon),
            ("gres:gpu:1", GresForm::Slash),
            ("gres:gpu=1", GresForm::Colon),
            ("gres/gpu=1=2", GresForm::Slash),
            ("gres/gpu=a:2", GresForm::Slash),
        ] {
            assert!(refuse_misread(text, form).is_err(), "{text}");
        }
        let types = ["half", "x063x063x"].map(counted::number);
        assert_eq!(types[0], types[1]);
    }

    #[test]
    fn texts_that_slurm_counts_unchanged_are_accepted() {
        for text in [
            "",
            "gres:tmpdisk:5",
            "gres:5",
            "gres:none",
            "gres:gpu",
            "gres:gpu:1",
            "gres:gpu:h100",
            "gres:gpu:a100_3g.20gb:2",
            // Types of NVIDIA's products and of AutoDetect.
            "gres:gpu:2080ti:1",
            "gres:gpu:2080ti",
            "gres:gpu:4090:2",
            "gres:gpu:1g.5gb:1",
            "gres:gpu:nvidia_a100_1g.5gb+me:1",
            "gres:gpu:k:1",
            "gres:gpu:1k:1",
            "gres:gpu:whole:1,gres:gpufrac:100",
            "gres:shard:half:25,gres:gpufrac:25,gres:tmpdisk:1k",
            "gres:shard:0,gres:shard:2k",
            "gres:gpu:a:1,gres:gpu:b:1",
            "license:mygpu:1",
        ] {
            let later = text.replace("gres:", "gres/");
            assert_eq!(refuse_misread(text, GresForm::Colon), Ok(()), "{text}");
            assert_eq!(refuse_misread(&later, GresForm::Slash), Ok(()), "{later}");
        }
        assert_eq!(refuse_misread("gres/gpu:a=1", GresForm::Slash), Ok(()));
    }

    #[test]
    fn texts_that_slurm_and_gpufrac_read_alike_are_accepted() {
        for text in [
            "",
            "gpufrac:0.25",
            "gpufrac:mig:10G",
            "gpufrac:mig+mps:0.25",
            "gpu:0.25",
            "gres:gpufrac:25,gres:shard:25",
            "gres:gpu:h100:1,gres:gpufrac:100",
            "gres:gpu:a:1,gres:gpu:b:1",
            "gres:tmpdisk:5,gres:shard:mps:25,gres:gpufrac:25",
            "gres:myshard:2",
            "license/mygres:1",
            "cpu:2,gres:bandwidth:lustre:4",
            "gpu:1,mps:50,mps:50",
        ] {
            for form in BOTH {
                assert_eq!(refuse_ambiguous(text, form), Ok(()), "{text}");
            }
        }
        let today = "gres/gpufrac:25,gres/shard:25,license/a:1";
        assert_eq!(refuse_ambiguous(today, GresForm::Slash), Ok(()));
    }
}
