//! Setups of sites that differ from the lab: slurmctld as its own user, nodes without files, other job_submit plugins.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::time::Duration;

use gpufrac_lab::{JobId, Lab, LabError, Slurm, SlurmCommand};
use nix::sys::signal::Signal;

use crate::{HOLD, go, wait_until_put_back};

/// Two partitions, one with a limit, `@MAX@`.
const POOL: &str = r#"
[pool.halves]
mechanism = "mig"
layout = "halves"
gpu = "H100-80"
partitions = ["gpu", "small"]
nodes = "@NODES@"

[partition.small]
max = "0.25"
"#;

/// Ends a job after some seconds that never used its slice.
const REAPER: &str = r#"
[reaper]
mode = "on"
interval = "250ms"
metrics = "off"
grace = "1s"
never_used = "6s"
idle = "6s"
finished = "off"
over_share = "off"
warn = ["3s"]
reaps_per_hour = 100
breaker = { node_share = 100, cluster_share = 100 }
"#;

const QUARTER: &str = "--gres=gpufrac:0.25";

/// sbatch of a client whose plugin has no configuration: slurmctld gets the request as written.
fn bare_sbatch(lab: &Lab, options: &[&str]) -> SlurmCommand {
    lab.command("sbatch")
        .user(&lab.users()[0])
        .env("GPUFRAC_CONFIG", "/nowhere/gpufrac.toml")
        .args(["--parsable"])
        .args(options)
}

/// A job and its step see the slice, which is removed with the job.
fn works(lab: &Lab) -> Result<(), LabError> {
    let (user, node) = (&lab.users()[0], &lab.nodes()[0]);
    let script = format!("--wrap=srun sh -c 'echo $CUDA_VISIBLE_DEVICES'; {HOLD}");
    let job = lab.sbatch(user, &[QUARTER, &script])?;
    lab.wait_for_state(job, &["RUNNING"])?;
    let slice = lab.slice(node, job)?;
    assert!(slice.lease.confirmed, "the prolog did not ask Slurm");
    go(lab)?;
    assert_eq!(lab.wait_for_end(job)?.state(), "COMPLETED");
    assert_eq!(
        lab.output(job)?,
        format!("{}\n", slice.instance.uuids[0]),
        "{}",
        lab.folder().log_tails(15)
    );
    lab.expect_nothing_left()
}

/// Changes a file beside slurm.conf that must contain the text.
fn change(lab: &Lab, file: &str, from: &str, to: &str) {
    let path = lab.folder().etc().join(file);
    let text = fs::read_to_string(&path).expect("a file of the lab");
    assert!(text.contains(from), "no {from:?} in {text}");
    fs::write(&path, text.replace(from, to)).expect("root may");
}

/// In another second than slurmctld's last read, because before 23.11 the plugin compares seconds.
fn reconfigure(lab: &Lab) -> Result<(), LabError> {
    std::thread::sleep(Duration::from_millis(1100));
    lab.reconfigure()
}

/// Waits until slurmctld has the current pools: a half is accepted in `small`, or not.
fn wait_for_pools(lab: &Lab, half_is_taken: bool) -> Result<(), LabError> {
    let half = [
        "--partition=small",
        "--gres=gpufrac:0.5",
        "--hold",
        "--wrap=true",
    ];
    lab.wait("the pools are read", Duration::from_secs(60), || {
        let said = bare_sbatch(lab, &half).run()?;
        if let Ok(job) = said.stdout.trim().parse() {
            lab.command("scancel")
                .args([JobId(job).to_string()])
                .stdout()?;
        }
        Ok((said.status.success() == half_is_taken).then_some(()))
    })
}

