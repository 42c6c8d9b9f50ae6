//! The release of the process that loaded a plugin, and what the plugin does about it.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU32, Ordering};

use super::{Release, loaded, stock};

/// The host's release; 0 until [`adopt`] found it.
static HOST: AtomicU32 = AtomicU32::new(0);

/// Puts the host's release in `version`, the plugin's symbol `plugin_version`. What cannot be found out
/// leaves the release that it was built for, which Slurm then compares as ever.
///
/// For the constructor of a plugin, before Slurm looks at the symbol. It does not panic.
pub fn adopt(version: &AtomicU32) {
    let on_disk = || stock::beside(&loaded::folder()?);
    let find = || loaded::release(version.as_ptr()).or_else(on_disk);
    if let Ok(Some(host)) = catch_unwind(AssertUnwindSafe(find)) {
        HOST.store(host.number(), Ordering::Release);
        version.store(host.number(), Ordering::Release);
    }
}

/// The release of the process that loaded this plugin, as far as it is known.
#[must_use]
pub fn host() -> Option<Release> {
    match HOST.load(Ordering::Acquire) {
        0 => None,
        number => Some(Release(number)),
    }
}

/// The host's release if it is of another series than the one built for: none of its structures may be
/// read then, and no function be called whose prototype is not the same in all of them.
#[must_use]
pub fn foreign() -> Option<Release> {
    host().filter(|host| host.series() != Release::BUILT_FOR.series())
}

/// What is wrong in a host of another series, and what to do.
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
        // No plugin of Slurm is in a test program, and no library of it.
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
