//! A GPU drawn as text: the owner of each memory slice.

use gpufrac_core::geometry::Placement;
use gpufrac_page::words::plain;
use gpufrac_view::cluster::GpuState;
use gpufrac_view::{GpuStatus, Slice};

/// A segment of the map: an instance on a GPU.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Segment {
    pub placement: Placement,
    /// The label, e.g. `job 12 2g.20gb`.
    pub label: String,
}

/// The lines of a GPU, with its memory slices or shares: `GPU 0 H100-80  [job 12 4g      ][free ]`.
pub fn lines(state: &GpuState) -> Vec<String> {
    let gpu = &state.gpu;
    let head = format!("GPU {} {}", gpu.index, gpu.model);
    let drawn = match (state.counted.is_empty(), gpu.memory_slices) {
        (false, _) => {
            let taken: u32 = state.counted.iter().map(|device| device.taken).sum();
            let taken = (taken > 0).then(|| (taken, format!("{taken} % taken, by Slurm's count")));
            let taken: Vec<_> = taken.into_iter().collect();
            vec![draw_shares(100, &taken)]
        }
        (true, 0) => vec![draw_shares(100, &shares(gpu))],
        (true, slices) => draw(slices, &segments(gpu)),
    };
    let mut lines = Vec::new();
    for (row, drawn) in drawn.into_iter().enumerate() {
        let head = if row == 0 { head.as_str() } else { "" };
        let mode = match gpu.mig.filter(|_| row == 0) {
            None => "",
            Some(true) => "  MIG on",
            Some(false) => "  MIG off",
        };
        lines.push(format!("{head:<16}{drawn}{mode}"));
    }
    if let Some(fault) = &gpu.fault {
        let fault = plain(fault);
        lines.push(format!("{:<16}(by the leases only: {fault})", ""));
    }
    lines
}

/// `job 12`, or `job 12.1` for a further slice of a job; without the owner, `a job`.
fn job(slice: &Slice) -> String {
    match &slice.owner {
        None => "a job".to_owned(),
        Some(owner) => format!("job {}", name(owner)),
    }
}

/// The name of a lease.
pub fn name(owner: &gpufrac_view::Owner) -> String {
    gpufrac_core::lease::name(owner.job, owner.slice)
}

fn shares(gpu: &GpuStatus) -> Vec<(u32, String)> {
    let slices = gpu.slices.iter();
    let shares = slices.map(|slice| {
        let label = format!("{} {}", job(slice), slice.fraction);
        (slice.units, label)
    });
    shares.collect()
}

fn segments(gpu: &GpuStatus) -> Vec<Segment> {
    let mut segments: Vec<Segment> = Vec::new();
    for slice in &gpu.slices {
        let Some(place) = slice.place else { continue };
        let placement = Placement {
            start: place.start,
            size: place.size,
        };
        let is_shared = slice.kind.ends_with("+mps");
        let standing = segments.iter_mut().find(|it| it.placement == placement);
        match standing.filter(|_| is_shared) {
            Some(shared) => {
                let owner = slice.owner.as_ref().map_or("a job".to_owned(), name);
                let more = format!(", {owner} {}", slice.fraction);
                shared.label.push_str(&more);
            }
            None => segments.push(Segment {
                placement,
                label: label(slice, is_shared),
            }),
        }
    }
    for place in &gpu.unleased {
        segments.push(Segment {
            placement: Placement {
                start: place.start,
                size: place.size,
            },
            label: "not ours".to_owned(),
        });
    }
    segments
}

fn label(slice: &Slice, is_shared: bool) -> String {
    let profile = slice.kind.split('.').next().unwrap_or(&slice.kind);
    match (slice.state.as_str(), slice.kind.as_str()) {
        ("kept", _) => {
            let user = slice.owner.as_ref().map_or("a user", |owner| &owner.user);
            format!("kept for {} {profile}", plain(user))
        }
        (_, "bare") => format!("{} whole GPU", job(slice)),
        _ if is_shared => format!("{} {}", job(slice), slice.fraction),
        _ => format!("{} {profile}", job(slice)),
    }
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
    use gpufrac_core::config::Config;
    use gpufrac_core::lease::{Held, Lease, LeaseState};
    use gpufrac_view::{Place, Seen};
    use test_examples::lease;

    use super::*;

    fn segment(start: u8, size: u8, label: &str) -> Segment {
        Segment {
            placement: Placement { start, size },
            label: label.into(),
        }
    }

    /// GPU 0 of a made-up node, with the slices of these leases.
    fn state(leases: &[Lease], unleased: &[Place], mig: Option<bool>) -> GpuState {
        let config = Config::parse(test_examples::CONFIG, "gpufrac.toml").unwrap();
        let devices = config.devices_of_node("gn0001", 8);
        let leases: Vec<&Lease> = leases.iter().collect();
        let seen = Seen {
            unleased: unleased.to_vec(),
            ..Seen::default()
        };
        let mut gpu = GpuStatus::of(&devices[0], "GPU-0", &leases, seen);
        gpu.mig = mig;
        GpuState {
            gpu,
            counted: Vec::new(),
        }
    }

    #[test]
    fn leases_and_foreign_instances_are_drawn_over_the_slices() {
        let foreign = Place { start: 6, size: 1 };
        assert_eq!(
            lines(&state(&[lease(12)], &[foreign], None)),
            [
                "GPU 0 H100-80   [free     ][free     ][job 12 2g           ][free     ][free     ][not ours ][free     ]"
            ]
        );
    }

    #[test]
    fn a_gpu_whose_mode_changes_shows_its_mode_and_a_whole_job() {
        let mut whole = lease(12);
        whole.slice.held = Held::Bare;
        let first = |leases: &[Lease], mig| lines(&state(leases, &[], mig)).remove(0);
        let off = first(&[whole], Some(false));
        assert!(
            off.starts_with("GPU 0 H100-80   [job 12 whole GPU  "),
            "{off}"
        );
        assert!(off.ends_with("]  MIG off"), "{off}");
        assert!(first(&[], Some(true)).ends_with("[free     ]  MIG on"));
        assert!(first(&[], None).ends_with("[free     ]"));
    }

    #[test]
    fn a_kept_instance_and_a_hidden_owner_are_named() {
        let mut kept = lease(12);
        kept.state = LeaseState::Kept;
        let mut state = state(&[kept], &[], None);
        assert!(lines(&state)[0].contains("[kept for ada 2g "));
        state.gpu.slices[0].owner = None;
        state.gpu.slices[0].state = "active".to_owned();
        assert!(lines(&state)[0].contains("[a job 2g "));
        state.gpu.fault = Some("it fell off\u{1b}[2J".to_owned());
        assert!(lines(&state)[1].ends_with("(by the leases only: it fell off?[2J)"));
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

    /// Promise (admins): shares are drawn as wide as they are large.
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
