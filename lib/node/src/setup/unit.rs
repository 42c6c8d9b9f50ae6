//! Whether systemd runs node-setup at boot. The placeholders are in /dev, so a reboot removes them, and slurmd does not
//! start without them.

use std::fs;
use std::path::Path;

use gpufrac_core::finding::{Finding, Severity};

const UNIT: &str = "gpufrac-node-setup.service";
/// The folders of units, and of links to enabled units, below the root (`systemd.unit(5)`).
const UNITS: [&str; 4] = [
    "etc/systemd/system",
    "usr/local/lib/systemd/system",
    "usr/lib/systemd/system",
    "lib/systemd/system",
];

/// A warning if the unit is installed and not enabled. A site without the unit runs node-setup in its own way.
pub(super) fn not_enabled(root: &Path) -> Option<Finding> {
    let folders = UNITS.map(|folder| root.join(folder));
    let is_installed = folders.iter().any(|folder| folder.join(UNIT).exists());
    if !is_installed || folders.iter().any(|folder| is_wanted(folder)) {
        return None;
    }
    Some(Finding {
        severity: Severity::Warning,
        ..Finding::of_machine(
            "gpufrac-node-setup is not enabled: after a reboot there are no placeholders, and slurmd does not start",
            "`systemctl enable gpufrac-node-setup`",
        )
    })
}

/// Whether another unit wants or requires it: a link in `slurmd.service.requires`, for example.
fn is_wanted(folder: &Path) -> bool {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut of_others = entries.map(|entry| entry.path()).filter(|path| {
        let end = path.extension().unwrap_or_default();
        end == "wants" || end == "requires"
    });
    of_others.any(|links| links.join(UNIT).symlink_metadata().is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_unit_that_is_not_enabled_is_named() {
        let root = tempfile::tempdir().unwrap();
        assert_eq!(not_enabled(root.path()), None);
        let put = |name: &str| {
            let path = root.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, "").unwrap();
        };
        put("usr/lib/systemd/system/gpufrac-node-setup.service");
        put("etc/systemd/system/multi-user.target.wants/slurmd.service");
        let found = not_enabled(root.path()).unwrap();
        assert_eq!(found.severity, Severity::Warning);
        assert!(found.fix.contains("systemctl enable"), "{found:?}");
        put("etc/systemd/system/slurmd.service.requires/gpufrac-node-setup.service");
        assert_eq!(not_enabled(root.path()), None);
    }
}
