//! The instances that a size of the menu may be made of, and the order in which they are tried.
//!
//! The rules:
//! - A request for the fraction f takes the smallest plain profiles whose memory is at least f of the GPU's memory
//!   slices, at every position within the device.
//! - Profiles with most compute slices come first. A profile with fewer is the alternative if compute slices or the
//!   number of instances are used up. A request for the whole device starts on an empty one and needs no alternative:
//!   it has one candidate for each position.
//! - The smallest profile fills a device from the outer edge of the GPU inwards (the left half from slice 0 up, the
//!   right half from the top down), so that small instances stand together and use first the slice of the right half
//!   that no larger one needs. Larger profiles fill from the top down.
//!
//! The module `proof` proves that these rules leave no request without a place.

use super::error::LayoutError;
use super::parts::{Candidate, LayoutKind, MenuEntry, Shape, Side};
use crate::fraction::{Fraction, MemoryMib, Units};
use crate::geometry::{Geometry, Placement, Profile};

/// The input of the solver.
pub(super) struct Plan {
    pub(super) kind: LayoutKind,
    pub(super) capacity: Units,
    /// Fraction and price in units, ascending.
    pub(super) menu: Vec<(Fraction, Units)>,
    pub(super) spans: Vec<Span>,
}

/// The part of a GPU that is one device.
pub(super) struct Span {
    pub(super) side: Side,
    pub(super) first: u8,
    pub(super) end: u8,
    pub(super) compute_slices: u8,
}

/// Refuses a table that contradicts itself; a table that NVML reports passes.
pub(super) fn check_geometry(geometry: &Geometry) -> Result<(), LayoutError> {
    let wrong = |what: String| {
        Err(LayoutError::Geometry {
            model: geometry.model.clone(),
            what,
        })
    };
    if geometry.memory_slices == 0 || geometry.compute_slices == 0 {
        return wrong("memory_slices and compute_slices must be at least 1".to_owned());
    }
    if geometry.memory_slices > 64 || geometry.compute_slices > 64 {
        return wrong("more than 64 slices".to_owned());
    }
    for (position, profile) in geometry.profiles.iter().enumerate() {
        let name = &profile.name;
        if geometry.profiles[..position]
            .iter()
            .any(|p| p.id == profile.id)
        {
            return wrong(format!("profile id {} is written twice", profile.id));
        }
        if !profile.is_plain() {
            continue;
        }
        if profile.compute_slices == 0 || profile.compute_slices > geometry.compute_slices {
            return wrong(format!(
                "profile {name}: compute_slices = {}, of {} on the GPU",
                profile.compute_slices, geometry.compute_slices
            ));
        }
        let size = profile.memory_slices();
        for placement in &profile.placements {
            if placement.size == 0
                || placement.size != size
                || placement.end() > geometry.memory_slices.into()
            {
                return wrong(format!(
                    "profile {name}: no position {}:{} on {} memory slices",
                    placement.start, placement.size, geometry.memory_slices
                ));
            }
        }
    }
    Ok(())
}

/// Devices, prices and capacity of a layout.
pub(super) fn plan(
    geometry: &Geometry,
    kind: LayoutKind,
    menu: &[Fraction],
) -> Result<Plan, LayoutError> {
    let all = || Span {
        side: Side::Whole,
        first: 0,
        end: geometry.memory_slices,
        compute_slices: geometry.compute_slices,
    };
    match kind {
        LayoutKind::Halves => halves(geometry, menu),
        LayoutKind::Slices => {
            let only = smallest_piece(geometry)?;
            fixed(geometry, kind, menu, only, price_of_piece(only), all())
        }
        LayoutKind::Uniform => uniform(geometry, menu, all()),
        // Shares have no positions; see the module `shares`.
        LayoutKind::Whole | LayoutKind::Shares => {
            fixed(geometry, kind, menu, Fraction::ONE, Units::WHOLE, all())
        }
    }
}

fn fixed(
    geometry: &Geometry,
    kind: LayoutKind,
    menu: &[Fraction],
    only: Fraction,
    units: Units,
    span: Span,
) -> Result<Plan, LayoutError> {
    if menu.iter().any(|fraction| *fraction != only) || menu.len() > 1 {
        return Err(LayoutError::FixedMenu {
            kind,
            model: geometry.model.clone(),
            only,
        });
    }
    Ok(Plan {
        kind,
        capacity: Units::WHOLE,
        menu: vec![(only, units)],
        spans: vec![span],
    })
}

