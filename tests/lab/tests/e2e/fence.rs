//! Which processes can reach which devices: each job its own instance, and nothing else.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::Duration;

use gpufrac_core::config::{LAST_GOOD, last_good_name};
use gpufrac_lab::{CgroupVersion, JobId, Lab, LabError, User};

/// Opens every GPU, capability node and IMEX channel, and prints the result: `nvidia0 Operation not permitted`.
pub(crate) const LOOK: &str = r#"#!/bin/bash
for file in "$1"/nvidia[0-9]* "$1"/nvidia-caps/* "$1"/nvidia-caps-imex-channels/*; do
    answer=$( (exec 3<"$file") 2>&1 )
    echo "$2 ${file##*/} ${answer##*: }"
done
"#;

/// Waits for the file `go`, then looks, in the batch script and in a step.
const PROBE: &str = r#"#!/bin/bash
echo "CUDA=$CUDA_VISIBLE_DEVICES"
while [ ! -e go ]; do sleep 0.05; done
bash look.sh "$1" batch
srun bash look.sh "$1" step
sleep 0.5
"#;

struct Probe {
    job: JobId,
    /// The results for each device node, by place of the test.
    answers: BTreeMap<&'static str, BTreeMap<String, String>>,
}

impl Probe {
    fn read(lab: &Lab, job: JobId) -> Result<Self, LabError> {
        let output = lab.output(job)?;
        let answers = ["batch", "step"].map(|place| (place, answers(&output, place)));
        Ok(Self {
            job,
            answers: answers.into(),
        })
    }

    fn reached(&self, place: &str) -> BTreeSet<String> {
        reached(
            &self.answers[place],
            &format!("job {} in the {place}", self.job),
        )
    }
}

/// The results from one place, by device node.
pub(crate) fn answers(output: &str, place: &str) -> BTreeMap<String, String> {
    let lines = output.lines().filter_map(|line| line.strip_prefix(place));
    let seen: BTreeMap<_, _> = lines
        .filter_map(|line| line.trim().split_once(' '))
        .map(|(file, answer)| (file.to_owned(), answer.to_owned()))
        .collect();
    assert!(seen.len() > 3, "{output}");
    seen
}

/// The nodes that answered as devices (ENXIO, because they have no driver); all other jobs must not reach these.
pub(crate) fn reached(answers: &BTreeMap<String, String>, who: &str) -> BTreeSet<String> {
    let mut reached = BTreeSet::new();
    for (file, answer) in answers {
        match answer.as_str() {
            "No such device or address" => {
                reached.insert(file.clone());
            }
            "Permission denied" | "Operation not permitted" => {}
            other => panic!("{who}: {file}: {other}"),
        }
    }
    reached
}

/// The nodes that a process of a job's user reaches after pam_slurm_adopt moved it to the job.
pub(crate) fn reached_by_ssh(
    lab: &Lab,
    (job, user): (JobId, &User),
    devices: &str,
) -> Result<BTreeSet<String>, LabError> {
    let sign = format!("adopted.{job}");
    // The file of an earlier call.
    let _ = std::fs::remove_file(lab.folder().work().join(&sign));
    let mut login = lab
        .command("bash")
        .user(user)
        .current_dir(lab.folder().work())
        .args([
            "-c",
            "while [ ! -e $0 ]; do sleep 0.05; done; bash look.sh $1 ssh",
        ])
        .args([&sign, devices])
        .spawn()?;
    assert!(!login.ended());
    lab.put_in_extern_step(&lab.nodes()[0], job, login.pid())?;
    lab.write_work(&sign, "")?;
    let output = login.wait()?.success()?.stdout;
    Ok(reached(
        &answers(&output, "ssh"),
        &format!("in job {job} by ssh"),
    ))
}

/// The device nodes of a running job's slice.
pub(crate) fn own_devices(lab: &Lab, job: JobId) -> Result<BTreeSet<String>, LabError> {
    let slice = lab.slice(&lab.nodes()[0], job)?.lease.slice;
    let made = slice
        .instance()
        .expect("an active lease names its instance");
    Ok(BTreeSet::from([
        format!("nvidia{}", slice.gpu_minor),
        format!("nvidia-cap{}", made.gi_cap_minor),
        format!("nvidia-cap{}", made.ci_cap_minor),
    ]))
}

/// Promise (isolation): two users, and one user twice: each job opens its own instance alone; a job without a fraction
/// none.
#[test]
fn two_users_side_by_side_reach_their_own_instance_and_nothing_else() -> Result<(), LabError> {
    side_by_side(CgroupVersion::V1)
}

/// Promise (isolation): the fence on control groups of version 2, beside Slurm's own BPF programs.
/// With `steps_are_fenced_together_with_slurms_own_programs`.
#[test]
fn two_users_side_by_side_on_control_groups_of_version_2() -> Result<(), LabError> {
    side_by_side(CgroupVersion::V2)
}

fn side_by_side(version: CgroupVersion) -> Result<(), LabError> {
    crate::needs_groups(version);
    let lab = Lab::builder().cgroup(version).gpus("H100-80", 2).start()?;
    let node = &lab.nodes()[0];
    let devices = lab.folder().gpus(node).join("dev").display().to_string();
    lab.write_work("look.sh", LOOK)?;
    lab.write_work("probe.sh", PROBE)?;
    let submit = |user: &User, gres: Option<&str>| {
        let gres = gres.map(|fraction| format!("--gres=gpufrac:{fraction}"));
        let mut args: Vec<&str> = gres.as_deref().into_iter().collect();
        args.extend(["probe.sh", &devices]);
        lab.sbatch(user, &args)
    };
    let (one, two) = (&lab.users()[0], &lab.users()[1]);
    let first = submit(one, Some("0.25"))?;
    let second = submit(two, Some("0.25"))?;
    // The same user again: file modes do not help here, only the control group does.
    let again = submit(one, Some("0.5"))?;
    let without = submit(one, None)?;
    for job in [first, second, again, without] {
        lab.wait_for_state(job, &["RUNNING"])?;
    }
    let mut own = BTreeMap::new();
    for job in [first, second, again] {
        own.insert(job, own_devices(&lab, job)?);
    }
    own.insert(without, BTreeSet::new());
    assert_eq!(
        lab.slice(node, first)?.instance.gpu,
        lab.slice(node, second)?.instance.gpu
    );
    // A process that joins by ssh has the devices of the job.
    for (job, user) in [(first, one), (second, two), (without, one)] {
        let reached = reached_by_ssh(&lab, (job, user), &devices)?;
        assert_eq!(reached, own[&job], "job {job} by ssh");
    }
    lab.write_work("go", "")?;
    for (job, expected) in own {
        assert_eq!(lab.wait_for_end(job)?.state(), "COMPLETED");
        let probe = Probe::read(&lab, job)?;
        for place in ["batch", "step"] {
            assert_eq!(probe.reached(place), expected, "job {job} in the {place}");
        }
    }
    lab.expect_nothing_left()
}

/// A CUDA program on the job's own instance, and on another one.
const PROGRAM: &str = r#"#!/bin/bash
while [ ! -e go ]; do sleep 0.05; done
gpusim --root "$1" run --seconds 0.1 >/dev/null 2>&1; echo "own $?"
for device in $(cat others); do
    [ "$device" = "$CUDA_VISIBLE_DEVICES" ] && continue
    gpusim --root "$1" run --seconds 0.1 --try "$device" >/dev/null 2>&1; echo "other $?"
done
"#;

/// `cudaErrorNoDevice`, the exit status of a program that may not open its device.
const NO_DEVICE: &str = "100";

/// Promise (isolation): CUDA programs reach the instances of their job and no other.
#[test]
fn a_cuda_program_runs_on_its_own_instance_and_on_no_other() -> Result<(), LabError> {
    let lab = Lab::builder().gpus("H100-80", 2).start()?;
    let node = &lab.nodes()[0];
    let root = lab.folder().gpus(node).display().to_string();
    lab.write_work("program.sh", PROGRAM)?;
    let users = [&lab.users()[0], &lab.users()[1], &lab.users()[0]];
    let submit = |user| lab.sbatch(user, &["--gres=gpufrac:0.25", "program.sh", &root]);
    let jobs = users
        .into_iter()
        .map(submit)
        .collect::<Result<Vec<_>, _>>()?;
    let without = lab.sbatch(users[0], &["program.sh", &root])?;
    for job in jobs.iter().chain([&without]) {
        lab.wait_for_state(*job, &["RUNNING"])?;
    }
    // CUDA takes a GPU in MIG mode for the first instance on it that it can open, which on a job's own GPU is its own
    // instance. All three jobs are on the first GPU.
    let mut devices = lab.gpu_uuids(node)?.split_off(1);
    for job in &jobs {
        devices.extend(lab.slice(node, *job)?.instance.uuids);
    }
    lab.write_work("others", &devices.join(" "))?;
    lab.write_work("go", "")?;
    for job in jobs {
        assert_eq!(lab.wait_for_end(job)?.state(), "COMPLETED");
        let output = lab.output(job)?;
        let (own, others): (Vec<_>, Vec<_>) =
            output.lines().partition(|line| line.starts_with("own"));
        assert_eq!(own, ["own 0"], "{output}");
        // The other GPU and the other jobs' instances.
        assert_eq!(others, vec![format!("other {NO_DEVICE}"); 3], "{output}");
    }
    lab.wait_for_end(without)?;
    let output = lab.output(without)?;
    assert!(!output.contains(" 0"), "{output}");
    assert_eq!(output.lines().count(), 5, "{output}");
    lab.expect_nothing_left()
}

/// Promise (isolation): a step without a GPU reaches no GPU of another job.
#[test]
fn a_step_that_gives_its_gpu_up_reaches_no_other() -> Result<(), LabError> {
    let lab = Lab::builder().start()?;
    let node = &lab.nodes()[0];
    let devices = lab.folder().gpus(node).join("dev").display().to_string();
    let without = PROBE.replace("srun bash", "srun --gres=none bash");
    lab.write_work("look.sh", LOOK)?;
    lab.write_work("probe.sh", &without)?;
    let job = lab.sbatch(
        &lab.users()[0],
        &["--gres=gpufrac:0.25", "probe.sh", &devices],
    )?;
    lab.wait_for_state(job, &["RUNNING"])?;
    let own = own_devices(&lab, job)?;
    lab.write_work("go", "")?;
    assert_eq!(lab.wait_for_end(job)?.state(), "COMPLETED");
    // Steps can still reach the job's own instance: the fence is around jobs.
    let probe = Probe::read(&lab, job)?;
    assert!(probe.reached("step").is_subset(&own), "{:?}", probe.answers);
    lab.expect_nothing_left()
}

/// Waits until a file is in the jobs' folder.
pub(crate) fn wait_for_file(lab: &Lab, name: &str) -> Result<(), LabError> {
    let path = lab.folder().work().join(name);
    lab.wait(&format!("{name} is there"), Duration::from_secs(60), || {
        Ok(path.exists().then_some(()))
    })
}

/// Promise (isolation): on a node with pools no task starts without its fence.
/// With `without_task_cgroup_a_task_is_fenced_or_does_not_start`.
#[test]
fn no_task_starts_where_it_is_not_known_what_to_close() -> Result<(), LabError> {
    let lab = Lab::builder().start()?;
    let (node, user) = (&lab.nodes()[0], &lab.users()[0]);
    let (record, config) = (
        lab.folder().run(node).join("fence"),
        lab.folder().gpufrac_conf(),
    );
    for (path, text) in [
        (&record, Some("{}")),
        (&record, None),
        (&config, Some("version = 7\n")),
        (&config, None),
    ] {
        let job = lab.sbatch(user, &["--hold", "--wrap=touch ran"])?;
        let right = std::fs::read(path).expect("a file of the lab");
        // The copy of the last valid configuration would be used.
        let copy = last_good_name(node, &config.to_string_lossy());
        let _ = std::fs::remove_file(Path::new(LAST_GOOD).join(copy));
        match text {
            Some(text) => std::fs::write(path, text).expect("root may"),
            None => std::fs::remove_file(path).expect("root may"),
        }
        let release = lab.command("scontrol");
        release.args(["release", &job.to_string()]).stdout()?;
        let ended = lab.wait_for_end(job)?;
        std::fs::write(path, right).expect("root may");
        let what = format!("{}: {text:?}", path.display());
        assert_ne!(ended.state(), "COMPLETED", "{what}");
        assert!(!lab.folder().work().join("ran").exists(), "{what}");
    }
    // A lease that is damaged while its job runs: no further step of the job starts.
    let script = "--wrap=touch began; while [ ! -e go ]; do sleep 0.05; done; srun touch ran; touch tried; \
                  while [ ! -e end ]; do sleep 0.05; done";
    let job = lab.sbatch(user, &["--gres=gpufrac:0.25", script])?;
    wait_for_file(&lab, "began")?;
    let lease = lab.lease_path(node, job);
    let right = std::fs::read(&lease).expect("its lease");
    std::fs::write(&lease, "damaged").expect("root may");
    lab.write_work("go", "")?;
    wait_for_file(&lab, "tried")?;
    assert!(!lab.folder().work().join("ran").exists());
    std::fs::write(&lease, right).expect("root may");
    lab.write_work("end", "")?;
    lab.wait_for_end(job)?;
    // After the repair jobs start as before.
    let job = lab.sbatch(user, &["--wrap=true"])?;
    assert_eq!(lab.wait_for_end(job)?.state(), "COMPLETED");
    assert_eq!(lab.drained_nodes()?, Vec::<String>::new());
    lab.expect_nothing_left()
}
