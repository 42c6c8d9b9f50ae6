//! How `CUDA_VISIBLE_DEVICES` names the devices of a task: by UUID, or by CUDA's numbers where these are certain.

use std::collections::BTreeSet;
use std::str::FromStr;

use super::Lease;

/// The variable by which a user asks for numbers.
pub const VARIABLE: &str = "GPUFRAC_VISIBLE";

/// How devices are named.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Visible {
    #[default]
    Uuid,
    /// CUDA's number among the devices that the task can open.
    Index,
}

impl Visible {
    pub fn name(self) -> &'static str {
        match self {
            Visible::Uuid => "uuid",
            Visible::Index => "index",
        }
    }
}

/// The text is not a value of `--gpufrac-visible`.
/// Cure: Write `index` or `uuid`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} does not name devices; write index or uuid")]
pub struct UnknownVisible(pub String);

impl FromStr for Visible {
    type Err = UnknownVisible;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let mut all = [Visible::Uuid, Visible::Index].into_iter();
        let found = all.find(|visible| visible.name() == text);
        // The user may have written anything, of any length.
        found.ok_or_else(|| UnknownVisible(text.chars().take(40).collect()))
    }
}

/// Why CUDA's numbers of a task's devices are not certain.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Uncertain {
    /// Part of the message that devices are named by UUID.
    /// Cure: Nothing.
    #[error("the node has GPUs outside of pools, which gpufrac does not close to the job")]
    OpenGpus,
    /// Part of the message above.
    /// Cure: Ask for one slice, or start each program in a job of its own.
    #[error("the job has further slices on this node, which are open to the task")]
    OtherSlices,
    /// Part of the message above.
    /// Cure: As above.
    #[error("the task has several MIG instances, whose order is the driver's")]
    Instances,
}

/// CUDA's numbers of the devices of a task, `0` or `0,1`. `job`: all leases of the job on the node, whose devices the
/// fence leaves open. `all_in_pools`: whether each GPU of the node is in a pool, so that the fence closes all others.
/// Errors: the numbers may be those of other devices.
pub fn numbers(task: &[Lease], job: &[Lease], all_in_pools: bool) -> Result<String, Uncertain> {
    let names = |leases: &[Lease]| -> BTreeSet<String> {
        let devices = leases.iter().filter_map(|lease| lease.slice.cuda_device());
        devices.map(str::to_owned).collect()
    };
    let own = names(task);
    // A client of MPS sees the daemon's only device.
    let is_client = task.iter().all(|lease| lease.slice.mps().is_some());
    if !(is_client && own.len() == 1) {
        if !all_in_pools {
            return Err(Uncertain::OpenGpus);
        }
        if own != names(job) {
            return Err(Uncertain::OtherSlices);
        }
        if own.len() > 1 && task.iter().any(|lease| lease.slice.mig().is_some()) {
            return Err(Uncertain::Instances);
        }
    }
    let numbers = (0..own.len()).map(|number| number.to_string());
    Ok(numbers.collect::<Vec<_>>().join(","))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lease::Held;
    use crate::lease::tests::{instance, lease, mig, mps};

    /// Whole GPUs without MIG.
    fn gpus(names: &[&str]) -> Vec<Lease> {
        let lease = |name: &&str| {
            let mut lease = lease();
            lease.slice.held = Held::Bare;
            lease.slice.gpu_uuid = (*name).to_owned();
            lease
        };
        names.iter().map(lease).collect()
    }

    fn instances(names: &[&str]) -> Vec<Lease> {
        let lease = |name: &&str| {
            let mut lease = lease();
            let mut instance = instance();
            (*name).clone_into(&mut instance.mig_uuid);
            lease.slice.held = Held::Mig(mig(Some(instance)));
            lease
        };
        names.iter().map(lease).collect()
    }

    #[test]
    fn numbers_are_those_of_what_the_fence_leaves() {
        let [one, two] = [instances(&["MIG-a"]), instances(&["MIG-a", "MIG-b"])];
        assert_eq!(numbers(&one, &one, true), Ok("0".into()));
        assert_eq!(numbers(&one, &two, true), Err(Uncertain::OtherSlices));
        assert_eq!(numbers(&two, &two, true), Err(Uncertain::Instances));
        assert_eq!(numbers(&one, &one, false), Err(Uncertain::OpenGpus));
        let [one, two] = [gpus(&["GPU-a"]), gpus(&["GPU-a", "GPU-b"])];
        assert_eq!(numbers(&one, &one, true), Ok("0".into()));
        assert_eq!(numbers(&two, &two, true), Ok("0,1".into()));
        assert_eq!(numbers(&one, &two, true), Err(Uncertain::OtherSlices));
        assert_eq!(numbers(&two, &two, false), Err(Uncertain::OpenGpus));
    }

    #[test]
    fn a_client_of_mps_sees_its_daemons_device_alone() {
        let mut share = vec![lease()];
        share[0].slice.held = Held::Mps(Some(mps(false, None)));
        assert_eq!(numbers(&share, &share, false), Ok("0".into()));
        // Shares of one GPU have the same device.
        let shares = [share.clone(), share.clone()].concat();
        assert_eq!(numbers(&share, &shares, true), Ok("0".into()));
    }

    #[test]
    fn exactly_two_words_name_devices() {
        assert_eq!("index".parse(), Ok(Visible::Index));
        assert_eq!("uuid".parse(), Ok(Visible::Uuid));
        for wrong in ["", "Index", "index ", "0", "$(id)", &"x".repeat(100_000)] {
            let told = wrong.parse::<Visible>().unwrap_err().to_string();
            assert!(
                told.len() < 120 && told.ends_with("write index or uuid"),
                "{told}"
            );
        }
    }
}
