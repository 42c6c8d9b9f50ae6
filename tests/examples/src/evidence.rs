//! A record of the reaper's decisions.

use gpufrac_core::ids::{JobId, UserId};
use gpufrac_core::policy::{IdleWish, Stall};
use gpufrac_records::evidence::{Decision, Event, Point, Record, Series, Source, VERSION};

const MINUTE: u64 = 60_000;

fn point(samples: u32, unknown: u32, peak: f32, memory_mib: u32) -> Point {
    Point {
        samples,
        unknown,
        busy: if peak > 0.0 { samples } else { 0 },
        peak,
        memory_mib,
        source: Source::Gpm,
    }
}

/// A decision by an idle time of 220 minutes.
pub fn event(minute: u64, decision: Decision, stall: Stall) -> Event {
    Event {
        at_ms: minute * MINUTE,
        decision,
        dry_run: false,
        stall,
        stalled_ms: 220 * MINUTE,
        window_ms: 240 * MINUTE,
        rule: String::new(),
        source: Source::Gpm,
        detail: String::new(),
    }
}

/// Ten hours: activity, a gap, samples with unknown activity, idle until the end; every kind of event.
pub fn record() -> Record {
    let points = (0..120).map(|at| match at {
        0..5 => point(30, 0, 0.0, 0),
        5..40 => point(30, 0, 0.55 + (at % 7) as f32 * 0.07, 14_000 + 40 * at),
        40..50 => point(0, 0, 0.0, 0),
        50..58 => point(30, 30, 0.0, 12_000),
        58..64 => point(30, 3, 0.3, 12_000),
        _ => point(30, 0, 0.0, 9_000),
    });
    let told = |minute, decision| event(minute, decision, Stall::Idle);
    Record {
        version: VERSION,
        job: JobId(4242),
        restart_count: 0,
        user: "alice".to_owned(),
        uid: UserId(1000),
        account: Some("physics".to_owned()),
        partition: "gpu".to_owned(),
        node: "gn07".to_owned(),
        pool: "h100".to_owned(),
        fraction: "0.25".to_owned(),
        profile: "2g.20gb".to_owned(),
        device: "MIG-11111111-2222-3333-4444-555555555555".to_owned(),
        memory_mib: 20_096,
        wish: IdleWish::Default,
        created_unix: 1_795_000_000,
        began_unix: 1_795_000_004,
        series: Series {
            step_ms: 5 * MINUTE,
            points: points.collect(),
        },
        events: vec![
            Event {
                dry_run: true,
                stall: Stall::NeverUsed,
                stalled_ms: 20 * MINUTE,
                window_ms: 120 * MINUTE,
                rule: "interactive".to_owned(),
                ..told(20, Decision::Warn)
            },
            told(26, Decision::Clear),
            told(560, Decision::Warn),
            Event {
                detail: "SIGUSR1 to the batch script".to_owned(),
                ..told(590, Decision::Signal)
            },
            Event {
                detail: "the breaker of the node is open".to_owned(),
                ..told(594, Decision::Refuse)
            },
            told(599, Decision::Requeue),
        ],
        ended_ms: Some(600 * MINUTE),
        full: None,
    }
}
