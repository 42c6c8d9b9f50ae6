//! Values as Slurm writes them.

use gpufrac_core::mig_type::{GpuPart, MigType};
use gpufrac_core::slurm_text::items;
use jiff::civil::DateTime;
use jiff::tz::TimeZone;

/// No time and no span of a history is longer: seconds. Sums of such numbers do not overflow.
pub const LONGEST: u64 = 1 << 40;

/// No job has more GPUs, and no node more shards.
pub const MOST_GPUS: u32 = 1 << 20;

/// Seconds of a number with decimals.
pub fn seconds(number: f64) -> u64 {
    (number.max(0.0) as u64).min(LONGEST)
}

/// Seconds since 1970 of `2026-11-23T08:00:00`, or of a number of seconds (`SLURM_TIME_FORMAT=%s`). A time without a
/// zone counts as UTC: a plan needs differences alone. None for `Unknown`, `None` and the empty text; Err for any other
/// text.
pub fn time(text: &str) -> Result<Option<u64>, ()> {
    if matches!(text, "" | "Unknown" | "None" | "N/A") {
        return Ok(None);
    }
    if text.bytes().all(|byte| byte.is_ascii_digit()) {
        return match text.parse() {
            Ok(seconds) if seconds <= LONGEST => Ok(Some(seconds)),
            _ => Err(()),
        };
    }
    let time: DateTime = text.get(..19).ok_or(())?.parse().map_err(drop)?;
    let since_1970 = TimeZone::UTC.to_timestamp(time).map_err(drop)?;
    u64::try_from(since_1970.as_second())
        .map(Some)
        .map_err(drop)
}

/// Seconds of `1-02:03:04`, `1-02`, `02:03:04`, `03:04` or `03:04.567`.
pub fn span(text: &str) -> Option<u64> {
    let (days, clock) = match text.split_once('-') {
        Some((days, clock)) => (Some(days.parse::<u64>().ok()?), clock),
        None => (None, text),
    };
    let parts = clock.split('.').next()?.split(':').map(str::parse);
    let parts: Vec<u64> = parts.collect::<Result<_, _>>().ok()?;
    // Behind days come hours. A span of one part would be minutes or seconds.
    let [hours, minutes, seconds] = match (days, parts.as_slice()) {
        (Some(_), [hours]) => [*hours, 0, 0],
        (Some(_), [hours, minutes]) => [*hours, *minutes, 0],
        (None, [minutes, seconds]) => [0, *minutes, *seconds],
        (_, [hours, minutes, seconds]) => [*hours, *minutes, *seconds],
        _ => return None,
    };
    let hours = days.unwrap_or(0).checked_mul(24)?.checked_add(hours)?;
    let minutes = hours.checked_mul(60)?.checked_add(minutes)?;
    let span = minutes.checked_mul(60)?.checked_add(seconds)?;
    (span <= LONGEST).then_some(span)
}

/// Minutes or a span: `1440`, `1-00:00:00`; None for `UNLIMITED`, `Partition_Limit` and the empty text.
pub fn limit(text: &str) -> Result<Option<u64>, ()> {
    let open = ["", "UNLIMITED", "Partition_Limit", "INVALID", "INFINITE"];
    if open.iter().any(|word| text.eq_ignore_ascii_case(word)) {
        return Ok(None);
    }
    match text.parse::<u64>() {
        // Slurm's INFINITE and NO_VAL.
        Ok(minutes) if minutes >= 0xffff_fffe => Ok(None),
        Ok(minutes) if minutes <= LONGEST / 60 => Ok(Some(minutes * 60)),
        Ok(_) => Err(()),
        Err(_) => span(text).map(Some).ok_or(()),
    }
}

/// Bytes.
pub const MIB: f64 = 1024.0 * 1024.0;

/// MiB of `1234M`, `3.5G`, `1024K`, or of bytes.
pub fn mib(text: &str) -> Option<f64> {
    let digits = text.trim_end_matches(|letter: char| letter.is_ascii_alphabetic());
    let number: f64 = digits.parse().ok()?;
    let scale = match text[digits.len()..].chars().next() {
        None => 1.0 / MIB,
        Some('K') => 1.0 / 1024.0,
        Some('M') => 1.0,
        Some('G') => 1024.0,
        Some('T') => 1024.0 * 1024.0,
        Some(_) => return None,
    };
    (number.is_finite() && number >= 0.0).then_some(number * scale)
}

/// The GPUs, and the parts of GPUs, in a list of GRES or TRES of any version: `cpu=8,gres/gpu:a100=2,gres/gpu=2`,
/// `gpu:a100:2(IDX:0-1)`, `gpu:4,shard:32`.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Devices<'a> {
    /// Whole GPUs.
    pub gpus: u32,
    /// MIG instances.
    pub instances: u32,
    /// What the instances take of their GPUs.
    pub part: GpuPart,
    pub shards: u32,
    /// Percents of MPS.
    pub mps: u32,
    /// The first Type of `gpu`; empty without.
    pub gpu_type: &'a str,
}

