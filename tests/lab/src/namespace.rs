//! The mount namespace in which a lab runs another Slurm than the machine's.

use std::fs;
use std::time::Duration;

use crate::daemons::{self, Daemon, Environment};
use crate::slurm::Place;
use crate::{Folder, LabError, Slurm};

/// The script of the namespace's first process; afterwards it only keeps the namespace alive. The lab's users get a
/// shell there, because Slurm since 25.11 requeues a job with `--export=NAME` whose user cannot log in. The first
/// argument is the root of another Debian, or empty.
const MOUNTS: &str = "\
[ -z \"$1\" ] || mount --rbind \"$1/usr\" /usr || exit 1
sed 's#/usr/sbin/nologin$#/bin/sh#' /etc/passwd > \"$2\" &&
mount --bind \"$2\" /etc/passwd || exit 1
[ -z \"$1\" ] || for path in etc/ld.so.cache etc/alternatives; do
    mount --bind \"$1/$path\" \"/$path\" || exit 1
done
exec sleep infinity";

impl Slurm {
    /// Creates the namespace, and a link to the prefix, that a lab needs to run this Slurm.
    pub(crate) fn enter(&self, folder: &Folder) -> Result<Option<Daemon>, LabError> {
        let root = match &self.place {
            Place::Machine => return Ok(None),
            Place::Root(root) => root.display().to_string(),
            Place::Prefix(prefix) => {
                let link = folder.prefix();
                std::os::unix::fs::symlink(prefix, &link)
                    .map_err(LabError::file("creating", &link))?;
                String::new()
            }
        };
        let passwd = folder.etc().join("passwd").display().to_string();
        let args = [
            "--mount",
            "--propagation",
            "private",
            "sh",
            "-c",
            MOUNTS,
            "sh",
            &root,
            &passwd,
        ];
        let daemon = daemons::start(folder, &Environment::new(), "namespace", "unshare", &args)?;
        let comm = format!("/proc/{}/comm", daemon.process.pid);
        // The name changes when the mounts are done.
        daemons::wait_until_ready(folder, &daemon, Duration::from_secs(5), || {
            fs::read_to_string(&comm).is_ok_and(|name| name.trim() == "sleep")
        })?;
        let link = folder.namespace();
        let namespace = format!("/proc/{}/ns/mnt", daemon.process.pid);
        std::os::unix::fs::symlink(namespace, &link).map_err(LabError::file("creating", &link))?;
        Ok(Some(daemon))
    }
}
