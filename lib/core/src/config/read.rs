//! Reads TOML with the position of each value, so that each mistake can be reported with its line.

use std::ops::Range;
use std::time::Duration;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::error::{ConfigError, Problem};
use crate::fraction::{Fraction, MemoryMib};

/// The text of the file, and the mistakes found so far.
pub(super) struct Source<'a> {
    pub(super) path: &'a str,
    pub(super) text: &'a str,
    pub(super) errors: Vec<ConfigError>,
}

impl Source<'_> {
    pub(super) fn error(&mut self, at: &Range<usize>, key: impl Into<String>, problem: Problem) {
        let before = self.text.as_bytes().get(..at.start).unwrap_or_default();
        let line = before.iter().filter(|byte| **byte == b'\n').count() + 1;
        self.errors.push(ConfigError {
            path: self.path.to_owned(),
            line,
            key: key.into(),
            problem,
        });
    }
}

/// One table of the file.
pub(super) struct Section<'a, 'i> {
    /// The full name, `pool.h100`; empty for the file itself.
    pub(super) name: String,
    /// The range of its heading in the text.
    pub(super) at: Range<usize>,
    table: &'a DeTable<'i>,
}

/// A value with its full key.
pub(super) struct Field<'a, 'i> {
    pub(super) key: String,
    pub(super) at: Range<usize>,
    pub(super) value: &'a Spanned<DeValue<'i>>,
}

impl<'a, 'i> Section<'a, 'i> {
    pub(super) fn root(table: &'a DeTable<'i>) -> Self {
        Section {
            name: String::new(),
            at: 0..0,
            table,
        }
    }

    fn key(&self, key: &str) -> String {
        if self.name.is_empty() {
            key.to_owned()
        } else {
            format!("{}.{key}", self.name)
        }
    }

    /// Reports every key that is not in `known`.
    pub(super) fn only(&self, source: &mut Source<'_>, known: &[&str]) {
        for key in self.table.keys() {
            let name: &str = key.get_ref();
            if !known.contains(&name) {
                let known = known.join(", ");
                source.error(&key.span(), self.key(name), Problem::UnknownKey { known });
            }
        }
    }

    pub(super) fn get(&self, key: &str) -> Option<Field<'a, 'i>> {
        self.table
            .iter()
            .find(|(name, _)| *name.get_ref() == key)
            .map(|(name, value)| Field {
                key: self.key(key),
                at: name.span(),
                value,
            })
    }

    /// As `get`, and reports a missing key.
    pub(super) fn need(
        &self,
        source: &mut Source<'_>,
        key: &str,
        example: &'static str,
    ) -> Option<Field<'a, 'i>> {
        let item = self.get(key);
        if item.is_none() {
            source.error(&self.at, self.key(key), Problem::Missing { example });
        }
        item
    }

    /// The tables inside the table `key`, in the order of the file.
    pub(super) fn children(&self, source: &mut Source<'_>, key: &str) -> Vec<Section<'a, 'i>> {
        let Some(parent) = self.get(key).and_then(|item| item.table(source)) else {
            return Vec::new();
        };
        let mut found: Vec<Section<'a, 'i>> = Vec::new();
        for (name, value) in parent.table {
            let item = Field {
                key: parent.key(name.get_ref()),
                at: name.span(),
                value,
            };
            found.extend(item.table(source));
        }
        found.sort_by_key(|section| section.at.start);
        found
    }

    /// The last part of the full name: `h100` of `pool.h100`.
    pub(super) fn own_name(&self) -> &str {
        self.name
            .split_once('.')
            .map_or(self.name.as_str(), |(_, own)| own)
    }
}

impl<'a, 'i> Field<'a, 'i> {
    pub(super) fn wrong(&self, source: &mut Source<'_>, problem: Problem) {
        source.error(&self.at, self.key.clone(), problem);
    }

    fn wrong_type(&self, source: &mut Source<'_>, expected: &'static str) {
        let found = self.value.get_ref().type_str();
        self.wrong(source, Problem::WrongType { expected, found });
    }

    pub(super) fn table(&self, source: &mut Source<'_>) -> Option<Section<'a, 'i>> {
        let Some(table) = self.value.get_ref().as_table() else {
            self.wrong_type(source, "a table");
            return None;
        };
        Some(Section {
            name: self.key.clone(),
            at: self.at.clone(),
            table,
        })
    }

