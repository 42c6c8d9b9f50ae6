//! The solver against the table of the design, and against layouts that must be refused.

use super::*;
use crate::fraction::{Fraction, MemoryMib, Units};
use crate::geometry::{Geometry, Placement, Profile};

fn builtin(name: &str) -> Geometry {
    Geometry::builtin(name).unwrap()
}

fn fractions(texts: &[&str]) -> Vec<Fraction> {
    texts.iter().map(|t| Fraction::parse(t).unwrap()).collect()
}

/// A whole GPU as one device of mixed sizes, which is not safe. The solver must refuse it.
fn solve_mixed_gpu(geometry: &Geometry, menu: &[Fraction]) -> Result<Layout, LayoutError> {
    let plan = candidates::Plan {
        kind: LayoutKind::Whole,
        capacity: Units::WHOLE,
        menu: candidates::priced(menu)?,
        spans: vec![candidates::Span {
            side: Side::Whole,
            first: 0,
            end: geometry.memory_slices,
            compute_slices: geometry.compute_slices,
        }],
    };
    Layout::prove(geometry, plan, false)
}

/// `1g.10gb at 0` and so on.
fn shown(geometry: &Geometry, preference: &[Candidate]) -> Vec<String> {
    preference
        .iter()
        .map(|c| {
            let name = &geometry.profile(c.profile_id).unwrap().name;
            format!("{}@{}", name.split('.').next().unwrap(), c.placement.start)
        })
        .collect()
}

const SEVEN: [&str; 11] = [
    "A100-40",
    "A100-80",
    "H100-80",
    "H100-94",
    "H100-96",
    "GH200-144",
    "H200-141",
    "B200-180",
    "GB200-186",
    "B300-269",
    "GB300-278",
];

#[test]
fn the_preferences_are_those_of_the_design() {
    for model in SEVEN {
        let geometry = builtin(model);
        let layout = Layout::solve(&geometry, LayoutKind::Halves, &[], false).unwrap();
        assert_eq!(layout.capacity, Units(50));
        assert_eq!(layout.sides, [Side::Left, Side::Right]);
        let units: Vec<u32> = layout.menu.iter().map(|entry| entry.units.0).collect();
        assert_eq!(units, [13, 25, 50]);
        let left = |units| shown(&geometry, layout.preference(Side::Left, Units(units)));
        let right = |units| shown(&geometry, layout.preference(Side::Right, Units(units)));
        assert_eq!(left(13), ["1g@0", "1g@1", "1g@2", "1g@3"]);
        assert_eq!(right(13), ["1g@6", "1g@5", "1g@4"]);
        assert_eq!(left(25), ["2g@2", "2g@0", "1g@2", "1g@0"]);
        assert_eq!(right(25), ["2g@4", "1g@6", "1g@4"]);
        assert_eq!(left(50), ["4g@0"]);
        assert_eq!(right(50), ["3g@4"]);
        // The alternative for a quarter is the profile with double memory, not a plain 1g.
        let double = layout.preference(Side::Right, Units(25))[1];
        assert_eq!((double.profile_id, double.placement.size), (15, 2));

        let equal = Layout::solve(&geometry, LayoutKind::Halves, &[], true).unwrap();
        let half = equal.preference(Side::Left, Units(50));
        assert_eq!(shown(&geometry, half), ["3g@0"]);
        assert_eq!(equal.preference(Side::Left, Units(25)).len(), 4);
    }
    for (model, middle) in [("A30-24", 2), ("RTX-PRO-6000-96", 6)] {
        let geometry = builtin(model);
        let layout = Layout::solve(&geometry, LayoutKind::Halves, &[], false).unwrap();
        let units: Vec<u32> = layout.menu.iter().map(|entry| entry.units.0).collect();
        assert_eq!(units, [25, 50]);
        let left = |units| shown(&geometry, layout.preference(Side::Left, Units(units)));
        let right = |units| shown(&geometry, layout.preference(Side::Right, Units(units)));
        let step = middle / 2;
        assert_eq!(left(25), ["1g@0".to_owned(), format!("1g@{step}")]);
        let (upper, lower) = (middle + step, middle);
        assert_eq!(right(25), [format!("1g@{upper}"), format!("1g@{lower}")]);
        assert_eq!(left(50), ["2g@0"]);
        assert_eq!(right(50), [format!("2g@{middle}")]);
    }
}

