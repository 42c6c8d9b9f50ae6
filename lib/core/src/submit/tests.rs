//! The decision: what users write, and what comes out.

use proptest::prelude::*;

use super::*;
use crate::count_name::CountName;
use crate::fraction::{Fraction, Units};
use crate::layout::MenuEntry;
use crate::mechanism::Mechanism;
use crate::nodes_gres::NodesGres;
use crate::request;
use crate::request::tests::near;
use crate::request::{Amount, GresForm, Kind};

mod burst;
mod mechanisms;
mod tasks;

const CONFIG: &str = r#"
version = 1
[pool.h100]
mechanism = "mig"
layout = "halves"
gpu = "H100-80"
partitions = ["gpu", "mixed", "ruled", "raw", "big"]
nodes = "gn[01-16]"
[pool.a100]
mechanism = "mig"
layout = "halves"
gpu = "A100-40"
menu = ["1/2", "1/4"]
partitions = ["old", "mixed"]
nodes = "an[01-16]"
[pool.seven]
mechanism = "mig"
layout = "slices"
gpu = "H100-80"
partitions = ["slices"]
nodes = "sn1"
[pool.full]
mechanism = "mig"
layout = "whole"
gpu = "H100-80"
partitions = ["big", "full"]
nodes = "wn1"
[partition.ruled]
min = 0.25
max = 0.25
default = 0.2
[partition.raw]
allow_raw = true
"#;

fn config() -> Config {
    Config::parse(CONFIG, "gpufrac.toml").unwrap()
}

fn job<'a>(partition: &'a str, tres: &'a str) -> JobRequest<'a> {
    JobRequest {
        partitions: Some(partition),
        tres_per_node: Some(tres),
        ..JobRequest::default()
    }
}

/// (text, units, note)
fn given(request: &JobRequest<'_>, occasion: Occasion) -> (String, u32, String) {
    match decide(shared_config(), request, occasion) {
        Ok(Verdict::Rewritten { text, entry, note }) => {
            assert_eq!(entry.mechanism, Some(Mechanism::Mig));
            assert!(!entry.per_task);
            (text, entry.units.0, note.unwrap_or_default())
        }
        other => panic!("{request:?}: {other:?}"),
    }
}

fn submit(partition: &str, tres: &str) -> (String, u32, String) {
    given(&job(partition, tres), Occasion::Submit)
}

#[test]
fn slurm_counts_by_the_name_of_the_file() {
    let mut config = config();
    config.count_name = "frac".parse().unwrap();
    let text = |tres: &str, partition: &str, occasion| {
        let mut request = job(partition, tres);
        request.form = GresForm::Slash;
        request.marked = true;
        match decide(&config, &request, occasion) {
            Ok(Verdict::Rewritten { text, .. }) => text,
            other => panic!("{tres}: {other:?}"),
        }
    };
    let quarter = "gres/frac:25,gres/shard:25";
    for tres in [
        "gres/gpufrac:0.25",
        "gres/gpu:0.25",
        // What a client with the same file wrote, and one whose file has no other name.
        quarter,
        "gres/gpufrac:25,gres/shard:25",
    ] {
        for occasion in [Occasion::Submit, Occasion::Modify, Occasion::Step] {
            assert_eq!(text(tres, "gpu", occasion), quarter, "{tres}");
        }
    }
    let whole = "gres/gpu:whole:1,gres/frac:100";
    assert_eq!(text("gres/gpufrac:1", "full", Occasion::Submit), whole);
    assert_eq!(text(whole, "full", Occasion::Submit), whole);
    // Names of others stay, and a count under both names is one too many.
    let beside = "gres/fractal:3,gres/gpufrac:0.25";
    let mut request = job("gpu", beside);
    request.form = GresForm::Slash;
    let refusal = decide(&config, &request, Occasion::Submit);
    assert!(
        matches!(refusal, Ok(Verdict::Rewritten { text, .. }) if text.starts_with("gres/fractal:3,gres/frac:25"))
    );
    let twice = job("gpu", "gpufrac:0.25,frac:25");
    assert!(decide(&config, &twice, Occasion::Submit).is_err());
}

fn refused(request: &JobRequest<'_>, occasion: Occasion) -> String {
    decide(shared_config(), request, occasion)
        .unwrap_err()
        .to_string()
}

fn refusal(partition: &str, tres: &str) -> String {
    refused(&job(partition, tres), Occasion::Submit)
}

fn untouched(request: &JobRequest<'_>, occasion: Occasion) {
    let verdict = decide(shared_config(), request, occasion);
    assert_eq!(verdict, Ok(Verdict::Untouched), "{request:?}");
}

#[test]
fn fractions_become_counts() {
    for (tres, rewritten, units) in [
        ("gres/gpufrac:0.25", "gres/gpufrac:25,gres/shard:25", 25),
        ("gres:gpufrac:.5", "gres/gpufrac:50,gres/shard:50", 50),
        ("gres/gpufrac=0.125", "gres/gpufrac:13,gres/shard:13", 13),
        ("gpufrac:mig:0.25", "gres/gpufrac:25,gres/shard:25", 25),
        ("gres/gpu:gpufrac:0.25", "gres/gpufrac:25,gres/shard:25", 25),
        ("gres:gpu:0.25", "gres/gpufrac:25,gres/shard:25", 25),
        ("gpufrac:percent:25", "gres/gpufrac:25,gres/shard:25", 25),
        (
            "gres:gpu:gpufrac:percent:50,x=1",
            "gres/gpufrac:50,gres/shard:50,x=1",
            50,
        ),
        ("gpu:mig:.5", "gres/gpufrac:50,gres/shard:50", 50),
        (
            "gres:tmpdisk:10,gres:gpufrac:0.5,gres:x=1",
            "gres:tmpdisk:10,gres/gpufrac:50,gres/shard:50,gres:x=1",
            50,
        ),
    ] {
        let expected = (rewritten.to_owned(), units, String::new());
        assert_eq!(submit("gpu", tres), expected, "{tres}");
        for occasion in [Occasion::Modify, Occasion::Step] {
            assert_eq!(given(&job("gpu", tres), occasion), expected, "{tres}");
        }
    }
    let colon = JobRequest {
        form: GresForm::Colon,
        ..job("gpu", "gpufrac:0.25")
    };
    assert_eq!(
        given(&colon, Occasion::Submit).0,
        "gres:gpufrac:25,gres:shard:25"
    );
}

