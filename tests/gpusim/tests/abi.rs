//! The library through its C functions, called as `nvml-wrapper` and its raw bindings call them.
#![allow(clippy::unwrap_used, reason = "a test may panic")]
#![allow(unsafe_code, reason = "NVML's MIG functions have no safe wrapper")]

mod common;

use std::hint::black_box;
use std::ptr::null_mut;
use std::time::{Duration, Instant};

use common::SimNode;
use nvidia_ml::code::Code;
use nvml_wrapper::Nvml;
use nvml_wrapper::enum_wrappers::device::Clock;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper_sys::bindings as sys;

/// Calls a function of the loaded library; returns its code.
macro_rules! raw {
    ($nvml:expr, $name:ident($($argument:expr),*)) => {{
        let function = $nvml.lib().$name.as_ref().unwrap();
        // SAFETY: handles come from this library, pointers are to live locals.
        match unsafe { function($($argument),*) } {
            0 => Ok(()),
            code => Err(Code(code)),
        }
    }};
}

fn handle(nvml: &Nvml, index: u32) -> sys::nvmlDevice_t {
    let mut device = null_mut();
    raw!(nvml, nvmlDeviceGetHandleByIndex_v2(index, &mut device)).unwrap();
    device
}

fn create(
    nvml: &Nvml,
    device: sys::nvmlDevice_t,
    profile: u32,
    start: u32,
    size: u32,
) -> Result<sys::nvmlGpuInstance_t, Code> {
    let placement = sys::nvmlGpuInstancePlacement_t { start, size };
    let mut gi = null_mut();
    raw!(
        nvml,
        nvmlDeviceCreateGpuInstanceWithPlacement(device, profile, &placement, &mut gi)
    )?;
    Ok(gi)
}

fn info(nvml: &Nvml, gi: sys::nvmlGpuInstance_t) -> Result<sys::nvmlGpuInstanceInfo_t, Code> {
    let mut info = sys::nvmlGpuInstanceInfo_t {
        device: null_mut(),
        id: 0,
        profileId: 0,
        placement: sys::nvmlGpuInstancePlacement_t { start: 0, size: 0 },
    };
    raw!(nvml, nvmlGpuInstanceGetInfo(gi, &mut info))?;
    Ok(info)
}

fn instances(nvml: &Nvml, device: sys::nvmlDevice_t, profile: u32) -> Vec<(u32, u32, u32)> {
    let mut all = [null_mut(); 8];
    let mut count = 0;
    raw!(
        nvml,
        nvmlDeviceGetGpuInstances(device, profile, all.as_mut_ptr(), &mut count)
    )
    .unwrap();
    let told = all[..count as usize]
        .iter()
        .map(|gi| info(nvml, *gi).unwrap());
    told.map(|info| (info.profileId, info.placement.start, info.placement.size))
        .collect()
}

/// The profiles with their placements, from NVML.
fn placements(nvml: &Nvml, device: sys::nvmlDevice_t) -> Vec<(u32, u32, u32)> {
    let mut all = Vec::new();
    for kind in 0..0x12 {
        let mut profile = sys::nvmlGpuInstanceProfileInfo_t {
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
        };
        match raw!(
            nvml,
            nvmlDeviceGetGpuInstanceProfileInfo(device, kind, &mut profile)
        ) {
            Err(Code::NOT_SUPPORTED) => continue,
            other => other.unwrap(),
        }
        let mut count = 0;
        raw!(
            nvml,
            nvmlDeviceGetGpuInstancePossiblePlacements_v2(
                device,
                profile.id,
                null_mut(),
                &mut count
            )
        )
        .unwrap();
        let mut found = vec![sys::nvmlGpuInstancePlacement_t { start: 0, size: 0 }; count as usize];
        raw!(
            nvml,
            nvmlDeviceGetGpuInstancePossiblePlacements_v2(
                device,
                profile.id,
                found.as_mut_ptr(),
                &mut count
            )
        )
        .unwrap();
        all.extend(
            found
                .iter()
                .map(|place| (profile.id, place.start, place.size)),
        );
    }
    all
}