/// Promise (placement): every built-in geometry is proven.
#[test]
fn every_builtin_geometry_is_proven() {
    for model in Geometry::builtin_names() {
        let geometry = builtin(model);
        for kind in [LayoutKind::Halves, LayoutKind::Slices, LayoutKind::Whole] {
            let layout = Layout::solve(&geometry, kind, &[], false).unwrap();
            let states: Vec<usize> = layout.proofs().iter().map(|p| p.states).collect();
            let seven = geometry.compute_slices == 7;
            let expected: &[usize] = match kind {
                LayoutKind::Halves if seven => &[15, 15],
                // The empty half, the full half, and the subsets of two quarters.
                LayoutKind::Halves => &[5, 5],
                // Every subset of seven or of four instances.
                LayoutKind::Slices if seven => &[128],
                LayoutKind::Slices => &[16],
                LayoutKind::Whole => &[2],
                LayoutKind::Uniform | LayoutKind::Shares => &[],
            };
            assert_eq!(states, expected, "{model} {kind}");
        }
    }
}

#[test]
fn many_random_menus_are_proven_or_refused_for_a_reason() {
    for model in SEVEN {
        let geometry = builtin(model);
        for menu in [
            &["1/2"][..],
            &["1/4"],
            &["1/8"],
            &["1/2", "1/4"],
            &["1/2", "1/8"],
            &["1/4", "1/8"],
        ] {
            let menu = fractions(menu);
            for equal in [false, true] {
                Layout::solve(&geometry, LayoutKind::Halves, &menu, equal).unwrap();
            }
        }
    }
}

#[test]
fn a_whole_gpu_of_mixed_sizes_is_refused_with_a_state() {
    let menu = fractions(&["1/2", "1/4", "1/8"]);
    for model in SEVEN {
        let error = solve_mixed_gpu(&builtin(model), &menu).unwrap_err();
        let LayoutError::Unsafe { counterexample, .. } = error else {
            panic!("{model}: {error}");
        };
        assert_really_stuck(model, &counterexample);
    }
    let error = solve_mixed_gpu(&builtin("H100-80"), &menu).unwrap_err();
    let text = error.to_string();
    assert!(
        text.starts_with("the menu is not safe on H100-80: with "),
        "{text}"
    );
    assert!(
        text.contains("units free, so Slurm would start a job of "),
        "{text}"
    );
}

/// Checks a counterexample without the solver: Slurm's count admits the request, and each of its positions is taken
/// or has no compute slices left.
fn assert_really_stuck(model: &str, case: &Counterexample) {
    let geometry = builtin(model);
    assert!(case.units <= case.free, "{case}");
    let by_name = |name: &str| geometry.profiles.iter().find(|p| p.name == name).unwrap();
    let compute: u32 = case
        .instances
        .iter()
        .map(|(name, _)| u32::from(by_name(name).compute_slices))
        .sum();
    assert!(!case.positions.is_empty());
    for (name, placement) in &case.positions {
        let taken = case.instances.iter().any(|(_, p)| p.overlaps(*placement));
        let profile: &Profile = by_name(name);
        let same = case.instances.iter().filter(|(n, _)| n == name).count();
        assert!(
            taken
                || compute + u32::from(profile.compute_slices) > 7
                || same >= profile.max_instances as usize,
            "{name} at {} is free: {case}",
            placement.start
        );
    }
}

/// Promise (placement): an unsafe layout is refused and shows a state that breaks it.
/// With `a_whole_gpu_of_mixed_sizes_is_refused_with_a_state`.
#[test]
fn unsafe_menus_of_halves_show_a_state() {
    let geometry = builtin("H100-80");
    // Three of 15 units fit by counting, but 1/7 needs two memory slices of four.
    let menu = fractions(&["1/7"]);
    let error = Layout::solve(&geometry, LayoutKind::Halves, &menu, false).unwrap_err();
    assert_eq!(
        error.to_string(),
        "the menu is not safe on H100-80: with 2g.20gb at 0, 2g.20gb at 2 on the left half there \
         are 20 units free, so Slurm would start a job of 1/7 (15 units), but every position for \
         it is taken (2g.20gb at 2, 2g.20gb at 0, 1g.20gb at 2, 1g.20gb at 0); leave one of these \
         sizes out of the menu"
    );
    for menu in [&["1/16"][..], &["3/8", "1/16"], &["1/2", "1/4", "1/10"]] {
        let error = Layout::solve(&geometry, LayoutKind::Halves, &fractions(menu), false);
        assert!(matches!(error, Err(LayoutError::Unsafe { .. })), "{menu:?}");
    }
    // Four memory slices have no eighths: 1/8 is a 1g at half the price.
    let error = Layout::solve(
        &builtin("A30-24"),
        LayoutKind::Halves,
        &fractions(&["1/8"]),
        false,
    );
    assert!(
        matches!(error, Err(LayoutError::Unsafe { .. })),
        "{error:?}"
    );
}

