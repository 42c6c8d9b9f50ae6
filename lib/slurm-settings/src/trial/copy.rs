//! A copy of Slurm's files that a slurmctld can read without reaching anything of the cluster.

use std::fs;
use std::fs::Permissions;
use std::io;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use gpufrac_core::config::Config;
use gpufrac_slurm_conf::{Line, Read, edit, read_conf};
use nix::unistd::{Gid, Uid, chown};
use tempfile::TempDir;

use super::super::Settings;
use super::super::access::user;

/// Settings that have other values in a trial, or name programs, hosts and databases that a trial must not touch. A
/// slurmctld whose nodes never answer would, for instance, let SuspendProgram switch them off.
///
/// Without a slurmdbd slurmctld knows no TRES, QOS or account that is not its own, and refuses settings that name one.
const LEFT_OUT: [&str; 55] = [
    "AccountingStorageBackupHost",
    "AccountingStorageEnforce",
    "AccountingStorageExternalHost",
    "AccountingStorageHost",
    "AccountingStoragePass",
    "AccountingStoragePort",
    "AccountingStorageTRES",
    "AccountingStorageType",
    "AccountingStorageUser",
    "AllowAccounts",
    "AllowQos",
    "AuthAltParameters",
    "AuthAltTypes",
    "BackupAddr",
    "BackupController",
    "BurstBufferType",
    "ControlAddr",
    "ControlMachine",
    "DenyAccounts",
    "DenyQos",
    "HealthCheckInterval",
    "HealthCheckProgram",
    "JobCompHost",
    "JobCompLoc",
    "JobCompPass",
    "JobCompType",
    "MailProg",
    "NodeFeaturesPlugins",
    "PriorityWeightTRES",
    "QOS",
    "RebootProgram",
    "ResumeFailProgram",
    "ResumeProgram",
    "SlurmctldAddr",
    "SlurmctldDebug",
    "SlurmctldHost",
    "SlurmctldLogFile",
    "SlurmctldPidFile",
    "SlurmctldPrimaryOffProg",
    "SlurmctldPrimaryOnProg",
    "SlurmctldSyslogDebug",
    "SlurmdDebug",
    "SlurmdLogFile",
    "SlurmdPidFile",
    "SlurmdSpoolDir",
    "SlurmdSyslogDebug",
    "SlurmSchedLogFile",
    "SlurmSchedLogLevel",
    "SlurmUser",
    "StateSaveLocation",
    "SuspendProgram",
    "SuspendTime",
    "SuspendTimeout",
    "TRESBillingWeights",
    "UnkillableStepProgram",
];

/// Words of errors that slurmctld writes by chance: about nodes, none of which answers in a trial, and about a clock
/// that a busy machine reads slowly.
const BY_CHANCE: [&str; 6] = [
    "High latency for",
    "127.0.0.1",
    "localhost",
    "Connection refused",
    "Unable to contact",
    "not responding",
];

/// The folder, which is removed with the value.
pub(super) struct Copy {
    folder: TempDir,
    slurm_conf: PathBuf,
    host: String,
    /// The user and group of slurmctld: those of the site, as root runs nothing that they could write, such as
    /// job_submit.lua.
    pub(super) user: (Uid, Gid),
    /// The folder of gpufrac's devices, which may not exist yet.
    devices: String,
    /// gpufrac.toml with the proposal.
    pub(super) config: Config,
}

impl Copy {
    /// A folder with gpufrac.toml, stand-ins for gpufrac's devices, and links to what else stands beside slurm.conf.
    pub(super) fn new(settings: &Settings, (config, text): (&Config, &str)) -> io::Result<Copy> {
        if !nix::unistd::geteuid().is_root() {
            return Err(io::ErrorKind::PermissionDenied.into());
        }
        let slurm_conf = PathBuf::from(settings.slurm_conf());
        let node = settings.gpus.as_ref().map_or("", |gpus| &gpus.node);
        let copy = Copy {
            user: slurm_user(settings.value("SlurmUser")),
            folder: tempfile::Builder::new()
                .prefix("gpufrac-trial-")
                .tempdir()?,
            devices: config.paths.for_node(node).devices,
            host: nix::unistd::gethostname()?.to_string_lossy().into_owned(),
            config: config.clone(),
            slurm_conf,
        };
        for name in ["etc", "state", "spool", "devices"] {
            fs::create_dir(copy.path(name))?;
        }
        let (_, group) = copy.user;
        chown(copy.folder.path(), None, Some(group))?;
        fs::set_permissions(copy.folder.path(), Permissions::from_mode(0o710))?;
        fs::write(copy.path("gpufrac.toml"), text)?;
        let gpus = settings
            .gpus
            .as_ref()
            .map_or(0, super::super::HostGpus::count);
        for device in config.devices_of_node(node, gpus) {
            symlink("/dev/null", copy.path("devices").join(device.file_name()))?;
        }
        for entry in fs::read_dir(copy.folder_of_site())?.flatten() {
            symlink(entry.path(), copy.path("etc").join(entry.file_name()))?;
        }
        Ok(copy)
    }

    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// The folder of the site's own slurm.conf, whose path may be relative.
    fn folder_of_site(&self) -> PathBuf {
        let whole = std::path::absolute(&self.slurm_conf).unwrap_or_default();
        whole.parent().unwrap_or(Path::new("/")).to_owned()
    }

