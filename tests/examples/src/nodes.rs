//! Made-up nodes with jobs, as the reaper describes them.

use gpufrac_core::config::{Config, Device};
use gpufrac_core::fraction::Units;
use gpufrac_core::geometry::Placement;
use gpufrac_core::ids::{GpuIndex, UserId};
use gpufrac_core::layout::{MenuEntry, Occupied};
use gpufrac_core::lease::{Held, Lease, LeaseState, MigSlice, MpsSlice};
use gpufrac_core::mechanism::Mechanism;
use gpufrac_view::{GpuStatus, NodeStatus, Place, Seen, Stuck, Usage, VERSION};
use test_seed::Dice;

/// The wall clock of made-up nodes: seconds since 1970.
pub const NOW: u64 = 1_790_000_000;

/// The pools of made-up nodes.
pub const CONFIG: &str = r#"version = 1
[pool.h100]
mechanism = "mig"
layout = "halves"
gpu = "H100-80"
partitions = ["gpu", "short"]
nodes = "gn[0001-0007]"
gpus = [0, 1, 2, 3, 4, 5, 6]
[pool.h100-whole]
mechanism = "mig"
layout = "whole"
gpu = "H100-80"
partitions = ["gpu"]
nodes = "gn[0001-0007]"
gpus = [7]
[pool.small]
mechanism = "mig"
layout = "slices"
gpu = "A100-40"
partitions = ["teaching"]
nodes = "gn0008"
[pool.l40s]
mechanism = "mps"
tenancy = "shared"
gpu = "L40S-48"
partitions = ["inference"]
nodes = "gn0009"
[pool.notebooks]
mechanism = "mig+mps"
gpu = "H100-80"
partitions = ["interactive"]
nodes = "gn0010"
"#;

/// The nodes of [`CONFIG`]; those of a larger cluster are like them.
const MODELS: usize = 10;

/// Names and accounts of users. Two are hostile: a page or a terminal that prints them unchanged obeys them.
const USERS: [(&str, Option<&str>); 10] = [
    ("ada", Some("physics")),
    ("grace", Some("physics")),
    ("emmy", Some("algebra")),
    ("alan", Some("logic")),
    ("lise", Some("chemistry")),
    ("chien-shiung", Some("physics")),
    ("katherine", None),
    ("dorothy", Some("biology")),
    ("<img src=x onerror=alert(1)>", Some("</script><b>x")),
    ("eve\u{1b}[2J", Some("a\"b'c&d")),
];

/// `count` nodes, `gn0001` and so on, each with GPUs of [`CONFIG`], full, empty and in between. The same seed gives
/// the same nodes. Some files are stale at [`NOW`], some GPUs have a fault, some have instances without a lease.
///
/// # Panics
///
/// The configuration is wrong.
pub fn nodes(count: usize, seed: u64) -> Vec<NodeStatus> {
    let config = Config::parse(CONFIG, "gpufrac.toml").expect("the configuration is right");
    let mut world = World {
        dice: Dice::new(seed),
        next_job: 100_000,
    };
    let all = (1..=count).map(|number| {
        let model = format!("gn{:04}", (number - 1) % MODELS + 1);
        world.node(&config, &model, &format!("gn{number:04}"))
    });
    all.collect()
}

/// A slice of GPU 0 that cannot be removed.
pub fn stuck() -> Stuck {
    Stuck {
        place: "GPU 0 1g.10gb at 3:1".to_owned(),
        gpu: Some(GpuIndex(0)),
        device: None,
        since: NOW - 780,
        failures: 5,
        cause: Some("in use (19); DCGM's daemon (nv-hostengine, pid 812) runs".to_owned()),
    }
}

struct World {
    dice: Dice,
    next_job: u32,
}

impl World {
    fn node(&mut self, config: &Config, model: &str, name: &str) -> NodeStatus {
        let devices = config.devices_of_node(model, 8);
        let mut indexes: Vec<GpuIndex> = devices.iter().map(|device| device.gpu_index).collect();
        indexes.sort_unstable();
        indexes.dedup();
        let gpus = indexes.into_iter().map(|index| {
            let own = devices.iter().filter(|device| device.gpu_index == index);
            self.gpu(name, &own.collect::<Vec<_>>())
        });
        let gpus = gpus.collect();
        let is_stale = self.dice.one_in(50);
        NodeStatus {
            version: VERSION,
            node: name.to_owned(),
            written: NOW - if is_stale { 900 } else { self.dice.throw(10) },
            interval: 10,
            build: "0.1.0".to_owned(),
            config_sum: None,
            stuck: Vec::new(),
            gpus,
        }
    }

