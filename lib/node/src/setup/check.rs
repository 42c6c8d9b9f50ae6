//! `gpufrac check` on a node: compares the machine with the configuration and changes nothing.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use gpufrac_core::config::{Device, Pool, Tenancy};
use gpufrac_core::finding::Finding;
use gpufrac_core::fraction::Units;
use gpufrac_core::layout::LayoutKind;
use gpufrac_core::lease::{Lease, LeaseState, MpsSlice};

use crate::gpu::capability_files::CapsError;
use crate::gpu::compute_mode;
use crate::gpu::memory_limit;
use crate::mps::daemon::{Health, Server};
use crate::mps::tenants;
use crate::mps::version;
use crate::node::Node;
use crate::setup::inspect::{self, Difference, Machine};
use crate::setup::unit;
use crate::slice::unleased::{self, CleanError, Unleased};
use crate::state::leases::{SETUP, StoreError};
use crate::state::record::{NodeRecord, RecordError};
use crate::state::{private, usage};
use gpufrac_host::files::{FileError, RootDir};
use gpufrac_host::space;
use gpufrac_host::syscalls::has_pidfd;
use gpufrac_nvml::{ComputeMode, Gpu, MigMode, NvmlError, Session};

/// Functions of this driver that the node's pools do not use, and gaps in isolation that the machine leaves, one line
/// each.
pub fn notes(node: &Node) -> Vec<String> {
    let pools = node.config.pools_of_node(&node.name);
    let mut notes = Vec::new();
    let shared = |pool: &&&Pool| pool.layout.kind != LayoutKind::Whole;
    let mps = |pool: &&Pool| pool.mechanism.uses_mps();
    if pools.iter().filter(shared).any(mps) {
        let has = version::of_program(&node.mps_control).is_ok_and(|v| v.has_partitions());
        notes.push(if has { "static partitions of multiprocessors: this driver has them (`sm_chunks`)".to_owned() } else { "static partitions of multiprocessors: not in this driver (CUDA 13.1 has them); percentages are used".to_owned() });
    }
    let private = |pool: &&Pool| mps(pool) && pool.options.tenancy == Tenancy::Private;
    let traced = fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope").unwrap_or_default();
    if pools.iter().filter(shared).any(private) && matches!(traced.trim(), "" | "0") {
        notes.push(
            "tenancy \"private\": MPS servers run as the jobs' users, who can take them over and leave the fence; set kernel.yama.ptrace_scope to 1"
                .to_owned(),
        );
    }
    let limited = |pool: &&Pool| pool.options.memory_limits || !pool.mechanism.uses_mig();
    if pools.iter().filter(shared).any(limited) {
        let driver = node.nvml().and_then(|session| session.driver_version());
        let missing = driver.map(|version| memory_limit::missing(&version));
        notes.push(match missing {
            Ok(None) => {
                "memory limits of control groups: this node has them (`memory_limits`)".to_owned()
            }
            Ok(Some(why)) => format!("memory limits of control groups: not here: {why}"),
            Err(error) => format!("memory limits of control groups: not known: {error}"),
        });
    }
    if !pools.is_empty() && !has_pidfd() {
        notes.push(
            "kernel: no pidfd_open (Linux 5.3 has it); programs are ended by number and start"
                .to_owned(),
        );
    }
    notes
}

/// The finding about a file of node-setup, once for each file.
fn of_file(error: &FileError, found: &mut Vec<Finding>) {
    let what = error.to_string();
    if !found.iter().any(|known| known.what == what) {
        let fix = error.cure().unwrap_or_else(|| SETUP.to_owned());
        found.push(Finding::of_machine(what, fix));
    }
}

