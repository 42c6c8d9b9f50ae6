//! The state of the library in one process: whether it is initialised, and its handles.

use std::ffi::{CStr, OsStr};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};

use crate::argument::Target;
use crate::code::{Answer, Code};
use crate::latency::Place;
use crate::node::{ComputeInstance, Gpu, GpuInstance, Node};
use crate::processes::now_us;
use crate::sessions::{self, Seat};
use crate::store::Store;
use crate::tree::{self, Access, Capability};

/// The session of a process, from `nvmlInit` to `nvmlShutdown`.
#[derive(Debug)]
pub(crate) struct Session {
    pub store: Store,
    /// Indexes of the GPUs that this process may open, as of `nvmlInit`. NVML hides the others; therefore a job only
    /// sees the GPUs that its control group allows.
    pub visible: Vec<usize>,
    /// A key that differs between processes, so that a handle is invalid in another process.
    key: u64,
    /// The lock by which other processes count the session.
    seat: Option<Seat>,
    /// The node as the session goes on showing it ([`crate::manners::Manners::stale_sessions`]).
    shown: Mutex<Option<Arc<Node>>>,
}

static SESSION: Mutex<(u32, Option<Arc<Session>>)> = Mutex::new((0, None));
/// A store for calls before `nvmlInit`, to which faults also apply.
static STORE: Mutex<Option<(PathBuf, Arc<Store>)>> = Mutex::new(None);

fn locked<T>(mutex: &'static Mutex<T>) -> MutexGuard<'static, T> {
    mutex.lock().unwrap_or_else(|held| held.into_inner())
}

/// ROOT: `$NVML_SIM_ROOT`, or the parent of the folder from which the library was loaded that has this code.
pub fn root() -> Option<PathBuf> {
    if let Some(root) = std::env::var_os("NVML_SIM_ROOT").filter(|root| !root.is_empty()) {
        return Some(root.into());
    }
    let mut info = std::mem::MaybeUninit::<libc::Dl_info>::zeroed();
    // SAFETY: an address inside this library, and room for the answer.
    let info = unsafe {
        if libc::dladdr(root as *const libc::c_void, info.as_mut_ptr()) == 0 {
            return None;
        }
        info.assume_init()
    };
    if info.dli_fname.is_null() {
        return None;
    }
    // SAFETY: dladdr answers a C string that lives as long as the library is loaded.
    let file = unsafe { CStr::from_ptr(info.dli_fname) };
    let file = Path::new(OsStr::from_bytes(file.to_bytes()));
    Some(file.parent()?.parent()?.to_owned())
}

/// The store, also before initialisation.
pub(crate) fn store() -> Option<Arc<Store>> {
    let root = root()?;
    let mut held = locked(&STORE);
    if let Some((of, store)) = held.as_ref()
        && *of == root
    {
        return Some(store.clone());
    }
    let store = Arc::new(Store::open(&root).ok()?);
    *held = Some((root, store.clone()));
    Some(store)
}

/// `nvmlInit`.
pub(crate) fn start() -> Answer {
    let mut held = locked(&SESSION);
    if held.1.is_none() {
        let root = root().ok_or(Code::LIBRARY_NOT_FOUND)?;
        let store = Store::open(&root)?;
        if tree::probe(&root.join("dev/nvidiactl"), true) == Access::Denied {
            return Err(Code::NO_PERMISSION);
        }
        let node = store.node()?;
        let may_open = |gpu: &Gpu| {
            let path = root.join(format!("dev/nvidia{}", gpu.minor));
            tree::probe(&path, true) != Access::Denied
        };
        let visible = (0..node.gpus.len()).filter(|&index| may_open(&node.gpus[index]));
        let visible = visible.collect();
        let mut random = [0u8; 8];
        // SAFETY: the buffer is ours and 8 bytes long.
        unsafe { libc::getrandom(random.as_mut_ptr().cast(), random.len(), 0) };
        let random = u64::from_ne_bytes(random);
        held.1 = Some(Arc::new(Session {
            seat: Seat::take(&root, random),
            store,
            visible,
            shown: Mutex::new(None),
            key: random & 0x7fff_ffff_ff00,
        }));
    }
    held.0 += 1;
    Ok(())
}

/// `nvmlShutdown`.
pub(crate) fn stop() -> Answer {
    let mut held = locked(&SESSION);
    if held.0 == 0 {
        return Err(Code::UNINITIALIZED);
    }
    held.0 -= 1;
    if held.0 == 0 {
        held.1 = None;
    }
    Ok(())
}

/// The number of other open sessions on the node.
pub(crate) fn others(root: &Path) -> u64 {
    let own = locked(&SESSION).1.clone();
    match own.as_ref().and_then(|session| session.seat.as_ref()) {
        Some(seat) => seat.others(),
        None => sessions::all(root),
    }
}

/// The place of a call, as far as its arguments determine it; None without a session.
pub(crate) fn place(name: &str, target: &Target) -> Option<Place> {
    let call = Call::new().ok()?;
    let gpu = |gpu: usize| {
        let instances = call.node.gpus.get(gpu)?.instances.len();
        Some(Place {
            gpu,
            profile: None,
            instances,
        })
    };
    match (name, target) {
        ("nvmlDeviceGetHandleByIndex_v2", Target { number, .. }) => {
            let index = call.session.visible.get((*number)? as usize)?;
            gpu(*index)
        }
        ("nvmlDeviceGetHandleByUUID", Target { text, .. }) => {
            let text = text.as_ref()?.get().ok()?;
            let named = |gpu: &Gpu| {
                let mut devices = gpu.mig_devices();
                text.contains(&gpu.uuid) || devices.any(|(_, ci)| ci.uuid == text)
            };
            gpu(call.node.gpus.iter().position(named)?)
        }
        (_, Target { handle, number, .. }) => call.place((*handle)?, *number),
    }
}

/// The meaning of a handle.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Handle {
    /// A GPU, by index.
    Gpu(usize),
    /// A GPU instance, by serial.
    GpuInstance(u64),
    /// A compute instance, by serial.
    ComputeInstance(u64),
    /// The MIG device of a compute instance, by the serial of the compute instance.
    MigDevice(u64),
}

