//! Slurm's record of a job, with fractions called `gpufrac` whatever Slurm counts them as.

use gpufrac_core::count_name::CountName;
use slurm_sys::client::JobInfo;

/// The record with `gpufrac` in place of the name in all texts of GRES.
#[must_use]
pub fn by_own_name(mut info: JobInfo, name: &CountName) -> JobInfo {
    let texts = info
        .tres_per_node
        .iter_mut()
        .chain(&mut info.tres_per_task)
        .chain(&mut info.tres_elsewhere)
        .chain(&mut info.gres_of_nodes);
    for text in texts {
        *text = name.read(text).into_owned();
    }
    info
}