/// Compares NVML, MIG mode, placeholders and the record of node-setup with the configuration. Without findings this
/// node can make slices.
pub fn check(node: &Node) -> Vec<Finding> {
    let mut found = Vec::new();
    if !node.has_pools() {
        return found;
    }
    found.extend(unit::NODE_SETUP.not_enabled(Path::new("/")));
    let pools = node.config.pools_of_node(&node.name);
    if pools.iter().any(|pool| pool.mechanism.uses_mig()) {
        found.extend(unit::other_mig_manager(Path::new("/")));
    }
    let record = match NodeRecord::read(&node.run) {
        Ok(record) => Some(record),
        Err(RecordError::File(error)) => {
            of_file(&error, &mut found);
            None
        }
        Err(error) => {
            found.push(Finding::of_machine(error, SETUP));
            None
        }
    };
    // Where Slurm hides jobs, only root can read them.
    let is_root = nix::unistd::geteuid().is_root();
    if is_root || !private::hides_jobs(&node.run) {
        leases(node, &mut found);
    }
    if is_root {
        found.extend(without_lists(node));
        match node.locks() {
            Ok(locks) => {
                if let Err(error) = locks.check_private() {
                    of_file(&error, &mut found);
                }
            }
            Err(error) => of_file(&error, &mut found),
        }
    }
    // The next job creates a missing folder.
    let records = RootDir::open(&node.state).and_then(|dir| dir.has_file(usage::FILE));
    if let Err(error) = records
        && !error.is_not_found()
        && (is_root || !error.is_denied())
    {
        of_file(&error, &mut found);
    }
    if is_root {
        found.extend(no_space(node));
    }
    if let Err(error) = gpus(node, record.as_ref(), &mut found) {
        let fix = if is_root {
            "load the NVIDIA driver; `nvidia-smi` must work"
        } else {
            "run it as root, because the driver answers root alone; `--file-only` and `--slurm` need no root"
        };
        found.push(Finding::of_machine(error, fix));
    }
    found
}

/// The findings about folders to which nothing can be written.
fn no_space(node: &Node) -> Vec<Finding> {
    let mut found = Vec::new();
    if let Some(why) = space::shortage(&node.run) {
        // The file system of `/run/gpufrac` is full or read-only: see the next three rows. Cure: Free room, or mount it
        // writable.
        found.push(Finding::of_machine(
            format!(
                "`{}` cannot take a lease: {why}: jobs go back to the queue",
                node.run.display()
            ),
            "free room there (`df -h`, `df -i`), or mount it writable",
        ));
    }
    let records = node.state.join(usage::FILE);
    let why = match space::shortage(&node.state) {
        Some(why) => Some(why.to_string()),
        None => space::not_appendable(&records).map(|error| error.to_string()),
    };
    found.extend(why.map(|why| {
        // The same of `/var/lib/gpufrac`, or the file is immutable. Cure: Free room, mount it writable, `chattr -i`.
        Finding::of_machine(
            format!("`{}` cannot take a usage record: {why}: the use of slices is not recorded", records.display()),
            "free room there, mount it writable, or take the attribute away (`lsattr`, `chattr -i -a`)",
        )
    }));
    found
}

/// The findings about leases of another node.
fn foreign_leases(node: &Node, leases: &[Lease], found: &mut Vec<Finding>) {
    for lease in leases.iter().filter(|lease| lease.node != node.name) {
        // `/run/gpufrac` was copied from another node. Cure: `gpufrac lease drop`.
        found.push(Finding::of_machine(
            format!(
                "the lease {} is of node {}: it was copied to this node, and no GPU here has its slice",
                lease.name(),
                lease.node
            ),
            format!("`gpufrac lease drop {}`", lease.name()),
        ));
    }
}

/// The findings about leases that cannot be read.
fn leases(node: &Node, found: &mut Vec<Finding>) {
    match node.leases().and_then(|store| store.readable()) {
        Ok((leases, errors)) => {
            foreign_leases(node, &leases, found);
            let damaged = errors.into_iter();
            found.extend(damaged.map(|error| Finding::of_machine(&error, error.fix())));
        }
        Err(StoreError::File(error)) => of_file(&error, found),
        Err(error) => found.push(Finding::of_machine(&error, error.fix())),
    }
}

/// The findings about folders in which users cannot get what is their own, where Slurm hides the jobs of others.
fn without_lists(node: &Node) -> Vec<Finding> {
    if !private::hides_jobs(&node.run) {
        return Vec::new();
    }
    let folders = [&node.run, &node.state].into_iter().chain(&node.shared);
    let refused = folders.filter(|folder| {
        let dir = RootDir::open(folder);
        dir.is_ok_and(|dir| !dir.keeps_lists())
    });
    let finding = |folder: &PathBuf| {
        // The file system has no POSIX access lists, such as NFS 4. Cure: Put the folder on ext4, xfs, tmpfs or NFS 3;
        // see [private-data.md](../private-data.md).
        Finding::of_machine(
            format!(
                "PrivateData hides jobs, and the file system of `{}` keeps no access lists (acl(5)): users cannot read about their own jobs there, only root can",
                folder.display()
            ),
            "put the folder on a file system with POSIX access lists, such as ext4, xfs, tmpfs or NFS 3",
        )
    };
    refused.map(finding).collect()
}

