//! Requests in clusters where GPUs are shared by several mechanisms.

use super::*;
use crate::request;

/// A100, L40S and T4 in one partition and each in its own; a node with GPUs of several pools; GPUs that are only lent
const CLUSTER: &str = r#"
version = 1
[pool.a100]
mechanism = "mig"
layout = "halves"
gpu = "A100-40"
partitions = ["all", "a100"]
nodes = "an[1-4]"
[pool.l40s]
mechanism = "mps"
tenancy = "shared"
gpu = "L40S-48"
partitions = ["all", "l40s", "capped"]
nodes = "ln[1-4]"
[pool.t4]
mechanism = "timeslice"
gpu = "T4-16"
partitions = ["all", "t4"]
nodes = "tn[1-4]"
[pool.halves]
mechanism = "mig+mps"
gpu = "H100-80"
partitions = ["halves"]
nodes = "hn[1-4]"
[pool.few]
mechanism = "hami"
library = "/opt/hami/libvgpu.so"
gpu = "T4-16"
menu = ["1/3", "1/2"]
partitions = ["few"]
nodes = "fn1"
# One node: MIG GPUs, MPS GPUs, a whole one; GPUs 5 and up are not gpufrac's.
[pool.mix-mig]
mechanism = "mig"
layout = "halves"
gpu = "H100-80"
partitions = ["mix", "mixmig"]
nodes = "mn1"
gpus = [0, 1]
[pool.mix-mps]
mechanism = "mps"
tenancy = "private"
gpu = "H100-80"
partitions = ["mix", "mixmps"]
nodes = "mn1"
gpus = [2, 3]
[pool.mix-whole]
mechanism = "mps"
layout = "whole"
gpu = "H100-80"
partitions = ["mix"]
nodes = "mn1"
gpus = [4]
[partition.capped]
min = 0.1
max = 0.5
default = 0.25
"#;

fn cluster() -> &'static Config {
    static ONCE: std::sync::OnceLock<Config> = std::sync::OnceLock::new();
    ONCE.get_or_init(|| Config::parse(CLUSTER, "gpufrac.toml").unwrap())
}

/// Text without the mark, mechanism of the entry, note.
fn given_on(occasion: Occasion, partition: &str, tres: &str) -> (String, String, String) {
    let request = JobRequest {
        partitions: Some(partition).filter(|name| !name.is_empty()),
        ..job("", tres)
    };
    match decide(cluster(), &request, occasion) {
        Ok(Verdict::Rewritten { text, entry, note }) => (
            text.replace("gres/", ""),
            entry.to_string().replace("v1:units=", ""),
            note.unwrap_or_default(),
        ),
        other => panic!("{partition} {tres}: {other:?}"),
    }
}

fn on(partition: &str, tres: &str) -> (String, String, String) {
    given_on(Occasion::Submit, partition, tres)
}

fn refusal_on(occasion: Occasion, partition: &str, tres: &str) -> String {
    let request = JobRequest {
        partitions: Some(partition).filter(|name| !name.is_empty()),
        ..job("", tres)
    };
    let refusal = decide(cluster(), &request, occasion).unwrap_err();
    refusal.to_string()
}

fn no(partition: &str, tres: &str) -> String {
    refusal_on(Occasion::Submit, partition, tres)
}

/// The expected result of `on`.
fn want(text: &str, entry: &str, note: &str) -> (String, String, String) {
    (text.to_owned(), entry.to_owned(), note.to_owned())
}

