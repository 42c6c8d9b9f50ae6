//! Whether the leases of a job match Slurm's allocation. This second comparison happens when a step starts.

use gpufrac_core::config::Device;
use gpufrac_core::fraction::Units;
use gpufrac_core::ids::{DeviceIndex, JobId};
use gpufrac_core::lease::{Lease, LeaseState};

use super::asked::{all_of, menu_entry};

/// Slurm's allocation for a step on this node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Given {
    /// Slurm does not report it.
    Untold,
    /// No device.
    Nothing,
    /// Devices, or shares of one.
    Devices {
        indexes: Vec<DeviceIndex>,
        /// The number of shares; with a whole device the user's own value.
        shards: Option<u32>,
    },
}

impl Given {
    /// Whether there is a device. `srun --gres=none` inside a job has none.
    pub fn is_some(&self) -> bool {
        matches!(self, Given::Devices { .. })
    }
}

/// The reasons why no task of a step may start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Unfit {
    /// The epilog of the job has begun, or its prolog is not done.
    /// Cure: Submit the job again; if it repeats, look at the node's syslog of the job.
    #[error("job {job_id}: its slice is in state {state}, not active")]
    NotActive { job_id: JobId, state: LeaseState },
    // slurmd started the job without its prolog, or the prolog could neither make a slice nor reach slurmctld.
    /// slurmd started the job without its prolog, for example after slurmctld lost its state.
    /// Cure: Submit the job again. Admins: `Prolog=` and `PrologFlags` by `gpufrac check --slurm`.
    #[error(
        "job {job_id}: Slurm allocated a GPU or a part of one, but no prolog created a slice; submit the job again"
    )]
    NoLease { job_id: JobId },
    /// slurm.conf gives the node gpufrac or its devices, and gpufrac.toml does not name the node.
    /// Cure: Admins: add the node to a pool.
    #[error(
        "job {job_id}: Slurm allocated a GPU or a part of one, but gpufrac.toml has no pool on this node; add the node to a pool"
    )]
    NoPool { job_id: JobId },
    // Slurm counts gpufrac for the job without a GPU: job_submit did not see the request.
    /// The line of the plugin was removed from slurm.conf; Slurm then takes `gpufrac:25` for a count.
    /// Cure: Add the line, restart slurmctld; submit the job again.
    #[error(
        "job {job_id}: Slurm counted gpufrac without a GPU, because slurm.conf has no JobSubmitPlugins=gpufrac; the admin adds the line (`gpufrac check`), then submit the job again"
    )]
    CountAlone { job_id: JobId },
    /// The request was changed after the slice was made.
    /// Cure: Submit the job again.
    #[error(
        "job {job_id}: its slice is of device {device}, which Slurm did not allocate to the job; submit the job again"
    )]
    OtherDevice {
        job_id: JobId,
        /// The device of the lease.
        device: DeviceIndex,
    },
    // The slice has another size than Slurm's allocation: the request was changed while the prolog could not ask Slurm,
    // or the lease is that of another run.
    /// The request was changed after the slice was made.
    /// Cure: Submit the job again.
    #[error(
        "job {job_id}: its slice is {slice} % of a GPU, but Slurm allocated {allocated} %; submit the job again"
    )]
    Differs {
        job_id: JobId,
        /// Percent of a GPU in the leases.
        slice: u32,
        /// Percent of a GPU that Slurm allocated.
        allocated: u32,
    },
}

impl Unfit {
    /// Whether the fault is over in the next run of the job, if its prolog runs.
    pub fn passes(self) -> bool {
        matches!(self, Unfit::NotActive { .. } | Unfit::NoLease { .. })
    }
}

/// The data with which the leases of a job are compared.
#[derive(Debug)]
pub struct Comparison<'a> {
    pub job_id: JobId,
    /// Whether the step has everything that the job holds on this node: the batch script and the interactive step.
    pub is_whole_job: bool,
    /// Slurm's allocation for the step.
    pub given: &'a Given,
    /// The devices of the node's pools.
    pub devices: &'a [Device<'a>],
    /// Whether the prolog noted that the job gets no slice.
    pub is_to_have_none: bool,
}