fn gpus(
    node: &Node,
    record: Option<&NodeRecord>,
    found: &mut Vec<Finding>,
) -> Result<(), NvmlError> {
    let session = node.nvml()?;
    let machine = Machine::of(node, &session)?;
    found.extend(inspect::lost(&machine));
    placeholders(&machine, found);
    let mut checked = Vec::new();
    let mut others = OtherModels::default();
    daemons(node, &machine.devices, &session, found)?;
    for device in &machine.devices {
        if checked.contains(&device.gpu_index) {
            continue;
        }
        checked.push(device.gpu_index);
        let Some(gpu) = machine.gpu(device) else {
            let what = format!(
                "pool `{}` names GPU {}, but this node has {}",
                device.pool.name,
                device.gpu_index,
                machine.count()
            );
            found.push(Finding::of_machine(what, "correct the pool's `gpus`"));
            continue;
        };
        one_gpu(&machine, gpu, device, &mut others, found)?;
        if let Some(record) = record {
            recorded(node, record, gpu, device, found);
        }
    }
    found.extend(others.findings());
    Ok(())
}

/// GPUs that differ from the model of their pool; those with the same difference share a finding.
#[derive(Default)]
struct OtherModels(Vec<(String, Vec<String>)>);

impl OtherModels {
    fn add(&mut self, gpu: &Gpu<'_>, pool: &Pool, differences: &[String]) {
        let what = format!(
            "({}), pool `{}`: {}",
            gpu.name(),
            pool.name,
            differences.join("; ")
        );
        match self.0.iter_mut().find(|(known, _)| *known == what) {
            Some((_, indexes)) => indexes.push(gpu.index.to_string()),
            None => self.0.push((what, vec![gpu.index.to_string()])),
        }
    }

    fn findings(self) -> impl Iterator<Item = Finding> {
        self.0.into_iter().map(|(what, indexes)| {
            let what = format!("GPU {} {what}", indexes.join(", "));
            Finding::of_machine(what, inspect::MODEL_FIX)
        })
    }
}

fn one_gpu(
    machine: &Machine<'_>,
    gpu: &Gpu<'_>,
    device: &Device<'_>,
    others: &mut OtherModels,
    found: &mut Vec<Finding>,
) -> Result<(), NvmlError> {
    found.extend(inspect::library(device));
    found.extend(wrong_mode(machine.node, gpu, device.pool));
    let differences = inspect::differences(gpu, device, machine.known_geometry(gpu))?;
    let may_have_instances = device.pool.mechanism.uses_mig() && gpu.mig_mode()? == MigMode::On;
    if may_have_instances && differences.is_empty() {
        found.extend(instances(machine.node, gpu)?);
    }
    for difference in differences {
        // MIG is off. Cure: `gpufrac node-setup` switches MIG on, or says how.
        match difference {
            Difference::MigMode(mode) => found.push(Finding::of_machine(
                format!("{gpu} ({}) is not in MIG mode ({mode:?})", gpu.name()),
                "`gpufrac node-setup` switches it on, or says how",
            )),
            Difference::Model(differences) => others.add(gpu, device.pool, &differences),
            Difference::Unfit(finding) => found.push(finding),
        }
    }
    Ok(())
}

