//! Values as Slurm writes them.

use gpufrac_core::mig_type::{GpuPart, MigType};

/// No time and no span of a history is longer: seconds. Sums of such numbers do not overflow.
pub const LONGEST: u64 = 1 << 40;

/// No job has more GPUs, and no node more shards.
const MOST_GPUS: u32 = 1 << 20;

/// Seconds of a number with decimals.
pub fn seconds(number: f64) -> u64 {
    (number.max(0.0) as u64).min(LONGEST)
}

/// Seconds since 1970 of `2026-11-23T08:00:00`, or of a number of seconds (`SLURM_TIME_FORMAT=%s`). A time without a zone counts
/// as UTC: a plan needs differences alone. None for `Unknown`, `None` and the empty text; Err for any other text.
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
    let bytes = text.as_bytes();
    let number = |from: usize, to: usize| -> Result<i64, ()> {
        let digits = text.get(from..to).ok_or(())?;
        if !digits.bytes().all(|byte| byte.is_ascii_digit()) {
            return Err(());
        }
        digits.parse().map_err(drop)
    };
    let is_mark = |at: usize, marks: &[u8]| bytes.get(at).is_some_and(|mark| marks.contains(mark));
    let marks = is_mark(4, b"-") && is_mark(7, b"-") && is_mark(10, b"T ");
    if !marks || !is_mark(13, b":") || !is_mark(16, b":") {
        return Err(());
    }
    let narrow = |value: i64| i8::try_from(value).map_err(drop);
    let date = jiff::civil::Date::new(
        i16::try_from(number(0, 4)?).map_err(drop)?,
        narrow(number(5, 7)?)?,
        narrow(number(8, 10)?)?,
    )
    .map_err(drop)?;
    let since = jiff::civil::Date::constant(1970, 1, 1);
    let days = i64::from((date - since).get_days());
    let (hour, minute, second) = (number(11, 13)?, number(14, 16)?, number(17, 19)?);
    if hour > 23 || minute > 59 || second > 60 {
        return Err(());
    }
    let seconds = days * 86_400 + hour * 3600 + minute * 60 + second;
    u64::try_from(seconds).map(Some).map_err(drop)
}

/// Seconds of `1-02:03:04`, `1-02`, `02:03:04`, `03:04` or `03:04.567`.
pub fn span(text: &str) -> Option<u64> {
    let (days, clock) = match text.split_once('-') {
        Some((days, clock)) => (Some(days.parse::<u64>().ok()?), clock),
        None => (None, text),
    };
    let clock = clock.split('.').next()?;
    let mut parts = Vec::new();
    for part in clock.split(':') {
        parts.push(part.parse::<u64>().ok()?);
    }
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
    let is_open = |word: &str| text.eq_ignore_ascii_case(word);
    if text.is_empty()
        || ["UNLIMITED", "Partition_Limit", "INVALID", "INFINITE"]
            .into_iter()
            .any(is_open)
    {
        return Ok(None);
    }
    match text.parse::<u64>() {
        // Slurm's INFINITE and NO_VAL.
        Ok(minutes) if minutes >= 0xffff_fffe => Ok(None),
        Ok(minutes) => minutes
            .checked_mul(60)
            .filter(|seconds| *seconds <= LONGEST)
            .map(Some)
            .ok_or(()),
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
    /// Shards.
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
        let (mut gpus, mut shards, mut mps) = (Sum::default(), Sum::default(), Sum::default());
        for item in split_items(text).filter_map(Item::of) {
            let count = item.count()?;
            match item.name {
                "shard" => shards.add(&item, count)?,
                "mps" => mps.add(&item, count)?,
                _ => gpus.add(&item, count)?,
            }
            if item.name == "gpu" && devices.gpu_type.is_empty() {
                devices.gpu_type = item.type_name;
            }
            if let Some(mig_type) = MigType::of(item.type_name).filter(|_| item.name == "gpu") {
                devices.instances += count;
                devices.part.add(mig_type.part(), count);
            }
        }
        devices.gpus = gpus.all() - devices.instances;
        devices.shards = shards.all();
        devices.mps = mps.all();
        Ok(devices)
    }

    /// The whole GPUs, and those that the instances fill.
    pub fn all_gpus(&self) -> u32 {
        self.gpus + gpus_of_share(self.part.share())
    }

    /// Whether there is neither a GPU nor a part of one.
    pub fn is_empty(&self) -> bool {
        self.gpus + self.instances + self.shards + self.mps == 0
    }
}

/// The GPUs of a node by its Gres. Instances count as the GPUs that they fill, shards and MPS not at all.
pub fn gpus_of_node(gres: &str) -> Result<u32, ()> {
    Ok(Devices::of(gres)?.all_gpus())
}

/// The shards of a node by its Gres, and its percents of MPS.
pub fn shares_of_node(gres: &str) -> Result<(u32, u32), ()> {
    let devices = Devices::of(gres)?;
    Ok((devices.shards, devices.mps))
}

/// The fewest GPUs that hold parts of this sum.
pub fn gpus_of_share(share: f64) -> u32 {
    // Seven sevenths are a little more than one.
    const ROUNDED: f64 = 1e-6;
    (share - ROUNDED).ceil().max(0.0) as u32
}

/// One device of a list.
struct Item<'a> {
    name: &'a str,
    type_name: &'a str,
    count: &'a str,
    /// Slurm's TRES have the sum of all Types, too: `gres/gpu=2`.
    is_sum: bool,
}

impl<'a> Item<'a> {
    /// None for other things than GPUs and their shares.
    fn of(text: &'a str) -> Option<Item<'a>> {
        let text = text.split('(').next().unwrap_or(text).trim();
        let prefixes = ["gres/", "gres:"].into_iter();
        let mut bare = prefixes.filter_map(|prefix| text.strip_prefix(prefix));
        let text = bare.next().unwrap_or(text);
        let is_count =
            |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        let (device, count) = text.split_once('=').unwrap_or_else(|| {
            let pair = text.rsplit_once(':');
            pair.filter(|(_, count)| is_count(count))
                .unwrap_or((text, "1"))
        });
        let (name, type_name) = device.split_once(':').unwrap_or((device, ""));
        ["gpu", "shard", "mps"].contains(&name).then_some(Item {
            name,
            type_name,
            count,
            is_sum: type_name.is_empty() && text.contains('='),
        })
    }

    fn count(&self) -> Result<u32, ()> {
        let count = self.count.parse().map_err(drop)?;
        (count <= MOST_GPUS).then_some(count).ok_or(())
    }
}

/// Counts of one device.
#[derive(Default)]
struct Sum {
    written: u32,
    added: u32,
}

impl Sum {
    fn add(&mut self, item: &Item<'_>, count: u32) -> Result<(), ()> {
        let sum = match item.is_sum {
            true => &mut self.written,
            false => &mut self.added,
        };
        *sum = sum
            .checked_add(count)
            .filter(|sum| *sum <= MOST_GPUS)
            .ok_or(())?;
        Ok(())
    }

    fn all(&self) -> u32 {
        self.written.max(self.added)
    }
}

/// Splits at commas outside of parentheses: `gpu:2(IDX:0,3),lustre:1`.
fn split_items(text: &str) -> impl Iterator<Item = &str> {
    let mut depth = 0_i32;
    text.split(move |letter| {
        match letter {
            '(' => depth += 1,
            ')' => depth -= 1,
            _ => {}
        }
        letter == ',' && depth <= 0
    })
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
