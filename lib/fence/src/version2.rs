//! Version 2: the kernel asks a BPF program for each device.
//!
//! Slurm has such programs too, one for the job, and, in steps of srun, one for the step's `user` folder and one for
//! each task. Each replaces the one above it (`BPF_F_ALLOW_OVERRIDE`), and the job's is attached again with each step.
//! gpufrac's program is attached to the step's own folder, which has no program of Slurm, with `BPF_F_ALLOW_MULTI`, so
//! that the programs below it also apply. The job's program does not apply there any more, so gpufrac attaches it to
//! the same folder, for the batch script, the extern step and others without a program below. The kernel removes the
//! programs with the folder.
//!
//! The job's user can own folders of tasks, never the step's.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use gpufrac_core::ids::JobId;
use gpufrac_core::lease;

use super::bpf::{self, About, Attached, Instruction, Program};
use gpufrac_host::cgroup;
use gpufrac_host::files::DeviceRule;

use super::{DevCgroupError, Mount};

/// The name of gpufrac's programs, as `bpftool cgroup tree` shows it.
const NAME: &str = "gpufrac_fence";
/// The largest minor number of a device (`MINORBITS` of linux/kdev_t.h).
const LAST_MINOR: u32 = (1 << 20) - 1;

/// The name of Slurm's programs (`load_ebpf_prog` in `ebpf.c`).
const SLURMS_NAME: &str = "Slurm_Cgroup_v2";
/// How often the programs are queried again if Slurm replaces them meanwhile.
const QUERIES: u32 = 20;

/// As [`super::fence`], in the unified hierarchy; None if the process is in no group of the job.
pub fn fence(
    memberships: &str,
    mountinfo: &str,
    job_id: JobId,
    rules: &[DeviceRule],
) -> Result<Option<PathBuf>, DevCgroupError> {
    let Some(path) = cgroup::unified(memberships).map(Path::new) else {
        return Ok(None);
    };
    let Some(mount) = Mount::of(path, mountinfo, |kind, _| kind == "cgroup2") else {
        return Ok(None);
    };
    let Some(step) = step_group(path, job_id) else {
        return Ok(None);
    };
    let cgroup = mount.folder(&step);
    let own = Program::load(&instructions(rules), NAME).map_err(DevCgroupError::NoPrograms)?;
    close(&cgroup, &mount.point, &own)?;
    // The extern step, which ssh sessions join. It is closed with each step, so that one failure does not leave it
    // open.
    let external = cgroup.with_file_name("step_extern");
    if external != cgroup && external.is_dir() {
        close(&external, &mount.point, &own)?;
    }
    Ok(Some(cgroup))
}

/// Whether the kernel can load a program.
pub fn probe() -> Result<(), DevCgroupError> {
    let program = Program::load(&instructions(&[]), NAME);
    program.map(drop).map_err(DevCgroupError::NoPrograms)
}

/// Attaches gpufrac's program to a step. Programs of an earlier run of the job in the same folder are replaced; the
/// job's user can keep such a folder.
fn close(step: &Path, mount: &Path, own: &Program) -> Result<(), DevCgroupError> {
    let failed = |action: &'static str| {
        let path = step.to_owned();
        move |source| DevCgroupError::Bpf {
            action,
            path,
            source,
        }
    };
    let group = open(step)?;
    let slurms = replaced(step, mount)?;
    let (present, _) = of_group(&group).map_err(failed("asking for the programs of"))?;
    // Slurm's programs first, which would no longer apply; then gpufrac's. If the process dies in between, nothing is
    // open that was closed before.
    let is_new = |(_, about): &&LoadedProgram| present.iter().all(|(_, other)| other != about);
    let missing = slurms.iter().filter(is_new).map(|(program, _)| program);
    for program in missing.chain([own]) {
        let attached = program.attach(&group, bpf::TOGETHER);
        attached.map_err(failed("attaching a program to"))?;
    }
    for (program, about) in &present {
        // Also an equal one of gpufrac's: another step that begins now may detach it, and cannot know this one.
        let is_old = match about.name.as_str() {
            NAME => true,
            SLURMS_NAME => slurms.iter().all(|(_, other)| other != about),
            _ => false,
        };
        if is_old {
            match program.detach(&group) {
                // Another step of the job that begins has detached it.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                done => done.map_err(failed("detaching an old program from"))?,
            }
        }
    }
    Ok(())
}

