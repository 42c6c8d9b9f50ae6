use gpufrac_slurm_conf::Running;

use super::*;

const POOLS: &str = "version = 1\n[gres]\nname = \"frac\"\n[pool.h]\nmechanism = \"mig\"\nlayout = \"halves\"\ngpu = \"H100-80\"\npartitions = [\"gpu\"]\nnodes = \"gn[01-02]\"\n";

/// The table of QOS as slurmdbd 22.05, 24.11 and 26.05 print it, with these rows. Without limits all three print the
/// same.
fn qos_of(rows: &str) -> Vec<Limit> {
    let header = read::columns_of_qos().replace(',', "|");
    read::qos(&format!("{header}\nnormal||||||||||||\n{rows}"))
}

fn judged(rows: Vec<Limit>, config: &str, nodes: &str) -> Vec<gpufrac_core::finding::Finding> {
    let settings = Settings {
        running: Some(Running::parse(config, nodes, "PartitionName=all Nodes=x1")),
        limits: Limits {
            rows,
            ..Limits::default()
        },
        ..Settings::default()
    };
    let pools = gpufrac_core::config::Config::parse(POOLS, "gpufrac.toml").unwrap();
    let mut found = Vec::new();
    judge(&settings, &pools, &mut found);
    found
}

const ENFORCED: &str = "AccountingStorageEnforce = associations,limits,qos\nAccountingStorageTRES = cpu,gres/gpu,gres/frac\nSLURM_VERSION = 24.11.5\n";

#[track_caller]
fn one(rows: &str, what: &str, fix: &str) {
    let found = judged(qos_of(rows), ENFORCED, "");
    let [finding] = found.as_slice() else {
        panic!("{rows}: {found:#?}");
    };
    assert_eq!(
        (finding.what.as_str(), finding.fix.as_str()),
        (what, fix),
        "{rows}"
    );
    assert_eq!(finding.severity, gpufrac_core::finding::Severity::Warning);
}

#[test]
fn limits_on_gpus_hold_no_fraction() {
    let limits = "limits no fraction: Slurm counts it as gres/frac";
    one(
        "q||||||||cpu=50,gres/gpu=4||||",
        &format!("MaxTRESPU=gres/gpu=4 {limits}"),
        "sacctmgr modify qos q set MaxTRESPU=gres/gpu=4,gres/frac=400",
    );
    one(
        "q|||gres/gpu=60|||||||||",
        &format!("GrpTRESMins=gres/gpu=60 {limits}"),
        "sacctmgr modify qos q set GrpTRESMins=gres/gpu=60,gres/frac=6000",
    );
    // Types that end.
    one(
        "q||gres/gpu:a=1,gres/gpu:h100=2||||||||||",
        &format!("GrpTRES=gres/gpu:a=1,gres/gpu:h100=2 {limits}"),
        "sacctmgr modify qos q set GrpTRES=gres/gpu:a=-1,gres/gpu:h100=-1,gres/frac=300",
    );
    // A QOS without GPUs.
    one(
        "q|||||gres/gpu=0|||||||",
        &format!("MaxTRES=gres/gpu=0 {limits}"),
        "sacctmgr modify qos q set MaxTRES=gres/gpu=0,gres/frac=0",
    );
    for right in [
        "q||||||||gres/frac=400,gres/gpu=4||||",
        "q||||||||cpu=4||||",
        "q||||||||gres/gpu:half=4||||",
        "q||||||||||gres/gpu=0||",
    ] {
        assert_eq!(judged(qos_of(right), ENFORCED, ""), [], "{right}");
    }
}

#[test]
fn a_least_number_of_gpus_keeps_every_fraction() {
    let least = "because Slurm counts no gres/gpu for it";
    let line = "sacctmgr modify qos q set MinTRES=gres/gpu=-1,gres/frac=13";
    one(
        "q||||||||||gres/gpu=1||",
        &format!("MinTRES=gres/gpu=1: every fraction waits for ever (QOSMinGRES), {least}"),
        line,
    );
    one(
        "q|DenyOnLimit|||||||||gres/gpu=1||",
        &format!("MinTRES=gres/gpu=1: every fraction is refused, {least}"),
        line,
    );
    // Other nodes have whole GPUs, which have no units.
    let nodes = "NodeName=x1 Gres=gpu:a100:4\n";
    let found = judged(qos_of("q||||||||||gres/gpu=1||"), ENFORCED, nodes);
    assert_eq!(
        found[0].fix,
        "sacctmgr modify qos q set MinTRES=gres/gpu=-1"
    );
    // Their Type stays limited as it is.
    assert_eq!(
        judged(qos_of("q||||||||gres/gpu:a100=4||||"), ENFORCED, nodes),
        []
    );
}

