//! `cargo xtask package`: .deb and .rpm for each series of Slurm, from one list of contents.

mod ansible;
mod contents;
mod deb;
mod elf;
mod page;
mod redhat;
mod site;
mod source;
mod trial;
mod write;

use std::path::PathBuf;

use anyhow::{Context, Result};

use crate::cargo::{root, stage};
use crate::dist::{Build, build};
use crate::series::{self, Series};
use crate::version;
use write::{debs, rpms};

#[derive(clap::Args)]
pub(crate) struct PackageArguments {
    /// A series of Slurm (22.05, 24.11, 26.05), and further ones; all of them unless said
    #[arg(long = "slurm")]
    series: Vec<String>,
    /// Where the packages go [default: target/packages]
    #[arg(long, value_name = "DIR")]
    output: Option<PathBuf>,
    /// Try them instead, on small clusters of each series: docs/admin is followed word by word
    #[arg(long = "try", conflicts_with = "output")]
    try_out: bool,
    /// Try the package of the source: build it on a host of each series without a network, as
    /// docs/admin/other-series.md has it
    #[arg(long, conflicts_with_all = ["output", "try_out"])]
    try_source: bool,
    /// Try the role of contrib/ansible, on small clusters of each series
    #[arg(long, conflicts_with_all = ["output", "try_out", "try_source"])]
    try_ansible: bool,
    /// Package a build for tests, which takes less time
    #[arg(long)]
    debug: bool,
}

pub(crate) fn run(arguments: &PackageArguments) -> Result<()> {
    let names: Vec<&str> = if arguments.series.is_empty() {
        series::names().collect()
    } else {
        arguments.series.iter().map(String::as_str).collect()
    };
    let output = match &arguments.output {
        Some(folder) => folder.clone(),
        None => root().join("target/packages"),
    };
    let builds = names
        .into_iter()
        .map(|name| build_series(name, arguments.debug))
        .collect::<Result<Vec<_>>>()?;
    let version = version::of_tree();
    let work = tempfile::tempdir().context("making a temporary folder failed")?;
    let tarball = stage("source", || source::tarball(work.path(), &version))?;
    if arguments.try_out {
        return trial::run(&builds, &tarball, &version);
    }
    if arguments.try_source {
        return trial::run_source(&builds, &tarball, &version, arguments.debug);
    }
    if arguments.try_ansible {
        return trial::run_ansible(&builds, &tarball, &version);
    }
    let mut made = debs(&builds, &tarball, &version, &output)?;
    made.extend(rpms(&builds, &tarball, &version, &output)?);
    for path in made {
        println!("{}", path.display());
    }
    Ok(())
}

/// Builds for a series of Slurm.
fn build_series(name: &str, debug: bool) -> Result<Build> {
    let series = Series::prepare(name)?;
    stage(&format!("build for Slurm {name}"), || {
        if debug {
            series.build_for_packages()?;
            return Ok(Build {
                release: series.slurm()?.release(),
                folder: series.build_folder(),
            });
        }
        build(&series.slurm()?.include())
    })
}
