//! Whether gpufrac-reaperd can measure the activity of instances: by GPM, or on GPUs without GPM by dcgm-exporter.

use std::collections::{BTreeSet, HashMap};

use gpufrac_core::finding::Finding;
use gpufrac_core::ids::UserId;
use gpufrac_core::lease::{Lease, LeaseState};
use gpufrac_core::policy::ExporterUrl;
use gpufrac_node::clock::{Clock, SystemClock};
use gpufrac_node::gpu::dcgm::{Dcgm, InstanceId};
use gpufrac_node::node::{Node, now_unix};
use gpufrac_nvml::NvmlError;

/// Seconds after which the exporter must have a value for an instance: several of its intervals, which are 30 s unless
/// set.
const LONGEST_UNSEEN: u64 = 120;

/// The warnings; an error of the driver or of leases is a finding of the node.
pub fn findings(node: &Node) -> Vec<Finding> {
    let leases = node.leases().and_then(|store| store.list());
    let leases = leases.unwrap_or_default();
    let tenants = leases.iter().map(|lease| lease.user_id).collect();
    let measured = Measured::of(node, leases).unwrap_or_default();
    let exporter = node.config.reaper.dcgm_exporter.clone();
    let of_exporter =
        exporter.and_then(|url| exporter_finding(url, &tenants, &measured.by_exporter));
    let found = measured.refused.into_iter().map(|error| {
        // GPM refuses the counters of an instance: another program, such as DCGM with profiling fields, probably has
        // them. Cure: Take `DCGM_FI_PROF_*` out of the exporter's list: [dcgm.md](../dcgm.md).
        Finding::of_machine(
            format!("reading the activity of instances failed: {error}"),
            "until then no slice of this GPU is found idle; docs/admin/dcgm.md has the settings of DCGM",
        )
    });
    let found = found.chain(of_exporter);
    found.map(Finding::as_warning).collect()
}

fn exporter_finding(
    url: ExporterUrl,
    tenants: &BTreeSet<UserId>,
    leases: &[Lease],
) -> Option<Finding> {
    // The exporter of `dcgm_exporter` does not answer, or not with the metric that the daemon reads:
    // [reaper.md](reaper.md) has the part after the colon. Cure: `curl` its address; [dcgm.md](../dcgm.md) has the
    // metric of each version.
    match Dcgm::new(url).read(SystemClock.now(), tenants) {
        Err(error) => Some(Finding::of_machine(
            format!(
                "dcgm-exporter: {error}; until then no slice of a GPU without GPM is found idle"
            ),
            "docs/admin/dcgm.md names the metric of each version; `curl` the address of `dcgm_exporter`",
        )),
        Ok(values) => {
            let jobs = unseen(leases, &values, now_unix());
            (!jobs.is_empty()).then(|| {
                let jobs = jobs.join(", ");
                // The exporter reads its list of instances when it starts, and at a SIGHUP. Cure: [dcgm.md](../dcgm.md)
                // has a unit that sends one for each job.
                Finding::of_machine(
                    format!(
                        "dcgm-exporter has no value for the instance of job {jobs}: it lists the instances that stand when it starts, so this slice is never found idle"
                    ),
                    "let the exporter read its list again, `systemctl kill -s HUP` with its unit; docs/admin/dcgm.md has a unit that does so for each job",
                )
            })
        }
    }
}

/// Where the activity of the instances of running jobs comes from.
#[derive(Default)]
struct Measured {
    /// The leases of instances on GPUs without GPM.
    by_exporter: Vec<Lease>,
    /// An error of GPM for each GPU that refuses it.
    refused: Vec<String>,
}

impl Measured {
    fn of(node: &Node, mut leases: Vec<Lease>) -> Result<Measured, NvmlError> {
        leases
            .retain(|lease| lease.state == LeaseState::Active && lease.slice.instance().is_some());
        let mut measured = Measured::default();
        if leases.is_empty() {
            return Ok(measured);
        }
        let session = node.nvml()?;
        for gpu in session.gpus_that_answer()? {
            let mut on_it = leases.extract_if(.., |lease| lease.slice.gpu_uuid == gpu.uuid);
            if !gpu.has_gpm()? {
                measured.by_exporter.extend(on_it);
                continue;
            }
            let refused = on_it.find_map(|lease| gpu.counters(lease.slice.instance()?.gi_id).err());
            // Another error may be of a job that ends now.
            let taken = refused.filter(NvmlError::counters_are_taken);
            measured
                .refused
                .extend(taken.map(|error| error.of_counters()));
        }
        Ok(measured)
    }
}

/// The names of leases that are older than the exporter's interval and have no value.
fn unseen(leases: &[Lease], values: &HashMap<InstanceId, f64>, now: u64) -> Vec<String> {
    let has_value = |lease: &&Lease| {
        let instance = lease.slice.instance();
        instance.is_some_and(|it| values.contains_key(&(lease.slice.gpu_uuid.clone(), it.gi_id)))
    };
    let is_old = |lease: &&Lease| now.saturating_sub(lease.created_unix) > LONGEST_UNSEEN;
    let unseen = leases
        .iter()
        .filter(|lease| !has_value(lease) && is_old(lease));
    unseen.map(Lease::name).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_instance_that_the_exporter_does_not_list_is_named_after_a_while() {
        let lease = test_examples::lease(12);
        let instance = lease.slice.instance().unwrap();
        let key = (lease.slice.gpu_uuid.clone(), instance.gi_id);
        let later = lease.created_unix + LONGEST_UNSEEN;
        let leases = [lease.clone()];
        let unseen = |values: &HashMap<InstanceId, f64>, now| unseen(&leases, values, now);
        assert_eq!(unseen(&HashMap::new(), later), [] as [&str; 0]);
        assert_eq!(unseen(&HashMap::new(), later + 1), [lease.name()]);
        let of_it = HashMap::from([(key.clone(), 0.0)]);
        assert_eq!(unseen(&of_it, later + 1), [] as [&str; 0]);
        let of_another = HashMap::from([((key.0, key.1 + 1), 0.0)]);
        assert_eq!(unseen(&of_another, later + 1), [lease.name()]);
    }
}
