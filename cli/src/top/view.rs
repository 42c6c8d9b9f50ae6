//! What `gpufrac top` shows: rows of nodes, GPUs and slices, in an order and with a filter that keys change.

use std::cmp::{Ordering, Reverse};
use std::collections::HashMap;
use std::sync::Arc;

use gpufrac_core::ids::{JobId, UserId};
use gpufrac_view::{GpuStatus, NodeStatus, Slice, Sums};

use crate::args::Sort;
use crate::node_files::Found;

/// Up to this number of nodes the slices of all are shown at the start; of more, a line for each node.
const MOST_OPEN_NODES: usize = 8;

/// The reader of the screen.
#[derive(Debug, Clone, Default)]
pub struct Reader {
    /// The user; None for a program that stands for nobody.
    pub user: Option<UserId>,
    /// The job in which the command runs.
    pub job: Option<JobId>,
}

impl Sort {
    const ALL: [Sort; 6] = [
        Sort::Place,
        Sort::Busy,
        Sort::Memory,
        Sort::Idle,
        Sort::Warned,
        Sort::User,
    ];

    /// The name on the screen.
    pub fn name(self) -> &'static str {
        match self {
            Sort::Place => "place",
            Sort::Busy => "busy",
            Sort::Memory => "memory",
            Sort::Idle => "idle",
            Sort::Warned => "warned",
            Sort::User => "user",
        }
    }

    fn next(self) -> Sort {
        let place = Sort::ALL.iter().position(|sort| *sort == self).unwrap_or(0);
        Sort::ALL[(place + 1) % Sort::ALL.len()]
    }

    fn compare(self, one: &Slice, other: &Slice) -> Ordering {
        let busy = |slice: &Slice| slice.usage.as_ref().and_then(|usage| usage.activity);
        let memory = |slice: &Slice| slice.usage.as_ref().and_then(|usage| usage.memory_mib);
        let idle = |slice: &Slice| slice.usage.as_ref().map(|usage| usage.idle);
        let warned = |slice: &Slice| {
            let usage = slice.usage.as_ref();
            let ends = usage.and_then(|usage| usage.ends).unwrap_or(u64::MAX);
            (ends, Reverse(usage.map_or(0, |usage| usage.warnings)))
        };
        let user = |slice: &Slice| slice.owner.as_ref().map(|owner| owner.user.clone());
        match self {
            Sort::Place => Ordering::Equal,
            // None is smaller than any value, so that it is last.
            Sort::Busy => busy(other)
                .partial_cmp(&busy(one))
                .unwrap_or(Ordering::Equal),
            Sort::Memory => memory(other).cmp(&memory(one)),
            Sort::Idle => idle(other).cmp(&idle(one)),
            Sort::Warned => warned(one).cmp(&warned(other)),
            // Hidden owners are last.
            Sort::User => {
                (user(one).is_none(), user(one)).cmp(&(user(other).is_none(), user(other)))
            }
        }
    }
}

/// A slice by its indices: node, GPU on the node, slice on the GPU.
pub type SliceIndex = (usize, usize, usize);

/// A line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ScreenRow {
    Title(&'static str),
    Node(usize),
    Gpu(usize, usize),
    /// A slice below its GPU.
    Slice(SliceIndex),
    /// A slice with the name of its node and GPU.
    Flat(SliceIndex),
}

/// Names a row in this and in later readings of the files.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Key {
    node: String,
    gpu: Option<u32>,
    slice: Option<SliceKey>,
}

/// A slice by its job and its number there, and the kind of its row.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct SliceKey {
    owner: Option<(u32, u32)>,
    since: u64,
    flat: bool,
}

/// The state of the screen.
#[derive(Debug)]
pub struct View {
    reader: Reader,
    /// The nodes, by name.
    pub nodes: Vec<Arc<NodeStatus>>,
    /// Files that cannot be read.
    pub problems: Vec<String>,
    /// Whether the files were read.
    pub is_read: bool,
    /// Sums of all nodes.
    pub sums: Sums,
    /// Now, in seconds since 1970.
    pub now: u64,
    /// The order of slices.
    pub sort: Sort,
    /// Slices of users whose name contains this text, or of jobs whose id begins with it.
    pub filter: String,
    /// Whether the reader types a filter.
    pub is_typing: bool,
    /// Whether other users are left out.
    pub only_mine: bool,
    /// Whether the keys are explained.
    pub help: bool,
    pub rows: Vec<ScreenRow>,
    /// The line of the cursor.
    pub cursor: usize,
    /// The first line on the screen.
    pub top: usize,
    /// Nodes and GPUs that were opened (true) or closed by hand, with and without a filter: all that a filter finds is
    /// shown at first.
    by_hand: HashMap<(Key, bool), bool>,
}

