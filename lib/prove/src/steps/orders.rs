//! Random orders of jobs against the solver: each job that Slurm's count admits finds its place, and what the solver
//! calls taken the driver refuses.

use std::collections::BTreeSet;
use std::time::Instant;

use gpufrac_core::layout::{Candidate, Layout, LayoutKind, Occupied, Side};
use gpufrac_nvml::codes;

use crate::driver::{Stop, named, said};
use crate::work::{Made, Work};

/// The seed of the random numbers: the same orders in each run.
const SEED: u64 = 33;

/// A job with its slice.
struct Job<'s> {
    side: Side,
    units: u32,
    made: Made<'s>,
}

pub fn orders(work: &Work<'_, '_>) -> Result<(), Stop> {
    let halves = Layout::solve(&work.geometry, LayoutKind::Halves, &[], false);
    let slices = Layout::solve(&work.geometry, LayoutKind::Slices, &[], false);
    let layouts: Vec<Layout> = [halves, slices].into_iter().flatten().collect();
    if layouts.is_empty() {
        work.not_measured("random orders of jobs", "no layout is possible on this GPU");
        return Ok(());
    }
    let begin = Instant::now();
    let mut random = fastrand::Rng::with_seed(SEED);
    let mut done = 0;
    let mut states = BTreeSet::new();
    while done < work.pace.orders && begin.elapsed() < work.pace.order_time {
        if work.out_of_time() {
            break;
        }
        // Each second order has whole jobs of the equal slices only where both layouts exist.
        let layout = &layouts[done as usize % layouts.len()];
        order(work, layout, &mut random, &mut states)?;
        done += 1;
    }
    let wanted = work.pace.orders;
    work.note(
        "random orders of jobs",
        format!("{done} of {wanted}, seed {SEED}"),
    );
    work.note("different states of the GPU in them", states.len());
    work.only_own()
}

fn order<'s>(
    work: &Work<'_, 's>,
    layout: &Layout,
    random: &mut fastrand::Rng,
    states: &mut BTreeSet<Vec<(u32, u8)>>,
) -> Result<(), Stop> {
    let mut jobs: Vec<Job<'s>> = Vec::new();
    for _ in 0..work.pace.events {
        let leaves = !jobs.is_empty() && random.u8(0..3) == 0;
        if leaves {
            let job = jobs.swap_remove(random.usize(0..jobs.len()));
            work.remove(&job.made)?;
        } else {
            arrive(work, layout, random, &mut jobs)?;
        }
        let mut state: Vec<(u32, u8)> = occupied(&jobs)
            .iter()
            .map(|it| (it.profile_id, it.placement.start))
            .collect();
        state.sort_unstable();
        states.insert(state);
    }
    for job in &jobs {
        work.remove(&job.made)?;
    }
    Ok(())
}

fn occupied(jobs: &[Job<'_>]) -> Vec<Occupied> {
    let instances = jobs.iter().map(|job| Occupied {
        profile_id: job.made.profile_id,
        placement: job.made.placement,
    });
    instances.collect()
}

fn arrive<'s>(
    work: &Work<'_, 's>,
    layout: &Layout,
    random: &mut fastrand::Rng,
    jobs: &mut Vec<Job<'s>>,
) -> Result<(), Stop> {
    let side = layout.sides[random.usize(0..layout.sides.len())];
    let units = layout.menu[random.usize(0..layout.menu.len())].units;
    let of_side = jobs.iter().filter(|job| job.side == side);
    let used: u32 = of_side.map(|job| job.units).sum();
    let standing = occupied(jobs);
    if used + units.0 > layout.capacity.0 {
        return taken(work, layout, side, units, &standing);
    }
    let found = layout.place(side, units, &standing);
    let question = "the solver has a place for each job that Slurm's count admits";
    work.check(
        question,
        layout.kind,
        "a place",
        found.map_or("none", |_| "a place"),
    );
    let Some(Candidate {
        profile_id,
        placement,
    }) = found
    else {
        return Ok(());
    };
    let name = work.place_name(profile_id, placement);
    let made = work.make_bare(profile_id, placement)?;
    let question = "the driver makes the instance that the solver chooses";
    work.check(question, name, "success (0)", said(&made));
    jobs.extend(made.ok().map(|made| Job {
        side,
        units: units.0,
        made,
    }));
    Ok(())
}

/// Where Slurm's count is used up, the first place that the solver calls taken.
fn taken(
    work: &Work<'_, '_>,
    layout: &Layout,
    side: Side,
    units: gpufrac_core::fraction::Units,
    standing: &[Occupied],
) -> Result<(), Stop> {
    let mut wanted = layout.preference(side, units).iter();
    let full = wanted.find(|it| !layout.has_room(side, **it, standing));
    let Some(&Candidate {
        profile_id,
        placement,
    }) = full.filter(|it| {
        standing
            .iter()
            .any(|other| other.placement.overlaps(it.placement))
    })
    else {
        return Ok(());
    };
    let name = work.place_name(profile_id, placement);
    let made = work.make_bare(profile_id, placement)?;
    let question = "the driver refuses an instance where the solver sees no room";
    work.check(
        question,
        name,
        named(codes::INSUFFICIENT_RESOURCES),
        said(&made),
    );
    match made {
        Ok(made) => work.remove(&made),
        Err(_) => Ok(()),
    }
}
