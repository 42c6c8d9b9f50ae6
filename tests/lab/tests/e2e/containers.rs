//! The environment that plugins see which start containers, such as pyxis: at each hook, on both sides of gpufrac's
//! line in plugstack.conf, in each kind of step. `witness.c` stands for such a plugin.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use gpufrac_lab::{JobId, Lab, LabBuilder, LabError};

use crate::needs_slurm;

/// The positions of the two witnesses.
pub const POSITIONS: [&str; 2] = ["before", "behind"];
/// The hook at which pyxis starts a container.
const TASK_INIT: &str = "task_init";

type Variables = BTreeMap<String, String>;

/// A hook of a witness.
#[derive(Debug, Clone)]
struct Seen {
    position: String,
    hook: String,
    step: String,
    variables: Variables,
}

impl Seen {
    fn read(line: &str) -> Option<Seen> {
        let mut words = line.split(' ').map(str::to_owned);
        let (position, hook, step) = (words.next()?, words.next()?, words.next()?);
        let variable = |word: String| {
            let (name, value) = word.split_once('=')?;
            // The lab's own variable, which every client has.
            (name != "GPUFRAC_CONFIG").then(|| (name.to_owned(), value.to_owned()))
        };
        Some(Seen {
            position,
            hook,
            step,
            variables: words.filter_map(variable).collect(),
        })
    }

    fn get(&self, name: &str) -> &str {
        self.variables.get(name).map_or("", String::as_str)
    }
}

fn folder(lab: &Lab) -> PathBuf {
    lab.folder().root().join("witness")
}

/// Builds a plugin of this folder for a position.
pub fn build(lab: &Lab, source: &str, position: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/e2e");
    let source = folder.join(source);
    let library = lab.folder().lib().join(format!("{position}.so"));
    let output = Command::new("gcc")
        .args(["-Wall", "-Werror", "-shared", "-fPIC"])
        .arg(format!("-DPLUGIN={position}"))
        .arg(format!("-I{}", lab.slurm().include().display()))
        .args([&source, Path::new("-o"), &library])
        .output()
        .expect("gcc");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    library
}

/// Starts a lab with a witness before gpufrac's line of plugstack.conf, and one behind it.
fn lab(builder: LabBuilder) -> Result<Lab, LabError> {
    let lab = builder.start()?;
    let folder = folder(&lab);
    fs::create_dir(&folder).expect("a folder of the lab");
    fs::set_permissions(&folder, fs::Permissions::from_mode(0o777)).expect("root may");
    let [before, behind] = POSITIONS.map(|position| {
        let library = build(&lab, "witness.c", position);
        format!("required {} {}\n", library.display(), folder.display())
    });
    let plugstack = lab.folder().etc().join("plugstack.conf");
    let ours = fs::read_to_string(&plugstack).expect("plugstack.conf");
    fs::write(&plugstack, format!("{before}{ours}{behind}")).expect("root may");
    Ok(lab)
}

/// What the witnesses saw of a job that ended, apart from the hook before gpufrac's first.
fn seen(lab: &Lab, job: JobId) -> Vec<Seen> {
    let text = fs::read_to_string(folder(lab).join(job.to_string())).expect("a witness");
    let all = text.lines().filter_map(Seen::read);
    all.filter(|seen| (seen.position.as_str(), seen.hook.as_str()) != ("before", "init"))
        .collect()
}

/// Checks that each hook of a job saw the variables of its one slice, or of none; `steps` are the steps with the slice.
fn check(lab: &Lab, job: JobId, fraction: &str, steps: &[&str]) -> Result<String, LabError> {
    let mut devices = BTreeSet::new();
    let mut hooks: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for seen in seen(lab, job) {
        if steps.contains(&seen.step.as_str()) {
            assert_eq!(seen.get("GPUFRAC_FRACTION"), fraction, "{seen:?}");
            assert_eq!(seen.get("GPUFRAC_MECHANISM"), "mig", "{seen:?}");
            assert_eq!(
                seen.get("CUDA_VISIBLE_DEVICES"),
                seen.get("NVIDIA_VISIBLE_DEVICES"),
                "{seen:?}"
            );
            devices.insert(seen.get("CUDA_VISIBLE_DEVICES").to_owned());
        } else {
            assert_eq!(seen.variables, Variables::new(), "{seen:?}");
        }
        let hook = format!("{} {}", seen.hook, seen.position);
        hooks.entry(seen.step).or_default().insert(hook);
    }
    for step in steps {
        // Of seven hooks one position misses the first.
        assert_eq!(
            hooks.get(*step).map(BTreeSet::len),
            Some(13),
            "{step}: {hooks:?}"
        );
    }
    assert!(hooks.contains_key("extern"), "{hooks:?}");
    assert_eq!(devices.len(), usize::from(!steps.is_empty()), "{devices:?}");
    let device = devices.pop_first().unwrap_or_default();
    assert!(steps.is_empty() || device.starts_with("MIG-"), "{device}");
    Ok(device)
}

/// The numbers of the jobs whose ids a command printed, one a line.
fn jobs(output: &str) -> Vec<JobId> {
    output
        .lines()
        .filter_map(|line| Some(JobId(line.parse().ok()?)))
        .collect()
}