/// Makes every possible configuration of a GPU, one instance at a time, and reads each back.
fn every_configuration(model: &str) -> usize {
    let node = SimNode::new(&[model], &["--mig"]);
    let nvml = node.nvml();
    let device = handle(&nvml, 0);
    let all = placements(&nvml, device);
    let mut profiles: Vec<u32> = all.iter().map(|place| place.0).collect();
    profiles.dedup();
    let mut states = 0;
    // (next placement to try, instances so far)
    fn walk(
        nvml: &Nvml,
        device: sys::nvmlDevice_t,
        all: &[(u32, u32, u32)],
        profiles: &[u32],
        set: &mut Vec<(u32, u32, u32)>,
        states: &mut usize,
    ) {
        *states += 1;
        let mut told: Vec<_> = profiles
            .iter()
            .flat_map(|profile| instances(nvml, device, *profile))
            .collect();
        let mut wanted = set.clone();
        told.sort_unstable();
        wanted.sort_unstable();
        assert_eq!(told, wanted);
        for (position, &(profile, start, size)) in all.iter().enumerate() {
            match create(nvml, device, profile, start, size) {
                Ok(gi) => {
                    set.push((profile, start, size));
                    walk(nvml, device, &all[position + 1..], profiles, set, states);
                    set.pop();
                    raw!(nvml, nvmlGpuInstanceDestroy(gi)).unwrap();
                    assert_eq!(info(nvml, gi).map(|_| ()), Err(Code::INVALID_ARGUMENT));
                }
                Err(code) => assert_eq!(code, Code::INSUFFICIENT_RESOURCES),
            }
        }
    }
    walk(&nvml, device, &all, &profiles, &mut Vec::new(), &mut states);
    println!("{model}: {states} configurations");
    states
}

#[test]
fn every_configuration_of_an_a30_is_set_and_read_back() {
    // 4 quarters, one of which can have the media engines, and 2 halves, likewise.
    assert!(every_configuration("A30-24") > 50);
}

#[test]
fn every_configuration_of_an_a100_is_set_and_read_back() {
    assert!(every_configuration("A100-40") > 500);
}

#[test]
fn a_mig_device_from_creation_to_destruction() {
    let node = SimNode::new(&["H100-80"], &["--mig"]);
    let nvml = node.nvml();
    let device = handle(&nvml, 0);
    let gpu = nvml.device_by_index(0).unwrap();
    assert_eq!(gpu.mig_device_count().unwrap(), 7);
    assert!(matches!(
        gpu.mig_device_by_index(0),
        Err(NvmlError::NotFound)
    ));

    let gi = create(&nvml, device, 14, 2, 2).unwrap();
    let of_gi = info(&nvml, gi).unwrap();
    assert_eq!((of_gi.id, of_gi.profileId), (4, 14));
    assert_eq!(
        create(&nvml, device, 15, 2, 2),
        Err(Code::INSUFFICIENT_RESOURCES)
    );
    // Without a compute instance it is not visible.
    assert!(matches!(
        gpu.mig_device_by_index(0),
        Err(NvmlError::NotFound)
    ));

    let mut ci = null_mut();
    raw!(nvml, nvmlGpuInstanceCreateComputeInstance(gi, 1, &mut ci)).unwrap();
    assert_eq!(raw!(nvml, nvmlGpuInstanceDestroy(gi)), Err(Code::IN_USE));
    let mut of_ci = sys::nvmlComputeInstanceInfo_t {
        device: null_mut(),
        gpuInstance: null_mut(),
        id: 9,
        profileId: 0,
        placement: sys::nvmlComputeInstancePlacement_t { start: 9, size: 0 },
    };
    raw!(nvml, nvmlComputeInstanceGetInfo_v2(ci, &mut of_ci)).unwrap();
    assert_eq!((of_ci.id, of_ci.profileId, of_ci.placement.size), (0, 1, 2));
    let mig = gpu.mig_device_by_index(0).unwrap();
    // SAFETY: the handle is compared.
    let mig_handle = unsafe { mig.handle() };
    assert_eq!(of_ci.device, mig_handle, "the MIG device, not the GPU");
    let uuid = mig.uuid().unwrap();
    assert!(uuid.starts_with("MIG-"));
    let by_ids = format!("MIG-{}/4/0", gpu.uuid().unwrap());
    assert_eq!(nvml.device_by_uuid(by_ids).unwrap().uuid().unwrap(), uuid);
    assert_eq!(mig.name().unwrap(), "NVIDIA H100 80GB HBM3 MIG 2g.20gb");
    assert!(mig.mig_is_mig_device_handle().unwrap() && !gpu.mig_is_mig_device_handle().unwrap());
    assert_eq!(
        mig.mig_parent_device().unwrap().uuid().unwrap(),
        gpu.uuid().unwrap()
    );
    let attributes = mig.attributes().unwrap();
    assert_eq!(
        (attributes.multiprocessor_count, attributes.memory_size_mb),
        (32, 20096)
    );
    assert_eq!(mig.memory_info().unwrap().total, 20096 << 20);
    assert!(matches!(
        mig.utilization_rates(),
        Err(NvmlError::NotSupported)
    ));
    assert!(matches!(
        gpu.utilization_rates(),
        Err(NvmlError::NotSupported)
    ));

    raw!(nvml, nvmlComputeInstanceDestroy(ci)).unwrap();
    assert_eq!(
        raw!(nvml, nvmlComputeInstanceDestroy(ci)),
        Err(Code::INVALID_ARGUMENT)
    );
    raw!(nvml, nvmlGpuInstanceDestroy(gi)).unwrap();
    assert!(matches!(mig.uuid(), Err(NvmlError::InvalidArg)));
    assert!(matches!(
        nvml.device_by_uuid(uuid),
        Err(NvmlError::NotFound)
    ));
}