#[test]
fn any_whole_percent() {
    for (partition, mechanism, least, most) in [
        ("l40s", "mps", 3, 99),
        ("t4", "timeslice", 1, 99),
        ("mixmps", "mps", 1, 99),
        ("halves", "mig+mps", 3, 50),
    ] {
        for percent in least..=most {
            let asked = format!("gpufrac:{}", Fraction::new(percent, 100).unwrap());
            let (text, entry, note) = on(partition, &asked);
            let shard = match partition {
                "mixmps" => format!("shard:mps:{percent}"),
                // Devices that are only lent whole have one share, too.
                "t4" if percent == 1 => "shard:timeslice:1".to_owned(),
                _ => format!("shard:{percent}"),
            };
            assert_eq!(text, format!("gpufrac:{percent},{shard}"));
            assert_eq!(entry, format!("{percent}:mech={mechanism}"));
            assert_eq!(note, "");
        }
    }
    assert_eq!(
        on("l40s", "gpufrac:0.01"),
        want(
            "gpufrac:3,shard:3",
            "3:mech=mps",
            "gpufrac: rounded up from 0.01 to 0.03 (mps, 1.3 GiB)"
        )
    );
    assert_eq!(on("l40s", "gpufrac:0.301").0, "gpufrac:31,shard:31");
    assert_eq!(on("l40s", "gpufrac:mps:0.3").0, "gpufrac:30,shard:30");
}

#[test]
fn a_size_by_memory() {
    assert_eq!(
        on("l40s", "gpufrac:10G"),
        want(
            "gpufrac:23,shard:23",
            "23:mech=mps",
            "gpufrac: rounded up from 10G to 0.23 (mps, 10.3 GiB)"
        )
    );
    assert_eq!(on("l40s", "gpufrac:44G").0, "gpufrac:98,shard:98");
    // 46068 MiB are all memory of the GPU.
    assert_eq!(on("l40s", "gpufrac:46068M").0, "gpu:mps:1,gpufrac:100");
    assert_eq!(on("halves", "gpufrac:30G").0, "gpufrac:38,shard:38");
    assert_eq!(
        no("l40s", "gpufrac:46069M"),
        "gpufrac: 46069M is more than partition l40s gives of one GPU; its largest size is 1 (mps, \
         44.9 GiB); use --partition=mixmps"
    );
    assert_eq!(
        no("l40s", "gpufrac:100G"),
        "gpufrac: 100G is more than partition l40s gives of one GPU; its largest size is 1 (mps, 44.9 GiB)"
    );
    // A size that the rules forbid is not proposed.
    assert_eq!(
        no("capped", "gpufrac:100G"),
        "gpufrac: 100G is more than partition capped gives of one GPU; its largest size is 0.5 \
         (mps, 22.4 GiB)"
    );
}

#[test]
fn menus_of_shares() {
    assert_eq!(on("few", "gpufrac:0.3").0, "gpufrac:34,shard:34");
    assert_eq!(
        on("few", "gpufrac:0.3").2,
        "gpufrac: rounded up from 0.3 to 0.334 (hami, 5.0 GiB)"
    );
    assert_eq!(on("few", "gpufrac:0.334").2, "");
    assert_eq!(on("few", "gpufrac:0.7").0, "gpu:hami:1,gpufrac:100");
    assert_eq!(
        no("few", "gpufrac:40,shard:40"),
        "gpufrac: 40 units are not a size of partition few; write --gres=gpufrac:0.334 or \
         --gres=gpufrac:0.5 or --gres=gpufrac:1"
    );
}

/// Slurm before 23.11.5 gives a device whole beside shares of it.
#[test]
fn before_23_11_a_whole_gpu_is_all_shares_of_a_device() {
    let given = |partition: &str, tres: &str| {
        let tres = tres
            .replace("gpu", "gres:gpu")
            .replace("shard", "gres:shard");
        let request = JobRequest {
            partitions: Some(partition),
            form: GresForm::Colon,
            tres_per_node: Some(&tres),
            ..job("", "")
        };
        match decide(cluster(), &request, Occasion::Submit) {
            Ok(Verdict::Rewritten { text, entry, .. }) => (text, entry.units),
            other => panic!("{partition} {tres}: {other:?}"),
        }
    };
    for (partition, name) in [("l40s", "mps"), ("t4", "timeslice"), ("few", "hami")] {
        let whole = format!("gres:gpufrac:100,gres:shard:{name}:100");
        assert_eq!(given(partition, "gpufrac:1"), (whole, Units::WHOLE));
        let again = format!("gpufrac:100,shard:{name}:100");
        assert_eq!(given(partition, &again).1, Units::WHOLE);
    }
    // These GPUs have no shares.
    assert_eq!(
        given("mix", "gpufrac:1").0,
        "gres:gpu:whole:1,gres:gpufrac:100"
    );
    // A job cannot have shares of several devices.
    for partition in ["l40s", "t4", "few"] {
        let request = JobRequest {
            form: GresForm::Colon,
            marked: true,
            ..job(partition, "gres:gpufrac:2")
        };
        let refusal = decide(cluster(), &request, Occasion::Submit).unwrap_err();
        assert!(
            refusal
                .to_string()
                .contains("write --gres=gpufrac:1, on several nodes"),
            "{refusal}"
        );
    }
    for pair in [
        "gpufrac:100,shard:100",
        "gpufrac:100,shard:half:100",
        "gpufrac:100,shard:mps:99",
    ] {
        no("l40s", pair);
    }
}

