//! `gpufrac check` names each mistake in the settings of a real Slurm, with its place and its cure.

use std::fs;

use gpufrac_lab::{Lab, LabError};
use nix::sys::signal::Signal;

/// Exit code, stdout, stderr.
type Said = (i32, String, String);

/// Runs `gpufrac check` on a node, or on another host.
fn check(lab: &Lab, args: &[&str], node: &str) -> Result<Said, LabError> {
    let command = lab.command("gpufrac").args(["check"]).args(args);
    let said = command.env("SLURMD_NODENAME", node).run()?;
    Ok((said.status.code().unwrap_or(-1), said.stdout, said.stderr))
}

/// Changes a file of the lab, which must contain the text. Returns the old text, and the line.
fn change(lab: &Lab, file: &str, from: &str, to: &str) -> (String, usize) {
    let path = lab.folder().etc().join(file);
    let text = fs::read_to_string(&path).expect("a file of the lab");
    let at = text
        .find(from)
        .unwrap_or_else(|| panic!("no {from:?} in {text}"));
    fs::write(&path, text.replacen(from, to, 1)).expect("root may");
    (
        text.clone(),
        text[..at].lines().count().max(1) + usize::from(text[..at].ends_with('\n') && at > 0),
    )
}

fn restore(lab: &Lab, file: &str, text: &str) {
    fs::write(lab.folder().etc().join(file), text).expect("root may");
}

#[test]
fn the_labs_own_settings_are_right() -> Result<(), LabError> {
    let lab = Lab::builder().nodes(2).start()?;
    let node = lab.nodes()[1].clone();
    let (code, out, err) = check(&lab, &[], &node)?;
    assert_eq!((code, err.as_str()), (0, ""), "{out}");
    assert!(
        out.ends_with(&format!("ok; node {node}: ok; Slurm: ok\n")),
        "{out}"
    );
    // slurmctld's host or a login host: only Slurm is checked.
    let (code, out, err) = check(&lab, &[], "login")?;
    assert_eq!((code, err.as_str()), (0, ""), "{out}");
    assert!(out.ends_with("gpufrac.toml: ok; Slurm: ok\n"), "{out}");
    let (_, out, _) = check(&lab, &["--slurm"], &node)?;
    assert!(out.ends_with("gpufrac.toml: ok; Slurm: ok\n"), "{out}");
    let (_, out, _) = check(&lab, &["--file-only"], &node)?;
    assert!(out.ends_with("gpufrac.toml: ok\n"), "{out}");
    Ok(())
}

/// Promise (admins): `gpufrac check` says where the pools of a host are not those that slurmctld has.
/// With `an_answer_is_a_sum_or_why_there_is_none`.
#[test]
fn pools_that_are_not_slurmctlds_are_named() -> Result<(), LabError> {
    let lab = Lab::builder().start()?;
    let (node, user) = (lab.nodes()[0].clone(), lab.users()[0].clone());
    let differs = |host: &str| -> Result<bool, LabError> {
        let (code, out, err) = check(&lab, &[], host)?;
        let differs = err.contains("its pools differ from those of slurmctld (checksum ");
        assert_eq!(code == 2, differs, "{out}{err}");
        assert!(!differs || err.contains("`scontrol reconfigure`"), "{err}");
        // Any user may run it.
        let command = lab.command("gpufrac").args(["check", "--quiet"]);
        let said = command.env("SLURMD_NODENAME", host).user(&user).run()?;
        assert_eq!(
            said.stderr.contains("differ from those of slurmctld"),
            differs
        );
        Ok(differs)
    };
    assert!(!differs(&node)? && !differs("login")?);
    // Comments and the order of keys do not matter, the menu does.
    let (text, _) = change(&lab, "gpufrac.toml", "gpu = ", "# New.\ngpu = ");
    assert!(!differs(&node)?);
    restore(&lab, "gpufrac.toml", &text);
    let menu = "menu = [\"1/2\", \"1/8\"]\ngpu = ";
    let (text, _) = change(&lab, "gpufrac.toml", "gpu = ", menu);
    assert!(differs(&node)? && differs("login")?);
    crate::mistakes::reconfigure(&lab)?;
    assert!(!differs(&node)? && !differs("login")?);
    restore(&lab, "gpufrac.toml", &text);
    assert!(differs(&node)?);
    // The question to slurmctld creates no job.
    let queue = lab.command("squeue").args(["-h", "-t", "all"]);
    assert_eq!(queue.stdout()?, "");
    Ok(())
}

