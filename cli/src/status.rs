//! `gpufrac status`: the state of a node, of the cluster, and of the user's own jobs.

use gpufrac_core::config::Device;
use gpufrac_core::lease::Lease;
use gpufrac_node::node::{Node, now_unix};
use gpufrac_node::state::leases::StoreError;
use gpufrac_node::state::record::{NodeRecord, RecordError};
use gpufrac_node::version;
use gpufrac_nvml::{Instance, MigMode, NvmlError, Session};
use gpufrac_page::table::{cells, columns};
use gpufrac_view::cluster::{NodeState, Source};
use gpufrac_view::{GpuStatus, Place, Seen, Usage, VERSION, stuck};

mod ask;
pub mod command;
pub mod files;
mod map;
mod own;
mod text;

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

/// The state of this node, by the driver and the leases.
#[derive(Debug)]
pub struct Status {
    pub node: NodeState,
    /// The leases, by job.
    pub leases: Vec<Lease>,
    /// Leases that cannot be read.
    pub damaged: Vec<StoreError>,
}

/// Reads the state of a node, and the use of its slices in the file of its daemon.
pub fn status(node: &Node) -> Result<Status, StatusError> {
    // An old record is better than none.
    let record = NodeRecord::read_any(&node.run)?;
    let count = u32::try_from(record.gpus.len()).unwrap_or(u32::MAX);
    let devices = node.config.devices_of_node(&node.name, count);
    let session = node.nvml();
    let mut answers = Vec::new();
    for gpu in &record.gpus {
        if let Some(device) = devices.iter().find(|device| device.gpu_index == gpu.index) {
            let answer = match &session {
                Ok(session) => GpuReading::of(session, device),
                Err(error) => GpuReading::fault(error),
            };
            answers.push((gpu, device, answer));
        }
    }
    let now = now_unix();
    let file = files::own(node).filter(|file| !file.is_stale(now));
    let stuck = file.as_ref().map(|file| file.stuck.clone());
    let stuck = stuck.unwrap_or_default();
    // After the instances: a lease exists before its instance.
    let (leases, damaged) = node.leases()?.readable()?;
    let gpus = answers.into_iter().map(|(gpu, device, answer)| {
        let on_it = leases.iter();
        let on_it = on_it.filter(|lease| lease.slice.gpu_uuid == gpu.uuid);
        let on_it: Vec<&Lease> = on_it.collect();
        let seen = Seen {
            lost: stuck::lost(&stuck, gpu.index, &devices),
            ..answer.seen(&on_it)
        };
        GpuStatus::of(device, &gpu.uuid, &on_it, seen)
    });
    let gpus = gpus.collect();
    let described = gpufrac_view::NodeStatus {
        version: VERSION,
        node: node.name.clone(),
        written: now,
        interval: 1,
        build: version::TEXT.clone(),
        config_sum: None,
        stuck,
        gpus,
    };
    let mut state = NodeState::of(described, Source::Node);
    if let Some(file) = file {
        state.written = Some(file.written);
        files::add_use(&mut state, &file);
    }
    Ok(Status {
        node: state,
        leases,
        damaged,
    })
}

/// What the driver says of a GPU.
struct GpuReading {
    mig: Option<bool>,
    instances: Result<Vec<Instance>, String>,
}

impl GpuReading {
    fn of(session: &Session, device: &Device<'_>) -> GpuReading {
        GpuReading {
            mig: if device.pool.switches_mig() { mode(session, device).ok() } else { None },
            instances: instances(session, device).map_err(|error| error.to_string()),
        }
    }

    fn fault(error: &NvmlError) -> GpuReading {
        GpuReading {
            mig: None,
            instances: Err(error.to_string()),
        }
    }

    fn seen(self, leases: &[&Lease]) -> Seen {
        let (fault, unleased) = match self.instances {
            Ok(instances) => (None, unleased(&instances, leases)),
            Err(error) => (Some(error), Vec::new()),
        };
        Seen {
            mig: self.mig,
            fault,
            unleased,
            ..Seen::default()
        }
    }
}