#[test]
fn a_whole_gpu_is_exclusive() {
    for (partition, name) in [("l40s", "mps"), ("t4", "timeslice"), ("few", "hami")] {
        let whole = format!("gpu:{name}:1,gpufrac:100");
        assert_eq!(
            on(partition, "gpufrac:1"),
            want(&whole, &format!("100:mech={name}"), "")
        );
        assert_eq!(on(partition, &whole).0, whole);
        for gpus in [2, 8] {
            let several = format!("gpu:{name}:{gpus},gpufrac:{gpus}00");
            let entry = format!("{gpus}00:mech={name}");
            let expected = want(&several, &entry, "");
            assert_eq!(on(partition, &format!("gpufrac:{gpus}")), expected);
            assert_eq!(on(partition, &several), expected);
            assert_eq!(on(partition, &format!("gpufrac:{name}:{gpus}")), expected);
        }
    }
    // A hundredth of a GPU is written like a whole one; the shards beside it decide.
    assert_eq!(
        on("t4", "gpufrac:0.01"),
        want("gpufrac:1,shard:timeslice:1", "1:mech=timeslice", "")
    );
    assert_eq!(
        on("t4", "shard:1,gpufrac:1"),
        want("shard:timeslice:1,gpufrac:1", "1:mech=timeslice", "")
    );
    assert!(no("t4", "gpufrac:1,shard:2").contains("leave shard out"));
    assert!(no("t4", "gpufrac:1.0,shard:1").contains("leave shard out"));
    // 99.5 % is rounded up to a whole GPU.
    assert_eq!(
        on("l40s", "gpufrac:0.995"),
        want(
            "gpu:mps:1,gpufrac:100",
            "100:mech=mps",
            "gpufrac: rounded up from 0.995 to 1 (mps, 44.9 GiB)"
        )
    );
    assert_eq!(
        no("halves", "gpufrac:1"),
        "gpufrac: partition halves offers no whole GPU; write --gres=gpufrac:F with F from 0.03 to \
         0.5; for a whole GPU --gres=gpufrac:1 --partition=all or --partition=l40s or \
         --partition=t4 or --partition=few or --partition=mix or --partition=mixmps"
    );
    // GPUs that are only lent whole come first; they have no mechanism of their own.
    assert_eq!(on("mix", "gpufrac:1").0, "gpu:whole:1,gpufrac:100");
    assert_eq!(on("mix", "gpu:mps:1,gpufrac:100").1, "100:mech=mps");
    for pair in [
        "gpu:mps:1,gpufrac:100",
        "gpu:timeslice:1,gpufrac:100",
        "gpufrac:50,gpu:mps:1",
    ] {
        no("halves", pair);
    }
}

#[test]
fn rules_hold_for_shares() {
    assert_eq!(on("capped", "gpufrac:0.5").0, "gpufrac:50,shard:50");
    for (tres, size) in [
        ("gpufrac:1", "1"),
        ("gpufrac:0.51", "0.51"),
        ("gpufrac:0.05", "0.05"),
    ] {
        assert_eq!(
            no("capped", tres),
            format!(
                "gpufrac: partition capped does not give {size} of a GPU; write --gres=gpufrac:F \
                 with F from 0.1 to 0.5"
            )
        );
    }
    assert_eq!(
        on("capped", "").2,
        "gpufrac: partition capped gives 0.25 (mps, 11.2 GiB) to a job that asks for no GPU"
    );
}

