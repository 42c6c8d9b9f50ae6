//! One disturbance at a time, moved in small steps over the moments at which it matters.

use std::time::Duration;

use fastrand::Rng;
use gpufrac_core::policy::IdleWish;

use crate::oracle;
use crate::plans::Part;
use crate::play::play;
use crate::site::{Class, Site};
use crate::world::{ADA, Submission, World};

const INTERVAL: Duration = Duration::from_secs(10);
const WINDOW: Duration = Duration::from_secs(300);

fn site() -> Site {
    Site {
        interval: INTERVAL,
        grace: Duration::ZERO,
        never_used: WINDOW,
        idle: WINDOW,
        warn: vec![INTERVAL * 5],
        second_warning: INTERVAL,
        checkpoint: INTERVAL,
        gpus: vec![1],
        reaps_per_hour: u32::MAX,
        node_share: 100,
        trouble: None,
        restarts: None,
    }
}

/// A job that computes, then pauses until `wakes` after the end of its work, computes for `length`, then never again.
fn job(wakes: Duration, length: Duration) -> Submission {
    Submission {
        arrival: Duration::ZERO,
        units: 1,
        of: 7,
        class: Class::Plain,
        wish: IdleWish::Default,
        batch: true,
        deaf: false,
        plans: vec![vec![Part::Program(vec![
            (1.0, INTERVAL * 3),
            (0.0, wakes),
            (1.0, length),
            (0.0, WINDOW * 2),
        ])]],
        beside: Vec::new(),
        user: ADA,
    }
}

/// Plays one job; returns when it was ended, counted from the start of its plan.
fn ended(number: u64, job: Submission, disturb: impl FnOnce(&mut World)) -> Option<Duration> {
    let mut world = World::new(site(), vec![job], Rng::with_seed(number));
    disturb(&mut world);
    let played = play(world);
    let job = &played.world.jobs[0];
    let wrong = oracle::judge_ends(&played.world.site, job);
    let log = played.log.lines("decision=");
    assert!(wrong.is_empty(), "{number}: {wrong:?}\n{}", log.join("\n"));
    let run = &job.runs[0];
    run.decided.map(|decided| decided - run.begin)
}

/// Promise (reaper): warnings survive a restart of the daemon; missing data counts as use.
/// With `a_job_that_becomes_active_while_slurm_answers_is_not_ended`, `a_warning_outlives_the_daemon`,
/// `time_without_a_daemon_counts_as_use`.
// Activity of a job while the machine stands still is not seen, so the time counts as activity.
#[test]
fn a_pause_of_the_machine_counts_as_use() {
    // Longer than the longest gap: three intervals in the second half of the window, six in the first.
    for (number, step) in (2..28).enumerate() {
        let wakes = INTERVAL * step;
        let length = INTERVAL * if wakes < WINDOW / 2 { 8 } else { 5 };
        let end = ended(number as u64, job(wakes, length), |world| {
            // The current measurement ends before it, and the prolog takes up to two seconds.
            let before = INTERVAL.mul_f64(1.2);
            let from = world.now + INTERVAL * 3 + wakes - before;
            world.standstill_at(from, before + length + Duration::from_secs(3));
        });
        assert!(
            end.is_some(),
            "{number}: a job that is idle afterwards ends"
        );
    }
}

/// Promise (admins): gpufrac-reaperd shows each slice with its use, idle time, warnings and end in `status.json` after
/// each round; a write that fails or hangs stops no round.
/// With `the_file_is_written_in_each_round_and_its_copy_when_a_slice_changes_or_after_a_pause`,
/// `a_shared_folder_that_is_gone_is_reported_and_the_node_still_shown`, `room_is_what_slurm_still_counts`.
// Users see how long a slice has been idle, the warning, and the end that then comes.
#[test]
fn users_see_the_idle_time_the_warning_and_the_end() {
    let mut world = World::new(
        site(),
        vec![job(WINDOW * 2, Duration::ZERO)],
        Rng::with_seed(1),
    );
    world.kept.shown = Some(Vec::new());
    let mut world = play(world).world;
    let shown = world.kept.shown.take().unwrap_or_default();
    assert!(
        world.jobs[0].runs[0].decided.is_some(),
        "an idle job is ended"
    );
    let step = INTERVAL.as_secs();
    let (mut busy, mut idle, mut warned) = (0, 0, 0);
    for node in &shown {
        assert_eq!((node.node.as_str(), node.interval), ("n1", 10));
        let Some(slice) = node.gpus[0].slices.first() else {
            continue;
        };
        let Some(usage) = &slice.usage else { continue };
        busy += u32::from(usage.activity > Some(0.9) && usage.idle <= step);
        assert_eq!(usage.window, Some(WINDOW.as_secs()));
        match usage.warnings {
            0 => {
                assert!(usage.ends.is_none() && usage.idle <= WINDOW.as_secs() - 4 * step);
                idle += u32::from(usage.idle > 3 * step);
            }
            1 => {
                // None from the end on, until the lease is gone.
                let Some(ends) = usage.ends else { continue };
                // The end is due when the window is over.
                let due = node.written + WINDOW.as_secs() - usage.idle;
                assert!(ends.abs_diff(due) <= 2 * step, "{ends} is not {due}");
                warned += 1;
            }
            more => panic!("{more} warnings"),
        }
    }
    assert!(
        busy >= 2 && idle >= 10 && warned >= 3,
        "{busy} {idle} {warned}"
    );
}

