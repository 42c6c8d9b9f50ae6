//! The driver's profiles and positions against gpufrac's table, and the layouts that they allow.

use gpufrac_core::fraction::{Fraction, MemoryMib};
use gpufrac_core::geometry::{Geometry, Placement, Profile};
use gpufrac_core::layout::{Layout, LayoutKind};

use crate::driver::Stop;
use crate::work::Work;

/// gpufrac's table of the GPU; None if it knows no such model.
fn table(work: &Work<'_, '_>) -> Result<Option<(&'static str, Geometry)>, Stop> {
    let gpu = &work.gpu;
    let model = Geometry::model_of_product(&gpu.name(), gpu.memory()?);
    Ok(model.and_then(|name| Some((name, Geometry::builtin(name)?))))
}

fn places(profile: &Profile) -> String {
    let mut sorted: Vec<Placement> = profile.placements.clone();
    sorted.sort_unstable();
    let texts: Vec<String> = sorted
        .iter()
        .map(|place| format!("{}:{}", place.start, place.size))
        .collect();
    texts.join(" ")
}

/// Memory of a profile in words: gpufrac's figure, if the driver's differs by 10 % at most, as ECC and drivers change
/// it.
fn memory(own: MemoryMib, real: MemoryMib) -> String {
    if real.is_about(own) { own.to_string() } else { real.to_string() }
}

pub fn geometry(work: &Work<'_, '_>) -> Result<(), Stop> {
    let Some((model, table)) = table(work)? else {
        work.not_measured(
            "the driver's table is gpufrac's",
            "gpufrac knows no such model",
        );
        return Ok(());
    };
    let real = &work.geometry;
    work.note("the model", model);
    work.check("memory slices", "", table.memory_slices, real.memory_slices);
    let [ours, theirs] = [table.compute_slices, real.compute_slices];
    work.check("compute slices", "", ours, theirs);
    let ours = table.profiles.iter().filter(|profile| profile.is_plain());
    for own in ours {
        let name = own.name.as_str();
        let Some(driver) = real.profile(own.id) else {
            work.check("the profile exists", name, "yes", "no");
            continue;
        };
        work.check("the profile exists", name, "yes", "yes");
        work.check("the name of the profile", own.id, name, &driver.name);
        let number = |text: &str, of: fn(&Profile) -> u32| {
            work.check(text, name, of(own), of(driver));
        };
        number("the number of the profile in nvml.h", |it| it.slice_enum);
        number("compute slices of the profile", |it| {
            it.compute_slices.into()
        });
        number("the most instances of the profile", |it| it.max_instances);
        number("multiprocessors of the profile", |it| it.multiprocessors);
        work.check(
            "positions of the profile",
            name,
            places(own),
            places(driver),
        );
        let memory = memory(own.memory, driver.memory);
        work.check(
            "memory of the profile, within 10 %",
            name,
            own.memory,
            memory,
        );
    }
    let known = |profile: &&Profile| profile.is_plain() && table.profile(profile.id).is_none();
    for new in real.profiles.iter().filter(known) {
        work.check(
            "the driver has no further plain profile",
            &new.name,
            "none",
            &new.name,
        );
    }
    Ok(())
}

/// The layouts that gpufrac's configuration can ask for.
fn kinds() -> Vec<(LayoutKind, Vec<Fraction>, bool)> {
    let piece = |parts| Fraction::new(1, parts).into_iter().collect::<Vec<_>>();
    let mut kinds = vec![
        (LayoutKind::Halves, Vec::new(), false),
        (LayoutKind::Halves, Vec::new(), true),
        (LayoutKind::Slices, Vec::new(), false),
        (LayoutKind::Whole, Vec::new(), false),
    ];
    kinds.extend([2, 3, 4, 7].map(|parts| (LayoutKind::Uniform, piece(parts), false)));
    kinds
}

fn proof(geometry: &Geometry, kind: LayoutKind, menu: &[Fraction], equal: bool) -> String {
    match Layout::solve(geometry, kind, menu, equal) {
        Ok(layout) => {
            let proofs = layout.proofs().iter();
            let (states, arrivals) = proofs.fold((0, 0), |sum, proof| {
                (sum.0 + proof.states, sum.1 + proof.arrivals)
            });
            format!("proved in {states} states with {arrivals} arrivals")
        }
        Err(_) => "not possible".to_owned(),
    }
}

pub fn layouts(work: &Work<'_, '_>) -> Result<(), Stop> {
    let table = table(work)?;
    for (kind, menu, equal) in kinds() {
        let sizes: Vec<String> = menu.iter().map(|size| format!(" of {size}")).collect();
        let equal_word = if equal { " of equal halves" } else { "" };
        let question = format!("layout {kind}{}{equal_word}", sizes.concat());
        let real = proof(&work.geometry, kind, &menu, equal);
        match &table {
            Some((_, table)) => {
                work.check(&question, "", proof(table, kind, &menu, equal), real);
            }
            None => work.note(&question, real),
        }
    }
    Ok(())
}
