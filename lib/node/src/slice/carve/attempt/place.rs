//! Finds places for a slice: taken places of the GPU, and instances that can be destroyed.

use std::collections::BTreeSet;

use gpufrac_core::config::Tenancy;
use gpufrac_core::geometry::Geometry;
use gpufrac_core::layout::{Candidate, Kept, Occupied};
use gpufrac_core::lease::{Held, Lease, LeaseState, MigSlice};
use gpufrac_core::mechanism::Mechanism;
use gpufrac_nvml::MigMode;

use super::Attempt;
use crate::gpu::capability_files::Claimed;
use crate::gpu::holders::HeldCaps;
use crate::gpu::instance_files::InstanceCaps;
use crate::gpu::locked::LockedGpu;
use crate::slice::carve::error::CarveError;
use crate::slice::{keep, reconcile};

impl Attempt<'_> {
    /// Whether the instance of a lease exists; a slice without an instance exists as long as its GPU.
    pub(super) fn stands(&self, locked: &LockedGpu<'_>, lease: &Lease) -> Result<bool, CarveError> {
        let Some(mig) = lease.slice.mig() else {
            let is_bare = lease.slice.held == Held::Bare;
            return Ok(!is_bare || locked.gpu.mig_mode()? != MigMode::On);
        };
        let Some(instance) = &mig.instance else {
            return Ok(false);
        };
        let claimed = self.node.caps().claimed(locked.gpu.minor, instance)?;
        let standing = locked.gpu.standing(instance.gi_id)?;
        let (Claimed::Ours(_), Some(standing)) = (claimed, standing) else {
            return Ok(false);
        };
        let device = standing.mig_device(instance.ci_id)?;
        let is_named = device.is_some_and(|device| device.uuid == instance.mig_uuid);
        Ok(is_named && standing.instance.is_at(mig))
    }

    /// The other leases on the GPU: of running jobs, and of the job's other slices.
    pub(super) fn others(&self, locked: &LockedGpu<'_>) -> Result<Vec<Lease>, CarveError> {
        let mut leases = locked.leases()?;
        leases.retain(|lease| {
            let is_own = (lease.job_id, lease.number) == (self.job.job_id, self.number);
            !is_own && lease.state != LeaseState::Kept
        });
        Ok(leases)
    }

    /// The leased units of the device.
    pub(super) fn taken(&self, locked: &LockedGpu<'_>) -> Result<u32, CarveError> {
        let others = self.others(locked)?;
        let here = others
            .iter()
            .filter(|lease| lease.slice.side == self.device.side);
        Ok(here.map(|lease| lease.units.0).sum())
    }

    /// Checks that no job of an earlier configuration needs another compute mode or daemon of the GPU.
    pub(super) fn agrees(&self, locked: &LockedGpu<'_>) -> Result<(), CarveError> {
        let pool = self.device.pool;
        let private = pool.options.tenancy == Tenancy::Private;
        let differs = |other: &Lease| {
            let mps = other.slice.mps();
            // A lease that is being made has no partition yet.
            let is_made = other.state != LeaseState::Carving;
            let has_chunks = pool.options.sm_chunks.is_some();
            other.mechanism() != pool.mechanism
                || mps.is_some_and(|mps| mps.private != private)
                || mps.is_some_and(|mps| is_made && mps.sm_partition.is_some() != has_chunks)
        };
        match self.others(locked)?.into_iter().find(differs) {
            None => Ok(()),
            Some(other) => Err(CarveError::Earlier {
                gpu: locked.gpu.to_string(),
                job_id: other.job_id,
                mechanism: other.mechanism(),
            }),
        }
    }

    /// Slurm's count is right, but an epilog may have failed: ends the leases of ended jobs.
    pub(super) fn make_room(&self, locked: &mut LockedGpu<'_>) -> Result<(), CarveError> {
        let capacity = self.device.pool.layout.capacity.0;
        let fits = |taken: u32| taken + self.menu.units.0 <= capacity;
        if fits(self.taken(locked)?) || (self.evict(locked)? > 0 && fits(self.taken(locked)?)) {
            return Ok(());
        }
        Err(CarveError::NoRoom {
            units: self.menu.units,
            side: self.device.side,
            gpu_index: self.device.gpu_index,
            taken: self.taken(locked)?,
            capacity,
        })
    }

    pub(super) fn evict(&self, locked: &mut LockedGpu<'_>) -> Result<usize, CarveError> {
        let (side, job) = (self.device.side, self.job.job_id);
        Ok(reconcile::evict_finished(locked, side, job, self.slurm)?)
    }

    /// The instance that jobs on this half share already.
    pub(super) fn joined(&self, locked: &LockedGpu<'_>) -> Result<Option<MigSlice>, CarveError> {
        for lease in self.others(locked)? {
            let here =
                lease.mechanism() == Mechanism::MigMps && lease.slice.side == self.device.side;
            if here && self.stands(locked, &lease)? {
                return Ok(lease.slice.mig().cloned());
            }
        }
        Ok(None)
    }

    pub(super) fn candidate(
        &self,
        locked: &mut LockedGpu<'_>,
        geometry: &Geometry,
        held: &HeldCaps,
        avoided: &[Occupied],
        query: InstanceQuery,
    ) -> Result<ChosenPlace, CarveError> {
        let layout = &self.device.pool.layout;
        let (side, units) = (self.device.side, self.menu.units);
        let mut view = self.view(locked, geometry, avoided, query)?;
        let mut may_evict = avoided.is_empty();
        loop {
            let kept = view.kept.iter().map(|(place, lease)| Kept {
                place: *place,
                own: self.is_own(lease, held),
            });
            let kept: Vec<Kept> = kept.collect();
            if let Some(candidate) = layout.place_beside(side, units, &view.occupied, &kept) {
                match self.clear(locked, candidate, held, &mut view) {
                    Some(place) => return Ok(place),
                    // The instance that could not be destroyed is among the taken places now.
                    None => continue,
                }
            }
            if !may_evict || self.evict(locked)? == 0 {
                if let Some(not_ours) = self.blocked(&view, avoided) {
                    return Err(not_ours);
                }
                return Err(CarveError::NoPlace {
                    profile: self.menu.profile_name.clone(),
                    side,
                    gpu_index: self.device.gpu_index,
                    standing: view.standing,
                });
            }
            may_evict = false;
            view = self.view(locked, geometry, avoided, query)?;
        }
    }

    /// Whether there would be a place without instances that have no lease. Only root creates such instances, and
    /// they stay until an admin destroys them.
    fn blocked(&self, view: &View, avoided: &[Occupied]) -> Option<CarveError> {
        let leased: Vec<Occupied> = view.occupied[..view.leased].to_vec();
        let (side, units) = (self.device.side, self.menu.units);
        let would_fit = self
            .device
            .pool
            .layout
            .place(side, units, &leased)
            .is_some();
        if !avoided.is_empty() || view.not_ours.is_empty() || !would_fit {
            return None;
        }
        Some(CarveError::NotOurs {
            profile: self.menu.profile_name.clone(),
            side,
            gpu_index: self.device.gpu_index,
            standing: view.not_ours.join(", "),
        })
    }

    /// Makes room at a place where only kept instances are in the way: the user's own is taken over, others are
    /// destroyed. None if one cannot be destroyed; it then counts as taken.
    fn clear(
        &self,
        locked: &mut LockedGpu<'_>,
        candidate: Candidate,
        held: &HeldCaps,
        view: &mut View,
    ) -> Option<ChosenPlace> {
        let mut kept = std::mem::take(&mut view.kept);
        // The instance at the place itself first, because its end may make enough room.
        kept.sort_by_key(|(place, _)| !place.placement.overlaps(candidate.placement));
        if let Some((place, lease)) = kept.first()
            && place.as_candidate() == candidate
            && self.may_take_over(locked, lease, held)
        {
            let kept = Some(lease.clone());
            return Some(ChosenPlace { candidate, kept });
        }
        let layout = &self.device.pool.layout;
        let mut kept = kept.into_iter();
        loop {
            let beside = kept.as_slice().iter().map(|(place, _)| *place);
            let occupied: Vec<Occupied> = view.occupied.iter().copied().chain(beside).collect();
            if layout.has_room(self.device.side, candidate, &occupied) {
                let kept = None;
                return Some(ChosenPlace { candidate, kept });
            }
            let (place, mut lease) = kept.next()?;
            if !keep::end(locked, &mut lease) {
                let name = lease.place();
                view.standing = format!("{}, {name} (kept)", view.standing);
                view.occupied.push(place);
                if !layout.has_room(self.device.side, candidate, &view.occupied) {
                    // The candidate's place stays taken, so no other kept instance has to go for it.
                    view.kept = kept.collect();
                    return None;
                }
            }
        }
    }

    /// Whether a kept instance is one for this job: of its user, of the same size, in time, and no other user's
    /// process holds its files.
    fn is_own(&self, kept: &Lease, held: &HeldCaps) -> bool {
        let user = self.job.user_id;
        let caps = kept.slice.instance().map(InstanceCaps::of);
        kept.user_id == user
            && kept.units == self.menu.units
            && !keep::is_due(self.node, kept)
            && caps.is_some_and(|caps| held.by_others([caps.gi, caps.ci], user).is_none())
    }

    /// Whether a kept instance at the place can be taken over: it is one for this job, and clean. After an error the
    /// answer is no.
    fn may_take_over(&self, locked: &LockedGpu<'_>, kept: &Lease, held: &HeldCaps) -> bool {
        self.is_own(kept, held)
            && keep::is_clean(locked, kept).unwrap_or_else(|error| {
                // The kept instance has remains of its last job. A new instance is made. Cure: Nothing.
                self.log
                    .warning(format!("taking over {} failed: {error}", kept.place()));
                false
            })
    }

    /// The taken places of the GPU: the places of all leases, with or without an instance, and every instance that
    /// the driver shows. Kept instances are separate.
    fn view(
        &self,
        locked: &LockedGpu<'_>,
        geometry: &Geometry,
        avoided: &[Occupied],
        query: InstanceQuery,
    ) -> Result<View, CarveError> {
        let mut occupied = avoided.to_vec();
        let mut standing = Vec::new();
        let leases = locked.leases()?;
        let instances = if query == InstanceQuery::Ids && self.are_all_leased(locked, &leases) {
            Vec::new()
        } else {
            locked.gpu.instances(geometry)?
        };
        let mut kept = Vec::new();
        for lease in leases {
            let Some(mig) = lease.slice.mig() else {
                continue;
            };
            let place = Occupied {
                profile_id: mig.profile_id,
                placement: mig.placement,
            };
            if lease.state == LeaseState::Kept {
                kept.push((place, lease));
                continue;
            }
            // Jobs may share an instance.
            if !occupied.contains(&place) {
                occupied.push(place);
            }
            let place = lease.place();
            standing.push(format!("{place} of job {} ({})", lease.name(), lease.state));
        }
        let leased = occupied.len();
        let mut not_ours = Vec::new();
        for instance in instances {
            let found = Occupied {
                profile_id: instance.profile_id,
                placement: instance.placement,
            };
            let is_kept = kept.iter().any(|(place, _)| *place == found);
            if !occupied.contains(&found) && !is_kept {
                occupied.push(found);
                not_ours.push(format!(
                    "GPU instance {} at {}:{} that gpufrac did not make",
                    instance.gi_id, instance.placement.start, instance.placement.size
                ));
            }
        }
        standing.extend_from_slice(&not_ours);
        let standing = if standing.is_empty() {
            "nothing stands there".to_owned()
        } else {
            standing.join(", ")
        };
        Ok(View {
            occupied,
            leased,
            kept,
            standing,
            not_ours,
        })
    }
}