impl View {
    /// Before the first reading of the files.
    pub fn new(reader: Reader, sort: Sort, filter: String, only_mine: bool) -> View {
        View {
            reader,
            nodes: Vec::new(),
            problems: Vec::new(),
            is_read: false,
            sums: Sums::default(),
            now: 0,
            sort,
            filter,
            is_typing: false,
            only_mine,
            help: false,
            rows: Vec::new(),
            cursor: 0,
            top: 0,
            by_hand: HashMap::new(),
        }
    }

    /// Takes what was read.
    pub fn take(&mut self, found: Found) {
        let at = self.key_at_cursor();
        self.nodes = found.nodes;
        self.problems = found.problems;
        self.is_read = true;
        self.sums = Sums::of(self.nodes.iter().map(|node| &**node));
        self.arrange(at);
    }

    pub fn gpu(&self, node: usize, gpu: usize) -> &GpuStatus {
        &self.nodes[node].gpus[gpu]
    }

    pub fn slice(&self, (node, gpu, slice): SliceIndex) -> &Slice {
        &self.nodes[node].gpus[gpu].slices[slice]
    }

    /// Whether a slice is that of the job in which the command runs.
    pub fn is_this_job(&self, slice: &Slice) -> bool {
        let owner = slice.owner.as_ref();
        owner.is_some_and(|owner| Some(owner.job) == self.reader.job)
    }

    /// Whether a slice is one of the reader's.
    pub fn is_own(&self, slice: &Slice) -> bool {
        let owner = slice.owner.as_ref();
        self.is_this_job(slice) || owner.is_some_and(|owner| Some(owner.uid) == self.reader.user)
    }

    /// For how many seconds a node's file is stale; None where it is not.
    pub fn stale(&self, node: &NodeStatus) -> Option<u64> {
        let age = self.now.saturating_sub(node.written);
        node.is_stale(self.now).then_some(age)
    }

    /// Whether the GPUs of a node are shown.
    pub fn is_open(&self, node: &NodeStatus) -> bool {
        self.is_open_by_key(&key_of_node(node))
    }

    /// Whether the slices of a GPU are shown.
    pub fn is_gpu_open(&self, node: &NodeStatus, gpu: &GpuStatus) -> bool {
        self.is_open_by_key(&key_of_gpu(node, gpu))
    }

    fn is_open_by_key(&self, key: &Key) -> bool {
        let is_filtered = !self.filter.is_empty();
        let by_hand = self.by_hand.get(&(key.clone(), is_filtered)).copied();
        by_hand.unwrap_or(self.nodes.len() <= MOST_OPEN_NODES || is_filtered || key.gpu.is_some())
    }

    fn matches(&self, slice: &Slice) -> bool {
        if self.filter.is_empty() {
            return true;
        }
        slice.owner.as_ref().is_some_and(|owner| {
            owner.user.contains(&self.filter) || owner.job.to_string().starts_with(&self.filter)
        })
    }

    /// Makes the rows; the cursor stays on its row where that is still there.
    fn arrange(&mut self, at: Option<Key>) {
        let all: Vec<SliceIndex> = self.slices().collect();
        let (mut own, mut others): (Vec<SliceIndex>, Vec<SliceIndex>) = all
            .into_iter()
            .partition(|&index| self.is_own(self.slice(index)));
        self.order(&mut own);
        let mut rows = Vec::new();
        if !own.is_empty() {
            rows.push(ScreenRow::Title("Your slices"));
            rows.extend(own.into_iter().map(ScreenRow::Flat));
        }
        if !self.only_mine {
            let title = match (rows.is_empty(), self.sort) {
                (true, _) => None,
                (false, Sort::Place) => Some("All nodes"),
                (false, _) => Some("Slices of others"),
            };
            rows.extend(title.map(ScreenRow::Title));
            if self.sort == Sort::Place {
                self.tree(&mut rows);
            } else {
                self.order(&mut others);
                rows.extend(others.into_iter().map(ScreenRow::Flat));
            }
        }
        self.rows = rows;
        let found = at.and_then(|at| {
            self.rows
                .iter()
                .position(|&row| self.key(row) == Some(at.clone()))
        });
        self.move_to(found.unwrap_or(self.cursor));
    }

    fn slices(&self) -> impl Iterator<Item = SliceIndex> {
        let gpus = self.nodes.iter().enumerate().flat_map(|(node, found)| {
            let gpus = found.gpus.iter().enumerate();
            gpus.map(move |(gpu, found)| (node, gpu, found))
        });
        gpus.flat_map(|(node, gpu, found)| {
            let slices = found.slices.iter().enumerate();
            let wanted = slices.filter(|(_, slice)| self.matches(slice));
            wanted.map(move |(slice, _)| (node, gpu, slice))
        })
    }

