//! The rule, for every variant of the errors of prolog and epilog.

use std::path::PathBuf;
use std::time::Duration;

use gpufrac_core::entry::{Entry, EntryError};
use gpufrac_core::fraction::Units;
use gpufrac_core::geometry::Placement;
use gpufrac_core::ids::{DeviceIndex, DeviceMinor, GpuIndex, JobId};
use gpufrac_core::layout::{Occupied, Side};
use gpufrac_core::mechanism::Mechanism;
use gpufrac_core::request::RequestError;
use gpufrac_nvml::MigMode;
use nix::errno::Errno;
use proptest::prelude::*;
use slurm_sys::client::ClientError;

use super::*;
use crate::gpu::capability_files::CapsError;
use crate::gpu::compute_mode::ModeError;
use crate::gpu::mig_mode::SwitchError;
use crate::job::plugstack::NoSpank;
use crate::job::slurmctld::SlurmError;
use crate::mps::error::MpsError;
use crate::mps::tenants::ShareError;
use crate::node::NodeError;
use crate::slice::carve::{CarveError, OtherPools, Reaction};
use crate::slice::release::ReleaseError;
use crate::slice::teardown::TeardownError;
use crate::state::leases::StoreError;
use crate::state::locks::LockError;
use crate::state::record::RecordError;

fn path() -> PathBuf {
    "/run/gpufrac/x".into()
}

fn system_call() -> impl Strategy<Value = io::Error> {
    (1..134_i32).prop_map(io::Error::from_raw_os_error)
}

fn file() -> impl Strategy<Value = FileError> {
    (system_call(), 0..6).prop_map(|(source, kind)| match kind {
        0 => FileError::Link { path: path() },
        1 => FileError::Untrusted {
            path: path(),
            owner: 1000,
            mode: 0o666,
        },
        2 => FileError::Foreign {
            path: path(),
            expected: "a file",
        },
        3 => FileError::Relative { path: path() },
        4 => FileError::NotText { path: path() },
        _ => FileError::Io {
            action: "writing",
            path: path(),
            source,
        },
    })
}

fn nvml() -> impl Strategy<Value = NvmlError> {
    (prop_oneof![1..40_u32, Just(999)], any::<bool>()).prop_map(|(code, missing)| {
        if missing {
            NvmlError::Missing {
                call: "nvmlInit_v2",
                library: path(),
            }
        } else {
            NvmlError::Call {
                call: "nvmlGpuInstanceDestroy",
                subject: "GPU 0".into(),
                code,
            }
        }
    })
}

fn store() -> impl Strategy<Value = StoreError> {
    (file(), 0..4).prop_map(|(error, kind)| match kind {
        0 => StoreError::Absent { path: path() },
        1 => StoreError::Lease {
            path: path(),
            source: LeaseError::Checksum,
        },
        2 => StoreError::WrongJob {
            path: path(),
            found: "7".into(),
        },
        _ => StoreError::File(error),
    })
}

fn lock() -> impl Strategy<Value = LockError> {
    (file(), 1..134_i32, 0..3).prop_map(|(error, code, kind)| match kind {
        0 => LockError::File(error),
        1 => LockError::Flock {
            path: path(),
            source: Errno::from_raw(code),
        },
        _ => LockError::Timeout {
            gpu_index: GpuIndex(0),
            path: path(),
            waited: Duration::from_secs(20),
            still: Duration::from_secs(20),
        },
    })
}

fn mode() -> impl Strategy<Value = ModeError> {
    prop_oneof![
        file().prop_map(ModeError::File),
        nvml().prop_map(ModeError::Nvml)
    ]
}

fn switch() -> impl Strategy<Value = SwitchError> {
    let gpu = || "GPU 0".to_owned();
    let plain = (0..7, any::<bool>()).prop_map(move |(kind, on)| match kind {
        0 => SwitchError::NoMig { gpu: gpu() },
        1 => SwitchError::NeedsReset {
            gpu: gpu(),
            on,
            mode: MigMode::Off,
        },
        2 => SwitchError::Leased {
            gpu: gpu(),
            on,
            job: "7".into(),
        },
        3 => SwitchError::Instances {
            gpu: gpu(),
            instances: "3".into(),
        },
        5 => SwitchError::Fabric {
            gpu: gpu(),
            waited: Duration::from_secs(30),
        },
        4 => SwitchError::InUse {
            gpu: gpu(),
            on,
            users: Vec::new(),
        },
        _ => SwitchError::Renumbered {
            gpu: gpu(),
            before: DeviceMinor(0),
            now: DeviceMinor(1),
        },
    });
    prop_oneof![
        2 => plain,
        1 => nvml().prop_map(SwitchError::Nvml),
        1 => store().prop_map(SwitchError::Store),
    ]
}

