//! A GPU drawn as text: the owner of each memory slice.

use gpufrac_core::geometry::Placement;

/// A segment of the map: an instance on a GPU.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Segment {
    /// The position.
    pub placement: Placement,
    /// The label, e.g. `job 12 2g.20gb`.
    pub label: String,
}

/// Columns for each memory slice.
const SLICE_COLUMNS: usize = 11;

/// Draws `memory_slices` slices in one line: `[job 12 4g.40gb      ...][free     ]`. A label that is too long is cut.
/// Segments must not overlap; if they do, each is shown on its own line.
pub fn draw(memory_slices: u8, segments: &[Segment]) -> Vec<String> {
    let mut lines = vec![String::new()];
    let mut left: Vec<&Segment> = segments.iter().collect();
    left.sort_by_key(|segment| segment.placement);
    let mut first = true;
    while first || !left.is_empty() {
        let mut line = String::new();
        let mut at = 0;
        let mut overlapping = Vec::new();
        for segment in left {
            if u32::from(segment.placement.start) < at {
                overlapping.push(segment);
                continue;
            }
            fill(&mut line, at, u32::from(segment.placement.start), first);
            cell(&mut line, segment.placement.size.into(), &segment.label);
            at = segment.placement.end();
        }
        fill(&mut line, at, memory_slices.into(), first);
        if first {
            lines[0] = line;
        } else {
            lines.push(line.trim_end().to_owned());
        }
        first = false;
        left = overlapping;
    }
    lines
}

/// Draws shares, which have no position, side by side with a width in proportion to their size. `capacity` and the
/// shares are in units.
pub fn draw_shares(capacity: u32, shares: &[(u32, String)]) -> String {
    const COLUMNS: u32 = 8 * SLICE_COLUMNS as u32;
    let width = |units: u32| usize::try_from(units * COLUMNS / capacity.max(1)).unwrap_or(0);
    let mut line = String::new();
    let mut taken = 0;
    for (units, label) in shares {
        taken += units;
        boxed(&mut line, width(*units), label);
    }
    if taken < capacity {
        let label = format!("{} % free", (capacity - taken) * 100 / capacity.max(1));
        boxed(&mut line, width(capacity - taken), &label);
    }
    line
}

fn fill(line: &mut String, from: u32, to: u32, free: bool) {
    for _ in from..to {
        if free {
            cell(line, 1, "free");
        } else {
            line.push_str(&" ".repeat(SLICE_COLUMNS));
        }
    }
}

fn cell(line: &mut String, slices: usize, label: &str) {
    boxed(line, slices * SLICE_COLUMNS, label);
}

fn boxed(line: &mut String, width: usize, label: &str) {
    let width = width.saturating_sub(2);
    let text: String = label.chars().take(width).collect();
    line.push_str(&format!("[{text:<width$}]"));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn segment(start: u8, size: u8, label: &str) -> Segment {
        Segment {
            placement: Placement { start, size },
            label: label.into(),
        }
    }

    #[test]
    fn every_slice_has_its_columns() {
        let drawn = draw(8, &[segment(4, 2, "job 13 2g"), segment(0, 4, "job 12 4g")]);
        assert_eq!(
            drawn,
            [
                "[job 12 4g                                 ][job 13 2g           ][free     ][free     ]"
            ]
        );
        assert_eq!(drawn[0].len(), 8 * SLICE_COLUMNS);
        assert_eq!(draw(4, &[])[0].matches("free").count(), 4);
    }

    #[test]
    fn shares_are_as_wide_as_they_are_large() {
        let line = draw_shares(100, &[(50, "job 1 0.5".into()), (25, "job 2 0.25".into())]);
        assert!(line.starts_with("[job 1 0.5 "), "{line}");
        assert_eq!(line.len(), 88);
        assert_eq!(line.find("[job 2"), Some(44));
        assert!(line.contains("[25 % free"), "{line}");
        assert_eq!(draw_shares(100, &[]).find("100 % free"), Some(1));
    }

    #[test]
    fn a_long_label_is_cut() {
        let drawn = draw(2, &[segment(0, 1, "job 1234567 1g.10gb")]);
        assert_eq!(drawn, ["[job 12345][free     ]"]);
    }

    #[test]
    fn an_overlap_is_not_hidden() {
        let drawn = draw(4, &[segment(0, 2, "a"), segment(1, 1, "b")]);
        assert_eq!(drawn.len(), 2);
        assert!(drawn[1].contains("[b"));
    }
}
