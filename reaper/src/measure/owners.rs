//! Whose the processes are that computed since the last look: the driver also tells what those did that have ended.

use std::collections::HashMap;
use std::time::Duration;

use gpufrac_node::mps::process;

use super::view::View;
use crate::clock::BootTime;

/// Groups of jobs of the processes that were seen, by pid, and when they were.
#[derive(Default)]
pub(super) struct Owners(HashMap<u32, (String, BootTime)>);

impl Owners {
    /// The group of a process's job: that of now, else that of when it was seen.
    pub(super) fn group(&self, pid: u32) -> Option<String> {
        let known = || self.0.get(&pid).map(|(group, _)| group.clone());
        process::job_group(pid as i32).or_else(known)
    }

    /// Takes in the processes that are there now, and forgets those that were not seen for so long.
    pub(super) fn update(&mut self, views: &HashMap<String, View>, now: BootTime, kept: Duration) {
        self.0.retain(|_, (_, seen)| now.since(*seen) < kept);
        // Only what they computed on a GPU without MIG is told by process.
        let views = views.values().filter(|view| view.utilization.is_some());
        let processes = views.flat_map(|view| &view.processes);
        self.0.extend(processes.filter_map(|process| {
            let group = process::job_group(process.pid as i32)?;
            Some((process.pid, (group, now)))
        }));
    }
}
