//! Losses on a node, beside a job on another node.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use gpufrac_lab::{JobId, LabError};
use nix::sys::signal::Signal;

use super::node::{clean, node_setup};
use super::{Fate, Mistake, QUARTER, Seen, Site};

/// A job on the node of the mistakes, which runs until it is cancelled.
fn start_job(site: &mut Site) -> Result<JobId, LabError> {
    let node = site.node().to_owned();
    let wanted = format!("--nodelist={node}");
    let lab = &site.lab;
    let job = lab.sbatch(
        &lab.users()[0],
        &[
            QUARTER,
            &wanted,
            "--no-requeue",
            "--wrap=echo up; sleep 1000",
        ],
    )?;
    lab.wait_for_state(job, &["RUNNING"])?;
    lab.wait("it runs its script", Duration::from_secs(60), || {
        let output = lab.output(job).unwrap_or_default();
        Ok(output.contains("up").then_some(()))
    })?;
    site.jobs.push(job);
    Ok(job)
}

/// The jobs still run, then they are ended.
fn end_jobs(site: &mut Site) -> Result<(), LabError> {
    for job in std::mem::take(&mut site.jobs) {
        let state = site.lab.job(job)?.state().to_owned();
        assert_eq!(state, "RUNNING", "job {job} is lost");
        let number = job.to_string();
        site.lab.command("scancel").args([number]).stdout()?;
        site.lab.wait_for_end(job)?;
    }
    // Their epilogs end, too.
    let node = site.node().to_owned();
    site.lab
        .wait("no job is on the node", Duration::from_secs(60), || {
            let state = site.lab.node(&node)?.state().to_owned();
            Ok(state.starts_with("IDLE").then_some(()))
        })
}

/// All calls of a function fail from now on.
fn fail(site: &Site, call: &str, code: &str) -> Result<(), LabError> {
    let args = ["fault", "--call", call, "--count", "0", "--code", code];
    site.lab.gpusim(site.node(), &args).map(drop)
}

fn calm(site: &mut Site) -> Result<(), LabError> {
    site.lab.gpusim(site.node(), &["clear"]).map(drop)
}

/// slurmctld's saved state, and a copy of it.
fn state_of_slurmctld(site: &Site) -> (PathBuf, PathBuf) {
    let root = site.lab.folder().root();
    (root.join("state"), root.join("earlier-state"))
}

/// The name of a job that comes back with slurmctld's earlier state.
const COMES_BACK: &str = "comes-back";

/// Waits until slurmctld has saved this job: its file of jobs has their names as text.
fn is_saved(site: &Site) -> Result<(), LabError> {
    let (state, _) = state_of_slurmctld(site);
    let name = COMES_BACK.as_bytes();
    site.lab
        .wait("the job is saved", Duration::from_secs(60), || {
            let saved = fs::read(state.join("job_state")).unwrap_or_default();
            let found = saved.windows(name.len()).any(|part| part == name);
            Ok(found.then_some(()))
        })
}

fn copy(from: &std::path::Path, to: &std::path::Path) {
    let args = ["-a".as_ref(), from.as_os_str(), to.as_os_str()];
    let copied = std::process::Command::new("cp").args(args).status();
    assert!(copied.is_ok_and(|status| status.success()));
}

