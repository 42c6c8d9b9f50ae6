//! Each size at each place alone: what the driver says of the instance while it stands and after its end.

use gpufrac_core::geometry::{Placement, Profile};
use gpufrac_nvml::codes;

use crate::aliases::uuid_version;
use crate::document::PlaceRow;
use crate::driver::{Stop, named, said};
use crate::work::{Made, Work};

/// The most memory that an idle instance may use, in MiB: with more a kept instance counts as used
/// (`lib/node/src/slice/keep.rs`).
const IDLE_MIB: u64 = 64;
/// The greatest GPU instance id for which the driver has capabilities (`mig-minors`).
const GREATEST_ID: u32 = 14;

pub fn places(work: &Work<'_, '_>) -> Result<(), Stop> {
    let profiles = work.geometry.profiles.clone();
    let mut left_out = 0;
    for profile in &profiles {
        for (number, &placement) in profile.placements.iter().enumerate() {
            if work.out_of_time() {
                left_out += 1;
                continue;
            }
            place(work, profile, placement, number == 0)?;
        }
    }
    if left_out > 0 {
        let reason = format!("the time was over before {left_out} of them");
        work.not_measured("all places", reason);
    }
    ids(work);
    work.only_own()
}

fn place(
    work: &Work<'_, '_>,
    profile: &Profile,
    placement: Placement,
    first: bool,
) -> Result<(), Stop> {
    let name = work.place_name(profile.id, placement);
    capacity(work, profile, &name)?;
    let made = work.make_bare(profile.id, placement)?;
    let question = "an instance can be made at each place of the driver's list";
    work.check(question, &name, "success (0)", said(&made));
    let Ok(mut made) = made else { return Ok(()) };
    seen(work, profile, &made, &name)?;
    capacity(work, profile, &name)?;
    if work.fill(&mut made)? {
        described(work, profile, &made, &name)?;
        if first {
            refuses_to_end(work, &made, &name)?;
        }
    }
    if work.standing().is_empty() {
        return Ok(());
    }
    work.remove(&made)
}

/// The driver's own count of further instances against gpufrac's.
fn capacity(work: &Work<'_, '_>, profile: &Profile, name: &str) -> Result<(), Stop> {
    if !profile.is_plain() {
        return Ok(());
    }
    let call = "nvmlDeviceGetGpuInstanceRemainingCapacity";
    let id = profile.id;
    let found = work.ask(call, name, |calls| calls.remaining_capacity(id))?;
    let standing = work.standing();
    let free = |place: &&Placement| standing.iter().all(|(_, other)| !other.overlaps(**place));
    let places = profile.placements.iter().filter(free).count() as u32;
    let same = standing.iter().filter(|(other, _)| *other == id).count() as u32;
    let used: u32 = standing
        .iter()
        .filter_map(|(other, _)| work.geometry.profile(*other))
        .map(|other| u32::from(other.compute_slices))
        .sum();
    let compute = u32::from(work.geometry.compute_slices).saturating_sub(used);
    let by_compute = compute / u32::from(profile.compute_slices.max(1));
    let expected = places
        .min(profile.max_instances.saturating_sub(same))
        .min(by_compute);
    let found = found.map_or_else(named, |count| count.to_string());
    let question = "the driver's count of further instances is gpufrac's";
    let subject = format!("{} beside {} instances", profile.name, standing.len());
    work.check(question, subject, expected, found);
    Ok(())
}

/// Whether all ways to look for a GPU instance show it.
fn seen(work: &Work<'_, '_>, profile: &Profile, made: &Made<'_>, name: &str) -> Result<(), Stop> {
    let listed: Vec<String> = work
        .listed(profile.id)?
        .iter()
        .map(|it| format!("{} at {}", it.gi_id, it.placement.start))
        .collect();
    let own = format!("{} at {}", made.gi_id, made.placement.start);
    work.check(
        "the list of its profile has the instance",
        name,
        own,
        listed.join(", "),
    );
    let id = made.gi_id;
    let by_id = work.ask("nvmlDeviceGetGpuInstanceById", id, |calls| {
        calls.gpu_instance_by_id(id)
    })?;
    work.check(
        "an instance is found by its id",
        name,
        "success (0)",
        said(&by_id),
    );
    let folders = work.folders();
    let found = folders.map_or_else(|| "nothing".to_owned(), |ids| format!("{ids:?}"));
    work.check(
        "/proc has a folder for each instance",
        name,
        format!("[{id}]"),
        found,
    );
    Ok(())
}

