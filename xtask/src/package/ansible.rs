//! `cargo xtask package --try-ansible`: tests the role of contrib/ansible on small clusters of clean Debian. Ansible
//! runs on this machine; a stand-in for ssh enters the hosts of the cluster.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, bail};

use super::site::{HOSTS, Site};
use crate::page::Place;
use xtask_front::cargo::root;

/// The release of Ansible for which the role was written.
const ANSIBLE: &str = "ansible-core==2.19.*";

/// `ssh OPTIONS HOST COMMAND`: enters the host whose first process is recorded in its folder.
const SSH: &str = "\
#!/bin/bash
host=${*: -2:1} command=${*: -1}
exec nsenter --target=\"$(cat \"$(dirname \"$0\")/$host\")\" --all --root --wdns=/root \\
    env -i HOME=/root PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin sh -c \"$command\"
";

const INVENTORY: &str = "\
all:
  vars:
    ansible_connection: ssh
    ansible_ssh_executable: FOLDER/ssh
    ansible_ssh_transfer_method: piped
    ansible_ssh_args: ''
    ansible_pipelining: true
    ansible_python_interpreter: /usr/bin/python3
    gpufrac_config: FOLDER/gpufrac.toml
    gpufrac_packages: ['/root/packages/gpufrac_*.deb', '/root/packages/gpufrac-plugins-{{ gpufrac_series }}_*.deb']
    gpufrac_node_packages: ['/root/packages/gpufrac-node_*.deb']
    gpufrac_drain_minutes: 2
  children:
    slurm_controllers: {hosts: {ctl: }}
    gpu_nodes: {hosts: {gn01: }}
    slurm_nodes: {hosts: {}}
    slurm_logins: {hosts: {login: }}
";

const CONFIG: &str = "\
version = 1

[pool.h100]
mechanism = \"mig\"
layout = \"halves\"
gpu = \"H100-80\"
partitions = [\"gpu\"]
nodes = \"gn01\"
";

/// Installs Ansible from PyPI in a folder of the build.
pub(super) fn program() -> Result<PathBuf> {
    let programs = debian::python(&root().join("target/tools/ansible"), &[ANSIBLE])?;
    Ok(programs.join("ansible-playbook"))
}

/// The result of a playbook.
struct Played {
    success: bool,
    text: String,
}

impl Played {
    /// Whether no host was changed, by the table at the end of the output.
    fn changed_nothing(&self) -> bool {
        let recap = self.text.rsplit("PLAY RECAP").next().unwrap_or_default();
        let mut rows = recap.lines().filter(|line| line.contains("changed="));
        let mut some = false;
        let all = rows.all(|row| {
            some = true;
            row.contains("changed=0 ")
        });
        all && some
    }
}

struct Trial<'a> {
    site: &'a Site,
    program: PathBuf,
    folder: tempfile::TempDir,
}

impl Trial<'_> {
    fn play(&self, options: &[&str]) -> Result<Played> {
        let contrib = root().join("contrib/ansible");
        let output = Command::new(&self.program)
            .arg("-i")
            .arg(self.folder.path().join("inventory.yml"))
            .arg(contrib.join("site.yml"))
            .args(options)
            .env("ANSIBLE_NOCOLOR", "1")
            .env("ANSIBLE_HOST_KEY_CHECKING", "False")
            .env("ANSIBLE_LOCAL_TEMP", self.folder.path().join("tmp"))
            .env("ANSIBLE_HOME", self.folder.path().join("home"))
            .current_dir(self.folder.path())
            .output()
            .context("starting ansible-playbook failed")?;
        let text = [output.stdout, output.stderr].concat();
        Ok(Played {
            success: output.status.success(),
            text: String::from_utf8_lossy(&text).into_owned(),
        })
    }

    /// Runs the playbook; a failure is an error.
    fn good(&self, options: &[&str]) -> Result<Played> {
        let played = self.play(options)?;
        if !played.success {
            bail!(
                "the playbook failed:\n{}\n{}",
                played.text,
                self.site.logs()
            );
        }
        Ok(played)
    }

    fn config(&self, text: &str) -> Result<()> {
        Ok(fs::write(self.folder.path().join("gpufrac.toml"), text)?)
    }

    /// Runs a command on a host, as root or as alice; returns its output.
    fn on(&self, host: &str, user: Option<&str>, command: &str) -> Result<String> {
        let place = Place {
            user: user.map(str::to_owned),
            host: host.to_owned(),
        };
        let said = self.site.run(&place, host, command)?;
        if !said.success {
            bail!(
                "`{command}` on {host} failed:\n{}\n{}",
                said.text,
                self.site.logs()
            );
        }
        Ok(said.text)
    }

    fn fraction(&self, request: &str, expected: &str) -> Result<()> {
        let command = format!("srun -p gpu --gres=gpufrac:{request} sh -c 'echo $GPUFRAC_PROFILE'");
        let said = self.on("login", Some("alice"), &command)?;
        if !said.lines().any(|line| line == expected) {
            bail!("a job of {request} got something else than {expected}:\n{said}");
        }
        Ok(())
    }
}