fn caps() -> impl Strategy<Value = CapsError> {
    let unreadable = || CapsError::Unreadable {
        path: path(),
        what: "a minor".into(),
    };
    prop_oneof![
        file().prop_map(CapsError::File),
        Just(()).prop_map(move |()| unreadable())
    ]
}

fn share() -> impl Strategy<Value = ShareError> {
    let folder = path;
    let mps = (file(), system_call(), 0..9).prop_map(move |(error, source, kind)| match kind {
        0 => MpsError::File(error),
        1 => MpsError::Run {
            program: path(),
            source,
        },
        2 => MpsError::Start {
            program: path(),
            options: "-d".into(),
            reason: String::new(),
        },
        3 => MpsError::Silent {
            folder: folder(),
            command: "lspart".into(),
        },
        4 => MpsError::Absent { folder: folder() },
        5 => MpsError::Limit {
            folder: folder(),
            what: "percentage",
            wanted: "25".into(),
            found: "50".into(),
        },
        6 => MpsError::Partition {
            folder: folder(),
            chunks: 2,
            found: String::new(),
        },
        7 => MpsError::Occupied {
            what: "it hangs".into(),
            jobs: "7".into(),
        },
        _ => MpsError::Undead {
            folder: folder(),
            pids: vec![4711],
            stuck: true,
        },
    });
    prop_oneof![
        mps.prop_map(ShareError::Mps),
        store().prop_map(ShareError::Store)
    ]
}

fn teardown() -> impl Strategy<Value = TeardownError> {
    prop_oneof![
        nvml().prop_map(TeardownError::Nvml),
        Just(()).prop_map(|()| TeardownError::Stands {
            gpu: "GPU 0".into(),
            gi_id: 3,
        }),
        Just(()).prop_map(|()| TeardownError::NoGpu {
            uuid: "GPU-1".into()
        }),
        caps().prop_map(TeardownError::Caps),
        mode().prop_map(TeardownError::Mode),
        share().prop_map(TeardownError::Share),
        file().prop_map(TeardownError::File),
        store().prop_map(TeardownError::Store),
        Just(()).prop_map(|()| TeardownError::Lease(LeaseError::Checksum)),
    ]
}

fn release() -> impl Strategy<Value = ReleaseError> {
    prop_oneof![
        store().prop_map(ReleaseError::Store),
        file().prop_map(ReleaseError::File),
        lock().prop_map(ReleaseError::Lock),
        nvml().prop_map(ReleaseError::Nvml),
        teardown().prop_map(ReleaseError::Teardown),
    ]
}

