//! What a job sees of its slice.

use std::ffi::CStr;

use gpufrac_core::lease::Lease;
use slurm_sys::spank::Spank;

/// Ours alone: a job without a slice must not see those that it inherited from the job that
/// submitted it.
const OWN: [&CStr; 4] = [
    c"GPUFRAC_FRACTION",
    c"GPUFRAC_MECHANISM",
    c"GPUFRAC_PROFILE",
    c"GPUFRAC_MEMORY_MIB",
];

/// Sets the variables of a job with a slice, whatever the user had there.
pub fn set(spank: Spank, lease: &Lease) -> Result<(), String> {
    let Some(instance) = &lease.slice.instance else {
        return Err("its lease names no instance".to_owned());
    };
    let variables = [
        ("CUDA_VISIBLE_DEVICES", instance.mig_uuid.clone()),
        ("NVIDIA_VISIBLE_DEVICES", instance.mig_uuid.clone()),
        ("GPUFRAC_FRACTION", lease.fraction.to_string()),
        ("GPUFRAC_MECHANISM", lease.mechanism.to_string()),
        ("GPUFRAC_PROFILE", lease.slice.profile_name.clone()),
        ("GPUFRAC_MEMORY_MIB", lease.slice.memory_mib.0.to_string()),
    ];
    for (name, value) in variables {
        spank
            .set_variable(name, &value)
            .map_err(|reason| format!("cannot set {name}: {reason}"))?;
    }
    Ok(())
}

/// Removes what a step without a slice must not believe. Slurm sets or removes
/// `CUDA_VISIBLE_DEVICES` itself, but not the variable of the container runtimes.
pub fn clear(spank: Spank) {
    if spank
        .variable("NVIDIA_VISIBLE_DEVICES")
        .is_some_and(|value| value.starts_with("MIG-"))
    {
        spank.unset_variable(c"NVIDIA_VISIBLE_DEVICES");
    }
    for name in OWN {
        spank.unset_variable(name);
    }
}
