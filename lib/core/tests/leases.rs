//! Leases of earlier builds, because jobs run on during an upgrade of a node. A build of each version wrote its
//! files; they never change. A new version gets new files.
#![allow(clippy::unwrap_used, reason = "a test stops where it fails")]

use std::fs;
use std::path::Path;

use gpufrac_core::lease::{Lease, LeaseError, LeaseState, OLDEST, VERSION};

/// File name, version and text of each lease.
fn files() -> Vec<(String, u32, String)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/leases");
    let mut files: Vec<_> = fs::read_dir(folder)
        .unwrap()
        .map(|entry| {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_str().unwrap().to_owned();
            let version = name.split('-').nth(1).unwrap().parse().unwrap();
            (name, version, fs::read_to_string(path).unwrap())
        })
        .collect();
    files.sort();
    files
}

/// Promise (never): leases of this build and of the one before are read, those of a newer one drain no node.
/// With `a_lease_of_the_build_before_is_released`, `a_lease_of_a_newer_build_drains_nothing`.
#[test]
fn leases_of_this_version_and_of_the_one_before_are_read() {
    let files = files();
    for version in 1..=VERSION {
        assert!(
            files.iter().any(|file| file.1 == version),
            "none of {version}"
        );
    }
    for (name, version, text) in files {
        assert!(
            text.starts_with(&format!("version = {version}\n")),
            "{name}"
        );
        let read = Lease::parse(&text);
        if version < OLDEST {
            let error = read.unwrap_err();
            assert!(
                matches!(error, LeaseError::Version { .. }),
                "{name}: {error}"
            );
            assert!(!error.is_of_newer_build(), "{name}");
            assert!(error.to_string().contains("is too old"), "{error}");
            continue;
        }
        let lease = read.unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_eq!(lease.job_id.0, 4711, "{name}");
        assert!(lease.slice.cuda_device().is_some(), "{name}");
        // A lease of an earlier version is written in the current version.
        let again = lease.to_text().unwrap();
        assert!(
            again.starts_with(&format!("version = {VERSION}\n")),
            "{name}"
        );
        assert_eq!(Lease::parse(&again).unwrap(), lease, "{name}");
        if version == VERSION {
            assert_eq!(again, text, "{name}");
        }
        let mut ended = lease.clone();
        if ended.state == LeaseState::Active {
            ended.advance(LeaseState::Releasing).unwrap();
        }
    }
}

#[test]
fn a_lease_of_a_newer_build_is_known_as_one() {
    for (name, _, text) in files() {
        let body = &text[..text.rfind("# crc64 ").unwrap()];
        let (_, rest) = body.split_once('\n').unwrap();
        for newer in [
            format!("version = {}\n{rest}", VERSION + 1),
            format!("version = {}\nreuse_of = 4710\n{rest}", VERSION + 9),
            format!("version = {VERSION}\nreuse_of = 4710\n{rest}"),
        ] {
            let sealed = format!("{newer}# crc64 {:016x}\n", crc64(newer.as_bytes()));
            let error = Lease::parse(&sealed).unwrap_err();
            assert!(error.is_of_newer_build(), "{name}: {error}");
            // A damaged text is not read.
            let damaged = sealed.replace("4711", "4712");
            let error = Lease::parse(&damaged).unwrap_err();
            assert!(!error.is_of_newer_build(), "{name}: {error}");
        }
    }
}

/// The CRC of ECMA-182, computed bit by bit.
fn crc64(bytes: &[u8]) -> u64 {
    bytes.iter().fold(u64::MAX, |crc, byte| {
        (0..8).fold(crc ^ (u64::from(*byte) << 56), |crc, _| {
            (crc << 1) ^ (if crc >> 63 == 1 { 0x42f0_e1eb_a9ea_3693 } else { 0 })
        })
    })
}
