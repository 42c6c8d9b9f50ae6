//! Requests in clusters where GPUs are shared by several mechanisms.

use super::*;
use crate::request;

/// A100, L40S and T4 in one partition and each in its own; a node with GPUs of several pools; GPUs that are only lent
/// whole.
const CLUSTER: &str = include_str!("cluster.toml");

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
        Ok(Verdict::Rewritten {
            text, entry, note, ..
        }) => (
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

/// The expected result of `on`.
fn want(text: &str, entry: &str, note: &str) -> (String, String, String) {
    (text.to_owned(), entry.to_owned(), note.to_owned())
}

/// Promise (users): shares of MPS, time slices and HAMi-core: any whole percent, from 3 where jobs share a daemon, by
/// memory, or a menu.
/// With `a_size_by_memory`, `menus_of_shares`, `shares_that_fit_by_counting_have_room_at_the_daemon`.
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
    cases(cluster(), "a_size_by_memory");
}

#[test]
fn menus_of_shares() {
    cases(cluster(), "menus_of_shares");
}

/// Promise (placement): before Slurm 23.11 no whole GPU of a shared pool is given beside shares of it.
/// With `whole_gpus_and_pieces_come_from_the_same_gpus`.
// Slurm before 23.11.5 gives a device whole beside shares of it.
#[test]
fn before_23_11_a_whole_gpu_is_all_shares_of_a_device() {
    cases(
        cluster(),
        "before_23_11_a_whole_gpu_is_all_shares_of_a_device",
    );
}

/// Promise (users): `gpufrac:1` in a pool that shares its GPUs without MIG is the whole GPU, without other jobs and
/// without limits.
/// With `a_whole_gpu_and_shares_of_it_exclude_each_other`.
#[test]
fn a_whole_gpu_is_exclusive() {
    cases(cluster(), "a_whole_gpu_is_exclusive");
}

#[test]
fn rules_hold_for_shares() {
    cases(cluster(), "rules_hold_for_shares");
}

/// Promise (users): several pools of different mechanisms: the costliest rounding, with a message.
#[test]
fn where_several_mechanisms_are_the_costliest_rounding_applies() {
    cases(
        cluster(),
        "where_several_mechanisms_are_the_costliest_rounding_applies",
    );
}

/// Promise (users): a job whose request names a mechanism gets this mechanism.
/// With `each_partition_of_a_mixed_node_gives_its_own_kind`.
#[test]
fn a_named_mechanism_is_the_one_that_is_granted() {
    cases(cluster(), "a_named_mechanism_is_the_one_that_is_granted");
}

/// Promise (isolation): no job gets a device of a pool that is not its partition's.
/// With `on_any_cluster`, `each_partition_of_a_mixed_node_gives_its_own_kind`,
/// `a_partition_without_a_pool_gives_nothing_of_a_pools_gpus`.
#[test]
fn on_a_mixed_node_a_request_goes_where_its_partition_says() {
    cases(
        cluster(),
        "on_a_mixed_node_a_request_goes_where_its_partition_says",
    );
}

#[test]
fn the_controller_adds_the_type_that_the_client_could_not_know() {
    cases(
        cluster(),
        "the_controller_adds_the_type_that_the_client_could_not_know",
    );
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
    cases(cluster(), "a_change_that_names_no_partition");
}

#[test]
fn a_step_takes_the_least_of_its_pools() {
    cases(cluster(), "a_step_takes_the_least_of_its_pools");
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
        let same = |entry| Verdict::Rewritten { text: tres_per_node.clone(), entry, share: Share::default(), note: None };
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