/// The programs above a group that no longer apply after the group gets its own: those of the nearest group with
/// programs, unless they are attached with BPF_F_ALLOW_MULTI (cgroup.c of the kernel, `compute_effective_progs`).
fn replaced(group: &Path, mount: &Path) -> Result<Vec<LoadedProgram>, DevCgroupError> {
    for above in group.ancestors().skip(1) {
        let found = of_group(&open(above)?).map_err(|source| DevCgroupError::Bpf {
            action: "asking for the programs of",
            path: above.to_owned(),
            source,
        });
        match found? {
            (programs, _) if programs.is_empty() => {}
            (_, true) => break,
            (programs, false) => return Ok(programs),
        }
        if above == mount {
            break;
        }
    }
    Ok(Vec::new())
}

/// A program, and the kernel's information about it.
type LoadedProgram = (Program, About);

/// The programs of a group itself, and whether they apply together with those below. Queried again if one disappears,
/// because Slurm replaces the job's program with each step that begins.
fn of_group(group: &File) -> io::Result<(Vec<LoadedProgram>, bool)> {
    let query = || -> io::Result<(Vec<LoadedProgram>, bool)> {
        let Attached { ids, together } = bpf::attached(group)?;
        let programs = ids.into_iter().map(|id| known(Program::of_id(id)?));
        Ok((programs.collect::<io::Result<_>>()?, together))
    };
    for _ in 1..QUERIES {
        match query() {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            other => return other,
        }
    }
    query()
}

fn known(program: Program) -> io::Result<LoadedProgram> {
    let about = program.about()?;
    Ok((program, about))
}

fn open(group: &Path) -> Result<File, DevCgroupError> {
    let flags = libc::O_DIRECTORY | libc::O_NOFOLLOW;
    OpenOptions::new()
        .read(true)
        .custom_flags(flags)
        .open(group)
        .map_err(|source: io::Error| DevCgroupError::Read {
            path: group.to_owned(),
            source,
        })
}

/// The path up to the step's folder, `.../[NODE_]slurmstepd.scope/JOB/step_...`; None if the path is not in this job.
/// JOB is `job_<id>`, or from Slurm 26.05 on a SLUID, which does not contain the job's id.
fn step_group(path: &Path, job_id: JobId) -> Option<PathBuf> {
    let text = |part: &Path| Some(part.file_name()?.to_str()?.to_owned());
    path.ancestors().find_map(|step| {
        let job = step.parent()?;
        let is_scope = text(job.parent()?)?.ends_with("slurmstepd.scope");
        let job_name = text(job)?;
        let is_job = lease::id_of_group(&job_name) == Some(job_id) || lease::is_sluid(&job_name);
        let is_step = text(step)?.starts_with("step_");
        (is_scope && is_job && is_step).then(|| step.to_owned())
    })
}

/// A program that allows all devices except those of the rules.
fn instructions(rules: &[DeviceRule]) -> Vec<Instruction> {
    let [denied, allowed] = [0, 1].map(answer);
    let mut program = vec![
        load(KIND, 0),
        with(AND, KIND, 0, 0xffff),
        with(JUMP_IF_EQUAL, KIND, 2, CHARACTER),
    ];
    program.extend(allowed);
    program.extend([load(MAJOR, 4), load(MINOR, 8)]);
    for (major, (first, last)) in ranges(rules) {
        program.extend([
            with(JUMP_UNLESS_EQUAL, MAJOR, 4, major),
            with(JUMP_IF_LESS, MINOR, 3, first),
            with(JUMP_IF_GREATER, MINOR, 2, last),
        ]);
        program.extend(denied);
    }
    program.extend(allowed);
    program
}

/// The closed devices as major number and range of minor numbers: capability devices come in rows of hundreds.
fn ranges(rules: &[DeviceRule]) -> Vec<(u32, (u32, u32))> {
    let mut minors: Vec<(u32, (u32, u32))> = rules
        .iter()
        .map(|rule| match rule {
            DeviceRule::Device(number) | DeviceRule::Behind(number) => {
                (number.major, (number.minor, number.minor))
            }
            DeviceRule::Major(major) => (*major, (0, LAST_MINOR)),
        })
        .collect();
    minors.sort_unstable();
    minors.dedup_by(|(major, (first, last)), (major_before, (_, last_before))| {
        let continues = major == major_before && *first <= last_before.saturating_add(1);
        if continues {
            *last_before = (*last).max(*last_before);
        }
        continues
    });
    minors
}