#[test]
fn rounding_is_said() {
    for (tres, units, note) in [
        (
            "gpufrac:0.2",
            25,
            "gpufrac: rounded up from 0.2 to 0.25 (2g.20gb, 19.6 GiB)",
        ),
        (
            "gpufrac:0.01",
            13,
            "gpufrac: rounded up from 0.01 to 0.125 (1g.10gb, 9.7 GiB)",
        ),
        (
            "gpufrac:0.13",
            25,
            "gpufrac: rounded up from 0.13 to 0.25 (2g.20gb, 19.6 GiB)",
        ),
        (
            "gpufrac:10G",
            25,
            "gpufrac: rounded up from 10G to 0.25 (2g.20gb, 19.6 GiB)",
        ),
        (
            "gpufrac:mig:9G",
            13,
            "gpufrac: rounded up from 9G to 0.125 (1g.10gb, 9.7 GiB)",
        ),
        (
            "gpufrac:20G",
            50,
            "gpufrac: rounded up from 20G to 0.5 (4g.40gb, 39.5 GiB)",
        ),
    ] {
        let (_, got, said) = submit("gpu", tres);
        assert_eq!((got, said.as_str()), (units, note), "{tres}");
    }
    // A size that the menu prints is not rounded: 1/7 is shown as 0.143.
    assert_eq!(submit("slices", "gpufrac:0.143").1, 14);
    assert_eq!(submit("slices", "gpufrac:0.143").2, "");
    assert_eq!(
        submit("slices", "gpufrac:0.1").2,
        "gpufrac: rounded up from 0.1 to 0.143 (1g.10gb, 9.7 GiB)"
    );
}

#[test]
fn several_pools_give_the_costliest() {
    let (text, units, note) = submit("mixed", "gpufrac:0.125");
    assert_eq!(
        (text.as_str(), units),
        ("gres/gpufrac:25,gres/shard:25", 25)
    );
    assert_eq!(
        note,
        "gpufrac: rounded up from 0.125 to 0.25 (2g.10gb, 9.6 GiB), the least that all pools of \
         partition mixed have (h100, a100)"
    );
    // 10G of memory are a quarter of one GPU and half of the other.
    assert_eq!(submit("mixed", "gpufrac:10G").1, 50);
    assert_eq!(submit("gpu,old", "gpufrac:0.125").1, 25);
    // The resulting pair is right for both pools; another pair is not.
    assert_eq!(submit("mixed", "gpufrac:25,shard:25").1, 25);
    assert_eq!(
        refusal("mixed", "gpufrac:13,shard:13"),
        "gpufrac: 13 units are not a size of partition mixed; write --gres=gpufrac:0.25 or --gres=gpufrac:0.5"
    );
    assert_eq!(
        refusal("gpu,slices", "gpufrac:0.125"),
        "gpufrac: the pools of partitions gpu, slices (h100, seven) have no common size for 0.125; \
         name a single partition"
    );
    // A partition without a pool is ignored.
    assert_eq!(submit("cpu,gpu", "gpufrac:0.125").1, 13);
}

#[test]
fn half_a_gpu_does_not_become_a_whole_one() {
    // The pool h100 has halves, seven has none, full would give a whole GPU.
    let message = refusal("gpu,slices,full", "gpufrac:0.5");
    assert!(message.contains("no common size for 0.5"), "{message}");
    // A request that no part of a GPU can answer gets a whole GPU.
    assert_eq!(submit("gpu,slices,full", "gpufrac:0.75").1, 100);
}

#[test]
fn whole_gpus() {
    let whole = "gres/gpu:whole:1,gres/gpufrac:100";
    for partition in ["full", "big"] {
        assert_eq!(submit(partition, "gpufrac:1").0, whole);
        assert_eq!(
            submit(partition, whole),
            (whole.to_owned(), 100, String::new())
        );
    }
    let (text, units, note) = submit("big", "gpufrac:0.75");
    assert_eq!((text.as_str(), units), (whole, 100));
    assert_eq!(
        note,
        "gpufrac: rounded up from 0.75 to 1 (7g.80gb, 79.2 GiB)"
    );
    // Halves are still available in partition gpu.
    assert_eq!(
        submit("big", "gpufrac:0.5").0,
        "gres/gpufrac:50,gres/shard:50"
    );
    assert_eq!(
        refusal("gpu", "gpufrac:1"),
        "gpufrac: partition gpu offers no whole GPU; write --gres=gpufrac:0.125 or \
         --gres=gpufrac:0.25 or --gres=gpufrac:0.5; for a whole GPU --gres=gpufrac:1 \
         --partition=big or --partition=full"
    );
    assert_eq!(
        refusal("old", "gpufrac:0.75"),
        "gpufrac: 0.75 is more than partition old gives of one GPU; write --gres=gpufrac:0.25 or \
         --gres=gpufrac:0.5; for a whole GPU --gres=gpufrac:1 --partition=big or --partition=full"
    );
    for pair in [
        "gpufrac:100,shard:100",
        "gpufrac:50,gpu:whole:1",
        "gpufrac:100,gpu:whole:2",
    ] {
        refusal("big", pair);
    }
}

#[test]
fn several_gpus_by_an_integer() {
    for (partition, tres, gpus) in [
        ("full", "gres/gpufrac:4", 4),
        ("big", "gpufrac:2", 2),
        ("full", "gres/gpu:gpufrac:8", 8),
        ("full", "gpufrac:mig:16", 16),
        ("full", "gpufrac:04", 4),
    ] {
        let pair = format!("gres/gpu:whole:{gpus},gres/gpufrac:{}", gpus * 100);
        let expected = (pair.clone(), gpus * 100, String::new());
        for occasion in [Occasion::Submit, Occasion::Modify, Occasion::Step] {
            assert_eq!(given(&job(partition, tres), occasion), expected, "{tres}");
            // Both plugins accept what one of them wrote.
            assert_eq!(given(&job(partition, &pair), occasion), expected, "{pair}");
        }
        // Every Slurm counts GPUs correctly that are never shared.
        let marked = tres.replace("gres/", "gres:");
        let colon = JobRequest {
            form: GresForm::Colon,
            ..job(partition, &marked)
        };
        let written = pair.replace('/', ":");
        assert_eq!(given(&colon, Occasion::Submit).0, written);
    }
    assert_eq!(
        refusal("gpu", "gpufrac:4"),
        "gpufrac: partition gpu offers no whole GPU; write --gres=gpufrac:0.125 or \
         --gres=gpufrac:0.25 or --gres=gpufrac:0.5; for a whole GPU --gres=gpufrac:1 \
         --partition=big or --partition=full"
    );
    assert_eq!(
        refusal("full", "gpufrac:1.5"),
        "gpufrac: \"gpufrac:1.5\": a fraction is at most 1 GPU; write for example gpufrac:0.25"
    );
    assert_eq!(
        refusal("full", "gpufrac:17"),
        "gpufrac: \"gpufrac:17\" is more whole GPUs than a job can have of a node; write --gres=gpufrac:0.17 for 17% of a GPU"
    );
    for number in ["250", "99999999999999999999999999999"] {
        let message = refusal("full", &format!("gpufrac:{number}"));
        assert!(
            message.contains("write at most --gres=gpufrac:16, with --nodes"),
            "{message}"
        );
    }
    assert_eq!(
        refusal("full", "gpu:4"),
        "gpufrac: GPUs of partition full are shared, and gpu cannot be asked for by itself; write --gres=gpufrac:1; for 4 whole GPUs write --gres=gpufrac:4"
    );
    untouched(&job("raw", "gpu:4"), Occasion::Submit);
    for forged in [
        "gpufrac:100,gpu:whole:4",
        "gpufrac:400,gpu:whole:1",
        "gpufrac:400,gpu:4",
        "gpufrac:400,gpu:half:4",
        "gpufrac:400,shard:whole:400",
        "gpufrac:400,gpu:whole:4,gpu:whole:4",
        "gpufrac:mig:400,gpu:whole:4",
        "gpufrac:1700,gpu:whole:17",
        "gpufrac:4,gpu:whole:4",
        "gpufrac:4,gpufrac:4",
        "gpufrac:4294967300,gpu:whole:42949673",
    ] {
        refusal("full", forged);
    }
}