/// Runs the role on a cluster: in check mode, for the first time, again, after a run without an end, with a mistake,
/// and with another layout while a job runs.
pub(super) fn follow(site: &Site) -> Result<()> {
    let folder = tempfile::tempdir().context("making a temporary folder failed")?;
    let trial = Trial {
        site,
        program: program()?,
        folder,
    };
    let place = trial.folder.path();
    let ssh = place.join("ssh");
    fs::write(&ssh, SSH)?;
    fs::set_permissions(&ssh, fs::Permissions::from_mode(0o755))?;
    for name in HOSTS {
        fs::write(place.join(name), site.process(name)?.to_string())?;
    }
    let inventory = INVENTORY.replace("FOLDER", &place.display().to_string());
    fs::write(place.join("inventory.yml"), inventory)?;
    trial.config(CONFIG)?;

    let state = "cat /etc/slurm/*.conf; ls -R /etc/gpufrac /usr/lib/gpufrac 2>&1 || true";
    let before = trial.on("ctl", None, state)?;
    trial.good(&["--check"]).context("in check mode")?;
    if trial.on("ctl", None, state)? != before {
        bail!("check mode changed something on ctl");
    }
    trial.good(&[]).context("the first time")?;
    trial.fraction("0.25", "2g.20gb")?;
    trial.on("gn01", None, "gpufrac check --quiet")?;
    trial.on(
        "ctl",
        None,
        "ls /etc/slurm/slurm.conf.before-gpufrac-* /etc/slurm/gres.conf.before-gpufrac-*",
    )?;
    trial.on(
        "login",
        None,
        "ls /etc/slurm/slurm.conf.*~ && grep -q '^optional spank' /etc/slurm/plugstack.conf",
    )?;
    trial.on(
        "gn01",
        None,
        "grep -q '^required spank' /etc/slurm/plugstack.conf",
    )?;
    let again = trial.good(&[]).context("the second time")?;
    if !again.changed_nothing() {
        bail!("the second time something changed:\n{}", again.text);
    }

    // A run that ends on a node after slurmctld's host got a new file: the next run restarts slurmctld.
    trial.config(&format!("{CONFIG}\n# A change.\n"))?;
    let absent = r#"{"gpufrac_node_packages": ["no-such-package"]}"#;
    if trial.play(&["-e", absent])?.success {
        bail!("the playbook goes on without the packages of nodes");
    }
    let slurmctld = || trial.on("ctl", None, "cat /run/slurm/slurmctld.pid");
    let before = slurmctld()?;
    trial.good(&[]).context("after a run without an end")?;
    if slurmctld()? == before {
        bail!("slurmctld still has the gpufrac.toml of before");
    }
    let again = trial.good(&[]).context("the time after it")?;
    if !again.changed_nothing() {
        bail!("the time after it something changed:\n{}", again.text);
    }

    // A mistake ends the play on the first host.
    trial.config(&CONFIG.replace("layout", "layuot"))?;
    if trial.play(&[])?.success {
        bail!("the playbook takes a gpufrac.toml with a mistake");
    }
    for host in ["ctl", "gn01", "login"] {
        trial.on(
            host,
            None,
            "gpufrac check --file-only && grep -q halves /etc/gpufrac/gpufrac.toml",
        )?;
    }

    // A new layout while a job runs: the role waits until the job ends, and Slurm kills nothing.
    let submit =
        "sbatch --parsable -p gpu --gres=gpufrac:0.5 -o job.out --wrap 'sleep 20; echo ended'";
    let job = trial.on("login", Some("alice"), submit)?;
    let job = job.trim();
    trial.on(
        "ctl",
        None,
        &format!("until [ \"$(squeue -h -j {job} -o %T)\" = RUNNING ]; do sleep 1; done"),
    )?;
    trial.config(&CONFIG.replace("halves", "slices"))?;
    trial.good(&[]).context("with another layout")?;
    let said = trial.on("gn01", None, "cat /home/alice/job.out")?;
    if !said.contains("ended") {
        bail!("the job that ran did not come to its end:\n{said}");
    }
    trial.fraction("0.143", "1g.10gb")?;
    trial.on("ctl", None, "gpufrac conf --diff")?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use xtask_front::cargo::run;

    /// Checks that Ansible can read the playbook and the role.
    fn syntax(contrib: &Path) -> Result<()> {
        run(Command::new(program()?)
            .args(["--syntax-check", "-i"])
            .arg(contrib.join("inventory.example.yml"))
            .arg(contrib.join("site.yml"))
            .stdout(std::process::Stdio::null()))
    }

    #[test]
    fn ansible_reads_the_playbook_and_its_role() {
        syntax(&root().join("contrib/ansible")).unwrap();
    }

    #[test]
    fn a_run_that_changed_nothing_is_known_by_its_recap() {
        let played = |rows: &str| Played {
            success: true,
            text: format!("TASK\nchanged: [ctl]\nPLAY RECAP ****\n{rows}"),
        };
        let row = "ctl : ok=3    changed=0    unreachable=0\n";
        assert!(played(row).changed_nothing());
        assert!(
            !played(&format!(
                "{row}gn01 : ok=3    changed=10    unreachable=0\n"
            ))
            .changed_nothing()
        );
        assert!(!played("").changed_nothing());
    }
}
