//! Mistakes of an admin on hosts of a real Slurm: `gpufrac check` names each, and its cure works.

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::Path;
use std::time::Duration;

use gpufrac_lab::{Lab, LabError};

const QUARTER: &str = "--gres=gpufrac:0.25";

/// Exit code and stderr of a command on a node, or on a login host.
fn said(lab: &Lab, args: &[&str], node: &str) -> Result<(i32, String), LabError> {
    let command = lab.command("gpufrac").args(args);
    let said = command.env("SLURMD_NODENAME", node).run()?;
    Ok((said.status.code().unwrap_or(-1), said.stderr))
}

/// `gpufrac check` on a node or login host names the mistake, and nothing after it was corrected.
fn names(
    lab: &Lab,
    host: &str,
    texts: &[&str],
    mistake: impl FnOnce(),
    cure: impl FnOnce(),
) -> Result<(), LabError> {
    mistake();
    let (code, err) = said(lab, &["check"], host)?;
    cure();
    assert_eq!(code, 2, "{texts:?}: {err}");
    for text in texts {
        assert!(err.contains(text), "no {text:?}: {err}");
    }
    let (code, err) = said(lab, &["check"], host)?;
    assert_eq!((code, err.as_str()), (0, ""), "after {texts:?}");
    Ok(())
}

fn mode(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("root may");
}

fn give(path: &Path, uid: u32) {
    chown(path, Some(uid), None).expect("root may");
}

/// Replaces a hard link to the build by a copy: labs of other tests have the same file.
fn own_copy(path: &Path) {
    let beside = path.with_extension("new");
    fs::copy(path, &beside).expect("root may");
    fs::rename(beside, path).expect("root may");
}

/// Replaces text in a file by a rename, because the file may be mapped or being read. Returns the old text.
fn replace(path: &Path, from: &str, to: &str) -> String {
    let text = fs::read_to_string(path).expect("a file of the lab");
    assert!(text.contains(from), "no {from:?} in {text}");
    put(path, &text.replace(from, to));
    text
}

fn put(path: &Path, text: &str) {
    let beside = path.with_extension("new");
    fs::write(&beside, text).expect("root may");
    let is_program = fs::metadata(path).is_ok_and(|it| it.permissions().mode() & 0o111 != 0);
    mode(&beside, if is_program { 0o755 } else { 0o644 });
    fs::rename(beside, path).expect("root may");
}

#[test]
fn mistakes_on_hosts_are_named_with_their_cure() -> Result<(), LabError> {
    let lab = Lab::builder()
        .nodes(2)
        .gpus("H100-80", 1)
        .slurm_user()
        .start()?;
    let (node, other) = (lab.nodes()[0].clone(), lab.nodes()[1].clone());
    let (lib, bin, etc) = (lab.folder().lib(), lab.folder().bin(), lab.folder().etc());
    let user = lab.users()[0].uid;
    // Plugins, where Slurm loads them; this host is slurmctld's, too.
    for plugin in ["job_submit", "cli_filter", "spank"] {
        let path = lib.join(format!("{plugin}_gpufrac.so"));
        own_copy(&path);
        let aside = lib.join("aside");
        let named = format!("{plugin}_gpufrac.so is named and not in ");
        names(
            &lab,
            "login",
            &[&named, "hint: install "],
            || fs::rename(&path, &aside).expect("root may"),
            || fs::rename(&aside, &path).expect("root may"),
        )?;
        names(
            &lab,
            "login",
            &["runs as root, and ", "hint: `chown root:root "],
            || give(&path, user),
            || give(&path, 0),
        )?;
    }
    // A library that is not a plugin.
    let spank = lib.join("spank_gpufrac.so");
    let aside = lib.join("aside");
    names(
        &lab,
        &node,
        &["is no plugin of Slurm"],
        || {
            fs::rename(&spank, &aside).expect("root may");
            fs::copy(lib.join("libnvidia_ml.so"), &spank).expect("root may");
        },
        || fs::rename(&aside, &spank).expect("root may"),
    )?;
    // Prolog and epilog of a node.
    let prolog = bin.join("prolog");
    names(
        &lab,
        &node,
        &["cannot be run", "hint: `chmod 755 "],
        || mode(&prolog, 0o644),
        || mode(&prolog, 0o755),
    )?;
    let program = bin.join("gpufrac-prolog");
    let moved = bin.join("moved");
    names(
        &lab,
        &node,
        &["gpufrac-prolog` does not exist on this node"],
        || fs::rename(&program, &moved).expect("root may"),
        || fs::rename(&moved, &program).expect("root may"),
    )?;
    let text = fs::read_to_string(&prolog).expect("a file of the lab");
    let swallowed = text.replace("exec ", "") + "logger done\n";
    names(
        &lab,
        &node,
        &[
            "the script goes on, or ends well, after gpufrac-prolog failed",
            "gpufrac-prolog || exit $?",
        ],
        || put(&prolog, &swallowed),
        || put(&prolog, &text),
    )?;
    names(
        &lab,
        &node,
        &["only root may be able to change it", "chmod go-w"],
        || mode(&bin, 0o777),
        || mode(&bin, 0o755),
    )?;
    // gpufrac.toml.
    let config = lab.folder().gpufrac_conf();
    names(
        &lab,
        &node,
        &["refuse this file", "hint: `chown root:root"],
        || give(&config, user),
        || give(&config, 0),
    )?;
    names(
        &lab,
        &node,
        &["refuse this file"],
        || mode(&config, 0o666),
        || mode(&config, 0o644),
    )?;
    let list = format!("{node},{other}");
    let before = replace(&config, &list, &node);
    names(
        &lab,
        &node,
        &[&format!(
            "{other} counts gpufrac's devices but is in no pool"
        )],
        || {},
        || put(&config, &before),
    )?;
    names(
        &lab,
        &node,
        &[
            "which Slurm does not know",
            "counts gpufrac's devices but is in no pool",
        ],
        || drop(replace(&config, &list, &format!("{node},{other}x"))),
        || put(&config, &before),
    )?;
    names(
        &lab,
        &node,
        &["gpufrac-reaperd does not run", "systemctl enable --now"],
        || put(&config, &format!("{before}\n[reaper]\nmode = \"on\"\n")),
        || put(&config, &before),
    )?;
    // `optional` is for hosts on which users only submit jobs.
    let plugstack = etc.join("plugstack.conf");
    let right = replace(&plugstack, "required", "optional");
    let (code, err) = said(&lab, &["check"], "login")?;
    assert_eq!((code, err.as_str()), (0, ""));
    names(
        &lab,
        &node,
        &["write instead: required "],
        || {},
        || put(&plugstack, &right),
    )?;
    Ok(())
}