impl Comparison<'_> {
    /// The reason why no task of the step may start. `leases`: those of the job, by number.
    pub fn unfit(&self, leases: &[Lease]) -> Option<Unfit> {
        let job_id = self.job_id;
        if let Some(lease) = leases
            .iter()
            .find(|lease| lease.state != LeaseState::Active)
        {
            let state = lease.state;
            return Some(Unfit::NotActive { job_id, state });
        }
        let Given::Devices { indexes, shards } = self.given else {
            return None;
        };
        let given = self
            .devices
            .iter()
            .filter(|device| indexes.contains(&device.index));
        let given: Vec<&Device<'_>> = given.collect();
        let Some(first) = leases.first() else {
            let needs_none = self.is_to_have_none || given.is_empty();
            return (!needs_none).then_some(Unfit::NoLease { job_id });
        };
        let is_given = |lease: &&Lease| {
            let index = lease.slice.device_index;
            given.iter().any(|device| device.index == index)
        };
        let strange = leases.iter().find(|lease| !is_given(lease));
        // A step may have some of the devices of its job.
        let is_partial = !self.is_whole_job && first.confirmed;
        if let Some(strange) = strange
            && !(is_partial && leases.iter().any(|lease| is_given(&lease)))
        {
            let device = strange.slice.device_index;
            return Some(Unfit::OtherDevice { job_id, device });
        }
        let held: Vec<&Lease> = leases.iter().filter(is_given).collect();
        self.differs(&held, &given, *shards)
    }

    /// The whole job must have exactly Slurm's allocation. Another step may have less than its job, if Slurm
    /// confirmed how much the job holds. `held`: the leases of devices that Slurm gave; at least one.
    fn differs(
        &self,
        held: &[&Lease],
        given: &[&Device<'_>],
        shards: Option<u32>,
    ) -> Option<Unfit> {
        let lease = held.first()?;
        let slice: u32 = held.iter().map(|lease| lease.units.0).sum();
        let of_lease = |device: &&&Device<'_>| device.index == lease.slice.device_index;
        let device = given.iter().find(of_lease)?;
        let are_gpus = lease.units == Units::WHOLE && (lease.whole_device || held.len() > 1);
        let Units(allocated) = if are_gpus {
            // With devices the variable is the user's own. Devices of other pools come with `--exclusive`.
            let is_due = |device: &&Device<'_>| {
                let mut held = held.iter();
                held.any(|lease| {
                    lease.slice.device_index == device.index || lease.pool == device.pool.name
                })
            };
            all_of(given.iter().copied().filter(is_due))
        } else {
            let shares = shards.filter(|_| !(lease.confirmed && lease.whole_device));
            shares.map_or(device.pool.layout.capacity, Units)
        };
        // Where it is the same, the sizes that the pool has now do not matter.
        let due = if are_gpus || held.len() > 1 || slice == allocated {
            allocated
        } else if lease.pool == device.pool.name {
            // As the prolog rounds a size that is not on the menu.
            menu_entry(device, Units(allocated)).map_or(0, |entry| entry.units.0)
        } else {
            allocated.min(slice)
        };
        let fits = if self.is_whole_job || !lease.confirmed { slice == due } else { due <= slice };
        (!fits).then_some(Unfit::Differs {
            job_id: self.job_id,
            slice,
            allocated,
        })
    }
}

#[cfg(test)]
mod tests {
    use gpufrac_core::config::Config;
    use proptest::prelude::*;

    use super::*;

    fn config(layout: &str) -> Config {
        let text = format!(
            "version = 1\n[pool.p]\nmechanism = \"mig\"\nlayout = \"{layout}\"\ngpu = \"H100-80\"\npartitions = [\"gpu\"]\nnodes = \"n1\"\n"
        );
        Config::parse(&text, "test").unwrap()
    }

    fn lease(units: u32) -> Lease {
        let mut lease = test_examples::lease(7);
        lease.pool = "p".into();
        lease.units = Units(units);
        lease.slice.device_index = DeviceIndex(1);
        lease
    }

