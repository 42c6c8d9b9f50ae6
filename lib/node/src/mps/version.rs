//! The capabilities of the control daemon's program: static partitions of multiprocessors came with CUDA 13.1.

use std::path::Path;
use std::process::{Command, Stdio};

use crate::mps::error::MpsError;

/// The version of CUDA whose control daemon has `-S` and `sm_partition`, in the notation of `-v`.
const PARTITIONS_SINCE: u32 = 13_010;

/// The version of a control daemon's program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ControlVersion {
    /// CUDA's version, 1000 times the major number plus 10 times the minor one; None if unknown.
    pub cuda: Option<u32>,
}

impl ControlVersion {
    /// Whether it can create static partitions.
    pub fn has_partitions(self) -> bool {
        self.cuda.is_some_and(|version| version >= PARTITIONS_SINCE)
    }
}

/// Asks the program: `nvidia-cuda-mps-control -v`. Those of drivers 535 to 555 print no number.
/// Errors: [`MpsError::Run`]
pub fn of_program(program: &Path) -> Result<ControlVersion, MpsError> {
    let output = Command::new(program)
        .arg("-v")
        .env_clear()
        .stdin(Stdio::null())
        .output()
        .map_err(|source| MpsError::Run {
            program: program.to_owned(),
            source,
        })?;
    Ok(of_text(&String::from_utf8_lossy(&output.stdout)))
}

/// Parses the program's output.
pub fn of_text(text: &str) -> ControlVersion {
    let numbers = text.split(|c: char| !c.is_ascii_digit());
    // Years in the copyright line have four digits.
    let cuda = numbers
        .filter(|word| word.len() == 5)
        .find_map(|word| word.parse().ok());
    ControlVersion { cuda }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_found_where_they_are_told() {
        assert!(of_text("13010").has_partitions());
        assert!(of_text("CUDA MPS Control binary version: 13030\n").has_partitions());
        assert!(!of_text("12090").has_partitions());
        let old =
            "CUDA MPS Control for Linux/Unix.\nCopyright (C) 2003 - 2024 NVIDIA Corporation.\n";
        assert_eq!(of_text(old).cuda, None);
    }
}