fn decided(config: &Config, request: &JobRequest<'_>) -> Result<String, String> {
    match decide(config, request, Occasion::Submit) {
        Ok(Verdict::Rewritten { text, .. }) => Ok(text),
        Ok(Verdict::Untouched) => panic!("{request:?}"),
        Err(refusal) => Err(refusal.to_string()),
    }
}

fn nodes_gres(slurm_conf: &str) -> NodesGres {
    NodesGres::of_slurm_conf(slurm_conf, &CountName::default(), &|_| None).unwrap()
}

/// slurmctld's plugin knows the nodes.
#[test]
fn several_gpus_are_limited_by_the_nodes_of_slurm_conf() {
    let config = Config::parse(
        "version = 1\n[pool.p]\nmechanism = \"mps\"\ntenancy = \"private\"\ngpu = \"H100-80\"\npartitions = [\"gpu\"]\nnodes = \"n[1-9]\"\n",
        "test",
    );
    let config = config.unwrap();
    let with = |nodes: &str, tres: &str, form: GresForm, exclusive| {
        let nodes = nodes_gres(nodes);
        let tres = format!("{}{tres}", form.prefix());
        let request = JobRequest {
            form,
            marked: true,
            exclusive,
            nodes: Some(&nodes),
            ..job("gpu", &tres)
        };
        decided(&config, &request)
    };
    let four = "NodeName=n1 Gres=gpu:mps:4,shard:mps:400,gpufrac:400\n";
    let eight = "NodeName=n2 Gres=gpu:mps:8,shard:mps:800,gpufrac:800\n";
    // Another pool has GPUs of the node, too.
    let more = "NodeName=n3 Gres=gpu:mps:4,gpu:half:8,shard:mps:400,shard:half:400,gpufrac:800\n";
    let both = format!("{four}{eight}");
    for form in [GresForm::Slash, GresForm::Colon] {
        for (nodes, gpus, most) in [(four, 5, 4), (eight, 9, 8), (&both, 16, 8)] {
            let said = with(nodes, &format!("gpufrac:{gpus}"), form, false).unwrap_err();
            let reason = format!(
                "gpufrac: \"gpufrac:{gpus}\" is more whole GPUs than a job can have of a node; write at most --gres=gpufrac:{most}, with --nodes"
            );
            assert!(said.starts_with(&reason), "{said}");
            let pair = form.prefix().to_owned();
            let pair = format!("gpu:mps:{gpus},{pair}gpufrac:{gpus}00");
            assert_eq!(with(nodes, &pair, form, false), Err(said));
        }
    }
    // Before 23.11 only a job that leaves no unit of its nodes to others is counted correctly.
    let old = |nodes, gpus, exclusive| {
        with(
            nodes,
            &format!("gpufrac:{gpus}"),
            GresForm::Colon,
            exclusive,
        )
    };
    for (nodes, gpus) in [(four, 4), (eight, 8), (&both, 8)] {
        let counted = Ok(format!("gres:gpu:mps:{gpus},gres:gpufrac:{gpus}00"));
        assert_eq!(old(nodes, gpus, false), counted);
        let pair = format!("gpu:mps:{gpus},gres:gpufrac:{gpus}00");
        assert_eq!(with(nodes, &pair, GresForm::Colon, false), counted);
    }
    for (nodes, gpus, all) in [
        (four, 2, Some(4)),
        (&both, 4, Some(8)),
        (more, 4, None),
        (&format!("{more}{four}"), 4, None),
    ] {
        let said = old(nodes, gpus, false).unwrap_err();
        assert!(
            said.contains("write --gres=gpufrac:1, on several nodes with --nodes"),
            "{said}"
        );
        let way = all.map(|all| format!("or --gres=gpufrac:{all} for all GPUs of a node"));
        assert_eq!(
            way.is_some(),
            said.contains(" for all GPUs of a node"),
            "{said}"
        );
        assert!(said.ends_with(&way.unwrap_or_default()), "{said}");
        // Slurm starts it only where nobody else is.
        assert!(old(nodes, gpus, true).is_ok());
        assert!(with(nodes, &format!("gpufrac:{gpus}"), GresForm::Slash, false).is_ok());
    }
}

/// `gpus` of a pool gives the number of its GPUs on a node.
#[test]
fn a_node_has_no_more_gpus_than_its_pool_names() {
    let text = |more: &str| {
        format!(
            "version = 1\n[pool.p]\nmechanism = \"mig\"\nlayout = \"uniform\"\nmenu = [\"1/4\"]\ngpu = \"H100-80\"\n\
             partitions = [\"gpu\"]\nnodes = \"n1\"\ngpus = [0, 1, 2, 3]\n\
             [pool.w]\nmechanism = \"mig\"\nlayout = \"whole\"\ngpu = \"H100-80\"\npartitions = [\"whole\"]\nnodes = \"w1\"\n{more}"
        )
    };
    let config = Config::parse(&text("gpus = [0, 1]\n"), "test").unwrap();
    let decided = |partition: &str, tres: &str, form: GresForm| {
        let tres = format!("{}{tres}", form.prefix());
        let request = JobRequest {
            form,
            marked: true,
            ..job(partition, &tres)
        };
        decided(&config, &request)
    };
    assert_eq!(
        decided("gpu", "gpufrac:4", GresForm::Slash).unwrap(),
        "gres/gpu:uniform:4,gres/gpufrac:400"
    );
    assert_eq!(
        decided("gpu", "gpufrac:8", GresForm::Slash).unwrap_err(),
        "gpufrac: \"gpufrac:8\" is more whole GPUs than a job can have of a node; write at most --gres=gpufrac:4, with --nodes for several nodes, or --gres=gpufrac:0.08 for 8% of a GPU"
    );
    // The Type with enough GPUs.
    assert_eq!(
        decided("gpu,whole", "gpufrac:2", GresForm::Slash).unwrap(),
        "gres/gpu:whole:2,gres/gpufrac:200"
    );
    assert_eq!(
        decided("gpu,whole", "gpufrac:3", GresForm::Slash).unwrap(),
        "gres/gpu:uniform:3,gres/gpufrac:300"
    );
    // Slurm before 23.11 gives a GPU whole while jobs have pieces of it.
    assert_eq!(
        decided("gpu", "gpufrac:2", GresForm::Colon).unwrap_err(),
        "gpufrac: this Slurm (before 23.11) cannot count several whole GPUs of partition gpu, whose GPUs are shared too: \
         it gives a GPU whole while jobs still have parts of it; write --gres=gpufrac:1, on several nodes with --nodes, \
         or use GPUs that are never shared: --partition=whole"
    );
    assert_eq!(
        decided("gpu", "gpufrac:1", GresForm::Colon).unwrap(),
        "gres:gpufrac:100,gres:shard:uniform:100"
    );
    assert_eq!(
        decided("gpu,whole", "gpufrac:2", GresForm::Colon).unwrap(),
        "gres:gpu:whole:2,gres:gpufrac:200"
    );
}

