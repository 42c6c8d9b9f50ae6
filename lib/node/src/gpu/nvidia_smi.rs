//! nvidia-smi, for what NVML has no call for.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use gpufrac_host::subprocess::{Outcome, PATH, run};

/// How long nvidia-smi may take: seconds where the driver has to wake a GPU.
const SMI_LIMIT: Duration = Duration::from_secs(20);

/// Runs nvidia-smi; on failure gives what it said.
pub(crate) fn run_nvidia_smi(program: &Path, arguments: &[&str]) -> Result<(), String> {
    let mut command = Command::new(program);
    command.env_clear().env("PATH", PATH).args(arguments);
    match run(&mut command, b"", SMI_LIMIT) {
        Ok(Outcome::Ended(ended)) if ended.status.success() => Ok(()),
        Ok(Outcome::Ended(ended)) => Err(ended.text()),
        Ok(Outcome::Silent) => Err(format!(
            "`{}` did not end within {} s",
            program.display(),
            SMI_LIMIT.as_secs()
        )),
        Err(error) => Err(format!("cannot run `{}`: {error}", program.display())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_that_is_not_there_is_named() {
        let why = run_nvidia_smi(Path::new("/nonexistent/nvidia-smi"), &[]).unwrap_err();
        assert!(
            why.contains("cannot run `/nonexistent/nvidia-smi`"),
            "{why}"
        );
    }
}
