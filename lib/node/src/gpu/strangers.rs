//! Processes that compute without a lease, for example with files that a job passed to them.

use gpufrac_core::ids::UserId;
use gpufrac_core::lease::{Lease, LeaseState};

use crate::mps::process;

/// The leases of a GPU whose jobs may compute on an instance, or on the GPU itself.
pub fn leases_at<'a>(
    leases: impl IntoIterator<Item = &'a Lease>,
    gi_id: Option<u32>,
) -> Vec<&'a Lease> {
    let at = |lease: &Lease| lease.slice.instance().map(|instance| instance.gi_id);
    let leases = leases.into_iter();
    leases.filter(|lease| at(lease) == gi_id).collect()
}

/// Whether a process belongs to none of these leases' jobs, and is neither root's nor an MPS server of one of them.
/// False if the process has ended.
pub fn is_stranger(pid: u32, leases: &[&Lease]) -> bool {
    let Ok(pid) = i32::try_from(pid) else {
        return false;
    };
    let group = process::job_group(pid);
    let of_a_job = match &group {
        Some(group) => leases
            .iter()
            .filter(|lease| lease.state != LeaseState::Kept)
            .any(|lease| lease.owns_group(group, leases) != Some(false)),
        None => leases.iter().any(|lease| is_server(pid, lease)),
    };
    let is_users = process::owner(pid).is_some_and(|owner| owner != UserId::ROOT);
    !of_a_job && is_users && process::is_alive(pid)
}

/// Whether a process is an MPS server for the job of a lease: a child of a control daemon, which is root's. A user
/// can give a process any name, but not this parent.
pub fn is_server(pid: i32, lease: &Lease) -> bool {
    lease.slice.mps().is_some()
        && process::is_mps(pid, lease.user_id)
        && parent(pid).is_some_and(|parent| process::is_mps(parent, UserId::ROOT))
}

fn parent(pid: i32) -> Option<i32> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("PPid:"))?;
    line.trim().parse().ok()
}
