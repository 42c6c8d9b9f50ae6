//! Sums of times by user, account and others.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use gpufrac_core::rates::Rates;

use crate::ledger::LedgerSlice;
use crate::money::Money;

/// The key of the rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum By {
    /// The user of the job.
    User,
    /// The account charged.
    Account,
    /// The quality of service; known where sacct is.
    Qos,
    Partition,
    /// The pool of the GPU.
    Pool,
    Node,
    /// The size of the slice.
    Size,
}

impl By {
    /// All of them.
    pub const ALL: [By; 7] = [
        By::User,
        By::Account,
        By::Qos,
        By::Partition,
        By::Pool,
        By::Node,
        By::Size,
    ];

    /// The word of `--by`, and the head of the column.
    pub fn name(self) -> &'static str {
        match self {
            By::User => "user",
            By::Account => "account",
            By::Qos => "qos",
            By::Partition => "partition",
            By::Pool => "pool",
            By::Node => "node",
            By::Size => "size",
        }
    }

    /// The name of a row.
    fn of(self, held: &LedgerSlice) -> String {
        let text = match self {
            By::User => &held.user,
            By::Account => &held.account,
            By::Qos => &held.qos,
            By::Partition => &held.partition,
            By::Pool => &held.pool,
            By::Node => &held.node,
            By::Size => &held.size,
        };
        if text.is_empty() { "-".to_owned() } else { text.clone() }
    }
}

/// Sums, in unit-seconds: 360,000 are an hour of a GPU.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Sums {
    pub slices: u64,
    /// Held by jobs.
    pub allocated: u64,
    /// Held and used.
    pub busy: u64,
    /// Held and not used.
    pub idle: u64,
    /// Held, and nobody measured.
    pub unknown: u64,
    /// Held by suspended jobs.
    pub suspended: u64,
    /// Given back by the reaper: what was left of the time limits of the jobs that it ended.
    pub reclaimed: u64,
    /// Slices that the reaper ended.
    pub reclaims: u64,
    /// Energy by activity, in joules, of slices for which it is known.
    pub energy_j: u64,
    pub cost: Money,
}

impl Sums {
    /// The times with their names, in unit-seconds.
    pub fn parts(&self) -> [(&'static str, u64); 6] {
        [
            ("allocated", self.allocated),
            ("busy", self.busy),
            ("idle", self.idle),
            ("unknown", self.unknown),
            ("suspended", self.suspended),
            ("reclaimed", self.reclaimed),
        ]
    }

    /// Adds what a job held.
    pub fn add(&mut self, held: &LedgerSlice, rates: &Rates) {
        self.slices += 1;
        self.allocated += held.allocated();
        self.busy += held.busy;
        self.idle += held.idle;
        self.unknown += held.unknown;
        self.suspended += held.suspended;
        self.reclaimed += held.reclaimed;
        self.reclaims += u64::from(held.is_reclaimed);
        self.energy_j += held.energy_j;
        let cost = Money::of(rates, &held.pool, &held.qos, held.allocated(), held.idle);
        self.cost.add(cost);
    }
}

/// Rows of sums.
#[derive(Debug, Clone)]
pub struct Table {
    /// The key of the rows.
    pub by: Vec<By>,
    rows: BTreeMap<Vec<String>, Sums>,
    /// The sum of all rows.
    pub total: Sums,
}

impl Table {
    /// Without rows.
    pub fn new(by: &[By]) -> Table {
        Table {
            by: by.to_vec(),
            rows: BTreeMap::new(),
            total: Sums::default(),
        }
    }

    /// Adds what a job held.
    pub fn add(&mut self, held: &LedgerSlice, rates: &Rates) {
        let key: Vec<String> = self.by.iter().map(|by| by.of(held)).collect();
        self.rows.entry(key).or_default().add(held, rates);
        self.total.add(held, rates);
    }

    /// The rows, those with the most time first.
    pub fn rows(&self) -> Vec<(&[String], &Sums)> {
        let rows = self.rows.iter();
        let mut rows: Vec<_> = rows.map(|(key, sums)| (key.as_slice(), sums)).collect();
        rows.sort_by_key(|&(key, sums)| (Reverse(sums.allocated), key));
        rows
    }
}