impl Attempt<'_> {
    /// Whether the driver shows no GPU instance except those of leases. An id tells the place of its instance,
    /// because the driver numbers the places of a GPU.
    fn are_all_leased(&self, locked: &LockedGpu<'_>, leases: &[Lease]) -> bool {
        let named = leases.iter().filter_map(|lease| lease.slice.instance());
        let named: BTreeSet<u32> = named.map(|instance| instance.gi_id).collect();
        let standing = self.node.caps().gpu_instances(locked.gpu.minor);
        standing.is_some_and(|standing| standing.is_subset(&named))
    }
}

/// How the driver is asked for the instances on a GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum InstanceQuery {
    /// By the folders of instances in /proc; by NVML only if an instance has no lease. /proc needs no call of NVML,
    /// where one is needed for each profile and each instance.
    Ids,
    /// By NVML.
    Places,
}

pub(super) struct ChosenPlace {
    pub(super) candidate: Candidate,
    /// The lease of the kept instance at this place, which becomes the job's.
    pub(super) kept: Option<Lease>,
}

struct View {
    occupied: Vec<Occupied>,
    /// The number of places of leases; they come first.
    leased: usize,
    /// The kept instances, which can be destroyed.
    kept: Vec<(Occupied, Lease)>,
    standing: String,
    /// Descriptions of instances without a lease.
    not_ours: Vec<String>,
}
