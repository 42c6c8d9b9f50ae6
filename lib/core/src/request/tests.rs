//! The grammar, item by item.

use proptest::prelude::*;

use super::*;
use crate::fraction::{Fraction, MemoryMib};

fn one(text: &str) -> Kind<'_> {
    let items = parse(text).unwrap();
    assert_eq!(items.len(), 1, "{text}");
    items[0].kind.clone()
}

fn fraction(text: &str) -> Kind<'static> {
    Kind::Gpufrac {
        mechanism: None,
        amount: Amount::Fraction(Fraction::parse(text).unwrap()),
    }
}

fn memory(mib: u64) -> Kind<'static> {
    Kind::Gpufrac {
        mechanism: None,
        amount: Amount::Memory(MemoryMib(mib)),
    }
}

#[test]
fn every_way_to_write_a_quarter() {
    for text in [
        "gpufrac:0.25",
        "gpufrac:.25",
        "gpufrac=0.25",
        "gres:gpufrac:0.25",
        "gres/gpufrac:0.25",
        "gres/gpufrac=0.25",
        "gres/gpufrac=.250000",
        // The form into which Slurm turns --gpus-per-node=gpufrac:0.25.
        "gres:gpu:gpufrac:0.25",
        "gres/gpu:gpufrac:0.25",
        // The form into which Slurm turns --gpus-per-node=0.25.
        "gres:gpu:0.25",
        "gpu=.25",
    ] {
        assert_eq!(one(text), fraction("1/4"), "{text}");
    }
    for text in [
        "gpufrac:mig:0.25",
        "gres/gpufrac:mig=0.25",
        "gres/gpu:gpufrac:mig:.25",
        "gres/gpu:mig:0.25",
    ] {
        let quarter = Amount::Fraction(Fraction::parse("1/4").unwrap());
        let expected = Kind::Gpufrac {
            mechanism: Some(Mechanism::Mig),
            amount: quarter,
        };
        assert_eq!(one(text), expected, "{text}");
    }
    assert_eq!(one("gpufrac:1"), fraction("1"));
    assert_eq!(one("gpufrac:1.0"), fraction("1"));
}

#[test]
fn a_whole_number_of_percent() {
    for (text, part) in [
        ("gpufrac:percent:25", "1/4"),
        ("gres/gpufrac:percent=1", "1/100"),
        ("gres:gpufrac:percent:100", "1"),
        ("gres:gpu:gpufrac:percent:025", "1/4"),
    ] {
        let expected = Kind::Gpufrac {
            mechanism: None,
            amount: Amount::Percent(Fraction::parse(part).unwrap()),
        };
        assert_eq!(one(text), expected, "{text}");
    }
    // A Type of devices.
    let count = Count {
        type_name: Some("percent"),
        count: Some(25),
    };
    assert_eq!(one("gpu:percent:25"), Kind::Gpu(count));
}

#[test]
fn memory_is_binary() {
    for (text, mib) in [
        ("10G", 10 * 1024),
        ("10g", 10 * 1024),
        ("10GB", 10 * 1024),
        ("10GiB", 10 * 1024),
        ("10Gi", 10 * 1024),
        ("512M", 512),
        ("1T", 1024 * 1024),
        ("2048K", 2),
        ("1K", 1),
    ] {
        assert_eq!(one(&format!("gpufrac:{text}")), memory(mib), "{text}");
    }
    for text in [
        "0G",
        "1.5G",
        "99999999999999999999G",
        "18446744073709551615T",
        ".G",
    ] {
        let error = parse(&format!("gpufrac:{text}")).unwrap_err();
        assert!(
            matches!(error, RequestError::Memory { .. }),
            "{text}: {error}"
        );
    }
}

#[test]
fn units_of_a_pair() {
    for (text, units) in [
        ("gpufrac:25", 25),
        ("gres/gpufrac=100", 100),
        ("gpufrac:2", 2),
    ] {
        let expected = Kind::Gpufrac {
            mechanism: None,
            amount: Amount::Integer(units),
        };
        assert_eq!(one(text), expected);
    }
}