/// The finding about a compute mode in which the jobs on a GPU cannot compute, or can bypass their control daemon. The
/// prolog of the first share sets the mode that shares need.
fn wrong_mode(node: &Node, gpu: &Gpu<'_>, pool: &Pool) -> Option<Finding> {
    // Not every GPU has modes; a driver that does not answer is found by the other questions.
    let mode = gpu.compute_mode().ok()?;
    let leases = node.leases().and_then(|store| store.of_gpu(&gpu.uuid));
    // Leases that cannot be read are reported elsewhere.
    let leases = leases.unwrap_or_default();
    let mut active = leases.iter().filter(|it| it.state == LeaseState::Active);
    let needed = active.find_map(compute_mode::of_share);
    let (needed, then) = match (needed, mode) {
        (Some(needed), mode) if needed == mode => return None,
        (Some(ComputeMode::ExclusiveProcess), _) => (
            ComputeMode::ExclusiveProcess,
            "programs of its jobs can bypass the MPS control daemon, and its limits",
        ),
        (Some(needed), _) => (
            needed,
            "programs of its jobs keep each other from computing",
        ),
        (None, ComputeMode::Prohibited) if keeps_mode(pool) => (
            ComputeMode::Default,
            "CUDA fails in each job that gets a MIG instance or the whole GPU",
        ),
        (None, _) => return None,
    };
    // `nvidia-smi -c` changed the mode under jobs, or at boot. Cure: The `nvidia-smi` of the hint.
    Some(Finding::of_machine(
        format!(
            "{gpu} is in compute mode {}: {then}",
            compute_mode::name_of(mode)
        ),
        format!(
            "`nvidia-smi -i {} -c {}`, and take what sets it out of boot scripts",
            gpu.index,
            compute_mode::name_of(needed)
        ),
    ))
}

/// Whether jobs of a pool compute in the mode that they find.
fn keeps_mode(pool: &Pool) -> bool {
    let mut sizes = pool.layout.menu.iter();
    pool.mechanism.uses_mig() || sizes.any(|size| size.units >= Units::WHOLE)
}

/// The instances without a lease, and the leases without their instance. If a lease cannot be read they are not known,
/// and the lease is reported instead.
fn instances(node: &Node, gpu: &Gpu<'_>) -> Result<Vec<Finding>, NvmlError> {
    let Ok(store) = node.leases() else {
        return Ok(Vec::new());
    };
    let geometry = gpu.geometry()?;
    let compared = || -> Result<Vec<Finding>, CleanError> {
        let lost = unleased::lost(gpu, &geometry, &store)?;
        let unleased = unleased::find(gpu, &geometry, &store)?;
        let of_machine = |it: &Unleased| Finding::of_machine(it, unleased::FIX);
        Ok(lost
            .iter()
            .map(of_lost)
            .chain(unleased.iter().map(of_machine))
            .collect())
    };
    match compared() {
        Err(CleanError::Nvml(error)) => Err(error),
        other => Ok(other.unwrap_or_default()),
    }
}

/// The finding about a lease whose instance another program destroyed.
fn of_lost(lease: &Lease) -> Finding {
    // An admin, `nvidia-smi mig -dgi` in a script, nvidia-mig-manager, or a reset of the GPU destroyed the instance of
    // a running job. Cure: Keep that tool off the node; requeue or cancel the job.
    Finding::of_machine(
        format!(
            "job {}: its MIG instance on {} is gone, and was not destroyed by gpufrac: CUDA fails in the job",
            lease.job_id,
            lease.place()
        ),
        format!(
            "keep other tools from destroying instances (`nvidia-smi mig -dgi`, nvidia-mig-manager, a reset of the GPU); \
             `scontrol requeue {0}`, or `scancel {0}`: its epilog removes the lease",
            lease.job_id
        ),
    )
}

