//! Lost, left-over and damaged files and instances on a node.

use std::fs;

use gpufrac_lab::LabError;

use super::{Fate, Mistake, Site};

/// node-setup, which ends well.
pub(super) fn node_setup(site: &mut Site) -> Result<(), LabError> {
    site.node_setup()?.success().map(drop)
}

/// gpufrac clean, which destroys what no lease names.
pub(super) fn clean(site: &mut Site) -> Result<(), LabError> {
    let clean = site.lab.command("gpufrac").args(["clean", "--yes"]);
    let clean = clean
        .env("SLURMD_NODENAME", site.node())
        .env("GPUFRAC_CONFIG", site.config());
    clean.stdout().map(drop)
}

/// The number of a job that Slurm does not have.
const NO_JOB: &str = "999999";

pub(super) const MISTAKES: &[Mistake] = &[
    Mistake::new(
        "a placeholder that is gone",
        |site| {
            let devices = site.lab.folder().devices(site.node());
            fs::remove_file(devices.join("half1")).expect("it is there");
            Ok(())
        },
        &["half1"],
        Fate::SliceOrNone,
    )
    .mended(node_setup),
    Mistake::new(
        "a lease that is damaged",
        |site| {
            let leases = site.lab.folder().run(site.node()).join("leases");
            site.write(&leases.join(NO_JOB), "torn");
            Ok(())
        },
        &["`gpufrac lease drop 999999`"],
        Fate::SliceOrNone,
    ),
    Mistake::new(
        "a note of the admin among the leases",
        |site| {
            let leases = site.lab.folder().run(site.node()).join("leases");
            site.write(&leases.join("README"), "do not touch\n");
            Ok(())
        },
        // Only names that are numbers are leases.
        &[],
        Fate::Slice,
    ),
    Mistake::new(
        "a small instance of a site's static MIG",
        |site| {
            site.lab
                .gpusim(site.node(), &["create", "1", "1g.10gb", "0"])
                .map(drop)
        },
        &["GPU 1: MIG instance", "has no lease", "`gpufrac clean`"],
        Fate::Slice,
    )
    .mended(clean),
    Mistake::new(
        "a lease that a newer build wrote",
        |site| {
            let leases = site.lab.folder().run(site.node()).join("leases");
            site.write(
                &leases.join(NO_JOB),
                "version = 99\n# crc64 86010d5cfc8a0ade\n",
            );
            Ok(())
        },
        &[
            "a newer gpufrac wrote this lease",
            "install that build again",
        ],
        Fate::SliceOrNone,
    ),
    Mistake::new(
        "an instance that nobody has leased",
        |site| {
            site.lab
                .gpusim(site.node(), &["create", "0", "3g.40gb", "4"])
                .map(drop)
        },
        &["has no lease", "`gpufrac clean`"],
        Fate::SliceOrNone,
    )
    .mended(clean),
];

#[test]
#[ignore = "full: each mistake takes seconds"]
fn lost_and_left_over_state_of_a_node_is_named_and_loses_nothing() -> Result<(), LabError> {
    Site::start(false)?.make_all(MISTAKES, 1)
}
