//! GPUs and the slices on them. Slurm's count decides whether a request fits, [`Layout::place`] where: as in the
//! product.

use gpufrac_core::fraction::{MemoryMib, Units};
use gpufrac_core::geometry::Geometry;
use gpufrac_core::layout::{Layout, LayoutKind, Occupied};

/// How a GPU is lent.
#[derive(Clone, Debug)]
pub struct Lending {
    /// The layout, with its menu.
    pub layout: Layout,
    /// The MIG tables; without profiles for shares.
    pub geometry: Geometry,
}

/// A size that can be asked for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Size {
    /// Units on its device.
    pub units: u32,
    pub memory: MemoryMib,
    /// Whether the units are a limit of compute, too: shares of MPS.
    pub is_share: bool,
}

impl Lending {
    /// The sizes in ascending order.
    pub fn sizes(&self) -> Vec<Size> {
        let entries = self.layout.menu.iter();
        entries
            .map(|entry| Size {
                units: entry.units.0,
                memory: entry.memory,
                is_share: self.layout.kind == LayoutKind::Shares,
            })
            .collect()
    }

    fn has_positions(&self) -> bool {
        self.layout.kind != LayoutKind::Shares && !self.geometry.profiles.is_empty()
    }
}

/// What a job asks for on each of its nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Request {
    /// Units of each slice; 100 are a GPU.
    pub units: u32,
    /// Slices; more than one are whole GPUs.
    pub count: u32,
    /// CPUs; 0 where they are not known.
    pub cpus: u32,
    /// Memory in MiB; 0 where it is not known.
    pub memory: u32,
}

/// A slice that a job holds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PlacedSlice {
    pub node: u32,
    /// The GPU on the node.
    pub gpu: u16,
    /// The device of the GPU.
    pub device: u8,
    /// Units that Slurm counts.
    pub units: u32,
    /// CPUs and memory in MiB of the job on the node: all of them with its first slice there.
    pub cpus: u32,
    pub memory: u32,
    /// Compute of the slice as a part of the GPU's.
    pub compute: f64,
    /// The instance, where there is one.
    pub instance: Option<Occupied>,
}

#[derive(Clone, Debug)]
struct FleetGpu {
    lending: u8,
    used: [u32; 2],
    instances: Vec<Occupied>,
}

/// A node of a fleet.
#[derive(Clone, Debug)]
pub struct Machine {
    gpus: Vec<FleetGpu>,
    /// For each way of lending: the most units that are free on one device, and the number of empty GPUs.
    free: Vec<Free>,
    /// Units in use, over all GPUs.
    used: u32,
    /// CPUs that are free; None where they are not known.
    cpus: Option<u32>,
    /// Memory that is free in MiB; None where it is not known or not counted.
    memory: Option<u32>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Free {
    units: u32,
    empty: u32,
}

type Offers = [bool; 101];

/// All nodes of a cluster.
#[derive(Clone, Debug)]
pub struct Fleet {
    lendings: Vec<Lending>,
    /// By way of lending: whether there is a size of so many units.
    offers: Vec<Offers>,
    machines: Vec<Machine>,
    used_units: u64,
}

impl Fleet {
    /// Nodes by the way in which each of their GPUs is lent: indexes into `lendings`.
    pub fn new(lendings: Vec<Lending>, nodes: &[Vec<u8>]) -> Fleet {
        let machine = |kinds: &Vec<u8>| {
            let gpus = kinds.iter().map(|&lending| FleetGpu {
                lending,
                used: [0; 2],
                instances: Vec::new(),
            });
            let mut machine = Machine {
                gpus: gpus.collect(),
                free: vec![Free::default(); lendings.len()],
                used: 0,
                cpus: None,
                memory: None,
            };
            machine.count(&lendings);
            machine
        };
        let machines = nodes.iter().map(machine).collect();
        let offers = |lending: &Lending| {
            let mut offers = [false; 101];
            for size in lending.sizes() {
                offers[size.units as usize % 101] = true;
            }
            offers
        };
        Fleet {
            offers: lendings.iter().map(offers).collect(),
            lendings,
            machines,
            used_units: 0,
        }
    }

