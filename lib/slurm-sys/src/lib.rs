//! Bindings of the Slurm that this was built for, and a thin safe layer over them.
//!
//! For all:
//!
//! * [`raw`]: what bindgen made of `slurm.h`, `slurm_errno.h` and `spank.h`.
//! * [`text`]: strings and string lists of Slurm's, read.
//! * [`release`]: the Slurm that was built for, and the one that runs.
//! * [`client`]: libslurm loaded at run time, for programs (prolog, epilog).
//!
//! With the feature `plugin`, for what Slurm loads. All of it calls functions that exist only inside Slurm's own
//! processes (slurmctld, slurmstepd, srun), or has no use elsewhere:
//!
//! * `boundary`: no panic crosses into Slurm.
//! * `memory`: strings and string lists in Slurm's memory, written.
//! * `log`: Slurm's log.
//! * `spank`: what a SPANK plugin asks of slurmstepd.
//! * `host`: what a plugin reads from the process that loaded it.
//!
//! Everything that differs by Slurm version is in this crate, but for the tables by which `gpufrac check` judges a Slurm
//! that runs.

#![allow(unsafe_code)]

#[cfg(feature = "plugin")]
pub mod boundary;
pub mod client;
#[cfg(feature = "plugin")]
pub mod host;
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

/// The bindings, as bindgen made them from the installed headers.
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

/// The series that this was built for.
const SERIES: Series = Release::BUILT_FOR.series();

/// Whether TRES strings of this Slurm say `gres/name`: from 23.11; before it they say `gres:name`.
#[must_use]
pub fn gres_with_slash() -> bool {
    SERIES >= Series(23, 11)
}

/// Whether the commands have an option `--tres-per-task`: from 23.02.
#[must_use]
pub fn has_tres_per_task() -> bool {
    SERIES >= Series(23, 2)
}

/// Whether clients end where `--gres` has anything that begins with `gpu` and `--gpus-per-node` was given as well: from
/// 26.05, `_validate_gres_vs_gpus_per_node` of `slurm_opt.c`. What came from the environment counts even after it
/// was taken back.
#[must_use]
pub fn gres_excludes_gpus_per_node() -> bool {
    SERIES >= Series(26, 5)
}

/// Whether `scontrol update TresPerNode=` takes the counts of GRES away: from 25.05. Series before keep counting them, and
/// 22.05 divides by zero where they are shares (`gres_job_state_validate`).
#[must_use]
pub fn updates_take_counts() -> bool {
    SERIES >= Series(25, 5)
}