#[test]
fn pairs_are_left_as_they_are() {
    for pair in [
        "gres/gpufrac:25,gres/shard:25",
        "gres:gpufrac:25,gres:shard:25",
        "gres/gpufrac=25,gres/shard=25",
        "gres/shard:25,gres/tmpdisk:1,gres/gpufrac:25",
        "gres:gpufrac:25,gres:shard:half:25",
    ] {
        assert_eq!(submit("gpu", pair), (pair.to_owned(), 25, String::new()));
    }
    assert_eq!(
        refusal("gpu", "gpufrac:30,shard:30"),
        "gpufrac: 30 units are not a size of partition gpu; write --gres=gpufrac:0.125 or \
         --gres=gpufrac:0.25 or --gres=gpufrac:0.5"
    );
    for pair in [
        "gpufrac:25,shard:50",
        "gpufrac:25,shard:whole:25",
        "gpufrac:25,shard:slices:25",
        "gpufrac:25,shard:25,shard:25",
        "gpufrac:mig:25,shard:25",
    ] {
        assert_eq!(
            refusal("gpu", pair),
            "gpufrac: GPUs of partition gpu are shared, and shard cannot be asked for by itself \
             (the counts of gpufrac and shard do not belong together); write --gres=gpufrac:0.125 or \
             --gres=gpufrac:0.25 or --gres=gpufrac:0.5; for a whole GPU --gres=gpufrac:1 --partition=big or \
             --partition=full",
            "{pair}"
        );
    }
}

#[test]
fn contradictions_are_refused() {
    for (tres, message) in [
        (
            "gpufrac:0.25,gpufrac:0.25",
            "gpufrac: two fractions in one request; a job gets one slice on each node: write a single --gres=gpufrac:0.25",
        ),
        (
            "gpufrac:0.25,gpu:1",
            "gpufrac: gpufrac and gpu cannot be in one request; leave gpu out, and write only --gres=gpufrac:0.25",
        ),
        (
            "gpufrac:25,shard:25,gpu:1",
            "gpufrac: gpufrac and gpu cannot be in one request; leave gpu out, and write only --gres=gpufrac:0.25",
        ),
        (
            "gpufrac:0.25,shard:25",
            "gpufrac: leave shard out of the request; write only --gres=gpufrac:0.25",
        ),
        (
            "gpufrac:25",
            "gpufrac: \"gpufrac:25\" is more whole GPUs than a job can have of a node; write --gres=gpufrac:0.25 for 25% of a GPU",
        ),
        (
            "gpufrac:250",
            "gpufrac: partition gpu offers no whole GPU; write --gres=gpufrac:0.125 or --gres=gpufrac:0.25 or --gres=gpufrac:0.5; for a whole GPU --gres=gpufrac:1 --partition=big or --partition=full",
        ),
        (
            "gpufrac:99999999999999999999999999999",
            "gpufrac: partition gpu offers no whole GPU; write --gres=gpufrac:0.125 or --gres=gpufrac:0.25 or --gres=gpufrac:0.5; for a whole GPU --gres=gpufrac:1 --partition=big or --partition=full",
        ),
        (
            "gpufrac:timeslice:0.25",
            "gpufrac: partition gpu has no fractions by timeslice, only by mig; write --gres=gpufrac:0.25",
        ),
        (
            "gpufrac:none",
            "gpufrac: \"gpufrac:none\": not a number; write for example gpufrac:0.25",
        ),
        (
            "gpufrac:100G",
            "gpufrac: 100G is more than partition gpu gives of one GPU; its largest size is 0.5 (4g.40gb, 39.5 GiB)",
        ),
        (
            "gpufrac:60G",
            "gpufrac: 60G is more than partition gpu gives of one GPU; its largest size is 0.5 (4g.40gb, 39.5 GiB); use --partition=big or --partition=full",
        ),
    ] {
        assert_eq!(refusal("gpu", tres), message);
    }
}

#[test]
fn options_that_do_not_go_with_a_fraction() {
    let with = |change: fn(&mut JobRequest<'static>)| {
        let mut request = job("gpu", "gpufrac:0.25");
        change(&mut request);
        refused(&request, Occasion::Submit)
    };
    for (option, message) in [
        (
            "--cpus-per-gpu",
            with(|r| r.cpus_per_tres = Some("gres/gpu:4")),
        ),
        ("--mem-per-gpu", with(|r| r.mem_per_tres = Some("gpu:1024"))),
    ] {
        assert_eq!(
            message,
            format!(
                "gpufrac: gpufrac cannot be combined with {option} (Slurm refuses it for shares of GPUs); \
                 leave it out, and use --cpus-per-task or --mem"
            )
        );
    }
    assert!(
        with(|r| r.tres_freq = Some("gpu:high")).ends_with("shares of GPUs); leave it out"),
        "memory is no cure for a frequency"
    );
    assert_eq!(
        with(|r| r.tres_per_job = Some("gres:gpu:1")),
        "gpufrac: gpufrac cannot be combined with --gpus; write only --gres=gpufrac:0.25, without SBATCH_GPUS, SALLOC_GPUS and SLURM_GPUS in the environment"
    );
    let half = JobRequest {
        tres_per_socket: Some("gres:gpu:1"),
        ..job("gpu", "gpufrac:0.5")
    };
    let said = refused(&half, Occasion::Submit);
    assert!(said.ends_with("write only --gres=gpufrac:0.5"), "{said}");
    for (option, request) in [
        (
            "--gpus",
            JobRequest {
                tres_per_job: Some("gres:gpu:gpufrac:0.25"),
                ..job("gpu", "")
            },
        ),
        (
            "--gpus",
            JobRequest {
                tres_per_job: Some("gres:gpu:0.25"),
                ..job("gpu", "")
            },
        ),
        (
            "--gpus",
            JobRequest {
                tres_per_job: Some("gres/gpufrac:25,gres/shard:25"),
                ..job("gpu", "")
            },
        ),
        (
            "--gpus-per-socket",
            JobRequest {
                tres_per_socket: Some("gres:gpu:gpufrac:0.25"),
                ..job("gpu", "")
            },
        ),
    ] {
        assert_eq!(
            refused(&request, Occasion::Submit),
            format!(
                "gpufrac: a fraction is given per node, and {option} does not count per node; write --gres=gpufrac:0.25"
            )
        );
    }
}

