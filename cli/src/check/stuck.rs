//! Places that cannot be freed, or where no slice can be made, and the hooks of the site that are to free them. Asks
//! neither Slurm nor the driver: the records of the node have the answers.

use std::os::unix::fs::PermissionsExt;

use gpufrac_core::finding::Finding;
use gpufrac_host::trust;
use gpufrac_node::job::reserve::{self, Reserved};
use gpufrac_node::node::{Node, now_unix};
use gpufrac_node::state::put_back;
use gpufrac_node::state::stuck::{self, Lost, Stuck};
use gpufrac_page::words::{plain, span};

/// The findings. The records are root's, so the places need root.
pub fn findings(node: &Node) -> Vec<Finding> {
    let mut found = hooks(node);
    if !nix::unistd::geteuid().is_root() {
        return found;
    }
    match Records::read(node) {
        Ok(records) => {
            let places = records.places.iter();
            found.extend(places.map(|place| records.finding(place, now_unix())));
        }
        Err(error) => {
            let cure = error.cure();
            // The records in `state` of `[paths]` cannot be read. Cure: Follow the text and the hint.
            found.push(Finding::of_machine(
                format!("whether a place of this node is stuck cannot be seen: {error}"),
                cure.unwrap_or_else(|| "check the file system of `state` of [paths]".to_owned()),
            ));
        }
    }
    found
}

/// What the node noted.
struct Records {
    places: Vec<Stuck>,
    reserved: Vec<Reserved>,
    is_drained: bool,
    away: usize,
    daemon_runs: bool,
}

impl Records {
    fn read(node: &Node) -> Result<Records, gpufrac_host::files::FileError> {
        let mut places = stuck::list(node)?;
        places.retain(Stuck::is_stuck);
        let away = put_back::list(node)?;
        Ok(Records {
            places,
            reserved: reserve::list(node)?,
            is_drained: stuck::drained(node)?.is_some(),
            away: away.iter().filter(|job| job.excluded).count(),
            // Locks that cannot be read are a finding of their own.
            daemon_runs: node
                .locks()
                .ok()
                .is_none_or(|locks| locks.daemon_runs().unwrap_or(true)),
        })
    }

    fn finding(&self, place: &Stuck, now: u64) -> Finding {
        let age = span(now.saturating_sub(place.since));
        let times = match place.failures {
            1 => "once".to_owned(),
            count => format!("{count} times"),
        };
        let cause = plain(&place.cause());
        let effect = self.effect(place);
        // The place cannot be freed, or no slice can be made there; the text has the answer, who holds it, and what
        // follows for jobs. Cure: [A place that cannot be freed](../troubleshooting.md#a-place-that-cannot-be-freed).
        Finding::of_machine(
            format!(
                "{} is stuck: it failed {times} in {age}: {cause}; {effect}",
                place.place
            ),
            self.remedy(place),
        )
    }

    /// What follows for jobs.
    fn effect(&self, place: &Stuck) -> String {
        let takes = |job: &&Reserved| {
            job.device.is_some() && job.device == place.device && job.units.0 == place.units
        };
        let taken = self.reserved.iter().find(takes).map(|job| job.job_id);
        let slurm = match (self.is_drained, taken) {
            (true, _) => "gpufrac drained the node for it".to_owned(),
            (false, Some(job)) => {
                format!("job {job} ({}) keeps Slurm from its units", reserve::NAME)
            }
            (false, None) => {
                "Slurm still counts its units, and jobs that start there go to other nodes"
                    .to_owned()
            }
        };
        match self.away {
            0 => slurm,
            1 => format!("{slurm}; 1 job of this node is sent to others"),
            count => format!("{slurm}; {count} jobs of this node are sent to others"),
        }
    }

    fn remedy(&self, place: &Stuck) -> String {
        let cause = match &place.lost {
            _ if place.by_user => "end the user's process",
            Lost::Lease(_) => {
                "stop or pause what holds it (docs/admin/dcgm.md); last of all, when no other job uses the GPU, reset it: \
                 `nvidia-smi --gpu-reset -i GPU`"
            }
            Lost::Device(_) | Lost::Node => "remove the cause",
        };
        let next = match (self.daemon_runs, &place.lost) {
            (false, _) => "`systemctl start gpufrac-reaperd`, which tries again",
            (true, Lost::Device(_)) => "two minutes after its last failure a job tries it again",
            (true, Lost::Lease(_) | Lost::Node) => "gpufrac-reaperd tries again each 15 s",
        };
        format!("{cause}; {next}, and then all of this is taken back by itself")
    }
}

/// The hooks that would not run.
fn hooks(node: &Node) -> Vec<Finding> {
    let hooks = &node.config.hooks;
    let both = [
        ("before_destroy", &hooks.before_destroy),
        ("stuck", &hooks.stuck),
    ];
    let broken = both.into_iter().filter_map(|(name, program)| {
        let program = program.as_ref()?;
        let (why, fix) = wrong(program)?;
        // The program is missing or not executable, or others than root can change it. Cure: Follow the hint.
        Some(Finding::of_machine(
            format!("`{name}` of [hooks] does not run: {why}"),
            fix,
        ))
    });
    broken.collect()
}

