//! Why a command ends before it submits.

use gpufrac_core::config::ConfigErrors;
use gpufrac_core::submit::Refusal;
use slurm_sys::host::ConfigurationError;

/// What the user is told of a request that is not submitted.
#[derive(Debug, thiserror::Error)]
pub enum FilterError {
    /// It cannot be met.
    #[error(transparent)]
    Request(#[from] Box<Refusal>),
    /// This Slurm takes a fraction from `--gres`, and from no variable of another option.
    #[error(
        "gpufrac: this Slurm cannot take a fraction from {variable}; unset it and set {instead}={list}"
    )]
    FromVariable {
        /// The variable that is set.
        variable: &'static str,
        /// The variable to set.
        instead: &'static str,
        /// The value to set it to.
        list: String,
    },
    /// Slurm did not take what was to be in an option.
    #[error("gpufrac: Slurm did not take `--{option}={value}`; please report this")]
    NotTaken {
        /// The option, without `--`.
        option: &'static str,
        /// Its value.
        value: String,
    },
    /// A step's fraction is rounded here or nowhere.
    #[error(
        "gpufrac: a step cannot be given a fraction here: {0}; leave it out for all of the job's slice, \
         or ask the admin to let users read that file"
    )]
    StepWithoutConfig(ConfigurationError<ConfigErrors>),
}
