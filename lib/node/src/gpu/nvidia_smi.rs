//! nvidia-smi, for settings that NVML has no call for.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use gpufrac_host::subprocess::{Outcome, PATH, run};

/// The time limit: nvidia-smi takes seconds if the driver must wake a GPU.
const SMI_LIMIT: Duration = Duration::from_secs(20);

/// The reasons why a call of nvidia-smi failed.
#[derive(Debug, thiserror::Error)]
pub enum SmiError {
    /// It ended with an error; with its output.
    #[error("{0}")]
    Refused(String),
    /// The program did not end in time; the driver may be busy.
    /// Cure: Try it by hand; look for Xid errors in the kernel's log.
    #[error("`{}` did not end within {} s", program.display(), SMI_LIMIT.as_secs())]
    Silent { program: PathBuf },
    /// The program is missing.
    /// Cure: Install it, or correct its path in `[paths]`.
    #[error("starting `{}` failed: {source}", program.display())]
    Run {
        program: PathBuf,
        source: std::io::Error,
    },
}

/// Runs nvidia-smi. Errors: it cannot be run, does not end in time, or ends with an error.
pub(crate) fn run_nvidia_smi(program: &Path, arguments: &[&str]) -> Result<(), SmiError> {
    let mut command = Command::new(program);
    command.env_clear().env("PATH", PATH).args(arguments);
    let program = program.to_owned();
    match run(&mut command, b"", SMI_LIMIT) {
        Ok(Outcome::Ended(ended)) if ended.status.success() => Ok(()),
        Ok(Outcome::Ended(ended)) => Err(SmiError::Refused(ended.text())),
        Ok(Outcome::Silent) => Err(SmiError::Silent { program }),
        Err(source) => Err(SmiError::Run { program, source }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_that_is_not_there_is_named() {
        let why = run_nvidia_smi(Path::new("/nonexistent/nvidia-smi"), &[])
            .unwrap_err()
            .to_string();
        assert!(
            why.contains("starting `/nonexistent/nvidia-smi` failed"),
            "{why}"
        );
    }
}
