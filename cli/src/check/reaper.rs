//! Whether gpufrac-reaperd runs on this node, works, and is the installed build with the current configuration.

use std::path::{Path, PathBuf};

use gpufrac_core::finding::Finding;
use gpufrac_core::policy::Mode;
use gpufrac_host::files::RootDir;
use gpufrac_node::node::{Node, now_unix};
use gpufrac_node::setup::unit;
use gpufrac_node::version;
use gpufrac_view::NodeStatus;

use crate::status::files;

/// Seconds after which a daemon without a sign of life hangs. A round waits for the driver, and prologs have the driver
/// first.
const LONGEST_ROUND: u64 = 300;

/// The findings about the daemon; none on a node where gpufrac.toml does not ask for one. The locks of the node are
/// root's, so the check needs root.
pub fn findings(node: &Node) -> Vec<Finding> {
    if !nix::unistd::geteuid().is_root() || !is_wanted(node) {
        return Vec::new();
    }
    // A missing folder of locks is a finding of its own.
    let Ok(locks) = node.locks() else {
        return Vec::new();
    };
    let mut found = needs(node);
    // The folder of the daemon in `/run/gpufrac` was removed. Cure: `systemctl restart gpufrac-reaperd`.
    found.extend(match locks.daemon_runs() {
        Ok(true) if !node.run.join("reaper").exists() => vec![Finding::of_machine(
            format!("`{}` is gone: gpufrac-reaperd runs, and cannot write there", node.run.join("reaper").display()),
            "`systemctl restart gpufrac-reaperd` makes it again",
        )],
        Ok(true) => {
            let view = files::own(node);
            let of_view = view.and_then(|view| of_running(&view, &node.config.sum(), now_unix()));
            let at_boot = unit::REAPERD.not_enabled(Path::new("/"));
            of_view.into_iter().chain(at_boot).collect()
        }
        Ok(false) => vec![stopped(
            "gpufrac-reaperd does not run, and gpufrac.toml has [reaper]: nobody looks for idle slices here".to_owned(),
        )],
        Err(error) => vec![stopped(format!(
            "whether gpufrac-reaperd runs cannot be seen: {error}"
        ))],
    });
    found
}

/// The warnings about what the daemon needs besides the node: the folder that nodes share, and programs for mail.
fn needs(node: &Node) -> Vec<Finding> {
    let shared = node.shared.as_ref();
    let opened = |folder: &PathBuf| RootDir::open(folder)?.must_be_writable();
    let shared = shared.and_then(|folder| Some((folder, opened(folder).err()?)));
    // The file system that nodes share is not mounted here, others than root can change the folder, or the server of
    // files lets root of a node write nothing, as NFS does unless the export has `no_root_squash`. Cure: Mount it, or
    // follow the hint.
    let shared = shared.map(|(folder, error)| Finding::of_machine(
            format!(
                "using `shared` of [paths] failed: {error}: the daemons of other nodes, `gpufrac report` and `gpufrac status --cluster` learn nothing of this node"
            ),
            error.cure().unwrap_or_else(|| {
                format!(
                    "mount or create `{}`, root's, on each node; an NFS server needs no_root_squash in its export",
                    folder.display()
                )
            }),
        ).as_warning());
    let mail = &node.config.reaper.mail;
    let programs = [&mail.sendmail, &mail.program].into_iter().flatten();
    let missing = programs.filter(|program| !Path::new(program).exists());
    let missing = missing.map(|program| {
        // The mail program is not installed on this node, or the path is misspelled. Cure: Install it, or correct the
        // path.
        Finding::of_machine(
            format!(
                "`{program}` of [reaper.mail] does not exist: no warning reaches a user by mail"
            ),
            "install it on this node, or correct the path",
        )
        .as_warning()
    });
    shared.into_iter().chain(missing).collect()
}

