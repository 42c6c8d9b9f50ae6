//! The plugins under valgrind's memcheck, in the processes of Slurm that load them: slurmctld, slurmstepd and the
//! commands.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::Duration;

use gpufrac_lab::{Lab, LabError, Outcome, User};
use nix::sys::signal::Signal;
use test_seed::Dice;

use crate::soak::number;
use crate::submission::{build_submitter, submit_by_api};

/// Runs a program and the Slurm programs that it starts under valgrind, which writes its findings to `@FOUND@`.
const MEMCHECK: &str = "#!/bin/sh
exec valgrind --quiet --error-limit=no --num-callers=50 --keep-debuginfo=yes --leak-check=full \
    --show-leak-kinds=definite --trace-children=yes \
    --trace-children-skip='/bin/*,/usr/bin/*,*/bin/prolog,*/bin/epilog,*/slurm_script' \
    --xml=yes --xml-file=@FOUND@/%p.xml \"$@\"
";

/// A daemon under valgrind.
const DAEMON: &str = "#!/bin/sh\nexec \"${0%/*}/memcheck\" /usr/sbin/${0##*/} \"$@\"\n";

/// Requests that are varied by changes of some bytes.
const REQUESTS: [&str; 8] = [
    "gres:gpufrac:0.25",
    "gres/gpufrac:mig:1/8",
    "gres:gpufrac:50,gres:shard:50",
    "gres/gpu:half:1,gres/gpufrac:0.5",
    "gres:gpufrac:10G,gres:tmp:1",
    "x@gres:shard:1,zgpufrac:1",
    "gres/gpufrac:0.5,gres/gpufrac:0.25",
    "gres:gpufrac:0.999999999999999999",
];

/// A request with some bytes changed.
fn changed(dice: &mut Dice) -> String {
    let mut text = REQUESTS[dice.below(REQUESTS.len())].as_bytes().to_vec();
    for _ in 0..dice.below(4) {
        let at = dice.below(text.len());
        match dice.below(3) {
            0 => text[at] = b' ' + dice.below(95) as u8,
            1 => drop(text.remove(at)),
            _ => {
                let part = text[at..].to_vec();
                text.extend(part);
            }
        }
        if text.is_empty() {
            text.push(b',');
        }
    }
    String::from_utf8_lossy(&text).into_owned()
}

/// valgrind's findings about one process.
struct Found {
    /// Errors, and lost memory, with a function of gpufrac on the stack.
    ours: Vec<String>,
    /// The number of Slurm's own findings.
    others: usize,
}

fn found(folder: &Path) -> Found {
    let mut found = Found {
        ours: Vec::new(),
        others: 0,
    };
    for entry in fs::read_dir(folder).expect("it is there") {
        let path = entry.expect("a file").path();
        let text = fs::read(&path).expect("valgrind wrote it");
        let text = String::from_utf8_lossy(&text);
        // Lost memory counts only in slurmctld, which continues to run: slurmstepd unloads its plugins after its one
        // step, and their memory ends with it.
        let stays = text.contains("<exe>/usr/sbin/slurmctld</exe>");
        for error in text.split("<error>").skip(1) {
            let error = error.split("</error>").next().unwrap_or_default();
            if error.contains("<kind>Leak_") && !stays {
                continue;
            }
            if error.contains("gpufrac") {
                found.ours.push(format!("{}: {error}", path.display()))
            } else {
                found.others += 1
            }
        }
    }
    found
}

/// Ends a daemon, and waits until valgrind has searched for lost memory.
fn end(lab: &mut Lab, name: &str) -> Result<(), LabError> {
    let pid = lab.daemon_pid(name).expect("it runs");
    let maps = fs::read_to_string(format!("/proc/{pid}/maps")).expect("it runs");
    assert!(maps.contains("memcheck"), "{name} is not under valgrind");
    lab.signal_daemon(name, Signal::SIGTERM);
    lab.wait(&format!("{name} ended"), Duration::from_secs(120), || {
        Ok(lab.ended_daemons().contains(&name.to_owned()).then_some(()))
    })?;
    lab.stop_daemon(name, Signal::SIGKILL)
}

