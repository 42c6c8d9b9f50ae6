//! The value of `--gpufrac-idle`, and whether the job may use it.

use super::option;
use crate::policy::{Facts, IdleWish, Reaper, UnknownWish};

/// The option, as the plugin registers it, with `_`.
const OPTION: &str = "gpufrac_idle";

/// The message for a user with the option if the job has no slice to reclaim.
pub const NO_EFFECT: &str =
    "gpufrac: --gpufrac-idle has no effect here: this job asks for no fraction of a GPU";

/// The reasons why a value of `--gpufrac-idle` is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum IdleRefusal {
    /// There is no such value.
    #[error("gpufrac: {0}")]
    Unknown(#[from] UnknownWish),
    /// The admin limits the option in this partition.
    /// Cure: Use the value of the message.
    #[error(
        "gpufrac: this job cannot use --gpufrac-idle={wish}, only {}{}",
        words(allowed),
        contact.iter().map(|contact| format!(". {contact}")).collect::<String>()
    )]
    NotAllowed {
        /// The requested value.
        wish: IdleWish,
        /// The values that the job may use.
        allowed: Vec<IdleWish>,
        /// Where the user can ask for an exemption.
        contact: Option<String>,
    },
}

/// `default or long`.
fn words(wishes: &[IdleWish]) -> String {
    let names: Vec<&str> = wishes.iter().map(|wish| wish.name()).collect();
    match names.split_last() {
        Some((last, [])) => (*last).to_owned(),
        Some((last, others)) => format!("{} or {last}", others.join(", ")),
        None => String::new(),
    }
}

/// The option's value in a job's `spank_job_env`; of several variables the last one, as clients do.
///
/// # Errors
/// The text is not a value of the option. Clients with the plugin refuse such texts themselves, but not all clients
/// have the plugin.
pub fn asked(environment: &[String]) -> Result<Option<IdleWish>, IdleRefusal> {
    let value = option::value(environment, OPTION);
    Ok(value.map(str::parse).transpose()?)
}

/// Checks whether a job may use `wish`; `facts` are the known properties of the job. `default` is always allowed,
/// because a job without the option has it. Errors: no rule that may match the job allows the value.
pub fn allow(reaper: &Reaper, facts: &Facts<'_>, wish: IdleWish) -> Result<(), IdleRefusal> {
    if wish == IdleWish::Default || reaper.allows(facts, wish) {
        return Ok(());
    }
    let mut allowed = reaper.allowed(facts);
    if !allowed.contains(&IdleWish::Default) {
        allowed.insert(0, IdleWish::Default);
    }
    Err(IdleRefusal::NotAllowed {
        wish,
        allowed,
        contact: reaper.mail.contact.clone(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;

    fn environment(variables: &[&str]) -> Vec<String> {
        variables.iter().map(|text| (*text).to_owned()).collect()
    }

    #[test]
    fn finds_the_option_among_what_clients_send() {
        let asked = |variables: &[&str]| asked(&environment(variables));
        let plain = "_SLURM_SPANK_OPTION_gpufrac_gpufrac_idle=";
        for wish in IdleWish::ALL {
            for prefix in ["", "SPANK_", "SPANK_SPANK_"] {
                let variable = format!("{prefix}{plain}{wish}");
                assert_eq!(asked(&["A=b", &variable, "C"]), Ok(Some(wish)));
            }
        }
        for none in [
            &[][..],
            &["SPANK_GPUFRAC=v1:units=25:mech=mig:idle=off"],
            &["gpufrac-idle=off"],
            &["_SLURM_SPANK_OPTION_other_gpufrac_idle=off"],
            &["_SLURM_SPANK_OPTION_gpufrac_gpufrac_idle"],
        ] {
            assert_eq!(asked(none), Ok(None), "{none:?}");
        }
        let twice = [format!("{plain}off"), format!("{plain}long")];
        assert_eq!(asked(&[&twice[0], &twice[1]]), Ok(Some(IdleWish::Long)));
        for wrong in ["", "Off", "4h", "long ", "off,long"] {
            let refusal = asked(&[&format!("{plain}{wrong}")]).unwrap_err();
            let text = refusal.to_string();
            assert!(text.starts_with("gpufrac: --gpufrac-idle="), "{text}");
            assert!(text.contains("write default, long or off"), "{text}");
        }
    }

    const CONFIG: &str = r#"
version = 1
[pool.p]
mechanism = "mig"
layout = "halves"
gpu = "H100-80"
partitions = ["gpu"]
nodes = "n1"
[reaper.mail]
contact = "gpu-help@example.org"
[reaper.rule.phys]
accounts = ["phys"]
idle_option = ["default", "long", "off"]
[reaper.rule.teaching]
accounts = ["teaching"]
idle_option = ["default"]
"#;

    #[test]
    fn an_option_outside_of_the_rules_is_refused_with_the_allowed_ones() {
        let config = Config::parse(CONFIG, "test").unwrap();
        let try_as = |account, wish| {
            let facts = Facts {
                account,
                ..Facts::default()
            };
            allow(&config.reaper, &facts, wish).map_err(|refusal| refusal.to_string())
        };
        for wish in IdleWish::ALL {
            assert_eq!(try_as(Some("phys"), wish), Ok(()));
            // The account is unknown and may be `phys`.
            assert_eq!(try_as(None, wish), Ok(()));
        }
        assert_eq!(
            try_as(Some("bio"), IdleWish::Off).unwrap_err(),
            "gpufrac: this job cannot use --gpufrac-idle=off, only default or long. \
             gpu-help@example.org"
        );
        assert_eq!(try_as(Some("bio"), IdleWish::Long), Ok(()));
        assert_eq!(
            try_as(Some("teaching"), IdleWish::Long).unwrap_err(),
            "gpufrac: this job cannot use --gpufrac-idle=long, only default. \
             gpu-help@example.org"
        );
        assert_eq!(try_as(Some("teaching"), IdleWish::Default), Ok(()));
    }

    #[test]
    fn a_refused_option_names_no_contact_if_none_is_configured() {
        let text = allow(&Reaper::default(), &Facts::default(), IdleWish::Off);
        assert_eq!(
            text.unwrap_err().to_string(),
            "gpufrac: this job cannot use --gpufrac-idle=off, only default or long"
        );
    }
}
