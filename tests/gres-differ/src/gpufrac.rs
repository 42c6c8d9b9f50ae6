//! gpufrac's reading of a request.

use std::collections::BTreeMap;

use gpufrac_core::config::Config;
use gpufrac_core::entry::Entry;
use gpufrac_core::fraction::Fraction;
use gpufrac_core::request::{self, Amount, Count, GresForm, Kind};
use gpufrac_core::submit::{JobRequest, Occasion, Verdict, decide};

use crate::texts::{Field, Texts};

/// Pools and partitions.
const CONFIG: &str = include_str!("gpufrac.toml");

/// Every count other than zero, by option, name of the GRES and Type; None if the text is not a number.
pub(crate) type Counts = BTreeMap<(Field, &'static str, Vec<u8>), Option<u64>>;

/// gpufrac's reading of a request.
#[derive(Debug, Clone)]
pub(crate) struct Said {
    /// The texts that Slurm will read.
    pub(crate) texts: Texts,
    /// gpufrac's counts of these texts.
    pub(crate) counts: Counts,
    /// Whether gpufrac wrote one of them.
    pub(crate) rewritten: bool,
    /// A contradiction between the entry for the node and the text.
    pub(crate) broken: Option<String>,
}

/// gpufrac with a configuration, for one series.
pub(crate) struct Gpufrac {
    config: Config,
    form: GresForm,
}

impl Gpufrac {
    pub(crate) fn new(slash: bool) -> Self {
        let config = Config::parse(CONFIG, "gpufrac.toml");
        Self {
            config: config.unwrap_or_else(|errors| panic!("gpufrac.toml: {errors}")),
            form: if slash { GresForm::Slash } else { GresForm::Colon },
        }
    }

    /// The decision of job_submit and job_modify about a request; None if they refuse it.
    pub(crate) fn read(
        &self,
        texts: &Texts,
        partitions: Option<&str>,
        occasion: Occasion,
    ) -> Option<Said> {
        let given = Field::ALL.map(|field| texts.lossy(field));
        let [node, job, socket, task] = &given;
        let request = JobRequest {
            partitions,
            form: self.form,
            marked: true,
            forgets_shares: self.form == GresForm::Colon,
            updates_take_counts: self.form == GresForm::Slash,
            tres_per_node: node.as_deref(),
            tres_per_job: job.as_deref(),
            tres_per_socket: socket.as_deref(),
            tres_per_task: task.as_deref(),
            ..JobRequest::default()
        };
        let verdict = decide(&self.config, &request, occasion).ok()?;
        let (texts, entry) = match verdict {
            Verdict::Untouched => (texts.clone(), None),
            Verdict::Rewritten { text, entry, .. } => {
                let mut texts = texts.clone();
                let field = field_of(&entry);
                texts.set(field, Some(text.into_bytes()));
                (texts, Some(entry))
            }
        };
        let counts = counts(&texts);
        Some(Said {
            broken: entry.and_then(|entry| contradiction(&counts, &entry)),
            rewritten: entry.is_some(),
            texts,
            counts,
        })
    }
}

/// The option that gpufrac writes.
fn field_of(entry: &Entry) -> Field {
    if entry.per_task { Field::Task } else { Field::Node }
}

/// gpufrac's counts of texts.
pub(crate) fn counts(texts: &Texts) -> Counts {
    let mut counts = Counts::new();
    for field in Field::ALL {
        let text = texts.lossy(field).unwrap_or_default();
        for (name, type_name, count) in items(&text) {
            if count == Some(0) {
                continue;
            }
            let sum = counts.entry((field, name, type_name)).or_insert(Some(0));
            *sum = sum
                .zip(count)
                .and_then(|(sum, count)| sum.checked_add(count));
        }
    }
    counts
}

/// Name, Type and count of each item about GPUs. Only this function knows the interface of gpufrac's parser.
fn items(text: &str) -> Vec<(&'static str, Vec<u8>, Option<u64>)> {
    let counted = |name, count: Count<'_>| {
        let type_name = count.type_name.unwrap_or_default();
        (name, type_name.as_bytes().to_vec(), count.count)
    };
    let Ok(items) = request::parse(text) else {
        return vec![("gpufrac", Vec::new(), None)];
    };
    let known = items.into_iter().filter_map(|item| match item.kind {
        Kind::Gpufrac { amount, .. } => {
            let units = match amount {
                Amount::Integer(units) => Some(units),
                Amount::Fraction(Fraction::ONE) => Some(1),
                Amount::Fraction(_) | Amount::Percent(_) | Amount::Memory(_) => None,
            };
            Some(("gpufrac", Vec::new(), units))
        }
        Kind::Shard(count) => Some(counted("shard", count)),
        Kind::Gpu(count) => Some(counted("gpu", count)),
        Kind::Mps(_) | Kind::None | Kind::Other => None,
    });
    known.collect()
}

/// A contradiction between the entry for a node and the text for Slurm: the text must have the units and as many
/// shares, or 100 for each of its whole devices.
fn contradiction(counts: &Counts, entry: &Entry) -> Option<String> {
    let field = field_of(entry);
    let sum = |wanted: &str| -> Option<u64> {
        let of_name = counts.iter().filter(|((_, name, _), _)| *name == wanted);
        of_name
            .map(|((place, ..), count)| count.filter(|_| *place == field))
            .sum()
    };
    let units = u64::from(entry.units.0);
    let sums = (sum("gpufrac"), sum("shard"), sum("gpu"));
    let right = match sums {
        (Some(fraction), Some(shards), Some(0)) => fraction == units && shards == units,
        (Some(fraction), Some(0), Some(gpus)) => {
            gpus > 0 && fraction == units && units == 100 * gpus
        }
        _ => false,
    };
    (!right).then(|| {
        format!("the node is told {entry}, and the text has {sums:?} of gpufrac, shard and gpu")
    })
}