/// The plan of layout `uniform`: the one size of the menu, and the whole GPU.
fn uniform(geometry: &Geometry, menu: &[Fraction], span: Span) -> Result<Plan, LayoutError> {
    let mut pieces = menu.iter().filter(|fraction| **fraction != Fraction::ONE);
    let (Some(piece), None) = (pieces.next(), pieces.next()) else {
        return Err(LayoutError::NotUniform);
    };
    if piece.numerator() != 1 {
        return Err(LayoutError::NotUniform);
    }
    smallest_piece(geometry)?;
    Ok(Plan {
        kind: LayoutKind::Uniform,
        capacity: Units::WHOLE,
        menu: vec![
            (*piece, price_of_piece(*piece)),
            (Fraction::ONE, Units::WHOLE),
        ],
        spans: vec![span],
    })
}

/// Units of one of the equal pieces of a GPU, rounded down: all pieces together must fit in 100 units.
fn price_of_piece(piece: Fraction) -> Units {
    Units(100 * piece.numerator() / piece.denominator())
}

/// The size of the smallest piece: the GPU divided by the number of instances of its smallest profile.
fn smallest_piece(geometry: &Geometry) -> Result<Fraction, LayoutError> {
    let smallest = smallest_profile(geometry).ok_or(LayoutError::NoProfile {
        model: geometry.model.clone(),
        fraction: Fraction::ONE,
        side: Side::Whole,
    })?;
    let count = smallest
        .max_instances
        .min(geometry.compute_slices.into())
        .max(1);
    Ok(Fraction::new(1, count).unwrap_or(Fraction::ONE))
}

/// Refuses sizes that do not fit on half a GPU; returns the largest that does.
pub(super) fn within_a_half(menu: &[Fraction]) -> Result<Fraction, LayoutError> {
    let half = Fraction::new(1, 2).unwrap_or(Fraction::ONE);
    match menu.iter().find(|fraction| **fraction > half) {
        None => Ok(half),
        Some(large) => Err(LayoutError::TooLarge {
            fraction: *large,
            kind: LayoutKind::Halves,
            limit: half,
        }),
    }
}

fn halves(geometry: &Geometry, menu: &[Fraction]) -> Result<Plan, LayoutError> {
    if !geometry.memory_slices.is_multiple_of(2) || geometry.compute_slices < 2 {
        return Err(LayoutError::NoHalves {
            model: geometry.model.clone(),
            memory_slices: geometry.memory_slices,
            compute_slices: geometry.compute_slices,
        });
    }
    within_a_half(menu)?;
    let denominators: &[u32] = if geometry.compute_slices > 4 { &[8, 4, 2] } else { &[4, 2] };
    let default: Vec<Fraction> = denominators
        .iter()
        .filter_map(|denominator| Fraction::new(1, *denominator).ok())
        .collect();
    let menu = priced(if menu.is_empty() { &default } else { menu })?;
    let middle = geometry.memory_slices / 2;
    let right = geometry.compute_slices / 2;
    Ok(Plan {
        kind: LayoutKind::Halves,
        capacity: Units(50),
        menu,
        spans: vec![
            Span {
                side: Side::Left,
                first: 0,
                end: middle,
                compute_slices: geometry.compute_slices - right,
            },
            Span {
                side: Side::Right,
                first: middle,
                end: geometry.memory_slices,
                compute_slices: right,
            },
        ],
    })
}

/// The sizes in ascending order, each with its price in units. Two sizes must not have the same price, because the
/// units are all that a node learns of the size.
pub(super) fn priced(menu: &[Fraction]) -> Result<Vec<(Fraction, Units)>, LayoutError> {
    let mut menu: Vec<(Fraction, Units)> = menu.iter().map(|f| (*f, f.units())).collect();
    menu.sort_unstable();
    for pair in menu.windows(2) {
        if pair[0].1 == pair[1].1 {
            return Err(LayoutError::Duplicate {
                first: pair[0].0,
                second: pair[1].0,
                units: pair[0].1,
            });
        }
    }
    Ok(menu)
}