/// Whether the configuration has a policy for idle slices.
fn is_wanted(node: &Node) -> bool {
    let reaper = &node.config.reaper;
    let rules = reaper.rules.iter().map(|rule| &rule.policy);
    let mut policies = rules.chain([&reaper.general]);
    reaper.is_written && policies.any(|policy| policy.mode != Mode::Off)
}

fn stopped(what: String) -> Finding {
    Finding::of_machine(
        what,
        "`systemctl enable --now gpufrac-reaperd`, and `journalctl -u gpufrac-reaperd` says why it ended; a site that does not want it sets mode = \"off\" in [reaper]",
    )
}

/// The finding about a daemon that runs, by the file that it writes in each round.
fn of_running(view: &NodeStatus, config_sum: &str, now: u64) -> Option<Finding> {
    let age = now.saturating_sub(view.written);
    if view.is_stale(now) && age > LONGEST_ROUND {
        // The daemon is stopped or hangs, or `/run` is full. Cure: `systemctl restart gpufrac-reaperd`; its log has the
        // reason.
        return Some(Finding::of_machine(
            format!(
                "gpufrac-reaperd has not finished a round for {age} s: it hangs, or cannot write to its folder"
            ),
            "`journalctl -u gpufrac-reaperd` shows its last lines; `systemctl restart gpufrac-reaperd`",
        ));
    }
    let own = version::TEXT.as_str();
    if view.build != own {
        // The daemon was not restarted after an upgrade. Cure: `systemctl restart gpufrac-reaperd`.
        return Some(
            Finding::of_machine(
                format!(
                    "gpufrac-reaperd runs as build {}, and {own} is installed",
                    view.build
                ),
                "`systemctl restart gpufrac-reaperd`",
            )
            .as_warning(),
        );
    }
    let read = view.config_sum.as_ref()?;
    (read != config_sum).then(|| {
        // The daemon was not told of a change. Cure: `systemctl reload gpufrac-reaperd`.
        Finding::of_machine(
            "gpufrac-reaperd runs with an earlier gpufrac.toml than the one on this node",
            "`systemctl reload gpufrac-reaperd`",
        )
        .as_warning()
    })
}

#[cfg(test)]
mod tests {
    use gpufrac_core::finding::Severity;
    use gpufrac_view::VERSION;

    use super::*;

    const NOW: u64 = 1_790_000_000;

    fn view() -> NodeStatus {
        NodeStatus {
            version: VERSION,
            node: "gn01".to_owned(),
            written: NOW - 5,
            interval: 10,
            build: version::TEXT.clone(),
            config_sum: Some("0123".to_owned()),
            stuck: Vec::new(),
            gpus: Vec::new(),
        }
    }

    /// Promise (admins): `gpufrac check` names a reaper that hangs, or was not restarted or reloaded.
    /// With `the_checksum_of_a_configuration_covers_its_values_alone`.
    #[test]
    fn a_daemon_that_hangs_or_is_not_up_to_date_is_named() {
        let found = |view: &NodeStatus, now: u64| of_running(view, "0123", now);
        assert_eq!(found(&view(), NOW), None);
        // One slow round.
        assert_eq!(found(&view(), NOW + LONGEST_ROUND - 6), None);
        let hangs = found(&view(), NOW + LONGEST_ROUND).unwrap();
        assert_eq!(hangs.severity, Severity::Error);
        assert!(hangs.what.contains("for 305 s"), "{hangs:?}");
        let older = NodeStatus {
            build: "0.0.9".to_owned(),
            ..view()
        };
        let restart = found(&older, NOW).unwrap();
        assert_eq!(restart.severity, Severity::Warning);
        assert!(restart.fix.contains("restart"), "{restart:?}");
        // A build before this file had the checksum.
        let silent = NodeStatus {
            config_sum: None,
            ..view()
        };
        assert_eq!(found(&silent, NOW), None);
        let reload = of_running(&view(), "4567", NOW).unwrap();
        assert_eq!(reload.severity, Severity::Warning);
        assert!(reload.fix.contains("reload"), "{reload:?}");
    }
}
