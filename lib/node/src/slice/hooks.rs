//! Programs of the site that run before instances are destroyed, and when a place is stuck: to pause monitoring, to
//! restart an exporter, to reset a GPU. They run as root, without a shell, without the GPU's lock, and for a limited
//! time. What they print goes to the log, and their exit status changes nothing.

use std::process::Command;

use gpufrac_core::lease::Lease;
use gpufrac_host::log::JobLog;
use gpufrac_host::subprocess::{Outcome, PATH, run};
use gpufrac_host::trust;

use crate::node::{Node, now_unix};
use crate::state::stuck::Stuck;

/// The longest text of a hook that the log gets, in characters.
const LONGEST_TEXT: usize = 500;

/// Runs `[hooks] before_destroy`, if the lease has an instance.
pub fn before_destroy(node: &Node, lease: &Lease, log: &JobLog) {
    if let Some(program) = &node.config.hooks.before_destroy
        && lease.slice.mig().is_some()
    {
        let place = lease.place();
        call(
            node,
            "before_destroy",
            program,
            of_lease(node, lease),
            &place,
            now_unix(),
            log,
        );
    }
}

/// Runs `[hooks] stuck`. `lease`: the one that cannot be removed.
pub fn stuck(node: &Node, stuck: &Stuck, lease: Option<&Lease>, log: &JobLog) {
    let Some(program) = &node.config.hooks.stuck else {
        return;
    };
    let variables = match lease {
        Some(lease) => of_lease(node, lease),
        None => {
            let index = stuck
                .gpu_index
                .map(|index| ("GPUFRAC_GPU_INDEX", index.to_string()));
            index.into_iter().collect()
        }
    };
    call(
        node,
        "stuck",
        program,
        variables,
        &stuck.place,
        stuck.since,
        log,
    );
}

fn of_lease(node: &Node, lease: &Lease) -> Vec<(&'static str, String)> {
    let slice = &lease.slice;
    let others = node.leases().and_then(|store| store.others_of_gpu(lease));
    let mut variables = vec![
        ("GPUFRAC_GPU_UUID", slice.gpu_uuid.clone()),
        ("GPUFRAC_GPU_INDEX", slice.gpu_index.to_string()),
        ("GPUFRAC_GPU_MINOR", slice.gpu_minor.to_string()),
        ("GPUFRAC_JOB", lease.job_id.to_string()),
    ];
    // Without it a hook must not reset the GPU.
    if let Ok(others) = others {
        variables.push(("GPUFRAC_OTHER_LEASES", others.len().to_string()));
    }
    if let Some(instance) = slice.instance() {
        variables.push(("GPUFRAC_GI", instance.gi_id.to_string()));
        variables.push(("GPUFRAC_MIG_UUID", instance.mig_uuid.clone()));
    }
    variables
}

fn call(
    node: &Node,
    hook: &str,
    program: &str,
    variables: Vec<(&'static str, String)>,
    place: &str,
    since: u64,
    log: &JobLog,
) {
    let limit = node.config.hooks.time_limit;
    let failed = |why: &dyn std::fmt::Display| {
        // A program of `[hooks]` did not start, did not end in time, or others than root can change it. Cure: `gpufrac
        // check`; raise `time_limit`. Nothing else depends on it.
        log.warning(format!("hook {hook} `{program}` failed: {why}"));
    };
    // A program that others can change would run as root.
    let path = match trust::resolve(program.as_ref()) {
        Ok(path) => path,
        Err(error) => return failed(&error),
    };
    let mut command = Command::new(path);
    command
        .env_clear()
        .env("PATH", PATH)
        .env("GPUFRAC_HOOK", hook)
        .env("GPUFRAC_PLACE", place)
        .env("GPUFRAC_SINCE", since.to_string())
        .envs(variables)
        .current_dir("/");
    match run(&mut command, b"", limit) {
        Ok(Outcome::Ended(ended)) => {
            let text: String = ended.text().chars().take(LONGEST_TEXT).collect();
            let line = format!(
                "hook {hook} `{program}` for {place}: {}: {text}",
                ended.status
            );
            if ended.status.success() { log.info(line) } else { log.warning(line) }
        }
        Ok(Outcome::Silent) => failed(&format!("it did not end within {} s", limit.as_secs())),
        Err(error) => failed(&error),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;
    use std::time::Duration;

    use gpufrac_core::config::Config;
    use gpufrac_core::ids::{GpuIndex, JobId};

    use super::*;

    fn stuck_place() -> Stuck {
        let mut place = Stuck::of_node("gpu".to_owned(), "in use (19)".to_owned());
        place.gpu_index = Some(GpuIndex(3));
        place
    }

    /// A node whose hook `stuck` is this script.
    fn node(keep: &tempfile::TempDir, script: &str, mode: u32) -> Node {
        let folder = keep.path().canonicalize().unwrap();
        let path = folder.join("hook");
        fs::write(
            &path,
            format!("#!/bin/sh\ncd {}\n{script}\n", folder.display()),
        )
        .unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        let mut config = Config::empty();
        config.hooks.stuck = Some(path.to_string_lossy().into_owned());
        config.hooks.time_limit = Duration::from_millis(500);
        Node::new(config, "n1")
    }

    fn out(keep: &tempfile::TempDir) -> Option<String> {
        fs::read_to_string(keep.path().join("out")).ok()
    }

    /// Promise (admins): hooks of the site get the place, end in time, and do not run if others can change them.
    /// With `a_hook_that_hangs_is_killed`, `a_hook_that_others_can_change_does_not_run`.
    #[test]
    fn a_hook_gets_the_place_and_no_other_environment() {
        let keep = tempfile::tempdir().unwrap();
        let node = node(&keep, "env >out", 0o755);
        stuck(&node, &stuck_place(), None, &JobLog::new(JobId(7)));
        let out = out(&keep).unwrap();
        for line in [
            "GPUFRAC_HOOK=stuck",
            "GPUFRAC_GPU_INDEX=3",
            "GPUFRAC_PLACE=the node",
        ] {
            assert!(out.lines().any(|it| it == line), "{line}: {out}");
        }
        assert!(!out.contains("CARGO"), "{out}");
    }

    #[test]
    fn a_hook_that_hangs_is_killed() {
        let keep = tempfile::tempdir().unwrap();
        let node = node(&keep, "echo 1 >out; sleep 1000; echo 2 >out", 0o755);
        stuck(&node, &stuck_place(), None, &JobLog::new(JobId(7)));
        assert_eq!(out(&keep).as_deref(), Some("1\n"));
    }

    #[test]
    fn a_hook_that_others_can_change_does_not_run() {
        let keep = tempfile::tempdir().unwrap();
        let node = node(&keep, "echo 1 >out", 0o777);
        stuck(&node, &stuck_place(), None, &JobLog::new(JobId(7)));
        assert_eq!(out(&keep), None);
    }
}
