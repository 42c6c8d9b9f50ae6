//! The solver's proof, checked by simulation: a million random arrivals and departures on every geometry.
//!
//! The GPU of this test is a separate and simple model: a row of memory slices with an owner each, and counters. It
//! does not use the solver's states, shapes or rules; it uses the tables of profiles, and asks `Layout::place` for
//! the position of each job that Slurm would start.

use gpufrac_core::fraction::{Fraction, Units};
use gpufrac_core::geometry::Geometry;
use gpufrac_core::layout::{Candidate, Layout, LayoutKind, Occupied, Side};
use test_seed::Dice;

struct Job {
    device: usize,
    units: u32,
    instance: Candidate,
}

/// Slurm's counts, and the instances on the GPU.
struct CountedGpu<'a> {
    geometry: &'a Geometry,
    owners: Vec<Option<u64>>,
    free_units: Vec<u32>,
    jobs: Vec<(u64, Job)>,
    next: u64,
}

impl<'a> CountedGpu<'a> {
    fn new(geometry: &'a Geometry, layout: &Layout) -> Self {
        CountedGpu {
            geometry,
            owners: vec![None; geometry.memory_slices.into()],
            free_units: vec![layout.capacity.0; layout.sides.len()],
            jobs: Vec::new(),
            next: 0,
        }
    }

    fn standing(&self) -> Vec<Occupied> {
        let instances = self.jobs.iter().map(|(_, job)| Occupied {
            profile_id: job.instance.profile_id,
            placement: job.instance.placement,
        });
        instances.collect()
    }

    /// Slurm starts a job: each request that the count admits must get a valid position.
    fn arrive(&mut self, layout: &Layout, device: usize, units: Units, price: u32) {
        let side = layout.sides[device];
        let standing = self.standing();
        let Some(instance) = layout.place(side, units, &standing) else {
            panic!(
                "{}: {units} units were admitted in {side} and have no place beside {standing:?}",
                self.geometry.model
            );
        };
        let profile = self
            .geometry
            .profile(instance.profile_id)
            .expect("a profile of the table");
        assert!(profile.placements.contains(&instance.placement));
        let first = usize::from(instance.placement.start);
        for slice in first..first + usize::from(instance.placement.size) {
            assert!(half_of(self.geometry, side).contains(&slice), "{side}");
            assert_eq!(self.owners[slice], None, "slice {slice} is taken");
            self.owners[slice] = Some(self.next);
        }
        self.free_units[device] -= price;
        let job = Job {
            device,
            units: price,
            instance,
        };
        self.jobs.push((self.next, job));
        self.next += 1;
        self.check_budgets(layout);
    }

    fn leave(&mut self, index: usize) {
        let (id, job) = self.jobs.swap_remove(index);
        for owner in &mut self.owners {
            if *owner == Some(id) {
                *owner = None;
            }
        }
        self.free_units[job.device] += job.units;
    }

    fn check_budgets(&self, layout: &Layout) {
        for (device, side) in layout.sides.iter().enumerate() {
            let used: u8 = self.compute_of(|job| job.device == device);
            assert!(used <= compute_of_half(self.geometry, *side), "{side}");
        }
        assert!(self.compute_of(|_| true) <= self.geometry.compute_slices);
        for profile in &self.geometry.profiles {
            let count = self
                .jobs
                .iter()
                .filter(|(_, job)| job.instance.profile_id == profile.id)
                .count();
            assert!(count <= profile.max_instances as usize, "{}", profile.name);
        }
    }

    fn compute_of(&self, which: impl Fn(&Job) -> bool) -> u8 {
        let jobs = self.jobs.iter().filter(|(_, job)| which(job));
        jobs.map(|(_, job)| {
            let profile = self.geometry.profile(job.instance.profile_id);
            profile.expect("a profile of the table").compute_slices
        })
        .sum()
    }
}