/// A device of NVML: a GPU, or a MIG device of it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Device<'a> {
    pub index: usize,
    pub gpu: &'a Gpu,
    pub mig: Option<(&'a GpuInstance, &'a ComputeInstance)>,
}

/// One call: the session, and the node at the time of the call.
pub(crate) struct Call {
    pub session: Arc<Session>,
    pub node: Arc<Node>,
}

impl Call {
    pub fn new() -> Answer<Call> {
        let session = locked(&SESSION).1.clone().ok_or(Code::UNINITIALIZED)?;
        let mut node = session.store.node()?;
        let now = now_us();
        if node.gpus.iter().any(|gpu| gpu.has_due(now)) {
            session.store.update(|node| {
                node.gpus.iter_mut().for_each(|gpu| gpu.remove_due(now));
                Ok(())
            })?;
            node = session.store.node()?;
        }
        if node.manners.stale_sessions {
            let mut shown = session
                .shown
                .lock()
                .unwrap_or_else(|held| held.into_inner());
            node = shown.get_or_insert(node).clone();
        }
        Ok(Call { session, node })
    }

    pub fn root(&self) -> &Path {
        self.session.store.root()
    }

    /// Changes the node, and shows this session the node as it is then.
    pub fn update<T>(&self, change: impl FnOnce(&mut Node) -> Answer<T>) -> Answer<T> {
        let mut shown = self.session.shown.lock();
        if let Ok(shown) = &mut shown {
            **shown = None;
        }
        drop(shown);
        self.session.store.update(change)
    }

    /// Whether GPM and utilization report no activity.
    pub fn is_blind(&self) -> Answer<bool> {
        Ok(self.session.store.disturbances()?.dead_telemetry)
    }

    /// The opaque value of a handle. Serials are never reused, so a handle that outlives its instance is detected.
    pub fn handle<T>(&self, handle: Handle) -> *mut T {
        let (tag, number) = match handle {
            Handle::Gpu(index) => (1, index as u64),
            Handle::GpuInstance(serial) => (2, serial),
            Handle::ComputeInstance(serial) => (3, serial),
            Handle::MigDevice(serial) => (4, serial),
        };
        let value = ((number << 8) ^ self.session.key) | tag;
        std::ptr::without_provenance_mut(value as usize)
    }

    /// The place of a call with a handle. `number`: the first number among the arguments, which is the profile if it
    /// creates a GPU instance.
    fn place(&self, handle: usize, number: Option<u32>) -> Option<Place> {
        let of = |index: usize, gpu: &Gpu, profile: Option<u32>| {
            let profile = profile.and_then(|id| gpu.geometry()?.profile(id));
            let profile = profile.map(|profile| profile.name);
            Some(Place {
                gpu: index,
                profile,
                instances: gpu.instances.len(),
            })
        };
        match self.decode_address(handle).ok()? {
            Handle::Gpu(index) => of(index, self.node.gpus.get(index)?, number),
            Handle::GpuInstance(serial) => {
                let mut gpus = self.node.gpus.iter().enumerate();
                gpus.find_map(|(index, gpu)| {
                    let mut instances = gpu.instances.iter();
                    let gi = instances.find(|gi| gi.serial == serial)?;
                    of(index, gpu, Some(gi.profile))
                })
            }
            Handle::ComputeInstance(serial) | Handle::MigDevice(serial) => {
                self.mig_devices().find_map(|device| {
                    let (gi, _) = device.mig.filter(|(_, ci)| ci.serial == serial)?;
                    of(device.index, device.gpu, Some(gi.profile))
                })
            }
        }
    }

