//! Jobs without a lease, and leases without a job, by Slurm's list of the jobs on this node.

use gpufrac_core::finding::Finding;
use gpufrac_core::ids::JobId;
use gpufrac_core::lease::{Lease, LeaseState};
use gpufrac_node::job::reserve;
use gpufrac_node::node::Node;
use gpufrac_node::slice::agreement::job_record::Allocated;
use gpufrac_node::slurm_call::{JobControl, SlurmProcess};
use gpufrac_node::state::leases::LeaseStore;

use crate::slurm::{self, Job};

/// The findings; none where Slurm does not answer or a lease cannot be read, which are findings of their own. Where
/// Slurm hides jobs, only root sees them all.
pub fn findings(node: &Node) -> Vec<Finding> {
    if !nix::unistd::geteuid().is_root() {
        return Vec::new();
    }
    let (Ok(jobs), Ok(store)) = (slurm::jobs_on(&node.name), node.leases()) else {
        return Vec::new();
    };
    let Ok(leases) = store.list() else {
        return Vec::new();
    };
    let left = without_job(&jobs, &leases);
    let left = left.filter(|lease| is_left(&store, lease)).map(left_over);
    let lost = without_lease(&jobs, &leases);
    let lost = lost.filter(|job| is_lost(&store, node, *job)).map(unleased);
    left.chain(lost).collect()
}

/// The active leases of jobs that are not in the list.
fn without_job<'l>(jobs: &'l [Job], leases: &'l [Lease]) -> impl Iterator<Item = &'l Lease> {
    let active = leases.iter().filter(|it| it.state == LeaseState::Active);
    active.filter(|lease| !jobs.iter().any(|job| job.id == lease.job_id))
}

/// The jobs that run and have no lease.
fn without_lease<'j>(jobs: &'j [Job], leases: &'j [Lease]) -> impl Iterator<Item = JobId> + 'j {
    let begun = jobs.iter().filter(|job| job.has_begun());
    let lost = begun.filter(|job| !leases.iter().any(|lease| lease.job_id == job.id));
    lost.map(|job| job.id)
}

/// Whether the lease of a job that was not in the list is left over: the job may have begun since, and its epilog may
/// have ended since.
fn is_left(store: &LeaseStore, lease: &Lease) -> bool {
    let is_over = match slurm::job(lease.job_id) {
        Ok(None) => true,
        Ok(Some(job)) => !job.is_on(&lease.node),
        Err(_) => false,
    };
    is_over && matches!(store.again(lease), Ok(Some(now)) if now == *lease)
}

/// Whether a job without a lease still runs, and holds shares of a GPU on this node.
fn is_lost(store: &LeaseStore, node: &Node, job: JobId) -> bool {
    let holds_shares = || {
        let info = SlurmProcess.job(job).ok()??;
        let allocated = Allocated::on(&info, &node.name)?;
        Some(allocated.shards > 0 && !reserve::is_ours(&info))
    };
    holds_shares() == Some(true)
        && matches!(slurm::job(job), Ok(Some(now)) if now.has_begun())
        && store.of_job(job).is_ok_and(|leases| leases.is_empty())
}

fn left_over(lease: &Lease) -> Finding {
    let (name, job) = (lease.name(), lease.job_id);
    // slurm.conf had no `Epilog=`, slurmctld or slurmd lost the job, or the epilog failed. Cure: `gpufrac lease drop`,
    // as the hint says. A prolog that needs the place does the same.
    Finding::of_machine(
            format!(
                "Slurm has no job {job} on this node, and the lease of the job is still here: its epilog did not run, or did not end"
            ),
            format!(
                "`gpufrac lease drop {name}` removes the slice; `journalctl -t gpufrac | grep 'job {job}:'` says what happened"
            ),
        )
        .as_warning()
}

fn unleased(job: JobId) -> Finding {
    // The file of its lease, or `/run/gpufrac`, was removed. Cure: Requeue or cancel the job; then `gpufrac clean`.
    Finding::of_machine(
        format!(
            "job {job} runs here with shares of a GPU, and has no lease: its new steps fail, and its slice can be given to another job"
        ),
        format!("`scontrol requeue {job}`, or `scancel {job}`, and then `gpufrac clean`"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Promise (admins): `gpufrac check` names jobs without a lease, and leases of jobs that have ended.
    /// With `lost_nodes_are_named_and_come_back`, `mistakes_of_installation_are_named_and_lose_nothing`.
    #[test]
    fn only_jobs_that_have_begun_need_a_lease() {
        let job = |id: u32, state: &str, reason: &str| Job {
            id: JobId(id),
            state: state.to_owned(),
            nodes: vec!["gn01".to_owned()],
            reason: reason.to_owned(),
        };
        let jobs = [
            job(1, "RUNNING", "None"),
            job(2, "RUNNING", "Prolog"),
            job(3, "COMPLETING", "None"),
        ];
        let lost: Vec<JobId> = without_lease(&jobs, &[]).collect();
        assert_eq!(lost, [JobId(1)]);
    }
}