/// Promise (admins): a slurmctld that is not root's serves fractions; its prologs put jobs back, its reapers end them.
#[test]
fn a_slurmctld_that_is_not_roots_serves_fractions() -> Result<(), LabError> {
    let lab = Lab::builder()
        .gpus("H100-80", 1)
        .partition("small", "")
        .pools(POOL)
        .reaper(REAPER)
        .slurm_user()
        .start()?;
    let (user, node) = (&lab.users()[0], &lab.nodes()[0]);
    let pid = lab.daemon_pid("slurmctld").expect("it runs");
    let owner = fs::metadata(format!("/proc/{pid}")).expect("it runs").uid();
    assert_eq!(Some(owner), lab.slurm_user().map(|user| user.uid));
    assert_ne!(owner, 0);
    lab.wait("the reaper runs", Duration::from_secs(60), || {
        let log = lab.reaper_log(node)?;
        Ok(log.contains("watching the slices").then_some(()))
    })?;
    let check = lab.command("gpufrac").args(["check"]);
    let said = check.env("SLURMD_NODENAME", node).run()?.success()?;
    assert_eq!(said.stderr, "");
    works(&lab)?;

    let refused = bare_sbatch(&lab, &["--gres=gpufrac:0.7", "--wrap=true"]).run()?;
    assert!(
        !refused.status.success() && refused.stderr.contains("gpufrac: "),
        "{refused:?}"
    );
    wait_for_pools(&lab, false)?;
    change(&lab, "gpufrac.toml", "max = \"0.25\"", "max = \"0.5\"");
    reconfigure(&lab)?;
    wait_for_pools(&lab, true)?;

    // The prolog requeues jobs as root, and the reaper ends them.
    let refuse = ["--count", "0", "--code", "IN_USE"];
    let call = "nvmlDeviceCreateGpuInstanceWithPlacement";
    lab.gpusim(node, &[&["fault", "--call", call][..], &refuse].concat())?;
    let back = lab.sbatch(user, &[QUARTER, "--wrap=sleep 1000"])?;
    wait_until_put_back(&lab, back)?;
    assert_eq!(lab.drained_nodes()?, Vec::<String>::new());
    lab.gpusim(node, &["clear"])?;
    lab.command("scancel").args([back.to_string()]).stdout()?;
    let idle = lab.sbatch(user, &[QUARTER, "--wrap=sleep 1000"])?;
    let ended = lab.wait_for_end(idle)?;
    assert_eq!(ended.state(), "CANCELLED", "{}", lab.reaper_log(node)?);
    assert!(lab.reaper_log(node)?.contains("decision=cancel"));
    lab.expect_nothing_left()
}

/// Writes gpufrac.toml, or only changes its permissions.
fn give(lab: &Lab, text: Option<&str>, mode: u32, group: u32) {
    let path = lab.folder().gpufrac_conf();
    if let Some(text) = text {
        fs::write(&path, text).expect("root may");
    }
    fs::set_permissions(&path, fs::Permissions::from_mode(mode)).expect("root may");
    chown(&path, None, Some(group)).expect("root may");
}