/// Promise (users): plugins that start containers see the variables of the slice from the first hook on, before
/// gpufrac's line and behind it, in each kind of step; nothing is left of the job that submitted theirs.
#[test]
fn a_container_plugin_sees_the_slice_wherever_its_line_stands() -> Result<(), LabError> {
    let lab = lab(Lab::builder()
        .nodes(2)
        .slurm_conf_extra("LaunchParameters=use_interactive_step"))?;
    let user = &lab.users()[0];
    let inner = "sbatch --parsable --gres=gpufrac:0.125 --wrap='srun true'; sbatch --parsable --wrap='srun true'";
    let script = format!("srun -n2 true; srun -n1 --gres=none true; {inner}");
    let outer = lab.sbatch(user, &["-n2", "--gres=gpufrac:0.25", "--wrap", &script])?;
    assert_eq!(lab.wait_for_end(outer)?.state(), "COMPLETED");
    let inside = jobs(&lab.output(outer)?);
    assert_eq!(inside.len(), 2);
    for job in &inside {
        assert_eq!(lab.wait_for_end(*job)?.state(), "COMPLETED");
    }
    let first = check(&lab, outer, "0.25", &["batch", "0"])?;
    assert_ne!(first, check(&lab, inside[0], "0.125", &["batch", "0"])?);
    check(&lab, inside[1], "", &[])?;

    let of_command = |program: &str, args: &[&str]| {
        let command =
            lab.command(program)
                .user(user)
                .args(["-n1", "--gres=gpufrac:0.5", "sh", "-c"]);
        let printed = command.args(args).run()?.success()?.stdout;
        lab.wait_until_empty(Duration::from_secs(20))?;
        Ok::<JobId, LabError>(jobs(&printed)[0])
    };
    let srun = of_command("srun", &["echo $SLURM_JOB_ID"])?;
    check(&lab, srun, "0.5", &["0"])?;
    let shell = "echo $SLURM_JOB_ID; srun --interactive true; srun true";
    let salloc = of_command("salloc", &[shell])?;
    check(&lab, salloc, "0.5", &["interactive", "0"])?;

    let script = "#!/bin/sh\n#SBATCH -N1 -n1 --gres=gpufrac:0.25\n#SBATCH hetjob\n\
        #SBATCH -N1 -n1 --gres=gpufrac:0.5\nsrun --het-group=0,1 true\n";
    let script = lab.write_work("het.sh", script)?;
    let leader = lab.sbatch(user, &[&script.display().to_string()])?;
    assert_eq!(lab.wait_for_end(leader)?.state(), "COMPLETED");
    lab.wait_until_empty(Duration::from_secs(20))?;
    let first = check(&lab, leader, "0.25", &["batch", "0"])?;
    assert_ne!(first, check(&lab, JobId(leader.0 + 1), "0.5", &["0"])?);
    lab.expect_nothing_left()
}

/// Promise (users): one container for the tasks of a step has the slices of all; each task uses its own.
#[test]
fn a_container_of_several_tasks_has_the_slices_of_all() -> Result<(), LabError> {
    needs_slurm(23, 11)?;
    let lab = lab(Lab::builder().cores_per_node(16))?;
    let user = &lab.users()[0];
    let script = "srun -n2 sh -c 'echo $SLURM_PROCID $CUDA_VISIBLE_DEVICES $NVIDIA_VISIBLE_DEVICES'; srun -n1 --exact true";
    let job = lab.sbatch(
        user,
        &["-n2", "--tres-per-task=gres/gpufrac:0.25", "--wrap", script],
    )?;
    assert_eq!(lab.wait_for_end(job)?.state(), "COMPLETED");
    lab.wait_until_empty(Duration::from_secs(20))?;

    let all = seen(&lab, job);
    let batch = all
        .iter()
        .find(|seen| seen.step == "batch")
        .expect("a batch step");
    let both = batch.get("CUDA_VISIBLE_DEVICES");
    assert_eq!(both.split(',').count(), 2, "{both}");
    for seen in &all {
        let [own, container] =
            ["CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES"].map(|name| seen.get(name));
        match (
            seen.step.as_str(),
            seen.hook.as_str(),
            seen.position.as_str(),
        ) {
            ("extern", ..) => assert_eq!(seen.variables, Variables::new(), "{seen:?}"),
            ("1", ..) => assert!(
                both.split(',').any(|device| device == container),
                "{seen:?}"
            ),
            ("0", TASK_INIT, "behind") => assert!(
                container == both && both.split(',').any(|device| device == own),
                "{seen:?}"
            ),
            // Slurm has just written its number of the task's device.
            ("0", TASK_INIT, _) => assert_eq!(container, both, "{seen:?}"),
            _ => assert_eq!((own, container), (both, both), "{seen:?}"),
        }
    }
    let output = lab.output(job)?;
    // srun tells of a step that had to wait.
    let mut lines = output.lines().filter(|line| !line.starts_with("srun: "));
    let tasks: BTreeSet<&str> = lines
        .clone()
        .filter_map(|line| line.split(' ').nth(1))
        .collect();
    assert_eq!(tasks, both.split(',').collect(), "{output}");
    assert!(lines.all(|line| line.ends_with(both)), "{output}");
    lab.expect_nothing_left()
}