#[test]
fn unleased_instances_are_shown_and_destroyed_and_those_of_jobs_stay() -> Result<(), LabError> {
    let lab = Lab::builder().gpus("H100-80", 1).slurm_user().start()?;
    let (user, node) = (&lab.users()[0], lab.nodes()[0].clone());
    let run = |args: &[&str]| said(&lab, args, &node);
    // Static MIG instances of the site: jobs do not return to the node for ever.
    lab.gpusim(&node, &["create", "0", "3g.40gb", "4:4"])?;
    lab.gpusim(&node, &["create", "0", "4g.40gb", "0:4"])?;
    assert_eq!(run(&["check"])?.0, 2);
    let script = "--wrap=touch began; sleep 1000";
    let job = lab.sbatch(user, &["--requeue", QUARTER, script])?;
    lab.wait("the node is drained", Duration::from_secs(60), || {
        Ok((!lab.drained_nodes()?.is_empty()).then_some(()))
    })?;
    // The prolog drains the node before its job is requeued; until then an instance may be the job's.
    let err = lab.wait("nothing can be a job's", Duration::from_secs(60), || {
        let (code, err) = run(&["clean", "--yes"])?;
        Ok((code == 0).then_some(err))
    })?;
    assert_eq!(err.matches("destroyed").count(), 2, "{err}");
    let (code, err) = run(&["check"])?;
    assert!(
        code == 1 && err.contains("is drained (gpufrac: ") && err.contains("State=RESUME"),
        "{code}: {err}"
    );
    lab.command("scontrol")
        .args(["update", &format!("nodename={node}"), "state=resume"])
        .stdout()?;
    // slurmctld may still be ending the job's first start.
    let mut last = String::new();
    let clean = lab.wait("`check` has no error", Duration::from_secs(10), || {
        let (code, err) = run(&["check"])?;
        last = err;
        Ok((code == 0).then_some(()))
    });
    assert!(clean.is_ok(), "{last}");
    lab.command("scontrol")
        .args(["release", &job.to_string()])
        .run()?;
    lab.wait_for_state(job, &["RUNNING"])?;
    // A step that begins without the lease would end the job.
    let began = lab.folder().work().join("began");
    lab.wait("its script runs", Duration::from_secs(60), || {
        Ok(began.exists().then_some(()))
    })?;
    // Its lease is gone, and no process uses its instance.
    let lease = lab.lease_path(&node, job);
    let text = fs::read_to_string(&lease).expect("it has one");
    fs::remove_file(&lease).expect("root may");
    let (code, err) = run(&["clean", "--yes"])?;
    assert_eq!((code, lab.instances(&node)?.len()), (1, 1), "{err}");
    assert!(err.contains(&format!("of job {job} on node")), "{err}");
    // A lease that cannot be read stays while its job exists.
    fs::write(&lease, &text[..text.len() / 2]).expect("root may");
    let name = job.to_string();
    let (code, err) = run(&["lease", "drop", &name, "--yes"])?;
    assert_eq!(code, 1);
    assert!(
        err.contains(&format!("job {job} is RUNNING on this node")),
        "{err}"
    );
    let doctor = |user: Option<&gpufrac_lab::User>| {
        let command = lab.command("gpufrac").args(["doctor", &name]);
        let command = command.env("SLURMD_NODENAME", &node);
        match user {
            Some(user) => command.user(user).stdout(),
            None => command.stdout(),
        }
    };
    for told in [doctor(None)?, doctor(Some(user))?] {
        for text in [
            "JobState=RUNNING",
            "State=",
            &format!("`gpufrac lease drop {job}`"),
        ] {
            assert!(told.contains(text), "no {text:?}: {told}");
        }
    }
    // The complete lease again: the job has ended, and its epilog did not run.
    fs::write(&lease, &text).expect("root may");
    lab.command("scancel").args([&name]).stdout()?;
    lab.wait_for_end(job)?;
    lab.wait_until_empty(Duration::from_secs(60))?;
    fs::write(&lease, &text[..text.len() / 2]).expect("root may");
    let (_, err) = run(&["check"])?;
    assert!(
        err.contains(&format!("hint: `gpufrac lease drop {job}`")),
        "{err}"
    );
    let (code, err) = run(&["lease", "drop", &name, "--yes"])?;
    assert_eq!(code, 0, "{err}");
    assert_eq!(run(&["check"])?, (0, String::new()));
    lab.expect_nothing_left()
}
