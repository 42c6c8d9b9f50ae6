//! Makes a node, and changes it as an administrator would.

use std::fs;
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use nix::fcntl::OFlag;
use nvidia_ml::code::Code;
use nvidia_ml::manners::Manners;
use nvidia_ml::model::{MODELS, Model};
use nvidia_ml::node::{Gpu, GpuInstance, MigDeviceBy, Node};
use nvidia_ml::processes;
use nvidia_ml::recorded;
use nvidia_ml::store::{Store, StoreError};

/// The reasons why a node cannot be changed.
#[derive(Debug, thiserror::Error)]
pub enum AdminError {
    /// A device node that cannot be held.
    #[error("holding `{}` failed: {source}", path.display())]
    Hold {
        path: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
    /// There is no such GPU model.
    #[error("there is no GPU model `{0}`; write MODEL, MODEL:COUNT, MODEL:mig or MODEL:COUNT:mig with one of {known}", known = model_names())]
    Model(String),
    /// MIG mode for a model without it.
    #[error("`{0}`: this model has no MIG")]
    NoMig(String),
    /// The library was not found.
    #[error("no libnvidia_ml.so beside {}: build it with `cargo build -p nvml-sim`, or name it with --lib", .0.display())]
    NoLibrary(PathBuf),
    /// Copying the library failed.
    #[error("{}: {source}", path.display())]
    Library {
        path: PathBuf,
        /// The error of the system.
        source: io::Error,
    },
    /// Not a file of `gpufrac prove`.
    #[error("{} is no file of `gpufrac prove` that this program can read", .0.display())]
    Recorded(PathBuf),
    /// There is no GPU with this index.
    #[error("there is no GPU {0} on this node")]
    Gpu(usize),
    /// The GPU does not have this profile.
    #[error("GPU {gpu} has no profile `{profile}`; it has {known}")]
    Profile {
        gpu: usize,
        /// The profile as written.
        profile: String,
        /// The profiles of the GPU.
        known: String,
    },
    /// The text is not a placement.
    #[error("`{0}` is no placement: write START or START:SIZE in memory slices")]
    Placement(String),
    /// There is no such instance.
    #[error("there is no instance {0}: name it by MIG UUID or by GPU/GI, such as 0/7")]
    Instance(String),
    /// There is no such device.
    #[error("there is no device {0}: name it by MIG UUID, GPU UUID or GPU index")]
    Device(String),
    /// The device has less memory.
    #[error("{device} has {total_mib} MiB")]
    Memory {
        device: String,
        /// The memory of the device in MiB.
        total_mib: u64,
    },
    /// There is no such manner.
    #[error("{0}")]
    Manner(String),
    /// NVML would refuse with this code.
    #[error("{doing}: {code}")]
    Refused {
        doing: String,
        /// NVML's code.
        code: Code,
    },
    /// The node's folder cannot be used.
    #[error(transparent)]
    Store(#[from] StoreError),
}

fn model_names() -> String {
    let names: Vec<_> = MODELS.iter().map(|model| model.name).collect();
    names.join(", ")
}

fn refused(doing: impl Into<String>) -> impl FnOnce(Code) -> AdminError {
    let doing = doing.into();
    move |code| AdminError::Refused { doing, code }
}

/// A GPU to create.
#[derive(Debug, Clone, Copy)]
pub struct NewGpu {
    pub model: &'static Model,
    /// Whether it is in MIG mode, whatever the mode of the others is.
    pub mig: bool,
}

/// Reads `H100-80:2`, or `H100-80:2:mig`.
/// Errors: an unknown model, a count that is not from 1 to 32, or MIG on a model without it.
pub fn parse_gpus(text: &str) -> Result<Vec<NewGpu>, AdminError> {
    let error = || AdminError::Model(text.to_owned());
    let (rest, mig) = match text.strip_suffix(":mig") {
        Some(rest) => (rest, true),
        None => (text, false),
    };
    let (name, count) = match rest.split_once(':') {
        Some((name, count)) => (name, count.parse().map_err(|_| error())?),
        None => (rest, 1),
    };
    let model = Model::find(name).ok_or_else(error)?;
    if !(1..=32).contains(&count) {
        return Err(error());
    }
    if mig && model.geometry.is_none() {
        return Err(AdminError::NoMig(text.to_owned()));
    }
    Ok(vec![NewGpu { model, mig }; count])
}

/// The newest built library near the running program. Errors: there is none.
pub fn built_library() -> Result<PathBuf, AdminError> {
    let program = std::env::current_exe().unwrap_or_default();
    let folder = program.parent().unwrap_or(Path::new("."));
    let places = [
        folder.join("libnvidia_ml.so"),
        folder.join("deps/libnvidia_ml.so"),
        folder.join("../libnvidia_ml.so"),
    ];
    let age = |path: &PathBuf| fs::metadata(path).and_then(|found| found.modified()).ok();
    let found = places.into_iter().filter(|path| path.exists());
    found
        .max_by_key(age)
        .ok_or_else(|| AdminError::NoLibrary(folder.to_owned()))
}

/// Makes a node in `root`, replacing an older one. With `mig`, all GPUs that have MIG are in MIG mode.
/// Errors: the file system fails.
pub fn init(
    root: &Path,
    gpus: &[NewGpu],
    mig: bool,
    driver: &str,
    idle_mib: u64,
    library: &Path,
) -> Result<Store, AdminError> {
    let models: Vec<_> = gpus.iter().map(|gpu| gpu.model).collect();
    let mut node = Node::new(driver, &models, mig);
    for (gpu, new) in node.gpus.iter_mut().zip(gpus) {
        gpu.mig |= new.mig;
        gpu.mig_pending = gpu.mig;
        gpu.idle_mib = idle_mib;
    }
    let store = Store::create(root, &node)?;
    let folder = root.join("lib");
    let installed = folder.join("libnvidia-ml.so.1");
    let new = folder.join(".libnvidia-ml.so.1");
    // Renamed, so that a process that has mapped an older copy keeps it.
    fs::create_dir_all(&folder)
        .and_then(|()| fs::copy(library, &new))
        .and_then(|_| fs::rename(&new, &installed))
        .map_err(|source| AdminError::Library {
            path: library.to_owned(),
            source,
        })?;
    Ok(store)
}

fn gpu(node: &Node, index: usize) -> Result<&Gpu, AdminError> {
    node.gpus.get(index).ok_or(AdminError::Gpu(index))
}

/// Switches MIG mode, as a reset with the pending mode would: instances are lost.
/// Errors: the GPU has no MIG, or there is no such GPU.
pub fn set_mig(store: &Store, index: usize, on: bool) -> Result<(), AdminError> {
    gpu(&*store.node()?, index)?;
    let doing = format!("switching MIG mode of GPU {index}");
    let change = |node: &mut Node| {
        let gpu = &mut node.gpus[index];
        if gpu.model().geometry.is_none() {
            return Err(Code::NOT_SUPPORTED);
        }
        gpu.mig_pending = on;
        gpu.reset();
        Ok(())
    };
    store.update(change).map_err(refused(doing))
}

/// Holds a GPU, or the instance of a MIG UUID, until a signal ends the process, with the GPU's device node open.
/// `profiling`: with the counters of the GPU; `parent`: only the first instance of the GPU is refused.
/// Errors: when there is no such GPU or instance, or what the file system answers.
pub fn hold(store: &Store, device: &str, profiling: bool, parent: bool) -> Result<(), AdminError> {
    let (held, minor) = {
        let node = store.node()?;
        let missing = || AdminError::Instance(device.to_owned());
        let of_uuid = |gpu: &&Gpu| gpu.mig_devices().any(|(_, compute)| compute.uuid == device);
        match device.parse() {
            Ok(index) => {
                let gpu = gpu(&node, index)?;
                let held = match (profiling, parent) {
                    (true, _) => processes::profiling(&gpu.uuid),
                    (_, true) => processes::parent(&gpu.uuid),
                    _ => gpu.uuid.clone(),
                };
                (held, gpu.minor)
            }
            Err(_) => {
                let gpu = node.gpus.iter().find(of_uuid).ok_or_else(missing)?;
                (device.to_owned(), gpu.minor)
            }
        }
    };
    let path = store.root().join(format!("dev/nvidia{minor}"));
    // Without a driver behind the node the kernel opens no more of it than its path.
    let opened = fs::OpenOptions::new()
        .read(true)
        .custom_flags(OFlag::O_PATH.bits())
        .open(&path);
    let _held = opened.map_err(|source| AdminError::Hold { path, source })?;
    processes::hold(store.root(), std::process::id(), &held)?;
    loop {
        std::thread::park();
    }
}

/// Chooses how the driver leads from a compute instance to its MIG device. Errors: the file system fails.
pub fn mig_device_by(store: &Store, by: MigDeviceBy) -> Result<(), AdminError> {
    let change = |node: &mut Node| {
        node.mig_device_by = by;
        Ok(())
    };
    store.update(change).map_err(refused("setting up"))
}

/// Gives the driver these manners, and no others. Errors: there is no such manner, or the file system fails.
pub fn set_manners(store: &Store, names: &[String]) -> Result<(), AdminError> {
    let mut manners = Manners::default();
    for name in names {
        manners.add(name).map_err(AdminError::Manner)?;
    }
    let change = |node: &mut Node| {
        node.manners = manners.clone();
        Ok(())
    };
    store.update(change).map_err(refused("setting manners"))
}

/// Reads a file of `gpufrac prove`. Errors: there is no such file, or it is of another format.
pub fn recorded(path: &Path) -> Result<recorded::File, AdminError> {
    let text = fs::read_to_string(path).map_err(|source| AdminError::Library {
        path: path.to_owned(),
        source,
    })?;
    recorded::File::parse(&text).ok_or_else(|| AdminError::Recorded(path.to_owned()))
}

/// Gives all GPUs the answers and times of a recorded driver. Errors: the file system fails.
pub fn be_like(store: &Store, file: &recorded::File) -> Result<(), AdminError> {
    let change = |node: &mut Node| {
        let recorded = file.of_gpu();
        node.manners.random_uuids = !recorded.same_uuids;
        for gpu in &mut node.gpus {
            gpu.recorded = Some(recorded.clone());
        }
        Ok(())
    };
    store.update(change).map_err(refused("setting up"))?;
    Ok(store.disturb(|all| file.disturb(all))?)
}

/// Ends the wrong answers of the driver. Errors: the file system fails.
pub fn be_true(store: &Store) -> Result<(), AdminError> {
    let change = |node: &mut Node| {
        if node.gpus.iter().any(|gpu| gpu.falsified.is_some()) {
            // Falsehoods may have set them.
            node.manners = Manners::default();
            node.mig_device_by = MigDeviceBy::default();
        }
        for gpu in &mut node.gpus {
            gpu.falsified = None;
        }
        Ok(())
    };
    store.update(change).map_err(refused("setting up"))
}

/// Resets a GPU. Errors: there is no such GPU.
pub fn reset(store: &Store, index: usize) -> Result<(), AdminError> {
    gpu(&*store.node()?, index)?;
    let change = |node: &mut Node| {
        node.gpus[index].reset();
        Ok(())
    };
    store
        .update(change)
        .map_err(refused(format!("resetting GPU {index}")))
}

/// Reboots the node; only its GPUs change. Errors: the file system fails.
pub fn reboot(store: &Store) -> Result<(), AdminError> {
    let change = |node: &mut Node| {
        node.reboot();
        Ok(())
    };
    store.update(change).map_err(refused("rebooting"))
}

/// Lets memory of a GPU or an instance stay in use without a process; 0 ends this.
/// Errors: there is no such device, or it has less memory.
pub fn leak(store: &Store, device: &str, mib: u64) -> Result<(), AdminError> {
    let missing = || AdminError::Device(device.to_owned());
    let node = store.node()?;
    let doing = format!("holding {mib} MiB of {device}");
    if device.starts_with("MIG-") {
        let has = |gi: &GpuInstance| gi.compute.iter().any(|ci| ci.uuid == device);
        let mut all = node
            .gpus
            .iter()
            .flat_map(|gpu| gpu.instances.iter().map(move |gi| (gpu, gi)));
        let (gpu, gi) = all.find(|(_, gi)| has(gi)).ok_or_else(missing)?;
        let total = gpu.profile_of(gi).map_err(refused(&*doing))?.memory_mib;
        enough(device, mib, total)?;
        let change = |node: &mut Node| {
            let mut all = node.gpus.iter_mut().flat_map(|gpu| &mut gpu.instances);
            all.find(|gi| has(gi)).ok_or(Code::NOT_FOUND)?.leaked_mib = mib;
            Ok(())
        };
        return store.update(change).map_err(refused(doing));
    }
    let index = match device.parse() {
        Ok(index) => index,
        Err(_) => {
            let mut gpus = node.gpus.iter();
            gpus.position(|gpu| gpu.uuid == device)
                .ok_or_else(missing)?
        }
    };
    enough(device, mib, gpu(&node, index)?.usable_memory_mib())?;
    let change = |node: &mut Node| {
        node.gpus[index].leaked_mib = mib;
        Ok(())
    };
    store.update(change).map_err(refused(doing))
}

fn enough(device: &str, mib: u64, total_mib: u64) -> Result<(), AdminError> {
    if mib <= total_mib {
        return Ok(());
    }
    Err(AdminError::Memory {
        device: device.to_owned(),
        total_mib,
    })
}

/// Creates an instance without NVML. Returns the GPU instance id and, if it has a compute instance, the MIG UUID.
/// Errors: NVML's refusals, and unknown names.
pub fn create(
    store: &Store,
    index: usize,
    profile: &str,
    placement: Option<&str>,
    compute: bool,
) -> Result<(u32, Option<String>), AdminError> {
    let node = store.node()?;
    let geometry = gpu(&node, index)?.geometry();
    let profiles = geometry.map_or(&[][..], |geometry| &geometry.profiles);
    let wanted = profile.trim_start_matches("MIG ");
    let found = profiles
        .iter()
        .find(|known| known.name == wanted || known.id.to_string() == wanted)
        .ok_or_else(|| AdminError::Profile {
            gpu: index,
            profile: profile.to_owned(),
            known: profiles
                .iter()
                .map(|known| format!("{} ({})", known.name, known.id))
                .collect::<Vec<_>>()
                .join(", "),
        })?;
    let placement = placement
        .map(|text| -> Result<(u32, u32), AdminError> {
            let error = || AdminError::Placement(text.to_owned());
            let number = |text: &str| text.parse::<u32>().map_err(|_| error());
            match text.split_once(':') {
                Some((start, size)) => Ok((number(start)?, number(size)?)),
                None => Ok((number(text)?, found.size)),
            }
        })
        .transpose()?;
    let change = |node: &mut Node| {
        let gi = node.create_gpu_instance(index, found.id, placement)?.id;
        if !compute {
            return Ok((gi, None));
        }
        let gpu = &node.gpus[index];
        let instance = gpu.instance(gi).ok_or(Code::UNKNOWN)?;
        let whole = gpu.compute_profiles(instance)?.last().map(|last| last.id);
        let whole = whole.ok_or(Code::UNKNOWN)?;
        let ci = node.create_compute_instance(index, gi, whole, None)?;
        Ok((gi, Some(ci.uuid.clone())))
    };
    store
        .update(change)
        .map_err(refused(format!("creating {} on GPU {index}", found.name)))
}

/// Destroys an instance with its compute instances, named by MIG UUID or as GPU/GI. Processes on it prevent this
/// unless `force` is set. Errors: NVML's refusals, and unknown names.
pub fn destroy(store: &Store, name: &str, force: bool) -> Result<(), AdminError> {
    let node = store.node()?;
    let error = || AdminError::Instance(name.to_owned());
    let (index, gi) = if name.starts_with("MIG-") {
        let mut all = node.gpus.iter().enumerate().flat_map(|(index, gpu)| {
            gpu.mig_devices()
                .map(move |(gi, ci)| (index, gi.id, &ci.uuid))
        });
        let found = all.find(|(_, _, uuid)| *uuid == name).ok_or_else(error)?;
        (found.0, found.1)
    } else {
        let (gpu, gi) = name.split_once('/').ok_or_else(error)?;
        (
            gpu.parse().map_err(|_| error())?,
            gi.parse().map_err(|_| error())?,
        )
    };
    let instance = gpu(&node, index)?.instance(gi).ok_or_else(error)?;
    let serial = instance.serial;
    let live = processes::live(store.root())?;
    let mut held = instance.compute.iter();
    let busy = live
        .iter()
        .any(|process| process.instance.is_some_and(|(own, _)| own == serial))
        || held.any(|compute| processes::is_held(store.root(), &compute.uuid));
    let change = |node: &mut Node| {
        let gpu = &mut node.gpus[index];
        let ids: Vec<u32> = gpu
            .instance(gi)
            .ok_or(Code::NOT_FOUND)?
            .compute
            .iter()
            .map(|ci| ci.id)
            .collect();
        for ci in ids {
            gpu.destroy_compute_instance(gi, ci, busy && !force)?;
        }
        gpu.destroy_gpu_instance(gi, busy && !force)
    };
    store
        .update(change)
        .map_err(refused(format!("destroying {name}")))
}