    fn given(indexes: &[u32], shards: Option<u32>) -> Given {
        Given::Devices {
            indexes: indexes.iter().copied().map(DeviceIndex).collect(),
            shards,
        }
    }

    /// In a pool of halves.
    fn unfit(leases: &[Lease], given: &Given, is_whole_job: bool) -> Option<Unfit> {
        let config = config("halves");
        let comparison = Comparison {
            job_id: JobId(7),
            is_whole_job,
            given,
            devices: &config.devices_of_node("n1", 1),
            is_to_have_none: false,
        };
        comparison.unfit(leases)
    }

    #[test]
    fn a_whole_job_has_what_slurm_gave_it_and_steps_may_have_less() {
        for (units, shards, whole_job, step) in [
            (25, 25, true, true),
            // Not on the menu: rounded down, as in the prolog.
            (25, 26, true, true),
            (25, 49, true, true),
            (50, 25, false, true),
            (50, 1, false, true),
            (25, 50, false, false),
            (13, 25, false, false),
        ] {
            for confirmed in [true, false] {
                let lease = Lease {
                    confirmed,
                    ..lease(units)
                };
                let given = given(&[1], Some(shards));
                let fits = |is_whole_job| {
                    unfit(std::slice::from_ref(&lease), &given, is_whole_job).is_none()
                };
                assert_eq!(fits(true), whole_job, "{units} {shards}");
                let step = if confirmed { step } else { whole_job };
                assert_eq!(fits(false), step, "{units} {shards} {confirmed}");
            }
        }
    }

    #[test]
    fn each_tasks_slices_count_together() {
        let leases = [lease(13), lease(13), lease(13)];
        let fits = |shards, is_whole_job| {
            unfit(&leases, &given(&[1], Some(shards)), is_whole_job).is_none()
        };
        assert!(fits(39, true) && !fits(26, true) && !fits(40, true));
        assert!(fits(39, false) && fits(13, false) && !fits(40, false));
    }

    #[test]
    fn the_entry_of_a_user_does_not_count_with_a_whole_device() {
        let whole = Lease {
            whole_device: true,
            ..lease(50)
        };
        for shards in [None, Some(1), Some(25), Some(1000)] {
            for is_whole_job in [true, false] {
                let given = given(&[1], shards);
                assert_eq!(
                    unfit(std::slice::from_ref(&whole), &given, is_whole_job),
                    None
                );
            }
        }
        // Only the user's variable says so.
        let unconfirmed = Lease {
            confirmed: false,
            ..whole
        };
        assert!(
            unfit(
                std::slice::from_ref(&unconfirmed),
                &given(&[1], Some(1)),
                true
            )
            .is_some()
        );
        assert_eq!(unfit(&[unconfirmed], &given(&[1], None), true), None);
    }

    #[test]
    fn a_device_of_a_pool_needs_a_lease_of_it() {
        let job_id = JobId(7);
        let quarter = [lease(25)];
        let some = Some(25);
        assert_eq!(
            unfit(&[], &given(&[1], some), true),
            Some(Unfit::NoLease { job_id })
        );
        assert_eq!(
            unfit(&[], &given(&[0, 1], None), false),
            Some(Unfit::NoLease { job_id })
        );
        // A GPU without a pool.
        assert_eq!(unfit(&[], &given(&[5], None), true), None);
        for given in [given(&[0], some), given(&[5], some), given(&[], some)] {
            let device = DeviceIndex(1);
            assert_eq!(
                unfit(&quarter, &given, true),
                Some(Unfit::OtherDevice { job_id, device })
            );
        }
        for given in [Given::Nothing, Given::Untold] {
            assert_eq!(unfit(&quarter, &given, false), None);
            assert_eq!(unfit(&[], &given, true), None);
        }
        let mut releasing = lease(25);
        releasing.state = LeaseState::Releasing;
        for given in [Given::Untold, Given::Nothing, given(&[1], some)] {
            let found = unfit(std::slice::from_ref(&releasing), &given, true);
            assert!(matches!(found, Some(Unfit::NotActive { .. })));
        }
    }

