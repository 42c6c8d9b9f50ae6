//! The codes of calls that cannot work.

use gpufrac_core::geometry::Placement;
use gpufrac_nvml::codes;

use crate::driver::{Stop, named, said};
use crate::work::{Made, Work};

/// Ids of compute instances that are asked for: twice as many as exist.
const COMPUTE_IDS: u32 = 16;
/// Ids of GPU instances that are asked for; the greatest that exists is 14.
const INSTANCE_IDS: u32 = 21;

pub fn errors(work: &Work<'_, '_>) -> Result<(), Stop> {
    let Some((smallest, place, last)) = work.smallest_places() else {
        return Ok(());
    };
    let Some(made) = work.make(smallest, place)? else {
        return Ok(());
    };
    let wrong_size = Placement {
        size: last.size + 1,
        ..last
    };
    let wrong_start = Placement {
        start: work.geometry.memory_slices,
        ..last
    };
    for (place, what, code) in [
        (place, "an occupied place", codes::INSUFFICIENT_RESOURCES),
        (wrong_size, "a wrong size", codes::INVALID_ARGUMENT),
        (
            wrong_start,
            "a start behind the last slice",
            codes::INVALID_ARGUMENT,
        ),
    ] {
        refused(work, smallest, place, what, code)?;
    }
    absent_compute(work, &made)?;
    absent_instances(work)?;
    work.remove(&made)?;
    let largest = work
        .plain()
        .max_by_key(|it| (it.memory_slices(), it.compute_slices))
        .cloned();
    if let Some(largest) = largest
        && let Some(&place) = largest.placements.first()
        && let Some(made) = work.make(largest.id, place)?
    {
        absent_compute(work, &made)?;
        work.remove(&made)?;
    }
    work.only_own()
}

/// An instance that the driver must refuse; one that it makes is removed.
fn refused(
    work: &Work<'_, '_>,
    profile: u32,
    place: Placement,
    what: &str,
    code: u32,
) -> Result<(), Stop> {
    let made = work.make_bare(profile, place)?;
    let question = format!("the code of a create at {what}");
    work.check(&question, "", named(code), said(&made));
    match made {
        Ok(made) => work.remove(&made),
        Err(_) => Ok(()),
    }
}

/// Compute instances that do not exist. INVALID_ARGUMENT is as good as NOT_FOUND where the id is above the most
/// compute instances.
fn absent_compute(work: &Work<'_, '_>, made: &Made<'_>) -> Result<(), Stop> {
    let profile = work.profile_name(made.profile_id);
    let own = made.compute.as_ref().map(|compute| compute.ci_id);
    let call = "nvmlGpuInstanceGetComputeInstanceById";
    for id in 0..COMPUTE_IDS {
        let answer = work.ask(call, format!("{profile}, {id}"), |calls| {
            calls.compute_instance_by_id(made.gi, id)
        })?;
        let subject = format!("compute instance {id} of {profile}");
        if Some(id) == own {
            let question = "a compute instance is found by its id";
            work.check(question, subject, "success (0)", said(&answer));
            continue;
        }
        if id < crate::driver::COMPUTE_IDS {
            let question = "the code for the id of an absent compute instance";
            work.check(question, subject, named(codes::NOT_FOUND), said(&answer));
        } else {
            let question = "the code for ids above the most compute instances";
            work.note(question, said(&answer));
        }
    }
    Ok(())
}

fn absent_instances(work: &Work<'_, '_>) -> Result<(), Stop> {
    let own: Vec<u32> = work.all()?.iter().map(|it| it.gi_id).collect();
    for id in 0..INSTANCE_IDS {
        let call = "nvmlDeviceGetGpuInstanceById";
        let answer = work.ask(call, id, |calls| calls.gpu_instance_by_id(id))?;
        if !own.contains(&id) {
            let question = "the code for the id of an absent GPU instance";
            work.check(question, id, named(codes::NOT_FOUND), said(&answer));
        }
    }
    Ok(())
}
