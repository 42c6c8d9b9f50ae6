//! Bindings of the Slurm that this build is for, with a thin safe layer.
//!
//! For all programs:
//!
//! * [`raw`]: bindgen's output for `slurm.h`, `slurm_errno.h` and `spank.h`.
//! * [`text`]: reads strings and string lists of Slurm.
//! * [`release`]: the Slurm that this build is for, and the running one.
//! * [`layout`]: whether a running Slurm has the structures of this build.
//! * [`client`]: libslurm loaded at run time, for programs (prolog, epilog).
//!
//! With the feature `plugin`, for plugins that Slurm loads; these modules call functions that exist only in Slurm's
//! own processes (slurmctld, slurmstepd, srun):
//!
//! * `boundary`: no panic crosses into Slurm.
//! * `memory`: writes strings and string lists in Slurm's memory.
//! * `log`: Slurm's log.
//! * `spank`: the interface of a SPANK plugin to slurmstepd.
//! * `host`: data of the process that loaded the plugin.
//!
//! All differences between versions of Slurm are in this crate, except for the tables by which `gpufrac check` judges
//! a running Slurm.

#![allow(unsafe_code)]

#[cfg(feature = "plugin")]
pub mod boundary;
pub mod client;
#[cfg(feature = "plugin")]
pub mod host;
pub mod layout;
#[cfg(feature = "plugin")]
pub mod log;
#[cfg(feature = "plugin")]
pub mod memory;
#[cfg(feature = "plugin")]
pub mod plugin;
pub mod release;
#[cfg(feature = "plugin")]
pub mod spank;
pub mod text;

use release::{Release, Series};

/// bindgen's output for the installed headers.
#[allow(
    missing_docs,
    non_camel_case_types,
    non_snake_case,
    non_upper_case_globals,
    unsafe_op_in_unsafe_fn,
    clippy::all,
    clippy::undocumented_unsafe_blocks,
    clippy::unwrap_used,
    rustdoc::all
)]
pub mod raw {
    include!(concat!(env!("OUT_DIR"), "/host.rs"));
}

/// The series that this build is for.
const SERIES: Series = Release::BUILT_FOR.series();

/// Whether TRES strings of this Slurm have the form `gres/name` (from 23.11); earlier ones have `gres:name`.
pub fn gres_with_slash() -> bool {
    SERIES >= Series(23, 11)
}

/// Whether the commands have the option `--tres-per-task` (from 23.02).
pub fn has_tres_per_task() -> bool {
    SERIES >= Series(23, 2)
}

/// Whether clients end with an error if `--gres` has a name that begins with `gpu` and `--gpus-per-node` was given,
/// too (from 26.05, `_validate_gres_vs_gpus_per_node` of `slurm_opt.c`). An option from the environment counts even
/// after it was reset.
pub fn gres_excludes_gpus_per_node() -> bool {
    SERIES >= Series(26, 5)
}

/// Whether `scontrol update TresPerNode=` also removes counts of GRES (seen from 26.05.5 on). Earlier releases keep
/// counting them (`_update_job` of `job_mgr.c` replaces the job's list only with one that has items), and 22.05 divides
/// by zero if they are shares (`gres_job_state_validate`).
#[cfg(feature = "plugin")]
pub fn updates_take_counts() -> bool {
    release::running() >= Release::new(26, 5, 5)
}

/// Whether this Slurm forgets that shares of a GPU are in use when the first of their jobs ends (before 23.11.5,
/// `_job_dealloc` of `gres_ctld.c`).
#[cfg(feature = "plugin")]
pub fn forgets_shares() -> bool {
    release::running() < Release::new(23, 11, 5)
}
