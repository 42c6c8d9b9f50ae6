//! The state of a node for people: a map of each GPU, and the leases.

use gpufrac_core::config::Device;
use gpufrac_core::geometry::Placement;
use gpufrac_core::ids::GpuIndex;
use gpufrac_core::lease::{Held, Lease, LeaseState};

use gpufrac_node::node::Node;
use gpufrac_node::state::leases::StoreError;
use gpufrac_node::state::record::{NodeRecord, RecordError};
use gpufrac_nvml::{Instance, MigMode, NvmlError, Session};

mod map;

use map::Segment;

/// The reasons why the state cannot be shown.
#[derive(Debug, thiserror::Error)]
pub enum StatusError {
    /// The findings of node-setup cannot be read.
    #[error(transparent)]
    Record(#[from] RecordError),
    /// The leases cannot be read.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// A GPU of a pool.
#[derive(Debug)]
pub struct GpuStatus {
    /// NVML's index.
    pub index: GpuIndex,
    /// `GPU-...`
    pub uuid: String,
    /// The model in the configuration.
    pub model: String,
    /// Memory slices of the GPU; 0 without MIG.
    pub memory_slices: u8,
    /// Whether it is in MIG mode now, where the mode changes for jobs.
    pub mig: Option<bool>,
    /// The instances on the GPU, or the driver's error.
    pub instances: Result<Vec<Instance>, NvmlError>,
}

/// The state of a node.
#[derive(Debug)]
pub struct Status {
    /// The GPUs of its pools.
    pub gpus: Vec<GpuStatus>,
    /// The leases, by job.
    pub leases: Vec<Lease>,
    /// Leases that cannot be read.
    pub damaged: Vec<StoreError>,
}

/// Reads the state of a node; any user may do so.
pub fn status(node: &Node) -> Result<Status, StatusError> {
    // An old record is better than none.
    let record = NodeRecord::read_any(&node.run)?;
    let count = u32::try_from(record.gpus.len()).unwrap_or(u32::MAX);
    let devices = node.config.devices_of_node(&node.name, count);
    let session = node.nvml();
    let mut gpus: Vec<GpuStatus> = Vec::new();
    for gpu in &record.gpus {
        let Some(device) = devices.iter().find(|device| device.gpu_index == gpu.index) else {
            continue;
        };
        let mode = match &session {
            Ok(session) if device.pool.switches_mig() => mode(session, device).ok(),
            _ => None,
        };
        gpus.push(GpuStatus {
            index: gpu.index,
            uuid: gpu.uuid.clone(),
            mig: mode,
            model: device.pool.geometry.model.clone(),
            memory_slices: match device.pool.mechanism.uses_mig() {
                true => device.pool.geometry.memory_slices,
                false => 0,
            },
            instances: match &session {
                Ok(session) => instances(session, device),
                Err(_) => node.nvml().map(|_| Vec::new()),
            },
        });
    }
    let (leases, damaged) = node.leases()?.readable()?;
    Ok(Status {
        gpus,
        leases,
        damaged,
    })
}

/// Whether a GPU is in MIG mode.
fn mode(session: &Session, device: &Device<'_>) -> Result<bool, NvmlError> {
    let gpu = session.gpu(device.gpu_index)?;
    Ok(gpu.mig_mode()? == MigMode::On)
}

fn instances(session: &Session, device: &Device<'_>) -> Result<Vec<Instance>, NvmlError> {
    if !device.pool.mechanism.uses_mig() {
        // The query only tests whether the GPU answers.
        return session.gpu(device.gpu_index).map(|_| Vec::new());
    }
    session
        .gpu(device.gpu_index)?
        .instances(&device.pool.geometry)
}

impl Status {
    /// One line for each GPU, with its memory slices: `GPU 0 H100-80  [job 12 4g.40gb ...][free ]`.
    pub fn map(&self) -> Vec<String> {
        let mut lines = Vec::new();
        for gpu in &self.gpus {
            let head = format!("GPU {} {}", gpu.index, gpu.model);
            let drawn = match gpu.memory_slices {
                0 => vec![map::draw_shares(100, &self.shares(gpu))],
                slices => map::draw(slices, &self.segments(gpu)),
            };
            for (row, drawn) in drawn.into_iter().enumerate() {
                let head = if row == 0 { head.as_str() } else { "" };
                let mode = match gpu.mig.filter(|_| row == 0) {
                    None => "",
                    Some(true) => "  MIG on",
                    Some(false) => "  MIG off",
                };
                lines.push(format!("{head:<16}{drawn}{mode}"));
            }
            if let Err(error) = &gpu.instances {
                lines.push(format!("{:<16}(by the leases only: {error})", ""));
            }
        }
        lines
    }

    fn leases_of<'a>(&'a self, gpu: &GpuStatus) -> impl Iterator<Item = &'a Lease> + use<'a> {
        let uuid = gpu.uuid.clone();
        self.leases
            .iter()
            .filter(move |lease| lease.slice.gpu_uuid == uuid)
    }

    fn shares(&self, gpu: &GpuStatus) -> Vec<(u32, String)> {
        self.leases_of(gpu)
            .map(|lease| {
                let label = format!("job {} {}", lease.name(), lease.fraction);
                (lease.units.0, label)
            })
            .collect()
    }

    fn segments(&self, gpu: &GpuStatus) -> Vec<Segment> {
        let mut segments: Vec<Segment> = Vec::new();
        for lease in self.leases_of(gpu) {
            if lease.slice.held == Held::Bare {
                let (start, size) = (0, gpu.memory_slices);
                segments.push(Segment {
                    placement: Placement { start, size },
                    label: format!("job {} whole GPU", lease.name()),
                });
            }
            let Some(mig) = lease.slice.mig() else {
                continue;
            };
            let standing = segments.iter_mut().find(|s| s.placement == mig.placement);
            match (standing, lease.slice.mps()) {
                (Some(shared), Some(_)) => {
                    let more = format!(", {} {}", lease.name(), lease.fraction);
                    shared.label.push_str(&more);
                }
                (_, mps) => segments.push(Segment {
                    placement: mig.placement,
                    label: match mps {
                        None if lease.state == LeaseState::Kept => {
                            format!("kept for {} {}", lease.user, short(&mig.profile_name))
                        }
                        Some(_) => format!("job {} {}", lease.name(), lease.fraction),
                        None => format!("job {} {}", lease.name(), short(&mig.profile_name)),
                    },
                }),
            }
        }
        for instance in gpu.instances.iter().flatten() {
            let leased = segments.iter().any(|s| s.placement == instance.placement);
            if !leased {
                segments.push(Segment {
                    placement: instance.placement,
                    label: format!("not ours {}", instance.gi_id),
                });
            }
        }
        segments
    }

    /// The leases as a table with a header.
    pub fn table(&self) -> Vec<String> {
        table(&self.leases)
    }
}

fn short(profile: &str) -> &str {
    profile.split('.').next().unwrap_or(profile)
}

/// Leases as a table with a header.
pub fn table(leases: &[Lease]) -> Vec<String> {
    let titles = [
        "JOB", "USER", "ACCOUNT", "FRACTION", "PROFILE", "MEMORY", "GPU", "AT", "STATE", "DEVICE",
    ];
    let mut rows: Vec<Vec<String>> = vec![titles.map(str::to_owned).into()];
    for lease in leases {
        let slice = &lease.slice;
        rows.push(vec![
            lease.name(),
            lease.user.clone(),
            lease.account.clone().unwrap_or_else(|| "-".into()),
            lease.fraction.to_string(),
            lease.kind(),
            slice.memory_mib.to_string(),
            slice.gpu_index.to_string(),
            slice.mig().map_or_else(
                || "-".into(),
                |mig| format!("{}:{}", mig.placement.start, mig.placement.size),
            ),
            lease.state.to_string(),
            slice.cuda_device().unwrap_or("-").to_owned(),
        ]);
    }
    columns(&rows)
}

/// Rows with columns as wide as their widest cell.
pub fn columns(rows: &[Vec<String>]) -> Vec<String> {
    let count = rows.iter().map(Vec::len).max().unwrap_or(0);
    let widths: Vec<usize> = (0..count)
        .map(|column| {
            let cells = rows.iter().filter_map(|row| row.get(column));
            cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
        })
        .collect();
    rows.iter()
        .map(|row| {
            let line: Vec<String> = row
                .iter()
                .zip(&widths)
                .map(|(cell, width)| format!("{cell:<width$}"))
                .collect();
            line.join("  ").trim_end().to_owned()
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use test_examples::lease;

    #[test]
    fn leases_and_foreign_instances_are_drawn_over_the_slices() {
        let status = Status {
            gpus: vec![GpuStatus {
                index: GpuIndex(0),
                uuid: "GPU-0".into(),
                mig: None,
                model: "H100-80".into(),
                memory_slices: 8,
                instances: Ok(vec![
                    Instance {
                        gi_id: 3,
                        profile_id: 14,
                        placement: Placement { start: 2, size: 2 },
                    },
                    Instance {
                        gi_id: 9,
                        profile_id: 19,
                        placement: Placement { start: 6, size: 1 },
                    },
                ]),
            }],
            leases: vec![lease(12)],
            damaged: Vec::new(),
        };
        assert_eq!(
            status.map(),
            [
                "GPU 0 H100-80   [free     ][free     ][job 12 2g           ][free     ][free     ][not ours ][free     ]"
            ]
        );
        let table = status.table();
        assert_eq!(table.len(), 2);
        assert!(table[1].starts_with("12   ada"), "{}", table[1]);
        assert!(table[1].ends_with("MIG-3"));
    }

    #[test]
    fn a_gpu_whose_mode_changes_shows_its_mode_and_a_whole_job() {
        let mut whole = lease(12);
        whole.slice.held = Held::Bare;
        let gpu = |index, mig| GpuStatus {
            index: GpuIndex(index),
            uuid: format!("GPU-{index}"),
            mig,
            model: "H100-80".into(),
            memory_slices: 8,
            instances: Ok(Vec::new()),
        };
        whole.slice.gpu_uuid = "GPU-0".into();
        let status = Status {
            gpus: vec![gpu(0, Some(false)), gpu(1, Some(true)), gpu(2, None)],
            leases: vec![whole],
            damaged: Vec::new(),
        };
        let map = status.map();
        assert!(
            map[0].starts_with("GPU 0 H100-80   [job 12 whole GPU  "),
            "{map:?}"
        );
        assert!(map[0].ends_with("]  MIG off"), "{map:?}");
        assert!(map[1].ends_with("[free     ]  MIG on"), "{map:?}");
        assert!(map[2].ends_with("[free     ]"), "{map:?}");
        let table = status.table();
        assert!(
            table[1].contains("bare") && table[1].ends_with("GPU-0"),
            "{table:?}"
        );
    }
}
