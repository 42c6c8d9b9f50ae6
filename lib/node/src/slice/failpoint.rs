//! Steps at which the crash tests kill the process. Without the feature `failpoints`, which no installed binary has,
//! they do nothing.

/// The points during carving, in order.
pub const CARVE: &[&str] = &[
    "carve.locked",
    "carve.lease_written",
    "carve.gpu_instance_made",
    "carve.compute_instance_made",
    "carve.instance_recorded",
    "carve.caps_granted",
    "carve.active",
];

/// The points during a release, in order.
pub const RELEASE: &[&str] = &[
    "release.locked",
    "release.releasing_written",
    "release.caps_revoked",
    "release.compute_instance_gone",
    "release.gpu_instance_gone",
    "release.usage_written",
    "release.lease_removed",
];

/// Further points of carving without MIG, or with MPS inside it.
pub const CARVE_SHARED: &[&str] = &[
    "carve.mode_held",
    "carve.daemon_entered",
    "carve.cache_made",
];

/// Further points of a release without MIG, or with MPS inside it.
pub const RELEASE_SHARED: &[&str] = &[
    "release.cache_removed",
    "release.daemon_left",
    "release.mode_restored",
];

/// The points of carving at the place of a kept instance, in order.
pub const CARVE_KEPT: &[&str] = &[
    "carve.locked",
    "carve.lease_written",
    "carve.taken_over",
    "carve.caps_granted",
    "carve.active",
];

/// The points that carving has beside those where MIG mode of GPUs changes.
pub const CARVE_SWITCHED: &[&str] = &["carve.mig_switched"];

/// The points of keeping an instance, in order.
pub const KEEP: &[&str] = &[
    "release.releasing_written",
    "release.locked",
    "release.caps_revoked",
    "release.usage_written",
    "release.kept",
];

/// The variable with the point at which to die; `NAME@2` for the second time that it is reached.
pub const ENV: &str = "GPUFRAC_FAILPOINT";

/// Kills this process if the environment names this point.
#[cfg(feature = "failpoints")]
pub(crate) fn reached(name: &str) {
    let all = [
        CARVE,
        RELEASE,
        CARVE_SHARED,
        RELEASE_SHARED,
        CARVE_KEPT,
        CARVE_SWITCHED,
        KEEP,
    ];
    debug_assert!(all.iter().any(|points| points.contains(&name)), "{name}");
    let Ok(wanted) = std::env::var(ENV) else {
        return;
    };
    let (wanted, times) = match wanted.split_once('@') {
        Some((wanted, times)) => (wanted, times.parse().unwrap_or(1)),
        None => (wanted.as_str(), 1),
    };
    static REACHED: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(1);
    if wanted == name && REACHED.fetch_add(1, std::sync::atomic::Ordering::Relaxed) == times {
        // SIGKILL runs no destructor, as when the kernel kills a process for lack of memory.
        let _ = nix::sys::signal::kill(nix::unistd::getpid(), nix::sys::signal::SIGKILL);
    }
}

#[cfg(not(feature = "failpoints"))]
#[inline(always)]
pub(crate) fn reached(_name: &str) {}