/// Why root would not run a program, and the remedy.
fn wrong(program: &str) -> Option<(String, String)> {
    let correct = || "install it on this node, or correct the path in gpufrac.toml".to_owned();
    let path = match trust::resolve(program.as_ref()) {
        Ok(path) => path,
        Err(error) => return Some((error.to_string(), error.cure().unwrap_or_else(correct))),
    };
    match std::fs::metadata(&path) {
        Ok(meta) if !meta.is_file() => Some((format!("`{program}` is no file"), correct())),
        Ok(meta) if meta.permissions().mode() & 0o111 == 0 => Some((
            format!("`{program}` is not executable"),
            format!("`chmod 755 {}`", path.display()),
        )),
        Ok(_) => None,
        Err(error) => Some((format!("`{program}`: {error}"), correct())),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::time::Duration;

    use gpufrac_core::config::Config;
    use gpufrac_core::fraction::Units;
    use gpufrac_core::ids::{DeviceIndex, JobId};

    use super::*;

    fn place() -> Stuck {
        let mut place = Stuck::of_lease(&test_examples::lease(12), "in use (19)".to_owned());
        place.holders = Some("DCGM's daemon (nv-hostengine, pid 812) runs".to_owned());
        place.failures = 7;
        place
    }

    fn records(reserved: &[Reserved]) -> Records {
        Records {
            places: Vec::new(),
            reserved: reserved.to_vec(),
            is_drained: false,
            away: 0,
            daemon_runs: true,
        }
    }

    fn taker(device: Option<DeviceIndex>) -> Reserved {
        Reserved {
            job_id: JobId(77),
            units: Units(place().units),
            device,
        }
    }

    /// Promise (admins): `gpufrac check` names a stuck place with its cause, its effect and its remedy, and hooks that
    /// would not run.
    /// With `the_effect_names_the_job_that_takes_the_units_or_the_drain`,
    /// `only_places_that_go_on_failing_are_findings`, `a_hook_that_would_not_run_is_an_error`.
    #[test]
    fn a_stuck_place_is_an_error_with_its_cause_its_effect_and_its_remedy() {
        let place = place();
        let finding = records(&[]).finding(&place, place.since + 780);
        assert_eq!(
            finding.what,
            "GPU 0 2g.20gb at 2:2 is stuck: it failed 7 times in 13m: in use (19); DCGM's daemon (nv-hostengine, pid 812) runs; \
             Slurm still counts its units, and jobs that start there go to other nodes"
        );
        assert!(
            finding
                .fix
                .starts_with("stop or pause what holds it (docs/admin/dcgm.md)"),
            "{finding:?}"
        );
        let stopped = Records {
            daemon_runs: false,
            ..records(&[])
        };
        assert!(
            stopped
                .remedy(&place)
                .contains("systemctl start gpufrac-reaperd")
        );
        let mut users = place;
        users.by_user = true;
        assert!(
            records(&[])
                .remedy(&users)
                .starts_with("end the user's process")
        );
    }

    #[test]
    fn the_effect_names_the_job_that_takes_the_units_or_the_drain() {
        let place = place();
        let effect = |records: Records| records.effect(&place);
        // Its device is not known, or another.
        for device in [None, Some(DeviceIndex(99))] {
            assert!(effect(records(&[taker(device)])).starts_with("Slurm still counts"));
        }
        let taken = effect(Records {
            away: 2,
            ..records(&[taker(place.device)])
        });
        assert_eq!(
            taken,
            "job 77 (gpufrac-stuck) keeps Slurm from its units; 2 jobs of this node are sent to others"
        );
        let drained = effect(Records {
            is_drained: true,
            ..records(&[])
        });
        assert_eq!(drained, "gpufrac drained the node for it");
    }

    #[test]
    fn only_places_that_go_on_failing_are_findings() {
        let keep = tempfile::tempdir().unwrap();
        let mut node = Node::new(Config::empty(), "n1");
        node.state = keep.path().canonicalize().unwrap();
        let failure = Stuck::of_node("gpu".to_owned(), "no space".to_owned());
        stuck::fail(&node, failure.clone()).unwrap();
        assert!(Records::read(&node).unwrap().places.is_empty());
        stuck::note(&node, &failure.aged(Duration::from_secs(120))).unwrap();
        assert_eq!(Records::read(&node).unwrap().places.len(), 1);
    }

    #[test]
    fn a_hook_that_would_not_run_is_an_error() {
        let keep = tempfile::tempdir().unwrap();
        let path = keep.path().canonicalize().unwrap().join("hook");
        let mut node = Node::new(Config::empty(), "n1");
        node.config.hooks.stuck = Some(path.display().to_string());
        let found = |node: &Node| hooks(node).pop();
        assert!(found(&node).unwrap().fix.contains("install it"));
        fs::write(&path, "#!/bin/sh\n").unwrap();
        for (mode, fix) in [(0o644, "chmod 755"), (0o777, "chmod go-w")] {
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            let finding = found(&node).unwrap();
            assert!(
                finding.what.starts_with("`stuck` of [hooks]"),
                "{finding:?}"
            );
            assert!(finding.fix.contains(fix), "{finding:?}");
        }
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        assert_eq!(found(&node), None);
    }
}