    /// The ways in which GPUs are lent.
    pub fn lendings(&self) -> &[Lending] {
        &self.lendings
    }

    /// The sizes of the GPUs that are cut.
    pub fn pieces(&self) -> Vec<Size> {
        let cut = self.lendings.get(1);
        cut.map_or_else(Vec::new, Lending::sizes)
    }

    /// Number of nodes.
    pub fn nodes(&self) -> usize {
        self.machines.len()
    }

    /// Number of GPUs.
    pub fn gpus(&self) -> usize {
        self.machines.iter().map(|machine| machine.gpus.len()).sum()
    }

    /// Units in use, over all nodes.
    pub fn used_units(&self) -> u64 {
        self.used_units
    }

    /// Counts CPUs, too: those of each node, None where they are not known.
    pub fn with_cpus(mut self, cpus: &[Option<u32>]) -> Fleet {
        for (machine, cpus) in self.machines.iter_mut().zip(cpus) {
            machine.cpus = *cpus;
        }
        self
    }

    /// Counts the memory of nodes, too: MiB of each, None where it is not counted.
    pub fn with_memory(mut self, memory: impl Iterator<Item = Option<u32>>) -> Fleet {
        for (machine, memory) in self.machines.iter_mut().zip(memory) {
            machine.memory = memory;
        }
        self
    }

    /// Whether a node has room for a request.
    pub fn has_room(&self, node: usize, request: Request) -> bool {
        self.machines[node].has_room(&self.offers, request)
    }

    /// What requests like this one could take of a node, in CPUs; where these are not known in units, as if jobs took
    /// CPUs in proportion to GPUs.
    pub fn room(&self, node: usize, request: Request) -> u32 {
        let machine = &self.machines[node];
        let (free, own) = match (machine.cpus, request.cpus) {
            (Some(free), cpus) if cpus > 0 => (free, cpus),
            _ => {
                let all = u32::try_from(machine.gpus.len()).unwrap_or(u32::MAX);
                let all = all.saturating_mul(Units::WHOLE.0);
                let own = request.units.saturating_mul(request.count);
                (all.saturating_sub(machine.used), own)
            }
        };
        free - free % own.max(1)
    }

    /// The first of some slices of a node, in the order of their ends, whose end gives room. None where no end does.
    pub fn ready_after(
        &self,
        node: usize,
        request: Request,
        ends: &[&PlacedSlice],
    ) -> Option<usize> {
        let mut machine = self.machines[node].clone();
        for (number, held) in ends.iter().enumerate() {
            machine.give_back(&self.lendings, held);
            if machine.has_room(&self.offers, request) {
                return Some(number);
            }
        }
        None
    }

    /// Takes slices on a node; None, and nothing is taken, where it has no room.
    pub fn take(&mut self, node: usize, request: Request) -> Option<Vec<PlacedSlice>> {
        if !self.has_room(node, request) {
            return None;
        }
        let mut held: Vec<PlacedSlice> = Vec::with_capacity(request.count as usize);
        for _ in 0..request.count {
            match self.take_one(node, request.units) {
                Some(one) => held.push(one),
                None => {
                    held.iter().for_each(|one| self.give_back(one));
                    return None;
                }
            }
        }
        if let (Some(first), Some(free)) = (held.first_mut(), &mut self.machines[node].cpus) {
            first.cpus = request.cpus;
            *free -= request.cpus;
        }
        if let (Some(first), Some(free)) = (held.first_mut(), &mut self.machines[node].memory) {
            first.memory = request.memory;
            *free -= request.memory;
        }
        Some(held)
    }