/// Findings about the program of the control daemon, its capabilities, and the daemons that should run.
fn daemons(
    node: &Node,
    devices: &[Device<'_>],
    session: &Session,
    found: &mut Vec<Finding>,
) -> Result<(), NvmlError> {
    let shares = |device: &&Device<'_>| device.pool.layout.kind != LayoutKind::Whole;
    let uses_mps = |device: &Device<'_>| device.pool.mechanism.uses_mps();
    if devices.iter().filter(shares).any(uses_mps) {
        control_program(node, devices, found);
        running_daemons(node, found);
    }
    if devices
        .iter()
        .any(|device| device.pool.options.memory_limits)
    {
        let missing = memory_limit::missing(&session.driver_version()?);
        found.extend(missing.map(|what| {
            Finding::of_machine(
                what,
                "leave `memory_limits` out of the pools, or update the node",
            )
        }));
    }
    Ok(())
}

fn control_program(node: &Node, devices: &[Device<'_>], found: &mut Vec<Finding>) {
    let wants_partitions = devices.iter().any(|d| d.pool.options.sm_chunks.is_some());
    match version::of_program(&node.mps_control) {
        Ok(version) if wants_partitions && !version.has_partitions() => {
            let what = format!(
                "`{}` has no static partitions of multiprocessors (they came with CUDA 13.1)",
                node.mps_control.display()
            );
            found.push(Finding::of_machine(
                what,
                "leave `sm_chunks` out of the pools, or update the driver",
            ));
        }
        Ok(_) => {}
        Err(error) => found.push(Finding::of_machine(error, inspect::MPS_FIX)),
    }
}

/// The control daemons of active leases. While a lease is made or ended, its daemon starts and ends.
fn running_daemons(node: &Node, found: &mut Vec<Finding>) {
    // Only root can see the owner of a daemon.
    let leases = if nix::unistd::geteuid().is_root() {
        node.leases().and_then(|store| store.list())
    } else {
        Ok(Vec::new())
    };
    // Leases that cannot be read were reported above.
    let leases = leases.unwrap_or_default();
    let active = leases.iter().filter(|it| it.state == LeaseState::Active);
    let daemons: BTreeMap<&str, (&Lease, &MpsSlice)> = active
        .filter_map(|lease| {
            let mps = lease.slice.mps()?;
            Some((mps.folder.as_str(), (lease, mps)))
        })
        .collect();
    for (folder, (lease, mps)) in daemons {
        let daemon = tenants::daemon_of(node, lease.user_id, mps);
        let wrong = match daemon.health() {
            Ok(Health::Good(servers)) => {
                let faulty = servers.into_iter().find(Server::is_faulty);
                faulty.map(|server| format!("MPS server {} of `{folder}` is in FAULT", server.pid))
            }
            Ok(Health::Absent) => Some(format!("the control daemon of `{folder}` died")),
            Ok(Health::Hung(error)) | Err(error) => Some(error.to_string()),
        };
        let known = |what: &String| found.iter().any(|problem| problem.what == *what);
        if let Some(what) = wrong.filter(|what| !known(what)) {
            found.push(Finding::of_machine(
                what,
                "it is replaced with the next job on this GPU",
            ));
        }
    }
}

fn recorded(
    node: &Node,
    record: &NodeRecord,
    gpu: &Gpu<'_>,
    device: &Device<'_>,
    found: &mut Vec<Finding>,
) {
    let entry = record.gpus.get(gpu.index.position());
    let same = entry.is_some_and(|entry| {
        entry.uuid == gpu.uuid
            && entry.minor == gpu.minor
            && entry.pool.as_deref() == Some(device.pool.name.as_str())
    });
    if !same {
        let what = format!(
            "the record of node-setup does not know {gpu} as one of pool `{}`",
            device.pool.name
        );
        found.push(Finding::of_machine(what, SETUP));
    }
    let numbers = || -> Result<bool, CapsError> {
        let caps = node.caps();
        let major = caps.gpu_device(gpu.minor)?.major;
        let caps_major = match record.caps_major {
            0 => 0,
            _ => caps.major("nvidia-caps")?,
        };
        Ok(caps_major == record.caps_major && entry.is_none_or(|entry| entry.major == major))
    };
    // The driver was loaded again since node-setup. Cure: `gpufrac node-setup`.
    match numbers() {
        Ok(true) => {}
        Ok(false) => found.push(Finding::of_machine(
            format!("the device numbers of {gpu} differ from those that the fence denies to jobs"),
            SETUP,
        )),
        Err(error) => found.push(Finding::of_machine(
            error,
            "load the NVIDIA driver; `nvidia-smi` must work",
        )),
    }
}

fn placeholders(machine: &Machine<'_>, found: &mut Vec<Finding>) {
    let dir = match RootDir::open(&machine.node.devices) {
        Ok(dir) => dir,
        Err(error) => return of_file(&error, found),
    };
    for device in &machine.devices {
        let wanted = match machine.placeholder(device) {
            Ok(wanted) => wanted,
            Err(error) => {
                found.push(Finding::of_machine(
                    error,
                    "load the NVIDIA driver; `nvidia-smi` must work",
                ));
                continue;
            }
        };
        let name = device.file_name();
        match dir.device(&name) {
            Ok(Some(number)) if number == wanted => {}
            Ok(number) => {
                let is = number.map_or("missing".to_owned(), |number| format!("device {number}"));
                let path = dir.path().join(&name);
                let what = format!("`{}` is {is}, not device {wanted}", path.display());
                found.push(Finding::of_machine(what, SETUP));
            }
            Err(error) => of_file(&error, found),
        }
    }
}