/// Variants that contain no other error.
fn plain() -> Vec<CarveError> {
    let gpu = || "GPU 0".to_owned();
    let pool = || "p".to_owned();
    let devices = || vec![DeviceIndex(5)];
    let job_id = JobId(7);
    vec![
        CarveError::Config(NodeError::NoConfig { path: path() }),
        CarveError::NoPool { node: "n1".into() },
        CarveError::NoSpank(NoSpank::Unnamed { path: path() }),
        CarveError::OtherPools(OtherPools {
            job_id: JobId(7),
            node: "n1".into(),
            pool: "p".into(),
            units: Units(25),
            sizes: vec![Units(13), Units(50)],
            pools: None,
        }),
        CarveError::Entry(EntryError::Form { text: "x".into() }),
        CarveError::Foreign(SlurmError::NotLoaded(ClientError::Call {
            call: "slurm_init".into(),
            code: 0,
            message: String::new(),
        })),
        CarveError::SeveralDevices { devices: devices() },
        CarveError::NoDevice,
        CarveError::UnknownDevice {
            devices: devices(),
            count: 2,
        },
        CarveError::ConfigChanged {
            pool: pool(),
            gpu_index: GpuIndex(0),
        },
        CarveError::Mechanism {
            asked: Mechanism::Mps,
            pool: pool(),
            offered: Mechanism::Mig,
        },
        CarveError::Rule {
            job_id,
            partition: "gpu".into(),
            rule: String::new(),
            update: String::new(),
        },
        CarveError::Login {
            job_id,
            partition: "gpu".into(),
        },
        CarveError::Held {
            holder: String::new(),
            place: Occupied {
                profile_id: 0,
                placement: Placement { start: 0, size: 1 },
            },
        },
        CarveError::Stranger { pid: 4711 },
        CarveError::Ambiguous {
            job_id,
            source: RequestError::Missing { item: "x".into() },
        },
        CarveError::Allocated {
            job_id,
            name: "units".to_owned(),
            wanted: 50,
            allocated: 1,
        },
        CarveError::Uncounted { why: String::new() },
        CarveError::NodeAndTask {
            per_node: String::new(),
            per_task: String::new(),
        },
        CarveError::NoSize {
            device: DeviceIndex(0),
            tres: String::new(),
        },
        CarveError::TooSmall {
            pool: pool(),
            units: Units(1),
        },
        CarveError::OtherGpu {
            index: GpuIndex(0),
            expected: gpu(),
            found: gpu(),
        },
        CarveError::MigOff {
            gpu: gpu(),
            mode: MigMode::Off,
        },
        CarveError::Geometry {
            gpu: gpu(),
            model: String::new(),
            pool: pool(),
            differences: Vec::new(),
        },
        CarveError::NoPlace {
            profile: String::new(),
            side: Side::Left,
            gpu_index: GpuIndex(0),
            standing: String::new(),
        },
        CarveError::NotIdle {
            gpu: "GPU 0".into(),
            users: Vec::new(),
            error: NvmlError::Missing {
                call: "nvmlInit_v2",
                library: path(),
            },
        },
        CarveError::NotOurs {
            profile: String::new(),
            side: Side::Left,
            gpu_index: GpuIndex(0),
            standing: String::new(),
        },
        CarveError::MigOn {
            gpu: gpu(),
            mechanism: Mechanism::Mps,
        },
        CarveError::NoRoom {
            units: Units(50),
            side: Side::Left,
            gpu_index: GpuIndex(0),
            taken: 50,
            capacity: 50,
        },
        CarveError::Earlier {
            gpu: gpu(),
            job_id,
            mechanism: Mechanism::Mps,
        },
        CarveError::NoProfile(3),
    ]
}

fn carve() -> impl Strategy<Value = CarveError> {
    let record = prop_oneof![
        file().prop_map(RecordError::File),
        system_call().prop_map(RecordError::BootId),
        Just(()).prop_map(|()| RecordError::Stale { path: path() }),
        Just(()).prop_map(|()| RecordError::OtherNumbers { path: path() }),
        Just(()).prop_map(|()| RecordError::Absent { path: path() }),
    ];
    let leaf = prop_oneof![
        8 => (0..plain().len()).prop_map(|index| plain().swap_remove(index)),
        1 => record.prop_map(CarveError::Record),
        1 => store().prop_map(CarveError::Store),
        1 => file().prop_map(CarveError::File),
        1 => lock().prop_map(CarveError::Lock),
        1 => nvml().prop_map(CarveError::Nvml),
        1 => nvml().prop_map(|error| CarveError::NotMade { error, before: None }),
        1 => Just(()).prop_map(|()| CarveError::Lease(LeaseError::Torn)),
        1 => caps().prop_map(CarveError::Caps),
        1 => teardown().prop_map(CarveError::Old),
        1 => release().prop_map(CarveError::Release),
        1 => mode().prop_map(CarveError::Mode),
        1 => switch().prop_map(CarveError::Switch),
        1 => share().prop_map(CarveError::Share),
    ];
    (leaf, teardown(), any::<bool>()).prop_map(|(error, cleanup, unfinished)| {
        if unfinished {
            CarveError::Unfinished {
                error: Box::new(error),
                cleanup,
            }
        } else {
            error
        }
    })
}