pub(super) const MISTAKES: &[Mistake] = &[
    Mistake::new(
        "/run/gpufrac removed under a job",
        |site| {
            start_job(site)?;
            let run = site.lab.folder().run(site.node());
            for entry in fs::read_dir(&run).expect("the node's folder").flatten() {
                let path = entry.path();
                let removed =
                    if path.is_dir() { fs::remove_dir_all(&path) } else { fs::remove_file(&path) };
                removed.expect("root may");
            }
            Ok(())
        },
        &["leases` does not exist", "run `gpufrac node-setup`"],
        Fate::SliceOrNone,
    )
    .mended(|site| {
        node_setup(site)?;
        end_jobs(site)?;
        clean(site)
    }),
    Mistake::new(
        "a lease removed under its job",
        |site| {
            let job = start_job(site)?;
            let path = site.lab.lease_path(site.node(), job);
            fs::remove_file(path).expect("it has one");
            Ok(())
        },
        &[
            "has no lease",
            "runs here with shares of a GPU",
            "`gpufrac clean`",
        ],
        Fate::SliceOrNone,
    )
    .mended(|site| {
        end_jobs(site)?;
        clean(site)
    }),
    Mistake::new(
        "an instance destroyed by hand under its job",
        |site| {
            let job = start_job(site)?;
            let instance = site.lab.slice(site.node(), job)?.instance;
            let name = format!("{}/{}", instance.gpu, instance.id);
            let args = ["destroy", "--force", &name];
            site.lab.gpusim(site.node(), &args).map(drop)
        },
        &[
            "its MIG instance on GPU ",
            "is gone, and was not destroyed by gpufrac",
            "`scancel ",
        ],
        Fate::Slice,
    )
    .mended(end_jobs),
    Mistake::new(
        "a node that was not resumed after its cause was removed",
        |site| {
            let reason = "Reason=gpufrac: GPU 0 is not in MIG mode";
            let name = format!("NodeName={}", site.node());
            let args = ["update", &name, "State=DRAIN", reason];
            site.lab.command("scontrol").args(args).stdout().map(drop)
        },
        &[
            "is drained (gpufrac: GPU 0 is not in MIG mode): ",
            "State=RESUME",
        ],
        Fate::SliceOrNone,
    )
    .warned(),
    Mistake::new(
        "the locks of a node removed",
        |site| {
            let locks = site.lab.folder().run(site.node()).join("locks");
            fs::remove_dir_all(locks).expect("root may");
            Ok(())
        },
        &["locks` failed: No such file", "run `gpufrac node-setup`"],
        Fate::SliceOrNone,
    )
    .mended(node_setup),
    Mistake::new(
        "the record of node-setup removed",
        |site| {
            let record = site.lab.folder().run(site.node()).join("fence");
            fs::remove_file(record).expect("root may");
            Ok(())
        },
        &["fence` does not exist", "run `gpufrac node-setup`"],
        Fate::SliceOrNone,
    )
    .mended(node_setup),
    Mistake::new(
        "no /var/lib/gpufrac",
        |site| {
            let state = site.lab.folder().var(site.node());
            fs::remove_dir_all(state).expect("root may");
            Ok(())
        },
        // The next job creates it.
        &[],
        Fate::Slice,
    ),
    Mistake::new(
        "/var/lib/gpufrac of an ordinary user",
        |site| {
            let state = site.lab.folder().var(site.node());
            site.give_to_user(&state);
            Ok(())
        },
        &["only root may be able to change it", "`chown root:root "],
        Fate::SliceOrNone,
    ),
    Mistake::new(
        "locks that everybody may take",
        |site| {
            let locks = site.lab.folder().run(site.node()).join("locks");
            site.set_mode(&locks, 0o755);
            Ok(())
        },
        &["keeping a lock in ", "`chmod 700 "],
        Fate::SliceOrNone,
    ),
    Mistake::new(
        "placeholders of another driver",
        |site| {
            let half = site.lab.folder().devices(site.node()).join("half1");
            fs::remove_file(&half).expect("it is there");
            let made = std::process::Command::new("mknod")
                .arg(&half)
                .args(["c", "1", "3"])
                .status();
            assert!(made.is_ok_and(|status| status.success()));
            Ok(())
        },
        &["half1", "run `gpufrac node-setup`"],
        Fate::SliceOrNone,
    )
    .mended(|site| {
        let half = site.lab.folder().devices(site.node()).join("half1");
        fs::remove_file(half).expect("it is there");
        node_setup(site)
    }),
    Mistake::new(
        "leases that everybody may write",
        |site| {
            let leases = site.lab.folder().run(site.node()).join("leases");
            site.set_mode(&leases, 0o777);
            Ok(())
        },
        &[
            "leases` belongs to uid 0 with mode 0777",
            "`chown root:root ",
        ],
        Fate::SliceOrNone,
    ),
    Mistake::new(
        "a run folder of an ordinary user",
        |site| {
            let run = site.lab.folder().run(site.node());
            site.give_to_user(&run);
            Ok(())
        },
        &["only root may be able to change it", "`chown root:root "],
        Fate::SliceOrNone,
    ),
    Mistake::new(
        "a plain file where a placeholder was",
        |site| {
            let half = site.lab.folder().devices(site.node()).join("half1");
            fs::remove_file(&half).expect("it is there");
            fs::write(half, "").expect("root may");
            Ok(())
        },
        &["half1", "run `gpufrac node-setup`"],
        Fate::SliceOrNone,
    )
    .mended(|site| {
        let half = site.lab.folder().devices(site.node()).join("half1");
        fs::remove_file(half).expect("it is there");
        node_setup(site)
    }),
    Mistake::new(
        "a GPU that is off the bus",
        |site| {
            for by in ["Index_v2", "PciBusId_v2", "UUID"] {
                fail(site, &format!("nvmlDeviceGetHandleBy{by}"), "GPU_IS_LOST")?;
            }
            Ok(())
        },
        &["GPU is lost"],
        Fate::SliceOrNone,
    )
    .mended(calm),
    Mistake::new(
        "a GPU whose MIG mode is off",
        |site| {
            site.lab.gpusim(site.node(), &["mig", "0", "off"])?;
            site.lab.gpusim(site.node(), &["mig", "1", "off"]).map(drop)
        },
        &["is not in MIG mode", "`gpufrac node-setup` switches it on"],
        // The prolog switches it on.
        Fate::Slice,
    )
    .mended(node_setup),
    Mistake::new(
        "GPUs in use that cannot switch to MIG mode",
        |site| {
            site.lab.gpusim(site.node(), &["mig", "0", "off"])?;
            site.lab.gpusim(site.node(), &["mig", "1", "off"])?;
            fail(site, "nvmlDeviceSetMigMode", "IN_USE")
        },
        &["is not in MIG mode", "`gpufrac node-setup` switches it on"],
        Fate::SliceOrNone,
    )
    // The way out needs no command on the node but the one that ends the cause.
    .mended(|site| {
        calm(site)?;
        site.try_job(QUARTER)?;
        node_setup(site)
    }),
    Mistake::new(
        "no driver",
        |site| fail(site, "nvmlInit_v2", "DRIVER_NOT_LOADED"),
        &["load the NVIDIA driver; `nvidia-smi` must work"],
        Fate::SliceOrNone,
    )
    .mended(calm),
    Mistake::new(
        "a slurmctld that does not run",
        |site| site.lab.stop_daemon("slurmctld", Signal::SIGTERM),
        &["the running Slurm was not judged", "`scontrol ping`"],
        Fate::NotTried,
    )
    .warned()
    .mended(|site| {
        site.lab.start_slurmctld()?;
        site.wait_until_right()
    }),
    Mistake::new(
        "slurmctld killed, with the files of some seconds before",
        |site| {
            let (state, before) = state_of_slurmctld(site);
            // slurmctld saves its state up to 5 s late, so an older state has jobs that ended since.
            let args = ["--hold", "-J", COMES_BACK, QUARTER, "--wrap=true"];
            let held = site.lab.sbatch(&site.lab.users()[0], &args)?;
            is_saved(site)?;
            copy(&state, &before);
            let number = held.to_string();
            site.lab.command("scancel").args([number]).stdout()?;
            let job = start_job(site)?;
            site.jobs.retain(|known| *known != job);
            site.lab.stop_daemon("slurmctld", Signal::SIGKILL)?;
            fs::remove_dir_all(&state).expect("root may");
            fs::rename(&before, &state).expect("root may");
            site.lab.start_slurmctld()?;
            let back = site.lab.job(held)?;
            assert_eq!(
                back.state(),
                "PENDING",
                "the job that was cancelled is not back"
            );
            Ok(())
        },
        // Slurm no longer knows the job, and ends it. The next job gets its id.
        &[],
        Fate::SliceOrNone,
    )
    // The slurmd of 22.05 runs no prolog for an id that it had before; such a job is requeued, with the advice to
    // submit it again.
    .mended(|site| {
        // The way out for jobs that came back, and for those that their prolog held.
        let user = format!("--user={}", site.lab.users()[0].name);
        site.lab.command("scancel").args([user]).stdout()?;
        // 22.05 accepts no job for a node that has not registered since slurmctld's start.
        let limit = Duration::from_secs(120);
        site.lab.wait("a job gets its slice again", limit, || {
            // slurmctld drains a node ("batch job complete failure") that refuses a job because an earlier job of the
            // same id still ends there (proc_req.c, req.c).
            site.resume_drained()?;
            Ok((site.try_job(QUARTER)? == Seen::Slice).then_some(()))
        })?;
        let user = format!("--user={}", site.lab.users()[0].name);
        site.lab.command("scancel").args([user]).stdout().map(drop)
    }),
];

