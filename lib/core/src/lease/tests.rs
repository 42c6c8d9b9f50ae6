//! Reading, damage and the state machine of leases.

use proptest::prelude::*;

use super::*;
use crate::fraction::MemoryMib;
use crate::geometry::Placement;
use crate::ids::{DeviceIndex, DeviceMinor, GpuIndex, GroupId, JobId, UserId};
use crate::layout::Side;

pub(super) fn lease() -> Lease {
    Lease {
        version: VERSION,
        state: LeaseState::Carving,
        job_id: JobId(4711),
        number: 0,
        restart_count: 0,
        sluid: None,
        user_id: UserId(1000),
        group_id: GroupId(100),
        user: "ada".to_owned(),
        account: Some("physics".to_owned()),
        partition: "gpu".to_owned(),
        node: "gn01".to_owned(),
        pool: "h100".to_owned(),
        units: Units(25),
        fraction: Fraction::parse("1/4").unwrap(),
        confirmed: true,
        whole_device: false,
        idle_wish: IdleWish::Default,
        created_unix: 1_795_000_000,
        created_boot_ms: Some(86_400_250),
        kept_unix: None,
        slice: Slice {
            device_index: DeviceIndex(3),
            side: Side::Right,
            gpu_uuid: "GPU-5d5ba0d6-d33d-2b2c-524d-9e3d8d2b8a77".to_owned(),
            gpu_index: GpuIndex(1),
            gpu_minor: DeviceMinor(1),
            memory_mib: MemoryMib(20096),
            hints: false,
            group_limit: false,
            held: Held::Mig(mig(None)),
        },
    }
}

#[test]
fn a_lease_is_named_by_job_and_number() {
    let first = lease();
    let second = Lease {
        number: 1,
        ..lease()
    };
    assert_eq!(
        (first.name(), second.name()),
        ("4711".into(), "4711.1".into())
    );
    assert!(!first.is_same(&second) && second.is_same(&second));
    for lease in [&first, &second] {
        assert_eq!(read_name(&lease.name()), Some((JobId(4711), lease.number)));
        let text = lease.to_text().unwrap();
        assert_eq!(&Lease::parse(&text).unwrap(), lease);
        assert_eq!(text.contains("number"), lease.number > 0);
    }
}

proptest! {
    /// Each name has one spelling, so that two files are never the same lease.
    #[test]
    fn only_names_of_leases_are_read(text in "[.0-9+]{0,5}|[0-9]{1,11}\\.[0-9]{1,11}") {
        if let Some((job_id, number)) = read_name(&text) {
            let lease = Lease { job_id, number, ..lease() };
            prop_assert_eq!(lease.name(), text);
        }
    }
}

pub(super) fn mig(instance: Option<Instance>) -> MigSlice {
    MigSlice {
        profile_id: 14,
        profile_name: "2g.20gb".to_owned(),
        placement: Placement { start: 4, size: 2 },
        instance,
    }
}

pub(super) fn mps(private: bool, sm_partition: Option<&str>) -> MpsSlice {
    MpsSlice {
        folder: "/run/gpufrac/mps/gpu1".to_owned(),
        private,
        thread_percentage: 50,
        burst_percentage: None,
        memory_limit_mib: MemoryMib(10048),
        sm_partition: sm_partition.map(str::to_owned),
    }
}

fn hami() -> HamiSlice {
    HamiSlice {
        library: "/opt/hami/libvgpu.so".to_owned(),
        cache: "/run/gpufrac/hami/4711".to_owned(),
        sm_limit: 25,
        burst: false,
    }
}

pub(super) fn instance() -> Instance {
    Instance {
        gi_id: 3,
        ci_id: 0,
        mig_uuid: "MIG-c6d4f1ef-42e4-5de3-91c7-45d71c87eb3f".to_owned(),
        gi_cap_minor: 165,
        ci_cap_minor: 166,
    }
}

#[test]
fn only_forward() {
    use LeaseState::*;
    let allowed = [
        (Carving, Active),
        (Carving, Releasing),
        (Active, Releasing),
        (Releasing, Kept),
        (Kept, Releasing),
    ];
    for from in [Carving, Active, Releasing, Kept] {
        for to in [Carving, Active, Releasing, Kept] {
            let mut lease = lease();
            lease.slice.held = Held::Mig(mig(Some(instance())));
            lease.state = from;
            let moved = lease.advance(to);
            assert_eq!(moved.is_ok(), allowed.contains(&(from, to)), "{from} {to}");
            assert_eq!(lease.state, if moved.is_ok() { to } else { from });
        }
    }
}