impl<'a> Devices<'a> {
    /// Reads a list.
    pub fn of(text: &'a str) -> Result<Devices<'a>, ()> {
        let mut devices = Devices::default();
        let mut sums = [[0_u32; 2]; NAMES.len()];
        for item in items(text).filter_map(Item::of) {
            let count = item.count.parse().map_err(drop)?;
            let sum = &mut sums[item.name][usize::from(item.is_sum)];
            *sum = sum.checked_add(count).ok_or(())?;
            if *sum > MOST_GPUS {
                return Err(());
            }
            if NAMES[item.name] != "gpu" {
                continue;
            }
            if devices.gpu_type.is_empty() {
                devices.gpu_type = item.type_name;
            }
            if let Some(mig_type) = MigType::of(item.type_name) {
                devices.instances += count;
                devices.part.add(mig_type.part(), count);
            }
        }
        [devices.gpus, devices.shards, devices.mps] =
            sums.map(|[of_items, written]| of_items.max(written));
        devices.gpus -= devices.instances;
        Ok(devices)
    }

    /// The whole GPUs, and those that the instances fill; shards and MPS count not at all.
    pub fn all_gpus(&self) -> u32 {
        self.gpus + gpus_of_share(self.part.share())
    }

    /// Whether there is neither a GPU nor a part of one.
    pub fn is_empty(&self) -> bool {
        self.gpus + self.instances + self.shards + self.mps == 0
    }
}

/// The fewest GPUs that hold parts of this sum.
pub fn gpus_of_share(share: f64) -> u32 {
    // Seven sevenths are a little more than one.
    const ROUNDED: f64 = 1e-6;
    (share - ROUNDED).ceil().max(0.0) as u32
}

/// What lists call GPUs and their shares.
const NAMES: [&str; 3] = ["gpu", "shard", "mps"];

/// One device of a list.
struct Item<'a> {
    /// Its place in [`NAMES`].
    name: usize,
    type_name: &'a str,
    count: &'a str,
    /// Slurm's TRES have the sum of all Types, too: `gres/gpu=2`.
    is_sum: bool,
}

impl<'a> Item<'a> {
    /// None for other things than GPUs and their shares.
    fn of(text: &'a str) -> Option<Item<'a>> {
        let text = text.split('(').next().unwrap_or(text).trim();
        let bare = text.strip_prefix("gres/").or(text.strip_prefix("gres:"));
        let text = bare.unwrap_or(text);
        let is_count = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
        let (device, count) = text.split_once('=').unwrap_or_else(|| {
            let pair = text.rsplit_once(':');
            pair.filter(|(_, count)| !count.is_empty() && is_count(count))
                .unwrap_or((text, "1"))
        });
        let (name, type_name) = device.split_once(':').unwrap_or((device, ""));
        Some(Item {
            name: NAMES.iter().position(|known| *known == name)?,
            type_name,
            count,
            is_sum: type_name.is_empty() && text.contains('='),
        })
    }
}

/// The value of `name=` in a list of TRES.
pub fn tres<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    let mut items = text.split(',');
    items.find_map(|item| item.strip_prefix(name)?.strip_prefix('='))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read_in_each_form() {
        assert_eq!(time("2026-11-23T08:00:00"), Ok(Some(1_795_420_800)));
        assert_eq!(time("2026-11-23 08:00:00"), Ok(Some(1_795_420_800)));
        assert_eq!(time("1795420800"), Ok(Some(1_795_420_800)));
        assert_eq!(time("Unknown"), Ok(None));
        for text in [
            "yesterday",
            "2026-13-01T00:00:00",
            "2026-1-1T00:00",
            "2026-11-23T25:00:00",
        ] {
            assert_eq!(time(text), Err(()), "{text}");
        }
    }

    #[test]
    fn spans_and_limits_are_read() {
        assert_eq!(span("1-02:03:04"), Some(93_784));
        assert_eq!(span("03:04.567"), Some(184));
        assert_eq!(span("7-0"), Some(604_800));
        assert_eq!(span("1-12:30"), Some(131_400));
        assert_eq!(span("x"), None);
        assert_eq!(limit("1440"), Ok(Some(86_400)));
        assert_eq!(limit("1-00:00:00"), Ok(Some(86_400)));
        assert_eq!(limit("UNLIMITED"), Ok(None));
        assert_eq!(limit("4294967295"), Ok(None));
        assert_eq!(limit("soon"), Err(()));
    }