#[test]
fn where_several_mechanisms_are_the_costliest_rounding_applies() {
    assert_eq!(
        on("all", "gpufrac:0.3"),
        want(
            "gpufrac:50,shard:50",
            "50:mech=any",
            "gpufrac: rounded up from 0.3 to 0.5 (timeslice, 7.5 GiB), the least that all pools of \
             partition all have (a100, l40s, t4)"
        )
    );
    for partitions in ["a100,l40s", "l40s,a100,cpu"] {
        let (text, entry, note) = on(partitions, "gpufrac:0.2");
        assert_eq!(text, "gpufrac:25,shard:25");
        assert_eq!(entry, "25:mech=any");
        let names = partitions.replace(",cpu", "").replace(',', ", ");
        assert_eq!(
            note,
            format!(
                "gpufrac: rounded up from 0.2 to 0.25 (2g.10gb, 9.6 GiB), the least that all pools \
                 of partitions {names} have (a100, l40s)"
            )
        );
    }
    // 1/8 is 13 units in one pool and 13 % in the other.
    assert_eq!(
        on("a100,l40s", "gpufrac:0.125"),
        want("gpufrac:13,shard:13", "13:mech=any", "")
    );
    assert_eq!(on("a100,l40s", "gpufrac:0.13").0, "gpufrac:25,shard:25");
    // 10G of memory are half of an A100-40 and two thirds of a T4.
    assert_eq!(on("l40s,t4", "gpufrac:10G").0, "gpufrac:67,shard:67");
    assert_eq!(
        no("all", "gpufrac:0.75"),
        "gpufrac: the pools of partition all (a100, l40s, t4) have no common size for 0.75; write \
         --gres=gpufrac:0.125 or --gres=gpufrac:0.25 or --gres=gpufrac:0.5 or --gres=gpufrac:1, or \
         --gres=gpufrac:mps:0.75, or --gres=gpufrac:timeslice:0.75"
    );
    assert_eq!(
        no("all", "gpufrac:20G"),
        "gpufrac: the pools of partition all (a100, l40s, t4) have no common size for 20G; write \
         --gres=gpufrac:0.125 or --gres=gpufrac:0.25 or --gres=gpufrac:0.5 or --gres=gpufrac:1, or \
         --gres=gpufrac:mps:20G"
    );
    // Only one mechanism lends a whole GPU, and Slurm accepts its Type.
    assert_eq!(
        on("all", "gpufrac:1"),
        want("gpu:mps:1,gpufrac:100", "100:mech=mps", "")
    );
    // The T4 has less memory.
    assert_eq!(on("t4,l40s", "gpufrac:1").0, "gpu:mps:1,gpufrac:100");
}

#[test]
fn a_named_mechanism_is_the_one_that_is_granted() {
    for (tres, text, mechanism) in [
        ("gpufrac:mps:0.3", "gpufrac:30,shard:mps:30", "30:mech=mps"),
        ("gpufrac:mig:0.3", "gpufrac:50,shard:half:50", "50:mech=mig"),
        (
            "gpufrac:timeslice:0.01",
            "gpufrac:1,shard:timeslice:1",
            "1:mech=timeslice",
        ),
        (
            "gpufrac:timeslice:1",
            "gpu:timeslice:1,gpufrac:100",
            "100:mech=timeslice",
        ),
    ] {
        let (rewritten, entry, _) = on("all", tres);
        assert_eq!((rewritten.as_str(), entry.as_str()), (text, mechanism));
        // The controller gets the text that the client wrote.
        assert_eq!(on("all", text), want(text, mechanism, ""));
    }
    assert_eq!(
        no("all", "gpufrac:hami:0.3"),
        "gpufrac: partition all has no fractions by hami, only by mig, mps, timeslice; write --gres=gpufrac:0.25"
    );
    assert!(no("all", "gpufrac:mig:1").contains("offers no whole GPU"));
}

