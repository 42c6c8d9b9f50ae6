//! The daemon renews the pages of the cluster on the host of `[web]`, also on one without GPUs.
#![allow(clippy::unwrap_used, reason = "a test may panic")]
#![allow(clippy::disallowed_methods, reason = "waits for a real process")]

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// The time limit on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

struct World {
    folder: tempfile::TempDir,
}

impl World {
    /// The daemon beside a `gpufrac` that only notes its arguments.
    fn new() -> World {
        let world = World {
            folder: tempfile::tempdir().unwrap(),
        };
        fs::copy(
            env!("CARGO_BIN_EXE_gpufrac-reaperd"),
            world.path("gpufrac-reaperd"),
        )
        .unwrap();
        let said = world.path("said");
        let script = format!("#!/bin/sh\necho \"$@\" >> {}\n", said.display());
        fs::write(world.path("gpufrac"), script).unwrap();
        fs::set_permissions(world.path("gpufrac"), fs::Permissions::from_mode(0o755)).unwrap();
        world
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn configure(&self, host: &str, folder: &str) {
        let root = self.folder.path().display();
        let text = format!(
            "version = 1\n[paths]\nrun = \"{root}/run\"\nstate = \"{root}/state\"\n[pool.p]\nmechanism = \"mig\"\n\
             layout = \"halves\"\ngpu = \"H100-80\"\npartitions = [\"gpu\"]\nnodes = \"gn01\"\n\
             [web]\nhost = \"{host}\"\nfolder = \"{folder}\"\n"
        );
        fs::write(self.path("gpufrac.toml"), text).unwrap();
    }

    fn start(&self) -> Child {
        let mut command = Command::new(self.path("gpufrac-reaperd"));
        command.arg("--config").arg(self.path("gpufrac.toml"));
        command.args(["--node", "head"]).stderr(Stdio::null());
        command.spawn().unwrap()
    }

    /// Waits until `gpufrac` was called with these folders.
    fn wait(&self, folders: &[&str]) {
        let began = Instant::now();
        let wanted: Vec<String> = folders
            .iter()
            .map(|folder| {
                format!(
                    "web --export {folder} --node head --config {}",
                    self.path("gpufrac.toml").display()
                )
            })
            .collect();
        loop {
            let said = fs::read_to_string(self.path("said")).unwrap_or_default();
            if said.lines().collect::<Vec<_>>() == wanted {
                return;
            }
            assert!(began.elapsed() < PATIENCE, "{said}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

fn send(daemon: &Child, signal: Signal) {
    kill(Pid::from_raw(i32::try_from(daemon.id()).unwrap()), signal).unwrap();
}

#[test]
fn the_host_of_the_pages_renews_them_and_follows_a_new_folder() {
    let world = World::new();
    world.configure("head", "/srv/one");
    let mut daemon = world.start();
    world.wait(&["/srv/one"]);
    world.configure("head", "/srv/two");
    send(&daemon, Signal::SIGHUP);
    world.wait(&["/srv/one", "/srv/two"]);
    // Another host writes them now: the daemon goes on, and calls nothing.
    world.configure("other", "/srv/two");
    send(&daemon, Signal::SIGHUP);
    send(&daemon, Signal::SIGTERM);
    assert!(daemon.wait().unwrap().success());
    world.wait(&["/srv/one", "/srv/two"]);
}

#[test]
fn other_hosts_write_no_pages() {
    let world = World::new();
    world.configure("other", "/srv/one");
    assert!(world.start().wait().unwrap().success());
    assert!(!world.path("said").exists());
}
