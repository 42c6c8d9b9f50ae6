//! How clients hand an option of the SPANK plugin to the controller: in `spank_job_env`, under a name made of the
//! plugin's and the option's, with `_` for what is no letter or digit (`_opt_env_name` of Slurm's plugstack.c).

const VARIABLE: &str = "_SLURM_SPANK_OPTION_gpufrac_";
/// Slurm adds it to names that lack it, so a client may have as well.
const PREFIX: &str = "SPANK_";

/// The value of an option of the plugin, by its name with `_`, in a job's `spank_job_env`. Of several the last counts,
/// as it does for clients.
pub(super) fn value<'a>(environment: &'a [String], option: &str) -> Option<&'a str> {
    environment.iter().rev().find_map(|variable| {
        let mut name = variable.as_str();
        while let Some(rest) = name.strip_prefix(PREFIX) {
            name = rest;
        }
        let option = name.strip_prefix(VARIABLE)?.strip_prefix(option)?;
        option.strip_prefix('=')
    })
}