#[test]
fn on_a_mixed_node_a_request_goes_where_its_partition_says() {
    assert_eq!(on("mixmig", "gpufrac:0.2").0, "gpufrac:25,shard:half:25");
    assert_eq!(on("mixmps", "gpufrac:0.2").0, "gpufrac:20,shard:mps:20");
    assert_eq!(on("mixmps", "gpufrac:1").0, "gpu:mps:1,gpufrac:100");
    // The partition has both, and no other partition has GPUs of these pools.
    assert_eq!(
        on("mix", "gpufrac:0.2"),
        want(
            "gpufrac:25,shard:25",
            "25:mech=any",
            "gpufrac: rounded up from 0.2 to 0.25 (2g.20gb, 19.6 GiB), the least that all pools of \
             partition mix have (mix-mig, mix-mps)"
        )
    );
    assert_eq!(on("mix", "gpufrac:mps:0.2").0, "gpufrac:20,shard:mps:20");
    // A job that names both partitions gets a GPU of either, at the higher price.
    assert_eq!(
        on("mixmig,mixmps", "gpufrac:0.2"),
        want(
            "gpufrac:25,shard:25",
            "25:mech=any",
            "gpufrac: rounded up from 0.2 to 0.25 (2g.20gb, 19.6 GiB), the least that all pools of \
             partitions mixmig, mixmps have (mix-mig, mix-mps)"
        )
    );
    // One partition needs a Type, the other has no other pool.
    assert_eq!(
        on("mixmig,a100", "gpufrac:0.25").0,
        "gpufrac:25,shard:half:25"
    );
    // Types of pools that do not serve the partition.
    assert!(no("mixmig", "gpufrac:25,shard:mps:25").contains("do not belong together"));
    assert!(no("mixmig", "gpu:mps:1,gpufrac:100").contains("leave gpu out"));
}

#[test]
fn the_controller_adds_the_type_that_the_client_could_not_know() {
    // The client names no partition.
    let client = on("", "gpufrac:0.5").0;
    assert_eq!(client, "gpufrac:50,shard:50");
    assert_eq!(
        on("mixmig", &client),
        want("gpufrac:50,shard:half:50", "50:mech=mig", "")
    );
    assert_eq!(on("l40s", &client).0, client);
    // Other items stay, and are not taken for requests.
    assert_eq!(
        on("mixmps", "x:1,shard:50,gres:shard:0,y,gpufrac:50").0,
        "x:1,shard:mps:50,gres:shard:0,y,gpufrac:50"
    );
    // The mechanism is kept for the controller.
    assert_eq!(on("", "gpufrac:mps:0.3").0, "gpufrac:30,shard:mps:30");
    assert_eq!(on("l40s", "gpufrac:30,shard:mps:30").1, "30:mech=mps");
    assert!(no("t4", "gpufrac:30,shard:mps:30").contains("do not belong together"));
}

/// Only Slurm knows whether the reservation has a partition, which takes precedence over the default one.
#[test]
fn a_mechanism_is_kept_where_a_reservation_chooses_the_partition() {
    let whole = "version = 1\n[pool.one]\nmechanism = \"mig\"\nlayout = \"whole\"\ngpu = \"H100-80\"\n\
        partitions = [\"one\"]\nnodes = \"n1\"\n[pool.other]\nmechanism = \"mps\"\nlayout = \"whole\"\n\
        gpu = \"H100-80\"\npartitions = [\"other\"]\nnodes = \"n2\"\n";
    let whole = Config::parse(whole, "gpufrac.toml").unwrap();
    let decided = |config, partitions, default, reserved, tres| {
        let request = JobRequest {
            partitions,
            default_partition: Some(default),
            reserved,
            ..job("", tres)
        };
        match decide(config, &request, Occasion::Submit) {
            Ok(Verdict::Rewritten { text, .. }) => text.replace("gres/", ""),
            Err(refusal) => refusal.to_string(),
            Ok(Verdict::Untouched) => panic!("{tres}"),
        }
    };
    let on_cluster = |reserved, tres| decided(cluster(), None, "a100", reserved, tres);
    let (plain, typed) = ("gpufrac:13,shard:13", "gpufrac:13,shard:half:13");
    assert_eq!(on_cluster(false, "gpufrac:mig:0.125"), plain);
    assert_eq!(on_cluster(true, "gpufrac:mig:0.125"), typed);
    // With a partition, or without a mechanism, the result does not depend on the reservation.
    assert_eq!(on_cluster(true, "gpufrac:0.125"), plain);
    let named = decided(cluster(), Some("a100"), "t4", true, "gpufrac:mig:0.125");
    assert_eq!(named, plain);
    // Whole GPUs of different mechanisms have the same Type.
    let of = |partitions, reserved| decided(&whole, partitions, "one", reserved, "gpufrac:mig:1");
    let given = "gpu:whole:1,gpufrac:100";
    assert_eq!(of(None, false), given);
    assert_eq!(of(Some("one"), true), given);
    assert_eq!(
        of(None, true),
        "gpufrac: Slurm could give a job of partition one GPUs of pool other that are not for it; \
         name the job's partition in the same request"
    );
}

