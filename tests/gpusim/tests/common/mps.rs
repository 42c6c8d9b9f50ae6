//! A control program of MPS, the stand-in or the real one.

use std::fs;
use std::io::Write;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;

/// An MPS control program with a pipe directory, ended when dropped.
pub struct Mps {
    pub folder: TempDir,
    program: PathBuf,
    /// `CUDA_VISIBLE_DEVICES` of the daemon.
    pub device: String,
}

impl Mps {
    pub fn standin(options: &str) -> Mps {
        let folder = tempfile::tempdir().unwrap();
        let program = folder.path().join("nvidia-cuda-mps-control");
        // Another process copies, so that a child process of another test does not keep the file open for writing.
        let copied = Command::new("cp")
            .arg(env!("CARGO_BIN_EXE_mps-standin"))
            .arg(&program)
            .status();
        assert!(copied.unwrap().success());
        fs::write(folder.path().join("standin.json"), options).unwrap();
        Mps::with(folder, program)
    }

    /// A second daemon of the same program, with its own pipe directory.
    pub fn beside(&self) -> Mps {
        Mps::with(tempfile::tempdir().unwrap(), self.program.clone())
    }

    pub fn with(folder: TempDir, program: PathBuf) -> Mps {
        for name in ["pipe", "log"] {
            fs::create_dir(folder.path().join(name)).unwrap();
        }
        Mps {
            folder,
            program,
            device: "GPU-1".into(),
        }
    }

    pub fn pipe(&self, name: &str) -> PathBuf {
        self.folder.path().join("pipe").join(name)
    }

    pub fn run(&self, arguments: &[&str], stdin: &str) -> Output {
        let mut child = self.spawn(arguments, stdin);
        let begun = Instant::now();
        while child.try_wait().unwrap().is_none() {
            assert!(
                begun.elapsed() < Duration::from_secs(60),
                "{arguments:?} {stdin}"
            );
            std::thread::sleep(Duration::from_millis(5));
        }
        child.wait_with_output().unwrap()
    }

    pub fn spawn(&self, arguments: &[&str], stdin: &str) -> Child {
        let mut child = Command::new(&self.program)
            .args(arguments)
            .env("CUDA_MPS_PIPE_DIRECTORY", self.pipe(""))
            .env("CUDA_MPS_LOG_DIRECTORY", self.folder.path().join("log"))
            .env("CUDA_VISIBLE_DEVICES", &self.device)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        // A program that does not read its input has ended.
        let _ = writeln!(child.stdin.take().unwrap(), "{stdin}");
        child
    }

    pub fn start(&self, arguments: &[&str]) {
        let output = self.run(arguments, "");
        assert!(output.status.success(), "{output:?}");
    }

    /// The output of a command.
    pub fn tell(&self, command: &str) -> String {
        let output = self.run(&[], command);
        assert!(output.status.success(), "{command}: {output:?}");
        String::from_utf8(output.stdout).unwrap()
    }

    pub fn server(&self) -> u32 {
        self.tell("start_server -uid 1000");
        self.tell("get_server_list").trim().parse().unwrap()
    }
}

impl Drop for Mps {
    fn drop(&mut self) {
        let _ = self.run(&[], "quit -t 0");
    }
}