    pub(super) fn slurm_conf(&self) -> PathBuf {
        self.path("etc/slurm.conf")
    }

    /// Writes slurm.conf, gres.conf and cgroup.conf as `read` has them.
    pub(super) fn write(&self, read: Read<'_>) -> io::Result<()> {
        for folder in ["state", "spool"] {
            fs::remove_dir_all(self.path(folder))?;
            fs::create_dir(self.path(folder))?;
        }
        let (user, group) = self.user;
        chown(&self.path("state"), Some(user), Some(group))?;
        let slurm = edit::with_includes(&self.slurm_conf, read)?;
        self.put(
            "slurm.conf",
            &alone(&slurm, self.folder.path(), (&self.host, user)),
        )?;
        for name in ["gres.conf", "cgroup.conf"] {
            match edit::with_includes(&self.slurm_conf.with_file_name(name), read) {
                Ok(text) => self.put(name, &self.with_own_devices(&text))?,
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Leaves gpufrac's plugins out, for a host without them.
    pub(super) fn leave_plugins_out(&self) -> io::Result<()> {
        let mut text = fs::read_to_string(self.slurm_conf())?;
        rewrite(&mut text, |key, value| {
            let lists = ["JobSubmitPlugins", "CliFilterPlugins"];
            if lists.iter().any(|list| list.eq_ignore_ascii_case(key)) {
                without_ours(value)
            } else {
                Some(value.to_owned())
            }
        });
        fs::write(self.slurm_conf(), text)
    }

    /// Writes a file in place of the link to the site's own.
    fn put(&self, name: &str, text: &str) -> io::Result<()> {
        let path = self.path("etc").join(name);
        match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => fs::write(path, text),
        }
    }

    fn with_own_devices(&self, text: &str) -> String {
        let own = self.path("devices").display().to_string();
        text.replace(&format!("{}/", self.devices), &format!("{own}/"))
    }

    /// The errors of a log, with the names of the site's files.
    pub(super) fn errors(&self, log: &str) -> Vec<String> {
        let names = [
            (
                self.path("etc"),
                self.folder_of_site().display().to_string(),
            ),
            (self.path("devices"), self.devices.clone()),
        ];
        let mut found = Vec::new();
        for line in log.lines() {
            let start = ["error: ", "fatal: "]
                .iter()
                .filter_map(|word| line.find(word))
                .min();
            let Some(start) = start else { continue };
            let mut text = line[start..].trim_end().to_owned();
            if BY_CHANCE.iter().any(|words| text.contains(words)) {
                continue;
            }
            for (own, of_site) in &names {
                text = text.replace(&own.display().to_string(), of_site);
            }
            found.push(text);
        }
        found
    }
}

/// SlurmUser of slurm.conf, by name or number, and the group of this user; `nobody` for a user that this host does not
/// know.
fn slurm_user(told: Option<&str>) -> (Uid, Gid) {
    let user = user(told.unwrap_or("root")).or_else(|| user("nobody"));
    const NOBODY: u32 = 65534;
    user.map_or((Uid::from_raw(NOBODY), Gid::from_raw(NOBODY)), |user| {
        (user.uid, user.gid)
    })
}

/// The lines of a file without includes.
fn lines(text: &str) -> Vec<Line> {
    let all = |_: &Path| Ok(text.to_owned());
    read_conf(Path::new("slurm.conf"), &all).map_or(Vec::new(), |file| file.lines)
}

/// Changes the values of settings, or leaves them out. From the last line to the first, as a change may join lines that
/// a backslash continues.
fn rewrite(text: &mut String, keep: impl Fn(&str, &str) -> Option<String>) {
    for line in lines(text).iter().rev() {
        let pairs = line.pairs.iter();
        let kept = pairs.filter_map(|(key, value)| Some((key.clone(), keep(key, value)?)));
        let kept: Vec<(String, String)> = kept.collect();
        if kept != line.pairs {
            let kept = kept
                .iter()
                .map(|(key, value)| format!("{key}=\"{value}\" "));
            edit::replace(text, line.place.line, &(kept.collect::<String>() + "\n"));
        }
    }
}

/// A list of plugins without gpufrac's. None if nothing is left.
fn without_ours(list: &str) -> Option<String> {
    let is_ours = |name: &&str| name.rsplit('/').next() == Some("gpufrac");
    let others: Vec<&str> = list.split(',').filter(|name| !is_ours(name)).collect();
    (!others.is_empty()).then(|| others.join(","))
}

/// A slurm.conf for a slurmctld that reaches nothing of the cluster.
fn alone(text: &str, folder: &Path, (host, user): (&str, Uid)) -> String {
    let mut text = text.to_owned();
    let left_out = |key: &str| LEFT_OUT.iter().any(|known| known.eq_ignore_ascii_case(key));
    rewrite(&mut text, |key, value| {
        (!left_out(key)).then(|| value.to_owned())
    });
    for line in lines(&text).iter().rev() {
        let is_of_nodes = line.first().eq_ignore_ascii_case("NodeName");
        let is_default = |name: &str| name.eq_ignore_ascii_case("DEFAULT");
        if is_of_nodes && !line.get("NodeName").is_some_and(is_default) {
            // Names that no server resolves here would cost a second each.
            edit::set(&mut text, line.place.line, "NodeAddr", "127.0.0.1");
        }
    }
    let folder = folder.display();
    for line in [
        format!("SlurmctldHost={host}(127.0.0.1)"),
        format!("SlurmUser={user}"),
        format!("StateSaveLocation={folder}/state"),
        format!("SlurmctldPidFile={folder}/state/pid"),
        format!("SlurmdPidFile={folder}/spool/pid"),
        format!("SlurmdSpoolDir={folder}/spool"),
        "SlurmctldDebug=info".to_owned(),
        "SlurmdDebug=info".to_owned(),
        "SlurmctldSyslogDebug=quiet".to_owned(),
        "SlurmdSyslogDebug=quiet".to_owned(),
        "AccountingStorageType=accounting_storage/none".to_owned(),
        "JobCompType=jobcomp/none".to_owned(),
        "MailProg=/bin/true".to_owned(),
    ] {
        edit::append(&mut text, &line);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_of_the_cluster_is_reached() {
        let site = "ClusterName=c\nSlurmctldHost=a\nslurmctldhost=b(10.0.0.1)\nSlurmUser=slurm SlurmctldPort=6817 # both\n\
                    SuspendProgram=/usr/sbin/off \\\n  SuspendTime=60\nNodeName=DEFAULT CPUs=4\nNodeName=n[1-2] NodeAddr=10.0.0.[1-2] \\\n  Gres=gpu:4\n\
                    PartitionName=p Nodes=ALL QOS=gold\n";
        let text = alone(site, Path::new("/t"), ("here", Uid::from_raw(64030)));
        let (own, rest) = text.split_at(text.find("SlurmctldHost=here(127.0.0.1)\n").unwrap());
        let lines: Vec<&str> = own
            .lines()
            .map(str::trim_end)
            .filter(|line| !line.is_empty())
            .collect();
        assert_eq!(
            lines,
            [
                "ClusterName=c",
                "SlurmctldPort=\"6817\"",
                "NodeName=DEFAULT CPUs=4",
                "NodeName=n[1-2] NodeAddr=127.0.0.1 \\",
                "  Gres=gpu:4",
                "PartitionName=\"p\" Nodes=\"ALL\"",
            ]
        );
        assert!(rest.contains("StateSaveLocation=/t/state\n"), "{rest}");
        assert!(rest.contains("SlurmUser=64030\n"), "{rest}");
    }

    #[test]
    fn slurmctld_has_the_user_of_the_site() {
        let root = (Uid::from_raw(0), Gid::from_raw(0));
        for told in [None, Some("root"), Some("0"), Some("root(0)")] {
            assert_eq!(slurm_user(told), root);
        }
        assert_ne!(slurm_user(Some("no-such-user")), root);
    }

    #[test]
    fn only_plugins_of_gpufrac_are_left_out() {
        assert_eq!(
            without_ours("lua,job_submit/gpufrac").as_deref(),
            Some("lua")
        );
        assert_eq!(without_ours("gpufrac"), None);
    }
}
