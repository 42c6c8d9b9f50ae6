//! Slurm's accounting: a slurmdbd for the lab, with its own MariaDB that no other user can reach.
//!
//! MariaDB is the machine's, whichever Slurm the lab runs: slurmdbd has its own client library and connects to the
//! server by a socket in the lab's folder.

use std::net::TcpStream;
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::daemons::{self, Daemon, Environment};
use crate::folder::write;
use crate::{Folder, Lab, LabError};

/// The account of the lab's users.
const ACCOUNT: &str = "lab";

/// Accounts that tests name where Slurm takes any, because it has no accounting.
pub(crate) const NAMED: [&str; 3] = ["bio", "phys", "physics"];

/// The time limit for the start of a database.
const START_LIMIT: Duration = Duration::from_secs(60);

/// The lines about slurmdbd in slurm.conf; `port` is slurmdbd's.
pub(crate) fn slurm_conf(folder: &Folder, port: u16) -> String {
    let munge = folder.munge().join("socket");
    format!(
        "AccountingStorageType=accounting_storage/slurmdbd\n\
         AccountingStorageHost=127.0.0.1\n\
         AccountingStoragePort={port}\n\
         AccountingStoragePass={}\n\
         AccountingStorageTRES=gres/gpufrac,gres/shard\n",
        munge.display()
    )
}

fn slurmdbd_conf(folder: &Folder, port: u16) -> String {
    let root = folder.root().display();
    format!(
        "\
AuthType=auth/munge
AuthInfo=socket={root}/munge/socket
DbdHost=localhost
DbdAddr=127.0.0.1
DbdPort={port}
SlurmUser=root
LogFile={root}/log/slurmdbd.log
PidFile={root}/pid/slurmdbd
StorageType=accounting_storage/mysql
StorageHost=localhost
StorageUser=root
StorageLoc=slurm
"
    )
}

/// Creates an empty database and starts its server, outside of any namespace of the lab.
pub(crate) fn mariadb(folder: &Folder) -> Result<Daemon, LabError> {
    let place = folder.database();
    let socket = place.join("socket");
    let options = [
        "--no-defaults".to_owned(),
        "--user=root".to_owned(),
        format!("--datadir={}", place.join("data").display()),
        // At its start a server removes the temporary tables of all servers that use the same folder.
        format!("--tmpdir={}", place.display()),
        "--innodb-buffer-pool-size=16M".to_owned(),
        "--innodb-log-file-size=8M".to_owned(),
        "--innodb-autoextend-increment=1".to_owned(),
        // Containers often do not allow io_uring.
        "--innodb-use-native-aio=0".to_owned(),
    ];
    let made = Command::new("mariadb-install-db")
        .args(&options)
        .args([
            "--auth-root-authentication-method=normal",
            "--skip-test-db",
            "--skip-name-resolve",
        ])
        .stdin(Stdio::null())
        .output()
        .map_err(|reason| LabError::Start {
            program: "mariadb-install-db".into(),
            reason,
        })?;
    if !made.status.success() {
        return Err(LabError::Command {
            command: "mariadb-install-db".into(),
            status: made.status.to_string(),
            stdout: String::from_utf8_lossy(&made.stdout).into_owned(),
            stderr: String::from_utf8_lossy(&made.stderr).into_owned(),
        });
    }
    let own = [
        "--skip-networking".to_owned(),
        format!("--socket={}", socket.display()),
        format!("--pid-file={}", place.join("pid").display()),
    ];
    let args: Vec<&str> = options.iter().chain(&own).map(String::as_str).collect();
    let daemon = daemons::start(folder, &Environment::new(), "mariadbd", "mariadbd", &args)?;
    daemons::wait_until_ready(folder, &daemon, START_LIMIT, || socket.exists())?;
    Ok(daemon)
}

/// Starts slurmdbd, which creates its tables if there are none.
///
/// `more`: lines for slurmdbd.conf.
pub(crate) fn slurmdbd(folder: &Folder, port: u16, more: &str) -> Result<Daemon, LabError> {
    let conf = folder.etc().join("slurmdbd.conf");
    let text = slurmdbd_conf(folder, port) + more;
    // slurmdbd refuses a file that others can read.
    write(&conf, &text, 0o600)?;
    let socket = folder.database().join("socket");
    let environment = vec![("MYSQL_UNIX_PORT".to_owned(), socket.display().to_string())];
    let daemon = daemons::start(folder, &environment, "slurmdbd", "slurmdbd", &["-D"])?;
    daemons::wait_until_ready(folder, &daemon, START_LIMIT, || {
        TcpStream::connect(("127.0.0.1", port)).is_ok()
    })?;
    Ok(daemon)
}

impl Lab {
    /// Runs `sacctmgr -i` as root and returns its output. Errors: it fails; also if nothing had to be changed.
    pub fn sacctmgr(&self, args: &[&str]) -> Result<String, LabError> {
        self.command("sacctmgr").args(["-i"]).args(args).stdout()
    }

    /// Registers the cluster, with one account for all of the lab's users, and further ones.
    pub(crate) fn open_accounts(&self, cluster: &str, more: &[&str]) -> Result<(), LabError> {
        let accounts = [&[ACCOUNT], more].concat().join(",");
        self.sacctmgr(&["add", "cluster", cluster])?;
        self.sacctmgr(&["add", "account", &accounts])?;
        let names: Vec<&str> = self.users().iter().map(|user| &*user.name).collect();
        let accounts = format!("Account={accounts}");
        let default = format!("DefaultAccount={ACCOUNT}");
        self.sacctmgr(&["add", "user", &names.join(","), &accounts, &default])
            .map(drop)
    }
}