#[test]
fn a_change_that_names_no_partition() {
    assert_eq!(
        refusal_on(Occasion::Modify, "", "gpufrac:0.5"),
        "gpufrac: Slurm could give a job of this cluster GPUs of pool mix-mps that are not for it; \
         name the job's partition in the same request"
    );
    assert_eq!(
        given_on(Occasion::Modify, "mixmps", "gpufrac:0.3").0,
        "gpufrac:30,shard:mps:30"
    );
}

#[test]
fn a_step_takes_the_least_of_its_pools() {
    let step = |partition, tres| given_on(Occasion::Step, partition, tres);
    // The job of the step may hold 30 units of an L40S.
    for tres in ["gpufrac:0.3", "gpufrac:mps:0.3"] {
        for partition in ["all", "mix", ""] {
            assert_eq!(
                step(partition, tres).0,
                "gpufrac:30,shard:30",
                "{partition}"
            );
        }
    }
    assert_eq!(step("all", "gpufrac:30,shard:30").2, "");
    assert_eq!(step("mixmig", "gpufrac:0.2").0, "gpufrac:25,shard:25");
    assert!(refusal_on(Occasion::Step, "halves", "gpufrac:0.6").contains("is more than"));
}

#[test]
fn whole_gpus_of_unequal_memory_and_of_several_mechanisms() {
    let text = r#"
version = 1
[pool.big]
mechanism = "mps"
layout = "whole"
gpu = "L40S-48"
partitions = ["full", "big"]
nodes = "bn1"
[pool.small]
mechanism = "mig"
layout = "whole"
gpu = "A100-40"
partitions = ["full"]
nodes = "sn1"
"#;
    let config = Config::parse(text, "gpufrac.toml").unwrap();
    let decided = |partition, tres| {
        decide(&config, &job(partition, tres), Occasion::Submit).map_err(|r| r.to_string())
    };
    match decided("full", "gpufrac:1") {
        Ok(Verdict::Rewritten { entry, note, .. }) => {
            assert_eq!(entry.to_string(), "v1:units=100:mech=any");
            assert_eq!(note, None);
        }
        other => panic!("{other:?}"),
    }
    assert!(decided("big", "gpufrac:42G").is_ok());
    // Slurm could give the smaller GPU.
    assert_eq!(
        decided("full", "gpufrac:42G").unwrap_err(),
        "gpufrac: the pools of partition full (big, small) have no common size for 42G; write --gres=gpufrac:1"
    );
    // No Type separates the mechanisms; a client that knows no partition leaves it to the controller.
    let unknown = JobRequest {
        partitions: None,
        ..job("", "gpufrac:mps:1")
    };
    let refusal = decide(&config, &unknown, Occasion::Submit).unwrap_err();
    assert!(refusal.to_string().contains("name the job's partition"));
    assert_eq!(
        decided("full", "gpufrac:mps:1").unwrap_err(),
        "gpufrac: Slurm could give a job of partition full GPUs of pool small that are not for it; \
         leave the mechanism out"
    );
}