const OF_THE_REAPER: &[Mistake] = &[
    Mistake::new(
        "a change that the reaper was not told",
        |site| {
            let run = site.lab.folder().run(site.node());
            let file = run.join("reaper/status.json");
            let written = || Ok(file.exists().then_some(()));
            let limit = Duration::from_secs(60);
            site.lab.wait("the reaper wrote its file", limit, written)?;
            site.change_everywhere("\"dry-run\"", "\"on\"");
            Ok(())
        },
        &[
            "runs with an earlier gpufrac.toml",
            "`systemctl reload gpufrac-reaperd`",
        ],
        Fate::Slice,
    )
    .warned(),
    Mistake::new(
        "a reaper that does not run",
        |site| {
            let node = site.node().to_owned();
            site.lab.stop_reaper(&node, Signal::SIGTERM)
        },
        &[
            "gpufrac-reaperd does not run",
            "`systemctl enable --now gpufrac-reaperd`",
        ],
        Fate::Slice,
    )
    .mended(|site| {
        let node = site.node().to_owned();
        site.lab.start_reaper(&node)?;
        site.wait_until_right()
    }),
];

#[test]
#[ignore = "full: each mistake takes seconds"]
fn lost_nodes_are_named_and_come_back() -> Result<(), LabError> {
    Site::start(false)?.make_all(MISTAKES, 0)
}

#[test]
#[ignore = "full: each mistake takes seconds"]
fn a_reaper_that_does_not_run_is_named() -> Result<(), LabError> {
    Site::start(true)?.make_all(OF_THE_REAPER, 0)
}
