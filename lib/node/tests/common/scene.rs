//! A node with a running job and a victim, and the events that may follow after the victim's prolog or epilog died.

use super::shares::{Control, Kind, names};
use super::{Job, World, job, job_of_gpus, job_of_tasks};

/// The job whose programs are killed.
pub const VICTIM: u32 = 7;

/// A node with a running job.
pub struct Scene {
    pub world: World,
    /// Instances that gpufrac did not create.
    pub foreign: Vec<u32>,
    pub victim: Job,
    /// Whether instances are kept for the next job of their user.
    pub keeps: bool,
    /// The mode of the victim's GPU before each of its lives, where it changes.
    pub mig: Option<bool>,
}

const KEEPS: &str = "reuse = \"1h\"";

/// A GPU in halves, with a foreign instance.
pub fn mig() -> Scene {
    let world = World::new();
    world.setup().ok();
    let foreign = vec![world.foreign(19, 0, 1, Some(0))];
    world.prolog(job(1, 1, 25)).ok();
    Scene {
        world,
        foreign,
        victim: job(VICTIM, 0, 25),
        keeps: false,
        mig: None,
    }
}

/// A scene in which the victim's user had an instance of the same size before, which was kept.
pub fn kept() -> Scene {
    let world = World::new();
    world.configure("halves", "H100-80", KEEPS);
    world.setup().ok();
    world.prolog(job(1, 1, 25)).ok();
    Scene {
        world,
        foreign: Vec::new(),
        victim: job(VICTIM, 0, 25),
        keeps: true,
        mig: None,
    }
}

/// The victim has a whole GPU that is in MIG mode, or half of one that is not; the running job is on another GPU.
pub fn switched(is_whole: bool) -> Scene {
    let world = World::with(&["H100-80", "H100-80"], "uniform", true);
    world.configure("uniform", "H100-80", "menu = [\"1/2\"]\nwhole = \"bare\"");
    world.setup().ok();
    world.prolog(job(1, 1, 50)).ok();
    Scene {
        world,
        foreign: Vec::new(),
        victim: job(VICTIM, 0, if is_whole { 100 } else { 50 }),
        keeps: false,
        mig: Some(is_whole),
    }
}

/// A scene in which the victim has two slices of one half.
pub fn tasks(kind: Kind) -> Scene {
    let world = match kind {
        Kind::Mig => World::new(),
        kind => World::shared(kind, Control::Real),
    };
    world.setup().ok();
    world
        .prolog(job(1, 1, 12 + u32::from(kind == Kind::Mig)))
        .ok();
    let victim = job_of_tasks(VICTIM, 0, 13, 2);
    world.slurm_counts(victim);
    Scene {
        world,
        foreign: Vec::new(),
        victim,
        keeps: false,
        mig: None,
    }
}

/// Four GPUs, of which the victim has three and the running job a piece of the last.
pub fn gpus(kind: Kind) -> Scene {
    let names = ["H100-80"; 4];
    let world = match kind {
        Kind::Mig => {
            let world = World::with(&names, "uniform", true);
            world.configure("uniform", "H100-80", "menu = [\"1/4\"]");
            world
        }
        kind => World::shared_on(&names, kind, Control::Real),
    };
    world.setup().ok();
    world.prolog(job(1, 3, 25)).ok();
    let victim = job_of_gpus(VICTIM, 0, 3);
    world.slurm_counts(victim);
    Scene {
        world,
        foreign: Vec::new(),
        victim,
        keeps: false,
        mig: None,
    }
}

/// A scene in which the running job is on the victim's device (`beside`), or on another one.
pub fn shared(kind: Kind, beside: bool) -> Scene {
    let world = World::shared(kind, Control::Real);
    world.setup().ok();
    world.prolog(job(1, u32::from(!beside), 12)).ok();
    world.check(&[]);
    Scene {
        world,
        foreign: Vec::new(),
        victim: job(VICTIM, 0, 25),
        keeps: false,
        mig: None,
    }
}