/// Promise (users): the plugins access no freed or foreign memory, and leak none in slurmctld.
#[test]
#[ignore = "full: minutes under valgrind"]
fn plugins_use_no_memory_that_is_not_theirs() -> Result<(), LabError> {
    let place = tempfile::tempdir().expect("a folder");
    fs::set_permissions(place.path(), fs::Permissions::from_mode(0o1777)).expect("its mode");
    let memcheck = MEMCHECK.replace("@FOUND@", &place.path().display().to_string());
    let mut lab = Lab::builder()
        .script("memcheck", &memcheck)
        .script("slurmctld", DAEMON)
        .script("slurmd", DAEMON)
        .start()?;
    let node = lab.nodes()[0].clone();
    let pid = lab.daemon_pid("slurmctld").expect("it runs");
    let maps = fs::read_to_string(format!("/proc/{pid}/maps")).expect("it runs");
    assert!(maps.contains("job_submit_gpufrac.so"));
    // Many submissions and updates; none of the jobs starts.
    let user = lab.users()[0].clone();
    let state = |state: &str| -> Result<(), LabError> {
        let update = [
            "update",
            &format!("nodename={node}"),
            &format!("state={state}"),
            "reason=test",
        ];
        lab.command("scontrol").args(update).stdout().map(drop)
    };
    state("drain")?;
    let program = build_submitter(&lab)?;
    let mut dice = Dice::new(test_seed::seed());
    let requests = number("GPUFRAC_MEMORY_REQUESTS", 300);
    let held = lab.sbatch(&user, &["--hold", "--gres=gpufrac:0.25", "--wrap=true"])?;
    let mut taken = 0;
    for request in 0..requests {
        let text = changed(&mut dice);
        let entry = format!(
            "SPANK_{}={text}",
            ["GPUFRAC", "GPUFRAC_LOGIN", "X"][dice.below(3)]
        );
        taken += u64::from(
            submit_by_api(&lab, &program, &user, &[&text, &entry])?
                .status
                .success(),
        );
        if request % 5 == 0 {
            let change = [
                &format!("JobId={held}"),
                "Partition=gpu",
                &format!("TresPerNode={text}"),
            ];
            lab.try_update(&user, &change)?;
        }
    }
    assert!(
        taken > 0 && taken < requests,
        "{taken} of {requests} requests were taken"
    );
    lab.command("scancel")
        .args(["--user", &user.name])
        .stdout()?;
    state("resume")?;
    // The commands, and jobs with steps.
    let under = |user: &User, words: &[&str]| -> Result<Outcome, LabError> {
        let command = lab.command("memcheck").user(user);
        command.limit(Duration::from_secs(240)).args(words).run()
    };
    for gres in ["--gres=gpufrac:0.25", "--gres=gpu:0.5", "--gres=none"] {
        under(&user, &["/usr/bin/srun", "-n1", gres, "true"])?.success()?;
    }
    for gres in [
        "--gres=gpufrac:2",
        "--gres=gpufrac:",
        "--gres=gpufrac:1,gpufrac:1",
    ] {
        let refused = under(&user, &["/usr/bin/sbatch", gres, "--wrap=true"])?;
        assert!(!refused.status.success(), "{refused:?}");
    }
    let script = "--wrap=srun --gres=gpufrac:0.125 true; srun true";
    let job = lab.sbatch(&user, &["--gres=gpufrac:0.25", script])?;
    assert_eq!(lab.wait_for_end(job)?.state(), "COMPLETED");
    assert_eq!(lab.drained_nodes()?, Vec::<String>::new());
    end(&mut lab, &format!("slurmd.{node}"))?;
    end(&mut lab, "slurmctld")?;
    let found = found(place.path());
    println!(
        "{requests} requests, {taken} taken: {} errors of gpufrac's plugins, {} of Slurm's own",
        found.ours.len(),
        found.others
    );
    assert!(found.ours.is_empty(), "{}", found.ours.join("\n"));
    Ok(())
}
