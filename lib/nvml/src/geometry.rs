//! The MIG profiles of a GPU.

use std::ptr::null_mut;

use gpufrac_core::fraction::MemoryMib;
use gpufrac_core::geometry::{Geometry, Placement, Profile};

use crate::error::codes;
use crate::{Gpu, NvmlError, call, ffi};

/// Profile numbers in NVML are below this one. A driver that is older than a profile returns INVALID_ARGUMENT for it.
const GPU_PROFILE_COUNT: u32 = 0x12;
/// The version of `nvmlGpuInstanceProfileInfo_v2_t`, in the upper byte of its first field (nvml.h).
const VERSION_2: u32 = 2 << 24;

impl Gpu<'_> {
    /// The profiles of this GPU. The largest placement and the most compute slices are the size of the GPU.
    pub fn geometry(&self) -> Result<Geometry, NvmlError> {
        let mut profiles = Vec::new();
        for slice_enum in 0..GPU_PROFILE_COUNT {
            if let Some(profile) = self.profile(slice_enum)? {
                profiles.push(profile);
            }
        }
        let memory_slices = profiles
            .iter()
            .flat_map(|profile| &profile.placements)
            .map(|placement| placement.start.saturating_add(placement.size))
            .max();
        let compute_slices = profiles.iter().map(|profile| profile.compute_slices).max();
        Ok(Geometry {
            model: self.name(),
            memory_slices: memory_slices.unwrap_or(0),
            compute_slices: compute_slices.unwrap_or(0),
            profiles,
        })
    }

    /// One profile by NVML's enumeration; None if the GPU does not have it.
    fn profile(&self, slice_enum: u32) -> Result<Option<Profile>, NvmlError> {
        let mut info = ffi::nvmlGpuInstanceProfileInfo_v2_t {
            version: size_of::<ffi::nvmlGpuInstanceProfileInfo_v2_t>() as u32 | VERSION_2,
            id: 0,
            isP2pSupported: 0,
            sliceCount: 0,
            instanceCount: 0,
            multiprocessorCount: 0,
            copyEngineCount: 0,
            decoderCount: 0,
            encoderCount: 0,
            jpegCount: 0,
            ofaCount: 0,
            memorySizeMB: 0,
            name: [0; 96],
        };
        match call!(
            self,
            nvmlDeviceGetGpuInstanceProfileInfoV(self.handle()?, slice_enum, &mut info)
        ) {
            Ok(()) => {}
            Err(error) if error.has_code(&[codes::NOT_SUPPORTED, codes::INVALID_ARGUMENT]) => {
                return Ok(None);
            }
            Err(error) => return Err(error),
        }
        let name: String = info
            .name
            .iter()
            .take_while(|&&byte| byte != 0)
            .map(|&byte| char::from(byte as u8))
            .collect();
        Ok(Some(Profile {
            id: info.id,
            slice_enum,
            name: name.trim_start_matches("MIG ").to_owned(),
            compute_slices: narrow(info.sliceCount),
            multiprocessors: info.multiprocessorCount,
            memory: MemoryMib(info.memorySizeMB),
            max_instances: info.instanceCount,
            placements: self.placements(info.id)?,
        }))
    }

    fn placements(&self, profile_id: u32) -> Result<Vec<Placement>, NvmlError> {
        let mut count = 0;
        call!(
            self,
            nvmlDeviceGetGpuInstancePossiblePlacements_v2(
                self.handle()?,
                profile_id,
                null_mut(),
                &mut count
            )
        )?;
        let mut list = vec![ffi::nvmlGpuInstancePlacement_t { start: 0, size: 0 }; count as usize];
        call!(
            self,
            nvmlDeviceGetGpuInstancePossiblePlacements_v2(
                self.handle()?,
                profile_id,
                list.as_mut_ptr(),
                &mut count
            )
        )?;
        list.truncate(count as usize);
        Ok(list.iter().map(placement_of).collect())
    }
}

pub(crate) fn placement_of(placement: &ffi::nvmlGpuInstancePlacement_t) -> Placement {
    Placement {
        start: narrow(placement.start),
        size: narrow(placement.size),
    }
}

/// A number of slices is small. A number that does not fit comes from a faulty driver and must not look small.
fn narrow(number: u32) -> u8 {
    u8::try_from(number).unwrap_or(u8::MAX)
}
