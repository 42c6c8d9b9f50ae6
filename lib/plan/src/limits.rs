//! Limits of accounts and QOS, and which of them hold for each job, as in Slurm (`src/slurmctld/acct_policy.c`).
//!
//! Of each limit the first one found counts: that of the partition's QOS, then that of the job's QOS (the other way
//! round with `OverPartQOS`), then those of the associations: `Grp` limits of the user's association and of all
//! accounts above it, other limits of the user's association. A count goes on where another limit comes first: its jobs
//! are part of the use.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use crate::cluster::Cluster;
use crate::job::{Charge, History, Job};
use crate::queue::{Class, Rule};

/// A resource of which a limit counts.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Kind {
    /// `gres/gpu`; a piece counts as its part of a GPU.
    Gpus,
    /// `gres/gpufrac`.
    Units,
    /// `gres/gpu:TYPE`: jobs with GPUs of this type.
    Type(String),
    /// `node`; only in limits of each job.
    Nodes,
}

/// Limits by resource: nodes, else units; 100 are a GPU.
pub type Tres = BTreeMap<Kind, u64>;

/// Limits of the running jobs of a group together.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Group {
    /// Limits of resources.
    pub tres: Tres,
    /// Number of jobs.
    pub jobs: Option<u64>,
}

/// Limits of each job.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Single {
    /// `MaxTRES`.
    pub job: Tres,
    /// `MaxTRESPerNode`.
    pub node: Tres,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Qos {
    /// `GrpTRES`, `GrpJobs`.
    pub all: Group,
    /// `MaxTRESPU`, `MaxJobsPU`.
    pub by_user: Group,
    /// `MaxTRESPA`, `MaxJobsPA`.
    pub by_account: Group,
    /// Limits of each job.
    pub single: Single,
    /// `LimitFactor`: limits of associations times this.
    pub factor: Option<f64>,
    /// The flag `OverPartQOS`: its limits come before those of the partition's QOS.
    pub is_over_partition: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Association {
    /// The account above the account; empty for root, and for associations of users.
    pub parent: String,
    /// `GrpTRES`, `GrpJobs`.
    pub all: Group,
    /// `MaxJobs`: of each user.
    pub jobs: Option<u64>,
    /// Limits of each job.
    pub single: Single,
}

/// Account, user and partition of an association; user and partition may be empty.
pub type Key = (String, String, String);

/// The limits of a Slurm.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Limits {
    /// QOS by name.
    pub qos: HashMap<String, Qos>,
    pub associations: HashMap<Key, Association>,
    /// Limits that have a value and that a plan does not count.
    pub uncounted: BTreeSet<String>,
}

impl Limits {
    /// Whether a limit counts `gres/gpu`.
    fn count_gpus(&self) -> bool {
        let groups = |qos: &Qos| {
            let groups = [&qos.all, &qos.by_user, &qos.by_account];
            groups.iter().any(|group| has_gpus(&group.tres)) || has_gpus(&qos.single.job)
        };
        let own = |one: &Association| has_gpus(&one.all.tres) || has_gpus(&one.single.job);
        self.qos.values().any(groups) || self.associations.values().any(own)
    }
}

fn has_gpus(tres: &Tres) -> bool {
    let mut kinds = tres.keys();
    kinds.any(|kind| matches!(kind, Kind::Gpus | Kind::Type(_)))
}

/// The limits that hold for each job of a history.
#[derive(Clone, Debug, Default)]
pub struct Assigned {
    /// Different limits; the first has none.
    pub classes: Vec<Class>,
    /// The class of each job.
    of_job: Vec<u32>,
    /// The limits and their files.
    pub source: String,
    /// Limits that have a value and that a plan does not count.
    pub uncounted: Vec<String>,
    /// Whether a limit counts `gres/gpu`, which does not count pieces in Slurm.
    pub counts_gpus: bool,
    /// Jobs without an account.
    pub without_account: usize,
    /// Jobs with an account of which there is no association.
    pub unknown_account: usize,
    /// Jobs without a QOS.
    pub without_qos: usize,
    /// Jobs with a QOS that is not among the limits.
    pub unknown_qos: usize,
}

