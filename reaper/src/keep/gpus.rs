//! The time in which the GPUs of pools were there: what a report compares the time of slices with.

use std::collections::BTreeSet;

use gpufrac_core::config::Device;
use gpufrac_node::node::Node;
use gpufrac_records::usage::{BootSpan, End, GpuTime};

/// Seconds after which the time of a GPU is recorded and a new one begins.
const LONGEST_S: u64 = 3600;

/// The GPUs of the node's pools, each from now until now; none if node-setup has not run.
pub fn of_node(node: &Node, now: End<'_>) -> Vec<GpuTime> {
    let Ok(record) = node.record() else {
        return Vec::new();
    };
    let count = u32::try_from(record.gpus.len()).unwrap_or(u32::MAX);
    let devices = node.config.devices_of_node(&node.name, count);
    let mut gpus: Vec<GpuTime> = Vec::new();
    for device in &devices {
        let Some(gpu) = record.gpus.get(device.gpu_index.position()) else {
            continue;
        };
        let own = (device.index.0, device.pool.layout.capacity.0);
        match gpus.iter_mut().find(|known| known.gpu_uuid == gpu.uuid) {
            Some(known) => known.devices.push(own),
            None => gpus.push(GpuTime {
                node: node.name.clone(),
                gpu_uuid: gpu.uuid.clone(),
                pool: device.pool.name.clone(),
                from: now.unix,
                until: now.unix,
                boot: BootSpan {
                    id: now.boot_id.to_owned(),
                    from: now.boot_ms / 1000,
                    until: now.boot_ms / 1000,
                },
                devices: vec![own],
                menu: menu(device),
            }),
        }
    }
    gpus
}

/// Units of each size of a device's pool, in ascending order.
fn menu(device: &Device<'_>) -> Vec<u32> {
    let sizes = device.pool.layout.menu.iter().map(|size| size.units.0);
    sizes.collect::<BTreeSet<u32>>().into_iter().collect()
}

/// Times that are over, and those that go on.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Counted {
    /// To be recorded: what has become long, and what is now another GPU, of another pool or of another layout.
    pub over: Vec<GpuTime>,
    /// To be counted on.
    pub on: Vec<GpuTime>,
}

/// Counts the times of GPUs on. `now`: the GPUs that are there now, from [`of_node`].
pub fn count(before: Vec<GpuTime>, now: Vec<GpuTime>) -> Counted {
    let mut counted = Counted::default();
    let mut before: Vec<Option<GpuTime>> = before.into_iter().map(Some).collect();
    for gpu in now {
        let known = before
            .iter_mut()
            .find(|known| known.as_ref().is_some_and(|known| is_same(known, &gpu)));
        let Some(known) = known.and_then(Option::take) else {
            counted.on.push(gpu);
            continue;
        };
        let whole = GpuTime {
            from: known.from,
            boot: BootSpan {
                from: known.boot.from,
                ..gpu.boot.clone()
            },
            ..gpu.clone()
        };
        if whole.boot.until - whole.boot.from >= LONGEST_S {
            counted.over.push(whole);
            counted.on.push(gpu);
        } else {
            counted.on.push(whole)
        }
    }
    counted.over.extend(before.into_iter().flatten());
    counted
}

fn is_same(one: &GpuTime, other: &GpuTime) -> bool {
    fn what(gpu: &GpuTime) -> impl PartialEq {
        (
            &gpu.gpu_uuid,
            &gpu.pool,
            &gpu.devices,
            &gpu.menu,
            &gpu.boot.id,
        )
    }
    what(one) == what(other) && one.boot.from <= other.boot.until
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gpu(name: &str, pool: &str, at: u64) -> GpuTime {
        GpuTime {
            node: "n1".to_owned(),
            gpu_uuid: name.to_owned(),
            pool: pool.to_owned(),
            from: 1_000 + at,
            until: 1_000 + at,
            boot: BootSpan {
                id: "boot".to_owned(),
                from: at,
                until: at,
            },
            devices: vec![(0, 50), (1, 50)],
            menu: vec![25, 50],
        }
    }

    fn spans(gpus: &[GpuTime]) -> Vec<(&str, u64, u64)> {
        let span = |gpu: &'_ GpuTime| (gpu.boot.from, gpu.boot.until);
        gpus.iter()
            .map(|gpu| (gpu.gpu_uuid.as_str(), span(gpu).0, span(gpu).1))
            .collect()
    }

    #[test]
    fn times_follow_each_other_without_a_gap() {
        let mut on = Vec::new();
        let mut over = Vec::new();
        for at in (0..=9_000).step_by(60) {
            let counted = count(on, vec![gpu("GPU-0", "p", at)]);
            on = counted.on;
            over.extend(counted.over);
        }
        assert_eq!(spans(&over), [("GPU-0", 0, 3600), ("GPU-0", 3600, 7200)]);
        assert_eq!(spans(&on), [("GPU-0", 7200, 9000)]);
    }

    #[test]
    fn a_gpu_that_goes_or_changes_its_pool_is_recorded() {
        let before = vec![gpu("GPU-0", "p", 0), gpu("GPU-1", "p", 0)];
        let counted = count(before, vec![gpu("GPU-0", "p", 60), gpu("GPU-1", "p", 60)]);
        let counted = count(counted.on, vec![gpu("GPU-0", "other", 120)]);
        assert_eq!(spans(&counted.over), [("GPU-0", 0, 60), ("GPU-1", 0, 60)]);
        assert_eq!(spans(&counted.on), [("GPU-0", 120, 120)]);
    }
}