/// Slurm needs most of an interval for each answer, and the job becomes active again meanwhile.
#[test]
fn a_job_that_becomes_active_while_slurm_answers_is_not_ended() {
    let mut spared = 0;
    for number in 0..120 {
        let wakes = WINDOW - INTERVAL * 2 + INTERVAL.mul_f64(number as f64 / 15.0);
        let end = ended(number, job(wakes, WINDOW / 2), |world| {
            world.slow_answers = (u32::MAX, INTERVAL.mul_f64(0.8));
        });
        let woke = INTERVAL * 3 + wakes;
        spared += u32::from(end.is_none_or(|end| end > woke + WINDOW));
    }
    // Jobs that become active later are ended before.
    assert!((20..120).contains(&spared), "{spared} were spared");
}

/// Promise (reaper): dry-run touches nothing and does not count later; a node ends no more than so many an hour.
/// With `a_dry_run_touches_nothing_and_does_not_count_later`.
// The hour of `reaps_per_hour` begins when a job has ended, however long that took.
#[test]
fn the_limit_of_an_hour_counts_from_the_end_of_a_job() {
    let hour = Duration::from_secs(3600);
    let mut delayed = 0;
    for number in 0..30 {
        let site = Site {
            gpus: vec![1; 2],
            reaps_per_hour: 1,
            ..site()
        };
        let idle = Submission {
            plans: vec![vec![Part::Pause(hour * 3)]],
            ..job(Duration::ZERO, Duration::ZERO)
        };
        let mut world = World::new(site, vec![idle; 2], Rng::with_seed(number));
        world.slow_answers = (number as u32, INTERVAL.mul_f64(0.8));
        let world = play(world).world;
        let ends = world.ends();
        assert_eq!(ends.len(), 2, "{number}");
        assert!(ends[1] - ends[0] >= hour, "{number}: {ends:?}");
        delayed += u32::from(world.jobs.iter().any(|job| {
            let run = &job.runs[0];
            run.decided < run.end.map(|(at, _)| at)
        }));
    }
    assert!(delayed > 0, "Slurm never took long");
}

/// A job computes on its second slice after the first one has long been idle, and then on none.
#[test]
fn a_job_lives_as_long_as_one_of_its_slices_is_used() {
    for (number, step) in (2..28).enumerate() {
        let (wakes, length) = (INTERVAL * 3 + INTERVAL * step, INTERVAL * 8);
        let first = job(Duration::ZERO, Duration::ZERO);
        let on_second = vec![
            Part::Pause(wakes),
            Part::Program(vec![(1.0, length), (0.0, WINDOW * 3)]),
        ];
        let submission = Submission {
            plans: vec![vec![Part::Program(vec![
                (1.0, INTERVAL * 3),
                (0.0, WINDOW * 6),
            ])]],
            beside: vec![on_second],
            ..first
        };
        let end = ended(number as u64, submission, |_| {});
        let end = end.unwrap_or_else(|| panic!("{number}: it was idle on both in the end"));
        let used = wakes + length;
        assert!(
            end >= used + WINDOW - INTERVAL * 2,
            "{number}: {end:?} after {used:?}"
        );
        assert!(
            end <= used + WINDOW + INTERVAL * 12,
            "{number}: {end:?} after {used:?}"
        );
    }
}

/// Jobs of one slice each that are always idle or always busy; returns the ended ones by user.
fn ended_of(number: u64, jobs: &[(u32, bool)]) -> (Vec<u32>, u32) {
    let site = Site {
        gpus: vec![1; jobs.len()],
        node_share: 50,
        ..site()
    };
    let submissions = jobs.iter().map(|(user, is_busy)| Submission {
        plans: vec![match is_busy {
            true => vec![Part::Program(vec![(1.0, WINDOW * 6)])],
            false => vec![Part::Pause(WINDOW * 6)],
        }],
        user: *user,
        ..job(Duration::ZERO, Duration::ZERO)
    });
    let world = World::new(site, submissions.collect(), Rng::with_seed(number));
    let played = play(world);
    let mut ended = Vec::new();
    for job in &played.world.jobs {
        let wrong = oracle::judge_ends(&played.world.site, job);
        assert!(wrong.is_empty(), "{number}: {wrong:?}");
        if job.runs[0].decided.is_some() {
            ended.push(job.submission.user);
        }
    }
    (ended, played.tally.rounds_with_open_breaker)
}

const BOB: u32 = 1001;
const EVE: u32 = 1002;

/// Eve's idle slices are most of the node's, as with faulty telemetry; Bob's busy slices show that the telemetry works.
#[test]
fn idle_slices_of_one_user_do_not_open_the_breaker() {
    for number in 0..10 {
        let eve = [(EVE, false); 8];
        let others = [(BOB, true), (BOB, true), (ADA, false), (BOB, true)];
        let (mut ended, open) = ended_of(number, &[&eve[..], &others].concat());
        ended.sort_unstable();
        assert_eq!(ended, [&[ADA][..], &[EVE; 8]].concat(), "{number}");
        assert_eq!(open, 0, "{number}");
    }
}

/// All slices of all users look idle: the telemetry is probably faulty.
#[test]
fn idle_slices_of_all_users_open_the_breaker() {
    for number in 0..10 {
        let eve = [(EVE, false); 8];
        let others = [(BOB, false), (ADA, false)];
        for jobs in [&eve[..], &[&eve[..], &others].concat()] {
            let (ended, open) = ended_of(number, jobs);
            assert_eq!(ended, Vec::<u32>::new(), "{number}");
            assert!(open > 0, "{number}");
        }
    }
}
