//! Plugins for other headers than those of the running Slurm: for another release of its series they work; for
//! another series they leave everything unchanged. The headers are copies with another number,
//! or with a field more.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use gpufrac_lab::{Lab, LabError, Release, Slurm};
use nix::sys::signal::Signal;

use crate::panics::logged;
use crate::plugin_builds::{self, PLUGINS};
use crate::{HOLD, go};

const NUMBER: &str = "#define SLURM_VERSION_NUMBER 0x";

/// The folder with the running Slurm's `slurm/slurm.h`.
fn include_folder() -> PathBuf {
    let slurm = Slurm::of_environment().expect("Slurm's development files");
    slurm.include()
}

/// The release of these headers.
pub(crate) fn release() -> Release {
    Release::read(&include_folder()).expect("slurm_version.h")
}

/// Another release of the running Slurm's series.
fn next_micro() -> Release {
    Release(release().0 + 1)
}

/// A series that is not the running Slurm's, with the same layouts.
fn next_series() -> Release {
    Release(release().0 + 0x01_00)
}

/// Plugins built for a release.
fn built_for(Release(number): Release) -> PathBuf {
    built_with(&format!("{number:x}"), |name, text| match name {
        "slurm_version.h" => {
            let old = format!("{NUMBER}{:06x}", release().0);
            assert!(text.contains(&old), "{text}");
            text.replace(&old, &format!("{NUMBER}{number:06x}"))
        }
        _ => text,
    })
}

/// Plugins built with the headers of the running Slurm as `edit` changes them, by their names.
fn built_with(name: &str, edit: impl Fn(&str, String) -> String) -> PathBuf {
    let include = plugin_builds::folder().join(format!("include-{name}"));
    copy_headers(&include, edit);
    plugin_builds::build(&format!("release-{name}"), |cargo| {
        cargo.env("GPUFRAC_SLURM_INCLUDE", &include);
    })
}

/// Only changed files are written; otherwise cargo would build everything again.
fn copy_headers(include: &Path, edit: impl Fn(&str, String) -> String) {
    fs::create_dir_all(include.join("slurm")).expect("a folder below target");
    for entry in fs::read_dir(include_folder().join("slurm")).expect("Slurm's headers") {
        let from = entry.expect("an entry").path();
        let text = fs::read_to_string(&from).expect("a header");
        let name = from.file_name().expect("a name");
        let text = edit(&name.to_string_lossy(), text);
        let to = include.join("slurm").join(name);
        if fs::read_to_string(&to).ok().as_ref() != Some(&text) {
            fs::write(&to, text).expect("a folder below target");
        }
    }
}

fn of_next_micro() -> &'static Path {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    FOLDER.get_or_init(|| built_for(next_micro()))
}

fn of_next_series() -> &'static Path {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    FOLDER.get_or_init(|| built_for(next_series()))
}

/// Replaces the plugins of a lab.
fn install(lab: &Lab, plugins: impl Fn(&str) -> PathBuf) {
    for plugin in PLUGINS {
        let place = lab.folder().lib().join(format!("{plugin}.so"));
        plugin_builds::replace(&plugins(plugin), &place);
    }
}

fn restart_daemons(lab: &mut Lab) -> Result<(), LabError> {
    lab.stop_daemon("slurmctld", Signal::SIGTERM)?;
    lab.start_slurmctld()?;
    for node in lab.nodes().to_vec() {
        lab.stop_daemon(&format!("slurmd.{node}"), Signal::SIGTERM)?;
        lab.start_slurmd(&node)?;
    }
    Ok(())
}

/// Promise (never): a micro upgrade of Slurm needs no rebuild.
#[test]
fn another_release_of_the_series_serves_fractions() -> Result<(), LabError> {
    let lab = Lab::builder().plugin_folder(of_next_micro()).start()?;
    let (user, node) = (&lab.users()[0], &lab.nodes()[0]);
    let said = format!(
        "gpufrac: built for Slurm {}, serving {}",
        next_micro(),
        release()
    );
    assert!(logged(&lab, "slurmctld.log", &said), "{said}");

    let script = format!("echo CUDA=$CUDA_VISIBLE_DEVICES; {HOLD}; srun --gres=gpufrac:0.25 true");
    let job = lab.sbatch(user, &["--gres=gpufrac:0.25", "--wrap", &script])?;
    lab.wait_for_state(job, &["RUNNING"])?;
    let slice = lab.slice(node, job)?;
    // The client's plugin was loaded, and works.
    let refused = lab.try_sbatch(user, &["--gpus=gpufrac:0.25", "--wrap=true"])?;
    let words = "cli_filter plugin terminated";
    assert!(refused.stderr.contains(words), "{refused:?}");
    let srun = ["--gres=gpufrac:0.25", "printenv", "CUDA_VISIBLE_DEVICES"];
    let srun = lab.command("srun").user(user).args(srun).stdout()?;
    assert!(srun.starts_with("MIG-"), "{srun}");
    let salloc = ["--gres=gpufrac:0.25", "true"];
    lab.command("salloc").user(user).args(salloc).stdout()?;

    go(&lab)?;
    assert_eq!(lab.wait_for_end(job)?.state(), "COMPLETED");
    let output = lab.output(job)?;
    let expected = format!("CUDA={}", slice.instance.uuids[0]);
    assert!(output.contains(&expected), "{output}");
    lab.expect_nothing_left()
}

