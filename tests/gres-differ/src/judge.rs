//! Compares gpufrac's and Slurm's reading of a request.

use gpufrac_core::submit::Occasion;

use crate::gpufrac::{Counts, Gpufrac, Said, counts};
use crate::slurm::{Answer, Entry, Reader, ReaderError};
use crate::texts::{Field, Request, Texts, type_id};

/// The Types of gpufrac's devices (`Pool::type_name`).
const TYPES: [&[u8]; 7] = [
    b"whole",
    b"slices",
    b"half",
    b"mpshalf",
    b"mps",
    b"timeslice",
    b"hami",
];

/// The GRES that gpufrac manages.
const NAMES: [&str; 3] = ["gpufrac", "shard", "gpu"];

/// The outcome of a request.
#[derive(Debug)]
pub(crate) enum Finding {
    RefusedByGpufrac,
    RefusedByBoth,
    RefusedBySlurm,
    /// Both read the same.
    Same {
        /// Whether they count a GPU.
        counts: bool,
        rewritten: bool,
    },
    /// Both read the same, apart from counts that an update left in the job. Up to 22.05 Slurm counts these, and no
    /// limit applies to them: a node holds such a job, because its text does not request the shares that it has.
    Left,
    /// The readings differ; with the difference.
    Differs(String),
    /// gpufrac refuses, and Slurm's parser ended its process; with the way it ended.
    CrashRefused(String),
}

/// The question to Slurm about a request, and gpufrac's reading.
struct Asked {
    before: Option<Texts>,
    texts: Texts,
    said: Option<Said>,
}

/// Judges all requests. Errors: Slurm's library cannot be called.
pub(crate) fn all(
    gpufrac: &Gpufrac,
    reader: &Reader,
    requests: &[Request],
) -> Result<Vec<(Request, Finding)>, ReaderError> {
    let asked: Vec<Asked> = requests.iter().map(|it| ask(gpufrac, it)).collect();
    let texts: Vec<_> = asked
        .iter()
        .map(|asked| (asked.before.as_ref(), &asked.texts))
        .collect();
    let answers = reader.ask(&texts)?;
    let judged = requests.iter().zip(&asked).zip(&answers);
    Ok(judged
        .map(|((request, asked), answer)| (request.clone(), judge(asked, answer)))
        .collect())
}

/// An update is for a job that gpufrac accepted; otherwise it is treated as a submission.
fn ask(gpufrac: &Gpufrac, request: &Request) -> Asked {
    let read = |texts, occasion| gpufrac.read(texts, request.partitions, occasion);
    let before = request.before.as_ref();
    let before = before.and_then(|before| Some(read(before, Occasion::Submit)?.texts));
    let occasion = match before {
        Some(_) => Occasion::Modify,
        None => Occasion::Submit,
    };
    let said = read(&request.texts, occasion);
    Asked {
        texts: match &said {
            Some(said) => said.texts.clone(),
            None => request.texts.clone(),
        },
        before,
        said,
    }
}

fn judge(asked: &Asked, answer: &Answer) -> Finding {
    let Some(said) = &asked.said else {
        return match answer {
            Answer::Crashed(words) => Finding::CrashRefused(words.clone()),
            Answer::Refused => Finding::RefusedByBoth,
            Answer::Took(_) => Finding::RefusedByGpufrac,
        };
    };
    let entries = match answer {
        Answer::Crashed(words) => return Finding::Differs(format!("Slurm ends: {words}")),
        Answer::Refused => return Finding::RefusedBySlurm,
        Answer::Took(entries) => entries,
    };
    let is_left = |entry: &Entry| entry.total == 0 && entry.counts != [0; 4];
    let (left, entries): (Vec<Entry>, Vec<Entry>) = entries.iter().cloned().partition(is_left);
    if let Some(why) = said.broken.clone().or_else(|| strange(&entries)) {
        return Finding::Differs(why);
    }
    let mut expected = match &asked.before {
        Some(before) => counts(&merged(before, &said.texts)),
        None => said.counts.clone(),
    };
    expected.retain(|(_, name, type_name), _| {
        let is_left = |entry: &Entry| entry.name == *name && entry.type_name == *type_name;
        !left.iter().any(is_left)
    });
    let found = found(&entries, &asked.texts);
    match found == expected {
        true if left.iter().any(|entry| ours(entry).is_some()) => Finding::Left,
        true => Finding::Same {
            counts: !found.is_empty(),
            rewritten: said.rewritten,
        },
        false => Finding::Differs(format!(
            "gpufrac reads {}; Slurm counts {}",
            words(&expected),
            words(&found)
        )),
    }
}

/// The request of an updated job: options that the update does not name stay the same.
fn merged(before: &Texts, update: &Texts) -> Texts {
    let mut texts = Texts::default();
    for field in Field::ALL {
        let text = update.get(field).or_else(|| before.get(field));
        texts.set(field, text.map(<[u8]>::to_vec));
    }
    texts
}

/// A fault in Slurm's list that no request may cause.
fn strange(entries: &[Entry]) -> Option<String> {
    let mut ours = entries.iter().filter(|entry| ours(entry).is_some());
    ours.find_map(|entry| {
        let shown = entry.type_name.escape_ascii();
        if entry.counts == [0; 4] {
            let name = &entry.name;
            return Some(format!(
                "{name} stays in the job without a count, by which slurmctld 22.05 divides"
            ));
        }
        let id = type_id(&entry.type_name);
        let known = TYPES.iter().find(|known| type_id(known) == id);
        if id != entry.type_id {
            return Some(format!(
                "the Type '{shown}' has the number {} in Slurm",
                entry.type_id
            ));
        }
        if entry.type_name.is_empty() || known.is_some_and(|known| *known == entry.type_name) {
            return None;
        }
        match (known, id) {
            (Some(known), _) => Some(format!(
                "Slurm takes the Type '{shown}' for '{}'",
                known.escape_ascii()
            )),
            (None, 0) => Some(format!("Slurm takes the Type '{shown}' for none")),
            (None, _) => None,
        }
    })
}

fn ours(entry: &Entry) -> Option<&'static str> {
    NAMES.into_iter().find(|name| *name == entry.name)
}

/// Slurm's counts. A count per job that no text names was derived from the one per task.
fn found(entries: &[Entry], texts: &Texts) -> Counts {
    let mut counts = Counts::new();
    for entry in entries {
        let Some(name) = ours(entry) else { continue };
        for (field, count) in Field::ALL.into_iter().zip(entry.counts) {
            let derived = field == Field::Job && texts.get(field).is_none();
            if count > 0 && !derived {
                counts.insert((field, name, entry.type_name.clone()), Some(count));
            }
        }
    }
    counts
}

fn words(counts: &Counts) -> String {
    if counts.is_empty() {
        return "nothing".to_owned();
    }
    let word = |((field, name, type_name), count): (&(Field, &str, Vec<u8>), &Option<u64>)| {
        let colon = if type_name.is_empty() { "" } else { ":" };
        let count = count.map_or_else(|| "?".to_owned(), |count| count.to_string());
        format!(
            "{field:?} {name}{colon}{}={count}",
            type_name.escape_ascii()
        )
    };
    counts.iter().map(word).collect::<Vec<_>>().join(", ")
}
