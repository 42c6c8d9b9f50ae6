//! Plays the rounds of a daemon in a world, as `gpufrac-reaperd` runs them, with disturbances between rounds.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use fastrand::Rng;
use gpufrac_reaper::daemon::Daemon;
use gpufrac_reaper::measure::telemetry::SHORTEST_LOOK;
use gpufrac_reaper::report::metrics::Snapshot;
use gpufrac_reaper::rhythm::{LookScope, Rhythm};

use crate::simulated::{Log, Simulated};
use crate::world::World;

/// The end of a play.
pub struct Played {
    pub world: World,
    pub log: Log,
    /// How often events happened, so that a test can check that they occurred.
    pub tally: Tally,
}

/// How often each event happened.
#[derive(Clone, Copy, Debug, Default)]
pub struct Tally {
    pub rounds: u64,
    pub restarts: u32,
    pub rounds_with_open_breaker: u32,
    pub unknown_samples: u64,
    pub slurm_errors: u64,
    pub refused_rate: u64,
}

impl Tally {
    /// Adds the numbers of another play.
    pub fn add(&mut self, other: &Tally) {
        self.rounds += other.rounds;
        self.restarts += other.restarts;
        self.rounds_with_open_breaker += other.rounds_with_open_breaker;
        self.unknown_samples += other.unknown_samples;
        self.slurm_errors += other.slurm_errors;
        self.refused_rate += other.refused_rate;
    }

    /// Whether every event happened that does not depend on chance; the hourly limit may be out of reach.
    pub fn has_all(&self) -> bool {
        let small = [self.restarts, self.rounds_with_open_breaker];
        let large = [self.unknown_samples, self.slurm_errors];
        !small.contains(&0) && !large.contains(&0)
    }
}

struct Player {
    world: Rc<RefCell<World>>,
    outside: Simulated,
    log: Log,
    snapshot: Arc<Mutex<Snapshot>>,
    dice: Rng,
    tally: Tally,
    next_trouble: Duration,
    next_restart: Duration,
}

/// Plays until all jobs have ended.
pub fn play(mut world: World) -> Played {
    let dice = world.dice.fork();
    let world = Rc::new(RefCell::new(world));
    let player = Player {
        outside: Simulated(Rc::clone(&world)),
        world: Rc::clone(&world),
        log: Log::default(),
        snapshot: Arc::default(),
        dice,
        tally: Tally::default(),
        next_trouble: Duration::ZERO,
        next_restart: Duration::ZERO,
    };
    let (log, tally) = player.play();
    let world = Rc::try_unwrap(world).unwrap_or_else(|_| panic!("the daemon is gone"));
    let world = world.into_inner();
    Played { world, log, tally }
}

impl Player {
    fn play(mut self) -> (Log, Tally) {
        let mut daemon = self.start();
        self.plan_trouble();
        self.plan_restart();
        loop {
            let (is_over, now) = {
                let world = self.world.borrow();
                (world.is_over(), world.now)
            };
            if is_over {
                break;
            }
            if now >= self.next_restart {
                daemon.stop();
                daemon = self.restart(daemon, Duration::from_secs(5));
                self.plan_restart();
            }
            if now >= self.next_trouble {
                daemon = self.trouble(daemon);
                self.plan_trouble();
            }
            self.round(&mut daemon);
        }
        daemon.stop();
        drop(daemon);
        self.count();
        (self.log, self.tally)
    }

    fn start(&self) -> Daemon {
        let node = self.world.borrow().site.node();
        let outside = self.outside.outside(&self.log);
        Daemon::start(node, outside, Arc::clone(&self.snapshot)).unwrap()
    }

    /// A round as in `wait.rs`.
    fn round(&mut self, daemon: &mut Daemon) {
        let rhythm = daemon.rhythm();
        let (began, changed) = {
            let mut world = self.world.borrow_mut();
            (world.now, std::mem::take(&mut world.changed))
        };
        let mut was_cut = false;
        daemon.round(changed, |scope| self.observe(rhythm, scope, &mut was_cut));
        self.tally.rounds += 1;
        if self.snapshot().node_breaker {
            self.tally.rounds_with_open_breaker += 1;
            // Only the daemon knows when in the round the breaker was open.
            self.world.borrow_mut().breaker_is_open(began);
        }
        let mut world = self.world.borrow_mut();
        let rest = rhythm.rest(world.now - began, was_cut, self.dice.f64());
        world.pass(rest);
    }

    fn observe(&self, rhythm: Rhythm, scope: LookScope, was_cut: &mut bool) -> bool {
        let mut world = self.world.borrow_mut();
        let began = world.now;
        let end = began + rhythm.look;
        world.pass_while_looking(end, scope);
        *was_cut = world.now < end;
        world.now - began >= SHORTEST_LOOK
    }

    fn snapshot(&self) -> std::sync::MutexGuard<'_, Snapshot> {
        self.snapshot.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn plan_trouble(&mut self) {
        let world = self.world.borrow();
        self.next_trouble = match world.site.trouble {
            Some(mean) => world.now + mean.mul_f64(4.0 * self.dice.f64()),
            None => Duration::MAX,
        };
    }

    fn plan_restart(&mut self) {
        let world = self.world.borrow();
        let time = world.site.restarts.unwrap_or(Duration::MAX);
        self.next_restart = world.now.saturating_add(time);
    }

    /// Another daemon takes over after a while.
    fn restart(&mut self, daemon: Daemon, absence: Duration) -> Daemon {
        drop(daemon);
        self.count();
        self.world.borrow_mut().pass(absence);
        self.tally.restarts += 1;
        self.start()
    }

    /// A disturbance between two rounds.
    fn trouble(&mut self, mut daemon: Daemon) -> Daemon {
        let interval = self.world.borrow().site.interval;
        match self.dice.u8(0..5) {
            // The wall clock is set.
            0 => {
                let step = self.dice.i64(-90_000..90_000) / self.dice.i64(1..10_000);
                self.world.borrow_mut().wall_step += step;
            }
            1 => daemon.reload(self.world.borrow().site.node()),
            2 => self.world.borrow_mut().stand_still(),
            // The daemon ends or is killed, and starts again; rarely without its state.
            kind => {
                if kind == 3 {
                    daemon.stop();
                }
                if self.dice.u8(0..8) == 0 {
                    let mut world = self.world.borrow_mut();
                    world.kept.state = None;
                    let now = world.now;
                    world.kept.lost.push(now);
                }
                let absence = interval.mul_f64(10.0 * self.dice.f64());
                daemon = self.restart(daemon, absence);
            }
        }
        daemon
    }

    /// Adds the numbers of a daemon.
    fn count(&mut self) {
        let totals = self.snapshot().totals.clone();
        let tally = &mut self.tally;
        tally.unknown_samples = tally.unknown_samples.max(totals.unknown_samples);
        tally.slurm_errors = tally.slurm_errors.max(totals.slurm_errors);
        tally.refused_rate = tally.refused_rate.max(totals.refused_rate);
    }
}
