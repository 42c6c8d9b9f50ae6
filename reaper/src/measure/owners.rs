//! The jobs of processes that computed since the last sample: the driver also reports processes that have ended.

use std::collections::HashMap;
use std::time::Duration;

use gpufrac_node::mps::process;

use super::view::View;
use gpufrac_node::clock::BootTime;

/// For each pid the control group of its job, and the time when it was last seen.
#[derive(Default)]
pub(super) struct Owners(HashMap<u32, (String, BootTime)>);

impl Owners {
    /// The control group of a process's job: the current one, otherwise the one when it was last seen.
    pub(super) fn group(&self, pid: u32) -> Option<String> {
        let known = || self.0.get(&pid).map(|(group, _)| group.clone());
        process::job_group(pid as i32).or_else(known)
    }

    /// Adds the current processes, and forgets those that were not seen for `kept`.
    pub(super) fn update(&mut self, views: &HashMap<String, View>, now: BootTime, kept: Duration) {
        self.0.retain(|_, (_, seen)| now.since(*seen) < kept);
        // Only on GPUs without MIG does the driver report activity by process.
        let views = views.values().filter(|view| view.utilization.is_some());
        let processes = views.flat_map(|view| &view.processes);
        self.0.extend(processes.filter_map(|process| {
            let group = process::job_group(process.pid as i32)?;
            Some((process.pid, (group, now)))
        }));
    }
}