/// Promise (never): in a Slurm of another series the plugins change nothing, and log an error.
#[test]
fn another_series_leaves_slurm_alone_and_says_so() -> Result<(), LabError> {
    let mut lab = Lab::builder().start()?;
    let (user, node) = (lab.users()[0].clone(), lab.nodes()[0].clone());
    let serving = lab.folder().root().join("serving");
    fs::create_dir(&serving).expect("a folder of the lab");
    for plugin in PLUGINS {
        let file = format!("{plugin}.so");
        fs::copy(lab.folder().lib().join(&file), serving.join(&file)).expect("a plugin");
    }
    let quarter = ["--gres=gpufrac:0.25", "--wrap", HOLD];
    let running = lab.sbatch(&user, &quarter)?;
    let pending = lab.sbatch(&user, &["--hold", "--gres=gpufrac:0.5", "--wrap=true"])?;
    lab.wait_for_state(running, &["RUNNING"])?;

    let plugstack = lab.folder().etc().join("plugstack.conf");
    let required = fs::read_to_string(&plugstack).expect("plugstack.conf");
    fs::write(&plugstack, required.replace("required", "optional")).expect("plugstack.conf");
    let other = of_next_series();
    install(&lab, |plugin| other.join(format!("lib{plugin}.so")));
    restart_daemons(&mut lab)?;
    let said = format!(
        "gpufrac: built for Slurm {}, but this is {}: fractions are not served",
        next_series().series(),
        release()
    );
    assert!(logged(&lab, "slurmctld.log", &said), "{said}");

    let leases = lab.leases(&node)?;
    let quiet = lab.try_sbatch(&user, &["--wrap=true"])?;
    assert!(quiet.status.success(), "{quiet:?}");
    assert!(!quiet.stderr.contains("not served"), "{quiet:?}");
    let plain = lab.sbatch(&user, &["--hold", "--wrap=true"])?;
    let id = plain.to_string();
    for action in [
        &["update", &format!("JobId={id}"), "TimeLimit=5"][..],
        &["release", &id],
    ] {
        lab.command("scontrol").user(&user).args(action).stdout()?;
    }
    assert_eq!(lab.wait_for_end(plain)?.state(), "COMPLETED");
    for _ in 0..2 {
        let fraction = lab.try_sbatch(&user, &quarter)?;
        assert!(!fraction.status.success(), "{fraction:?}");
        let complaints = fraction.stderr.matches("fractions are not served").count();
        assert_eq!(complaints, 1, "{fraction:?}");
    }
    assert_eq!(lab.leases(&node)?, leases);
    assert_eq!(lab.ended_daemons(), Vec::<String>::new());
    assert_eq!(lab.drained_nodes()?, Vec::<String>::new());

    // Running jobs continue, and their slices end with them; pending jobs are still there.
    go(&lab)?;
    assert_eq!(lab.wait_for_end(running)?.state(), "COMPLETED");
    fs::write(&plugstack, required).expect("plugstack.conf");
    install(&lab, |plugin| serving.join(format!("{plugin}.so")));
    restart_daemons(&mut lab)?;
    lab.command("scontrol")
        .args(["release", &pending.to_string()])
        .stdout()?;
    assert_eq!(lab.wait_for_end(pending)?.state(), "COMPLETED");
    lab.expect_nothing_left()
}

/// Promise (never): in a Slurm whose structures are not those of the plugins' headers, though of the same series, the
/// plugins change nothing, and log an error.
#[test]
fn another_layout_leaves_slurm_alone_and_says_so() -> Result<(), LabError> {
    const BEGIN: &str = "typedef struct job_descriptor {";
    // Tests of several series run at once.
    let own = format!("layout-{:x}", release().0);
    let plugins = built_with(&own, |name, text| match name {
        "slurm.h" => {
            // Some releases have a comment behind it.
            assert!(text.contains(BEGIN), "{BEGIN}");
            text.replace(BEGIN, &format!("{BEGIN} uint64_t of_this_site;"))
        }
        _ => text,
    });
    let lab = Lab::builder().plugin_folder(&plugins).start()?;
    let user = &lab.users()[0];
    for words in ["job_desc_msg_t has", "fractions are not served"] {
        assert!(logged(&lab, "slurmctld.log", words), "{words}");
    }
    let plain = lab.sbatch(user, &["--wrap=true"])?;
    assert_eq!(lab.wait_for_end(plain)?.state(), "COMPLETED");
    let fraction = lab.try_sbatch(user, &["--gres=gpufrac:0.25", "--wrap=true"])?;
    assert!(!fraction.status.success(), "{fraction:?}");
    assert!(
        fraction.stderr.contains("fractions are not served"),
        "{fraction:?}"
    );
    assert_eq!(lab.ended_daemons(), Vec::<String>::new());
    lab.expect_nothing_left()
}
