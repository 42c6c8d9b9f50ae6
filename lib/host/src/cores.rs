//! The cores of this host by Slurm's numbers, which `Cores=` of gres.conf takes.
//!
//! The kernel numbers threads, often the first threads of all cores before the second ones. slurmd numbers cores socket
//! by socket, in the order of hwloc (`xcpuinfo_hwloc_topo_get` of `src/slurmd/common/xcpuinfo.c`): sockets, caches of
//! the third level and cores come in the order of their lowest thread.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::path::Path;

/// Slurm's number of the core of each thread, by the kernel's number of the thread.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cores(BTreeMap<u32, u32>);

impl Cores {
    /// Reads `sys/devices/system/cpu` below `root`.
    /// Errors: the folder cannot be read. Threads without topology, which are offline, are left out.
    pub fn read(root: &Path) -> io::Result<Cores> {
        let folder = root.join("sys/devices/system/cpu");
        let mut threads = BTreeMap::new();
        for entry in fs::read_dir(&folder)? {
            let entry = entry?;
            let name = entry.file_name();
            let number = name.to_str().and_then(|name| name.strip_prefix("cpu"));
            let Some(number) = number.and_then(|number| number.parse::<u32>().ok()) else {
                continue;
            };
            let first_of = |file: &str| {
                let text = fs::read_to_string(entry.path().join(file)).ok()?;
                text.split([',', '-']).next()?.trim().parse::<u32>().ok()
            };
            let package = first_of("topology/physical_package_id");
            let core = first_of("topology/thread_siblings_list");
            if let (Some(package), Some(core)) = (package, core) {
                let cache = first_of("cache/index3/shared_cpu_list").unwrap_or(0);
                threads.insert(number, (package, cache, core));
            }
        }
        Ok(Cores::of_threads(&threads))
    }

    /// Of each thread its socket, the lowest thread of its cache, and that of its core.
    fn of_threads(threads: &BTreeMap<u32, (u32, u32, u32)>) -> Cores {
        let mut lowest = BTreeMap::new();
        for (thread, (package, ..)) in threads {
            lowest.entry(*package).or_insert(*thread);
        }
        let rank = |(package, cache, core): &(u32, u32, u32)| (lowest[package], *cache, *core);
        let all: BTreeSet<_> = threads.values().map(rank).collect();
        let numbers: BTreeMap<_, u32> = all.into_iter().zip(0..).collect();
        let cores = threads.iter();
        Cores(
            cores
                .map(|(thread, core)| (*thread, numbers[&rank(core)]))
                .collect(),
        )
    }

    /// The highest number that the kernel gives a thread; None without any.
    pub fn last_thread(&self) -> Option<u32> {
        self.0.keys().next_back().copied()
    }

    /// The text of `Cores=` for the cores of these threads: `0-15`. None for all cores, or for none.
    pub fn near(&self, threads: &BTreeSet<u32>) -> Option<String> {
        let all: BTreeSet<u32> = self.0.values().copied().collect();
        let near = threads.iter().filter_map(|thread| self.0.get(thread));
        let near: BTreeSet<u32> = near.copied().collect();
        (!near.is_empty() && near != all).then(|| ranges(&near))
    }
}

/// `0-3,8`
fn ranges(numbers: &BTreeSet<u32>) -> String {
    let numbers: Vec<u32> = numbers.iter().copied().collect();
    let runs = numbers.chunk_by(|a, b| a + 1 == *b);
    let texts = runs.filter_map(|run| match (run.first()?, run.last()?) {
        (first, last) if first == last => Some(first.to_string()),
        (first, last) => Some(format!("{first}-{last}")),
    });
    texts.collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cores_are_numbered_socket_by_socket() {
        // Two sockets of four cores of two threads: the kernel numbers the first threads of all cores first.
        let threads = (0..16).map(|thread| (thread, (thread % 8 / 4, 0, thread % 8)));
        let cores = Cores::of_threads(&threads.collect());
        let near = |threads: &[u32]| cores.near(&threads.iter().copied().collect());
        assert_eq!(near(&[4, 5, 6, 7, 12, 13, 14, 15]).as_deref(), Some("4-7"));
        assert_eq!(near(&[0, 2, 8, 10]).as_deref(), Some("0,2"));
        assert_eq!(near(&(0..16).collect::<Vec<_>>()), None, "all are near");
        assert_eq!(near(&[99]), None);
        assert_eq!(cores.last_thread(), Some(15));
    }

    #[test]
    fn sockets_that_take_turns_and_caches_are_put_in_order() {
        // Even threads are on the second socket by its number, which has the lowest thread.
        let threads = (0..8).map(|thread| (thread, ((thread + 1) % 2, 0, thread)));
        let cores = Cores::of_threads(&threads.collect());
        assert_eq!(cores.near(&[0, 2, 4, 6].into()).as_deref(), Some("0-3"));
        // A cache whose threads are numbered later comes later.
        let threads = [
            (0, (0, 0, 0)),
            (1, (0, 1, 1)),
            (2, (0, 0, 2)),
            (3, (0, 1, 3)),
        ];
        let cores = Cores::of_threads(&threads.into());
        assert_eq!(cores.near(&[0, 2].into()).as_deref(), Some("0-1"));
    }

    #[test]
    fn this_machine_has_cores() {
        let cores = Cores::read(Path::new("/")).unwrap();
        assert!(cores.last_thread().is_some());
    }
}