#[test]
fn sides_that_disturb_each_other_are_refused() {
    // A driver that allows only two 2g on a GPU: each half alone is safe, because 1g with double memory is the
    // alternative; both halves together need three 2g.
    let mut geometry = builtin("H100-80");
    let two = geometry.profiles.iter_mut().find(|p| p.id == 14).unwrap();
    two.max_instances = 2;
    let error = Layout::solve(&geometry, LayoutKind::Halves, &[], false).unwrap_err();
    assert_eq!(
        error.to_string(),
        "the menu is not safe on H100-80: the sides of a GPU disturb each other: together they \
         can need 3 instances of 2g.20gb, and the GPU has at most 2"
    );
}

#[test]
fn impossible_menus_are_refused() {
    let geometry = builtin("H100-80");
    let solve = |kind, menu: &[&str]| {
        Layout::solve(&geometry, kind, &fractions(menu), false)
            .unwrap_err()
            .to_string()
    };
    assert_eq!(
        solve(LayoutKind::Halves, &["1", "1/4"]),
        "1 is more than one device of layout \"halves\" holds; at most 1/2"
    );
    assert_eq!(
        solve(LayoutKind::Halves, &["1/8", "0.13"]),
        "1/8 and 13/100 both cost 13 units; leave one of them out"
    );
    assert_eq!(
        solve(LayoutKind::Slices, &["1/8"]),
        "layout \"slices\" on H100-80 has one size, 1/7; leave the menu out"
    );
    assert_eq!(
        solve(LayoutKind::Whole, &["1/2"]),
        "layout \"whole\" on H100-80 has one size, 1; leave the menu out"
    );
}

#[test]
fn slices_and_whole() {
    let geometry = builtin("H100-80");
    let layout = Layout::solve(&geometry, LayoutKind::Slices, &[], false).unwrap();
    assert_eq!(layout.menu.len(), 1);
    assert_eq!(layout.menu[0].units, Units(14));
    assert_eq!(layout.menu[0].to_string(), "0.143 (1g.10gb, 9.7 GiB)");
    assert_eq!(layout.preference(Side::Whole, Units(14)).len(), 7);

    let layout = Layout::solve(&builtin("A30-24"), LayoutKind::Slices, &[], false).unwrap();
    assert_eq!(layout.menu[0].units, Units(25));

    let layout = Layout::solve(&geometry, LayoutKind::Whole, &[], false).unwrap();
    assert_eq!(layout.menu[0].units, Units(100));
    assert_eq!(layout.menu[0].profile_name, "7g.80gb");
    let whole = layout.place(Side::Whole, Units(100), &[]).unwrap();
    assert_eq!((whole.profile_id, whole.placement.size), (0, 8));
    assert_eq!(layout.place(Side::Left, Units(100), &[]), None);
    assert_eq!(layout.place(Side::Whole, Units(50), &[]), None);
}

#[test]
fn foreign_instances_are_respected() {
    let geometry = builtin("H100-80");
    let layout = Layout::solve(&geometry, LayoutKind::Halves, &[], false).unwrap();
    let at = |profile_id, start, size| Occupied {
        profile_id,
        placement: Placement { start, size },
    };
    let start = |side, units, occupied: &[Occupied]| {
        layout
            .place(side, Units(units), occupied)
            .map(|c| (c.profile_id, c.placement.start))
    };
    assert_eq!(start(Side::Left, 25, &[]), Some((14, 2)));
    // An admin's own 1g with media engines at slice 2.
    assert_eq!(start(Side::Left, 25, &[at(20, 2, 1)]), Some((14, 0)));
    // The only position of a 2g in the right half is taken: the alternative is used.
    assert_eq!(start(Side::Right, 25, &[at(19, 5, 1)]), Some((15, 6)));
    let twos = [at(14, 2, 2), at(14, 4, 2), at(14, 0, 2)];
    assert_eq!(start(Side::Left, 25, &twos[1..]), Some((14, 2)));
    assert_eq!(start(Side::Left, 25, &twos), None);
    // A profile that is not in the table counts as many compute slices as memory slices.
    assert_eq!(start(Side::Right, 25, &[at(99, 6, 2)]), Some((15, 4)));
    // An admin made an instance of the whole GPU.
    assert_eq!(start(Side::Left, 13, &[at(0, 0, 8)]), None);
    assert_eq!(start(Side::Right, 50, &[at(0, 0, 8)]), None);
    // Instances of the other half do not matter.
    assert_eq!(start(Side::Right, 50, &[at(5, 0, 4)]), Some((9, 4)));
}

