//! The table of docs/admin/layouts.md matches the layouts.

use gpufrac_core::fraction::Fraction;
use gpufrac_core::geometry::Geometry;
use gpufrac_core::layout::{Layout, LayoutKind, Occupied};

const PAGE: &str = include_str!("../../../docs/admin/layouts.md");

/// Memory in MiB and multiprocessors of the pieces of a GPU that is full of one size.
fn pieces(geometry: &Geometry, layout: &Layout, size: Fraction) -> Vec<(u64, u32)> {
    let units = layout
        .menu
        .iter()
        .find(|entry| entry.fraction == size)
        .expect("a model, size and layout that are known")
        .units;
    let mut standing: Vec<Occupied> = Vec::new();
    for side in &layout.sides {
        let mut free = layout.capacity.0;
        while free >= units.0 {
            let place = layout
                .place(*side, units, &standing)
                .expect("a proven layout");
            free -= units.0;
            standing.push(Occupied {
                profile_id: place.profile_id,
                placement: place.placement,
            });
        }
    }
    let profile = |it: &Occupied| {
        geometry
            .profile(it.profile_id)
            .expect("a model, size and layout that are known")
    };
    let mut pieces: Vec<_> = standing
        .iter()
        .map(|it| (profile(it).memory.0, profile(it).multiprocessors))
        .collect();
    pieces.sort_unstable_by(|a, b| b.cmp(a));
    pieces
}

/// `2 x 60`, or `3 x 32, 1 x 16`.
fn grouped(numbers: impl Iterator<Item = u32>) -> String {
    let numbers: Vec<u32> = numbers.collect();
    let groups = numbers.chunk_by(|a, b| a == b);
    let texts: Vec<String> = groups
        .map(|all| format!("{} x {}", all.len(), all[0]))
        .collect();
    texts.join(", ")
}

fn row(model: &str, kind: LayoutKind, size: &str, equal: bool) -> String {
    let geometry = Geometry::builtin(model).expect("a model, size and layout that are known");
    let size: Fraction = size
        .parse()
        .expect("a model, size and layout that are known");
    let menu = match kind {
        LayoutKind::Uniform | LayoutKind::Halves => vec![size],
        _ => Vec::new(),
    };
    let layout = Layout::solve(&geometry, kind, &menu, equal)
        .expect("a model, size and layout that are known");
    let pieces = pieces(&geometry, &layout, size);
    let least = pieces
        .iter()
        .map(|(memory, _)| *memory)
        .min()
        .expect("a model, size and layout that are known");
    let all = geometry
        .memory()
        .expect("a model, size and layout that are known")
        .0;
    let left = all.saturating_sub(pieces.iter().map(|(memory, _)| *memory).sum());
    let gib = |mib: u64| format!("{}.{}", mib / 1024, mib % 1024 * 10 / 1024);
    format!(
        "| {model} | `{kind}`{} | {} | {} | {} | {} | {} |",
        if equal { ", equal" } else { "" },
        size.ratio(),
        pieces.len(),
        gib(least),
        grouped(pieces.iter().map(|(_, multiprocessors)| *multiprocessors)),
        gib(left),
    )
}

#[test]
fn the_table_of_sizes_is_true() {
    let mut expected = vec![
        "| model | layout | size | pieces | GiB each | SM | GiB left over |".to_owned(),
        "|---|---|---|---|---|---|---|".to_owned(),
    ];
    for model in Geometry::builtin_names() {
        let seven = Geometry::builtin(model).unwrap().compute_slices == 7;
        for size in ["1/2", "1/4", "1/8"] {
            if seven || size != "1/8" {
                expected.push(row(model, LayoutKind::Halves, size, false));
            }
        }
        for (size, equal) in [
            ("1/2", false),
            ("1/2", true),
            ("1/4", false),
            ("1/4", true),
            ("1/7", false),
        ] {
            // With four compute slices there are no sevenths, and all pieces are equal without `equal`.
            if seven || (size != "1/7" && !equal) {
                expected.push(row(model, LayoutKind::Uniform, size, equal));
            }
        }
    }
    let written: Vec<&str> = PAGE
        .lines()
        .skip_while(|line| !line.starts_with("| model |"))
        .take_while(|line| line.starts_with('|'))
        .collect();
    assert_eq!(written, expected, "\n{}", expected.join("\n"));
}
