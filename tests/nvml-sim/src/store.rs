//! The state of a node on disk, shared by all processes.
//!
//! `ROOT/state/node.json` is replaced as a whole under a lock, so that readers need no lock, and a killed writer
//! leaves the old or the new state. A mapped counter shows when it changed: repeated reads cost no system call.

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};

use crate::code::{Answer, Code};
use crate::disturb::{self, Disturbances, Rule};
pub use crate::error::StoreError;
use crate::journal::JOURNAL;
use crate::latency::Place;
use crate::model::Model;
use crate::node::Node;
use crate::node::falsify::{self, How};
use crate::sessions::{SESSIONS, TURNS};
use crate::shared::Words;
use crate::symbols::FUNCTIONS;
use crate::tree;

impl From<StoreError> for Code {
    fn from(error: StoreError) -> Code {
        error.code()
    }
}

/// Positions of the generations in `state/words`.
const NODE: usize = 0;
const DISTURBANCES: usize = 1;
const WORDS: usize = 2;

/// An open node.
#[derive(Debug)]
pub struct Store {
    root: PathBuf,
    words: Words,
    node: Mutex<Option<(u64, Arc<Node>)>>,
    disturbances: Mutex<Option<(u64, Arc<Disturbances>)>>,
    counters: Mutex<Option<Arc<Words>>>,
}