/// Clusters as texts, because proptest prints them in a readable form.
fn any_cluster() -> impl Strategy<Value = String> {
    let way = proptest::sample::select(vec![
        "mechanism = \"mig\"\nlayout = \"halves\"\ngpu = \"A100-40\"",
        "mechanism = \"mig\"\nlayout = \"slices\"\ngpu = \"A30-24\"",
        "mechanism = \"mig\"\nlayout = \"whole\"\ngpu = \"H100-80\"",
        "mechanism = \"mps\"\ntenancy = \"shared\"\ngpu = \"L40S-48\"",
        "mechanism = \"mps\"\ntenancy = \"private\"\ngpu = \"P9\"\nmemory = 7000",
        "mechanism = \"mps\"\nlayout = \"whole\"\ngpu = \"T4-16\"",
        "mechanism = \"mig+mps\"\ngpu = \"H100-80\"",
        "mechanism = \"timeslice\"\ngpu = \"T4-16\"\nmenu = [\"1/2\", \"1/4\"]",
        "mechanism = \"hami\"\nlibrary = \"/l.so\"\ngpu = \"L4-24\"",
    ]);
    let partitions = proptest::sample::subsequence(vec!["\"a\"", "\"b\"", "\"c\""], 1..=3);
    let pool = (way, partitions, 0..3_u32);
    let rules = proptest::option::of((1_u32..=40, 50_u32..=100));
    (proptest::collection::vec(pool, 1..5), rules).prop_filter_map(
        "a contradiction",
        |(pools, rules)| {
            let mut text = "version = 1\n".to_owned();
            for (index, (way, partitions, node)) in pools.iter().enumerate() {
                let partitions = partitions.join(", ");
                text.push_str(&format!(
                    "[pool.p{index}]\n{way}\npartitions = [{partitions}]\nnodes = \"n{node}\"\ngpus = [{index}]\n"
                ));
            }
            if let Some((min, max)) = rules {
                let (min, max) = (f64::from(min) / 100.0, f64::from(max) / 100.0);
                text.push_str(&format!("[partition.a]\nmin = {min}\nmax = {max}\n"));
            }
            Config::parse(&text, "gpufrac.toml").is_ok().then_some(text)
        },
    )
}

fn any_ask() -> impl Strategy<Value = String> {
    let mechanism = proptest::sample::select(vec!["", "", "", "mig:", "mps:", "mig+mps:", "hami:"]);
    let amount = prop_oneof![
        3 => (1_u32..=1000).prop_map(|n| Fraction::new(n, 1000).unwrap().to_string()),
        1 => (1_u32..90).prop_map(|n| format!("{n}G")),
        1 => (1_u32..10).prop_map(|n| n.to_string()),
    ];
    let pair = (
        1_u32..=100,
        proptest::sample::select(vec!["", "mps:", "half:", "whole:"]),
    );
    prop_oneof![
        4 => (mechanism, amount).prop_map(|(mechanism, amount)| format!("gpufrac:{mechanism}{amount}")),
        1 => pair.clone().prop_map(|(n, name)| format!("gpufrac:{n},shard:{name}{n}")),
        1 => pair.prop_map(|(n, name)| format!("gpufrac:{n}00,gpu:{name}{n}")),
    ]
}

