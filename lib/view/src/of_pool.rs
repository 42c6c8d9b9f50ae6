//! A GPU's part of the file, from its pool and its leases.

use std::cmp::Reverse;

use gpufrac_core::config::{Device, Mechanism, Pool};
use gpufrac_core::geometry::Placement;
use gpufrac_core::layout::{MenuEntry, Occupied, Side};
use gpufrac_core::lease::{Held, Lease, LeaseState};

use crate::cluster::Counted;
use crate::{GpuStatus, Owner, Place, Room, Slice};

/// The most sizes of a menu that are all listed; a pool without a menu gives each percent.
const MOST_SIZES: usize = 12;
/// Sizes that are listed of a longer menu, in units.
const LISTED_UNITS: [u32; 5] = [100, 75, 50, 25, 10];
/// For an instance whose profile is not known, so that its size counts.
const NO_PROFILE: u32 = u32::MAX;

/// What the driver says of a GPU.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Seen {
    /// Whether the GPU is in MIG mode; None if that was not asked.
    pub mig: Option<bool>,
    /// Why the GPU cannot be used; None where it works.
    pub fault: Option<String>,
    /// The sides on which no slice can be made.
    pub lost: Vec<Side>,
    /// The positions of instances that no lease names.
    pub unleased: Vec<Place>,
}

impl GpuStatus {
    /// A GPU of a pool. `device`: one of its devices; `leases`: all leases on this GPU.
    pub fn of(device: &Device<'_>, uuid: &str, leases: &[&Lease], seen: Seen) -> GpuStatus {
        let pool = device.pool;
        let mut slices: Vec<Slice> = leases.iter().map(|lease| Slice::of(lease, pool)).collect();
        slices.sort_by_key(|slice| {
            let owner = slice.owner.as_ref().map(|owner| (owner.job, owner.slice));
            (slice.place.map(|place| place.start), owner)
        });
        let room = match seen.fault {
            None => room(pool, leases, &seen),
            Some(_) => no_room(pool),
        };
        GpuStatus {
            index: device.gpu_index,
            uuid: uuid.to_owned(),
            model: pool.geometry.model.clone(),
            pool: pool.name.clone(),
            mechanism: pool.mechanism.name().to_owned(),
            partitions: pool.partitions.clone(),
            memory_slices: if pool.mechanism.uses_mig() { pool.geometry.memory_slices } else { 0 },
            mig: seen.mig.filter(|_| pool.switches_mig()),
            fault: seen.fault,
            room,
            slices,
            unleased: seen.unleased,
        }
    }
}

impl Slice {
    /// The slice of a lease, without its use.
    pub fn of(lease: &Lease, pool: &Pool) -> Slice {
        let place = match (&lease.slice.held, lease.slice.mig()) {
            (Held::Bare, _) => Some(Place {
                start: 0,
                size: pool.geometry.memory_slices,
            }),
            (_, mig) => mig.map(|mig| Place {
                start: mig.placement.start,
                size: mig.placement.size,
            }),
        };
        Slice {
            owner: Some(Owner {
                job: lease.job_id,
                slice: lease.number,
                user: lease.user.clone(),
                uid: lease.user_id,
                account: lease.account.clone().filter(|account| !account.is_empty()),
                partition: lease.partition.clone(),
            }),
            fraction: lease.fraction.to_string(),
            units: lease.units.0,
            kind: lease.kind(),
            place,
            state: match lease.state {
                LeaseState::Carving => "preparing",
                LeaseState::Active => "active",
                LeaseState::Releasing => "releasing",
                LeaseState::Kept => "kept",
            }
            .to_owned(),
            since: lease.created_unix,
            memory_limit_mib: lease.slice.memory_mib.0,
            usage: None,
        }
    }
}

