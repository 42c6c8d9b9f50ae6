//! Nodes whose GPUs are shared without MIG, or by MPS inside it: invariants of the daemons, their folders, access
//! lists and limits, of compute modes and cache files.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use gpufrac_core::ids::DeviceIndex;
use gpufrac_core::lease::{Lease, LeaseState, MpsSlice};
use nvidia_ml::node::compute_mode;

use super::World;

/// The mechanism and tenancy of a [`World`]'s pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Mig,
    MpsShared,
    MpsPrivate,
    MigMps,
    Timeslice,
    Hami,
}

impl Kind {
    pub fn mechanism(self) -> &'static str {
        match self {
            Kind::Mig => "mig",
            Kind::MpsShared | Kind::MpsPrivate => "mps",
            Kind::MigMps => "mig+mps",
            Kind::Timeslice => "timeslice",
            Kind::Hami => "hami",
        }
    }

    pub fn uses_mig(self) -> bool {
        matches!(self, Kind::Mig | Kind::MigMps)
    }

    pub fn uses_mps(self) -> bool {
        matches!(self, Kind::MpsShared | Kind::MpsPrivate | Kind::MigMps)
    }

    pub fn layout(self) -> &'static str {
        if self.uses_mig() { "halves" } else { "shares" }
    }

    /// Units of a device.
    pub fn capacity(self) -> u32 {
        if self.uses_mig() { 50 } else { 100 }
    }

    /// The keys of its pool besides mechanism and layout.
    pub fn keys(self, root: &Path) -> String {
        match self {
            Kind::MpsShared => "tenancy = \"shared\"".into(),
            Kind::MpsPrivate => "tenancy = \"private\"".into(),
            Kind::Hami => {
                let library = root.join("libvgpu.so");
                fs::write(&library, "").unwrap();
                format!("library = \"{}\"", library.display())
            }
            Kind::Mig | Kind::MigMps | Kind::Timeslice => String::new(),
        }
    }
}

/// The MPS control program of a [`World`].
#[derive(Debug, Clone, Copy)]
pub enum Control {
    /// NVIDIA's own, whose servers need a GPU.
    Real,
    /// The stand-in, with these options.
    Standin(&'static str),
    None,
}

impl Control {
    /// Its path.
    pub fn install(self, root: &Path) -> PathBuf {
        match self {
            Control::None => root.join("nonexistent"),
            Control::Real => {
                let cache = Path::new(env!("CARGO_TARGET_TMPDIR")).join("clients");
                test_seed::needed(debian::mps_control(&cache))
            }
            Control::Standin(options) => test_seed::needed(standin(root, options)),
        }
    }
}

fn standin(root: &Path, options: &str) -> Result<PathBuf, String> {
    let this = std::env::current_exe().unwrap();
    let built = this.ancestors().map(|folder| folder.join("mps-standin"));
    let built = built.clone().find(|path| path.is_file()).ok_or(
        "the stand-in for the control program is not built: cargo build -p gpusim --bin mps-standin",
    )?;
    let folder = root.join("control");
    fs::create_dir(&folder).unwrap();
    fs::write(folder.join("standin.json"), options).unwrap();
    let program = folder.join("nvidia-cuda-mps-control");
    // Another process copies, so that a child process of another test does not keep the file open for writing.
    let copied = Command::new("cp").arg(built).arg(&program).status();
    assert!(copied.unwrap().success());
    Ok(program)
}

/// A process of MPS below the folder of a [`World`].
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct MpsProcess {
    pub pipe: PathBuf,
    pub pid: i32,
    /// Whether it is a control daemon; otherwise a server.
    pub control: bool,
}

/// Found independently of the program under test.
fn processes_below(root: &Path) -> Vec<MpsProcess> {
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc").unwrap().flatten() {
        let Some(pid) = entry
            .file_name()
            .to_str()
            .and_then(|name| name.parse().ok())
        else {
            continue;
        };
        let environment = fs::read(entry.path().join("environ")).unwrap_or_default();
        let line = fs::read(entry.path().join("cmdline")).unwrap_or_default();
        let mut own = environment.split(|byte| *byte == 0);
        let pipe = own.find_map(|line| line.strip_prefix(b"CUDA_MPS_PIPE_DIRECTORY="));
        let Some(pipe) = pipe.map(|pipe| PathBuf::from(String::from_utf8_lossy(pipe).into_owned()))
        else {
            continue;
        };
        let words: Vec<&[u8]> = line.split(|byte| *byte == 0).collect();
        let control = words.iter().any(|word| *word == b"-d");
        let server = words[0].ends_with(b"nvidia-cuda-mps-server");
        // Another process only sends a command.
        if pipe.starts_with(root) && (control || server) {
            found.push(MpsProcess { pipe, pid, control });
        }
    }
    found.sort();
    found
}