#[test]
fn a_limit_on_shards_names_the_sizes_over_it() {
    one(
        "q||||||||gres/shard=40||||",
        "MaxTRESPU=gres/shard=40 counts parts of GPUs, 100 a GPU: a request for gpufrac:0.5 waits for ever",
        "sacctmgr modify qos q set MaxTRESPU=gres/shard=-1,gres/frac=50",
    );
    one(
        "q|DenyOnLimit||||gres/shard=12|||||||",
        "MaxTRES=gres/shard=12 counts parts of GPUs, 100 a GPU: a request for gpufrac:0.125, gpufrac:0.25, gpufrac:0.5 is refused",
        "sacctmgr modify qos q set MaxTRES=gres/shard=-1,gres/frac=50",
    );
    one(
        "q||gres/shard=400||||||||||",
        "GrpTRES=gres/shard=400 counts parts of GPUs, 100 a GPU, and no whole GPU, which has no shards",
        "sacctmgr modify qos q set GrpTRES=gres/shard=-1,gres/frac=400",
    );
    // Both: one line for both findings.
    let found = judged(
        qos_of("q||||||||gres/gpu=1,gres/shard=40||||"),
        ENFORCED,
        "",
    );
    let line = "sacctmgr modify qos q set MaxTRESPU=gres/gpu=1,gres/shard=-1,gres/frac=100";
    assert!(
        found.len() == 2 && found.iter().all(|it| it.fix == line),
        "{found:#?}"
    );
}

#[test]
fn limits_that_slurm_does_not_enforce_are_notes_and_an_unknown_count_comes_first() {
    let config = "AccountingStorageEnforce = none\nAccountingStorageTRES = cpu,gres/gpu\n";
    let found = judged(qos_of("q||||||||gres/gpu=4||||"), config, "");
    assert_eq!(found[0].severity, gpufrac_core::finding::Severity::Note);
    assert!(
        found[0].fix.starts_with(
            "first add gres/frac to AccountingStorageTRES and restart slurmctld, then: sacctmgr"
        ),
        "{found:?}"
    );
}

#[test]
fn associations_are_named_once_with_all_their_users() {
    let text = format!(
        "{}\nlab|root||||||||\nlab|root||||||gres/gpu=9|||\nlab|bio|||gres/gpu=8|||||\nlab|bio|ann|||||gres/gpu=2,cpu=3||\nlab|bio|bob|||||gres/gpu=2||\nlab|bio|eve|fast||||gres/gpu=2||\n",
        read::columns_of_associations().replace(',', "|")
    );
    let found = judged(read::associations(&text), ENFORCED, "");
    let lines: Vec<&str> = found.iter().map(|it| it.fix.as_str()).collect();
    assert_eq!(
        lines,
        [
            "sacctmgr modify cluster lab set MaxTRES=gres/gpu=9,gres/frac=900",
            "sacctmgr modify account where name=bio cluster=lab set GrpTRES=gres/gpu=8,gres/frac=800",
            "sacctmgr modify user where name=ann,bob account=bio cluster=lab set MaxTRES=gres/gpu=2,gres/frac=200",
            "sacctmgr modify user where name=eve account=bio cluster=lab partition=fast set MaxTRES=gres/gpu=2,gres/frac=200",
        ]
    );
    assert_eq!(
        found[1].place.as_deref(),
        Some("sacctmgr show assoc account=bio")
    );
    // A table without a column, or of another form.
    assert_eq!(read::qos("Name|MaxTRESPU\nq|gres/gpu=1\n").len(), 1);
    assert_eq!(read::qos("Unknown field 'foo'\n"), []);
}

/// As slurmctld 24.11.5 and 26.05.5 print it; 22.05 has no reservations of GPUs.
#[test]
fn a_reservation_of_gpus_is_replaced_by_one_of_its_nodes() {
    let of_24 = "ReservationName=r StartTime=2026-11-25T18:30:43 EndTime=2026-11-25T19:30:43 Duration=01:00:00 Nodes=gn01 NodeCnt=1 CoreCnt=64 Features=(null) PartitionName=gpu Flags=   NodeName=gn01 CoreIDs=0-63 TRES=cpu=64,gres/gpu=2 Users=games Groups=(null) Accounts=(null) Licenses=(null) State=ACTIVE BurstBuffer=(null) MaxStartDelay=(null)\n";
    let of_26 = of_24
        .replace("Users=", "AllowedPartitions=(null) QOS=(null) Users=")
        .replace("Flags=  ", "Flags=DAILY,SPEC_NODES")
        .replace("ACTIVE", "INACTIVE");
    let judged = |text: &str| {
        let settings = Settings {
            limits: Limits {
                reservations: records(text),
                ..Limits::default()
            },
            ..Settings::default()
        };
        let pools = gpufrac_core::config::Config::parse(POOLS, "gpufrac.toml").unwrap();
        let mut found = Vec::new();
        judge_reservations(&settings, &pools, &mut found);
        found
    };
    let found = judged(of_24);
    assert!(
        found[0].what.starts_with("TRES=gres/gpu=2 on gn01: "),
        "{found:?}"
    );
    let instead = "scontrol delete ReservationName=r && scontrol create reservation ReservationName=r StartTime=now EndTime=2026-11-25T19:30:43 Nodes=gn01 PartitionName=gpu Users=games";
    assert!(found[0].fix.ends_with(instead), "{found:?}");
    let found = judged(&of_26);
    assert!(
        found[0].fix.contains("StartTime=2026-11-25T18:30:43"),
        "{found:?}"
    );
    assert!(
        found[0].fix.ends_with("Users=games Flags=DAILY"),
        "{found:?}"
    );
    assert_eq!(judged(&of_24.replace(",gres/gpu=2", "")), []);
    assert_eq!(judged(&of_24.replace("Nodes=gn01", "Nodes=gn09")), []);
}
