//! The reasons why a command ends before it submits.

use gpufrac_core::config::ConfigErrors;
use gpufrac_core::submit::Refusal;
use slurm_sys::host::ConfigurationError;

/// The message for the user of a request that is not submitted.
#[derive(Debug, thiserror::Error)]
pub enum FilterError {
    #[error(transparent)]
    Request(#[from] Box<Refusal>),
    /// This Slurm lets an environment variable override the rewritten request.
    /// Cure: Unset the variable, and set the one of the message.
    #[error(
        "gpufrac: this Slurm cannot take a fraction from {variable}; unset it and set {instead}={list}"
    )]
    FromVariable {
        variable: &'static str,
        /// The variable to set.
        instead: &'static str,
        /// The value to set it to.
        list: String,
    },
    // Slurm refused the value of an option.
    /// Slurm's client refused an option that gpufrac set.
    /// Cure: Report the message with the version of Slurm.
    #[error("gpufrac: Slurm did not take `--{option}={value}`; please report this")]
    NotTaken { option: &'static str, value: String },
    // A step's fraction can only be rounded by this plugin.
    /// The user cannot read gpufrac.toml, so the client cannot count a step's fraction.
    /// Cure: Leave the fraction out of srun, or let users read the file.
    #[error(
        "gpufrac: a step cannot be given a fraction here: {0}; leave it out for all of the job's slice, \
         or ask the admin to let users read that file"
    )]
    StepWithoutConfig(ConfigurationError<ConfigErrors>),
}
