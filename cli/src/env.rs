//! `gpufrac env`: the variables of a job's slice, for a shell that Slurm did not start with them, as one by ssh.

use gpufrac_core::ids::JobId;
use gpufrac_core::lease::{Lease, variables};
use gpufrac_host::exit::Exit;
use gpufrac_node::node::Node;

use crate::args::{EnvArgs, EnvShell, JobArgs};
use crate::error::CliError;
use crate::{local, own};

pub fn run(args: &EnvArgs) -> Result<Exit, CliError> {
    let (_, leases) = leases(&args.job)?;
    print!("{}", text(args.shell, &variables(&leases)));
    Ok(Exit::Done)
}

/// The node, and the leases there of a job of the user: of the job that the arguments name, or that the shell is in.
pub fn leases(args: &JobArgs) -> Result<(Node, Vec<Lease>), CliError> {
    let user = nix::unistd::geteuid().as_raw();
    let node = local(&args.config)?;
    let (mut leases, _) = own::leases(&node)?;
    // root's prologs write a file of CDI for the job of another user.
    leases.retain(|lease| user == 0 || lease.user_id.0 == user);
    let job = match args.job {
        Some(job) => job,
        None => job_of_shell(&leases).ok_or_else(|| CliError::NoJobHere {
            jobs: leases.iter().map(|lease| lease.job_id).collect(),
        })?,
    };
    leases.retain(|lease| lease.job_id == job);
    leases.sort_by_key(|lease| lease.number);
    match leases
        .iter()
        .all(|lease| lease.slice.cuda_device().is_some())
    {
        true if !leases.is_empty() => Ok((node, leases)),
        _ => Err(CliError::NoSliceHere { job }),
    }
}

/// The variables of the slices of a job, with that of its library.
pub fn variables(leases: &[Lease]) -> Vec<(&'static str, String)> {
    let mut variables = variables::of(leases, leases).unwrap_or_default();
    let library = leases.first().and_then(|lease| lease.slice.hami());
    variables.extend(library.map(|hami| ("LD_PRELOAD", hami.library.clone())));
    variables
}

/// The job whose control group the shell is in; the newest of several, as pam_slurm_adopt chooses.
fn job_of_shell(leases: &[Lease]) -> Option<JobId> {
    let groups = std::fs::read_to_string("/proc/self/cgroup").ok()?;
    let is_in = |lease: &&Lease| {
        let mut names = groups.lines().flat_map(|line| line.split('/'));
        names.any(|name| lease.is_group(name))
    };
    let inside = leases.iter().filter(is_in);
    let newest = inside.max_by_key(|lease| (lease.created_unix, lease.job_id));
    newest.map(|lease| lease.job_id)
}

/// The commands that set the variables.
fn text(shell: EnvShell, variables: &[(&str, String)]) -> String {
    let quoted = |value: &str| format!("'{}'", value.replace('\'', r"'\''"));
    let line = |(name, value): &(&str, String)| match shell {
        EnvShell::Sh => format!("export {name}={}\n", quoted(value)),
        EnvShell::Csh => format!("setenv {name} {};\n", quoted(value)),
        // fish takes backslashes in quotes.
        EnvShell::Fish => format!(
            "set -gx {name} '{}'\n",
            value.replace('\\', r"\\").replace('\'', r"\'")
        ),
        EnvShell::Json => String::new(),
    };
    if shell == EnvShell::Json {
        let values = variables.iter().map(|(name, value)| {
            let value = serde_json::Value::from(value.clone());
            ((*name).to_owned(), value)
        });
        return format!("{:#}\n", serde_json::Value::Object(values.collect()));
    }
    variables.iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_shell_gets_its_own_commands() {
        let variables = [("A", "it's".to_owned()), ("B", "1".to_owned())];
        for (shell, expected) in [
            (EnvShell::Sh, "export A='it'\\''s'\nexport B='1'\n"),
            (EnvShell::Csh, "setenv A 'it'\\''s';\nsetenv B '1';\n"),
            (EnvShell::Fish, "set -gx A 'it\\'s'\nset -gx B '1'\n"),
            (EnvShell::Json, "{\n  \"A\": \"it's\",\n  \"B\": \"1\"\n}\n"),
        ] {
            assert_eq!(text(shell, &variables), expected, "{shell:?}");
        }
    }
}
