//! A panic in a plugin affects at most the current job. The plugins are built with the feature `planted-panic`: the
//! entry point named by `GPUFRAC_PLANT` panics.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::Duration;

use gpufrac_lab::{Lab, LabError};
use nix::sys::signal::Signal;
use object::{Object, ObjectSymbol, SymbolKind};

use crate::plugin_builds::{self, PLUGINS};
use crate::release::release;

/// Plugins with the feature, in a separate folder.
pub(crate) fn planted() -> &'static Path {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    FOLDER.get_or_init(|| {
        let name = format!("planted-{:x}", release().0);
        plugin_builds::build(&name, |cargo| {
            for plugin in PLUGINS {
                cargo.args(["--features", &format!("{plugin}/planted-panic")]);
            }
        })
    })
}

pub(crate) fn logged(lab: &Lab, file: &str, words: &str) -> bool {
    let log = std::fs::read_to_string(lab.folder().log().join(file)).unwrap_or_default();
    log.contains(words)
}

fn restart_slurmctld(lab: &mut Lab, plant: &str) -> Result<(), LabError> {
    lab.set_daemon_environment(&[("GPUFRAC_PLANT", plant)]);
    lab.stop_daemon("slurmctld", Signal::SIGTERM)?;
    lab.start_slurmctld()
}

/// The functions that a library exports.
fn exported(library: &Path) -> BTreeSet<String> {
    let bytes = fs::read(library).expect("a library");
    let file = object::File::parse(&*bytes).expect("an ELF file");
    let symbols = file.dynamic_symbols();
    let functions = symbols.filter(|it| it.is_definition() && it.kind() == SymbolKind::Text);
    functions
        .map(|it| it.name().expect("a name").to_owned())
        .collect()
}

/// The functions in the tables of `for_slurm!` in a package.
fn named(package: &str) -> BTreeSet<String> {
    let edge = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../slurm-plugin");
    let edge = edge.join(package).join("src/edge.rs");
    let code = fs::read_to_string(edge).expect("a source");
    let functions = code.split("export fn ").skip(1);
    functions
        .filter_map(|rest| Some(rest.split_once('(')?.0.to_owned()))
        .collect()
}

/// So no exported function lacks the boundary, which the table adds.
#[test]
fn plugins_export_only_the_functions_of_their_tables() {
    let packages = ["job-submit", "cli-filter", "spank"];
    for (plugin, package) in PLUGINS.iter().zip(packages) {
        let library = planted().join(format!("lib{plugin}.so"));
        let (exported, named) = (exported(&library), named(package));
        assert!(named.len() >= 3, "{named:?}");
        assert_eq!(exported, named, "{plugin}");
    }
}

#[test]
fn a_panic_in_job_submit_refuses_the_job_and_slurmctld_stays() -> Result<(), LabError> {
    let mut lab = Lab::builder().plugin_folder(planted()).start()?;
    let user = lab.users()[0].clone();
    let quarter = ["--hold", "--gres=gpufrac:0.25", "--wrap=true"];
    let pending = lab.sbatch(&user, &quarter)?;

    restart_slurmctld(&mut lab, "job_submit")?;
    for _ in 0..3 {
        let refused = lab.try_sbatch(&user, &quarter)?;
        assert!(!refused.status.success(), "{refused:?}");
        assert!(refused.stderr.contains("internal error"), "{refused:?}");
    }
    assert!(logged(&lab, "slurmctld.log", "planted in job_submit"));

    restart_slurmctld(&mut lab, "job_modify")?;
    let update = [format!("JobId={pending}"), "Gres=gpufrac:0.5".to_owned()];
    for _ in 0..3 {
        let refused = lab
            .command("scontrol")
            .user(&user)
            .args(["update"])
            .args(&update)
            .run()?;
        assert!(!refused.status.success(), "{refused:?}");
    }
    assert!(logged(&lab, "slurmctld.log", "planted in job_modify"));
    assert_eq!(lab.ended_daemons(), Vec::<String>::new());

    // Without the panic the same slurmctld state is used again.
    restart_slurmctld(&mut lab, "nothing")?;
    lab.command("scontrol")
        .args(["release", &pending.to_string()])
        .stdout()?;
    assert_eq!(lab.wait_for_end(pending)?.state(), "COMPLETED");
    lab.expect_nothing_left()
}