#[test]
fn a_reservation_may_have_a_partition_of_its_own() {
    let config = Config::parse(
        "version = 1\n[pool.halves]\nmechanism = \"mig\"\nlayout = \"halves\"\ngpu = \"H100-80\"\n\
         partitions = [\"gpu\"]\nnodes = \"n1\"\n[partition.gpu]\ndefault = 0.5\n",
        "gpufrac.toml",
    );
    let config = config.unwrap();
    let decided = |default_partition, partitions, tres| {
        let request = JobRequest {
            partitions,
            default_partition: Some(default_partition),
            reserved: true,
            tres_per_node: tres,
            ..JobRequest::default()
        };
        match decide(&config, &request, Occasion::Submit) {
            Ok(Verdict::Rewritten { entry, .. }) => Ok(Some(entry.units.0)),
            Ok(Verdict::Untouched) => Ok(None),
            Err(refusal) => Err(refusal.to_string()),
        }
    };
    let quarter = Some("gpufrac:0.25");
    assert_eq!(decided("cpu", None, quarter), Ok(Some(25)));
    assert_eq!(decided("gpu", None, quarter), Ok(Some(25)));
    decided("gpu", Some("cpu"), quarter).unwrap_err();
    assert_eq!(decided("gpu", None, None), Ok(None));
    assert_eq!(decided("gpu", Some(""), None), Ok(None));
    assert_eq!(decided("cpu", Some("gpu"), None), Ok(Some(50)));
}

