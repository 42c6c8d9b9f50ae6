//! The file of a lease: TOML, then a line with a checksum.

use serde::{Deserialize, Serialize};

use super::error::{LeaseError, OLDEST, VERSION};
use super::slice::{HamiSlice, Held, MigSlice, MpsSlice, Slice};
use super::state::LeaseState;
use super::{Lease, checksum, read_name};
use crate::fraction::{Fraction, MemoryMib, Units};
use crate::ids::{DeviceIndex, DeviceMinor, GpuIndex, GroupId, JobId, UserId};
use crate::layout::Side;
use crate::mechanism::Mechanism;
use crate::policy::IdleWish;

/// The key that is read first: the version.
#[derive(Deserialize)]
struct Header {
    version: i64,
}

/// The keys of the file, in its order.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct LeaseText {
    version: u32,
    state: LeaseState,
    job_id: JobId,
    #[serde(default, skip_serializing_if = "is_default")]
    number: u32,
    restart_count: u32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    sluid: Option<String>,
    user_id: UserId,
    group_id: GroupId,
    user: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    account: Option<String>,
    partition: String,
    node: String,
    pool: String,
    mechanism: Mechanism,
    units: Units,
    fraction: Fraction,
    confirmed: bool,
    #[serde(default, skip_serializing_if = "is_default")]
    whole_device: bool,
    #[serde(default, skip_serializing_if = "is_default")]
    idle_wish: IdleWish,
    created_unix: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    created_boot_ms: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    kept_unix: Option<u64>,
    slice: SliceText,
}

/// `[slice]`, with a section for each mechanism that has a part in it.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct SliceText {
    device_index: DeviceIndex,
    side: Side,
    gpu_uuid: String,
    gpu_index: GpuIndex,
    gpu_minor: DeviceMinor,
    memory_mib: MemoryMib,
    #[serde(default, skip_serializing_if = "is_default")]
    hints: bool,
    #[serde(default, skip_serializing_if = "is_default")]
    group_limit: bool,
    /// Of mechanism mig: the whole GPU with MIG off.
    #[serde(default, skip_serializing_if = "is_default")]
    bare: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    mig: Option<MigSlice>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    mps: Option<MpsSlice>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    hami: Option<HamiSlice>,
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

impl LeaseText {
    fn of(lease: &Lease) -> LeaseText {
        LeaseText {
            version: lease.version,
            state: lease.state,
            job_id: lease.job_id,
            number: lease.number,
            restart_count: lease.restart_count,
            sluid: lease.sluid.clone(),
            user_id: lease.user_id,
            group_id: lease.group_id,
            user: lease.user.clone(),
            account: lease.account.clone(),
            partition: lease.partition.clone(),
            node: lease.node.clone(),
            pool: lease.pool.clone(),
            units: lease.units,
            fraction: lease.fraction,
            confirmed: lease.confirmed,
            whole_device: lease.whole_device,
            idle_wish: lease.idle_wish,
            created_unix: lease.created_unix,
            created_boot_ms: lease.created_boot_ms,
            kept_unix: lease.kept_unix,
            mechanism: lease.mechanism(),
            slice: SliceText::of(&lease.slice),
        }
    }

    fn lease(self) -> Result<Lease, LeaseError> {
        let (job_id, mechanism) = (self.job_id, self.mechanism);
        let slice = self.slice.slice(mechanism);
        Ok(Lease {
            // A lease is always written in the current version, even if an older one was read.
            version: VERSION,
            state: self.state,
            job_id: self.job_id,
            number: self.number,
            restart_count: self.restart_count,
            sluid: self.sluid,
            user_id: self.user_id,
            group_id: self.group_id,
            user: self.user,
            account: self.account,
            partition: self.partition,
            node: self.node,
            pool: self.pool,
            units: self.units,
            fraction: self.fraction,
            confirmed: self.confirmed,
            whole_device: self.whole_device,
            idle_wish: self.idle_wish,
            created_unix: self.created_unix,
            created_boot_ms: self.created_boot_ms,
            kept_unix: self.kept_unix,
            slice: slice.ok_or(LeaseError::Sections { job_id, mechanism })?,
        })
    }
}

