//! A small cluster as at a site, on clean Debian: slurmctld's host, a node with simulated GPUs, a login host, and a
//! node that Slurm does not know yet. Each host has its own root over a Debian with Slurm, with its own processes,
//! devices, control groups, network and name; nothing changes the machine.

use std::fs::{self, File};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::page::Place;
use xtask_front::cargo::root;

/// The script that starts a host, the stand-in for systemctl, and the script that sets up the cluster.
const HOST: &str = include_str!("host.sh");
const SYSTEMCTL: &str = include_str!("systemctl.sh");
const CLUSTER: &str = include_str!("site.sh");

pub(super) const HOSTS: [&str; 4] = ["ctl", "gn01", "login", "gn02"];
/// The hosts with GPUs.
const NODES: [&str; 2] = ["gn01", "gn02"];
/// The time limit of a command, which may wait for jobs.
const LIMIT: Duration = Duration::from_secs(300);
/// The time limit of a command that builds, on a busy machine.
const BUILD_LIMIT: Duration = Duration::from_secs(3600);
const START: Duration = Duration::from_secs(60);

/// A cluster; it ends when this is dropped.
pub(super) struct Site {
    hosts: Vec<Host>,
    /// The time limit of a command.
    limit: Duration,
    /// The folders of the hosts, and of the commands' output.
    folder: tempfile::TempDir,
}

struct Host {
    name: &'static str,
    folder: PathBuf,
    /// The process that started the host.
    starter: Child,
    /// The pid of the host's first process.
    first: i32,
}

impl Site {
    /// Starts a cluster over this Debian, with these packages, and newer ones for an upgrade, on each host.
    pub fn start(debian: &Path, packages: &[PathBuf], newer: &[PathBuf]) -> Result<Site> {
        let folder = tempfile::Builder::new()
            .prefix("gpufrac-site-")
            .tempdir()
            .context("making a temporary folder failed")?;
        let mut site = Site {
            hosts: Vec::new(),
            limit: LIMIT,
            folder,
        };
        let key = site.folder.path().join("key");
        let mut random = vec![0; 128];
        std::io::Read::read_exact(&mut File::open("/dev/urandom")?, &mut random)?;
        fs::write(&key, random)?;
        for name in HOSTS {
            site.add(name, debian, &key, packages, newer)?;
        }
        for name in HOSTS {
            let place = Place {
                user: None,
                host: name.to_owned(),
            };
            let said = site.run(&place, name, "bash /root/site.sh /root/key")?;
            if !said.success {
                bail!("starting Slurm on {name} failed:\n{}", said.text);
            }
        }
        Ok(site)
    }

    fn add(
        &mut self,
        name: &'static str,
        debian: &Path,
        key: &Path,
        packages: &[PathBuf],
        newer: &[PathBuf],
    ) -> Result<()> {
        let folder = self.folder.path().join(name);
        let upper = folder.join("upper");
        for part in ["packages/new", "upper/usr/local/bin", "upper/root"] {
            fs::create_dir_all(folder.join(part))?;
        }
        let systemctl = upper.join("usr/local/bin/systemctl");
        fs::write(&systemctl, SYSTEMCTL)?;
        fs::set_permissions(
            &systemctl,
            std::os::unix::fs::PermissionsExt::from_mode(0o755),
        )?;
        fs::write(upper.join("root/site.sh"), CLUSTER)?;
        fs::copy(key, upper.join("root/key"))?;
        for (place, files) in [("packages", packages), ("packages/new", newer)] {
            for file in files {
                fs::copy(
                    file,
                    folder
                        .join(place)
                        .join(file.file_name().unwrap_or_default()),
                )?;
            }
        }
        let script = self.folder.path().join("host.sh");
        fs::write(&script, HOST)?;
        let network = self
            .hosts
            .first()
            .map_or("new".to_owned(), |host| host.first.to_string());
        let built = root().join("target/debug");
        let gpusim = if NODES.contains(&name) { built.join("gpusim") } else { "-".into() };
        let log = File::create(folder.join("log"))?;
        let starter = Command::new("bash")
            .arg(&script)
            .arg(name)
            .arg(debian)
            .arg(&folder)
            .arg(network)
            .arg(gpusim)
            .arg(built.join("libnvidia_ml.so"))
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .process_group(0)
            .spawn()
            .context("starting bash failed")?;
        let mut host = Host {
            name,
            folder,
            starter,
            first: 0,
        };
        let begun = wait_for_host(&mut host);
        self.hosts.push(host);
        begun
    }

    /// Gives commands the time limit of builds.
    pub fn let_build(&mut self) {
        self.limit = BUILD_LIMIT;
    }

    /// Mounts a folder of the machine in a host, read-only.
    pub fn show(&self, host: &str, folder: &Path, at: &str) -> Result<()> {
        let Some(host) = self.hosts.iter().find(|known| known.name == host) else {
            bail!("no host is called {host}; there are {}", HOSTS.join(", "));
        };
        let to = host.folder.join("root").join(at.trim_start_matches('/'));
        let script =
            "mkdir -p \"$2\" && mount --bind \"$1\" \"$2\" && mount -o remount,bind,ro \"$2\"";
        // In the mount namespace of the host, from the root of the machine: only the host's first process has another
        // root.
        let status = Command::new("nsenter")
            .arg(format!("--target={}", host.first))
            .args(["--mount", "sh", "-c", script, "sh"])
            .args([folder, &to])
            .status()
            .context("starting nsenter failed")?;
        if !status.success() {
            bail!("mounting {} in {} failed", folder.display(), host.name);
        }
        Ok(())
    }