    fn gpu(&mut self, node: &str, devices: &[&Device<'_>]) -> GpuStatus {
        let first = devices[0];
        let uuid = format!("GPU-{node}-{}", first.gpu_index);
        let mut leases: Vec<Lease> = Vec::new();
        let mut seen = Seen::default();
        let is_mig = first.pool.mechanism == Mechanism::Mig;
        if self.dice.one_in(100) {
            seen.fault = Some("the GPU has fallen off the bus".to_owned());
        } else if is_mig && self.dice.one_in(60) {
            seen.unleased.push(Place { start: 6, size: 1 });
        }
        // Between an idle GPU and a full one.
        let wanted = self.dice.below(9);
        for device in devices {
            for _ in 0..wanted {
                let menu = &device.pool.layout.menu;
                let size = &menu[self.dice.below(menu.len())];
                leases.extend(self.lease(node, &uuid, device, size, &leases, &seen));
            }
        }
        let all: Vec<&Lease> = leases.iter().collect();
        let mut gpu = GpuStatus::of(first, &uuid, &all, seen);
        for slice in &mut gpu.slices {
            if slice.state == "active" && !self.dice.one_in(40) {
                slice.usage = Some(self.usage(first.pool.mechanism, slice.memory_limit_mib));
            }
        }
        gpu
    }

    /// A lease of a size on a device; None if there is no room.
    fn lease(
        &mut self,
        node: &str,
        uuid: &str,
        device: &Device<'_>,
        size: &MenuEntry,
        others: &[Lease],
        seen: &Seen,
    ) -> Option<Lease> {
        let pool = device.pool;
        let beside = others.iter().filter(|it| it.slice.side == device.side);
        let taken: u32 = beside.map(|lease| lease.units.0).sum();
        if taken + size.units.0 > pool.layout.capacity.0 {
            return None;
        }
        let mut lease = crate::lease(self.job());
        let (user, account) = USERS[self.user()];
        user.clone_into(&mut lease.user);
        lease.user_id = UserId(1000 + USERS.iter().position(|it| it.0 == user)? as u32);
        lease.account = account.map(str::to_owned);
        node.clone_into(&mut lease.node);
        lease.pool.clone_from(&pool.name);
        lease
            .partition
            .clone_from(&pool.partitions[self.dice.below(pool.partitions.len())]);
        (lease.units, lease.fraction) = (size.units, size.fraction);
        lease.created_unix = NOW - self.dice.throw(200_000);
        lease.state = match self.dice.below(40) {
            0 => LeaseState::Carving,
            1 => LeaseState::Releasing,
            2 if pool.mechanism == Mechanism::Mig => LeaseState::Kept,
            _ => LeaseState::Active,
        };
        lease.slice.side = device.side;
        lease.slice.device_index = device.index;
        lease.slice.gpu_index = device.gpu_index;
        uuid.clone_into(&mut lease.slice.gpu_uuid);
        lease.slice.memory_mib = size.memory;
        lease.slice.held = held(device, size, others, seen)?;
        Some(lease)
    }

    fn job(&mut self) -> u32 {
        self.next_job += 1 + self.dice.throw(5) as u32;
        self.next_job
    }

    /// Some users have more jobs than others, and hostile names are rare.
    fn user(&mut self) -> usize {
        if self.dice.one_in(50) {
            8 + self.dice.below(2)
        } else {
            self.dice.below(8).min(self.dice.below(8))
        }
    }

    fn usage(&mut self, mechanism: Mechanism, limit_mib: u64) -> Usage {
        let is_busy = !self.dice.one_in(4);
        let idle = if is_busy { self.dice.throw(10) } else { self.dice.throw(14_400) };
        let is_warned = idle > 13_000;
        Usage {
            activity: if is_busy {
                Some((1 + self.dice.throw(100)) as f64 / 100.0)
            } else {
                (!self.dice.one_in(3)).then_some(0.0)
            },
            memory_mib: (!self.dice.one_in(20)).then(|| self.dice.throw(limit_mib + 1)),
            source: match mechanism {
                Mechanism::Mig => "gpm",
                Mechanism::Mps | Mechanism::MigMps => "mps-clients",
                Mechanism::Timeslice | Mechanism::Hami => "process-utilization",
            }
            .to_owned(),
            idle,
            window: (!self.dice.one_in(10)).then_some(14_400),
            warnings: u32::from(is_warned),
            ends: is_warned.then_some(NOW + 14_400 - idle),
        }
    }
}

/// What a job of a size holds; None if no instance finds a place.
fn held(device: &Device<'_>, size: &MenuEntry, others: &[Lease], seen: &Seen) -> Option<Held> {
    let pool = device.pool;
    let mps = || MpsSlice {
        folder: "/run/gpufrac/mps/gpu0".to_owned(),
        private: false,
        thread_percentage: size.units.0,
        burst_percentage: None,
        memory_limit_mib: size.memory,
        sm_partition: None,
    };
    match pool.mechanism {
        Mechanism::Mig => instance(device, size, others, seen).map(Held::Mig),
        Mechanism::Mps => Some(Held::Mps((size.units != Units::WHOLE).then(mps))),
        Mechanism::MigMps => {
            let shared = others.iter().find(|it| it.slice.side == device.side);
            let mig = match shared.and_then(|lease| lease.slice.mig().cloned()) {
                Some(mig) => mig,
                None => instance(device, size, &[], seen)?,
            };
            Some(Held::MigMps { mig, mps: mps() })
        }
        Mechanism::Timeslice => Some(Held::Timeslice),
        Mechanism::Hami => Some(Held::Hami(None)),
    }
}

fn instance(
    device: &Device<'_>,
    size: &MenuEntry,
    others: &[Lease],
    seen: &Seen,
) -> Option<MigSlice> {
    let leased = others.iter().filter_map(|lease| lease.slice.mig());
    let leased = leased.map(|mig| (mig.profile_id, mig.placement));
    let strange = seen.unleased.iter();
    let strange = strange.map(|it| {
        (
            u32::MAX,
            Placement {
                start: it.start,
                size: it.size,
            },
        )
    });
    let occupied: Vec<Occupied> = leased
        .chain(strange)
        .map(|(profile_id, placement)| Occupied {
            profile_id,
            placement,
        })
        .collect();
    let layout = &device.pool.layout;
    let candidate = layout.place(device.side, size.units, &occupied)?;
    let profile = device.pool.geometry.profile(candidate.profile_id)?;
    Some(MigSlice {
        profile_id: profile.id,
        profile_name: profile.name.clone(),
        placement: candidate.placement,
        instance: None,
    })
}