    /// Whole GPUs, instances, shards and percents of MPS.
    fn counts(text: &str) -> Result<[u32; 4], ()> {
        let all = Devices::of(text)?;
        Ok([all.gpus, all.instances, all.shards, all.mps])
    }

    #[test]
    fn devices_are_read_from_the_texts_of_all_versions() {
        for (text, expected) in [
            (
                "billing=32,cpu=32,gres/gpu:a100=2,gres/gpu=2,mem=128G",
                [2, 0, 0, 0],
            ),
            ("cpu=1,gres/gpu:a100=1,gres/gpu:v100=3", [4, 0, 0, 0]),
            ("cpu=1,mem=4G", [0; 4]),
            ("gpu:4", [4, 0, 0, 0]),
            ("gpu", [1, 0, 0, 0]),
            ("gpu:a100", [1, 0, 0, 0]),
            ("gpu:a100:2(IDX:0,3),lustre:1", [2, 0, 0, 0]),
            ("gpu:2(IDX:0-1)", [2, 0, 0, 0]),
            ("gres:gpu:2", [2, 0, 0, 0]),
            ("gres/gpu:2", [2, 0, 0, 0]),
            ("", [0; 4]),
            ("gres/gpumem=12G,gres/gpuutil=55", [0; 4]),
            ("cpu=8,mem=30G,gres/gpu:a100_3g.20gb=1", [0, 1, 0, 0]),
            (
                "cpu=4,gres/gpu=2,gres/gpu:a100_1g.5gb=2,mem=20G",
                [0, 2, 0, 0],
            ),
            (
                "gres/gpu:1g.10gb=2,gres/gpu:a100=1,gres/gpu=3",
                [1, 2, 0, 0],
            ),
            ("gpu:a100_1g.5gb:1", [0, 1, 0, 0]),
            ("gpu:1g.12gb+me", [0, 1, 0, 0]),
            ("gpu:nvidia_h100_80gb_hbm3_1g.10gb:3(IDX:0-2)", [0, 3, 0, 0]),
            ("cpu=4,gres/shard=8,mem=16G", [0, 0, 8, 0]),
            ("gres/shard:a100=8,gres/shard=8", [0, 0, 8, 0]),
            ("shard:8(2/8,0/8)", [0, 0, 8, 0]),
            ("cpu=4,gres/mps=50,mem=16G", [0, 0, 0, 50]),
            ("mps:50", [0, 0, 0, 50]),
        ] {
            assert_eq!(counts(text), Ok(expected), "{text}");
        }
        for text in ["gres/gpu=many", "gres/gpu=4000000000", "gres/shard=-1"] {
            assert_eq!(counts(text), Err(()), "{text}");
        }
    }

    fn gpus_of_node(gres: &str) -> Result<u32, ()> {
        Ok(Devices::of(gres)?.all_gpus())
    }

    #[test]
    fn gpus_of_a_node_are_those_that_its_instances_fill() {
        for (gres, expected) in [
            ("gpu:a100_3g.20gb:4,gpu:a100_1g.5gb:14", 4),
            ("gpu:a100:4", 4),
            ("gpu:a100:4(S:0-1),shard:32,mps:400", 4),
            ("gpu:2,gpu:a100:4", 6),
            ("gpu:a100:2,gpu:a100_2g.10gb:6", 4),
            ("gpu:1g.5gb:7", 1),
            ("gpu:1g.5gb:8", 2),
            ("gpu:a30_1g.6gb:8", 2),
            // Two of these fill the memory of a GPU.
            ("gpu:a100_3g.20gb:16(S:0-1)", 8),
            ("shard:8", 0),
            ("(null)", 0),
        ] {
            assert_eq!(gpus_of_node(gres), Ok(expected), "{gres}");
        }
    }

    #[test]
    fn the_type_of_gpus_is_read_from_the_texts_of_all_versions() {
        for (text, expected) in [
            ("cpu=32,gres/gpu:a100=2,gres/gpu=2", "a100"),
            ("gres/gpu:2080ti=1", "2080ti"),
            ("gpu:2080ti:1", "2080ti"),
            ("gpu:a100:2(IDX:0,3),lustre:1", "a100"),
            ("gpu:2(IDX:0,3)", ""),
            ("gpu:a100", "a100"),
            ("gpu:1g.5gb:2", "1g.5gb"),
            ("gres:gpu:2", ""),
            ("gpu", ""),
            ("cpu=1,gres/gpu=1,gres/gpumem=1G", ""),
        ] {
            let devices = Devices::of(text).unwrap();
            assert_eq!(devices.gpu_type, expected, "{text}");
        }
    }

    #[test]
    fn memory_is_read_with_its_unit() {
        assert_eq!(mib("2G"), Some(2048.0));
        assert_eq!(mib("1048576"), Some(1.0));
        assert_eq!(mib("12X"), None);
        assert_eq!(mib("-4M"), None);
    }
}