/// The users in an access list, each with the permissions. Empty without a list.
pub fn access(path: &Path) -> BTreeMap<u32, u16> {
    let mut bytes = [0; 4096];
    let length =
        rustix::fs::lgetxattr(path, "system.posix_acl_access", &mut bytes[..]).unwrap_or_default();
    let entries = bytes.get(4..length).unwrap_or_default().chunks_exact(8);
    let number = |bytes: &[u8]| u16::from_le_bytes(bytes.try_into().unwrap());
    let named = entries.filter(|entry| number(&entry[..2]) == 0x02);
    named
        .map(|entry| {
            let uid = u32::from_le_bytes(entry[4..].try_into().unwrap());
            (uid, number(&entry[2..4]))
        })
        .collect()
}

/// The names in a folder; none if it does not exist.
pub fn names(folder: &Path) -> BTreeSet<String> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries
        .map(|entry| entry.file_name().into_string().unwrap())
        .collect()
}

impl World {
    /// File systems below its folder.
    pub fn mounts(&self) -> Vec<PathBuf> {
        let table = fs::read_to_string("/proc/self/mountinfo").unwrap();
        let places = table.lines().filter_map(|line| line.split(' ').nth(4));
        let inside = places
            .map(PathBuf::from)
            .filter(|path| path.starts_with(self.root()));
        inside.collect()
    }

    /// The daemons and servers that run.
    pub fn mps(&self) -> Vec<MpsProcess> {
        processes_below(self.root())
    }

    #[track_caller]
    pub fn daemon(&self, job: super::Job) -> i32 {
        let pipe = self.pipe(job);
        let found = self.mps();
        let mut own = found.iter().filter(|p| p.control && p.pipe == pipe);
        let pid = own.next().expect("the job has a daemon").pid;
        assert!(own.next().is_none(), "two daemons in {}", pipe.display());
        pid
    }

    #[track_caller]
    pub fn pipe(&self, job: super::Job) -> PathBuf {
        self.lease(job).unwrap().slice.mps().unwrap().pipe().into()
    }

    /// The output of a daemon for commands, one on each line.
    #[track_caller]
    pub fn mps_control(&self, pipe: &Path, commands: &str) -> String {
        let input = tempfile::NamedTempFile::new_in(self.root()).unwrap();
        fs::write(input.path(), format!("{commands}\n")).unwrap();
        let output = Command::new("timeout")
            .arg("60")
            .arg(&self.control)
            .env("CUDA_MPS_PIPE_DIRECTORY", pipe)
            .stdin(input.reopen().unwrap())
            .output()
            .unwrap();
        assert!(output.status.success(), "{commands}: {output:?}");
        String::from_utf8(output.stdout).unwrap()
    }

    /// Starts a server of the stand-in.
    pub fn start_server(&self, pipe: &Path) -> i32 {
        let list = self.mps_control(pipe, "start_server -uid 0\nget_server_list");
        list.lines().last().unwrap().parse().unwrap()
    }

    /// The static partitions of a daemon, with their chunks.
    pub fn partitions(&self, pipe: &Path) -> Vec<(String, u32)> {
        let text = self.mps_control(pipe, "lspart");
        let lines = text.lines().skip(1).filter_map(|line| {
            let words: Vec<&str> = line.split_whitespace().collect();
            let chunks = words[3].parse().unwrap();
            (words[1] != "-").then(|| (format!("{}/{}", words[0], words[1]), chunks))
        });
        lines.collect()
    }