#[test]
fn only_an_instance_that_was_the_jobs_alone_is_kept() {
    let mut kept = lease();
    kept.slice.held = Held::Mig(mig(Some(instance())));
    // A lease is not kept while its job may run.
    kept.state = LeaseState::Active;
    assert!(matches!(kept.keep(7), Err(LeaseError::Transition { .. })));
    kept.state = LeaseState::Releasing;
    kept.keep(7).unwrap();
    assert_eq!((kept.state, kept.kept_unix), (LeaseState::Kept, Some(7)));
    let text = kept.to_text().unwrap();
    assert!(text.contains("state = \"kept\"") && text.contains("kept_unix = 7"));
    assert_eq!(Lease::parse(&text).unwrap(), kept);
    for held in [
        Held::Mig(mig(None)),
        Held::MigMps {
            mig: mig(Some(instance())),
            mps: mps(false, None),
        },
        Held::Timeslice,
    ] {
        let mut other = lease();
        other.state = LeaseState::Releasing;
        other.slice.held = held;
        assert!(matches!(other.keep(7), Err(LeaseError::NoInstance { .. })));
        assert_eq!(
            (other.state, other.kept_unix),
            (LeaseState::Releasing, None)
        );
    }
}

#[test]
fn active_needs_an_instance() {
    let mut lease = lease();
    assert!(matches!(
        lease.advance(LeaseState::Active),
        Err(LeaseError::NoInstance {
            job_id: JobId(4711)
        })
    ));
    assert_eq!(lease.state, LeaseState::Carving);
    lease.state = LeaseState::Active;
    let text = lease.to_text().unwrap();
    assert!(matches!(
        Lease::parse(&text),
        Err(LeaseError::NoInstance { .. })
    ));
}

