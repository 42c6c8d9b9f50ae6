//! The MPS daemons of a lab's nodes, and their servers.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use nix::sys::signal::Signal;

use crate::process::Process;
use crate::{Folder, leftovers};

/// A process of MPS.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MpsProcess {
    /// Process id.
    pub pid: i32,
    /// Whether it is a control daemon; otherwise a server.
    pub control: bool,
    /// Its `CUDA_MPS_PIPE_DIRECTORY`.
    pub pipe: PathBuf,
}

/// Kills the remaining daemons and servers of a lab.
pub(crate) fn kill(folder: &Folder) {
    let mut found = below(&folder.root().join("run"));
    // Daemons first, because a daemon whose server ends may start another one.
    found.sort_by_key(|process| !process.control);
    for MpsProcess { pid, .. } in found {
        if let Some(process) = Process::observe("MPS", pid) {
            process.signal(Signal::SIGKILL);
        }
    }
}

/// The processes of MPS whose pipe directory is below `place`.
pub(crate) fn below(place: &Path) -> Vec<MpsProcess> {
    let pids = leftovers::numeric_entries(Path::new("/proc"));
    let mut found: Vec<_> = pids.into_iter().filter_map(observe).collect();
    found.retain(|process| process.pipe.starts_with(place));
    found
}

/// A process of MPS. A program that only sends a command to a daemon does not count.
fn observe(pid: i32) -> Option<MpsProcess> {
    let proc = Path::new("/proc").join(pid.to_string());
    let line = fs::read(proc.join("cmdline")).ok()?;
    let mut words = line.split(|byte| *byte == 0);
    let program = Path::new(OsStr::from_bytes(words.next()?)).file_name()?;
    let control = match program.to_str()? {
        "nvidia-cuda-mps-control" if words.any(|word| word == b"-d" || word == b"-f") => true,
        "nvidia-cuda-mps-server" => false,
        _ => return None,
    };
    let environment = fs::read(proc.join("environ")).ok()?;
    let pipe = environment
        .split(|byte| *byte == 0)
        .find_map(|line| line.strip_prefix(b"CUDA_MPS_PIPE_DIRECTORY="))?;
    Process::observe("MPS", pid)?;
    Some(MpsProcess {
        pid,
        control,
        pipe: Path::new(OsStr::from_bytes(pipe)).to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::CommandExt;
    use std::process::{Command, Stdio};
    use std::time::Duration;

    use super::*;

    #[test]
    fn daemons_and_servers_are_found_and_killed() {
        let place = tempfile::tempdir().unwrap();
        let folder = Folder::new(place.path());
        let pipe = folder.mps("n1").join("GPU-1/pipe");
        let start = |program: &str, name: &str, args: &[&str], pipe: &Path| {
            let mut command = Command::new(program);
            command.arg0(name).args(args).stdin(Stdio::piped());
            command
                .env("CUDA_MPS_PIPE_DIRECTORY", pipe)
                .spawn()
                .unwrap()
        };
        let wait = ["-c", "read line", "sh", "-d"];
        let mut mine = [
            start("sh", "nvidia-cuda-mps-control", &wait, &pipe),
            start("sleep", "/usr/sbin/nvidia-cuda-mps-server", &["60"], &pipe),
        ];
        let mut others = [
            start("sh", "nvidia-cuda-mps-control", &wait[..3], &pipe),
            start(
                "sh",
                "nvidia-cuda-mps-control",
                &wait,
                Path::new("/run/mps"),
            ),
            start("sleep", "sleep", &["60"], &pipe),
        ];
        // A program that was just started may not have its arguments yet.
        let mut found = Vec::new();
        for _ in 0..1000 {
            found = below(&folder.mps("n1"));
            if found.len() >= mine.len() {
                break;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        found.sort_by_key(|process| !process.control);
        let pids: Vec<_> = found.iter().map(|process| process.pid as u32).collect();
        assert_eq!(pids, mine.each_ref().map(std::process::Child::id));
        assert_eq!(found[0].pipe, pipe);
        assert_eq!(below(&folder.mps("n2")), []);
        kill(&folder);
        for child in &mut mine {
            assert!(!child.wait().unwrap().success());
        }
        for child in &mut others {
            assert!(child.try_wait().unwrap().is_none());
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }
}