    /// The commands to the stand-in since the log was emptied.
    pub fn commands(&self) -> Vec<String> {
        let text = fs::read_to_string(self.root().join("control/commands")).unwrap_or_default();
        text.lines()
            .map(|line| line.split_once('\t').unwrap().1.to_owned())
            .collect()
    }

    pub fn forget_commands(&self) {
        fs::write(self.root().join("control/commands"), "").unwrap();
    }

    pub fn standin_options(&self, options: &str) {
        fs::write(self.root().join("control/standin.json"), options).unwrap();
    }

    pub fn gpu_uuid(&self, gpu: usize) -> String {
        self.sim.node().unwrap().gpus[gpu].uuid.clone()
    }

    pub fn compute_mode(&self, gpu: usize) -> u32 {
        self.sim.node().unwrap().gpus[gpu].compute_mode
    }

    /// Sets the mode of all GPUs, as an admin does.
    pub fn set_mode(&self, mode: u32) {
        self.mode.set(mode);
        self.sim
            .update(|node| {
                for gpu in &mut node.gpus {
                    gpu.compute_mode = mode;
                }
                Ok(())
            })
            .unwrap();
    }

    /// Checks that folders and daemons belong to leases, one each; that each admits only the users of its leases, with
    /// the limits of the largest share and the highest ceiling; that GPUs have the mode of their leases, or the earlier
    /// one; that cache files belong to leases; and that an instance exists as long as it has a lease.
    #[track_caller]
    pub fn check_shares(&self, foreign: &[u32]) {
        let leases = self.leases();
        for lease in &leases {
            assert_eq!(lease.state, LeaseState::Active, "{lease:?}");
        }
        self.check_units();
        let mut tenants: BTreeMap<PathBuf, Vec<&Lease>> = BTreeMap::new();
        for lease in &leases {
            if let Some(mps) = lease.slice.mps() {
                tenants
                    .entry(mps.folder.clone().into())
                    .or_default()
                    .push(lease);
            }
        }
        let run = self.root().join("run");
        let folders: BTreeSet<String> = tenants
            .keys()
            .map(|path| path.file_name().unwrap().to_str().unwrap().to_owned())
            .collect();
        assert_eq!(
            names(&run.join("mps")),
            folders,
            "folders of daemons against leases"
        );
        self.check_daemons(&tenants.keys().map(|f| f.join("pipe")).collect::<Vec<_>>());
        for (folder, leases) in &tenants {
            self.check_tenants(&folder.join("pipe"), leases);
        }
        let caches: BTreeSet<String> = leases
            .iter()
            .filter(|lease| lease.slice.hami().is_some())
            .map(|lease| lease.name())
            .collect();
        assert_eq!(
            names(&run.join("hami")),
            caches,
            "cache files against leases"
        );
        for lease in leases.iter().filter(|lease| lease.slice.hami().is_some()) {
            let meta = fs::metadata(run.join("hami").join(lease.name()).join("cache")).unwrap();
            assert_eq!((meta.uid(), meta.mode() & 0o7777), (lease.user_id.0, 0o600));
        }
        let caches = leases.iter().filter(|lease| lease.slice.hami().is_some());
        let mut own: BTreeSet<PathBuf> = caches.map(|l| run.join("hami").join(l.name())).collect();
        own.extend(tenants.keys().map(|folder| folder.join("log")));
        let mut mounted = self.mounts();
        mounted.retain(|path| *path != run);
        assert_eq!(
            BTreeSet::from_iter(mounted),
            own,
            "file systems against leases"
        );
        self.check_gpus(&leases, foreign);
    }

    /// Checks that no device has more units leased than it has.
    #[track_caller]
    pub fn check_units(&self) {
        let mut units: BTreeMap<DeviceIndex, u32> = BTreeMap::new();
        for lease in self.leases() {
            *units.entry(lease.slice.device_index).or_default() += lease.units.0;
        }
        for (device, units) in units {
            assert!(units <= self.kind.capacity(), "{units} on device {device}");
        }
    }

