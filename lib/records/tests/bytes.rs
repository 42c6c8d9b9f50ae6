//! The exact bytes of records, because other programs read them, and the forms of earlier builds.

#![allow(clippy::unwrap_used, reason = "a test stops where it fails")]

use std::time::Duration;

use gpufrac_core::fraction::MemoryMib;
use gpufrac_records::evidence::{Point, Record, Source};
use gpufrac_records::usage::{
    Elapsed, End, Ended, Full, Kind, Larger, Line, SliceKey, Tally, UsageRecord,
};
use test_examples::lease;

const END: End<'_> = End {
    unix: 1_060,
    boot_ms: 460_500,
    boot_id: "b",
};

/// A slice with all that can be known of one.
const USAGE: &str = r#"{"version":2,"job":12,"restart_count":0,"user":"ada","uid":1000,"account":"physics","partition":"gpu","node":"n1","pool":"h100","fraction":"0.25","units":25,"profile":"2g.20gb","gpu_uuid":"GPU-0","device":0,"start":1000,"end":1060,"seconds":60,"boot":{"id":"b","from":400,"until":460},"memory_mib":20096,"used":{"busy":20,"idle":0,"unknown":40,"suspended":0,"activity":0.5,"peak_memory_mib":300,"mean_memory_mib":300,"source":"gpm","warnings":1,"gpu_energy_j":700,"energy_j":200},"returned":600,"ended":"reclaimed"}"#;
/// The second slice of a job without an account, of which nothing was measured.
const BARE: &str = r#"{"version":2,"job":12,"slice":1,"restart_count":0,"user":"ada","uid":1000,"account":null,"partition":"gpu","node":"n1","pool":"h100","fraction":"0.25","units":25,"profile":"2g.20gb","gpu_uuid":"GPU-0","device":0,"start":1000,"end":1060,"seconds":60,"memory_mib":20096}"#;
/// A record of version 1.
const USAGE_1: &str = r#"{"version":1,"job":7,"restart_count":0,"user":"ann","uid":1001,"account":null,"partition":"gpu","node":"n1","pool":"p","fraction":"0.25","units":25,"profile":"2g.20gb","gpu_uuid":"GPU-1","start":1000,"end":1060,"seconds":60}"#;
const EVIDENCE: &str = r#"{"version":1,"job":12,"restart_count":0,"user":"ada","uid":1000,"account":"physics","partition":"gpu","node":"n1","pool":"h100","fraction":"0.25","profile":"2g.20gb","device":"MIG-3","memory_mib":20096,"wish":"default","created_unix":1000,"began_unix":1004,"series":{"step_ms":60000,"points":[{"samples":1,"unknown":0,"busy":1,"peak":0.5,"memory_mib":300,"source":"gpm"}]},"events":[{"at_ms":1200000,"decision":"warn","dry_run":true,"stall":"never-used","stalled_ms":1200000,"window_ms":7200000,"rule":"interactive","source":"gpm","detail":""}],"ended_ms":null}"#;

#[test]
fn usage_records_have_their_bytes() {
    let mut tally = Tally::new(SliceKey::of(&lease(12)));
    tally.add(Elapsed {
        time: Duration::from_secs(20),
        kind: Kind::Busy,
        activity: Some(0.5),
        memory: Some(MemoryMib(300)),
        source: "gpm",
        energy_mj: Some((700_000, 200_000)),
    });
    tally.warnings = 1;
    tally.ended = Some(Ended::Reclaimed);
    tally.returned = Some(600);
    let full = UsageRecord::of(&lease(12), END, Some(&tally));
    let mut bare = lease(12);
    (bare.number, bare.account, bare.created_boot_ms) = (1, None, None);
    let bare = UsageRecord::of(&bare, END, None);
    for (record, bytes) in [(full, USAGE), (bare, BARE)] {
        let line = Line::Slice(Box::new(record));
        assert_eq!(line.to_text().unwrap(), format!("{bytes}\n"));
        assert_eq!(Line::parse(bytes).unwrap(), line);
    }
    let key = SliceKey::of(&lease(12));
    let end = Line::End(key.clone(), Ended::Preempted, 1_060, None);
    let bytes = r#"{"kind":"end","version":2,"job":12,"slice":0,"restart_count":0,"start":1000,"node":"n1","ended":"preempted","end":1060}"#;
    assert_eq!(end.to_text().unwrap(), format!("{bytes}\n"));
    let full = Full {
        used_mib: 20_000,
        larger: Some(Larger {
            request: "gpufrac:0.5".to_owned(),
            is_free: true,
        }),
    };
    let end = Line::End(key, Ended::Done, 1_060, Some(full));
    let bytes = r#"{"kind":"end","version":2,"job":12,"slice":0,"restart_count":0,"start":1000,"node":"n1","ended":"done","end":1060,"full":{"used_mib":20000,"larger":{"request":"gpufrac:0.5","is_free":true}}}"#;
    assert_eq!(end.to_text().unwrap(), format!("{bytes}\n"));
    assert_eq!(Line::parse(bytes).unwrap(), end);
}

#[test]
fn a_usage_record_of_version_1_is_written_again_as_it_was() {
    let line = Line::parse(USAGE_1).unwrap();
    assert_eq!(line.to_text().unwrap(), format!("{USAGE_1}\n"));
}

#[test]
fn evidence_has_its_bytes_and_refuses_an_unknown_key() {
    let mut record = Record::new(&lease(12), 1_004, Duration::from_secs(60));
    let sample = Point {
        samples: 1,
        unknown: 0,
        busy: 1,
        peak: 0.5,
        memory_mib: 300,
        source: Source::Gpm,
    };
    record.series.add(Duration::ZERO, sample);
    record.events = test_examples::evidence::record().events[..1].to_vec();
    assert_eq!(serde_json::to_string(&record).unwrap(), EVIDENCE);
    assert_eq!(serde_json::from_str::<Record>(EVIDENCE).unwrap(), record);
    let unknown = EVIDENCE.replace("\"job\":12,", "\"job\":12,\"other\":1,");
    let error = serde_json::from_str::<Record>(&unknown).unwrap_err();
    assert!(
        error.to_string().contains("unknown field `other`"),
        "{error}"
    );
    let without = EVIDENCE.replace("\"account\":\"physics\",", "");
    assert_eq!(
        serde_json::from_str::<Record>(&without).unwrap().account,
        None
    );
}