#[test]
fn a_wrong_line_of_a_file_is_named() -> Result<(), LabError> {
    let lab = Lab::builder().nodes(2).start()?;
    let nodes = lab.nodes().join(",");
    let gpu = format!("NodeName={} Name=gpu Type=half", lab.nodes()[0]);
    let cases = [
        (
            "slurm.conf",
            "SelectType=select/cons_tres",
            "SelectType=select/linear",
            "write instead: SelectType=select/cons_tres",
        ),
        (
            "slurm.conf",
            "TaskPlugin=task/affinity,task/cgroup",
            "TaskPlugin=task/affinity",
            "write instead: TaskPlugin=task/cgroup,task/affinity",
        ),
        (
            "slurm.conf",
            "GresTypes=gpu,shard,gpufrac",
            "GresTypes=gpu,shard",
            "write instead: GresTypes=gpu,shard,gpufrac",
        ),
        (
            "slurm.conf",
            "JobSubmitPlugins=gpufrac",
            "JobSubmitPlugins=lua",
            "write instead: JobSubmitPlugins=lua,gpufrac",
        ),
        (
            "cgroup.conf",
            "ConstrainDevices=yes",
            "ConstrainDevices=no",
            "write instead: ConstrainDevices=yes",
        ),
        (
            "gres.conf",
            &gpu,
            &gpu.replace("Type=half", "Type=a100"),
            "Name=gpu Type=half File=",
        ),
    ];
    for (file, from, to, fix) in cases {
        let (before, line) = change(&lab, file, from, to);
        let (code, out, err) = check(&lab, &["--slurm"], "login")?;
        let place = format!(
            "gpufrac: {}:{line}: ",
            lab.folder().etc().join(file).display()
        );
        assert_eq!(code, 2, "{to}: {out}");
        assert!(
            err.starts_with(&place) && err.contains(fix),
            "{to}: no {place:?} with {fix:?}: {err}"
        );
        assert_eq!(err.matches("gpufrac: ").count(), 1, "{to}: {err}");
        restore(&lab, file, &before);
    }
    // Missing lines and files.
    let (before, _) = change(&lab, "plugstack.conf", "required", "#");
    let (code, _, err) = check(&lab, &["--slurm"], "login")?;
    assert_eq!(code, 2);
    assert!(
        err.contains("hint: add the line: required spank_gpufrac.so\n"),
        "{err}"
    );
    restore(&lab, "plugstack.conf", &before);
    // Nodes with the same mistake share a finding.
    let (before, _) = change(&lab, "gres.conf", &gpu, "#");
    let (before, _) = (
        before,
        change(&lab, "gres.conf", "Name=gpu Type=half", "Name=gpu Type=x"),
    );
    let (_, _, err) = check(&lab, &["--slurm"], "login")?;
    assert_eq!(err.matches("hint: write for").count(), 2, "{nodes}: {err}");
    restore(&lab, "gres.conf", &before);
    assert_eq!(check(&lab, &["--slurm"], "login")?.0, 0);
    Ok(())
}

#[test]
fn running_and_written_settings_are_told_apart() -> Result<(), LabError> {
    let lab = Lab::builder()
        .slurm_conf_extra("PrologEpilogTimeout=5\nPrologFlags=Alloc")
        .start()?;
    let node = lab.nodes()[0].clone();
    // Slurm and check use the last of two lines.
    let (code, _, err) = check(&lab, &[], &node)?;
    assert_eq!(code, 1, "{err}");
    for fix in [
        "PrologFlags=Alloc,Contain,DeferBatch\n",
        "PrologEpilogTimeout=60\n",
    ] {
        assert!(
            err.contains(&format!("hint: write instead: {fix}")),
            "{err}"
        );
    }
    let extra = "PrologEpilogTimeout=5\nPrologFlags=Alloc\n";
    change(&lab, "slurm.conf", extra, "");
    let (_, _, err) = check(&lab, &[], &node)?;
    assert!(
        err.contains("warning: scontrol show config: PrologFlags=Alloc: "),
        "{err}"
    );
    lab.reconfigure()?;
    lab.wait(
        "the settings are taken",
        std::time::Duration::from_secs(20),
        || {
            let (code, _, err) = check(&lab, &[], &node)?;
            Ok((code == 0 && err.is_empty()).then_some(()))
        },
    )
}

#[test]
fn without_slurmctld_the_files_are_judged() -> Result<(), LabError> {
    let mut lab = Lab::builder().start()?;
    lab.stop_daemon("slurmctld", Signal::SIGTERM)?;
    let (code, out, err) = check(&lab, &["--slurm"], "login")?;
    assert_eq!(code, 1, "{out}{err}");
    assert!(err.contains("scontrol does not answer ("), "{err}");
    assert!(err.contains("hint: `scontrol ping`"), "{err}");
    // A health check does not take a node from users because slurmctld starts again.
    let (code, out, err) = check(&lab, &["--quiet"], "login")?;
    assert_eq!((code, out.as_str(), err.as_str()), (0, "", ""));
    change(
        &lab,
        "cgroup.conf",
        "ConstrainDevices=yes",
        "ConstrainDevices=no",
    );
    let (code, _, err) = check(&lab, &["--slurm"], "login")?;
    assert_eq!(code, 2);
    assert!(
        err.contains("cgroup.conf:3: ConstrainDevices=no: "),
        "{err}"
    );
    // Neither slurmctld nor files can be read.
    let bare = lab.folder().root().join("bare");
    fs::create_dir(&bare).expect("root may");
    fs::copy(lab.folder().bin().join("gpufrac"), bare.join("gpufrac")).expect("root may");
    let variables = [
        format!("PATH={}", bare.display()),
        format!("SLURM_CONF={}", bare.join("slurm.conf").display()),
    ];
    let program = bare.join("gpufrac").display().to_string();
    let command = lab.command("env").args(variables);
    let said = command.args([&program, "check", "--slurm"]).run()?;
    assert_eq!(said.status.code(), Some(2), "{said:?}");
    assert!(said.stdout.contains("which is not there"), "{said:?}");
    Ok(())
}