    /// The pid of a host's first process.
    pub fn process(&self, host: &str) -> Result<i32> {
        let found = self.hosts.iter().find(|known| known.name == host);
        let found = found.with_context(|| format!("no host is called {host}"))?;
        Ok(found.first)
    }

    /// Runs a command on a host, as root or as a user.
    pub fn run(&self, place: &Place, host: &str, command: &str) -> Result<Said> {
        let Some(host) = self.hosts.iter().find(|known| known.name == host) else {
            bail!("no host is called {host}; there are {}", HOSTS.join(", "));
        };
        let path = self.folder.path().join("printed");
        let printed = File::create(&path)?;
        let user = place.user.as_deref();
        let mut run = Command::new("nsenter");
        run.arg(format!("--target={}", host.first))
            .args(["--all", "--root", "--wdns=/root"])
            .args([
                "env",
                "-i",
                "LC_ALL=C.UTF-8",
                "DEBIAN_FRONTEND=noninteractive",
            ])
            .arg("PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin");
        match user {
            Some(user) => run.args([
                "runuser",
                "-u",
                user,
                "--",
                "env",
                &format!("HOME=/home/{user}"),
                "bash",
            ]),
            None => run.args(["env", "HOME=/root", "bash"]),
        };
        run.args(["-c", &format!("cd; set -e\n{command}")])
            .stdin(Stdio::null())
            .stdout(printed.try_clone()?)
            .stderr(printed)
            .process_group(0);
        let mut child = run.spawn().context("starting nsenter failed")?;
        let begun = Instant::now();
        let status = loop {
            if let Some(status) = child.try_wait()? {
                break Some(status);
            }
            if begun.elapsed() > self.limit {
                // Kills only the command's own process group.
                let _ = kill(Pid::from_raw(-child.id().cast_signed()), Signal::SIGKILL);
                child.wait()?;
                break None;
            }
            std::thread::sleep(Duration::from_millis(20));
        };
        let text = String::from_utf8_lossy(&fs::read(&path)?).into_owned();
        Ok(match status {
            Some(status) => Said {
                success: status.success(),
                text,
            },
            None => Said {
                success: false,
                text: format!("{text}(not done after {} s)", self.limit.as_secs()),
            },
        })
    }

    /// The last lines of Slurm's logs on the hosts.
    pub fn logs(&self) -> String {
        let tails = self.hosts.iter().map(|host| {
            let place = Place {
                user: None,
                host: host.name.to_owned(),
            };
            let said = self.run(&place, host.name, "tail -n 15 /var/log/slurm/*.log");
            format!(
                "-- {}\n{}",
                host.name,
                said.map_or_else(|e| e.to_string(), |said| said.text)
            )
        });
        tails.collect::<Vec<_>>().join("\n")
    }
}

/// The output of a command on stdout and stderr.
pub(super) struct Said {
    pub success: bool,
    pub text: String,
}

/// Waits until a host has its root, and finds its first process.
fn wait_for_host(host: &mut Host) -> Result<()> {
    let begun = Instant::now();
    let log = |host: &Host| fs::read_to_string(host.folder.join("log")).unwrap_or_default();
    while begun.elapsed() < START {
        if host.starter.try_wait()?.is_some() {
            bail!("the host {} did not start:\n{}", host.name, log(host));
        }
        if host.folder.join("ready").exists()
            && let Some(first) = first_process(host)?
        {
            host.first = first;
            return Ok(());
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    bail!(
        "the host {} did not start in time:\n{}",
        host.name,
        log(host)
    );
}

/// The child of the starting process, after the child entered its root.
fn first_process(host: &Host) -> Result<Option<i32>> {
    let starter = host.starter.id();
    let path = format!("/proc/{starter}/task/{starter}/children");
    let children = fs::read_to_string(&path).with_context(|| format!("reading {path} failed"))?;
    let root = host.folder.join("root");
    let inside = |pid: &i32| fs::read_link(format!("/proc/{pid}/root")).is_ok_and(|at| at == root);
    let mut children = children
        .split_whitespace()
        .filter_map(|pid| pid.parse().ok());
    Ok(children.find(inside))
}

impl Drop for Host {
    fn drop(&mut self) {
        // When the first process ends, the kernel ends all others of the host, and removes its mounts.
        if self.first != 0 {
            let _ = kill(Pid::from_raw(self.first), Signal::SIGKILL);
        } else {
            let _ = self.starter.kill();
        }
        let _ = self.starter.wait();
        let groups = fs::read_to_string(self.folder.join("groups")).unwrap_or_default();
        for group in groups.lines() {
            remove_group(Path::new(group));
        }
    }
}

/// Removes a control group and those below it; this works after its processes have ended.
fn remove_group(group: &Path) {
    for entry in fs::read_dir(group).into_iter().flatten().flatten() {
        if entry.path().is_dir() {
            remove_group(&entry.path());
        }
    }
    let begun = Instant::now();
    while fs::remove_dir(group).is_err()
        && group.exists()
        && begun.elapsed() < Duration::from_secs(5)
    {
        std::thread::sleep(Duration::from_millis(20));
    }
}
