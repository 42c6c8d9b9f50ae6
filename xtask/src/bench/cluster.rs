//! The time that users wait for sbatch and srun, on two clusters side by side, with and without gpufrac.

use std::path::{Path, PathBuf};

use anyhow::Result;
use gpufrac_lab::Lab;

use super::table::{Goal, Table};
use super::{BenchArguments, Pair, compile};

/// Submissions that are measured together.
const BATCH: usize = 10;

pub(super) fn measure(arguments: &BenchArguments, build: &Path, table: &mut Table) -> Result<()> {
    println!("measuring sbatch and srun on two clusters ...");
    let ours = Lab::builder()
        .quiet()
        .nodes(1)
        .build_folder(build)
        .start()?;
    let theirs = Lab::builder()
        .quiet()
        .nodes(1)
        .plugins(false)
        .build_folder(build)
        .start()?;

    let pair = Pair::measure(
        arguments.jobs,
        || submit(&ours, "--gres=gpufrac:0.25"),
        || submit(&theirs, "--gres=shard:25"),
    )?;
    let goal = Goal::AtMostTimes(1.0 / 0.97);
    table.add(
        "10 x sbatch --gres=gpufrac:0.25",
        "plain Slurm, --gres=shard:25",
        &pair,
        goal,
    );

    let without_gpu = || {
        Pair::measure(
            arguments.jobs,
            || submit(&ours, "--ntasks=1"),
            || submit(&theirs, "--ntasks=1"),
        )
    };
    let goal = Goal::AtMostTimes(1.0 / 0.97);
    table.add(
        "10 x sbatch without a GPU",
        "plain Slurm",
        &without_gpu()?,
        goal,
    );

    let program = build_submitter(&ours)?;
    let submit_by_api = |lab: &Lab, tres: &str| -> Result<()> {
        let command = lab
            .command(&program.display().to_string())
            .user(&lab.users()[0]);
        command.args(["50", tres]).stdout()?;
        Ok(())
    };
    let pair = Pair::measure(
        arguments.jobs / 2,
        || submit_by_api(&ours, &format!("{}gpufrac:0.25", form(&ours))),
        || submit_by_api(&theirs, &format!("{}shard:25", form(&theirs))),
    )?;
    let goal = Goal::AtMostTimes(1.0 / 0.97);
    table.add(
        "50 x slurm_submit_batch_job, gpufrac:0.25",
        "plain Slurm, shard:25",
        &pair,
        goal,
    );

    let site = Lab::builder().quiet().nodes(1).build_folder(build);
    let site = site
        .slurm_conf_extra("DefCpuPerGPU=8\nDefMemPerGPU=16000")
        .start()?;
    let fraction = format!("{}gpufrac:0.25", form(&ours));
    let pair = Pair::measure(
        arguments.jobs / 2,
        || submit_by_api(&site, &fraction),
        || submit_by_api(&ours, &fraction),
    )?;
    site.stop()?;
    table.add(
        "50 x slurm_submit_batch_job, gpufrac:0.25 with CPUs and memory of the site",
        "where the site gives none with a GPU",
        &pair,
        Goal::AtMostTimes(1.01),
    );

    let pair = Pair::measure(
        arguments.jobs / 2,
        || launch(&ours, "--gres=gpufrac:0.25"),
        || launch(&theirs, "--gres=gpu:half:1"),
    )?;
    table.add(
        "srun --gres=gpufrac:0.25 true",
        "plain Slurm, --gres=gpu:half:1",
        &pair,
        Goal::None,
    );

    // Last, because these plugins replace gpufrac's.
    put_plugins_that_do_nothing(&ours)?;
    table.add(
        "10 x sbatch, plugins in C that do nothing",
        "plain Slurm",
        &without_gpu()?,
        Goal::None,
    );
    ours.stop()?;
    theirs.stop()?;
    Ok(())
}

/// Submits a held job, so that only the submission is measured.
fn submit(lab: &Lab, option: &str) -> Result<()> {
    for _ in 0..BATCH {
        lab.sbatch(&lab.users()[0], &["--hold", option, "--wrap=true"])?;
    }
    Ok(())
}

/// The first characters of a request in Slurm's API.
pub(super) fn form(lab: &Lab) -> &'static str {
    if lab.slurm().since(23, 11) { "gres/" } else { "gres:" }
}

/// Builds a program that submits jobs without starting a client for each.
pub(super) fn build_submitter(lab: &Lab) -> Result<PathBuf> {
    let program = lab.folder().bin().join("submit");
    compile("submit.c", &program, &["-lslurm"])?;
    Ok(program)
}

/// Replaces cli_filter and SPANK by plugins that do nothing: the remaining cost is Slurm's own.
fn put_plugins_that_do_nothing(lab: &Lab) -> Result<()> {
    let library = ["-shared", "-fPIC"];
    for (name, options) in [
        ("cli_filter_gpufrac.so", &library[..]),
        (
            "spank_gpufrac.so",
            &[&library[..], &["-DSPANK_STACK"]].concat(),
        ),
    ] {
        let place = lab.folder().lib().join(name);
        let new = place.with_extension("new");
        compile("nothing.c", &new, options)?;
        std::fs::rename(new, place)?;
    }
    Ok(())
}

fn launch(lab: &Lab, option: &str) -> Result<()> {
    lab.command("srun")
        .user(&lab.users()[0])
        .args([option, "true"])
        .stdout()?;
    Ok(())
}
