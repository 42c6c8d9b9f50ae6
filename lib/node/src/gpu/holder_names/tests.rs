use std::fs::{File, OpenOptions};
use std::io::ErrorKind;
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command};

use nix::fcntl::OFlag;
use nix::sys::stat::{Mode, SFlag, makedev, mknod};

use super::*;

/// Of a driver that does not exist, so that no other process has the device open.
const DEVICE: DeviceNumber = DeviceNumber {
    major: 4001,
    minor: 77,
};
const USER: u32 = 54_321;

struct Running(Child);

impl Running {
    /// A program of this name, whose standard input is `open`.
    fn start(folder: &Path, name: &str, user: u32, open: Option<File>) -> Running {
        let program = folder.join(name);
        fs::copy("/usr/bin/sleep", &program).unwrap();
        let mut command = Command::new(program);
        command.arg("1000").uid(user).gid(user);
        if let Some(file) = open {
            command.stdin(file);
        }
        loop {
            match command.spawn() {
                // A child process of another test has the copy open for writing until it runs its own program.
                Err(error) if error.kind() == ErrorKind::ExecutableFileBusy => {
                    std::thread::yield_now();
                }
                child => return Running(child.unwrap()),
            }
        }
    }

    fn pid(&self) -> i32 {
        self.0.id() as i32
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Promise (reaper): processes that hold a place are named, root's too; no user's process is taken for a daemon of the
/// system.
/// With `a_unit_is_the_outermost_one`, `only_services_and_root_outside_of_jobs_are_of_the_system`.
#[test]
fn daemons_of_the_system_are_named_and_a_users_process_is_no_daemon() {
    test_seed::needs_root();
    let keep = tempfile::tempdir().unwrap();
    let node = keep.path().join("nvidia-cap1");
    let number = makedev(DEVICE.major.into(), DEVICE.minor.into());
    mknod(
        &node,
        SFlag::S_IFCHR,
        Mode::from_bits_truncate(0o400),
        number,
    )
    .unwrap();
    let open = || {
        // The device has no driver, so it is opened as a path.
        let mut options = OpenOptions::new();
        options.read(true).custom_flags(OFlag::O_PATH.bits());
        Some(options.open(&node).unwrap())
    };
    let folder = |name: &str| {
        let folder = keep.path().join(name);
        fs::create_dir(&folder).unwrap();
        folder
    };
    fs::set_permissions(
        keep.path(),
        std::os::unix::fs::PermissionsExt::from_mode(0o755),
    )
    .unwrap();
    let (roots, users) = (folder("root"), folder("user"));
    let find = |running: &Running| {
        let Holders::Unseen { running: found, .. } = search(&[DEVICE], None, holders::FEW) else {
            panic!("nobody holds it");
        };
        found.into_iter().find(|found| found.pid == running.pid())
    };

    let daemon = Running::start(&roots, "nv-hostengine", 0, None);
    let same_name = Running::start(&users, "nv-hostengine", USER, None);
    let text = search(&[DEVICE], None, holders::FEW).to_string();
    let start = format!(
        "nobody is seen to hold it; DCGM's daemon (nv-hostengine, pid {}",
        daemon.pid()
    );
    assert!(text.starts_with(&start), "{text}");
    assert_eq!(find(&daemon).unwrap().daemon, Some("DCGM's daemon"));
    let process = find(&same_name).unwrap();
    assert_eq!(process.daemon, None);
    let start = format!("`nv-hostengine` of user {USER} (pid {}", same_name.pid());
    assert!(process.to_string().starts_with(&start), "{process}");

    // One of the system that has the GPU open may hold the place; gpufrac's own are not named.
    let unknown = Running::start(&roots, "monitoring", 0, open());
    let own = Running::start(&roots, "gpufrac-reaperd", 0, open());
    let Holders::Unseen { running, .. } = search(&[], Some(DEVICE), holders::FEW) else {
        panic!("nobody is searched for");
    };
    let pids: Vec<i32> = running.iter().map(|process| process.pid).collect();
    assert!(pids.contains(&unknown.pid()) && !pids.contains(&own.pid()));

    let holders = search(&[DEVICE], None, holders::FEW);
    let start = format!("`monitoring` (pid {}", unknown.pid());
    let text = holders.to_string();
    assert!(
        text.starts_with(&start) && text.ends_with(" holds it"),
        "{text}"
    );
    assert!(!holders.is_users());

    let users = Running::start(&users, "python3", USER, open());
    let holders = search(&[DEVICE], None, holders::FEW);
    assert!(holders.is_users());
    let Holders::Seen(seen) = holders else {
        panic!("two hold it");
    };
    let pids: Vec<i32> = seen.iter().map(|process| process.pid).collect();
    assert_eq!(pids, [users.pid(), unknown.pid()]);
}

/// A user with many open files could hide the holder, and have the node drained.
#[test]
fn a_search_that_gives_up_says_that_a_user_may_be_the_cause() {
    test_seed::needs_root();
    let keep = tempfile::tempdir().unwrap();
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    fs::set_permissions(keep.path(), mode).unwrap();
    let _users = Running::start(keep.path(), "sleep", USER, None);
    let holders = search(&[DEVICE], None, 0);
    assert!(holders.may_be_users() && !holders.is_users());
    let expected =
        "nobody is seen to hold it, but a user's processes have too many files to be searched";
    let text = holders.to_string();
    assert!(text.starts_with(expected), "{text}");
}

#[test]
fn a_unit_is_the_outermost_one() {
    let id = "3f8a".repeat(16);
    for (groups, unit) in [
        (
            "0::/system.slice/nvidia-dcgm.service\n",
            Some("nvidia-dcgm.service"),
        ),
        // A user names groups below the own unit.
        (
            "0::/user.slice/user-1000.slice/user@1000.service/app.slice/nvidia-dcgm.service\n",
            Some("user@1000.service"),
        ),
        (
            &format!("0::/system.slice/docker-{id}.scope\n"),
            Some("docker-3f8a3f8a3f8a"),
        ),
        (&format!("0::/docker/{id}\n"), Some("docker-3f8a3f8a3f8a")),
        (
            &format!("0::/kubepods.slice/kubepods-pod7.slice/cri-containerd-{id}.scope\n"),
            Some("cri-containerd-3f8a3f8a3f8a"),
        ),
        (
            "4:devices:/a.service\n1:name=systemd:/system.slice/telegraf.service\n0::/\n",
            Some("telegraf.service"),
        ),
        (
            "0::/user.slice/user-1000.slice/session-3.scope\n",
            Some("session-3"),
        ),
        ("0::/\n", None),
        ("", None),
    ] {
        assert_eq!(unit_in(groups).as_deref(), unit, "{groups}");
    }
}

#[test]
fn a_name_is_one_line_of_printable_characters() {
    assert_eq!(printable(b"a\x1b[31m`b\xc3\xa4\n", 32), "a?[31m?b??");
    assert_eq!(printable(&[b'x'; 90], 32).len(), 32);
}

#[test]
fn only_services_and_root_outside_of_jobs_are_of_the_system() {
    let process = |user, unit: Option<&str>, in_job| Process {
        pid: 812,
        name: "telegraf".into(),
        user: UserId(user),
        unit: unit.map(str::to_owned),
        daemon: None,
        in_job,
    };
    for (user, unit, in_job, is_users) in [
        (0, None, false, false),
        (0, Some("job 12"), true, true),
        (998, Some("telegraf.service"), false, false),
        (61_999, Some("dynamic.service"), false, false),
        (998, Some("session-3"), false, true),
        (998, None, false, true),
        (1000, Some("cron.service"), false, true),
        (100_000, Some("container-1"), false, true),
    ] {
        let process = process(user, unit, in_job);
        assert_eq!(process.is_users(), is_users, "{process}");
    }
}

#[test]
fn a_message_names_a_few_and_counts_the_others() {
    let process = |pid| Process {
        pid,
        name: "nvidia-smi".into(),
        user: UserId::ROOT,
        unit: None,
        daemon: Some("nvidia-smi"),
        in_job: false,
    };
    let seen = Holders::Seen((1..=6).map(process).collect());
    assert_eq!(
        seen.to_string(),
        "nvidia-smi (pid 1), nvidia-smi (pid 2), nvidia-smi (pid 3), nvidia-smi (pid 4) and 2 more hold it"
    );
    let nobody = Holders::Unseen {
        running: vec![],
        may_be_users: false,
    };
    assert_eq!(nobody.to_string(), "nobody is seen to hold it");
}