// Registers.
const ANSWER: u8 = 0;
/// The address of `struct bpf_cgroup_dev_ctx` at the start of a program.
const CONTEXT: u8 = 1;
const KIND: u8 = 2;
const MAJOR: u8 = 3;
const MINOR: u8 = 4;

/// The lower half of `access_type` for a character device (`BPF_DEVCG_DEV_CHAR`).
const CHARACTER: u32 = 2;

// Codes of instructions, composed as in linux/bpf_common.h and linux/bpf.h.
/// `BPF_JMP | BPF_JEQ | BPF_K`
const JUMP_IF_EQUAL: u8 = 0x15;
/// `BPF_JMP | BPF_JNE | BPF_K`
const JUMP_UNLESS_EQUAL: u8 = 0x55;
/// `BPF_JMP | BPF_JLT | BPF_K`
const JUMP_IF_LESS: u8 = 0xa5;
/// `BPF_JMP | BPF_JGT | BPF_K`
const JUMP_IF_GREATER: u8 = 0x25;
/// `BPF_ALU64 | BPF_AND | BPF_K`
const AND: u8 = 0x57;
/// `BPF_ALU64 | BPF_MOV | BPF_K`
const MOVE: u8 = 0xb7;
/// `BPF_LDX | BPF_MEM | BPF_W`
const LOAD: u8 = 0x61;
/// `BPF_JMP | BPF_EXIT`
const EXIT: u8 = 0x95;

fn with(code: u8, register: u8, offset: i16, value: u32) -> Instruction {
    Instruction {
        code,
        registers: register,
        offset,
        immediate: value.cast_signed(),
    }
}

/// Loads 32 bits of the context.
fn load(register: u8, offset: i16) -> Instruction {
    with(LOAD, register | CONTEXT << 4, offset, 0)
}

/// Ends a program with `value`: 1 allows the device, 0 denies it.
fn answer(value: u32) -> [Instruction; 2] {
    [with(MOVE, ANSWER, 0, value), with(EXIT, 0, 0, 0)]
}

#[cfg(test)]
mod tests {
    use gpufrac_core::ids::UserId;
    use std::fs;
    use std::io::Write;
    use std::process::{Command, Stdio};

    use super::*;
    use gpufrac_host::files::{DeviceNumber, RootDir};

    /// Promise (admins): a kernel that lacks a call is found by `gpufrac check`, or another way is taken.
    /// With `a_kernel_without_pidfd_kills_by_number_and_start`, `a_kernel_that_cannot_compare_files_says_no`.
    #[test]
    fn a_kernel_without_programs_for_devices_is_named() {
        test_seed::without(&[libc::SYS_bpf], || {
            let error = probe().unwrap_err();
            assert!(matches!(error, DevCgroupError::NoPrograms(_)), "{error}");
            assert!(error.to_string().contains("Function not implemented"));
        });
    }

    #[test]
    fn only_steps_of_the_job_have_a_group() {
        let of = |path: &str| step_group(Path::new(path), JobId(12));
        let scope = "/system.slice/n1_slurmstepd.scope";
        for job in ["job_12", "sEKNKTV3WPV500"] {
            let step = format!("{scope}/{job}/step_0");
            for below in ["", "/slurm", "/user/task_0", "/user/task_0/step_1/mine"] {
                assert_eq!(of(&format!("{step}{below}")), Some(step.clone().into()));
            }
        }
        let plain = "/system.slice/slurmstepd.scope/job_12/step_extern";
        assert_eq!(
            of(&format!("{plain}/user/task_special")),
            Some(plain.into())
        );
        for other in [
            format!("{scope}/job_1/step_0/user"),
            format!("{scope}/job_12"),
            format!("{scope}/system"),
            format!("{scope}/slurmd"),
            "/system.slice/slurmd.service".into(),
            "/user.slice/job_12/step_0".into(),
            "/".into(),
        ] {
            assert_eq!(of(&other), None, "{other}");
        }
    }

    /// Groups as Slurm makes them, in the kernel's own hierarchy; removed at the end of the test.
    struct Scope(PathBuf);