/// Every kind of slice, its `kind`, and the sections of its text.
fn ways() -> Vec<(Slice, &'static str, &'static [&'static str])> {
    let with = |held| Slice {
        held,
        ..lease().slice
    };
    let hints = Slice {
        hints: true,
        ..with(Held::Timeslice)
    };
    let mig_mps = Held::MigMps {
        mig: mig(Some(instance())),
        mps: mps(false, None),
    };
    let partition = mps(false, Some("GPU-5d5b/3"));
    vec![
        (
            with(Held::Mig(mig(Some(instance())))),
            "2g.20gb",
            &["[slice.mig]"],
        ),
        (
            with(mig_mps),
            "2g.20gb+mps",
            &["[slice.mig]", "[slice.mps]"],
        ),
        (
            with(Held::Mps(Some(mps(true, None)))),
            "mps",
            &["[slice.mps]"],
        ),
        (with(Held::Mps(Some(partition))), "mps", &["[slice.mps]"]),
        (with(Held::Mps(None)), "mps", &[]),
        (with(Held::Hami(None)), "hami", &[]),
        (with(Held::Timeslice), "timeslice", &[]),
        (hints, "timeslice", &["hints = true"]),
        (with(Held::Hami(Some(hami()))), "hami", &["[slice.hami]"]),
    ]
}

#[test]
fn every_mechanism_has_its_sections() {
    for (slice, kind, sections) in ways() {
        let mut lease = Lease { slice, ..lease() };
        let mechanism = lease.mechanism();
        assert_eq!(lease.kind(), kind);
        let device = if mechanism.uses_mig() {
            instance().mig_uuid
        } else {
            lease.slice.gpu_uuid.clone()
        };
        assert_eq!(lease.slice.cuda_device(), Some(device.as_str()));
        assert_eq!(lease.slice.instance().is_some(), mechanism.uses_mig());
        lease.advance(LeaseState::Active).unwrap();
        let text = lease.to_text().unwrap();
        assert_eq!(Lease::parse(&text).unwrap(), lease);
        let word = format!("mechanism = \"{mechanism}\"");
        assert!(text.lines().any(|l| l == word), "{text}");
        for line in ["[slice.mig]", "[slice.mps]", "[slice.hami]", "hints = true"] {
            let there = text.lines().any(|l| l == line);
            assert_eq!(there, sections.contains(&line), "{line}");
        }
    }
    let mps = mps(false, None);
    assert_eq!(mps.pipe(), "/run/gpufrac/mps/gpu1/pipe");
    assert_eq!(mps.log(), "/run/gpufrac/mps/gpu1/log");
}

#[test]
fn a_wish_is_written_only_where_there_is_one() {
    let plain = lease().to_text().unwrap();
    assert!(!plain.contains("idle_wish"), "{plain}");
    for wish in [IdleWish::Long, IdleWish::Off] {
        let lease = Lease {
            idle_wish: wish,
            ..lease()
        };
        let text = lease.to_text().unwrap();
        let line = format!("idle_wish = \"{wish}\"");
        assert!(text.lines().any(|l| l == line), "{text}");
        assert_eq!(Lease::parse(&text).unwrap(), lease);
    }
}

#[test]
fn other_versions_and_unknown_fields_are_refused() {
    let text = lease().to_text().unwrap();
    let body = checksum::open(&text).unwrap();
    let other = checksum::seal(body.replace("version = 4", "version = 5\nnew_field = true"));
    assert!(matches!(
        Lease::parse(&other),
        Err(LeaseError::Version { found: 5 })
    ));
    let unknown = checksum::seal(format!("note = \"hand-made\"\n{body}"));
    let error = Lease::parse(&unknown).unwrap_err().to_string();
    assert!(error.contains("unknown field `note`"), "{error}");
    let no_version = checksum::seal(body.replace("version = 4\n", ""));
    assert!(matches!(
        Lease::parse(&no_version),
        Err(LeaseError::Text { .. })
    ));
}

#[test]
fn a_text_is_what_an_admin_can_read() {
    let mut lease = lease();
    lease.slice.held = Held::Mig(mig(Some(instance())));
    lease.advance(LeaseState::Active).unwrap();
    let text = lease.to_text().unwrap();
    for line in [
        "version = 4",
        "state = \"active\"",
        "job_id = 4711",
        "mechanism = \"mig\"",
        "fraction = \"1/4\"",
        "[slice]",
        "side = \"right\"",
        "[slice.mig]",
        "profile_name = \"2g.20gb\"",
        "[slice.mig.instance]",
        "mig_uuid = \"MIG-c6d4f1ef-42e4-5de3-91c7-45d71c87eb3f\"",
    ] {
        assert!(text.lines().any(|l| l == line), "{line} in\n{text}");
    }
    assert_eq!(Lease::parse(&text).unwrap(), lease);
}

/// Texts of the version before this one: its sections were separate fields.
#[test]
fn leases_of_the_previous_version_are_read_and_written_unchanged() {
    let head = r#"version = 4
state = "active"
job_id = 4711
restart_count = 0
user_id = 1000
group_id = 100
user = "ada"
account = "physics"
partition = "gpu"
node = "gn01"
pool = "h100"
mechanism = "MECHANISM"
units = 25
fraction = "1/4"
confirmed = true
created_unix = 1795000000

[slice]
device_index = 3
side = "right"
gpu_uuid = "GPU-5d5ba0d6-d33d-2b2c-524d-9e3d8d2b8a77"
gpu_index = 1
gpu_minor = 1
memory_mib = 20096
"#;
    let mig = r#"
[slice.mig]
profile_id = 14
profile_name = "2g.20gb"

[slice.mig.placement]
start = 4
size = 2

[slice.mig.instance]
gi_id = 3
ci_id = 0
mig_uuid = "MIG-c6d4f1ef-42e4-5de3-91c7-45d71c87eb3f"
gi_cap_minor = 165
ci_cap_minor = 166
"#;
    let mps = r#"
[slice.mps]
folder = "/run/gpufrac/mps/gpu1"
private = false
thread_percentage = 50
memory_limit_mib = 10048
"#;
    let hami = r#"
[slice.hami]
library = "/opt/hami/libvgpu.so"
cache = "/run/gpufrac/hami/4711"
sm_limit = 25
"#;
    let all = [("mig", mig), ("mps", mps), ("hami", hami)];
    let mut refused = 0;
    for mechanism in Mechanism::ALL {
        let right: &[&[&str]] = match mechanism {
            Mechanism::Mig => &[&["mig"]],
            Mechanism::MigMps => &[&["mig", "mps"]],
            // Without its section, the lease is that of a whole GPU.
            Mechanism::Mps => &[&["mps"], &[]],
            Mechanism::Timeslice => &[&[]],
            Mechanism::Hami => &[&["hami"], &[]],
        };
        for choice in 0..8_usize {
            let chosen = (0..3).filter(|bit| choice & (1 << bit) != 0);
            let sections: Vec<_> = chosen.map(|bit| all[bit]).collect();
            let names: Vec<&str> = sections.iter().map(|(name, _)| *name).collect();
            let mut body = head.replace("MECHANISM", mechanism.name());
            body.extend(sections.iter().map(|(_, text)| *text));
            let text = checksum::seal(body);
            match Lease::parse(&text) {
                Ok(lease) => {
                    assert!(right.contains(&names.as_slice()), "{mechanism} {names:?}");
                    assert_eq!(lease.mechanism(), mechanism);
                    assert_eq!(lease.to_text().unwrap(), text);
                }
                Err(error) => {
                    assert!(!right.contains(&names.as_slice()), "{mechanism} {names:?}");
                    assert_eq!(
                        error.to_string(),
                        format!(
                            "job 4711: the sections below [slice] are not those of mechanism {mechanism}"
                        )
                    );
                    refused += 1;
                }
            }
        }
    }
    assert_eq!(refused, 5 * 8 - 7);
}

#[test]
fn a_whole_gpu_without_mig_is_a_slice_of_a_pool_of_mig() {
    let mut lease = lease();
    lease.slice.held = Held::Bare;
    assert_eq!(lease.slice.cuda_device(), Some(&*lease.slice.gpu_uuid));
    assert_eq!((lease.slice.mig(), lease.slice.instance()), (None, None));
    assert_eq!(
        (lease.mechanism(), &*lease.kind()),
        (Mechanism::Mig, "bare")
    );
    // It needs no instance to be active, and none of it can be kept.
    lease.advance(LeaseState::Active).unwrap();
    lease.advance(LeaseState::Releasing).unwrap();
    assert!(lease.keep(1).is_err());
    let text = lease.to_text().unwrap();
    assert!(text.lines().any(|line| line == "bare = true"), "{text}");
    assert_eq!(Lease::parse(&text).unwrap(), lease);
    // No other mechanism has it, and nothing has it beside an instance.
    let body = checksum::open(&text).unwrap();
    for (from, to) in [
        ("mechanism = \"mig\"", "mechanism = \"timeslice\""),
        ("bare = true\n", "bare = false\n"),
        (
            "bare = true\n",
            "bare = true\n[slice.mig]\nprofile_id = 14\nprofile_name = \"2g.20gb\"\nplacement = { start = 4, size = 2 }\n",
        ),
    ] {
        assert!(body.contains(from), "{from}");
        let other = checksum::seal(body.replace(from, to));
        assert!(matches!(
            Lease::parse(&other),
            Err(LeaseError::Sections { .. })
        ));
    }
}

/// Promise (never): a damaged lease is never taken for another.
/// With `a_damaged_or_moved_lease_fails_the_whole_list`.
#[test]
fn every_cut_and_every_changed_bit_is_noticed() {
    let mut lease = lease();
    lease.slice.held = Held::Mig(mig(Some(instance())));
    let text = lease.to_text().unwrap();
    for end in 0..text.len() {
        assert!(Lease::parse(&text[..end]).is_err(), "cut at {end}");
    }
    for position in 0..text.len() {
        for bit in 0..8 {
            let mut bytes = text.clone().into_bytes();
            bytes[position] ^= 1 << bit;
            if let Ok(damaged) = String::from_utf8(bytes) {
                assert!(Lease::parse(&damaged).is_err(), "{position} {bit}");
            }
        }
    }
}

fn any_lease() -> impl Strategy<Value = Lease> {
    let who = (any::<u32>(), any::<u32>(), any::<u32>(), any::<u32>());
    let texts = (
        "\\PC{0,20}",
        proptest::option::of("\\PC{0,12}"),
        "\\PC{0,12}",
    );
    let what = (
        1_u32..=100,
        1_u32..=100,
        0_u64..=i64::MAX as u64,
        any::<u64>(),
    );
    let way = proptest::sample::select(ways());
    let wish = proptest::sample::select(IdleWish::ALL.to_vec());
    (who, texts, what, way, wish, any::<bool>()).prop_map(
        |(who, texts, what, way, wish, carved)| {
            let mut lease = lease();
            lease.idle_wish = wish;
            lease.slice = way.0;
            (
                lease.job_id.0,
                lease.user_id.0,
                lease.group_id.0,
                lease.restart_count,
            ) = who;
            (lease.user, lease.account, lease.partition) = texts;
            lease.units = Units(what.0);
            lease.fraction = Fraction::new(what.0.min(what.1), what.0.max(what.1)).unwrap();
            lease.created_unix = what.2;
            lease.sluid = carved.then(|| format!("s{:013}", what.3 >> 32));
            let memory = MemoryMib(what.3 >> 1);
            lease.slice.memory_mib = memory;
            if let Some(mps) = lease.slice.mps_mut() {
                mps.thread_percentage = what.0;
                mps.memory_limit_mib = memory;
            }
            if carved {
                lease.state = LeaseState::Active;
            } else if let Some(mig) = lease.slice.mig_mut() {
                mig.instance = None;
            }
            lease
        },
    )
}

proptest! {
    #[test]
    fn reads_what_it_writes(lease in any_lease()) {
        let text = lease.to_text().unwrap();
        prop_assert_eq!(Lease::parse(&text).unwrap(), lease);
    }

    #[test]
    fn damage_never_reads_as_another_lease(
        lease in any_lease(),
        cut in 0_usize..2000,
        length in 0_usize..200,
        junk in "\\PC{0,60}",
    ) {
        let text = lease.to_text().unwrap();
        let from = text.floor_char_boundary(cut % text.len());
        let to = text.floor_char_boundary((from + length).min(text.len()));
        let damaged = format!("{}{junk}{}", &text[..from], &text[to..]);
        if let Ok(read) = Lease::parse(&damaged) {
            prop_assert_eq!(read, lease);
        }
    }

    #[test]
    fn any_text_is_read_or_refused(text in "\\PC{0,200}") {
        let _ = Lease::parse(&text);
    }
}

#[test]
fn groups_of_a_job_have_its_id_or_its_sluid() {
    let mut lease = lease();
    lease.job_id = JobId(12);
    for other in [
        "job_1",
        "job_123",
        "job_",
        "job_12x",
        "12",
        "",
        "sEKNKTV3WPV500",
    ] {
        assert!(!lease.is_group(other), "{other}");
    }
    assert!(lease.is_group("job_12"));
    lease.sluid = Some("sEKNKTV3WPV500".into());
    assert!(lease.is_group("sEKNKTV3WPV500") && lease.is_group("job_12"));
    assert!(!lease.is_group("sEKNKTV3WPV501"));
    assert!(is_sluid("s0TDM7ZNDQVY00"));
    for other in [
        "",
        "s",
        "s0TDM7ZNDQVY0",
        "s0TDM7ZNDQVY000",
        "s../../ZNDQVY0",
        "slurm000000000",
        "t0TDM7ZNDQVY00",
    ] {
        assert!(!is_sluid(other), "{other}");
    }
}

#[test]
fn a_group_without_a_lease_of_its_name_is_nobodys_while_leases_lack_sluids() {
    let with = |job_id: u32, sluid: Option<&str>| Lease {
        job_id: JobId(job_id),
        sluid: sluid.map(str::to_owned),
        ..lease()
    };
    let (new, old) = (with(1, Some("s0TDM7ZNDQVY00")), with(2, None));
    let (both, one) = ([&new, &old], [&new]);
    assert_eq!(new.owns_group("s0TDM7ZNDQVY00", &both), Some(true));
    assert_eq!(old.owns_group("s0TDM7ZNDQVY00", &both), Some(false));
    assert_eq!(old.owns_group("job_2", &both), Some(true));
    assert_eq!(new.owns_group("job_3", &both), Some(false));
    // The group may belong to the other job, whose prolog did not get the SLUID.
    for lease in both {
        assert_eq!(lease.owns_group("s0TDM7ZNDQVY01", &both), None);
    }
    assert_eq!(new.owns_group("s0TDM7ZNDQVY01", &one), Some(false));
}