#[test]
fn users_who_cannot_read_the_configuration_are_named() -> Result<(), LabError> {
    let mut lab = Lab::builder().gpus("H100-80", 1).slurm_user().start()?;
    let text = fs::read_to_string(lab.folder().gpufrac_conf()).expect("a file of the lab");
    let owner = lab.slurm_user().expect("this lab has one").clone();
    let check = |lab: &Lab| lab.command("gpufrac").args(["check", "--slurm"]).run();
    let refused = |lab: &Lab| -> Result<String, LabError> {
        let said = bare_sbatch(lab, &[QUARTER, "--hold", "--wrap=true"]).run()?;
        Ok(said.stderr)
    };
    let taken = |lab: &Lab| {
        lab.wait("fractions are taken", Duration::from_secs(60), || {
            Ok((!refused(lab)?.contains("gpufrac")).then_some(()))
        })
    };

    // slurmctld cannot read it.
    give(&lab, None, 0o600, 0);
    let said = check(&lab)?;
    let why = format!("gpufrac.toml: slurmctld runs as {}, ", owner.name);
    assert_eq!(said.status.code(), Some(2), "{said:?}");
    assert!(said.stderr.contains(&why), "{said:?}");
    lab.stop_daemon("slurmctld", Signal::SIGTERM)?;
    // The slurmctld that has ended had pools, and may have read the file again in its first second.
    let path = lab.folder().log().join("slurmctld.log");
    let log_of_first = fs::read_to_string(&path).expect("a log").len();
    lab.start_slurmctld()?;
    let said = refused(&lab)?;
    assert!(said.contains("gpufrac.toml: Permission denied"), "{said}");
    // Users are told the current mistake of the file.
    give(&lab, Some("version = 7\n"), 0o644, 0);
    reconfigure(&lab)?;
    lab.wait("it is read again", Duration::from_secs(60), || {
        Ok(refused(&lab)?.contains("version").then_some(()))
    })?;
    let log = fs::read_to_string(&path)
        .expect("a log")
        .split_off(log_of_first);
    assert!(
        !log.contains("keeps the old pools"),
        "there are none: {log}"
    );

    // slurmctld's group can read it and users cannot: job_submit does everything except steps.
    give(&lab, Some(&text), 0o640, owner.gid);
    reconfigure(&lab)?;
    taken(&lab)?;
    let said = check(&lab)?;
    assert_eq!(said.status.code(), Some(1), "{said:?}");
    assert!(said.stderr.contains("warning: "), "{said:?}");
    let script = "--wrap=srun sh -c 'echo $CUDA_VISIBLE_DEVICES'; srun --gres=gpufrac:0.25 true 2>&1 || echo refused";
    let job = lab.sbatch(&lab.users()[0], &[QUARTER, script])?;
    assert_eq!(lab.wait_for_end(job)?.state(), "COMPLETED");
    let output = lab.output(job)?;
    assert!(
        output.starts_with("MIG-")
            && output.contains("gpufrac.toml: Permission denied")
            && output.ends_with("refused\n"),
        "{output}"
    );
    give(&lab, None, 0o644, 0);
    assert_eq!(check(&lab)?.success()?.stderr, "");
    Ok(())
}

/// A command on slurmd's host, which only sees slurmd's files of Slurm.
fn on_node(lab: &Lab, words: &[&str]) -> SlurmCommand {
    let node = &lab.nodes()[0];
    let pid = lab.daemon_pid(&format!("slurmd.{node}")).expect("it runs");
    lab.command("nsenter")
        .args([
            format!("--mount=/proc/{pid}/ns/mnt"),
            format!("--wdns={}", lab.folder().work().display()),
        ])
        .args(["env", "--unset=SLURM_CONF"])
        .args(words)
        .env("SLURMD_NODENAME", node)
}