#[test]
fn menu_texts() {
    let layout = Layout::solve(&builtin("H100-80"), LayoutKind::Halves, &[], false).unwrap();
    let shown: Vec<String> = layout.menu.iter().map(ToString::to_string).collect();
    assert_eq!(
        shown,
        [
            "0.125 (1g.10gb, 9.7 GiB)",
            "0.25 (2g.20gb, 19.6 GiB)",
            "0.5 (4g.40gb, 39.5 GiB)"
        ]
    );
}

#[test]
fn nonsense_geometries_are_refused() {
    let mut broken = builtin("H100-80");
    broken.profiles[0].placements[0].start = 8;
    assert!(matches!(
        Layout::solve(&broken, LayoutKind::Halves, &[], false),
        Err(LayoutError::Geometry { .. })
    ));
    let mut broken = builtin("H100-80");
    broken.profiles[1].id = 19;
    assert!(matches!(
        Layout::solve(&broken, LayoutKind::Halves, &[], false),
        Err(LayoutError::Geometry { .. })
    ));
    let mut odd = builtin("H100-80");
    odd.memory_slices = 9;
    assert!(matches!(
        Layout::solve(&odd, LayoutKind::Halves, &[], false),
        Err(LayoutError::NoHalves { .. })
    ));
    let mut empty = builtin("H100-80");
    empty.profiles.clear();
    for kind in [LayoutKind::Halves, LayoutKind::Slices, LayoutKind::Whole] {
        assert!(matches!(
            Layout::solve(&empty, kind, &[], false),
            Err(LayoutError::NoProfile { .. })
        ));
    }
}

#[test]
fn shares_are_whole_percents() {
    let layout = Layout::shares("mps", MemoryMib(46068), &[], Units(3)).unwrap();
    assert_eq!(layout.kind, LayoutKind::Shares);
    assert_eq!(
        (layout.capacity, &layout.sides[..]),
        (Units(100), &[Side::Whole][..])
    );
    assert!(layout.proofs().is_empty());
    assert_eq!(layout.place(Side::Whole, Units(30), &[]), None);
    assert!(layout.preference(Side::Whole, Units(30)).is_empty());
    for (position, size) in layout.menu.iter().enumerate() {
        assert_eq!(size.units, Units(3 + position as u32));
        assert_eq!(size.fraction.units(), size.units);
        assert_eq!(size.memory.0, 46068 * u64::from(size.units.0) / 100);
    }
    assert_eq!(layout.largest().unwrap().memory, MemoryMib(46068));
    // The largest amount of memory does not overflow.
    let huge = Layout::shares("mps", MemoryMib(u64::MAX), &[], Units(1)).unwrap();
    assert_eq!(
        huge.entry(Units(50)).unwrap().memory,
        MemoryMib(u64::MAX / 2)
    );

    let menu = fractions(&["1/2", "1/3"]);
    let layout = Layout::shares("hami", MemoryMib(3000), &menu, Units(1)).unwrap();
    let shown: Vec<String> = layout.menu.iter().map(ToString::to_string).collect();
    assert_eq!(
        shown,
        [
            "0.334 (hami, 0.9 GiB)",
            "0.5 (hami, 1.4 GiB)",
            "1 (hami, 2.9 GiB)"
        ]
    );
}

#[test]
fn shared_halves_have_one_instance_each() {
    for model in Geometry::builtin_names() {
        let geometry = builtin(model);
        for equal in [false, true] {
            let halves = Layout::solve(&geometry, LayoutKind::Halves, &[], equal).unwrap();
            let layout = Layout::shared_halves(&geometry, &[], Units(3), equal).unwrap();
            assert_eq!(
                (layout.kind, layout.capacity),
                (LayoutKind::Halves, Units(50))
            );
            assert_eq!(layout.menu.len(), 48);
            let instance = halves.entry(Units(50)).unwrap();
            assert_eq!(layout.largest().unwrap().memory, instance.memory);
            for size in &layout.menu {
                assert_eq!(
                    size.memory.0,
                    instance.memory.0 * u64::from(size.units.0) / 50
                );
                for side in [Side::Left, Side::Right] {
                    let place = layout.place(side, size.units, &[]);
                    assert_eq!(place, halves.place(side, Units(50), &[]), "{model} {size}");
                }
            }
        }
    }
    let odd = Layout::shared_halves(&Geometry::unsliced("T4-16"), &[], Units(3), false);
    assert!(matches!(odd, Err(LayoutError::Geometry { .. })));
}