impl SliceText {
    fn of(slice: &Slice) -> SliceText {
        SliceText {
            device_index: slice.device_index,
            side: slice.side,
            gpu_uuid: slice.gpu_uuid.clone(),
            gpu_index: slice.gpu_index,
            gpu_minor: slice.gpu_minor,
            memory_mib: slice.memory_mib,
            hints: slice.hints,
            group_limit: slice.group_limit,
            bare: slice.held == Held::Bare,
            mig: slice.mig().cloned(),
            mps: slice.mps().cloned(),
            hami: slice.hami().cloned(),
        }
    }

    /// None if the sections do not match `mechanism`.
    fn slice(self, mechanism: Mechanism) -> Option<Slice> {
        let held = match (mechanism, self.mig, self.mps, self.hami) {
            (Mechanism::Mig, None, None, None) if self.bare => Held::Bare,
            _ if self.bare => return None,
            (Mechanism::Mig, Some(mig), None, None) => Held::Mig(mig),
            (Mechanism::MigMps, Some(mig), Some(mps), None) => Held::MigMps { mig, mps },
            (Mechanism::Mps, None, mps, None) => Held::Mps(mps),
            (Mechanism::Timeslice, None, None, None) => Held::Timeslice,
            (Mechanism::Hami, None, None, hami) => Held::Hami(hami),
            _ => return None,
        };
        Some(Slice {
            device_index: self.device_index,
            side: self.side,
            gpu_uuid: self.gpu_uuid,
            gpu_index: self.gpu_index,
            gpu_minor: self.gpu_minor,
            memory_mib: self.memory_mib,
            hints: self.hints,
            group_limit: self.group_limit,
            held,
        })
    }
}

/// The first line of a text of this version.
fn version_line() -> String {
    format!("version = {VERSION}\n")
}

impl Lease {
    /// The text of the file. Errors: a value that TOML cannot represent (a time after the year 292 277 026 596).
    pub fn to_text(&self) -> Result<String, LeaseError> {
        let body = toml::to_string(&LeaseText::of(self)).map_err(|source| LeaseError::Write {
            job_id: self.job_id,
            source: Box::new(source),
        })?;
        Ok(checksum::seal(body))
    }

    /// Whether the text is certainly that of a lease on another GPU: complete, of this version, of the slice `name`,
    /// and without the UUID of this GPU. This check takes a tenth of the time of [`Lease::parse`].
    pub fn is_elsewhere(text: &str, name: &str, gpu_uuid: &str) -> bool {
        let (Ok(body), Some((job_id, number))) = (checksum::open(text), read_name(name)) else {
            return false;
        };
        let is_named = match number {
            0 => !body.contains("\nnumber = "),
            number => body.contains(&format!("\nnumber = {number}\n")),
        };
        body.starts_with(&version_line())
            && body.contains(&format!("\njob_id = {job_id}\n"))
            && is_named
            && !body.contains(gpu_uuid)
    }

    /// Reads the text of a file.
    /// Errors: the text is not exactly what [`Lease::to_text`] of this version or the one before wrote.
    pub fn parse(text: &str) -> Result<Lease, LeaseError> {
        let body = checksum::open(text)?;
        let wrong = |source| LeaseError::Text {
            source: Box::new(source),
        };
        if !body.starts_with(&version_line()) {
            let header: Header = toml::from_str(body).map_err(wrong)?;
            if !(i64::from(OLDEST)..=i64::from(VERSION)).contains(&header.version) {
                return Err(LeaseError::Version {
                    found: header.version,
                });
            }
        }
        let lease = toml::from_str::<LeaseText>(body).map_err(wrong)?.lease()?;
        let needs_device = matches!(lease.state, LeaseState::Active | LeaseState::Kept);
        if needs_device && lease.slice.cuda_device().is_none() {
            return Err(LeaseError::NoInstance {
                job_id: lease.job_id,
            });
        }
        Ok(lease)
    }
}