/// Promise (admins): nodes that get Slurm's files from slurmctld.
#[test]
fn a_node_that_gets_its_files_from_slurmctld_gives_fractions() -> Result<(), LabError> {
    let lab = Lab::builder()
        .gpus("H100-80", 1)
        .partition("small", "")
        .pools(&format!("{POOL}{REAPER}"))
        .conf_file("site.conf", "TaskPlugin=task/cgroup\nEpilogMsgTime=1000\n")
        .slurm_conf_extra("Include site.conf")
        .configless()
        .start()?;
    let (user, node) = (&lab.users()[0], &lab.nodes()[0]);
    let files = on_node(&lab, &["ls", &lab.folder().etc().display().to_string()]).stdout()?;
    assert_eq!(files, "gpufrac.toml\n", "Slurm does not carry it");
    // As under systemd, it knows no path of slurm.conf.
    let reaper = on_node(&lab, &["gpufrac-reaperd", "--node", node]).spawn()?;
    works(&lab)?;

    lab.wait("the reaper runs", Duration::from_secs(60), || {
        let said = on_node(&lab, &["gpufrac", "check", "--quiet"]).run()?;
        Ok((!said.stderr.contains("gpufrac-reaperd does not run")).then_some(()))
    })?;
    let said = on_node(&lab, &["gpufrac", "check"]).run()?.success()?;
    assert_eq!(said.stderr, "");
    assert!(
        said.stdout
            .ends_with(&format!("node {node}: ok; Slurm: ok\n")),
        "{said:?}"
    );
    // check also reads pushed files, with included ones.
    change(&lab, "site.conf", "task/cgroup", "task/affinity");
    change(
        &lab,
        "cgroup.conf",
        "ConstrainDevices=yes",
        "ConstrainDevices=no",
    );
    reconfigure(&lab)?;
    lab.wait("check sees the new files", Duration::from_secs(60), || {
        let said = on_node(&lab, &["gpufrac", "check"]).run()?;
        let places = [
            "/run/slurm/conf/site.conf:1: TaskPlugin",
            "/run/slurm/conf/cgroup.conf:3: ",
        ];
        Ok(places
            .iter()
            .all(|place| said.stderr.contains(place))
            .then_some(()))
    })?;
    change(&lab, "site.conf", "task/affinity", "task/cgroup");
    change(
        &lab,
        "cgroup.conf",
        "ConstrainDevices=no",
        "ConstrainDevices=yes",
    );
    reconfigure(&lab)?;
    lab.wait("check is content", Duration::from_secs(60), || {
        let said = on_node(&lab, &["gpufrac", "check"]).run()?;
        Ok((said.stderr.is_empty() && said.status.success()).then_some(()))
    })?;

    if lab.slurm().since(24, 11) {
        carries_prologs_that_are_beside_slurm_conf(&lab)?;
    }

    let idle = lab.sbatch(user, &[QUARTER, "--wrap=sleep 1000"])?;
    let ended = lab.wait_for_end(idle);
    let pid = i32::try_from(reaper.pid()).expect("a pid");
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), Signal::SIGTERM).expect("it runs");
    let told = reaper.wait()?;
    assert_eq!(ended?.state(), "CANCELLED", "{told:?}");
    assert!(told.stderr.contains("decision=cancel"), "{told:?}");
    lab.expect_nothing_left()
}

/// Relative paths are relative to slurm.conf, and slurmctld sends these files.
fn carries_prologs_that_are_beside_slurm_conf(lab: &Lab) -> Result<(), LabError> {
    let bin = lab.folder().bin().display().to_string();
    for name in ["prolog", "epilog"] {
        let site = lab.folder().etc().join(format!("site-{name}"));
        let log = lab.folder().log().join(format!("site-{name}"));
        let own = fs::read_to_string(format!("{bin}/{name}")).expect("the lab's own script");
        let (shell, rest) = own.split_once('\n').expect("several lines");
        let text = format!("{shell}\necho $SLURM_JOB_ID >>{}\n{rest}", log.display());
        fs::write(&site, text).expect("root may");
        fs::set_permissions(&site, fs::Permissions::from_mode(0o755)).expect("root may");
        change(
            lab,
            "slurm.conf",
            &format!("={bin}/{name}\n"),
            &format!("=site-{name}\n"),
        );
    }
    reconfigure(lab)?;
    let node = &lab.nodes()[0];
    let cached = lab.folder().spool(node).join("conf-cache/slurm.conf");
    lab.wait(
        "the node has the new files",
        Duration::from_secs(60),
        || {
            let text = fs::read_to_string(&cached).unwrap_or_default();
            Ok(text.contains("=site-epilog").then_some(()))
        },
    )?;
    fs::remove_file(lab.folder().work().join("go")).expect("it is there");
    works(lab)?;
    for name in ["prolog", "epilog"] {
        let log = fs::read_to_string(lab.folder().log().join(format!("site-{name}")));
        assert!(log.is_ok_and(|log| !log.is_empty()), "{name} did not run");
    }
    let said = on_node(lab, &["gpufrac", "check"]).run()?.success()?;
    assert_eq!(said.stderr, "");
    assert!(!said.stdout.contains("note: "), "{said:?}");
    Ok(())
}