/// The half of a GPU, as the design defines it and not as the solver computes it.
fn half_of(geometry: &Geometry, side: Side) -> std::ops::Range<usize> {
    let all = usize::from(geometry.memory_slices);
    match side {
        Side::Left => 0..all / 2,
        Side::Right => all / 2..all,
        Side::Whole => 0..all,
    }
}

fn compute_of_half(geometry: &Geometry, side: Side) -> u8 {
    match (geometry.compute_slices, side) {
        (7, Side::Left) => 4,
        (7, Side::Right) => 3,
        (4, Side::Left | Side::Right) => 2,
        (all, _) => all,
    }
}

const EVENTS: usize = 1_000_000;

/// Promise (placement): a million random starts and ends on each built-in geometry agree with the proof.
#[test]
fn a_million_events_are_all_placed() {
    let kinds = [
        (LayoutKind::Halves, false, None),
        (LayoutKind::Halves, true, None),
        (LayoutKind::Slices, false, None),
        (LayoutKind::Uniform, false, Some("1/2")),
        (LayoutKind::Uniform, true, Some("1/2")),
        (LayoutKind::Uniform, false, Some("1/4")),
        (LayoutKind::Uniform, true, Some("1/4")),
        (LayoutKind::Whole, false, None),
    ];
    let models = Geometry::builtin_names();
    let share = EVENTS.div_ceil(models.len() * kinds.len());
    let mut dice = Dice::new(test_seed::seed());
    let (mut events, mut admitted, mut fullest) = (0, 0, 0);
    for model in models {
        let geometry = Geometry::builtin(model).unwrap();
        for (kind, equal, piece) in kinds {
            let menu: Vec<Fraction> = piece.iter().map(|size| size.parse().unwrap()).collect();
            let layout = Layout::solve(&geometry, kind, &menu, equal).unwrap();
            let mut gpu = CountedGpu::new(&geometry, &layout);
            let mut done = 0;
            while done < share {
                // Periods of many and of few arrivals, so that nearly full and nearly empty GPUs occur.
                let crowd = if done / 500 % 2 == 0 { 7 } else { 4 };
                if gpu.jobs.is_empty() || dice.below(10) < crowd {
                    let device = dice.below(layout.sides.len());
                    let units = layout.menu[dice.below(layout.menu.len())].units;
                    if units.0 <= gpu.free_units[device] {
                        gpu.arrive(&layout, device, units, units.0);
                        admitted += 1;
                    }
                } else {
                    let index = dice.below(gpu.jobs.len());
                    gpu.leave(index);
                }
                fullest = fullest.max(gpu.jobs.len());
                done += 1;
            }
            events += done;
        }
    }
    assert!(events >= EVENTS);
    // The random sequence must be a real test: many arrivals, and GPUs filled to the last slice.
    assert!(admitted > EVENTS / 4, "{admitted}");
    assert_eq!(fullest, 7);
}

/// The simulation detects a wrong layout: with the prices of another GPU a request soon has no position.
#[test]
fn the_simulator_finds_a_wrong_price() {
    let geometry = Geometry::builtin("H100-80").unwrap();
    let layout = Layout::solve(&geometry, LayoutKind::Halves, &[], false).unwrap();
    let mut dice = Dice::new(test_seed::seed());
    let mut stuck = false;
    let mut gpu = CountedGpu::new(&geometry, &layout);
    for _ in 0..10_000 {
        let device = dice.below(2);
        let entry = &layout.menu[dice.below(3)];
        // At 12 units for an eighth, four of them fit in a half by counting.
        let price = if entry.units.0 == 13 { 12 } else { entry.units.0 };
        if price <= gpu.free_units[device] {
            if layout
                .place(layout.sides[device], entry.units, &gpu.standing())
                .is_none()
            {
                stuck = true;
                break;
            }
            gpu.arrive(&layout, device, entry.units, price);
        }
        if !gpu.jobs.is_empty() && dice.below(3) == 0 {
            let index = dice.below(gpu.jobs.len());
            gpu.leave(index);
        }
    }
    assert!(stuck);
}