    /// A text; an empty one is an error.
    pub(super) fn text(&self, source: &mut Source<'_>) -> Option<&'a str> {
        let Some(text) = self.value.get_ref().as_str() else {
            self.wrong_type(source, "a text in quotes");
            return None;
        };
        if text.is_empty() {
            self.wrong(source, Problem::Empty);
            return None;
        }
        Some(text)
    }

    pub(super) fn yes_or_no(&self, source: &mut Source<'_>) -> Option<bool> {
        let value = self.value.get_ref().as_bool();
        if value.is_none() {
            self.wrong_type(source, "true or false");
        }
        value
    }

    /// A whole number of MiB.
    pub(super) fn memory(&self, source: &mut Source<'_>) -> Option<MemoryMib> {
        let value = match self.value.get_ref() {
            DeValue::Integer(number) => number.to_string(),
            other => other.type_str().to_owned(),
        };
        match value.parse::<u32>() {
            Ok(mib) if mib > 0 => Some(MemoryMib(mib.into())),
            _ => {
                self.wrong(source, Problem::Memory { value });
                None
            }
        }
    }

    /// A count from 1.
    pub(super) fn count(&self, source: &mut Source<'_>) -> Option<u32> {
        let value = match self.value.get_ref() {
            DeValue::Integer(number) => number.to_string(),
            other => other.type_str().to_owned(),
        };
        match value.parse::<u8>() {
            Ok(count) if count > 0 => Some(count.into()),
            _ => {
                self.wrong(source, Problem::Count { value });
                None
            }
        }
    }

    /// A fraction, as a number or as a text (`"1/8"`).
    pub(super) fn fraction(&self, source: &mut Source<'_>) -> Option<Fraction> {
        let value = self.value.get_ref();
        let text = match value {
            DeValue::String(text) => text.as_ref(),
            DeValue::Float(number) => number.as_str(),
            DeValue::Integer(number) => number.as_str(),
            _ => {
                self.wrong_type(source, "a fraction such as 0.25 or \"1/8\"");
                return None;
            }
        };
        Fraction::parse(text)
            .map_err(|error| {
                let text = text.to_owned();
                self.wrong(
                    source,
                    Problem::Fraction {
                        text,
                        source: error,
                    },
                );
            })
            .ok()
    }

    /// The values of a list; an empty list is an error.
    pub(super) fn list(&self, source: &mut Source<'_>) -> Option<Vec<Field<'a, 'i>>> {
        let Some(array) = self.value.get_ref().as_array() else {
            self.wrong_type(source, "a list in [ ]");
            return None;
        };
        if array.is_empty() {
            self.wrong(source, Problem::Empty);
            return None;
        }
        let item = |value: &'a Spanned<DeValue<'i>>| Field {
            key: self.key.clone(),
            at: value.span(),
            value,
        };
        Some(array.iter().map(item).collect())
    }

    /// The texts of a list; the same text twice is an error.
    pub(super) fn texts(&self, source: &mut Source<'_>) -> Option<Vec<&'a str>> {
        let mut found: Vec<&'a str> = Vec::new();
        for item in self.list(source)? {
            let Some(text) = item.text(source) else {
                continue;
            };
            if found.contains(&text) {
                let value = text.to_owned();
                item.wrong(source, Problem::Twice { value });
            } else {
                found.push(text);
            }
        }
        Some(found)
    }

    /// A duration with its unit.
    pub(super) fn duration(&self, source: &mut Source<'_>) -> Option<Duration> {
        self.length(source, false)
    }

    /// As `duration`, with `"off"` allowed: `Some(None)`.
    pub(super) fn duration_or_off(&self, source: &mut Source<'_>) -> Option<Option<Duration>> {
        if self.value.get_ref().as_str() == Some("off") {
            return Some(None);
        }
        self.length(source, true).map(Some)
    }

    fn length(&self, source: &mut Source<'_>, or_off: bool) -> Option<Duration> {
        let value = match self.value.get_ref() {
            DeValue::Integer(number) => number.to_string(),
            _ => self.text(source)?.to_owned(),
        };
        let parsed = humantime::parse_duration(&value).ok();
        if parsed.is_none() {
            self.wrong(source, Problem::Duration { value, or_off });
        }
        parsed
    }
}
