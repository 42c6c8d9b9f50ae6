//! The work of a node for a job: prolog and epilog, as slurmd runs them.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use gpufrac_lab::Lab;

use super::table::{Goal, Table};
use super::{BenchArguments, Pair, compile};
use xtask_front::cargo::root;

/// A job id that the lab's Slurm does not use.
pub(super) const JOB: &str = "4000000";

pub(super) fn measure(arguments: &BenchArguments, build: &Path, table: &mut Table) -> Result<()> {
    println!("measuring prolog and epilog ...");
    let nvidia_smi = nvidia_smi(arguments);
    let mut builder = Lab::builder()
        .quiet()
        .nodes(1)
        .gpus("H100-80", 1)
        .build_folder(build);
    if let Ok(program) = &nvidia_smi {
        builder = builder.driver(&version_of(program)?);
    }
    let lab = builder.start()?;
    let node = Node {
        lab: &lab,
        name: &lab.nodes()[0],
    };

    let pair = Pair::measure(
        arguments.rounds * 2,
        || run(&mut node.hook("gpufrac-prolog", false)),
        || run(&mut Command::new("/bin/true")),
    )?;
    table.add(
        "prolog of a job without a fraction",
        "/bin/true",
        &pair,
        Goal::AtMostTimes(1.5),
    );

    let gpufrac = || {
        run(&mut node.hook("gpufrac-prolog", true))?;
        run(&mut node.hook("gpufrac-epilog", true))
    };
    let bare = node.build_bare()?;
    let library = lab.folder().gpus(node.name).join("lib/libnvidia-ml.so.1");
    let pair = Pair::measure(arguments.rounds, gpufrac, || {
        run(Command::new(&bare).arg(&library).arg("carve"))?;
        run(Command::new(&bare).arg(&library).arg("release"))
    })?;
    let goal = Goal::Within(Duration::from_millis(10));
    table.add(
        "carve and teardown",
        "the bare NVML calls, two processes",
        &pair,
        goal,
    );

    match nvidia_smi {
        Ok(program) => {
            let rounds = (arguments.rounds / 5).max(5);
            let pair = Pair::measure(rounds, gpufrac, || {
                run(&mut node.script("prolog.sh", &program))?;
                run(&mut node.script("epilog.sh", &program))
            })?;
            table.add(
                "carve and teardown",
                "shell prolog with nvidia-smi",
                &pair,
                Goal::FasterBy(10.0),
            );
            // The simulator starts at once, but a driver does not. A delay shows how often each side starts NVML.
            for call in ["nvmlInit_v2", "nvmlInitWithFlags"] {
                lab.gpusim(node.name, &["delay", "--call", call, "--ms", "100"])?;
            }
            let pair = Pair::measure(rounds.min(10), gpufrac, || {
                run(&mut node.script("prolog.sh", &program))?;
                run(&mut node.script("epilog.sh", &program))
            })?;
            lab.gpusim(node.name, &["clear"])?;
            let what = "the same where NVML takes 100 ms to start";
            table.add(what, "shell prolog with nvidia-smi", &pair, Goal::None);
        }
        Err(error) => table.note(format!(
            "the shell prolog was not measured, as Debian's nvidia-smi cannot be had ({error:#}); \
             give one with --nvidia-smi PATH"
        )),
    }
    lab.stop()?;
    Ok(())
}

/// The given program, otherwise Debian's.
fn nvidia_smi(arguments: &BenchArguments) -> Result<PathBuf> {
    if let Some(program) = &arguments.nvidia_smi {
        return Ok(program.clone());
    }
    let cache = root().join("target/clients");
    let place = cache.join("nvidia-smi");
    let program = place.join("usr/lib/nvidia/current/nvidia-smi");
    if !program.exists() {
        println!("fetching nvidia-smi from Debian ...");
        let package = debian::Release::open(&cache, "bookworm")?.package("nvidia-smi")?;
        debian::extract(&package, &place)?;
    }
    Ok(program)
}

/// The version of nvidia-smi, which only works with the NVML of the same version.
fn version_of(nvidia_smi: &Path) -> Result<String> {
    let output = Command::new(nvidia_smi)
        .arg("--help")
        .output()
        .with_context(|| format!("starting {} failed", nvidia_smi.display()))?;
    let text = String::from_utf8_lossy(&output.stdout);
    let version = text
        .lines()
        .next()
        .and_then(|line| line.rsplit_once("-- v"));
    version
        .map(|(_, version)| version.trim().to_owned())
        .with_context(|| format!("{} does not say its version", nvidia_smi.display()))
}

/// A node of a lab; its prolog and epilog are run as its slurmd does.
pub(super) struct Node<'a> {
    pub lab: &'a Lab,
    pub name: &'a str,
}

impl Node<'_> {
    /// gpufrac's prolog or epilog in the environment that slurmd gives it.
    pub fn hook(&self, program: &str, fraction: bool) -> Command {
        let folder = self.lab.folder();
        let user = &self.lab.users()[0];
        let mut command = Command::new(folder.bin().join(program));
        command
            .env_clear()
            .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
            .env("GPUFRAC_CONFIG", folder.gpufrac_conf())
            .env("SLURM_CONF", folder.slurm_conf())
            .envs(Lab::hook_environment(self.name, user, JOB));
        if fraction {
            command
                .env("SLURM_JOB_GPUS", "0")
                .env("SPANK_GPUFRAC", "v1:units=25:mech=mig");
        }
        command
    }

    fn script(&self, name: &str, nvidia_smi: &Path) -> Command {
        let folder = self.lab.folder();
        let tools = nvidia_smi
            .parent()
            .unwrap_or(Path::new("/usr/bin"))
            .display()
            .to_string();
        let mut command = Command::new("bash");
        command
            .arg(
                Path::new(env!("CARGO_MANIFEST_DIR"))
                    .join("bench")
                    .join(name),
            )
            .arg(folder.work().join("instance"))
            .env("PATH", format!("{tools}:/usr/sbin:/usr/bin:/sbin:/bin"))
            .env("LD_LIBRARY_PATH", folder.gpus(self.name).join("lib"));
        command
    }

    fn build_bare(&self) -> Result<PathBuf> {
        let program = self.lab.folder().bin().join("bare_nvml");
        compile("bare_nvml.c", &program, &["-ldl"])?;
        Ok(program)
    }
}

pub(super) fn run(command: &mut Command) -> Result<()> {
    let output = command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .and_then(std::process::Child::wait_with_output)
        .with_context(|| format!("starting {:?} failed", command.get_program()))?;
    if !output.status.success() {
        bail!(
            "{:?} ended with {}\n{}",
            command.get_program(),
            output.status,
            String::from_utf8_lossy(&output.stderr)
        );
    }
    Ok(())
}
