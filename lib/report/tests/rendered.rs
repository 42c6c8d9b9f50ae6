//! A report in each of its forms, byte by byte.

#![allow(clippy::unwrap_used, reason = "a test stops where it fails")]

use expect_test::expect_file;
use gpufrac_core::rates::{Millionths, Rate, Rates};
use gpufrac_records::usage::{Ended, Full, Larger, Line};
use gpufrac_report::audit::Audit;
use gpufrac_report::days::Days;
use gpufrac_report::hints::Hints;
use gpufrac_report::ledger::{LedgerSlice, Skipped};
use gpufrac_report::own::Enough;
use gpufrac_report::period::Period;
use gpufrac_report::render::{self, Own, Report};
use gpufrac_report::sums::{By, Table};
use jiff::tz::TimeZone;

const DAY: u64 = 86_400;

fn held(user: &str, size: &str, units: u64, idle: u64, ended: Option<Ended>) -> LedgerSlice {
    LedgerSlice {
        job: 7,
        user: user.to_owned(),
        account: "physics, \"old\"".to_owned(),
        pool: "h100".to_owned(),
        size: size.to_owned(),
        units,
        from: DAY / 2,
        to: DAY + DAY / 2,
        busy: units * DAY - idle,
        idle,
        reclaimed: if ended == Some(Ended::Reclaimed) { 3600 * units } else { 0 },
        is_reclaimed: ended == Some(Ended::Reclaimed),
        ended,
        energy_j: 1400,
        memory_mib: Some(20_096),
        peak_memory_mib: Some(5_024),
        ..LedgerSlice::default()
    }
}

fn audit(period: Period) -> Audit {
    let mut audit = Audit::default();
    for line in [
        r#"{"kind":"gpu","version":2,"node":"gn01","gpu_uuid":"GPU-1","pool":"h100","from":0,"until":172800,"boot":{"id":"b","from":0,"until":172800},"devices":[[0,50],[1,50]],"menu":[13,25,50]}"#,
        r#"{"version":2,"job":7,"restart_count":0,"user":"ann","uid":1001,"account":null,"partition":"gpu","node":"gn01","pool":"h100","fraction":"0.25","units":25,"profile":"2g.20gb","gpu_uuid":"GPU-1","device":0,"start":43200,"end":129600,"seconds":86400,"boot":{"id":"b","from":43200,"until":129600}}"#,
        r#"{"version":2,"job":8,"restart_count":0,"user":"bob","uid":1002,"account":null,"partition":"gpu","node":"gn01","pool":"h100","fraction":"0.5","units":50,"profile":"3g.40gb","gpu_uuid":"GPU-1","device":0,"start":43200,"end":129600,"seconds":86400,"boot":{"id":"b","from":43200,"until":129600}}"#,
    ] {
        match Line::parse(line).unwrap() {
            Line::Gpu(gpu) => audit.gpu(gpu),
            Line::Slice(record) => audit.slice(&record),
            Line::End(..) => {}
        }
    }
    assert!(!audit.balance(period, u64::MAX / 2).balances());
    audit
}

/// Two users in two days; `own`: as one of them sees it.
fn report(own: bool) -> Report {
    let period = Period {
        since: 0,
        until: 2 * DAY,
    };
    let rates = Rates {
        currency: "EUR".to_owned(),
        general: Rate {
            gpu_hour: Millionths(1_200_000),
            idle_hour: Millionths(300_000),
        },
        pools: Vec::new(),
        qos: Vec::new(),
    };
    let zone = TimeZone::UTC;
    let (mut table, mut hints) = (Table::new(&[By::User, By::Account]), Hints::default());
    let mut days = Days::new(period, &zone);
    for held in [
        held("ann", "0.25", 25, 100_000, Some(Ended::Done)),
        held("bob <b>", "0.5", 50, 4_000_000, Some(Ended::Reclaimed)),
    ] {
        table.add(&held, &rates);
        hints.add(&held);
        days.add(&held, &rates);
    }
    let job = |job, enough, activity| Own {
        job,
        size: "0.5".to_owned(),
        allocated: 360_000,
        activity,
        memory: (Some(5_024), Some(40_192)),
        enough,
        full: (job == 8).then(|| Full {
            used_mib: 40_000,
            larger: Some(Larger {
                request: "gpufrac:1".to_owned(),
                is_free: false,
            }),
        }),
        next_smaller: (job == 7).then(|| "0.25".to_owned()),
    };
    let smaller = Enough::Smaller {
        fraction: "0.25".to_owned(),
        saved: 180_000,
    };
    let jobs = [
        job(7, smaller, Some(0.256)),
        job(8, Enough::Same, Some(1.0)),
        job(9, Enough::NoSizes, None),
        job(10, Enough::Unmeasured, None),
    ];
    Report {
        period: period.text(&zone),
        table,
        currency: (!own).then(|| rates.currency.clone()),
        hints,
        days: days.sums(&zone),
        skipped: Skipped {
            damaged: 2,
            first: Some("usage.jsonl:3: torn".to_owned()),
            repeated: 0,
        },
        without_records: Some(1),
        own: own.then(|| jobs.into_iter().collect()),
        audit: (!own).then(|| audit(period).balance(period, u64::MAX / 2)),
    }
}

/// A page without its style.
fn body(page: &str) -> String {
    page.split_once("</style>").unwrap().1.to_owned()
}

#[test]
fn a_report_has_its_bytes_in_each_form() {
    for (report, files) in [
        (
            report(false),
            [
                expect_file!["snapshots/all.txt"],
                expect_file!["snapshots/all.csv"],
                expect_file!["snapshots/all.json"],
                expect_file!["snapshots/all.html"],
            ],
        ),
        (
            report(true),
            [
                expect_file!["snapshots/own.txt"],
                expect_file!["snapshots/own.csv"],
                expect_file!["snapshots/own.json"],
                expect_file!["snapshots/own.html"],
            ],
        ),
    ] {
        let page = render::page(&report);
        let forms = [
            page.text(),
            render::csv::text(&report).unwrap(),
            render::json::text(&report).unwrap(),
            body(&page.html()),
        ];
        for (file, text) in files.iter().zip(&forms) {
            file.assert_eq(text);
        }
    }
}
