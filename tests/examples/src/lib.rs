//! Examples for unit tests of several crates.
#![forbid(unsafe_code)]

pub mod evidence;
mod nodes;

pub use nodes::{CONFIG, NOW, nodes, stuck};

use gpufrac_core::fraction::{Fraction, MemoryMib, Units};
use gpufrac_core::geometry::Placement;
use gpufrac_core::ids::{DeviceIndex, DeviceMinor, GpuIndex, GroupId, JobId, UserId};
use gpufrac_core::layout::Side;
use gpufrac_core::lease::{Held, Instance, Lease, LeaseState, MigSlice, Slice, VERSION};
use gpufrac_core::policy::IdleWish;

/// An active quarter of GPU 0.
pub fn lease(job_id: u32) -> Lease {
    Lease {
        version: VERSION,
        state: LeaseState::Active,
        job_id: JobId(job_id),
        number: 0,
        restart_count: 0,
        sluid: None,
        user_id: UserId(1000),
        group_id: GroupId(1000),
        user: "ada".into(),
        account: Some("physics".into()),
        partition: "gpu".into(),
        node: "n1".into(),
        pool: "h100".into(),
        units: Units(25),
        fraction: Fraction::new(1, 4).expect("a quarter is a fraction"),
        confirmed: true,
        whole_device: false,
        idle_wish: IdleWish::Default,
        created_unix: 1_000,
        created_boot_ms: Some(400_000),
        kept_unix: None,
        slice: Slice {
            device_index: DeviceIndex(0),
            side: Side::Left,
            gpu_uuid: "GPU-0".into(),
            gpu_index: GpuIndex(0),
            gpu_minor: DeviceMinor(0),
            memory_mib: MemoryMib(20096),
            hints: false,
            group_limit: false,
            held: Held::Mig(MigSlice {
                profile_id: 14,
                profile_name: "2g.20gb".into(),
                placement: Placement { start: 2, size: 2 },
                instance: Some(Instance {
                    gi_id: 3,
                    ci_id: 0,
                    mig_uuid: "MIG-3".into(),
                    gi_cap_minor: 30,
                    ci_cap_minor: 31,
                }),
            }),
        },
    }
}