    impl Scope {
        fn new() -> (Scope, Mount) {
            let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
            let mount = Mount::of(Path::new("/"), &mounts, |kind, _| kind == "cgroup2");
            let scope = mount.as_ref().map(|mount| {
                let name = format!("gpufrac{}_slurmstepd.scope", std::process::id());
                mount.point.join(name)
            });
            match (mount, scope) {
                (Some(mount), Some(scope)) if fs::create_dir(&scope).is_ok() => {
                    (Scope(scope), mount)
                }
                _ => test_seed::not_run("no control groups of version 2 to write to"),
            }
        }

        fn group(&self, name: &str) -> PathBuf {
            let path = self.0.join(name);
            fs::create_dir_all(&path).unwrap();
            path
        }

        /// Attaches a program as Slurm does: `flags` is `BPF_F_ALLOW_OVERRIDE` (1) above tasks, and 0 for a task.
        fn slurm_denies(&self, name: &str, flags: u32, minors: &[u32]) {
            let rules: Vec<DeviceRule> = minors.iter().map(|minor| rule(*minor)).collect();
            let program = Program::load(&instructions(&rules), "Slurm_Cgroup_v2").unwrap();
            let group = open(&self.group(name)).unwrap();
            program.attach(&group, flags).unwrap();
        }
    }

    impl Drop for Scope {
        fn drop(&mut self) {
            fn remove(path: &Path) {
                for entry in fs::read_dir(path).into_iter().flatten().flatten() {
                    if entry.path().is_dir() {
                        remove(&entry.path());
                    }
                }
                let _ = fs::remove_dir(path);
            }
            remove(&self.0);
        }
    }

    fn rule(minor: u32) -> DeviceRule {
        DeviceRule::Device(DeviceNumber { major: 60, minor })
    }

    /// Which of eight devices a process in a group can open. No driver serves these devices.
    fn opens(group: &Path, devices: &Path) -> Vec<u32> {
        let script = "read go; for n in 0 1 2 3 4 5 6 7; do echo $n $( (exec 3<$0/$n) 2>&1 ); done";
        let mut child = Command::new("sh")
            .args(["-c", script])
            .arg(devices)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .env("LC_ALL", "C")
            .spawn()
            .unwrap();
        fs::write(group.join("cgroup.procs"), child.id().to_string()).unwrap();
        child.stdin.take().unwrap().write_all(b"go\n").unwrap();
        let output = child.wait_with_output().unwrap();
        let lines = String::from_utf8(output.stdout).unwrap();
        let reached = lines.lines().filter(|line| {
            let no_driver = line.ends_with("No such device or address");
            assert!(no_driver || line.ends_with("not permitted"), "{line}");
            no_driver
        });
        let reached: Vec<u32> = reached
            .map(|line| line.split(' ').next().unwrap().parse().unwrap())
            .collect();
        assert_eq!(lines.lines().count(), 8, "{lines}");
        reached
    }