/// The events that may follow after a death.
#[derive(Debug, Clone, Copy)]
pub enum Next {
    /// Slurm runs the epilog.
    Epilog,
    /// Slurm runs the prolog again, then the epilog.
    Again,
    /// Another job starts first, on the same device.
    Another,
    /// Another job starts on the other half of the GPU, or on another GPU.
    Other,
    /// The node is set up again.
    Setup,
}

pub const NEXT: [Next; 5] = [
    Next::Epilog,
    Next::Again,
    Next::Another,
    Next::Other,
    Next::Setup,
];

impl Scene {
    /// A job of the victim's user, whose instance is kept.
    pub fn run_one_before(&self, id: u32) {
        let before = Job { id, ..self.victim };
        self.world.prolog(before).ok();
        self.world.epilog(before).ok();
    }

    /// What the victim finds before its next life: an instance to take over, a GPU in the other mode.
    pub fn before_life(&self, number: u32) {
        if self.keeps {
            self.run_one_before(1_000_000 + number);
        }
        if let Some(on) = self.mig {
            self.world.set_mig(on);
        }
    }

    /// Whether all devices are of one GPU.
    fn is_one_gpu(&self) -> bool {
        self.world.kind.uses_mig() && self.mig.is_none()
    }

    /// A job on another device, or on the victim's.
    fn other(&self, device: u32) -> Job {
        match self.mig {
            // The other GPU has room for one more half.
            Some(_) => job(8, device, 50),
            None => job(8, device, 13),
        }
    }

    /// Recovers after a prolog died: after the victim's end nothing of it is left.
    #[track_caller]
    pub fn recover(&self, victim: Job, next: Next) {
        let (world, foreign) = (&self.world, &self.foreign);
        match next {
            Next::Epilog => drop(world.epilog(victim).ok()),
            Next::Again => {
                world.prolog(victim).ok();
                world.check(foreign);
                assert_eq!(world.leases_of(victim).len(), victim.slices());
            }
            // Slurm gives no other job a GPU of the victim's.
            Next::Another | Next::Other if victim.gpus > 0 => {
                world.prolog(job(8, 3, 25)).ok();
                world.epilog(job(8, 3, 25)).ok();
            }
            Next::Another | Next::Other => {
                let device = u32::from(matches!(next, Next::Other));
                world.prolog(self.other(device)).ok();
                // A job on another GPU repairs nothing here.
                if matches!(next, Next::Another) || self.is_one_gpu() {
                    world.check(foreign);
                }
                world.epilog(self.other(device)).ok();
            }
            Next::Setup => drop(world.setup().ok()),
        }
        let is_elsewhere = victim.gpus > 0 && matches!(next, Next::Another | Next::Other);
        if !is_elsewhere && (!matches!(next, Next::Other) || self.is_one_gpu()) {
            world.check(foreign);
        }
        world.epilog(victim).ok();
        world.check(foreign);
        if self.keeps {
            world.configure("halves", "H100-80", "");
            world.setup().ok();
            world.check(foreign);
            world.configure("halves", "H100-80", KEEPS);
        }
        assert_eq!(world.leases().len(), 1, "only the running job is left");
        assert!(world.slurm_was_told().is_empty());
    }

    /// Checks that ended jobs leave no files. Incomplete files may remain, at most one for each GPU, because the next
    /// writer replaces it.
    #[track_caller]
    pub fn check_files(&self) {
        let run = self.world.root().join("run");
        let half_written = |name: &String| name.starts_with('.');
        let (half, whole): (Vec<String>, Vec<String>) = names(&run.join("leases"))
            .into_iter()
            .partition(half_written);
        assert_eq!(whole, ["1"], "leases");
        let mut of_gpus = half.iter().filter(|name| !name.starts_with(".gpu"));
        assert_eq!(of_gpus.next(), None, "half-written leases");
        let mut locks = names(&run.join("locks")).into_iter();
        assert_eq!(locks.find(|name| !name.starts_with("gpu")), None, "locks");
    }
}