/// The plain profile with the least memory; of several, the one with the most compute slices.
fn smallest_profile(geometry: &Geometry) -> Option<&Profile> {
    geometry
        .profiles
        .iter()
        .filter(|profile| profile.is_plain() && !profile.placements.is_empty())
        .min_by_key(|p| (p.memory_slices(), u8::MAX - p.compute_slices))
}

/// The device with the candidates of each menu entry.
pub(super) fn shape(
    geometry: &Geometry,
    span: &Span,
    plan: &Plan,
    equal: bool,
) -> Result<Shape, LayoutError> {
    let by_compute = smallest_piece(geometry).ok();
    let mut shape = Shape {
        side: span.side,
        first: span.first,
        end: span.end,
        compute_slices: span.compute_slices,
        preferences: Vec::new(),
    };
    for (fraction, _) in &plan.menu {
        // The smallest pieces are divided by compute slices: 1/7 is one 1g, though a 1g has 1/8 of the memory.
        let needed = match plan.kind {
            LayoutKind::Slices | LayoutKind::Uniform if Some(*fraction) == by_compute => 1,
            _ => fraction.ceil_of(geometry.memory_slices.into()),
        };
        let most_compute = match (equal, plan.kind) {
            (true, LayoutKind::Halves) => geometry.compute_slices / 2,
            (true, LayoutKind::Uniform) => equal_part(geometry.compute_slices, *fraction),
            _ => shape.compute_slices,
        };
        let preference = preference(geometry, &shape, needed, most_compute);
        if preference.is_empty() {
            return Err(LayoutError::NoProfile {
                model: geometry.model.clone(),
                fraction: *fraction,
                side: span.side,
            });
        }
        shape.preferences.push(preference);
    }
    Ok(shape)
}

/// The compute slices that each of the equal pieces can have, rounded down.
fn equal_part(compute_slices: u8, piece: Fraction) -> u8 {
    let part = u32::from(compute_slices) * piece.numerator() / piece.denominator();
    u8::try_from(part).unwrap_or(compute_slices)
}

fn preference(geometry: &Geometry, shape: &Shape, needed: u32, most_compute: u8) -> Vec<Candidate> {
    let usable = |profile: &&Profile| {
        profile.is_plain()
            && profile.compute_slices <= most_compute
            && u32::from(profile.memory_slices()) >= needed
            && profile.placements.iter().any(|p| shape.holds(*p))
    };
    let fitting: Vec<&Profile> = geometry.profiles.iter().filter(usable).collect();
    let Some(size) = fitting.iter().map(|p| p.memory_slices()).min() else {
        return Vec::new();
    };
    let smallest = smallest_profile(geometry).map(Profile::memory_slices);
    let upwards = shape.side != Side::Right && smallest == Some(size);
    let mut found: Vec<(&Profile, Placement)> = fitting
        .into_iter()
        .filter(|profile| profile.memory_slices() == size)
        .flat_map(|profile| profile.placements.iter().map(move |p| (profile, *p)))
        .filter(|(_, placement)| shape.holds(*placement))
        .collect();
    found.sort_by_key(|(profile, Placement { start, .. })| {
        (
            u8::MAX - profile.compute_slices,
            if upwards { *start } else { u8::MAX - start },
            profile.id,
        )
    });
    if size == shape.end - shape.first {
        let mut taken = Vec::new();
        found.retain(|(_, placement)| {
            let first = !taken.contains(placement);
            taken.push(*placement);
            first
        });
    }
    let candidate = |(profile, placement): (&Profile, Placement)| Candidate {
        profile_id: profile.id,
        placement,
    };
    found.into_iter().map(candidate).collect()
}

pub(super) fn menu_entries(geometry: &Geometry, plan: &Plan, shapes: &[Shape]) -> Vec<MenuEntry> {
    let entry = |(position, (fraction, units)): (usize, &(Fraction, Units))| {
        let profiles: Vec<&Profile> = shapes
            .iter()
            .flat_map(|shape| shape.preferences.get(position).into_iter().flatten())
            .filter_map(|candidate| geometry.profile(candidate.profile_id))
            .collect();
        MenuEntry {
            fraction: *fraction,
            units: *units,
            memory: profiles
                .iter()
                .map(|profile| profile.memory)
                .min()
                .unwrap_or(MemoryMib(0)),
            profile_name: profiles
                .first()
                .map_or_else(String::new, |profile| profile.name.clone()),
        }
    };
    plan.menu.iter().enumerate().map(entry).collect()
}