    #[test]
    fn a_job_that_is_noted_without_a_slice_starts() {
        let config = config("halves");
        let comparison = Comparison {
            job_id: JobId(7),
            is_whole_job: true,
            given: &given(&[0, 1], Some(25)),
            devices: &config.devices_of_node("n1", 1),
            is_to_have_none: true,
        };
        assert_eq!(comparison.unfit(&[]), None);
    }

    /// In a pool of whole GPUs, `n1` with four of them.
    fn unfit_of_gpus(leases: &[Lease], given: &Given, is_whole_job: bool) -> Option<Unfit> {
        let config = config("whole");
        let comparison = Comparison {
            job_id: JobId(7),
            is_whole_job,
            given,
            devices: &config.devices_of_node("n1", 4),
            is_to_have_none: false,
        };
        comparison.unfit(leases)
    }

    fn gpus(indexes: &[u32]) -> Vec<Lease> {
        let gpu = |(number, index): (u32, &u32)| {
            let mut gpu = Lease {
                number,
                whole_device: true,
                ..lease(100)
            };
            gpu.slice.device_index = DeviceIndex(*index);
            gpu
        };
        (0..).zip(indexes).map(gpu).collect()
    }

    #[test]
    fn several_gpus_are_those_that_slurm_gave() {
        for shards in [None, Some(1), Some(100), Some(1000)] {
            let fits = |leases: &[u32], devices: &[u32], is_whole_job| {
                let given = given(devices, shards);
                unfit_of_gpus(&gpus(leases), &given, is_whole_job).is_none()
            };
            for is_whole_job in [true, false] {
                assert!(fits(&[0, 2, 3], &[0, 2, 3], is_whole_job));
                // And a GPU of no pool.
                assert!(fits(&[0, 1], &[0, 1, 7], is_whole_job));
                // Slurm gave one more, or another one: the prolog was killed.
                assert!(!fits(&[0, 1], &[0, 1, 2], is_whole_job));
                assert!(!fits(&[0, 1], &[2, 3], is_whole_job));
                assert!(!fits(&[0], &[0, 1], is_whole_job));
            }
            // A step may have some of the GPUs of its job.
            assert!(fits(&[0, 1, 2, 3], &[1, 3], false));
            assert!(!fits(&[0, 1, 2, 3], &[1, 3], true));
            assert!(!fits(&[0, 1], &[1, 3], false));
        }
        let mut unconfirmed = gpus(&[0, 1]);
        for lease in &mut unconfirmed {
            (lease.confirmed, lease.whole_device) = (false, false);
        }
        for is_whole_job in [true, false] {
            let unfit = |devices: &[u32]| {
                unfit_of_gpus(&unconfirmed, &given(devices, Some(1)), is_whole_job)
            };
            assert_eq!(unfit(&[0, 1]), None);
            assert!(unfit(&[0]).is_some() && unfit(&[0, 1, 2]).is_some());
        }
    }

    proptest! {
        /// No step has GPUs without a slice, and no script less than Slurm gave.
        #[test]
        fn no_step_has_a_gpu_that_the_job_has_not(
            held in prop::sample::subsequence(vec![0, 1, 2, 3], 1..=4),
            shown in prop::sample::subsequence(vec![0, 1, 2, 3], 1..=4),
            is_whole_job: bool,
        ) {
            let is_none = unfit_of_gpus(&gpus(&held), &given(&shown, None), is_whole_job).is_none();
            let are_held = shown.iter().all(|index| held.contains(index));
            prop_assert_eq!(is_none, are_held && (!is_whole_job || shown == held));
        }

        /// No script has more than Slurm counted in shares, whether its lease was confirmed or not.
        #[test]
        fn no_script_has_more_than_its_shares(
            units in prop::collection::vec(1..101_u32, 1..4),
            shards in 0..200_u32,
            confirmed: bool,
            pool in prop::sample::select(vec!["p", "q"]),
        ) {
            let leases: Vec<Lease> = units
                .iter()
                .map(|units| Lease { confirmed, pool: pool.into(), ..lease(*units) })
                .collect();
            if unfit(&leases, &given(&[1], Some(shards)), true).is_none() {
                prop_assert!(units.iter().sum::<u32>() <= shards);
            }
        }
    }
}