/// UUID, memory and capabilities of an instance.
fn described(
    work: &Work<'_, '_>,
    profile: &Profile,
    made: &Made<'_>,
    name: &str,
) -> Result<(), Stop> {
    let Some(compute) = &made.compute else {
        return Ok(());
    };
    let uuid = &compute.uuid;
    let version = uuid_version(uuid);
    let digit = version.map_or_else(|| "none".to_owned(), String::from);
    work.check("the version digit of a MIG UUID", name, "5", digit);
    let memory = work.ask("nvmlDeviceGetMemoryInfo", name, |calls| {
        calls.memory(compute.mig)
    })?;
    if let Ok((all, used)) = memory {
        let about = if all.is_about(profile.memory) { profile.memory } else { all };
        work.check(
            "memory of an instance, within 10 % of the profile's",
            name,
            profile.memory,
            about,
        );
        let idle = if used.0 < IDLE_MIB {
            format!("less than {IDLE_MIB} MiB")
        } else {
            format!("{} MiB", used.0)
        };
        work.check(
            "memory in use on an idle instance",
            name,
            format!("less than {IDLE_MIB} MiB"),
            idle,
        );
    }
    let minors = capabilities(work, made, compute.ci_id, name);
    work.places.borrow_mut().push(PlaceRow {
        profile: profile.name.clone(),
        profile_id: profile.id,
        start: made.placement.start,
        gi: made.gi_id,
        ci: compute.ci_id,
        uuid: work.aliases.of("MIG", uuid),
        uuid_version: version,
        minors,
        memory_mib: memory.ok().map(|(all, used)| [all.0, used.0]),
    });
    Ok(())
}

/// The capabilities' files in /proc against the driver's list of minors.
fn capabilities(work: &Work<'_, '_>, made: &Made<'_>, ci: u32, name: &str) -> Option<[u32; 2]> {
    let (caps, gpu) = (&work.caps, work.gpu.minor);
    let (_, minors) = caps.minors().ok()?;
    let listed = |opens| {
        let mut known = minors.iter();
        let found = known.find(|it| it.gpu_minor == gpu && it.opens == Some(opens));
        found.map_or_else(|| "none".to_owned(), |it| it.minor.to_string())
    };
    use gpufrac_node::gpu::capability_files::Opens;
    let parts = [
        (None, listed(Opens::GpuInstance(made.gi_id))),
        (Some(ci), listed(Opens::ComputeInstance(made.gi_id, ci))),
    ];
    let mut found = Vec::new();
    for (ci, listed) in parts {
        let declared = caps.declared(gpu, made.gi_id, ci);
        let text = |of: Option<String>| of.unwrap_or_else(|| "none".to_owned());
        let minor = text(declared.map(|it| it.minor.to_string()));
        work.check(
            "the capability's minor is the one of mig-minors",
            name,
            listed,
            minor,
        );
        let mode = text(declared.map(|it| format!("{:04o}", it.mode)));
        work.check(
            "the mode that the driver wants for a capability",
            name,
            "0444",
            mode,
        );
        let modify = text(declared.map(|it| it.modify.to_string()));
        work.check("a new capability has no mark", name, "1", modify);
        found.extend(declared.map(|it| it.minor));
    }
    <[u32; 2]>::try_from(found).ok()
}

/// The driver keeps a GPU instance with a compute instance in it.
fn refuses_to_end(work: &Work<'_, '_>, made: &Made<'_>, name: &str) -> Result<(), Stop> {
    let done = work.destroy_bare(made)?;
    let question = "a GPU instance with a compute instance in it is not destroyed";
    work.check(question, name, named(codes::IN_USE), said(&done));
    Ok(())
}

/// The ids as a function of the place.
fn ids(work: &Work<'_, '_>) {
    let places = work.places.borrow();
    let mut greatest = 0;
    for profile in &work.geometry.profiles {
        let of_profile = places.iter().filter(|row| row.profile_id == profile.id);
        let rows: Vec<(u8, u32)> = of_profile.map(|row| (row.start, row.gi)).collect();
        if rows.is_empty() {
            continue;
        }
        greatest = rows.iter().map(|(_, id)| *id).fold(greatest, u32::max);
        let mut ids: Vec<u32> = rows.iter().map(|(_, id)| *id).collect();
        ids.sort_unstable();
        ids.dedup();
        work.check(
            "each place of a profile has an id of its own",
            &profile.name,
            rows.len(),
            ids.len(),
        );
        let text: Vec<String> = rows
            .iter()
            .map(|(start, id)| format!("{start}={id}"))
            .collect();
        work.note(
            "ids by place",
            format!("{}: {}", profile.name, text.join(" ")),
        );
    }
    let below = greatest <= GREATEST_ID;
    let found = if below { GREATEST_ID } else { greatest };
    work.check("the greatest id of a GPU instance", "", GREATEST_ID, found);
    let uuids = places.iter().map(|row| &row.uuid);
    let different: std::collections::BTreeSet<&String> = uuids.collect();
    work.note(
        "MIG UUIDs of the places",
        format!("{} different ones of {}", different.len(), places.len()),
    );
    drop(places);
    halves(work);
}

/// Whether the ids of the upper half come before those of the lower one.
fn halves(work: &Work<'_, '_>) {
    let places = work.places.borrow();
    let Some(smallest) = work.smallest() else {
        return;
    };
    let id_at = |start: u8| {
        let mut rows = places.iter();
        let found = rows.find(|row| row.profile_id == smallest.id && row.start == start);
        found.map(|row| row.gi)
    };
    let middle = work.geometry.memory_slices / 2;
    if let (Some(low), Some(high)) = (id_at(0), id_at(middle)) {
        let value = if low < high { "not swapped" } else { "swapped" };
        work.note("the halves of the GPU in the order of ids", value);
    }
}
