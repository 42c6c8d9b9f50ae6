//! Whether dcgm-exporter gives gpufrac-reaperd what it reads: the activity of instances on GPUs without GPM.

use std::collections::{BTreeSet, HashMap};

use gpufrac_core::finding::{Finding, Severity};
use gpufrac_core::lease::{Lease, LeaseState};
use gpufrac_node::node::{Node, now_unix};
use gpufrac_nvml::NvmlError;
use gpufrac_reaper::clock::{Clock, SystemClock};
use gpufrac_reaper::measure::dcgm::{Dcgm, InstanceId};

/// Seconds after which the exporter must have a value for an instance: several of its intervals, which are 30 s unless
/// set.
const LONGEST_UNSEEN: u64 = 120;

/// The finding about the exporter of [reaper]; none without one.
pub fn finding(node: &Node) -> Option<Finding> {
    let url = node.config.reaper.dcgm_exporter.clone()?;
    // Leases that cannot be read are a finding of their own.
    let leases = node
        .leases()
        .and_then(|store| store.list())
        .unwrap_or_default();
    let tenants: BTreeSet<_> = leases.iter().map(|lease| lease.user_id).collect();
    let read = Dcgm::new(url).read(SystemClock.now(), &tenants);
    let found = match read {
        Err(error) => Finding::of_machine(
            format!(
                "dcgm-exporter: {error}; until then no slice of a GPU without GPM is found idle"
            ),
            "docs/admin/dcgm.md names the metric of each version; `curl` the address of `dcgm_exporter`",
        ),
        Ok(values) => {
            // The driver's own error is a finding of the node.
            let measured = by_the_exporter(node, leases).ok()?;
            let jobs = unseen(&measured, &values, now_unix());
            if jobs.is_empty() {
                return None;
            }
            let jobs = jobs.join(", ");
            Finding::of_machine(
                format!(
                    "dcgm-exporter has no value for the instance of job {jobs}: it lists the instances that stand when it starts, so this slice is never found idle"
                ),
                "let the exporter read its list again, `systemctl kill -s HUP` with its unit; docs/admin/dcgm.md has a unit that does so for each job",
            )
        }
    };
    Some(Finding {
        severity: Severity::Warning,
        ..found
    })
}

/// The leases of instances on GPUs whose activity only the exporter has.
fn by_the_exporter(node: &Node, mut leases: Vec<Lease>) -> Result<Vec<Lease>, NvmlError> {
    leases.retain(|lease| lease.state == LeaseState::Active && lease.slice.instance().is_some());
    let mut without_gpm = BTreeSet::new();
    if !leases.is_empty() {
        let session = node.nvml()?;
        for gpu in session.gpus()? {
            if !gpu.has_gpm()? {
                without_gpm.insert(gpu.uuid);
            }
        }
    }
    leases.retain(|lease| without_gpm.contains(&lease.slice.gpu_uuid));
    Ok(leases)
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