    /// The device with the least free units that are enough, as Slurm chooses among shared devices; of whole GPUs the
    /// first, and those first that lend nothing smaller.
    fn take_one(&mut self, node: usize, units: u32) -> Option<PlacedSlice> {
        let machine = &self.machines[node];
        let mut best: Option<((usize, u32), usize, usize)> = None;
        for (number, gpu) in machine.gpus.iter().enumerate() {
            let layout = &self.lendings[usize::from(gpu.lending)].layout;
            if !self.offers[usize::from(gpu.lending)][units as usize % 101] {
                continue;
            }
            for device in 0..layout.sides.len() {
                let free = layout.capacity.0 - gpu.used[device];
                let rank = (layout.menu.len(), free);
                if free >= units && best.is_none_or(|(least, ..)| rank < least) {
                    best = Some((rank, number, device));
                }
            }
        }
        let (_, number, device) = best?;
        let gpu = &mut self.machines[node].gpus[number];
        let lending = &self.lendings[usize::from(gpu.lending)];
        let mut compute = f64::from(units) / 100.0;
        let mut instance = None;
        if lending.has_positions() {
            let side = *lending.layout.sides.get(device)?;
            let place = lending.layout.place(side, Units(units), &gpu.instances)?;
            let profile = lending.geometry.profile(place.profile_id)?;
            compute =
                f64::from(profile.compute_slices) / f64::from(lending.geometry.compute_slices);
            let taken = Occupied {
                profile_id: place.profile_id,
                placement: place.placement,
            };
            gpu.instances.push(taken);
            instance = Some(taken);
        }
        gpu.used[device] += units;
        self.used_units += u64::from(units);
        let lendings = &self.lendings;
        self.machines[node].count(lendings);
        Some(PlacedSlice {
            node: u32::try_from(node).unwrap_or(u32::MAX),
            gpu: u16::try_from(number).unwrap_or(u16::MAX),
            device: u8::try_from(device).unwrap_or(u8::MAX),
            units,
            cpus: 0,
            memory: 0,
            compute,
            instance,
        })
    }

    /// Ends a slice.
    pub fn give_back(&mut self, held: &PlacedSlice) {
        self.machines[held.node as usize].give_back(&self.lendings, held);
        self.used_units -= u64::from(held.units);
    }
}

impl Machine {
    fn has_room(&self, offers: &[Offers], request: Request) -> bool {
        let Request {
            units,
            count,
            cpus,
            memory,
        } = request;
        let lacks = |free: Option<u32>, wanted| free.is_some_and(|free| free < wanted);
        if lacks(self.cpus, cpus) || lacks(self.memory, memory) {
            return false;
        }
        let offering = offers.iter().zip(&self.free);
        let mut offering = offering.filter(|(offers, _)| offers[units as usize % 101]);
        if units == Units::WHOLE.0 {
            offering.map(|(_, free)| free.empty).sum::<u32>() >= count
        } else {
            count == 1 && offering.any(|(_, free)| free.units >= units)
        }
    }

    fn give_back(&mut self, lendings: &[Lending], held: &PlacedSlice) {
        let gpu = &mut self.gpus[usize::from(held.gpu)];
        gpu.used[usize::from(held.device)] -= held.units;
        self.cpus = self.cpus.map(|free| free + held.cpus);
        self.memory = self.memory.map(|free| free + held.memory);
        if let Some(instance) = held.instance
            && let Some(at) = gpu.instances.iter().position(|one| *one == instance)
        {
            gpu.instances.swap_remove(at);
        }
        self.count(lendings);
    }

    fn count(&mut self, lendings: &[Lending]) {
        self.free.fill(Free::default());
        self.used = 0;
        for gpu in &self.gpus {
            self.used += gpu.used.iter().sum::<u32>();
            let layout = &lendings[usize::from(gpu.lending)].layout;
            let free = &mut self.free[usize::from(gpu.lending)];
            for used in &gpu.used[..layout.sides.len()] {
                free.units = free.units.max(layout.capacity.0 - used);
            }
            free.empty += u32::from(gpu.used == [0, 0]);
        }
    }
}