impl Assigned {
    /// Finds the limits of each job. `files`: where they come from.
    pub fn new(limits: &Limits, files: &str, history: &History, cluster: &Cluster) -> Assigned {
        let mut assigned = Assigned {
            classes: vec![Class::default()],
            source: format!(
                "{} QOS and {} associations of {files}",
                limits.qos.len(),
                limits.associations.len()
            ),
            uncounted: limits.uncounted.iter().cloned().collect(),
            counts_gpus: limits.count_gpus(),
            ..Assigned::default()
        };
        let mut classes = HashMap::from([(Class::default(), 0)]);
        let mut owners: HashMap<(u32, u32, Charge), u32> = HashMap::new();
        let mut counts = Counts::default();
        for job in &history.jobs {
            let owner = Owner::new(job, history);
            assigned.note(limits, &owner);
            let key = (job.partition, job.user, job.charge);
            let class = *owners.entry(key).or_insert_with(|| {
                let partition = cluster.partition(owner.partition);
                let class = class(limits, &owner, partition.qos.as_deref(), &mut counts);
                *classes.entry(class.clone()).or_insert_with(|| {
                    assigned.classes.push(class);
                    u32::try_from(assigned.classes.len() - 1).unwrap_or(0)
                })
            });
            assigned.of_job.push(class);
        }
        assigned
    }

    /// The class of a job, by its place in the history.
    pub fn class(&self, job: usize) -> u32 {
        self.of_job.get(job).copied().unwrap_or(0)
    }

    /// Notes what is not known of a job.
    fn note(&mut self, limits: &Limits, owner: &Owner<'_>) {
        if !limits.associations.is_empty() {
            let has_association = chain(limits, owner).next().is_some();
            self.without_account += usize::from(owner.account.is_empty());
            self.unknown_account += usize::from(!owner.account.is_empty() && !has_association);
        }
        if !limits.qos.is_empty() {
            let has_qos = limits.qos.contains_key(owner.qos);
            self.without_qos += usize::from(owner.qos.is_empty());
            self.unknown_qos += usize::from(!owner.qos.is_empty() && !has_qos);
        }
    }
}

/// The names of a job by which limits are found.
struct Owner<'a> {
    user: &'a str,
    account: &'a str,
    qos: &'a str,
    partition: &'a str,
    gpu_type: &'a str,
}

impl<'a> Owner<'a> {
    fn new(job: &Job, history: &'a History) -> Owner<'a> {
        Owner {
            user: history.users.name(job.user),
            account: history.accounts.name(job.charge.account),
            qos: history.qos.name(job.charge.qos),
            partition: history.partitions.name(job.partition),
            gpu_type: history.gpu_types.name(job.charge.gpu_type),
        }
    }

    /// Whether a limit on this resource counts the job.
    fn uses(&self, kind: &Kind) -> bool {
        match kind {
            Kind::Gpus | Kind::Units | Kind::Nodes => true,
            Kind::Type(name) => name == self.gpu_type,
        }
    }
}

/// The jobs that a count is of.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Scope {
    Qos(String),
    QosUser(String, String),
    QosAccount(String, String),
    Association(Key),
    /// Of the user of an association; of an account, of each user without an association.
    User(Key, String),
}

/// The numbers of counts; without a resource of jobs.
#[derive(Default)]
struct Counts(HashMap<(Scope, Option<Kind>), u32>);

impl Counts {
    fn number(&mut self, scope: &Scope, kind: Option<&Kind>) -> u32 {
        let next = u32::try_from(self.0.len()).unwrap_or(u32::MAX);
        *self.0.entry((scope.clone(), kind.cloned())).or_insert(next)
    }
}

/// Limits of one name that were found: those that come later do not hold. Without a resource for jobs.
type Found = BTreeSet<Option<Kind>>;

/// The class of an owner while it is put together.
struct Draft<'a> {
    owner: &'a Owner<'a>,
    counts: &'a mut Counts,
    class: Class,
}

