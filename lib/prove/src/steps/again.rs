//! What stays the same when an instance is made again at its place.

use std::collections::BTreeSet;

use gpufrac_core::geometry::Placement;

use crate::driver::Stop;
use crate::work::{Made, Work};

/// What an instance is known by.
struct Identity {
    gi: String,
    uuid: String,
    minors: String,
}

fn identity(work: &Work<'_, '_>, made: &Made<'_>) -> Identity {
    let (gpu, caps) = (work.gpu.minor, &work.caps);
    let compute = made.compute.as_ref();
    let ci = compute.map(|compute| compute.ci_id);
    let minor = |ci| {
        let declared = caps.declared(gpu, made.gi_id, ci);
        declared.map_or_else(|| "none".to_owned(), |it| it.minor.to_string())
    };
    let uuid = compute.map_or("none", |compute| compute.uuid.as_str());
    Identity {
        gi: made.gi_id.to_string(),
        uuid: work.aliases.of("MIG", uuid),
        minors: format!("{}, {}", minor(None), minor(ci)),
    }
}

pub fn again(work: &Work<'_, '_>) -> Result<(), Stop> {
    let Some((smallest, place, other)) = work.smallest_places() else {
        return Ok(());
    };
    let Some(first) = alone(work, smallest, place)? else {
        return Ok(());
    };
    for _ in 1..work.pace.repeats {
        if let Some(now) = alone(work, smallest, place)? {
            compare(work, &first, &now, "alone");
        }
    }
    // Neighbours in two orders give the instance other engines and, if a driver counts, other ids.
    for upwards in [true, false] {
        if work.out_of_time() {
            break;
        }
        beside(work, &first, smallest, place, upwards)?;
    }
    if place != other {
        different(work, smallest, [place, other])?;
    }
    larger(work)?;
    work.only_own()
}

fn alone(work: &Work<'_, '_>, id: u32, place: Placement) -> Result<Option<Identity>, Stop> {
    let Some(made) = work.make(id, place)? else {
        return Ok(None);
    };
    let found = identity(work, &made);
    work.remove(&made)?;
    Ok(Some(found))
}

fn compare(work: &Work<'_, '_>, first: &Identity, now: &Identity, subject: &str) {
    for (what, first, now) in [
        ("instance id", &first.gi, &now.gi),
        ("MIG UUID", &first.uuid, &now.uuid),
        ("capability minors", &first.minors, &now.minors),
    ] {
        let question = format!("the same place gives the same {what}");
        work.check(&question, subject, first, now);
    }
}

/// With instances at all other places of the profile, made before it.
fn beside(
    work: &Work<'_, '_>,
    first: &Identity,
    id: u32,
    place: Placement,
    upwards: bool,
) -> Result<(), Stop> {
    let Some(profile) = work.geometry.profile(id) else {
        return Ok(());
    };
    let mut places = profile.placements.clone();
    places.retain(|other| !other.overlaps(place));
    if !upwards {
        places.reverse();
    }
    places.truncate(profile.max_instances.saturating_sub(1) as usize);
    let mut neighbours = Vec::new();
    let mut uuids = BTreeSet::new();
    for other in places {
        if let Some(made) = work.make(id, other)? {
            uuids.extend(made.compute.as_ref().map(|compute| compute.uuid.clone()));
            neighbours.push(made);
        }
    }
    if let Some(made) = work.make(id, place)? {
        let now = identity(work, &made);
        let subject = if upwards {
            "after its neighbours"
        } else {
            "after its neighbours in the other order"
        };
        compare(work, first, &now, subject);
        uuids.extend(made.compute.as_ref().map(|compute| compute.uuid.clone()));
        neighbours.push(made);
        let question = "each instance on the GPU has a MIG UUID of its own";
        work.check(question, subject, neighbours.len(), uuids.len());
    }
    for made in neighbours {
        work.remove(&made)?;
    }
    Ok(())
}

/// Instances at two places, one after the other.
fn different(work: &Work<'_, '_>, id: u32, places: [Placement; 2]) -> Result<(), Stop> {
    let mut uuids = BTreeSet::new();
    for place in places {
        uuids.extend(alone(work, id, place)?.map(|it| it.uuid));
    }
    let question = "another place gives another MIG UUID";
    work.check(question, "", places.len(), uuids.len());
    Ok(())
}

/// Sizes with two places and more: the id of a place may depend on what was made first.
fn larger(work: &Work<'_, '_>) -> Result<(), Stop> {
    let profiles: Vec<_> = work.plain().cloned().collect();
    for profile in profiles {
        let (Some(&low), Some(&high)) = (profile.placements.first(), profile.placements.last())
        else {
            continue;
        };
        if low == high || low.overlaps(high) || profile.max_instances < 2 || work.out_of_time() {
            continue;
        }
        let mut ids = Vec::new();
        for order in [[low, high], [high, low]] {
            let mut made = Vec::new();
            for place in order {
                made.extend(work.make_bare(profile.id, place)?.ok());
            }
            made.sort_by_key(|it| it.placement);
            ids.push(made.iter().map(|it| it.gi_id).collect::<Vec<u32>>());
            for it in &made {
                work.remove(it)?;
            }
        }
        let text = |ids: &Vec<u32>| format!("{ids:?}");
        let question = "ids do not depend on the order in which instances are made";
        work.check(question, &profile.name, text(&ids[0]), text(&ids[1]));
    }
    Ok(())
}
