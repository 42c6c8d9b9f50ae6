//! The release of the process that loaded a plugin.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

use libloading::os::unix::Library;

use crate::layout::{self, Difference};

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
pub fn host() -> Option<Release> {
    match HOST.load(Ordering::Acquire) {
        0 => None,
        number => Some(Release(number)),
    }
}

/// The release of the process that loaded this plugin; that of the build where it is not known.
pub fn running() -> Release {
    host().unwrap_or(Release::BUILT_FOR)
}

/// Why a plugin must read none of its host's structures, and must only call functions whose prototype is the same in
/// all series.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Foreign {
    /// The host is of another series than this build.
    Series(Release),
    /// The host has a structure in another form than the headers of this build, though of its series.
    Layout(Difference),
}

/// What keeps this build from serving its host, if anything does.
pub fn foreign() -> Option<Foreign> {
    static FOUND: OnceLock<Option<Foreign>> = OnceLock::new();
    *FOUND.get_or_init(|| {
        let series = host().filter(|host| host.series() != Release::BUILT_FOR.series());
        let layout = || layout::difference(&Library::this()).map(Foreign::Layout);
        series.map(Foreign::Series).or_else(layout)
    })
}

/// The message, with the cure.
impl fmt::Display for Foreign {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let built_for = Release::BUILT_FOR.series();
        match self {
            Self::Series(host) => write!(f, "built for Slurm {built_for}, but this is {host}")?,
            Self::Layout(difference) => write!(
                f,
                "built for other sources of Slurm {built_for} than this one: {difference}"
            )?,
        }
        f.write_str(
            ": fractions are not served; rebuild it with `cargo xtask dist --slurm-include FOLDER`, FOLDER being the \
             one with this Slurm's slurm/slurm.h",
        )
    }
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
        let text = Foreign::Series(Release(0x63_0b_01)).to_string();
        let built_for = Release::BUILT_FOR.series().to_string();
        for words in [&built_for, "99.11.1", "cargo xtask dist"] {
            assert!(text.contains(words), "{text}");
        }
    }
}