/// The lock of a node, released when it is dropped or the process ends.
#[derive(Debug)]
pub struct Lock(#[allow(dead_code, reason = "held, not read")] File);

impl Store {
    /// Creates the folder of a new node, replacing an older one. Errors: the file system fails.
    pub fn create(root: &Path, node: &Node) -> Result<Store, StoreError> {
        let folder = |path: &Path, mode: u32| {
            fs::create_dir_all(path).map_err(StoreError::io(path))?;
            fs::set_permissions(path, fs::Permissions::from_mode(mode))
                .map_err(StoreError::io(path))
        };
        let state = root.join("state");
        folder(root, 0o755)?;
        folder(&state, 0o755)?;
        folder(&root.join("procs"), 0o1777)?;
        let file = |name: &str, words: usize, mode: u32| {
            let path = state.join(name);
            let made = fs::OpenOptions::new()
                .create(true)
                .truncate(false)
                .write(true)
                .mode(mode)
                .open(&path)
                .map_err(StoreError::io(&path))?;
            made.set_permissions(fs::Permissions::from_mode(mode))
                .and_then(|()| made.set_len((words * 8) as u64))
                .map_err(StoreError::io(&path))
        };
        file("lock", 0, 0o644)?;
        file("words", WORDS, 0o644)?;
        // All users count their calls here.
        file("counters", FUNCTIONS.len() + 1, 0o666)?;
        for name in [SESSIONS, TURNS, JOURNAL] {
            file(name, 0, 0o666)?;
        }
        let store = Store::open(root)?;
        let lock = store.lock()?;
        tree::create(root, node)?;
        store.write(&lock, NODE, "node.json", node, |_| Ok(()))?;
        let calm = Disturbances::default();
        store.write(&lock, DISTURBANCES, "disturb.json", &calm, |_| Ok(()))?;
        Ok(store)
    }

    /// Opens a node that `gpusim init` created. Errors: the file system fails.
    pub fn open(root: &Path) -> Result<Store, StoreError> {
        let path = root.join("state/words");
        let words = Words::open(&path, WORDS, false).map_err(StoreError::io(&path))?;
        Ok(Store {
            root: root.to_owned(),
            words,
            node: Mutex::default(),
            disturbances: Mutex::default(),
            counters: Mutex::default(),
        })
    }

    /// The node's folder.
    pub fn root(&self) -> &Path {
        &self.root
    }

    fn path(&self, name: &str) -> PathBuf {
        self.root.join("state").join(name)
    }

    /// Waits for the node's lock. All users may take it: a program that registers itself on an instance must not race
    /// with the end of the instance. Errors: the file system fails.
    pub fn lock(&self) -> Result<Lock, StoreError> {
        let path = self.path("lock");
        let file = File::open(&path).map_err(StoreError::io(&path))?;
        loop {
            // SAFETY: a plain system call on a descriptor that we own.
            if unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX) } == 0 {
                return Ok(Lock(file));
            }
            let error = io::Error::last_os_error();
            if error.kind() != io::ErrorKind::Interrupted {
                return Err(StoreError::io(&path)(error));
            }
        }
    }

    /// The current node. Errors: the file system fails; `Content` for a state that this library cannot read.
    pub fn node(&self) -> Result<Arc<Node>, StoreError> {
        self.cached(NODE, "node.json", &self.node, |node: &Node| {
            let known = |model: &str| Model::find(model).is_some();
            match node.gpus.iter().find(|gpu| !known(&gpu.model)) {
                Some(gpu) => Err(format!("unknown GPU model {}", gpu.model)),
                None => Ok(()),
            }
        })
    }

    /// The current faults, delays and counting. Errors: as [`Store::node`].
    pub fn disturbances(&self) -> Result<Arc<Disturbances>, StoreError> {
        self.cached(DISTURBANCES, "disturb.json", &self.disturbances, |_| Ok(()))
    }

    /// The counters of calls: first all calls, then one for each name in [`FUNCTIONS`]. Errors: the file system fails.
    pub fn counters(&self) -> Result<Arc<Words>, StoreError> {
        let mut cache = self
            .counters
            .lock()
            .unwrap_or_else(|held| held.into_inner());
        if let Some(words) = cache.as_ref() {
            return Ok(words.clone());
        }
        let path = self.path("counters");
        let words = Words::open(&path, FUNCTIONS.len() + 1, true).map_err(StoreError::io(&path))?;
        Ok(cache.insert(Arc::new(words)).clone())
    }

    fn cached<T: serde::de::DeserializeOwned>(
        &self,
        word: usize,
        name: &str,
        cache: &Mutex<Option<(u64, Arc<T>)>>,
        check: impl FnOnce(&T) -> Result<(), String>,
    ) -> Result<Arc<T>, StoreError> {
        let generation = self.words.word(word).load(Ordering::Acquire);
        let mut cache = cache.lock().unwrap_or_else(|held| held.into_inner());
        if let Some((of, value)) = cache.as_ref()
            && *of == generation
            && generation.is_multiple_of(2)
        {
            return Ok(value.clone());
        }
        let path = self.path(name);
        let bytes = fs::read(&path).map_err(StoreError::io(&path))?;
        let content = |reason| StoreError::Content {
            path: path.clone(),
            reason,
        };
        let value: T =
            serde_json::from_slice(&bytes).map_err(|error| content(error.to_string()))?;
        check(&value).map_err(content)?;
        let value = Arc::new(value);
        // An odd generation: a writer is active, or was killed. The value is right, but nothing would show when it
        // changes.
        *cache = Some((generation, value.clone()));
        Ok(value)
    }

    /// Replaces a file. `follow` runs before other processes use their caches again.
    fn write<T: serde::Serialize>(
        &self,
        _lock: &Lock,
        word: usize,
        name: &str,
        value: &T,
        follow: impl FnOnce(&T) -> Result<(), StoreError>,
    ) -> Result<(), StoreError> {
        let path = self.path("words");
        let words = Words::open(&path, WORDS, true).map_err(StoreError::io(&path))?;
        let generation = words.word(word);
        generation.fetch_or(1, Ordering::AcqRel);
        let path = self.path(name);
        let temporary = self.path(&format!(".{name}"));
        let bytes = serde_json::to_vec_pretty(value).map_err(|error| StoreError::Content {
            path: path.clone(),
            reason: error.to_string(),
        })?;
        File::create(&temporary)
            .and_then(|mut file| {
                file.set_permissions(fs::Permissions::from_mode(0o644))?;
                file.write_all(&bytes)
            })
            .map_err(StoreError::io(&temporary))?;
        fs::rename(&temporary, &path).map_err(StoreError::io(&path))?;
        follow(value)?;
        generation.fetch_add(1, Ordering::AcqRel);
        Ok(())
    }

    /// Changes the node; a change that returns an error leaves it as it was.
    /// Errors: the code of the change, or of the file system's error.
    pub fn update<T>(&self, change: impl FnOnce(&mut Node) -> Answer<T>) -> Answer<T> {
        let lock = self.lock()?;
        let before = self.node()?;
        let mut node = Node::clone(&before);
        let answer = change(&mut node)?;
        falsify::state(&mut node);
        let unfinished = self.words.word(NODE).load(Ordering::Acquire) % 2 == 1;
        if node != *before || unfinished {
            self.write(&lock, NODE, "node.json", &node, |node| {
                tree::follow(&self.root, node)
            })?;
        }
        Ok(answer)
    }

    /// Changes faults, delays or counting. Errors: the file system fails.
    pub fn disturb(&self, change: impl FnOnce(&mut Disturbances)) -> Result<(), StoreError> {
        let lock = self.lock()?;
        let mut disturbances = Disturbances::clone(&*self.disturbances()?);
        change(&mut disturbances);
        self.write(&lock, DISTURBANCES, "disturb.json", &disturbances, |_| {
            Ok(())
        })
    }

    /// Counts a call if needed, and returns the effect on it. Errors: the file system fails.
    pub(crate) fn disturbance_of(
        &self,
        call: &str,
        place: impl FnOnce() -> Option<Place>,
        others: impl FnOnce() -> u64,
    ) -> Result<disturb::Effect, StoreError> {
        let disturbances = self.disturbances()?;
        if disturbances.is_calm() {
            return Ok(disturb::Effect::default());
        }
        let counters = self.counters()?;
        Ok(disturbances.count(&counters, call, place, others))
    }

    /// Makes the driver of a node answer wrongly from now on; false for a name that is not known.
    /// Errors: the file system fails.
    pub fn falsify(&self, name: &str) -> Result<bool, StoreError> {
        let Some(found) = falsify::find(name) else {
            return Ok(false);
        };
        match found.how {
            How::Calls(call, nth, count, what) => {
                let counted = disturb::counted(&*self.counters()?, Some(call));
                self.disturb(|all| {
                    all.rules.push(Rule {
                        call: Some(call.to_owned()),
                        gpu: None,
                        first: counted + nth,
                        count,
                        what,
                    });
                })?;
            }
            How::DeadTelemetry => self.disturb(|all| all.dead_telemetry = true)?,
            How::Tables(_) | How::State(_) | How::Capability(_) | How::Room => {
                let told = self.update(|node| {
                    for gpu in &mut node.gpus {
                        gpu.falsified = Some(name.to_owned());
                    }
                    Ok(())
                });
                return Ok(told.is_ok());
            }
        }
        Ok(true)
    }
}
