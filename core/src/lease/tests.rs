//! Reading, damage and the state machine of leases.

use proptest::prelude::*;

use super::*;

fn lease() -> Lease {
    Lease {
        version: VERSION,
        state: LeaseState::Carving,
        job_id: 4711,
        restart_count: 0,
        user_id: 1000,
        group_id: 100,
        user: "ada".to_owned(),
        account: Some("physics".to_owned()),
        partition: "gpu".to_owned(),
        node: "gn01".to_owned(),
        pool: "h100".to_owned(),
        mechanism: Mechanism::Mig,
        units: Units(25),
        fraction: Fraction::parse("1/4").unwrap(),
        confirmed: true,
        created_unix: 1_795_000_000,
        slice: Slice {
            device_index: 3,
            side: Side::Right,
            gpu_uuid: "GPU-5d5ba0d6-d33d-2b2c-524d-9e3d8d2b8a77".to_owned(),
            gpu_index: 1,
            gpu_minor: 1,
            profile_id: 14,
            profile_name: "2g.20gb".to_owned(),
            memory_mib: MemoryMib(20096),
            placement: Placement { start: 4, size: 2 },
            instance: None,
        },
    }
}

fn instance() -> Instance {
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
    let allowed = [(Carving, Active), (Carving, Releasing), (Active, Releasing)];
    for from in [Carving, Active, Releasing] {
        for to in [Carving, Active, Releasing] {
            let mut lease = lease();
            lease.slice.instance = Some(instance());
            lease.state = from;
            let moved = lease.advance(to);
            assert_eq!(moved.is_ok(), allowed.contains(&(from, to)), "{from} {to}");
            assert_eq!(lease.state, if moved.is_ok() { to } else { from });
        }
    }
}

#[test]
fn active_needs_an_instance() {
    let mut lease = lease();
    assert!(matches!(
        lease.advance(LeaseState::Active),
        Err(LeaseError::NoInstance { job_id: 4711 })
    ));
    assert_eq!(lease.state, LeaseState::Carving);
    lease.state = LeaseState::Active;
    let text = lease.to_text().unwrap();
    assert!(matches!(
        Lease::parse(&text),
        Err(LeaseError::NoInstance { .. })
    ));
}

#[test]
fn other_versions_and_unknown_fields_are_refused() {
    let text = lease().to_text().unwrap();
    let body = checksum::open(&text).unwrap();
    let other = checksum::seal(body.replace("version = 1", "version = 2\nnew_field = true"));
    assert!(matches!(
        Lease::parse(&other),
        Err(LeaseError::Version { found: 2 })
    ));
    let unknown = checksum::seal(format!("note = \"hand-made\"\n{body}"));
    let error = Lease::parse(&unknown).unwrap_err().to_string();
    assert!(error.contains("unknown field `note`"), "{error}");
    let no_version = checksum::seal(body.replace("version = 1\n", ""));
    assert!(matches!(
        Lease::parse(&no_version),
        Err(LeaseError::Text { .. })
    ));
}

#[test]
fn a_text_is_what_an_admin_can_read() {
    let mut lease = lease();
    lease.slice.instance = Some(instance());
    lease.advance(LeaseState::Active).unwrap();
    let text = lease.to_text().unwrap();
    for line in [
        "version = 1",
        "state = \"active\"",
        "job_id = 4711",
        "mechanism = \"mig\"",
        "fraction = \"1/4\"",
        "[slice]",
        "side = \"right\"",
        "[slice.instance]",
        "mig_uuid = \"MIG-c6d4f1ef-42e4-5de3-91c7-45d71c87eb3f\"",
    ] {
        assert!(text.lines().any(|l| l == line), "{line} in\n{text}");
    }
    assert_eq!(Lease::parse(&text).unwrap(), lease);
}

#[test]
fn every_cut_and_every_changed_bit_is_noticed() {
    let mut lease = lease();
    lease.slice.instance = Some(instance());
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
    (who, texts, what, any::<bool>()).prop_map(|(who, texts, what, carved)| {
        let mut lease = lease();
        (
            lease.job_id,
            lease.user_id,
            lease.group_id,
            lease.restart_count,
        ) = who;
        (lease.user, lease.account, lease.partition) = texts;
        lease.units = Units(what.0);
        lease.fraction = Fraction::new(what.0.min(what.1), what.0.max(what.1)).unwrap();
        lease.created_unix = what.2;
        lease.slice.memory_mib = MemoryMib(what.3 >> 1);
        if carved {
            lease.slice.instance = Some(instance());
            lease.state = LeaseState::Active;
        }
        lease
    })
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
