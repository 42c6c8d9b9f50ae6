//! What a row of `keys` says about a key, and how a table of the file is read by its rows.

use std::ops::RangeInclusive;
use std::time::Duration;

use super::read::{Field, Section};
use crate::layout::LayoutKind;
use crate::mechanism::Mechanism;

/// The keys of a table of the file, whose values go to `T`.
pub(super) struct Table<T: 'static> {
    /// The heading in gpufrac.toml(5).
    pub(super) heading: &'static str,
    /// In the order in which messages list them.
    pub(super) keys: &'static [Key<T>],
}

/// One key.
pub(super) struct Key<T: 'static> {
    pub(super) name: &'static str,
    pub(super) shown: Shown,
    /// As the file has it.
    pub(super) value: &'static str,
    pub(super) kind: Kind,
    /// Reads the value; a wrong one is reported and changes nothing.
    pub(super) set: fn(&mut T, &Field<'_>),
    /// The mechanisms for which the key has a meaning, and their layouts; empty for all.
    pub(super) mechanisms: &'static [Mechanism],
    pub(super) layouts: &'static [LayoutKind],
}

/// The value of a row.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Shown {
    /// The default.
    Default,
    /// An example of a key without a default.
    Example,
    /// An example of a key that its table needs.
    Required,
    /// None: the key is a table.
    Table,
}

/// The possible values.
pub(super) enum Kind {
    /// Those of this function of [`Field`].
    Named(&'static str),
    Words(&'static [&'static str]),
    Times(RangeInclusive<Duration>),
    /// Those of a function for this key alone.
    Own,
}

/// The rows of a table:
///
/// ```text
/// rows! { Breaker:
///     /// The text in gpufrac.toml(5).
///     Default least: count = 4;
/// }
/// ```
///
/// A row is as a line of the file, with the kind behind the name: the function of [`Field`] that reads the value for
/// the field of `T` with the key's name; words, `["off" => Mode::Off]`; `duration_in(RANGE, PROBLEM)`; `own(FUNCTION)`;
/// or nothing, if the code of the table reads it together with other keys. `for [Mps] [Shares]` has the mechanisms and
/// layouts.
macro_rules! rows {
    ($target:ty: $(
        $(#[$text:meta])*
        $shown:ident $name:ident $(: $kind:tt $(($($more:expr),*))?)? $(= $value:expr)?
        $(, for [$($mechanism:path),*] [$($layout:path),*])?;
    )*) => {
        &[$({
            let (kind, set): (_, fn(&mut $target, &$crate::config::read::Field<'_>)) =
                $crate::config::schema::kind!($name $(, $kind $($(, $more)*)?)?);
            $crate::config::schema::Key {
                name: stringify!($name),
                shown: $crate::config::schema::Shown::$shown,
                value: stringify!($($value)?),
                kind,
                set,
                mechanisms: &[$($($mechanism),*)?],
                layouts: &[$($($layout),*)?],
            }
        }),*]
    };
}

/// The kind of a row, and the function that sets the field.
macro_rules! kind {
    ($name:ident) => {
        ($crate::config::schema::Kind::Own, |_, _| {})
    };
    ($name:ident, own, $read:expr) => {
        ($crate::config::schema::Kind::Own, $read)
    };
    ($name:ident, duration_in, $range:expr, $problem:expr) => {
        ($crate::config::schema::Kind::Times($range), |it, item| {
            if let Some(value) = item.duration_in($range, $problem) {
                it.$name = value.into();
            }
        })
    };
    ($name:ident, [$($word:literal => $value:expr),* $(,)?]) => {
        ($crate::config::schema::Kind::Words(&[$($word),*]), |it, item| {
            if let Some(value) = item.one_of(&[$(($word, $value)),*]) {
                it.$name = value.into();
            }
        })
    };
    ($name:ident, $kind:ident) => {
        ($crate::config::schema::Kind::Named(stringify!($kind)), |it, item| {
            if let Some(value) = item.$kind() {
                it.$name = value.into();
            }
        })
    };
}

pub(super) use {kind, rows};

impl<T> Key<T> {
    /// The key as gpufrac.toml(5) shows it.
    fn row(&self) -> DocumentedKey {
        let values = match self.kind {
            Kind::Words(words) => {
                let words: Vec<String> = words.iter().map(|word| format!("{word:?}")).collect();
                words.join(" | ")
            }
            _ => self.value.to_owned(),
        };
        let range = match &self.kind {
            Kind::Named("count") => "1 to 255".to_owned(),
            Kind::Named("percent") => "0 to 100".to_owned(),
            Kind::Named("whole_percent") => "a whole number from 0 to 100".to_owned(),
            Kind::Times(range) => {
                let [from, to] = [range.start(), range.end()];
                let text = |end: &Duration| humantime::format_duration(*end);
                format!("{} to {}", text(from), text(to))
            }
            _ => String::new(),
        };
        let default = match self.shown {
            Shown::Required => "required".to_owned(),
            Shown::Example if values.contains(" | ") => "no default".to_owned(),
            Shown::Example => "example".to_owned(),
            Shown::Default if values != self.value => format!("default {}", self.value),
            Shown::Default | Shown::Table => String::new(),
        };
        let mut notes = vec![default, range];
        notes.retain(|note| !note.is_empty());
        DocumentedKey {
            name: self.name,
            values,
            notes: notes.join("; "),
            mechanisms: self.mechanisms,
            layouts: self.layouts,
        }
    }
}

impl<T> Table<T> {
    pub(super) fn names(&self) -> Vec<&'static str> {
        self.keys.iter().map(|key| key.name).collect()
    }

    /// Reports keys that are neither here nor in `more`, and required keys that are missing.
    pub(super) fn check(&self, section: &Section<'_>, more: &[&str]) {
        section.only(&[&self.names(), more].concat());
        let required = self.keys.iter().filter(|key| key.shown == Shown::Required);
        for key in required {
            self.need(section, key.name);
        }
    }

    /// The value of a key, which is reported if it is missing.
    pub(super) fn need<'a>(&self, section: &Section<'a>, name: &str) -> Option<Field<'a>> {
        let key = self.keys.iter().find(|key| key.name == name)?;
        let example = key.value.split(" | ").next().unwrap_or_default();
        section.need(name, format!("{name} = {example}"))
    }

    /// Sets what the section has.
    pub(super) fn fill(&self, section: &Section<'_>, target: &mut T) {
        for key in self.keys {
            if let Some(item) = section.get(key.name) {
                (key.set)(target, &item);
            }
        }
    }

    /// Reads the table `name` of the section, if it is written.
    pub(super) fn read(&self, section: &Section<'_>, name: &str, target: &mut T) {
        if let Some(section) = section.read(name, Field::table) {
            self.check(&section, &[]);
            self.fill(&section, target);
        }
    }

    /// The table as gpufrac.toml(5) shows it.
    pub(super) fn rows(&self) -> (&'static str, Vec<DocumentedKey>) {
        (self.heading, self.keys.iter().map(Key::row).collect())
    }
}

/// A key as gpufrac.toml(5) shows it.
pub struct DocumentedKey {
    pub name: &'static str,
    /// The default, an example, or all possible values; empty for a table.
    pub values: String,
    /// What holds without the key, and the range.
    pub notes: String,
    /// The mechanisms for which the key has a meaning, and their layouts; empty for all.
    pub mechanisms: &'static [Mechanism],
    pub layouts: &'static [LayoutKind],
}