#[test]
fn a_step_cannot_have_more_than_its_job() {
    let hint = |own, tres| match decide(shared_config(), &job("gpu", tres), Occasion::Step) {
        Ok(Verdict::Rewritten { entry, .. }) => beyond_job(own, &entry, GresForm::Slash),
        other => panic!("{other:?}"),
    };
    assert_eq!(
        hint("0.25", "gpufrac:0.5").unwrap(),
        "gpufrac: the job has 0.25 of a GPU on each of its nodes, and a step can have no more of it; \
         write at most --gres=gpufrac:0.25, or leave --gres out for all of it"
    );
    for own in ["1", "4"] {
        let whole = hint(own, "gpufrac:0.5").unwrap();
        assert!(whole.contains("leave --gres out"), "{whole}");
    }
    let several = |own, tres: &str, form| {
        let step = JobRequest {
            form,
            ..job("full", tres)
        };
        match decide(shared_config(), &step, Occasion::Step) {
            Ok(Verdict::Rewritten { entry, .. }) => beyond_job(own, &entry, form),
            other => panic!("{other:?}"),
        }
    };
    for form in [GresForm::Slash, GresForm::Colon] {
        assert_eq!(several("4", "gpufrac:4", form), None);
        assert_eq!(several("4", "gpufrac:1", form), None);
        let more = several("4", "gpufrac:5", form).unwrap();
        assert!(
            more.contains("the job has 4 GPUs") && more.contains("at most --gres=gpufrac:4"),
            "{more}"
        );
    }
    for (own, tres) in [
        ("0.25", "gpufrac:0.25"),
        ("0.125", "gpufrac:0.125"),
        ("0.5", "gpufrac:0.25"),
        ("", "gpufrac:0.5"),
        ("x", "gpufrac:0.5"),
    ] {
        assert_eq!(hint(own, tres), None, "{own} {tres}");
    }
    // A seventh is shown as 0.143, and costs 14 units.
    let seventh = job("slices", "gpufrac:0.143");
    match decide(shared_config(), &seventh, Occasion::Step) {
        Ok(Verdict::Rewritten { entry, .. }) => {
            assert_eq!(beyond_job("0.143", &entry, GresForm::Slash), None)
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn raw_requests_in_partitions_with_pools() {
    for tres in [
        "gres/gpu:1",
        "gres:gpu",
        "gres/shard:25",
        "gpu:whole:1",
        "SHARD:5",
        "gpu:1/4",
        "mps",
        "gres:mps:50",
        "gres/mps:50",
        "gres/mps=50",
        "mps:h100:50",
        "MPS:50",
        "tmpdisk:1,mps:50",
    ] {
        let message = refusal("gpu", tres);
        assert!(
            message.starts_with("gpufrac: GPUs of partition gpu are shared, and "),
            "{message}"
        );
        refusal("raw,gpu", tres);
        untouched(&job("raw", tres), Occasion::Submit);
        untouched(&job("cpu", tres), Occasion::Submit);
        untouched(&job("gpu", tres), Occasion::Step);
        refused(&job("gpu", tres), Occasion::Modify);
        // The partition of the job is not known and may have pools.
        let modify = JobRequest {
            partitions: None,
            ..job("", tres)
        };
        assert!(refused(&modify, Occasion::Modify).contains("name this partition"));
        // The client leaves the decision to the controller.
        untouched(&modify, Occasion::Submit);
    }
    for options in [
        JobRequest {
            tres_per_job: Some("gres:gpu:2"),
            ..job("gpu", "")
        },
        JobRequest {
            tres_per_socket: Some("gres:gpu:1"),
            ..job("gpu", "tmpdisk:1")
        },
        JobRequest {
            tres_per_task: Some("cpu=2,gres/shard=5"),
            ..job("gpu", "")
        },
        JobRequest {
            tres_per_job: Some("gres/mps=50"),
            ..job("gpu", "")
        },
        JobRequest {
            tres_per_socket: Some("gres:mps:50"),
            ..job("gpu", "tmpdisk:1")
        },
        JobRequest {
            tres_per_task: Some("cpu=2,gres/mps=5"),
            ..job("gpu", "")
        },
    ] {
        assert!(refused(&options, Occasion::Submit).contains("cannot be asked for by itself"));
    }
    for tres in ["gpu:1/4", "gpu:25%", "gpu:0.25:1"] {
        let message = refusal("gpu", tres);
        assert!(
            message.contains("(Slurm counts gpu in whole numbers)"),
            "{message}"
        );
    }
    untouched(&job("raw", "gpufrac:25,shard:50"), Occasion::Submit);
}

#[test]
fn a_percentage_is_the_fraction() {
    let whole = submit("full", "gpufrac:percent:100");
    assert_eq!(whole, submit("full", "gpufrac:1"));
    assert_eq!(
        submit("gpu", "gpufrac:percent:20").2,
        "gpufrac: rounded up from 0.2 to 0.25 (2g.20gb, 19.6 GiB)"
    );
    // Messages have the fraction, because a bare number would be one of GPUs.
    for (percentage, fraction) in [
        ("gpufrac:percent:75", "gpufrac:0.75"),
        ("gpufrac:percent:100", "gpufrac:1.0"),
        ("gpufrac:percent:25,shard:25", "gpufrac:0.25,shard:25"),
        ("gpufrac:percent:25,gpu:1", "gpufrac:0.25,gpu:1"),
        ("gpufrac:percent:25,mps:50", "gpufrac:0.25,mps:50"),
        (
            "gpufrac:percent:25,gpufrac:0.25",
            "gpufrac:0.25,gpufrac:0.25",
        ),
    ] {
        assert_eq!(refusal("gpu", percentage), refusal("gpu", fraction));
    }
    let with_gpus = |tres| {
        let request = JobRequest {
            tres_per_job: Some("gres/gpu:1"),
            ..job("gpu", tres)
        };
        refused(&request, Occasion::Submit)
    };
    assert_eq!(with_gpus("gpufrac:percent:25"), with_gpus("gpufrac:0.25"));
}

#[test]
fn mps_of_slurm_is_not_the_mechanism_of_this_name() {
    let message = refusal("gpu", "gres/mps:50");
    assert!(
        message.contains("mps cannot be asked for by itself; write --gres=gpufrac:0.125 or "),
        "{message}"
    );
    for (tres, amount) in [
        ("gpufrac:0.25,mps:50", "0.25"),
        ("gres:mps:h100:50,gres:gpufrac:10G", "10G"),
        ("gpufrac:25,shard:25,mps", "0.25"),
    ] {
        assert_eq!(
            refusal("gpu", tres),
            format!("gpufrac: leave mps out of the request; write only --gres=gpufrac:{amount}")
        );
    }
    // Nothing is asked for.
    untouched(&job("gpu", "mps:0"), Occasion::Submit);
    assert_eq!(submit("gpu", "gpufrac:0.25,gres/mps:0").1, 25);
    // The mechanism, and Types.
    assert!(refusal("gpu", "gpufrac:mps:0.25").contains("has no fractions by mps"));
    assert!(refusal("gpu", "shard:mps:25").contains("shard cannot be asked for by itself"));
    untouched(&job("gpu", "gpu:mps:1"), Occasion::Submit);
}

#[test]
fn advice_is_what_can_be_had_there() {
    let small = Config::parse(
        "version = 1\n[pool.halves]\nmechanism = \"mig\"\nlayout = \"halves\"\ngpu = \"H100-80\"\n\
         partitions = [\"gpu\", \"gpuu\"]\nnodes = \"n1\"\n[partition.gpu]\nmax = 0.125\n",
        "gpufrac.toml",
    );
    let small = small.unwrap();
    let refusal_of = |request: &JobRequest<'_>| decide(&small, request, Occasion::Submit);
    let message = |request: &JobRequest<'_>| refusal_of(request).unwrap_err().to_string();
    // No pool lends a whole GPU, and the rules do not allow all sizes of the menu.
    assert_eq!(
        message(&job("gpu", "gpu:1")),
        "gpufrac: GPUs of partition gpu are shared, and gpu cannot be asked for by itself; write --gres=gpufrac:0.125"
    );
    assert!(!refusal("gpu", "gpufrac:0.25,gpu:1").contains("gpufrac:1"));
    // A partition that lends whole GPUs has another message.
    let message_of_big = refusal("big", "gpu:1");
    assert!(
        message_of_big.ends_with("or --gres=gpufrac:0.5 or --gres=gpufrac:1"),
        "{message_of_big}"
    );

    // A partition that Slurm does not have is not recommended.
    let where_slurm_has = |exists: &dyn Fn(&str) -> bool| {
        message(&JobRequest {
            existing: Some(Existing(exists)),
            ..job("cpu", "gpufrac:0.25")
        })
    };
    assert_eq!(
        where_slurm_has(&|name| name != "gpuu"),
        "gpufrac: partition \"cpu\" has no fractions of GPUs; use --partition=gpu"
    );
    assert_eq!(
        where_slurm_has(&|_| false),
        "gpufrac: partition \"cpu\" has no fractions of GPUs; no other partition of this cluster has any: \
         ask the admin for the pools of gpufrac.toml"
    );
    let with_none = message(&job("gpu", "gpufrac:0.125,none"));
    assert!(with_none.contains("leave none out"), "{with_none}");
}

#[test]
fn a_type_that_nothing_in_the_cluster_has_is_refused_where_gpus_are_shared() {
    let types =
        nodes_gres("Gres=gpu:half:16\nGres=gpu:slices:8\nGres=gpu:whole:8\nGres=gpu:t4:1\n");
    let with = |request: JobRequest<'static>, nodes: &NodesGres| {
        let request = JobRequest {
            nodes: Some(nodes),
            ..request
        };
        decide(shared_config(), &request, Occasion::Submit).map_err(|refusal| refusal.to_string())
    };
    let option = JobRequest {
        tres_per_job: Some("gres/gpu:h100:1"),
        ..job("gpu", "")
    };
    for request in [
        job("gpu", "gpu:h100:1"),
        job("gpu", "gres:tmpdisk:1,gres:gpu:h100"),
        job("gpu", "gpu:2g.20gb:1"),
        option,
    ] {
        assert_eq!(
            with(request, &types)
                .unwrap_err()
                .replace("2g.20gb", "h100"),
            "gpufrac: no GPU of this cluster has the Type \"h100\", and those of partition gpu are shared; \
             write --gres=gpufrac:0.125 or --gres=gpufrac:0.25 or --gres=gpufrac:0.5; \
             for a whole GPU --gres=gpufrac:1 --partition=big or --partition=full"
        );
    }
    for request in [
        // Slurm gives these GPUs itself; upper and lower case are the same.
        job("gpu", "gpu:t4:1"),
        job("gpu", "gpu:T4:1"),
        job("gpu", "gpu:h100:0"),
        // gpufrac does not check partitions without a pool.
        job("cpu", "gpu:h100:1"),
        job("raw", "gpu:h100:1"),
    ] {
        assert_eq!(with(request, &types), Ok(Verdict::Untouched), "{request:?}");
    }
}

#[test]
fn gpus_of_a_type_that_no_pool_has_are_slurms_own() {
    for tres in ["gpu:t4:1", "gres:gpu:t4:2", "gpu:t4", "gpu:t4:1,tmpdisk:1"] {
        for partition in ["gpu", "ruled", "cpu"] {
            for occasion in [Occasion::Submit, Occasion::Modify, Occasion::Step] {
                untouched(&job(partition, tres), occasion);
            }
        }
    }
    let option = JobRequest {
        tres_per_job: Some("gres:gpu:t4:1"),
        ..job("ruled", "")
    };
    untouched(&option, Occasion::Submit);
    // A Type of a pool in upper case, or another GRES beside the unknown Type.
    for tres in [
        "gpu:HALF:1",
        "gpu:0.25:1",
        "gpu:t4:1,gpu:1",
        "gpu:t4:1,shard:5",
        "gpu:t4:1,gpufrac:0.25",
        "gpu:t4:1,gpufrac:25,shard:25",
    ] {
        refusal("gpu", tres);
    }
    let both = JobRequest {
        tres_per_job: Some("gres:gpu:t4:1"),
        ..job("gpu", "gpufrac:0.25")
    };
    refused(&both, Occasion::Submit);
}

#[test]
fn exclusive_jobs_get_no_shares_and_no_default() {
    let exclusive = |partition, tres| JobRequest {
        exclusive: true,
        ..job(partition, tres)
    };
    let message = refused(&exclusive("gpu", "gpufrac:0.25"), Occasion::Submit);
    assert!(message.contains("leave --exclusive out"), "{message}");
    untouched(&exclusive("ruled", ""), Occasion::Submit);
    untouched(&exclusive("cpu", ""), Occasion::Submit);
    // Slurm gives whole devices there.
    for (tres, units) in [
        ("gpufrac:1", 100),
        ("gpufrac:4", 400),
        ("gpufrac:0.75", 100),
    ] {
        for form in [GresForm::Slash, GresForm::Colon] {
            let whole = JobRequest {
                form,
                ..exclusive("full", tres)
            };
            assert_eq!(given(&whole, Occasion::Submit).1, units);
            let spare = JobRequest {
                exclusive: false,
                core_spec: true,
                ..whole
            };
            assert_eq!(given(&spare, Occasion::Submit).1, units);
        }
    }
}

#[test]
fn gpus_that_slurm_derives_from_tasks_are_asked_for_as_well() {
    let derived = |partition, tres| JobRequest {
        tasks_per_gpu: true,
        ..job(partition, tres)
    };
    let message = refused(&derived("gpu", ""), Occasion::Submit);
    assert!(
        message.contains("cannot be asked for by itself"),
        "{message}"
    );
    let message = refused(&derived("gpu", "gpufrac:0.25"), Occasion::Submit);
    assert!(message.contains("--ntasks-per-gpu"), "{message}");
    untouched(&derived("raw", ""), Occasion::Submit);
    untouched(&derived("cpu", ""), Occasion::Submit);
}

#[test]
fn partitions_without_a_pool() {
    untouched(&job("cpu", ""), Occasion::Submit);
    untouched(&job("cpu", "tmpdisk:5"), Occasion::Submit);
    for tres in ["gpufrac:0.25", "gpufrac:25,shard:25", "gpufrac:25,shard:30"] {
        let message = refusal("cpu", tres);
        assert!(message.starts_with("gpufrac: partition \"cpu\" has no fractions of GPUs; use --partition=gpu or --partition=mixed"), "{message}");
    }
    // A submission without a partition goes to the default partition.
    let request = JobRequest {
        partitions: None,
        default_partition: Some("old"),
        ..job("", "gpufrac:0.125")
    };
    assert_eq!(given(&request, Occasion::Submit).1, 25);
    let request = JobRequest {
        default_partition: Some("cpu"),
        ..request
    };
    refused(&request, Occasion::Submit);
}

#[test]
fn rules_of_partitions() {
    assert_eq!(submit("ruled", "gpufrac:0.25").1, 25);
    assert_eq!(submit("ruled", "gpufrac:0.2").1, 25);
    for tres in [
        "gpufrac:0.5",
        "gpufrac:0.3",
        "gpufrac:50,shard:50",
        "gpufrac:0.1",
    ] {
        let size = if tres.ends_with("0.1") { "0.125" } else { "0.5" };
        assert_eq!(
            refusal("ruled", tres),
            format!(
                "gpufrac: partition ruled does not give {size} of a GPU; write --gres=gpufrac:0.25"
            )
        );
    }
    // The strictest of several partitions decides.
    refusal("gpu,ruled", "gpufrac:0.5");
    // The rules do not hold for a step, which divides what its job has.
    assert_eq!(given(&job("ruled", "gpufrac:0.125"), Occasion::Step).1, 13);
    // An update without a partition must satisfy the rules of all partitions.
    let modify = JobRequest {
        partitions: None,
        ..job("", "gpufrac:0.5")
    };
    let all = refused(&modify, Occasion::Modify);
    assert!(
        all.contains("this cluster") || all.contains("name"),
        "{all}"
    );
}

#[test]
fn defaults_of_partitions() {
    let (text, units, note) = submit("ruled", "");
    assert_eq!(
        (text.as_str(), units),
        ("gres/gpufrac:25,gres/shard:25", 25)
    );
    assert_eq!(
        note,
        "gpufrac: partition ruled gives 0.25 (2g.20gb, 19.6 GiB) to a job that asks for no GPU"
    );
    let colon = JobRequest {
        form: GresForm::Colon,
        ..job("ruled", "gres:tmpdisk:1")
    };
    assert_eq!(
        given(&colon, Occasion::Submit).0,
        "gres:tmpdisk:1,gres:gpufrac:25,gres:shard:25"
    );
    let nothing = JobRequest {
        partitions: Some("ruled"),
        ..JobRequest::default()
    };
    assert_eq!(given(&nothing, Occasion::Submit).1, 25);
    for request in [
        job("ruled", "gres:none"),
        job("ruled", "gpu:0"),
        job("gpu", ""),
        job("cpu,ruled", ""),
        job("ruled,cpu", "tmpdisk:1"),
    ] {
        untouched(&request, Occasion::Submit);
    }
    for occasion in [Occasion::Modify, Occasion::Step] {
        untouched(&job("ruled", "tmpdisk:1"), occasion);
        untouched(&nothing, occasion);
    }
}

#[test]
fn a_change_without_a_partition_considers_all_pools() {
    let text = CONFIG
        .replace("partitions = [\"slices\"]", "partitions = [\"gpu2\"]")
        .replace("layout = \"slices\"", "layout = \"halves\"");
    let config = Config::parse(&text, "gpufrac.toml").unwrap();
    let modify = JobRequest {
        partitions: None,
        ..job("", "gpufrac:0.125")
    };
    match decide(&config, &modify, Occasion::Modify) {
        Ok(Verdict::Rewritten { entry, note, .. }) => {
            assert_eq!(entry.units, Units(25));
            assert!(note.unwrap().contains("all pools of this cluster"));
        }
        other => panic!("{other:?}"),
    }
}

/// Requests close to the grammar, with every other input of the decision.
fn any_case() -> impl Strategy<Value = (String, Option<&'static str>, GresForm, Occasion)> {
    let item = prop_oneof![
        3 => (1_u32..=1000).prop_map(|n| format!("gpufrac:{}", Fraction::new(n, 1000).unwrap())),
        1 => (1_u32..90).prop_map(|n| format!("gpufrac:{n}G")),
        1 => (0_u32..=110).prop_map(|n| format!("gpufrac:percent:{n}")),
        1 => (1_u32..=100).prop_map(|n| format!("gres/gpufrac:{n},gres/shard:{n}")),
        1 => (1_u32..=20).prop_map(|n| format!("gpufrac:{n}")),
        1 => (1_u32..=20, 1_u32..=20).prop_map(|(n, m)| format!("gres/gpu:whole:{n},gres/gpufrac:{m}00")),
        1 => near(),
    ];
    let others = proptest::collection::vec("gres/[a-f]{1,4}:[0-9]{1,2}|x=[a-f]{0,3}", 0..3);
    let text = (others.clone(), item, others).prop_map(|(before, item, after)| {
        let all: Vec<String> = before.into_iter().chain([item]).chain(after).collect();
        all.join(",")
    });
    let partition = proptest::sample::select(vec![
        None,
        Some("gpu"),
        Some("old"),
        Some("mixed"),
        Some("slices"),
        Some("full"),
        Some("big"),
        Some("ruled"),
        Some("gpu,old"),
        Some("cpu"),
    ]);
    let form = proptest::sample::select(vec![GresForm::Colon, GresForm::Slash]);
    let occasion =
        proptest::sample::select(vec![Occasion::Submit, Occasion::Modify, Occasion::Step]);
    (text, partition, form, occasion)
}

/// At least `cases` cases, or as many as `PROPTEST_CASES` asks for.
fn at_least(cases: u32) -> ProptestConfig {
    let default = ProptestConfig::default();
    ProptestConfig {
        cases: default.cases.max(cases),
        ..default
    }
}

/// The items that are not about GPUs. An empty string, which some clients send for nothing, has none.
fn others(text: &str) -> Vec<String> {
    let items = request::parse(text).unwrap();
    let other =
        |item: &&request::Item<'_>| matches!(item.kind, Kind::Other) && !item.text.is_empty();
    items
        .iter()
        .filter(other)
        .map(|item| item.text.to_owned())
        .collect()
}

proptest! {
    #![proptest_config(at_least(4000))]

    #[test]
    fn decisions_are_stable_and_never_too_little((text, partition, form, occasion) in any_case()) {
        let config = shared_config();
        let request = JobRequest {
            partitions: partition,
            form,
            tres_per_node: Some(&text),
            ..JobRequest::default()
        };
        let Ok(Verdict::Rewritten { text: tres_per_node, entry, .. }) = decide(config, &request, occasion) else {
            return Ok(());
        };
        // A second decision about the result changes nothing and has no note.
        let again = JobRequest { tres_per_node: Some(&tres_per_node), ..request };
        let expected = Verdict::Rewritten { text: tres_per_node.clone(), entry, note: None };
        prop_assert_eq!(decide(config, &again, occasion), Ok(expected));
        // All other items are still there, byte for byte and in order.
        prop_assert_eq!(others(&text), others(&tres_per_node));
        // The grant is at least the request, at most one GPU unless several are requested, and every pool can make it.
        let gpus = entry.units.gpus().unwrap_or(1);
        prop_assert!(entry.units.0 >= 1 && (entry.units.0 <= 100 || entry.units.gpus().is_some()));
        if gpus > 1 {
            let devices = format!("gpu:whole:{gpus}");
            prop_assert!(tres_per_node.contains(&devices), "{tres_per_node}");
        }
        let destination = Decision::of(config, &request, occasion);
        let makers: Vec<_> = destination.pools.iter().filter_map(|pool| pool.layout.entry(entry.units.of_each_gpu())).collect();
        // A step gets the smallest size of its pools.
        let all = |good: &dyn Fn(&MenuEntry) -> bool| match occasion {
            Occasion::Step => makers.iter().any(|size| good(size)),
            _ => makers.iter().all(|size| good(size)),
        };
        let asked = request::parse(&text).unwrap().into_iter().find_map(|item| match item.kind {
            Kind::Gpufrac { amount, .. } => Some(amount),
            _ => None,
        });
        match asked {
            Some(Amount::Fraction(fraction) | Amount::Percent(fraction)) => prop_assert!(all(&|size| size.fraction.covers(fraction))),
            Some(Amount::Memory(memory)) => prop_assert!(all(&|size| size.memory >= memory)),
            // Units that gpufrac wrote earlier, or a number of GPUs.
            Some(Amount::Integer(number)) => {
                let units = u64::from(entry.units.0);
                prop_assert!(number == units || number * 100 == units && number == u64::from(gpus));
            }
            // The `default` of the partition.
            None => prop_assert_eq!(partition, Some("ruled")),
        }
    }
}

proptest! {
    #![proptest_config(at_least(1000))]

    #[test]
    fn any_text_anywhere_is_decided_or_refused(texts in proptest::collection::vec(proptest::option::of(prop_oneof!["\\PC{0,20}", near()]), 8)) {
        let config = shared_config();
        let text = |position: usize| texts[position].as_deref();
        let request = JobRequest {
            partitions: text(0).or(Some("gpu")),
            default_partition: None,
            form: GresForm::Slash,
            tres_per_node: text(1),
            tres_per_job: text(2),
            tres_per_socket: text(3),
            tres_per_task: text(4),
            cpus_per_tres: text(5),
            mem_per_tres: text(6),
            tres_freq: text(7),
            ..JobRequest::default()
        };
        for occasion in [Occasion::Submit, Occasion::Modify, Occasion::Step] {
            if let Err(refusal) = decide(config, &request, occasion) {
                let message = refusal.to_string();
                prop_assert!(message.starts_with("gpufrac: "));
                prop_assert!(!message.contains(char::is_control), "{message:?}");
            }
        }
    }
}

/// The configuration, solved once for all cases.
fn shared_config() -> &'static Config {
    static CONFIG_ONCE: std::sync::OnceLock<Config> = std::sync::OnceLock::new();
    CONFIG_ONCE.get_or_init(config)
}

#[test]
fn no_size_is_proposed_that_the_cluster_does_not_give() {
    for (tres, proposed) in [
        (
            "gpufrac:50",
            Some("write --gres=gpufrac:0.5 for 50% of a GPU"),
        ),
        ("gpufrac:100", None),
        ("gpufrac:75", None),
        ("gpufrac:100%", None),
        ("gpufrac:3/4", None),
        ("gpufrac:1/4", Some("write it as a decimal: gpufrac:0.25")),
        (
            "gpufrac:12.5%",
            Some("write it as a decimal: gpufrac:0.125"),
        ),
    ] {
        let said = refusal("gpu", tres);
        match proposed {
            Some(words) => assert!(said.ends_with(words), "{said}"),
            None => assert!(said.contains("write --gres=gpufrac:0.125 or "), "{said}"),
        }
    }
}

#[test]
fn an_update_to_a_type_that_no_node_has_is_refused() {
    let nodes = "NodeName=n1 Gres=gpu:half:4,shard:half:200,gpufrac:200,gpu:t4:1\n";
    let name = CountName::default();
    let nodes = NodesGres::of_slurm_conf(nodes, &name, &|_| None).unwrap();
    let update = |tres| JobRequest {
        partitions: None,
        nodes: Some(&nodes),
        ..job("", tres)
    };
    let said = refused(&update("gpu:h100:1"), Occasion::Modify);
    assert!(
        said.starts_with("gpufrac: no GPU of this cluster has the Type \"h100\""),
        "{said}"
    );
    untouched(&update("gpu:t4:1"), Occasion::Modify);
}