/// Does not compile if `plain` and `carve` lack a variant.
fn is_plain(error: &CarveError) -> bool {
    match error {
        CarveError::Record(_)
        | CarveError::Store(_)
        | CarveError::File(_)
        | CarveError::Lock(_)
        | CarveError::Nvml(_)
        | CarveError::NotMade { .. }
        | CarveError::Lease(_)
        | CarveError::Caps(_)
        | CarveError::Old(_)
        | CarveError::Release(_)
        | CarveError::Unfinished { .. }
        | CarveError::Mode(_)
        | CarveError::Switch(_)
        | CarveError::Share(_) => false,
        CarveError::Config(_)
        | CarveError::NoPool { .. }
        | CarveError::NoSpank(_)
        | CarveError::OtherPools(_)
        | CarveError::Entry(_)
        | CarveError::Foreign(_)
        | CarveError::SeveralDevices { .. }
        | CarveError::NoDevice
        | CarveError::UnknownDevice { .. }
        | CarveError::ConfigChanged { .. }
        | CarveError::Mechanism { .. }
        | CarveError::Rule { .. }
        | CarveError::Login { .. }
        | CarveError::Held { .. }
        | CarveError::Stranger { .. }
        | CarveError::Ambiguous { .. }
        | CarveError::Allocated { .. }
        | CarveError::Uncounted { .. }
        | CarveError::NodeAndTask { .. }
        | CarveError::NoSize { .. }
        | CarveError::TooSmall { .. }
        | CarveError::OtherGpu { .. }
        | CarveError::MigOff { .. }
        | CarveError::Geometry { .. }
        | CarveError::NoPlace { .. }
        | CarveError::NotIdle { .. }
        | CarveError::NotOurs { .. }
        | CarveError::MigOn { .. }
        | CarveError::NoRoom { .. }
        | CarveError::Earlier { .. }
        | CarveError::NoProfile(_) => true,
    }
}

#[test]
fn every_variant_is_tried() {
    let all = plain();
    let kinds: std::collections::HashSet<_> = all.iter().map(std::mem::discriminant).collect();
    assert!(all.iter().all(is_plain));
    assert_eq!((kinds.len(), all.len()), (31, 31));
    let drains = |error: &&CarveError| error.reaction() == Reaction::Drain;
    let drained: Vec<String> = all
        .iter()
        .filter(drains)
        .map(|e| format!("{e:?}"))
        .collect();
    assert_eq!(drained.len(), 6, "{drained:#?}");
}

#[test]
fn a_full_file_system_requeues_the_job() {
    let full = |errno: Errno| FileError::Io {
        action: "writing",
        path: path(),
        source: io::Error::from(errno),
    };
    for errno in [Errno::ENOSPC, Errno::EDQUOT, Errno::ENOMEM] {
        assert_eq!(CarveError::File(full(errno)).reaction(), Reaction::Wait);
        let store = CarveError::Store(StoreError::File(full(errno)));
        assert_eq!(store.reaction(), Reaction::Wait);
        assert!(!ReleaseError::File(full(errno)).drains());
        let teardown = TeardownError::Store(StoreError::File(full(errno)));
        assert!(!ReleaseError::Teardown(teardown).drains());
    }
    let denied = CarveError::File(full(Errno::EROFS));
    assert_eq!(denied.reaction(), Reaction::Drain);
}

/// An entry that this build cannot read is of another build, or forged: no job is lost, and no node.
#[test]
fn an_entry_of_another_build_holds_the_job_at_most() {
    for text in ["units=100", "v2:units=5", "v1:units=0:mech=mig", ""] {
        let error = text.parse::<Entry>().unwrap_err();
        assert_eq!(CarveError::Entry(error).reaction(), Reaction::Hold);
    }
}

proptest! {
    /// Promise (admins): nothing that a user can cause drains a node.
    /// With `no_epilog_drains_for_what_a_user_can_cause`, `a_full_file_system_requeues_the_job`,
    /// `no_request_of_a_user_drains_the_node`, `a_device_of_no_pool_holds_the_job_and_drains_no_node`.
    #[test]
    fn nothing_that_a_user_can_cause_drains(error in carve()) {
        prop_assert!(
            error.cause() != Cause::User || error.reaction() != Reaction::Drain,
            "{error:?}"
        );
    }

    #[test]
    fn a_job_that_goes_back_leaves_the_node(error in carve()) {
        let waits = error.reaction() == Reaction::Wait;
        let is_slurms = matches!(error, CarveError::Uncounted { .. });
        prop_assert!(!waits || error.leaves_node() != is_slurms, "{error:?}");
    }

    /// What is not counted is another's doing, which is counted there, or passes.
    #[test]
    fn a_fault_of_the_node_is_counted(error in carve()) {
        let error = match error {
            CarveError::Unfinished { error, .. } => *error,
            other => other,
        };
        let passes = matches!(
            error,
            CarveError::Uncounted { .. }
                | CarveError::NoPlace { .. }
                | CarveError::NoRoom { .. }
                | CarveError::Switch(SwitchError::Leased { .. })
        );
        let waits = error.reaction() == Reaction::Wait;
        prop_assert!(!waits || error.fault().is_some() != passes, "{error:?}");
    }

    #[test]
    fn no_epilog_drains_for_what_a_user_can_cause(error in release()) {
        prop_assert!(error.cause() != Cause::User || !error.drains(), "{error:?}");
    }
}