    #[test]
    fn steps_are_fenced_together_with_slurms_own_programs() {
        let (scope, mount) = Scope::new();
        probe().unwrap();
        let keep = tempfile::tempdir().unwrap();
        let devices = RootDir::open(keep.path()).unwrap();
        for minor in 0..8 {
            let DeviceRule::Device(number) = rule(minor) else {
                unreachable!()
            };
            let name = minor.to_string();
            devices
                .ensure_device(&name, number, UserId::ROOT, 0o666)
                .unwrap();
        }
        let opens = |name: &str| opens(&scope.group(name), keep.path());
        let fence = |name: &str, job_id: JobId, rules: &[DeviceRule]| {
            let path = scope.group(name);
            let path = Path::new("/").join(path.strip_prefix(&mount.point).unwrap());
            let line = format!("1 2 0:1 / {} rw - cgroup2 none rw", mount.point.display());
            fence(&format!("0::{}\n", path.display()), &line, job_id, rules).unwrap()
        };
        let closed = |step: &str| Some(scope.group(step));
        // The programs that Slurm attaches when the batch script begins, and with a step.
        scope.slurm_denies("job_7", 1, &[0]);
        scope.slurm_denies("job_7/step_0/user", 1, &[0, 1]);
        scope.slurm_denies("job_7/step_0/user/task_0", 0, &[0, 1, 2]);
        let (batch, task) = ("job_7/step_batch/user/task_0", "job_7/step_0/user/task_0");
        let special = "job_7/step_extern/user/task_special";
        assert_eq!(opens(batch), [1, 2, 3, 4, 5, 6, 7]);
        let rules = [rule(3), rule(4), rule(6)];
        for (group, step) in [(batch, "batch"), (task, "0"), (special, "extern")] {
            let step = closed(&format!("job_7/step_{step}"));
            assert_eq!(fence(group, JobId(7), &rules), step);
            // A further task of the step fences again.
            assert_eq!(fence(group, JobId(7), &rules), step);
        }
        let of_job = |step: &str| {
            let found = bpf::attached(&open(&scope.group(step)).unwrap()).unwrap();
            assert!(found.together);
            found.ids.len()
        };
        assert_eq!(opens(batch), [1, 2, 5, 7]);
        assert_eq!(opens(special), [1, 2, 5, 7]);
        assert_eq!(opens(task), [5, 7]);
        // Slurm's program for the job, and gpufrac's.
        assert_eq!(of_job("job_7/step_batch"), 2);
        // With the next step Slurm attaches the job's program again, and that of this step.
        scope.slurm_denies("job_7", 1, &[0]);
        scope.slurm_denies("job_7/step_1/user", 1, &[0]);
        let task = "job_7/step_1/user/task_0";
        assert_eq!(opens(task), [1, 2, 3, 4, 5, 6, 7]);
        assert_eq!(fence(task, JobId(7), &rules), closed("job_7/step_1"));
        assert_eq!(opens(task), [1, 2, 5, 7]);
        assert_eq!(opens(batch), [1, 2, 5, 7]);
        // A group that the job's user makes below that of a task.
        assert_eq!(opens("job_7/step_1/user/task_0/mine"), [1, 2, 5, 7]);
        // Another run of the job in the same folders: the devices closed to the first run are not closed to the second.
        scope.slurm_denies("job_7", 1, &[5]);
        for _ in 0..2 {
            assert_eq!(
                fence(batch, JobId(7), &[rule(7)]),
                closed("job_7/step_batch")
            );
            assert_eq!(opens(batch), [0, 1, 2, 3, 4, 6]);
            assert_eq!(opens(special), [0, 1, 2, 3, 4, 6]);
            assert_eq!(of_job("job_7/step_batch"), 2);
        }
        // A job without Slurm's device programs, in a group named by SLUID; a rule for a whole major number.
        let named = "sEKNKTV3WPV500/step_batch/user/task_0";
        let all = [DeviceRule::Major(60)];
        assert_eq!(
            fence(named, JobId(8), &all),
            closed("sEKNKTV3WPV500/step_batch")
        );
        assert_eq!(opens(named), Vec::<u32>::new());
        // Its extern step could not be closed when it began, and is closed with the next step.
        let special = "sEKNKTV3WPV500/step_extern/user/task_special";
        assert_eq!(opens(special).len(), 8);
        fence(named, JobId(8), &all);
        assert_eq!(opens(special), Vec::<u32>::new());
        assert_eq!(of_job("sEKNKTV3WPV500/step_batch"), 1);
        // A process that is not of this job is never fenced.
        for other in ["system", "slurmd", "job_71/step_0"] {
            assert_eq!(fence(other, JobId(7), &all), None);
            assert_eq!(opens(other), [0, 1, 2, 3, 4, 5, 6, 7]);
        }
        // Steps with other devices that begin at the same time replace each other's program of the extern step.
        scope.group("job_9/step_extern");
        std::thread::scope(|threads| {
            for step in 0..4 {
                let fence = &fence;
                threads.spawn(move || {
                    let task = format!("job_9/step_{step}/user/task_0");
                    for round in 0..50 {
                        fence(&task, JobId(9), &[rule(step), rule(4 + round % 4)]);
                    }
                });
            }
        });
        assert!(opens("job_9/step_extern/user/task_special").len() <= 6);
    }

    #[test]
    fn neighbours_become_one_range() {
        let device = |major, minor| DeviceRule::Device(DeviceNumber { major, minor });
        let rules = [
            device(234, 9),
            device(195, 1),
            device(234, 7),
            device(234, 8),
            device(234, 12),
            device(195, 1),
        ];
        assert_eq!(
            ranges(&rules),
            [(195, (1, 1)), (234, (7, 9)), (234, (12, 12))]
        );
        let all = [device(5, 3), DeviceRule::Major(5), device(6, 0)];
        assert_eq!(ranges(&all), [(5, (0, LAST_MINOR)), (6, (0, 0))]);
        assert_eq!(ranges(&[]), []);
    }
}