    /// The slices of this job first, then by the chosen order, then by place.
    fn order(&self, slices: &mut [SliceIndex]) {
        slices.sort_by(|&one, &other| {
            let (first, second) = (self.slice(one), self.slice(other));
            let other_job = |slice| !self.is_this_job(slice);
            let by_job = other_job(first).cmp(&other_job(second));
            by_job
                .then_with(|| self.sort.compare(first, second))
                .then(one.cmp(&other))
        });
    }

    fn tree(&self, rows: &mut Vec<ScreenRow>) {
        for (at, node) in self.nodes.iter().enumerate() {
            let mut below = Vec::new();
            for (gpu_at, gpu) in node.gpus.iter().enumerate() {
                let slices = gpu.slices.iter().enumerate();
                let slices = slices.filter(|(_, slice)| self.matches(slice));
                let slices: Vec<ScreenRow> = slices
                    .map(|(slice_at, _)| ScreenRow::Slice((at, gpu_at, slice_at)))
                    .collect();
                if !self.filter.is_empty() && slices.is_empty() {
                    continue;
                }
                below.push(ScreenRow::Gpu(at, gpu_at));
                if self.is_gpu_open(node, gpu) {
                    below.extend(slices);
                }
            }
            if !self.filter.is_empty() && below.is_empty() {
                continue;
            }
            rows.push(ScreenRow::Node(at));
            if self.is_open(node) {
                rows.extend(below);
            }
        }
    }

    fn key(&self, row: ScreenRow) -> Option<Key> {
        let of_slice = |index: SliceIndex, flat: bool| {
            let (node, gpu, _) = index;
            let slice = self.slice(index);
            let owner = slice.owner.as_ref();
            let key = SliceKey {
                owner: owner.map(|owner| (owner.job.0, owner.slice)),
                since: slice.since,
                flat,
            };
            Key {
                slice: Some(key),
                ..key_of_gpu(&self.nodes[node], self.gpu(node, gpu))
            }
        };
        Some(match row {
            ScreenRow::Title(_) => return None,
            ScreenRow::Node(node) => key_of_node(&self.nodes[node]),
            ScreenRow::Gpu(node, gpu) => key_of_gpu(&self.nodes[node], self.gpu(node, gpu)),
            ScreenRow::Slice(index) => of_slice(index, false),
            ScreenRow::Flat(index) => of_slice(index, true),
        })
    }

    fn key_at_cursor(&self) -> Option<Key> {
        self.rows.get(self.cursor).and_then(|&row| self.key(row))
    }

    fn move_to(&mut self, row: usize) {
        self.cursor = row.min(self.rows.len().saturating_sub(1));
    }

    /// Moves the cursor by this number of lines.
    pub fn move_by(&mut self, lines: isize) {
        self.move_to(self.cursor.saturating_add_signed(lines));
    }

    /// Scrolls so that the cursor is among the first `lines` lines of the screen.
    pub fn scroll(&mut self, lines: usize) {
        let lines = lines.max(1);
        let last = self.rows.len().saturating_sub(lines);
        // With the cursor on the first slice its title is shown, too.
        let first = match self.cursor {
            1 if lines > 1 => 0,
            cursor => cursor,
        };
        self.top = self
            .top
            .clamp((self.cursor + 1).saturating_sub(lines), first)
            .min(last);
    }

    /// Opens or closes the node or the GPU at the cursor; None for the other state than now.
    pub fn open(&mut self, wanted: Option<bool>) {
        let Some(&row) = self.rows.get(self.cursor) else {
            return;
        };
        let key = match row {
            ScreenRow::Node(node) => key_of_node(&self.nodes[node]),
            // Closing a slice closes its GPU.
            ScreenRow::Gpu(node, gpu) | ScreenRow::Slice((node, gpu, _)) => {
                key_of_gpu(&self.nodes[node], self.gpu(node, gpu))
            }
            ScreenRow::Title(_) | ScreenRow::Flat(_) => return,
        };
        let is_open = self.is_open_by_key(&key);
        if wanted != Some(is_open) {
            let is_filtered = !self.filter.is_empty();
            self.by_hand.insert((key.clone(), is_filtered), !is_open);
            self.arrange(Some(key));
        }
    }

    /// Takes the next order.
    pub fn next_sort(&mut self) {
        self.sort = self.sort.next();
        self.arrange(None);
        self.move_to(0);
    }

    /// Shows other users, or leaves them out.
    pub fn turn_mine(&mut self) {
        self.only_mine = !self.only_mine;
        self.arrange(None);
    }

    pub fn filter(&mut self, change: impl FnOnce(&mut String)) {
        change(&mut self.filter);
        self.arrange(None);
        self.move_to(0);
    }
}

fn key_of_node(node: &NodeStatus) -> Key {
    Key {
        node: node.node.clone(),
        gpu: None,
        slice: None,
    }
}

fn key_of_gpu(node: &NodeStatus, gpu: &GpuStatus) -> Key {
    Key {
        gpu: Some(gpu.index.0),
        ..key_of_node(node)
    }
}
