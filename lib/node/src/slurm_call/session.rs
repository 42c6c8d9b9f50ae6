//! A separate process that answers several calls, one after the other: those of a hook.

use std::io::{self, BufRead, BufReader, PipeReader, Write};
use std::process::{Child, ChildStdin, Command, Stdio};

use super::{CALL_ARGUMENT, Call, Failed, Reply};

/// The process. It ends with this program.
pub(crate) struct Session {
    child: Child,
    calls: ChildStdin,
    answers: BufReader<PipeReader>,
}

impl Session {
    /// Starts the process. Errors: it cannot be started.
    pub(crate) fn start() -> io::Result<Session> {
        let (answers, output) = io::pipe()?;
        // This path works even if the program's file was replaced meanwhile. A process that outlives this program must
        // not hold slurmd's pipe.
        let mut child = Command::new("/proc/self/exe")
            .arg(CALL_ARGUMENT)
            .stdin(Stdio::piped())
            .stdout(output.try_clone()?)
            .stderr(output)
            .spawn()?;
        let calls = child.stdin.take().ok_or(io::ErrorKind::BrokenPipe)?;
        Ok(Session {
            child,
            calls,
            answers: BufReader::new(answers),
        })
    }

    /// The reply to a call. Waits without a limit. Errors: the process ended; the text is what it printed.
    pub(crate) fn call(&mut self, call: &Call) -> Result<Result<Reply, Failed>, String> {
        let mut printed = String::new();
        let text = serde_json::to_string(call).map_err(|error| error.to_string())?;
        // A process that has ended is seen by the end of its output.
        let _ = self.calls.write_all(format!("{text}\n").as_bytes());
        loop {
            let mut line = Vec::new();
            match self.answers.read_until(b'\n', &mut line) {
                Ok(0) | Err(_) => return Err(printed.lines().collect::<Vec<_>>().join("; ")),
                Ok(_) => match serde_json::from_slice(&line) {
                    Ok(reply) => return Ok(reply),
                    // libslurm prints lines, too.
                    Err(_) => printed.push_str(&String::from_utf8_lossy(&line)),
                },
            }
        }
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        // It has no call any more.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