#[test]
fn counts_as_slurm_reads_them() {
    let count = |type_name, count| Count { type_name, count };
    for (text, expected) in [
        ("shard", count(None, Some(1))),
        ("shard:25", count(None, Some(25))),
        ("shard=25", count(None, Some(25))),
        ("gres:shard:half:25", count(Some("half"), Some(25))),
        ("gres/shard:half=25", count(Some("half"), Some(25))),
        ("shard:half", count(Some("half"), Some(1))),
        ("shard:1K", count(None, Some(1024))),
        ("shard:2m", count(None, Some(2 << 20))),
        ("shard:1x", count(Some("1x"), Some(1))),
        ("shard:1g.5gb", count(Some("1g.5gb"), Some(1))),
        ("shard:1kb", count(None, None)),
        ("shard:1.5", count(None, None)),
        ("shard:99999999999999999999", count(None, None)),
        // More than 64 bits.
        ("shard:20000P", count(None, None)),
        ("SHARD:5", count(None, Some(5))),
        ("GRES:Shard:5", count(None, Some(5))),
        ("gres:gres/shard:5", count(None, Some(5))),
        ("shard:a:b:c", count(Some("a"), None)),
    ] {
        assert_eq!(one(text), Kind::Shard(expected), "{text}");
    }
    assert_eq!(one("gpu"), Kind::Gpu(count(None, Some(1))));
    assert_eq!(one("gpu:a100:2"), Kind::Gpu(count(Some("a100"), Some(2))));
    assert_eq!(one("gpu:1/2"), Kind::Gpu(count(None, None)));
    assert_eq!(one("gpu:0.5:1"), Kind::Gpu(count(Some("0.5"), Some(1))));
    assert_eq!(one("gpu:t4:0.5"), Kind::Gpu(count(Some("t4"), None)));
    assert_eq!(one("gpu:mps:1"), Kind::Gpu(count(Some("mps"), Some(1))));
    for (text, expected) in [
        ("mps", count(None, Some(1))),
        ("gres/mps=50", count(None, Some(50))),
        ("gres:mps:h100:50", count(Some("h100"), Some(50))),
        ("MPS:0", count(None, Some(0))),
    ] {
        assert_eq!(one(text), Kind::Mps(expected), "{text}");
    }
}

/// Promise (users): `--gpus-per-node=0.25` and `--gres=gpu:0.25` mean the same fraction.
/// With `options_that_count_per_node_mean_a_fraction_too`.
#[test]
fn a_part_of_gpu_is_a_fraction_and_can_be_spelled_out() {
    for (list, plain) in [
        ("gres:gpu:0.25", "gpufrac:0.25"),
        ("gres/gpu=.5,gres/tmpdisk=10", "gpufrac:.5,tmpdisk=10"),
        ("gpu:gpufrac:10G", "gpufrac:10G"),
        ("gpu:gpufrac:mps:0.3", "gpufrac:mps:0.3"),
        ("GPU:mps:0.3", "gpufrac:mps:0.3"),
        ("gpu:1.5", "gpufrac:1.5"),
        ("gpufrac:0.25", "gpufrac:0.25"),
    ] {
        assert!(names_fraction(list), "{list}");
        assert_eq!(spelled_out(list), plain);
    }
    for list in [
        "gpu",
        "gpu:1",
        "gpu:t4:2",
        "gpu:t4:0.5",
        "gpu:0.5:1",
        "x:0.5",
        "gpu_mem:0.5",
    ] {
        assert!(!names_fraction(list), "{list}");
        assert_eq!(spelled_out(list), list);
    }
}