/// The limits of an owner.
fn class(
    limits: &Limits,
    owner: &Owner<'_>,
    partition: Option<&str>,
    counts: &mut Counts,
) -> Class {
    let mut draft = Draft {
        owner,
        counts,
        class: Class::default(),
    };
    let own = limits.qos.get_key_value(owner.qos);
    let of_partition = partition.and_then(|name| limits.qos.get_key_value(name));
    let mut order = if own.is_some_and(|(_, qos)| qos.is_over_partition) {
        vec![own, of_partition]
    } else {
        vec![of_partition, own]
    };
    order.dedup_by_key(|qos| qos.map(|(name, _)| name));
    let order: Vec<(&String, &Qos)> = order.into_iter().flatten().collect();
    let (mut all, mut by_user, mut by_account) = (Found::new(), Found::new(), Found::new());
    let (mut job, mut node) = (Found::new(), Found::new());
    for (name, qos) in &order {
        draft.group(&Scope::Qos((*name).clone()), &qos.all, None, &mut all);
        if !owner.user.is_empty() {
            let scope = Scope::QosUser((*name).clone(), owner.user.to_owned());
            draft.group(&scope, &qos.by_user, None, &mut by_user);
        }
        if !owner.account.is_empty() {
            let scope = Scope::QosAccount((*name).clone(), owner.account.to_owned());
            draft.group(&scope, &qos.by_account, None, &mut by_account);
        }
        draft.single(&qos.single, None, (&mut job, &mut node));
    }
    let factor = order.iter().find_map(|(_, qos)| qos.factor);
    let limits_users = by_user.contains(&None) || by_account.contains(&None);
    for (level, (key, association)) in chain(limits, owner).enumerate() {
        // Each association of the chain has a limit of its own: none of them hides the next one.
        let scope = Scope::Association(key.clone());
        draft.group(&scope, &association.all, factor, &mut all.clone());
        // Slurm and sacctmgr hand the other limits of accounts down to the associations below.
        if level == 0 {
            let jobs = Group {
                jobs: association.jobs,
                ..Group::default()
            };
            let mut found = Found::new();
            found.extend(limits_users.then_some(None));
            let scope = Scope::User(key.clone(), owner.user.to_owned());
            if !owner.user.is_empty() {
                draft.group(&scope, &jobs, None, &mut found);
            }
            draft.single(&association.single, factor, (&mut job, &mut node));
        }
    }
    draft.class
}

impl Draft<'_> {
    /// Adds the counts of a group. Limits that were found before do not hold again.
    fn group(&mut self, scope: &Scope, group: &Group, factor: Option<f64>, found: &mut Found) {
        let tres = group.tres.iter().filter(|(kind, _)| self.owner.uses(kind));
        let tres = tres.map(|(kind, most)| (Some(kind), scaled(*most, factor)));
        for (kind, most) in tres.chain(group.jobs.map(|most| (None, most))) {
            let is_first = found.insert(kind.cloned());
            let rule = Rule {
                count: self.counts.number(scope, kind),
                is_jobs: kind.is_none(),
                most: if is_first { most } else { u64::MAX },
            };
            self.class.rules.push(rule);
        }
    }

    /// Adds the limits of each job.
    fn single(
        &mut self,
        single: &Single,
        factor: Option<f64>,
        (job, node): (&mut Found, &mut Found),
    ) {
        for (kind, most) in single.job.iter().filter(|(kind, _)| self.owner.uses(kind)) {
            if job.insert(Some(kind.clone())) {
                let least = match kind {
                    Kind::Nodes => &mut self.class.nodes,
                    Kind::Gpus | Kind::Units | Kind::Type(_) => &mut self.class.job_units,
                };
                *least = (*least).min(scaled(*most, factor));
            }
        }
        for (kind, most) in single.node.iter().filter(|(kind, _)| self.owner.uses(kind)) {
            if node.insert(Some(kind.clone())) && *kind != Kind::Nodes {
                self.class.node_units = self.class.node_units.min(*most);
            }
        }
    }
}

/// A limit of an association with a QOS's `LimitFactor`.
fn scaled(most: u64, factor: Option<f64>) -> u64 {
    match factor.filter(|factor| *factor > 0.0) {
        Some(factor) => (most as f64 * factor) as u64,
        None => most,
    }
}

/// The associations of an owner: the user's with the partition, else the one without; then the accounts up to root.
/// Users without an association have those of their account.
fn chain<'a>(
    limits: &'a Limits,
    owner: &Owner<'_>,
) -> impl Iterator<Item = (&'a Key, &'a Association)> {
    let find = |account: &str, user: &str, partition: &str| {
        let key = (account.to_owned(), user.to_owned(), partition.to_owned());
        limits.associations.get_key_value(&key)
    };
    let of_user = (!owner.user.is_empty()).then(|| {
        find(owner.account, owner.user, owner.partition)
            .or_else(|| find(owner.account, owner.user, ""))
    });
    let mut accounts = Vec::new();
    let mut next = find(owner.account, "", "");
    // Associations that name each other as parents are no tree: the walk ends.
    while let Some((key, association)) = next.filter(|_| accounts.len() < limits.associations.len())
    {
        accounts.push((key, association));
        next = if association.parent.is_empty() {
            None
        } else {
            find(&association.parent, "", "")
        };
    }
    of_user.flatten().into_iter().chain(accounts)
}