/// The positions of instances that no lease names.
fn unleased(instances: &[Instance], leases: &[&Lease]) -> Vec<Place> {
    let leased = |instance: &&Instance| {
        let mut placements = leases.iter().filter_map(|lease| lease.slice.mig());
        placements.any(|mig| mig.placement == instance.placement)
    };
    let unleased = instances.iter().filter(|instance| !leased(instance));
    let places = unleased.map(|instance| Place {
        start: instance.placement.start,
        size: instance.placement.size,
    });
    places.collect()
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
    /// The leases as a table with a header, with the use of their slices where the daemon measured it.
    pub fn table(&self) -> Vec<String> {
        let mut rows = rows(&self.leases);
        let uses = self.leases.iter().map(|lease| self.use_of(lease));
        let uses: Vec<Option<&Usage>> = uses.collect();
        if uses.iter().any(Option::is_some) {
            let clock = text::Clock::at(now_unix());
            let of_use = uses
                .iter()
                .map(|usage| text::use_cells(*usage, &clock).to_vec());
            let titles = cells(text::USE_TITLES);
            for (row, cells) in rows.iter_mut().zip([titles].into_iter().chain(of_use)) {
                row.extend(cells);
            }
        }
        columns(&rows)
    }

    fn use_of(&self, lease: &Lease) -> Option<&Usage> {
        let mut slices = self.node.gpus.iter().flat_map(|state| &state.gpu.slices);
        let slice = slices.find(|slice| {
            let owner = slice.owner.as_ref();
            owner.is_some_and(|it| (it.job, it.slice) == (lease.job_id, lease.number))
        });
        slice?.usage.as_ref()
    }
}

/// Leases as a table with a header.
pub fn table(leases: &[Lease]) -> Vec<String> {
    columns(&rows(leases))
}

fn rows(leases: &[Lease]) -> Vec<Vec<String>> {
    let mut rows = vec![cells(
        "JOB|USER|ACCOUNT|FRACTION|PROFILE|MEMORY|GPU|AT|STATE|DEVICE",
    )];
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
    rows
}

#[cfg(test)]
mod tests {
    use gpufrac_core::geometry::Placement;
    use gpufrac_core::ids::GpuIndex;

    use super::*;
    use test_examples::lease;

    #[test]
    fn an_instance_is_without_a_lease_if_none_has_its_place() {
        let instance = |gi_id, start, size| Instance {
            gi_id,
            profile_id: 14,
            placement: Placement { start, size },
        };
        let lease = lease(12);
        let found = unleased(&[instance(3, 2, 2), instance(9, 6, 1)], &[&lease]);
        assert_eq!(found, [Place { start: 6, size: 1 }]);
    }

    #[test]
    fn the_table_has_the_use_of_slices_where_it_was_measured() {
        let mut node = test_examples::nodes(1, 3).remove(0);
        node.gpus.truncate(1);
        let mut slice = node.gpus[0].slices[0].clone();
        let owner = slice.owner.as_mut().unwrap();
        (owner.job, owner.slice) = (lease(12).job_id, 0);
        node.gpus[0].slices = vec![slice];
        node.gpus[0].index = GpuIndex(0);
        let mut status = Status {
            node: NodeState::of(node, Source::Node),
            leases: vec![lease(12)],
            damaged: Vec::new(),
        };
        let with = status.table();
        assert!(
            with[0].ends_with("DEVICE  BUSY  USED  IDLE  NOTE"),
            "{with:?}"
        );
        status.node.gpus[0].gpu.slices[0].usage = None;
        let without = status.table();
        assert!(without[0].ends_with("STATE   DEVICE"), "{without:?}");
        assert!(without[1].starts_with("12   ada") && without[1].ends_with("MIG-3"));
    }
}