/// The pieces of a GPU after one request for each, from the lowest piece up.
fn pieces(model: &str, size: &str, equal: bool) -> (Layout, Vec<String>) {
    let geometry = builtin(model);
    let layout = Layout::solve(&geometry, LayoutKind::Uniform, &fractions(&[size]), equal).unwrap();
    let units = layout.menu[0].units;
    let mut standing = Vec::new();
    while let Some(candidate) = layout.place(Side::Whole, units, &standing) {
        standing.push(Occupied {
            profile_id: candidate.profile_id,
            placement: candidate.placement,
        });
    }
    standing.sort_by_key(|instance| instance.placement.start);
    let placed: Vec<Candidate> = standing
        .iter()
        .map(|instance| Candidate {
            profile_id: instance.profile_id,
            placement: instance.placement,
        })
        .collect();
    (layout, shown(&geometry, &placed))
}

#[test]
fn uniform_pieces_and_the_whole_gpu() {
    let mut seen = Vec::new();
    for model in Geometry::builtin_names() {
        let seven = builtin(model).compute_slices == 7;
        // Size, equal, units, number of pieces, states: the subsets of the pieces, and the whole GPU.
        let cases: &[(&str, bool, u32, usize, usize)] = if seven {
            &[
                ("1/2", false, 50, 2, 5),
                ("1/2", true, 50, 2, 5),
                ("1/4", false, 25, 4, 17),
                ("1/4", true, 25, 4, 17),
                ("1/7", false, 14, 7, 129),
                ("1/7", true, 14, 7, 129),
            ]
        } else {
            &[
                ("1/2", false, 50, 2, 5),
                ("1/2", true, 50, 2, 5),
                ("1/4", false, 25, 4, 17),
                ("1/4", true, 25, 4, 17),
            ]
        };
        for (size, equal, units, count, states) in cases.iter().copied() {
            let (layout, placed) = pieces(model, size, equal);
            assert_eq!(layout.menu.len(), 2);
            assert_eq!(layout.menu[0].units, Units(units), "{model} {size}");
            assert_eq!(layout.menu[1].units, Units::WHOLE);
            assert_eq!(placed.len(), count, "{model} {size}: {placed:?}");
            assert_eq!(layout.proofs()[0].states, states, "{model} {size} {equal}");
            seen.push((model, size, equal, placed));
        }
    }
    let of = |model: &str, size: &str, equal: bool| {
        let found = seen
            .iter()
            .find(|it| *it.0 == model && (it.1, it.2) == (size, equal));
        found.expect("a case").3.clone()
    };
    assert_eq!(of("H100-80", "1/2", false), ["4g@0", "3g@4"]);
    assert_eq!(of("H100-80", "1/2", true), ["3g@0", "3g@4"]);
    assert_eq!(
        of("H100-80", "1/4", false),
        ["2g@0", "2g@2", "2g@4", "1g@6"]
    );
    assert_eq!(of("H100-80", "1/4", true), ["1g@0", "1g@2", "1g@4", "1g@6"]);
    assert_eq!(of("A30-24", "1/2", false), ["2g@0", "2g@2"]);
    assert_eq!(of("A30-24", "1/4", true), ["1g@0", "1g@1", "1g@2", "1g@3"]);
}

#[test]
fn a_whole_gpu_has_no_place_beside_a_piece() {
    let (layout, _) = pieces("H100-80", "1/4", false);
    let piece = layout.place(Side::Whole, Units(25), &[]).unwrap();
    let standing = [Occupied {
        profile_id: piece.profile_id,
        placement: piece.placement,
    }];
    assert!(layout.place(Side::Whole, Units(100), &[]).is_some());
    assert_eq!(layout.place(Side::Whole, Units(100), &standing), None);
}

#[test]
fn uniform_takes_one_size_that_is_safe() {
    let geometry = builtin("H100-80");
    let refused = |menu: &[&str]| {
        let menu = fractions(menu);
        Layout::solve(&geometry, LayoutKind::Uniform, &menu, false).unwrap_err()
    };
    // Memory slices come in twos and fours: three or five pieces leave slices that no instance can have.
    for menu in [
        &[][..],
        &["1"],
        &["1/2", "1/4"],
        &["2/7"],
        &["3/4"],
        &["1/3"],
        &["1/5"],
        &["1/6"],
        &["1/8"],
    ] {
        assert_eq!(refused(menu), LayoutError::NotUniform, "{menu:?}");
    }
    // The menu may name the whole GPU, too.
    let named = Layout::solve(
        &geometry,
        LayoutKind::Uniform,
        &fractions(&["1/2", "1"]),
        false,
    );
    assert_eq!(named.unwrap().menu.len(), 2);
}