    #[track_caller]
    fn check_daemons(&self, pipes: &[PathBuf]) {
        let start = Instant::now();
        loop {
            let found = self.mps();
            let daemons = found.iter().filter(|process| process.control);
            let same = daemons.map(|process| &process.pipe).eq(pipes);
            if same && found.iter().all(|process| pipes.contains(&process.pipe)) {
                return;
            }
            // A killed process may take a moment, and a starting one has two processes for a moment.
            assert!(
                start.elapsed() < Duration::from_secs(60),
                "{found:?} against {pipes:?}"
            );
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    #[track_caller]
    fn check_tenants(&self, pipe: &Path, leases: &[&Lease]) {
        let users: BTreeMap<u32, u16> = leases.iter().map(|lease| (lease.user_id.0, 1)).collect();
        assert_eq!(access(pipe), users, "{}", pipe.display());
        let mode = fs::metadata(pipe).unwrap().permissions().mode();
        assert_eq!(mode & 0o7777, 0o710, "{}", pipe.display());
        for name in ["control_lock", "nvidia-cuda-mps-control.pid"] {
            let meta = fs::metadata(pipe.join(name)).unwrap();
            assert_eq!((meta.uid(), meta.mode() & 0o7777), (0, 0o600), "{name}");
        }
        let shares = leases.iter().map(|lease| lease.slice.mps().unwrap());
        let ceiling = |share: &MpsSlice| share.burst_percentage.unwrap_or(share.thread_percentage);
        let percentage = shares.clone().map(ceiling).max();
        let memory = shares.map(|share| share.memory_limit_mib.0).max().unwrap();
        // The daemons print whole GiB, and so does the stand-in.
        assert!(memory >= 1024, "a share that is too small for this check");
        let said = self.mps_control(
            pipe,
            "get_default_active_thread_percentage\nget_default_device_pinned_mem_limit 0",
        );
        assert_eq!(
            said,
            format!("{}.0\n{}G\n", percentage.unwrap(), memory / 1024)
        );
    }

    #[track_caller]
    fn check_gpus(&self, leases: &[Lease], foreign: &[u32]) {
        for (index, gpu) in self.sim.node().unwrap().gpus.iter().enumerate() {
            let here = || leases.iter().filter(|l| l.slice.gpu_uuid == gpu.uuid);
            if !self.kind.uses_mig() {
                let wanted = match here().any(|lease| lease.units.0 < 100) {
                    false => self.mode.get(),
                    true if self.kind == Kind::MpsShared => compute_mode::EXCLUSIVE_PROCESS,
                    true => compute_mode::DEFAULT,
                };
                assert_eq!(gpu.compute_mode, wanted, "compute mode of GPU {index}");
                let noted = self.root().join("run/modes").join(&gpu.uuid).exists();
                assert!(!noted || here().next().is_some(), "a mode without a lease");
                continue;
            }
            let mut users: BTreeMap<u32, BTreeMap<u32, u16>> = BTreeMap::new();
            let mut shared = BTreeSet::new();
            for lease in here() {
                let instance = lease.slice.instance().unwrap();
                shared.insert(instance.gi_id);
                let gi = gpu.instance(instance.gi_id).expect("the instance stands");
                assert_eq!(gi.compute.len(), 1);
                assert_eq!(gi.compute[0].uuid, instance.mig_uuid);
                for minor in [instance.gi_cap_minor, instance.ci_cap_minor] {
                    users.entry(minor).or_default().insert(lease.user_id.0, 4);
                }
            }
            shared.extend(foreign);
            let standing: BTreeSet<u32> = gpu.instances.iter().map(|gi| gi.id).collect();
            assert_eq!(standing, shared, "instances against leases");
            for (minor, users) in users {
                let name = format!("gpus/dev/nvidia-caps/nvidia-cap{minor}");
                assert_eq!(access(&self.root().join(name)), users, "cap {minor}");
                assert_eq!(self.cap(minor), (0, 0o440), "cap {minor}");
            }
        }
    }
}

impl Drop for World {
    fn drop(&mut self) {
        // The processes of a failed test; daemons before their servers, which they would start again.
        let mut left = self.mps();
        left.sort_by_key(|process| !process.control);
        for process in left {
            let pid = nix::unistd::Pid::from_raw(process.pid);
            let _ = nix::sys::signal::kill(pid, nix::sys::signal::SIGKILL);
        }
        for path in self.mounts().iter().rev() {
            let _ = Command::new("umount").arg("-l").arg(path).status();
        }
    }
}
