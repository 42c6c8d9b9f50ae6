//! The work of jobs: programs, busy or idle, and pauses between them.

use std::time::Duration;

use fastrand::Rng;

/// A random time from `least` to `most`.
pub fn between(dice: &mut Rng, least: Duration, most: Duration) -> Duration {
    least + (most.saturating_sub(least)).mul_f64(dice.f64())
}

/// A part of a job's work.
#[derive(Clone, Debug)]
pub enum Part {
    /// No program runs.
    Pause(Duration),
    /// A program: pairs of activity (0 to 1) and duration.
    Program(Vec<(f64, Duration)>),
}

impl Part {
    /// The length of the part.
    pub fn length(&self) -> Duration {
        match self {
            Part::Pause(length) => *length,
            Part::Program(steps) => steps.iter().map(|(_, length)| *length).sum(),
        }
    }
}

/// A program on the GPU.
#[derive(Clone, Debug)]
pub struct Program {
    pub from: Duration,
    pub to: Duration,
    pub memory_mib: u64,
}

/// Work on the GPU.
#[derive(Clone, Debug)]
pub struct Busy {
    pub from: Duration,
    pub to: Duration,
    /// The part of the time in which it computes, 0 to 1.
    pub level: f64,
}

/// The activity of a job over time since boot.
#[derive(Clone, Debug, Default)]
pub struct Timeline {
    pub programs: Vec<Program>,
    pub busy: Vec<Busy>,
    /// When the job ends by itself.
    pub end: Duration,
}

impl Timeline {
    /// A timeline of these parts from `begin` on.
    pub fn new(parts: &[Part], begin: Duration, dice: &mut Rng) -> Timeline {
        let mut timeline = Timeline::default();
        let mut at = begin;
        for part in parts {
            let from = at;
            at += part.length();
            let Part::Program(steps) = part else { continue };
            timeline.programs.push(Program {
                from,
                to: at,
                memory_mib: 100 * dice.u64(1..5),
            });
            let mut step_from = from;
            for (level, length) in steps {
                let step_to = step_from + *length;
                if *level > 0.0 {
                    timeline.busy.push(Busy {
                        from: step_from,
                        to: step_to,
                        level: *level,
                    });
                }
                step_from = step_to;
            }
        }
        timeline.end = at;
        timeline
    }

    /// The activity on all slices of a job together.
    pub fn of_all<'t>(slices: impl Iterator<Item = &'t Timeline>) -> Timeline {
        let mut all = Timeline::default();
        for slice in slices {
            all.programs.extend_from_slice(&slice.programs);
            all.busy.extend_from_slice(&slice.busy);
            all.end = all.end.max(slice.end);
        }
        all.programs.sort_by_key(|program| program.from);
        all.busy.sort_by_key(|busy| busy.from);
        all
    }

    /// Ends the job at `at`.
    pub fn cut(&mut self, at: Duration) {
        self.programs.retain(|program| program.from < at);
        self.busy.retain(|busy| busy.from < at);
        for program in &mut self.programs {
            program.to = program.to.min(at);
        }
        for busy in &mut self.busy {
            busy.to = busy.to.min(at);
        }
        self.end = self.end.min(at);
    }

    /// The part of the time between `from` and `to` in which it computed.
    pub fn activity(&self, from: Duration, to: Duration) -> f64 {
        let first = self.busy.partition_point(|busy| busy.to <= from);
        let there = self.busy[first..].iter().take_while(|busy| busy.from < to);
        let computed: f64 = there
            .map(|busy| {
                let overlap = busy.to.min(to).saturating_sub(busy.from.max(from));
                overlap.as_secs_f64() * busy.level
            })
            .sum();
        let length = to.saturating_sub(from).as_secs_f64();
        if length > 0.0 { computed / length } else { 0.0 }
    }

    /// The program that runs at a moment; at most one.
    pub fn program(&self, at: Duration) -> Option<&Program> {
        let first = self.programs.partition_point(|program| program.to <= at);
        self.programs
            .get(first)
            .filter(|program| program.from <= at)
    }
}

/// Random parts in proportion to an interval and a window: programs that compute always, sometimes or never, long and
/// short ones, and pauses.
pub fn random(dice: &mut Rng, interval: Duration, window: Duration) -> Vec<Part> {
    let mut parts = Vec::new();
    let mut left = between(dice, window.mul_f64(0.7), window.mul_f64(3.5));
    while !left.is_zero() {
        let part = match dice.u8(0..7) {
            0 | 1 => Part::Pause(between(dice, Duration::ZERO, window.mul_f64(2.25))),
            // Short programs and pauses in turn.
            2 => Part::Program(vec![(
                1.0,
                between(dice, interval.mul_f64(0.02), interval * 4),
            )]),
            3 => Part::Program(bursts(dice, interval, window)),
            _ => Part::Program(
                (0..dice.u8(1..5))
                    .map(|_| {
                        let level = [0.0, 0.0, 0.01, 0.3, 1.0][dice.usize(0..5)];
                        let most = if dice.bool() { window } else { interval * 8 };
                        (level, between(dice, interval / 10, most))
                    })
                    .collect(),
            ),
        };
        left = left.saturating_sub(part.length());
        parts.push(part);
    }
    parts
}

/// A program that computes for a moment again and again.
fn bursts(dice: &mut Rng, interval: Duration, window: Duration) -> Vec<(f64, Duration)> {
    let busy = between(dice, interval.mul_f64(0.05), interval * 2);
    let pause = between(dice, window.mul_f64(0.05), window.mul_f64(0.9));
    (0..dice.u8(1..8))
        .flat_map(|_| [(0.0, pause), (1.0, busy)])
        .collect()
}