#[test]
fn a_panic_when_slurmctld_ends_still_lets_it_save_its_state() -> Result<(), LabError> {
    let mut lab = Lab::builder().plugin_folder(planted()).start()?;
    restart_slurmctld(&mut lab, "fini")?;
    let user = lab.users()[0].clone();
    let job = lab.sbatch(&user, &["--hold", "--gres=gpufrac:0.25", "--wrap=true"])?;
    restart_slurmctld(&mut lab, "nothing")?;
    assert_eq!(lab.job(job)?.state(), "PENDING");
    lab.command("scancel").args([job.to_string()]).stdout()?;
    lab.expect_nothing_left()
}

#[test]
fn a_panic_in_cli_filter_fails_the_command() -> Result<(), LabError> {
    let lab = Lab::builder().plugin_folder(planted()).start()?;
    let outcome = lab
        .command("sbatch")
        .user(&lab.users()[0])
        .env("GPUFRAC_PLANT", "cli_filter_p_pre_submit")
        .args(["--gres=gpufrac:0.25", "--wrap=true"])
        .run()?;
    assert!(!outcome.status.success(), "{outcome:?}");
    assert!(
        outcome
            .stderr
            .contains("planted in cli_filter_p_pre_submit"),
        "{outcome:?}"
    );
    lab.wait_until_empty(Duration::from_secs(10))
}

#[test]
fn a_panic_in_init_leaves_a_slurmctld_that_serves_all_but_fractions() -> Result<(), LabError> {
    let mut lab = Lab::builder().plugin_folder(planted()).start()?;
    restart_slurmctld(&mut lab, "init")?;
    assert!(logged(&lab, "slurmctld.log", "planted in init"));
    let user = lab.users()[0].clone();
    let refused = lab.try_sbatch(&user, &["--gres=gpufrac:0.25", "--wrap=true"])?;
    assert!(!refused.status.success(), "{refused:?}");
    assert!(refused.stderr.contains("not available now"), "{refused:?}");
    let plain = lab.sbatch(&user, &["--wrap=true"])?;
    assert_eq!(lab.wait_for_end(plain)?.state(), "COMPLETED");
    lab.expect_nothing_left()
}

#[test]
fn a_panic_in_a_hook_of_slurmstepd_fails_the_job_and_slurmd_stays() -> Result<(), LabError> {
    let mut lab = Lab::builder().plugin_folder(planted()).start()?;
    let user = lab.users()[0].clone();
    let node = lab.nodes()[0].clone();
    let restart = |lab: &mut Lab, plant: &str| {
        lab.set_daemon_environment(&[("GPUFRAC_PLANT", plant)]);
        lab.stop_daemon(&format!("slurmd.{node}"), Signal::SIGTERM)?;
        lab.start_slurmd(&node)
    };
    for hook in [
        "start of a step",
        "slurm_spank_task_init",
        "slurm_spank_task_post_fork",
    ] {
        restart(&mut lab, hook)?;
        let job = lab.sbatch(&user, &["--gres=gpufrac:0.25", "--wrap=true"])?;
        assert_ne!(lab.wait_for_end(job)?.state(), "COMPLETED", "{hook}");
        let log = format!("slurmd.{node}.log");
        assert!(logged(&lab, &log, &format!("planted in {hook}")), "{hook}");
        assert_eq!(lab.ended_daemons(), Vec::<String>::new(), "{hook}");
        lab.wait_until_empty(Duration::from_secs(20))?;
        assert_eq!(lab.drained_nodes()?, Vec::<String>::new(), "{hook}");
    }
    restart(&mut lab, "nothing")?;
    let job = lab.sbatch(&user, &["--gres=gpufrac:0.25", "--wrap=true"])?;
    assert_eq!(lab.wait_for_end(job)?.state(), "COMPLETED");
    lab.expect_nothing_left()
}
