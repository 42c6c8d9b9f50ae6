//! The table of docs/admin/layouts.md is what the layouts are, and each row of it holds by the geometry alone.

use gpufrac_core::geometry::{Evidence, Geometry};
use gpufrac_core::layout::{HEADINGS, LayoutKind, Served};

const PAGE: &str = include_str!("../../../docs/admin/layouts.md");

fn line(model: &str, cells: &[String]) -> String {
    format!("| {model} | {} |", cells.join(" | "))
}

/// Promise (placement): the table of layouts, sizes and models.
#[test]
fn the_table_of_sizes_is_true() {
    let headings = HEADINGS.map(str::to_owned);
    let mut expected = vec![
        line("model", &headings),
        format!("|{}", "---|".repeat(HEADINGS.len() + 1)),
    ];
    for model in Geometry::builtin_names() {
        let geometry = Geometry::builtin(model).expect("a known model");
        for row in Served::table(&geometry) {
            let mut cells = row.cells();
            cells[0] = match cells[0].split_once(',') {
                Some((layout, rest)) => format!("`{layout}`,{rest}"),
                None => format!("`{}`", cells[0]),
            };
            expected.push(line(model, &cells));
        }
    }
    let written: Vec<&str> = PAGE
        .lines()
        .skip_while(|line| !line.starts_with("| model |"))
        .take_while(|line| line.starts_with('|'))
        .collect();
    assert_eq!(written, expected, "\n{}", expected.join("\n"));
}

/// Promise (admins): `gpufrac conf` and docs/admin/layouts.md have the same table of what each layout serves on each
/// model, by proof.
/// With `the_table_of_sizes_is_true`, `conf_prints_the_lines_of_several_nodes_at_once`.
#[test]
fn every_model_has_every_layout_and_no_piece_is_made_twice() {
    for model in Geometry::builtin_names() {
        let geometry = Geometry::builtin(model).expect("a known model");
        let all = geometry.memory().expect("a model with memory").0;
        let whole = |profile: &&gpufrac_core::geometry::Profile| {
            profile.compute_slices == geometry.compute_slices
        };
        let full = geometry.profiles.iter().find(whole).expect("a whole GPU");
        let rows = Served::table(&geometry);
        for kind in [
            LayoutKind::Halves,
            LayoutKind::Uniform,
            LayoutKind::Slices,
            LayoutKind::Whole,
        ] {
            assert!(rows.iter().any(|row| row.kind == kind), "{model} {kind}");
        }
        for row in rows {
            let memory: u64 = row.pieces.iter().map(|(memory, _)| memory.0).sum();
            let multiprocessors: u32 = row.pieces.iter().map(|(_, number)| number).sum();
            // The rows of B200 that are assumed are rounded.
            assert!(memory <= all + 256, "{model} {row:?}");
            assert_eq!(row.left.0, all.saturating_sub(memory), "{model} {row:?}");
            // Four captured quarters of B200 have 138, more than the 126 that are assumed for 7g.
            let is_known =
                Geometry::evidence_of_figures(model, &full.name) != Some(Evidence::Assumed);
            assert!(
                multiprocessors <= full.multiprocessors || !is_known,
                "{model} {row:?}"
            );
            // So many are promised: 1/8 costs 13 units, of which a half has three.
            let promised = match row.size.ratio().as_str() {
                "1/8" => 6,
                ratio => ratio
                    .strip_prefix("1/")
                    .map_or(1, |part| part.parse().expect("a number")),
            };
            assert_eq!(row.pieces.len(), promised, "{model} {row:?}");
            let lends = matches!(row.kind, LayoutKind::Uniform | LayoutKind::Whole);
            assert_eq!(row.whole, lends, "{model} {row:?}");
            if row.equal {
                let first = row.pieces[0].1;
                assert!(
                    row.pieces.iter().all(|piece| piece.1 == first),
                    "{model} {row:?}"
                );
            }
        }
    }
}