proptest! {
    #![proptest_config(at_least(1000))]

    /// On any cluster: a second decision changes nothing, the grant is at least the request on every GPU that Slurm
    /// could choose, and it is of the pools of the named partitions alone.
    #[test]
    fn on_any_cluster(
        config in any_cluster(),
        text in any_ask(),
        partition in proptest::sample::select(vec![None, Some("a"), Some("b"), Some("a,b"), Some("b,c")]),
        occasion in proptest::sample::select(vec![Occasion::Submit, Occasion::Modify, Occasion::Step]),
    ) {
        let config = Config::parse(&config, "gpufrac.toml").unwrap();
        let request = JobRequest { partitions: partition, tres_per_node: Some(&text), ..JobRequest::default() };
        let (tres_per_node, entry) = match decide(&config, &request, occasion) {
            Ok(Verdict::Rewritten { text, entry, .. }) => (text, entry),
            Ok(Verdict::Untouched) => return Ok(()),
            Err(refusal) => {
                let message = refusal.to_string();
                prop_assert!(message.len() < 600, "{message}");
                return Ok(());
            }
        };
        let again = JobRequest { tres_per_node: Some(&tres_per_node), ..request };
        let same = |entry| Verdict::Rewritten { text: tres_per_node.clone(), entry, note: None };
        match decide(&config, &again, occasion) {
            // The entry of a step is not used, and its text has no Type.
            Ok(Verdict::Rewritten { entry, .. }) if occasion == Occasion::Step => {
                prop_assert_eq!(decide(&config, &again, occasion), Ok(same(entry)));
            }
            again => prop_assert_eq!(again, Ok(same(entry))),
        }
        let items = request::parse(&tres_per_node).unwrap();
        let is_whole = items.iter().any(|item| matches!(item.kind, Kind::Gpu(_)));
        let type_name = items.iter().find_map(|item| match item.kind {
            Kind::Shard(count) | Kind::Gpu(count) => count.type_name,
            _ => None,
        });
        // Every device that Slurm could choose, if the jobs of a partition run where it has pools.
        let destination = Decision::of(&config, &request, occasion);
        let asked = request::parse(&text).unwrap().into_iter().find_map(|item| match item.kind {
            Kind::Gpufrac { mechanism, amount } => Some((mechanism, amount)),
            _ => None,
        });
        let (mechanism, amount) = asked.unwrap();
        if occasion == Occasion::Step || !destination.named && occasion == Occasion::Submit {
            return Ok(());
        }
        for partition in &destination.partitions {
            let own = config.pools_of_partition(partition);
            let chosen = config.pools.iter().filter(|pool| {
                let near = own.iter().any(|own| own.nodes.common(&pool.nodes).is_some());
                let kind = if is_whole { pool.lends_whole() } else { pool.layout.kind != crate::layout::LayoutKind::Whole };
                near && kind && type_name.is_none_or(|name| pool.type_name() == name)
            });
            for pool in chosen {
                // A request for several partitions may get GPUs of any of them.
                let own = if destination.named { destination.pools.iter().any(|own| own.name == pool.name) } else { own.iter().any(|own| own.name == pool.name) };
                prop_assert!(own, "{partition} gets {tres_per_node} of {pool}");
                prop_assert!(entry.mechanism.is_none_or(|mechanism| mechanism == pool.mechanism));
                prop_assert!(mechanism.is_none_or(|mechanism| mechanism == pool.mechanism));
                let size = pool.layout.entry(entry.units.of_each_gpu()).unwrap();
                match amount {
                    Amount::Fraction(Fraction::ONE) if text.contains("shard") => prop_assert_eq!(entry.units.0, 1),
                    Amount::Fraction(fraction) | Amount::Percent(fraction) => prop_assert!(size.fraction.covers(fraction)),
                    Amount::Memory(memory) => prop_assert!(size.memory >= memory),
                    Amount::Integer(number) => {
                        let units = u64::from(entry.units.0);
                        prop_assert!(number == units || number * 100 == units);
                    }
                }
            }
        }
    }
}

#[test]
fn one_unit_that_no_type_keeps_apart_is_refused() {
    let pool = |name: &str, more: &str| {
        format!(
            "[pool.{name}]\nmechanism = \"{name}\"\ngpu = \"L40S-48\"\npartitions = [\"{name}\"]\nnodes = \"{name}1\"\n{more}\n"
        )
    };
    let library = "library = \"/opt/hami/libvgpu.so\"";
    let text = format!(
        "version = 1\n{}{}",
        pool("timeslice", ""),
        pool("hami", library)
    );
    let config = Config::parse(&text, "test").unwrap();
    let decided = |partitions: &str, tres: &str| {
        let request = JobRequest {
            partitions: Some(partitions),
            tres_per_node: Some(tres),
            ..JobRequest::default()
        };
        decide(&config, &request, Occasion::Submit)
    };
    let refusal = decided("timeslice,hami", "gres:gpufrac:0.01").unwrap_err();
    assert!(
        refusal.to_string().contains("write gpufrac:0.02"),
        "{refusal}"
    );
    assert!(decided("timeslice,hami", "gres:gpufrac:0.02").is_ok());
    assert!(decided("timeslice", "gres:gpufrac:0.01").is_ok());
}