/// For each size how many jobs have room.
fn room(pool: &Pool, leases: &[&Lease], seen: &Seen) -> Vec<Room> {
    // Slurm does not count the instance that is kept after a job, and it goes when a job needs its place.
    let held = leases
        .iter()
        .filter(|lease| lease.state != LeaseState::Kept);
    let held: Vec<&Lease> = held.copied().collect();
    let sides = pool.layout.sides.iter();
    let sides = sides.filter(|side| !seen.lost.contains(side));
    let most = sides.clone().map(|side| free(pool, *side, &held));
    let most = most.max().unwrap_or(0);
    let listed = sizes(pool, most).into_iter();
    let rooms = listed.map(|size| {
        let sides = sides.clone();
        let jobs = sides.map(|side| jobs(pool, size, *side, &held, &seen.unleased));
        of_size(size, jobs.sum())
    });
    rooms.collect()
}

/// The same where only Slurm's count is known.
pub(crate) fn room_by_count(pool: &Pool, devices: &[Counted]) -> Vec<Room> {
    let free = devices.iter().map(|it| it.units.saturating_sub(it.taken));
    let most = free.clone().max().unwrap_or(0);
    let listed = sizes(pool, most).into_iter();
    let rooms = listed.map(|size| {
        let jobs = free.clone().map(|free| free / size.units.0.max(1));
        of_size(size, jobs.sum())
    });
    rooms.collect()
}

fn no_room(pool: &Pool) -> Vec<Room> {
    let listed = sizes(pool, 0).into_iter();
    listed.map(|size| of_size(size, 0)).collect()
}

fn of_size(size: &MenuEntry, jobs: u32) -> Room {
    Room {
        fraction: size.fraction.to_string(),
        units: size.units.0,
        jobs,
    }
}

/// The sizes that are listed, largest first. `most`: the largest part that is free, in units.
fn sizes(pool: &Pool, most: u32) -> Vec<&MenuEntry> {
    let menu = &pool.layout.menu;
    let is_listed = |size: &&MenuEntry| {
        let units = size.units.0;
        menu.len() <= MOST_SIZES
            || LISTED_UNITS.contains(&units)
            || units == most
            || menu.first().is_some_and(|least| least.units == size.units)
    };
    let mut sizes: Vec<&MenuEntry> = menu.iter().filter(is_listed).collect();
    sizes.sort_by_key(|size| Reverse(size.units));
    sizes
}

/// Units of a device that no job holds.
fn free(pool: &Pool, side: Side, held: &[&Lease]) -> u32 {
    let capacity = pool.layout.capacity.0;
    let here = held.iter().filter(|lease| lease.slice.side == side);
    let taken = here.map(|lease| if lease.whole_device { capacity } else { lease.units.0 });
    capacity.saturating_sub(taken.sum())
}

/// How many jobs of a size have room on a device.
fn jobs(pool: &Pool, size: &MenuEntry, side: Side, held: &[&Lease], unleased: &[Place]) -> u32 {
    let counted = free(pool, side, held) / size.units.0.max(1);
    // Slurm's count is enough where no instance stands in the way: core proves that.
    if unleased.is_empty() || counted == 0 {
        return counted;
    }
    match pool.mechanism {
        Mechanism::Mps | Mechanism::Timeslice | Mechanism::Hami => counted,
        // The jobs of a half share one instance.
        Mechanism::MigMps if held.iter().any(|lease| lease.slice.side == side) => counted,
        Mechanism::MigMps => match places(pool, size, side, held, unleased, 1) {
            0 => 0,
            _ => counted,
        },
        Mechanism::Mig => places(pool, size, side, held, unleased, counted),
    }
}

/// How many instances of a size find a place, at most `most`.
fn places(
    pool: &Pool,
    size: &MenuEntry,
    side: Side,
    held: &[&Lease],
    unleased: &[Place],
    most: u32,
) -> u32 {
    let leased = held.iter().filter_map(|lease| lease.slice.mig());
    let leased = leased.map(|mig| Occupied {
        profile_id: mig.profile_id,
        placement: mig.placement,
    });
    let strange = unleased.iter().map(|place| Occupied {
        profile_id: NO_PROFILE,
        placement: Placement {
            start: place.start,
            size: place.size,
        },
    });
    let mut occupied: Vec<Occupied> = leased.chain(strange).collect();
    for found in 0..most {
        let Some(candidate) = pool.layout.place(side, size.units, &occupied) else {
            return found;
        };
        occupied.push(Occupied {
            profile_id: candidate.profile_id,
            placement: candidate.placement,
        });
    }
    most
}
