//! The release of the process that loaded a plugin.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU32, Ordering};

use super::{Release, loaded, stock};

/// The host's release; 0 until [`adopt`] has determined it.
static HOST: AtomicU32 = AtomicU32::new(0);

/// Sets `version`, the plugin's symbol `plugin_version`, to the host's release. If the release cannot be determined,
/// the symbol keeps the release of the build, which Slurm compares as usual.
///
/// For the constructor of a plugin, before Slurm reads the symbol. It does not panic.
pub fn adopt(version: &AtomicU32) {
    let on_disk = || stock::beside(&loaded::folder()?);
    let find = || loaded::release(version.as_ptr()).or_else(on_disk);
    if let Ok(Some(host)) = catch_unwind(AssertUnwindSafe(find)) {
        HOST.store(host.number(), Ordering::Release);
        version.store(host.number(), Ordering::Release);
    }
}

/// The release of the process that loaded this plugin, if it is known.
#[must_use]
pub fn host() -> Option<Release> {
    match HOST.load(Ordering::Acquire) {
        0 => None,
        number => Some(Release(number)),
    }
}

/// The release of the process that loaded this plugin; that of the build where it is not known.
#[must_use]
pub fn running() -> Release {
    host().unwrap_or(Release::BUILT_FOR)
}

/// The host's release, if it is of another series than this build. The plugin must then read none of its structures,
/// and must only call functions whose prototype is the same in all series.
#[must_use]
pub fn foreign() -> Option<Release> {
    host().filter(|host| host.series() != Release::BUILT_FOR.series())
}

/// The message in a host of another series, with the cure.
#[must_use]
pub fn refusal(host: Release) -> String {
    format!(
        "built for Slurm {}, but this is {host}: fractions are not served; rebuild it with \
         `cargo xtask dist --slurm-include FOLDER`, FOLDER being the one with {}'s slurm/slurm.h",
        Release::BUILT_FOR.series(),
        host.series()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_slurm_the_version_stays() {
        // A test program has neither a plugin nor a library of Slurm.
        let version = AtomicU32::new(Release::BUILT_FOR.number());
        adopt(&version);
        assert_eq!(version.load(Ordering::Acquire), Release::BUILT_FOR.number());
        assert_eq!(host(), None);
        assert_eq!(foreign(), None);
    }

    #[test]
    fn the_refusal_names_both_and_the_way_out() {
        let text = refusal(Release(0x63_0b_01));
        let built_for = Release::BUILT_FOR.series().to_string();
        for words in [&built_for, "99.11.1", "cargo xtask dist"] {
            assert!(text.contains(words), "{text}");
        }
    }
}