#[test]
fn one_process_sees_what_another_does() {
    let node = SimNode::new(&["A30-24"], &["--mig"]);
    let nvml = node.nvml();
    let gpu = nvml.device_by_index(0).unwrap();
    for _ in 0..50 {
        let made = node.ok(&["create", "0", "2g.12gb"]);
        let uuid = made.split_whitespace().nth(1).unwrap();
        assert_eq!(gpu.mig_device_by_index(0).unwrap().uuid().unwrap(), uuid);
        node.ok(&["destroy", uuid]);
        assert!(matches!(
            gpu.mig_device_by_index(0),
            Err(NvmlError::NotFound)
        ));
    }
}

#[test]
fn whole_gpus_are_described() {
    let node = SimNode::new(
        &["T4-16", "L40S-48", "B200-180"],
        &["--driver", "580.65.06"],
    );
    let nvml = node.nvml();
    assert_eq!(nvml.device_count().unwrap(), 3);
    assert_eq!(nvml.sys_driver_version().unwrap(), "580.65.06");
    assert_eq!(nvml.sys_cuda_driver_version().unwrap(), 13000);
    let names: Vec<_> = (0..3)
        .map(|n| nvml.device_by_index(n).unwrap().name().unwrap())
        .collect();
    assert_eq!(names, ["Tesla T4", "NVIDIA L40S", "NVIDIA B200"]);
    let gpu = nvml.device_by_index(1).unwrap();
    assert!(matches!(gpu.mig_mode(), Err(NvmlError::NotSupported)));
    assert_eq!(gpu.index().unwrap(), 1);
    assert_eq!(gpu.minor_number().unwrap(), 1);
    assert_eq!(gpu.memory_info().unwrap().total, 46068 << 20);
    assert_eq!(gpu.max_clock_info(Clock::SM).unwrap(), 2520);
    assert_eq!(gpu.utilization_rates().unwrap().gpu, 0);
    let pci = gpu.pci_info().unwrap();
    let same = nvml.device_by_pci_bus_id(pci.bus_id).unwrap();
    assert_eq!(same.uuid().unwrap(), gpu.uuid().unwrap());
    assert!(matches!(
        nvml.device_by_index(3),
        Err(NvmlError::InvalidArg)
    ));
}