#[test]
fn other_requests_are_left_unchanged() {
    for text in [
        "",
        "tmpdisk:10",
        "gpufraction:0.5",
        "gpu_mem:80",
        "license:x",
        "gres:",
        "cpu=2",
    ] {
        assert_eq!(one(text), Kind::Other, "{text}");
    }
    assert_eq!(one("gres:none"), Kind::None);
    assert_eq!(one("none"), Kind::None);
    let items = parse("gres:a:1,gres:gpufrac:0.5,,b").unwrap();
    let texts: Vec<&str> = items.iter().map(|item| item.text).collect();
    assert_eq!(texts, ["gres:a:1", "gres:gpufrac:0.5", "", "b"]);
    assert_eq!(items[1].form, Some(GresForm::Colon));
    assert_eq!(items[3].form, None);
}

#[test]
fn refusals_say_what_to_write() {
    for (text, message) in [
        (
            "gpufrac",
            "\"gpufrac\" does not say how much; write gpufrac:0.25",
        ),
        (
            "gpufrac:",
            "\"gpufrac:\" does not say how much; write gpufrac:0.25",
        ),
        (
            "gres/gpufrac=",
            "\"gpufrac=\" does not say how much; write gpufrac:0.25",
        ),
        (
            "gpufrac:mig",
            "\"gpufrac:mig\" does not say how much; write gpufrac:0.25",
        ),
        (
            "gpufrac:mig:",
            "\"gpufrac:mig:\" does not say how much; write gpufrac:0.25",
        ),
        (
            "gpufrac:0",
            "\"gpufrac:0\": zero is not a fraction of a GPU; write for example gpufrac:0.25",
        ),
        (
            "gpufrac:-0.5",
            "\"gpufrac:-0.5\": a fraction of a GPU cannot be negative; write for example gpufrac:0.25",
        ),
        (
            "gpufrac:1.5",
            "\"gpufrac:1.5\": a fraction is at most 1 GPU; write for example gpufrac:0.25",
        ),
        (
            "gpufrac:NaN",
            "\"gpufrac:NaN\": not a plain decimal; write for example gpufrac:0.25",
        ),
        (
            "gpufrac:1e-1",
            "\"gpufrac:1e-1\": not a plain decimal; write for example gpufrac:0.25",
        ),
        (
            "gpufrac:half",
            "\"gpufrac:half\": not a number; write for example gpufrac:0.25",
        ),
        (
            "gpufrac:1/4",
            "\"gpufrac:1/4\": write it as a decimal: gpufrac:0.25",
        ),
        (
            "gpufrac:25%",
            "\"gpufrac:25%\": write it as a decimal: gpufrac:0.25",
        ),
        (
            "gpufrac:h100:0.25",
            "\"gpufrac:h100:0.25\": unknown mechanism `h100`; the mechanisms are mig, mps, mig+mps, timeslice, hami; write gpufrac:0.25 or gpufrac:mig:0.25",
        ),
        (
            "gpufrac:0.25:2",
            "\"gpufrac:0.25:2\": a job gets one slice on each node, or one for each task (--tres-per-task), and no number of them; write gpufrac:0.25",
        ),
        (
            "gpufrac:0.25:mig",
            "\"gpufrac:0.25:mig\": the mechanism comes first; write gpufrac:mig:0.25",
        ),
        (
            "gpufrac:10G:mps",
            "\"gpufrac:10G:mps\": the mechanism comes first; write gpufrac:mps:10G",
        ),
        (
            "gpufrac:MIG:0.25",
            "\"gpufrac:MIG:0.25\": names of mechanisms are in small letters; write gpufrac:mig:0.25",
        ),
        (
            "gpufrac::0.25",
            "\"gpufrac::0.25\": a word is missing between the colons; write gpufrac:0.25",
        ),
        (
            "gpufrac:percent",
            "\"gpufrac:percent\" does not say how much; write gpufrac:0.25",
        ),
        (
            "gpufrac:percent:0",
            "\"gpufrac:percent:0\": zero is not a fraction of a GPU; write for example gpufrac:0.25",
        ),
        (
            "gpufrac:percent:101",
            "\"gpufrac:percent:101\": a fraction is at most 1 GPU; write for example gpufrac:0.25",
        ),
        (
            "gpufrac:percent:99999999999999999999",
            "\"gpufrac:percent:99999999999999999999\": a fraction is at most 1 GPU; write for example gpufrac:0.25",
        ),
        (
            "gpufrac:percent:0.25",
            "\"gpufrac:percent:0.25\": percent takes a whole number from 1 to 100; write for example gpufrac:percent:25 or gpufrac:0.25",
        ),
        (
            "gpufrac:mig:percent:25",
            "\"gpufrac:mig:percent:25\": percent takes no mechanism; write gpufrac:mig:0.25",
        ),
        (
            "gpufrac:percent:mps:200",
            "\"gpufrac:percent:mps:200\": percent takes no mechanism; write for example gpufrac:mps:0.25 (at most 1)",
        ),
        (
            "gpufrac:Percent:25",
            "\"gpufrac:Percent:25\": percent is in small letters; write gpufrac:percent:25",
        ),
        (
            "gpufrac:25:percent",
            "\"gpufrac:25:percent\": percent comes first; write gpufrac:percent:25",
        ),
        (
            "gpufrac:percent:25:1",
            "\"gpufrac:percent:25:1\" has too many parts; write gpufrac:0.25 or gpufrac:mig:0.25",
        ),
        (
            "gpufrac:mig:0.25:1",
            "\"gpufrac:mig:0.25:1\" has too many parts; write gpufrac:0.25 or gpufrac:mig:0.25",
        ),
        (
            "GpuFrac:0.25",
            "\"GpuFrac:0.25\": names of GRES are in small letters; write gpufrac:0.25",
        ),
        (
            "gpufrac:1.5G",
            "\"gpufrac:1.5G\" is not an amount of memory; write a whole number with K, M, G or T, such as gpufrac:10G",
        ),
        (
            "gpufrac:0.333333333333333333333333333333",
            "\"gpufrac:0.333333333333333333333333333333\": more than 6 digits after the point; 0.01 is the finest that counts; write for example gpufrac:0.25",
        ),
    ] {
        assert_eq!(parse(text).unwrap_err().to_string(), message);
    }
    let long = format!("gpufrac:{}", "x".repeat(500));
    assert!(parse(&long).unwrap_err().to_string().len() < 200);
    let control = parse("gpufrac:\u{1b}[31m").unwrap_err().to_string();
    assert!(!control.contains('\u{1b}'), "{control:?}");
}

