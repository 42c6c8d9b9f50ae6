//! Whether the kernel can start a program of slurmd. slurmd calls `execve`, which takes no script without `#!`; a
//! program that does not start fails, and Slurm drains the node.

use std::fs::File;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// The first bytes of a program that is no script.
const ELF: &[u8] = b"\x7fELF";
/// The kernel reads no more of the first line (`BINPRM_BUF_SIZE`).
const FIRST_BYTES: u64 = 256;

/// The reasons why a file with its execute permission does not start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NoStart {
    /// It is a folder, or no file of its own.
    NoFile,
    /// It is neither a program nor begins with `#!`.
    NoShebang,
    /// The first line ends with a carriage return, which counts as a letter of the interpreter's name.
    CarriageReturn,
    /// The interpreter of the first line does not exist.
    NoInterpreter(PathBuf),
}

/// The reason why a file does not start; None if it may start, or cannot be read.
pub(super) fn fault(path: &Path) -> Option<NoStart> {
    let file = File::open(path).ok()?;
    if !file.metadata().ok()?.is_file() {
        return Some(NoStart::NoFile);
    }
    let mut first = Vec::new();
    file.take(FIRST_BYTES).read_to_end(&mut first).ok()?;
    if first.starts_with(ELF) {
        return None;
    }
    let Some(rest) = first.strip_prefix(b"#!") else {
        return Some(NoStart::NoShebang);
    };
    let line = rest.split(|byte| *byte == b'\n').next().unwrap_or_default();
    if line.ends_with(b"\r") {
        return Some(NoStart::CarriageReturn);
    }
    let mut words = line.split(|byte| matches!(byte, b' ' | b'\t'));
    let interpreter = words.find(|word| !word.is_empty()).unwrap_or_default();
    let interpreter = Path::new(std::ffi::OsStr::from_bytes(interpreter));
    (!interpreter.exists()).then(|| NoStart::NoInterpreter(interpreter.to_owned()))
}
