//! `gpufrac env`: the variables of a job's slice, for a shell that Slurm did not start with them, as one by ssh.

use gpufrac_core::ids::JobId;
use gpufrac_core::lease::visible::{self, Visible};
use gpufrac_core::lease::{Lease, variables};
use gpufrac_host::exit::Exit;
use gpufrac_node::node::Node;

use crate::args::{EnvArgs, EnvShell, JobArgs};
use crate::error::CliError;
use crate::{local, own};

pub fn run(args: &EnvArgs) -> Result<Exit, CliError> {
    let (node, leases) = leases(&args.job)?;
    let is_inside = job_of_shell(&leases).is_some();
    let numbers = is_inside.then(|| numbers(&node, &leases)).flatten();
    print!("{}", text(args.shell, &variables::of_job(&leases, numbers)));
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
    let has_device = |lease: &Lease| lease.slice.cuda_device().is_some();
    if leases.is_empty() || !leases.iter().all(has_device) {
        return Err(CliError::NoSliceHere { job });
    }
    Ok((node, leases))
}

/// CUDA's numbers for the devices of the job, if the user's variable or else the pool asks for them. They hold behind
/// the fence of the job alone, and where the shell may read that no GPU is outside of pools.
fn numbers(node: &Node, leases: &[Lease]) -> Option<String> {
    let asked = std::env::var(visible::VARIABLE).ok();
    let asked = asked.and_then(|text| text.parse().ok());
    let of_pool = || {
        let mut pools = node.config.pools.iter();
        let pool = pools.find(|pool| Some(&pool.name) == leases.first().map(|lease| &lease.pool));
        pool.map_or(Visible::default(), |pool| pool.options.visible)
    };
    if asked.unwrap_or_else(of_pool) == Visible::Uuid {
        return None;
    }
    let record = node.record().ok()?;
    let all_in_pools = record.gpus.iter().all(|gpu| gpu.pool.is_some());
    visible::numbers(leases, leases, all_in_pools).ok()
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
