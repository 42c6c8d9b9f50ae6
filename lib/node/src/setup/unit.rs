//! Whether systemd starts a unit of gpufrac at boot.

use std::fs;
use std::path::Path;

use gpufrac_core::finding::{Finding, Severity};

/// A unit of gpufrac.
#[derive(Debug, Clone, Copy)]
pub struct Unit {
    /// Its name without `.service`.
    name: &'static str,
    /// The state of the node after a reboot without it.
    without: &'static str,
}

/// The placeholders are in /dev, so a reboot removes them.
pub const NODE_SETUP: Unit = Unit {
    name: "gpufrac-node-setup",
    without: "there are no placeholders, and slurmd does not start",
};

pub const REAPERD: Unit = Unit {
    name: "gpufrac-reaperd",
    without: "nobody looks for idle slices",
};

/// The folders of units, and of links to enabled units, below the root (`systemd.unit(5)`).
const UNITS: [&str; 4] = [
    "etc/systemd/system",
    "usr/local/lib/systemd/system",
    "usr/lib/systemd/system",
    "lib/systemd/system",
];

impl Unit {
    /// A warning if the unit is installed below `root` and not enabled. A site without the unit starts the program in
    /// its own way.
    pub fn not_enabled(self, root: &Path) -> Option<Finding> {
        let Unit { name, without } = self;
        let file = format!("{name}.service");
        let is_installed = UNITS
            .iter()
            .any(|folder| root.join(folder).join(&file).exists());
        if !is_installed || is_enabled(root, &file) {
            return None;
        }
        // The unit gpufrac-node-setup or gpufrac-reaperd is installed and not enabled. Cure: `systemctl enable` as the
        // hint says.
        Some(Finding {
            severity: Severity::Warning,
            ..Finding::of_machine(
                format!("{name} is not enabled: after a reboot {without}"),
                format!("`systemctl enable {name}`"),
            )
        })
    }
}

/// NVIDIA's service that makes instances at boot, from a file of the site (NVIDIA/mig-parted, deployments/systemd).
const MIG_MANAGER: &str = "nvidia-mig-manager";

/// A warning if another service makes MIG instances at boot.
pub(super) fn other_mig_manager(root: &Path) -> Option<Finding> {
    let unit = format!("{MIG_MANAGER}.service");
    // nvidia-mig-manager of a site with static MIG is still enabled. Cure: `systemctl disable nvidia-mig-manager`;
    // `gpufrac clean`.
    is_enabled(root, &unit).then(|| Finding {
        severity: Severity::Warning,
        ..Finding::of_machine(
            format!(
                "{MIG_MANAGER} is enabled: it makes MIG instances of its own at boot, in whose places no job starts"
            ),
            format!(
                "`systemctl disable {MIG_MANAGER}`, and give it no GPU of a pool; `gpufrac clean` destroys what it made"
            ),
        )
    })
}

fn is_enabled(root: &Path, unit: &str) -> bool {
    let mut folders = UNITS.iter().map(|folder| root.join(folder));
    folders.any(|folder| is_wanted(&folder, unit))
}

/// Whether another unit wants or requires it: a link in `slurmd.service.requires`, for example.
fn is_wanted(folder: &Path, unit: &str) -> bool {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut of_others = entries.map(|entry| entry.path()).filter(|path| {
        let end = path.extension().unwrap_or_default();
        end == "wants" || end == "requires"
    });
    of_others.any(|links| links.join(unit).symlink_metadata().is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Promise (admins): `gpufrac check` names another service that makes MIG instances at boot.
    #[test]
    fn a_service_that_makes_instances_at_boot_is_named() {
        let root = tempfile::tempdir().unwrap();
        assert!(other_mig_manager(root.path()).is_none());
        let wants = root
            .path()
            .join("etc/systemd/system/multi-user.target.wants");
        fs::create_dir_all(&wants).unwrap();
        fs::write(wants.join("nvidia-mig-manager.service"), "").unwrap();
        let found = other_mig_manager(root.path()).unwrap();
        assert_eq!(found.severity, Severity::Warning);
        assert!(
            found.fix.contains("systemctl disable nvidia-mig-manager"),
            "{found:?}"
        );
    }

    /// Promise (admins): `gpufrac check` warns of a node whose node-setup or reaper does not run at boot.
    #[test]
    fn a_unit_that_is_not_enabled_is_named() {
        let root = tempfile::tempdir().unwrap();
        let not_enabled = |unit: Unit| unit.not_enabled(root.path());
        assert!(not_enabled(NODE_SETUP).is_none());
        let put = |name: &str| {
            let path = root.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, "").unwrap();
        };
        put("usr/lib/systemd/system/gpufrac-node-setup.service");
        put("etc/systemd/system/multi-user.target.wants/slurmd.service");
        let found = not_enabled(NODE_SETUP).unwrap();
        assert_eq!(found.severity, Severity::Warning);
        assert_eq!(found.fix, "`systemctl enable gpufrac-node-setup`");
        assert!(not_enabled(REAPERD).is_none(), "it is not installed");
        put("etc/systemd/system/slurmd.service.requires/gpufrac-node-setup.service");
        assert!(not_enabled(NODE_SETUP).is_none());
        put("usr/lib/systemd/system/gpufrac-reaperd.service");
        assert!(not_enabled(REAPERD).is_some());
    }
}
