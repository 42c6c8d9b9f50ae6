//! `cargo xtask package`: .deb and .rpm for each series of Slurm, from one list of contents.

mod ansible;
mod build;
mod contents;
mod deb;
#[cfg(test)]
mod debian_trial;
mod elf;
mod redhat;
#[cfg(test)]
mod redhat_trial;
mod site;
mod source;
#[cfg(test)]
mod stand_ins;
mod trial;
mod write;

use std::path::PathBuf;

use anyhow::{Context, Result};

use crate::cargo::stage;
use crate::version;
use build::Processor;
use lab_tasks::series::Several;
use write::{debs, rpms};
use xtask_front::cargo::root;

#[derive(clap::Args)]
pub(crate) struct PackageArguments {
    #[command(flatten)]
    slurm: Several,
    /// A processor to build for, and further ones; all of them unless said, this machine's where packages are tried
    #[arg(long = "processor", value_name = "PROCESSOR")]
    processors: Vec<Processor>,
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
    let wanted = arguments.slurm.or_all();
    let output = match &arguments.output {
        Some(folder) => folder.clone(),
        None => root().join("target/packages"),
    };
    let tries = arguments.try_out || arguments.try_source || arguments.try_ansible;
    let processors = match &arguments.processors {
        _ if tries => vec![Processor::own()?],
        given if given.is_empty() => Processor::ALL.to_vec(),
        given => given.clone(),
    };
    let mut builds = Vec::new();
    for name in wanted.names()? {
        let series = wanted.prepare(name)?;
        for processor in &processors {
            let title = format!("build for Slurm {name} on {}", processor.name());
            let include = series.slurm().include();
            builds.push(stage(&title, || {
                build::build(&include, *processor, arguments.debug)
            })?);
        }
    }
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