#[test]
fn the_compute_mode_is_everyones_until_the_driver_is_loaded_again() {
    use nvml_wrapper::enum_wrappers::device::ComputeMode;
    let node = SimNode::new(&["L40S-48", "A30-24:mig", "H100-80"], &[]);
    let nvml = node.nvml();
    let mut whole = nvml.device_by_index(0).unwrap();
    let set = |index, mode| raw!(nvml, nvmlDeviceSetComputeMode(handle(&nvml, index), mode));
    assert_eq!(whole.compute_mode().unwrap(), ComputeMode::Default);
    for reload in [&["reset", "0"][..], &["reboot"]] {
        whole
            .set_compute_mode(ComputeMode::ExclusiveProcess)
            .unwrap();
        assert_eq!(whole.compute_mode().unwrap(), ComputeMode::ExclusiveProcess);
        let shown = node.ok(&["show"]);
        assert_eq!(
            shown
                .matches("MIG off, compute mode Exclusive_Process\n")
                .count(),
            1
        );
        node.ok(reload);
        assert_eq!(whole.compute_mode().unwrap(), ComputeMode::Default);
        assert!(!node.ok(&["show"]).contains("compute mode"));
    }
    assert_eq!(set(0, 1), Err(Code::INVALID_ARGUMENT), "exclusive thread");
    assert_eq!(set(0, 4), Err(Code::INVALID_ARGUMENT));
    assert_eq!(set(1, 3), Err(Code::NOT_SUPPORTED), "in MIG mode");
    assert_eq!(set(1, 0), Err(Code::NOT_SUPPORTED), "in MIG mode");
    assert_eq!(set(2, 2), Ok(()));
    node.ok(&["calls", "--start"]);
    node.ok(&[
        "fault",
        "--call",
        "nvmlDeviceSetComputeMode",
        "--nth",
        "2",
        "--code",
        "GPU_IS_LOST",
    ]);
    assert_eq!(set(0, 3), Ok(()));
    assert_eq!(set(0, 0), Err(Code::GPU_IS_LOST));
    assert_eq!(set(0, 3), Ok(()));
    assert!(node.ok(&["calls"]).contains("3 nvmlDeviceSetComputeMode\n"));
}

#[test]
fn some_gpus_of_a_node_are_in_mig_mode() {
    let node = SimNode::new(
        &["H100-80:mig", "L40S-48", "T4-16", "A30-24:2:mig", "A30-24"],
        &[],
    );
    let nvml = node.nvml();
    let modes: Vec<_> = (0..6)
        .map(|index| nvml.device_by_index(index).unwrap().mig_mode())
        .map(|mode| mode.ok().map(|mode| (mode.current, mode.pending)))
        .collect();
    let (on, off) = (Some((1, 1)), Some((0, 0)));
    assert_eq!(modes, [on, None, None, on, on, off]);
    for capability in [((9, 0), 0), ((8, 9), 1), ((7, 5), 2)] {
        let gpu = nvml.device_by_index(capability.1).unwrap();
        let found = gpu.cuda_compute_capability().unwrap();
        assert_eq!((found.major, found.minor), capability.0);
    }
    for wrong in ["T4:mig", "T4:0", "T4:1:x", "T4:mig:1"] {
        let output = node.gpusim(&["init", "--gpu", wrong]).output().unwrap();
        assert!(!output.status.success(), "{wrong}");
    }
}

#[test]
fn handles_mean_nothing_in_another_node() {
    let (one, two) = (SimNode::new(&["T4-16"], &[]), SimNode::new(&["T4-16"], &[]));
    let (first, second) = (one.nvml(), two.nvml());
    let foreign = handle(&first, 0);
    let mut minor = 0;
    assert_eq!(
        raw!(second, nvmlDeviceGetMinorNumber(foreign, &mut minor)),
        Err(Code::INVALID_ARGUMENT)
    );
}

fn time<T>(count: u32, what: impl Fn() -> T) -> Duration {
    let begun = Instant::now();
    for _ in 0..count {
        black_box(what());
    }
    begun.elapsed()
}

#[test]
fn calls_are_cheap() {
    let node = SimNode::new(&["H100-80:8"], &["--mig"]);
    let library = node.library();
    let nvml = node.nvml();
    let gpu = nvml.device_by_index(7).unwrap();
    // Besides NVML's memory, as much as a file needs at the same time.
    let state = node.root().join("state/node.json");
    let (mut start, mut call, mut file) = (Duration::ZERO, Duration::ZERO, Duration::ZERO);
    for _ in 0..100 {
        start += time(1, || {
            Nvml::builder()
                .lib_path(library.as_os_str())
                .init()
                .unwrap()
        });
        call += time(100, || gpu.mig_mode().unwrap());
        file += time(100, || std::fs::read(&state).unwrap());
    }
    let (start, call, file) = (start / 100, call / 10_000, file / 10_000);
    println!("init and shutdown {start:?}, a read {call:?}, a file {file:?}");
    assert!(start < 2000 * file && call < 40 * file);
}
