//! Which jobs of root take the units of stuck places out of Slurm's count. Slurm chooses the device of a job, so jobs
//! are submitted until each place has one; those that went astray end when the search does.

use std::time::Duration;

use gpufrac_core::fraction::Units;
use gpufrac_core::ids::{DeviceIndex, JobId};
use gpufrac_node::job::reserve::Reserved;

use gpufrac_node::clock::BootTime;

/// How long jobs that went astray hold other devices.
const SEARCH: Duration = Duration::from_secs(60);
/// The pause after a search that found no room on the device: its other units are in use, or Slurm refuses.
const PAUSE: Duration = Duration::from_secs(600);

/// Units of a device that no job is to get.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Want {
    pub(super) device: DeviceIndex,
    pub(super) units: Units,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// Submits a job for this want.
    Submit(Want),
    Cancel(JobId),
}

/// The search for the devices.
#[derive(Default)]
pub(super) struct Search {
    since: Option<BootTime>,
    /// The device of a search in vain, and its end.
    paused: Option<(DeviceIndex, BootTime)>,
}

impl Search {
    /// The next steps. `devices`: how many devices the node has; as many jobs at most go astray.
    pub(super) fn steps(
        &mut self,
        wants: &[Want],
        have: &[Reserved],
        devices: usize,
        now: BootTime,
    ) -> Vec<Step> {
        let mut unmet = wants.to_vec();
        let mut others: Vec<&Reserved> = Vec::new();
        for job in have {
            let meets = |want: &Want| (Some(want.device), want.units) == (job.device, job.units);
            match unmet.iter().position(meets) {
                Some(position) => drop(unmet.remove(position)),
                None => others.push(job),
            }
        }
        let cancel = || others.iter().map(|job| Step::Cancel(job.job_id)).collect();
        let is_paused = |want: &&Want| {
            let paused = self.paused.filter(|(device, _)| *device == want.device);
            paused.is_some_and(|(_, since)| now.since(since) < PAUSE)
        };
        let Some(want) = unmet.first().filter(|want| !is_paused(want)) else {
            self.since = None;
            return cancel();
        };
        let since = *self.since.get_or_insert(now);
        if now.since(since) >= SEARCH {
            self.pause(want.device, now);
            return cancel();
        }
        let is_pending = others.iter().any(|job| job.device.is_none());
        if is_pending || others.len() >= devices {
            Vec::new()
        } else {
            vec![Step::Submit(*want)]
        }
    }

    /// Slurm refused a job for a place of the device.
    pub(super) fn pause(&mut self, device: DeviceIndex, now: BootTime) {
        self.paused = Some((device, now));
        self.since = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn want(device: u32) -> Want {
        Want {
            device: DeviceIndex(device),
            units: Units(25),
        }
    }

    fn job(id: u32, device: Option<u32>) -> Reserved {
        Reserved {
            job_id: JobId(id),
            units: Units(25),
            device: device.map(DeviceIndex),
        }
    }

    fn at(seconds: u64) -> BootTime {
        BootTime::after_boot(Duration::from_secs(1000 + seconds))
    }

    /// Promise (admins): Slurm's count loses exactly the units of a stuck place; the jobs that take them end with it.
    /// With `a_search_ends_and_gives_the_other_devices_back`, `all_jobs_end_when_the_places_are_free`.
    #[test]
    fn jobs_are_submitted_until_one_is_on_the_device() {
        let mut search = Search::default();
        let wants = [want(2)];
        let mut steps = |have: &[Reserved], s| search.steps(&wants, have, 4, at(s));
        assert_eq!(steps(&[], 0), [Step::Submit(want(2))]);
        assert_eq!(steps(&[job(7, None)], 2), []);
        assert_eq!(steps(&[job(7, Some(0))], 4), [Step::Submit(want(2))]);
        let both = [job(7, Some(0)), job(8, Some(2))];
        assert_eq!(steps(&both, 6), [Step::Cancel(JobId(7))]);
        assert_eq!(steps(&both[1..], 8), []);
    }

    #[test]
    fn a_search_ends_and_gives_the_other_devices_back() {
        let mut search = Search::default();
        let wants = [want(2)];
        let astray = [job(7, Some(0)), job(8, None)];
        assert_eq!(search.steps(&wants, &astray, 4, at(0)), []);
        let all = [Step::Cancel(JobId(7)), Step::Cancel(JobId(8))];
        assert_eq!(search.steps(&wants, &astray, 4, at(60)), all);
        assert_eq!(search.steps(&wants, &[], 4, at(659)), []);
        assert_eq!(
            search.steps(&wants, &[], 4, at(660)),
            [Step::Submit(want(2))]
        );
    }

    #[test]
    fn a_search_in_vain_on_one_device_does_not_delay_another() {
        let mut search = Search::default();
        search.pause(DeviceIndex(2), at(0));
        assert_eq!(search.steps(&[want(2)], &[], 4, at(9)), []);
        // Its place is free again, and one of another device is stuck.
        let other = [Step::Submit(want(3))];
        assert_eq!(search.steps(&[want(3)], &[], 4, at(10)), other);
    }

    #[test]
    fn all_jobs_end_when_the_places_are_free() {
        let mut search = Search::default();
        let have = [job(7, Some(2)), job(8, Some(1))];
        let all = [Step::Cancel(JobId(7)), Step::Cancel(JobId(8))];
        assert_eq!(search.steps(&[], &have, 4, at(0)), all);
    }

    #[test]
    fn no_more_jobs_go_astray_than_there_are_devices() {
        let mut search = Search::default();
        let have = [job(7, Some(0)), job(8, Some(1))];
        assert_eq!(search.steps(&[want(2)], &have, 2, at(0)), []);
    }
}