/// Texts close to the grammar, so that the tests reach all branches.
pub(crate) fn near() -> impl Strategy<Value = String> {
    let word = prop_oneof![
        Just("gpufrac".to_owned()),
        Just("gres".to_owned()),
        Just("gpu".to_owned()),
        Just("shard".to_owned()),
        Just("mig".to_owned()),
        Just("mps".to_owned()),
        Just("percent".to_owned()),
        Just("whole".to_owned()),
        Just("half".to_owned()),
        Just("tmpdisk".to_owned()),
        "[0-9]{0,3}",
        "[01]?\\.[0-9]{0,3}",
        "[0-9]{1,3}[KMGTkmgt]",
        "[a-zA-Z0-9.%/+-]{0,6}",
    ];
    let separator = prop_oneof![Just(":"), Just("="), Just("/"), Just(","), Just("")];
    proptest::collection::vec((word, separator), 0..10)
        .prop_map(|parts| parts.into_iter().map(|(w, s)| w + s).collect())
}

proptest! {
    #[test]
    fn any_text_is_read_or_refused(text in "\\PC*") {
        let _ = parse(&text);
    }

    #[test]
    fn the_whole_text_is_read(text in near()) {
        if let Ok(items) = parse(&text) {
            let texts: Vec<&str> = items.iter().map(|item| item.text).collect();
            prop_assert_eq!(texts.join(","), text);
        }
    }
}