    fn decode<T>(&self, handle: *mut T) -> Answer<Handle> {
        self.decode_address(handle.addr())
    }

    fn decode_address(&self, address: usize) -> Answer<Handle> {
        let value = address as u64;
        let number = (value ^ self.session.key) >> 8;
        match value & 0xff {
            1 => Ok(Handle::Gpu(number as usize)),
            2 => Ok(Handle::GpuInstance(number)),
            3 => Ok(Handle::ComputeInstance(number)),
            4 => Ok(Handle::MigDevice(number)),
            _ => Err(Code::INVALID_ARGUMENT),
        }
    }

    /// A GPU or MIG device.
    pub fn device<T>(&self, handle: *mut T) -> Answer<Device<'_>> {
        match self.decode(handle)? {
            Handle::Gpu(index) => {
                let gpu = self.node.gpus.get(index).ok_or(Code::INVALID_ARGUMENT)?;
                Ok(Device {
                    index,
                    gpu,
                    mig: None,
                })
            }
            Handle::MigDevice(serial) => self
                .mig_devices()
                .find(|device| device.mig.is_some_and(|(_, ci)| ci.serial == serial))
                .ok_or(Code::INVALID_ARGUMENT),
            _ => Err(Code::INVALID_ARGUMENT),
        }
    }

    /// All MIG devices of the node.
    pub fn mig_devices(&self) -> impl Iterator<Item = Device<'_>> {
        let gpus = self.node.gpus.iter().enumerate();
        gpus.flat_map(|(index, gpu)| {
            gpu.mig_devices().map(move |pair| Device {
                index,
                gpu,
                mig: Some(pair),
            })
        })
    }

    /// A GPU; a MIG device is refused.
    pub fn gpu<T>(&self, handle: *mut T) -> Answer<(usize, &Gpu)> {
        match self.device(handle)? {
            Device {
                index,
                gpu,
                mig: None,
            } => Ok((index, gpu)),
            _ => Err(Code::INVALID_ARGUMENT),
        }
    }

    pub fn gpu_instance<T>(&self, handle: *mut T) -> Answer<(usize, &Gpu, &GpuInstance)> {
        let Handle::GpuInstance(serial) = self.decode(handle)? else {
            return Err(Code::INVALID_ARGUMENT);
        };
        for (index, gpu) in self.node.gpus.iter().enumerate() {
            let mut instances = gpu.instances.iter();
            if let Some(instance) = instances.find(|instance| instance.serial == serial) {
                return Ok((index, gpu, instance));
            }
        }
        Err(Code::INVALID_ARGUMENT)
    }

    /// A compute instance, as a MIG device.
    pub fn compute_instance<T>(
        &self,
        handle: *mut T,
    ) -> Answer<(usize, &Gpu, &GpuInstance, &ComputeInstance)> {
        let Handle::ComputeInstance(serial) = self.decode(handle)? else {
            return Err(Code::INVALID_ARGUMENT);
        };
        for device in self.mig_devices() {
            if let Some((gi, ci)) = device.mig
                && ci.serial == serial
            {
                return Ok((device.index, device.gpu, gi, ci));
            }
        }
        Err(Code::INVALID_ARGUMENT)
    }

    /// Whether the caller may administrate: root, or a process that can open the `config` capability.
    pub fn administrator(&self) -> Answer {
        let node = Capability::Config.node(self.root());
        if is_root() || tree::probe(&node, false) == Access::Reached {
            Ok(())
        } else {
            Err(Code::NO_PERMISSION)
        }
    }

    /// Whether the caller may see other processes on a GPU in MIG mode.
    pub fn monitor(&self) -> Answer {
        // The driver makes this node accessible to all users. On the machines that were checked it did not show other
        // users' processes; root sees them.
        if is_root() { Ok(()) } else { Err(Code::NO_PERMISSION) }
    }

    /// Whether the caller may use a MIG device. For root, missing nodes are created, and changed nodes are restored,
    /// as `nvidia-modprobe` does for the real library. That program is setuid root; here other users cannot create
    /// nodes.
    pub fn may_use(&self, gpu: &Gpu, gi: &GpuInstance, ci: &ComputeInstance) -> bool {
        let capabilities = [
            Capability::GpuInstance(gpu.minor, gi.id),
            Capability::ComputeInstance(gpu.minor, gi.id, ci.id),
        ];
        if is_root() {
            // CAP_SYS_ADMIN replaces every capability, so a node that cannot be created does not matter.
            for capability in capabilities {
                let _ = tree::modprobe(self.root(), capability);
            }
            return true;
        }
        let reached = |capability: &Capability| {
            tree::probe(&capability.node(self.root()), false) == Access::Reached
        };
        capabilities.iter().all(reached)
    }
}

/// Whether the process is root.
pub(crate) fn is_root() -> bool {
    // SAFETY: cannot fail.
    unsafe { libc::geteuid() == 0 }
}
