//! The start of a job that shares a GPU by MPS: with gpufrac, with Slurm's gres/mps, and, for comparison, of a job
//! with a whole GPU. NVIDIA's control daemon starts on both sides; without a real GPU it never starts a server.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Child, Command};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, bail};
use gpufrac_lab::{JobId, Lab};

use super::node::{JOB, run};
use super::plain::{self, Plain};
use super::table::{Goal, Table};
use super::{BenchArguments, Pair, time};
use xtask_front::cargo::root;

const POOL: &str = "\
[pool.shared]
mechanism = \"mps\"
tenancy = \"shared\"
gpu = \"L40S-48\"
partitions = [\"gpu\"]
nodes = \"@NODES@\"
";

/// The name of the measured jobs.
const NAME: &str = "timed";
const LIMIT: Duration = Duration::from_secs(60);
/// The numbers of processes that the node has besides: one with 128 cores has thousands of the kernel's alone.
const CROWDS: [usize; 2] = [0, 2000];

/// Processes that do nothing.
struct Crowd(Vec<Child>);

impl Crowd {
    fn start(processes: usize) -> Result<Self> {
        let mut crowd = Self(Vec::new());
        for _ in 0..processes {
            let sleep = Command::new("sleep").arg("infinity").spawn();
            crowd.0.push(sleep.context("starting `sleep` failed")?);
        }
        Ok(crowd)
    }
}

impl Drop for Crowd {
    fn drop(&mut self) {
        for sleep in &mut self.0 {
            let _ = sleep.kill();
            let _ = sleep.wait();
        }
    }
}

pub(super) fn measure(arguments: &BenchArguments, build: &Path, table: &mut Table) -> Result<()> {
    let control = match debian::mps_control(&root().join("target/clients")) {
        Ok(control) => control,
        Err(error) => {
            table.note(format!(
                "jobs in MPS were not measured, as Debian's nvidia-cuda-mps-control cannot be had ({error})"
            ));
            return Ok(());
        }
    };
    println!("measuring the start of jobs in MPS on three clusters ...");
    let rounds = (arguments.jobs / 2).max(1);
    let ours = Lab::builder()
        .quiet()
        .nodes(1)
        .gpu_list(&["L40S-48"])
        .pools(POOL)
        .mps_control(&control)
        .build_folder(build)
        .start()?;
    let plain = Plain {
        build,
        nodes: 1,
        gpus: 1,
        gres: "gpu:1",
        gres_conf: "",
        slurm_conf: "GresTypes=gpu\n",
        series: None,
    };
    let place = plain::folder("mps")?;
    let slurm = Plain {
        build,
        gres: "gpu:1,mps:100",
        gres_conf: "Name=mps Count=100",
        slurm_conf: &hooks(&place, &control)?,
        ..plain
    };
    let slurm = slurm.start(&place)?;
    let plain = plain.start(&plain::folder("plain")?)?;
    let quarter = "--gres=gpufrac:0.25";

    for beside in [false, true] {
        let neighbours = if beside {
            Some((
                stay(&ours, "--gres=gpufrac:0.5")?,
                stay(&slurm.lab, "--gres=mps:50")?,
            ))
        } else {
            None
        };
        expect_daemon(&ours, beside)?;
        expect_daemon(&slurm.lab, beside)?;
        let what = if beside {
            "start of gpufrac:0.25 (mps), a second job"
        } else {
            "start of gpufrac:0.25 (mps), the first job"
        };
        let pair = Pair::measure_timed(
            rounds,
            || start(&ours, quarter),
            || start(&plain.lab, "--gres=gpu:1"),
        )?;
        table.add(what, "plain Slurm, --gres=gpu:1", &pair, Goal::None);
        let pair = Pair::measure_timed(
            rounds,
            || start(&ours, quarter),
            || start(&slurm.lab, "--gres=mps:25"),
        )?;
        let against = if beside {
            "gres/mps and a script, a second job"
        } else {
            "gres/mps and a script, the first job"
        };
        table.add(what, against, &pair, Goal::None);
        for processes in CROWDS {
            let _crowd = Crowd::start(processes)?;
            let pair = Pair::measure_timed(
                arguments.rounds.min(100),
                || {
                    let bin = ours.folder().bin();
                    prolog(&ours, &bin.join("prolog"), &bin.join("epilog"))
                },
                || {
                    let etc = slurm.lab.folder().etc();
                    prolog(&slurm.lab, &etc.join("Prolog"), &etc.join("Epilog"))
                },
            )?;
            let what = match (processes, beside) {
                (0, false) => "Prolog of it alone, the first job".into(),
                (0, true) => "Prolog of it alone, a second job".into(),
                _ => format!("the same beside {processes} more processes"),
            };
            table.add(&what, against, &pair, Goal::None);
        }
        if let Some((one, two)) = neighbours {
            end(&ours, one)?;
            end(&slurm.lab, two)?;
        }
        expect_daemon(&ours, false)?;
        expect_daemon(&slurm.lab, false)?;
    }
    table.note(format!(
        "jobs in MPS: {rounds} rounds, of a Prolog alone {}; to repeat: cargo xtask bench mps --jobs {}",
        arguments.rounds.min(100),
        arguments.jobs
    ));
    ours.stop()?;
    plain.stop()?;
    slurm.stop()
}

/// The time from the submission to the job's first program. The function waits for the job's end and Epilog, so that
/// they do not affect the next job.
fn start(lab: &Lab, option: &str) -> Result<Duration> {
    let name = format!("--job-name={NAME}");
    let before = SystemTime::now().duration_since(UNIX_EPOCH)?;
    let text = lab
        .command("srun")
        .user(&lab.users()[0])
        .args([&name, option, "date", "+%s%N"])
        .stdout()?;
    let nanoseconds = text
        .trim()
        .parse()
        .with_context(|| format!("date printed `{text}`"))?;
    lab.wait("the timed job's end", LIMIT, || {
        let args = ["-h", "--name", NAME];
        let left = lab.command("squeue").args(args).stdout()?;
        Ok(left.trim().is_empty().then_some(()))
    })?;
    Ok(Duration::from_nanos(nanoseconds).saturating_sub(before))
}

/// Runs Prolog as slurmd does: srun asks with growing pauses whether it is done, which hides tens of milliseconds.
/// The Epilog after it is not measured.
fn prolog(lab: &Lab, prolog: &Path, epilog: &Path) -> Result<Duration> {
    let hook = |path: &Path| {
        let user = &lab.users()[0];
        run(Command::new(path)
            .env_clear()
            .env("SLURM_CONF", lab.folder().slurm_conf())
            .envs(Lab::hook_environment(&lab.nodes()[0], user, JOB))
            .env("SLURM_JOB_GPUS", "0")
            .env("SPANK_GPUFRAC", "v1:units=25:mech=mps")
            .env("CUDA_VISIBLE_DEVICES", "0")
            .env("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "25"))
    };
    let took = time(&mut || hook(prolog))?;
    hook(epilog)?;
    Ok(took)
}

/// A job that runs during the measurement.
fn stay(lab: &Lab, option: &str) -> Result<JobId> {
    let job = lab.sbatch(&lab.users()[0], &[option, "--wrap=sleep 3600"])?;
    lab.wait_for_state(job, &["RUNNING"])?;
    Ok(job)
}

/// Checks that MPS runs as intended; other times would mean nothing.
fn expect_daemon(lab: &Lab, there: bool) -> Result<()> {
    let found = lab.mps_processes(&lab.nodes()[0]);
    if found.iter().any(|process| process.control) != there {
        bail!("of MPS there runs {found:?}");
    }
    Ok(())
}

fn end(lab: &Lab, job: JobId) -> Result<()> {
    lab.command("scancel").args([job.to_string()]).stdout()?;
    Ok(lab.wait_until_empty(LIMIT)?)
}

/// The lines of slurm.conf for Slurm's own MPS, with Prolog and Epilog that run the control program; both are written
/// to the folder.
fn hooks(folder: &Path, control: &Path) -> Result<String> {
    // The folder in which the lab looks for the daemons of a node.
    let place = folder.join("run/$SLURMD_NODENAME/mps");
    let mut lines = "GresTypes=gpu,mps\n".to_owned();
    for (hook, commands) in [("Prolog", PROLOG), ("Epilog", EPILOG)] {
        let path = folder.join("etc").join(hook);
        let text = format!(
            "#!/bin/sh\nexport PATH=/usr/sbin:/usr/bin:/sbin:/bin\nplace={}\ncontrol={}\n{SETTINGS}{commands}",
            place.display(),
            control.display()
        );
        fs::write(&path, text)?;
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755))?;
        lines.push_str(&format!("{hook}={}\n", path.display()));
    }
    Ok(lines)
}

const SETTINGS: &str = "\
export CUDA_MPS_PIPE_DIRECTORY=$place/pipe CUDA_MPS_LOG_DIRECTORY=$place/log
";

/// The Prolog that Slurm's manual requires for gres/mps: a daemon for the job's GPU if the job has a share of it,
/// none if it has the whole GPU. It has no pauses and checks, as common scripts have.
const PROLOG: &str = r#"[ -n "$CUDA_VISIBLE_DEVICES" ] || exit 0
if [ -z "$CUDA_MPS_ACTIVE_THREAD_PERCENTAGE" ]; then
    [ ! -e "$place/gpu" ] || echo quit | "$control"
    rm -f "$place/gpu"
    exit 0
fi
unset CUDA_MPS_ACTIVE_THREAD_PERCENTAGE
mkdir -p "$place/jobs" "$CUDA_MPS_PIPE_DIRECTORY" "$CUDA_MPS_LOG_DIRECTORY"
: >"$place/jobs/$SLURM_JOB_ID"
if [ ! -e "$place/gpu" ] || [ "$(cat "$place/gpu")" != "$CUDA_VISIBLE_DEVICES" ]; then
    "$control" -d >/dev/null 2>&1 || exit 1
    echo "$CUDA_VISIBLE_DEVICES" >"$place/gpu"
fi
"#;

/// The daemon ends with the last job.
const EPILOG: &str = r#"[ -e "$place/jobs/$SLURM_JOB_ID" ] || exit 0
rm -f "$place/jobs/$SLURM_JOB_ID"
if [ -z "$(ls "$place/jobs")" ]; then
    rm -f "$place/gpu"
    echo quit | "$control"
fi
exit 0
"#;
