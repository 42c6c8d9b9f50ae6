//! The process on NVML's list.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use nvidia_ml::pattern::Pattern;
use nvidia_ml::processes::{self, BEAT, Process, Role};

/// How long a process is busy after its last kernel.
const BUSY: Duration = Duration::from_millis(150);

/// A registered process. The node may be made again meanwhile, which ends no program: failures do not matter.
pub struct Life(Arc<Mutex<Registered>>);

struct Registered {
    root: PathBuf,
    process: Process,
    role: Role,
    /// When it last launched a kernel or waited for one.
    worked: Instant,
}

impl Life {
    /// Of a process that is registered. It says from now on that it lives.
    pub fn begin(root: &Path, process: Process, role: Role) -> Life {
        let life = Arc::new(Mutex::new(Registered {
            root: root.to_owned(),
            process,
            role,
            worked: Instant::now(),
        }));
        let own = life.clone();
        std::thread::spawn(move || {
            loop {
                std::thread::sleep(BEAT);
                let mut life = held(&own);
                if life.worked.elapsed() > BUSY {
                    life.become_(Pattern::Idle);
                }
                let _ = life.process.beat(&life.root);
            }
        });
        Life(life)
    }

    /// What it is registered as.
    pub fn process(&self) -> Process {
        held(&self.0).process.clone()
    }

    /// Registers its memory.
    pub fn take(&self, memory_mib: u64) {
        let mut life = held(&self.0);
        life.process.memory_mib = memory_mib;
        let _ = life.process.register_as(&life.root, life.role);
    }

    /// Registers that it computes.
    pub fn work(&self) {
        let mut life = held(&self.0);
        life.worked = Instant::now();
        life.become_(Pattern::Busy);
    }
}

impl Registered {
    fn become_(&mut self, pattern: Pattern) {
        if self.process.pattern == pattern {
            return;
        }
        let old = self.process.clone();
        self.process.pattern = pattern;
        self.process.began_us = processes::now_us();
        // Registered first: it is always on the list.
        let _ = self.process.register_as(&self.root, self.role);
        let _ = old.remove(&self.root);
    }
}

fn held(life: &Mutex<Registered>) -> MutexGuard<'_, Registered> {
    life.lock().unwrap_or_else(PoisonError::into_inner)
}