/// Prints what it sees, sets time limits, and requests a fraction for some jobs.
const LUA: &str = r#"
function slurm_job_submit(job, partitions, uid)
    slurm.log_user("lua saw " .. tostring(job.tres_per_node))
    if job.time_limit == slurm.NO_VAL then job.time_limit = 7 end
    if job.comment == "site" then job.tres_per_node = "@MARK@gpufrac:0.3" end
    return slurm.SUCCESS
end
function slurm_job_modify(job, record, partitions, uid)
    return slurm.SUCCESS
end
return slurm.SUCCESS
"#;

/// Promise (admins): job_submit/lua before gpufrac: what it writes is checked, rounded and counted.
#[test]
fn job_submit_lua_comes_first() -> Result<(), LabError> {
    let slurm = Slurm::of_environment()?;
    let plugins = slurm.plugins()?;
    let place = slurm.libraries()?;
    let place = plugins.file_name().map(|name| place.join(name));
    if !place.is_some_and(|place| place.join("job_submit_lua.so").exists()) {
        test_seed::not_run("this Slurm has no job_submit/lua");
    }
    // Slurm's own mark for a GRES, which scripts must write themselves.
    let mark = if slurm.since(23, 11) { "gres/" } else { "gres:" };
    let mut lab = Lab::builder()
        .gpus("H100-80", 1)
        .partition("small", "")
        .pools(POOL)
        .conf_file("job_submit.lua", &LUA.replace("@MARK@", mark))
        .slurm_conf_extra("JobSubmitPlugins=lua,gpufrac")
        .start()?;
    let check = |lab: &Lab| lab.command("gpufrac").args(["check", "--slurm"]).run();
    assert_eq!(check(&lab)?.success()?.stderr, "");

    // The script sees the user's text, and its own text is rounded and counted.
    let said = bare_sbatch(&lab, &["--gres=gpufrac:0.3", "--wrap=true"])
        .run()?
        .success()?;
    for line in [
        "lua saw gres",
        "gpufrac:0.3\n",
        "rounded up from 0.3 to 0.5",
    ] {
        assert!(said.stderr.contains(line), "no {line:?}: {said:?}");
    }
    let usual = lab.try_sbatch(&lab.users()[0], &[QUARTER, "--wrap=true"])?;
    assert!(usual.stderr.contains("gpufrac:25,gres"), "{usual:?}");
    let job = JobId(said.stdout.trim().parse().expect("a number"));
    let ended = lab.wait_for_end(job)?;
    assert_eq!(
        (ended.state(), ended.field("TimeLimit")),
        ("COMPLETED", "00:07:00")
    );
    let script = format!("--wrap=echo $CUDA_VISIBLE_DEVICES; {HOLD}");
    let job = lab.sbatch(&lab.users()[0], &["--comment=site", &script])?;
    lab.wait_for_state(job, &["RUNNING"])?;
    assert_eq!(lab.slice(&lab.nodes()[0], job)?.instance.size, 4);
    go(&lab)?;
    assert_eq!(lab.wait_for_end(job)?.state(), "COMPLETED");
    let options = ["--comment=site", "--partition=small", "--wrap=true"];
    let refused = bare_sbatch(&lab, &options).run()?;
    assert!(
        !refused.status.success() && refused.stderr.contains("gpufrac: "),
        "{refused:?}"
    );

    // In the reverse order the script sees counts, and its own fractions are not converted.
    change(&lab, "slurm.conf", "lua,gpufrac", "gpufrac,lua");
    lab.stop_daemon("slurmctld", Signal::SIGTERM)?;
    lab.start_slurmctld()?;
    let said = check(&lab)?;
    assert!(
        said.stderr
            .contains("write instead: JobSubmitPlugins=lua,gpufrac\n"),
        "{said:?}"
    );
    let said = bare_sbatch(&lab, &[QUARTER, "--wrap=true"])
        .run()?
        .success()?;
    assert!(said.stderr.contains("gpufrac:25,gres"), "{said:?}");
    let refused = bare_sbatch(&lab, &["--comment=site", "--wrap=true"]).run()?;
    assert!(!refused.status.success(), "{refused:?}");
    lab.expect_nothing_left()
}
