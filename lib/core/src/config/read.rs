//! Reads TOML with the position of each value, so that each mistake can be reported with its line.

use std::cell::RefCell;
use std::ops::{Range, RangeInclusive};
use std::time::Duration;

use toml::Spanned;
use toml::de::{DeTable, DeValue};
use wildmatch::WildMatch;

use super::error::{ConfigError, Problem};
use crate::fraction::{Fraction, MemoryMib};
use crate::rates::Millionths;

/// The text of the file, and the mistakes found so far.
pub(super) struct Source<'a> {
    pub(super) path: &'a str,
    pub(super) text: &'a str,
    pub(super) errors: RefCell<Vec<ConfigError>>,
}

impl Source<'_> {
    pub(super) fn error(&self, at: &Range<usize>, key: impl Into<String>, problem: Problem) {
        let before = self.text.as_bytes().get(..at.start).unwrap_or_default();
        let line = before.iter().filter(|byte| **byte == b'\n').count() + 1;
        self.errors.borrow_mut().push(ConfigError {
            path: self.path.to_owned(),
            line,
            key: key.into(),
            problem,
        });
    }

    /// How many mistakes were found so far.
    pub(super) fn mistakes(&self) -> usize {
        self.errors.borrow().len()
    }
}

/// One table of the file.
pub(super) struct Section<'a> {
    pub(super) source: &'a Source<'a>,
    /// The full name, `pool.h100`; empty for the file itself.
    pub(super) name: String,
    /// The range of its heading in the text.
    pub(super) at: Range<usize>,
    pub(super) table: &'a DeTable<'a>,
}

/// A value with its full key.
pub(super) struct Field<'a> {
    pub(super) source: &'a Source<'a>,
    pub(super) key: String,
    pub(super) at: Range<usize>,
    pub(super) value: &'a Spanned<DeValue<'a>>,
}

impl<'a> Section<'a> {
    fn key(&self, key: &str) -> String {
        if self.name.is_empty() {
            key.to_owned()
        } else {
            format!("{}.{key}", self.name)
        }
    }

    /// Reports a mistake in the heading.
    pub(super) fn wrong(&self, problem: Problem) {
        self.source.error(&self.at, self.name.clone(), problem);
    }

    /// Reports every key that is not in `known`.
    pub(super) fn only(&self, known: &[&str]) {
        for key in self.table.keys() {
            let name: &str = key.get_ref();
            if !known.contains(&name) {
                let known = known.join(", ");
                let problem = Problem::UnknownKey { known };
                self.source.error(&key.span(), self.key(name), problem);
            }
        }
    }

    pub(super) fn get(&self, key: &str) -> Option<Field<'a>> {
        let (name, value) = self.table.iter().find(|(name, _)| *name.get_ref() == key)?;
        Some(Field {
            source: self.source,
            key: self.key(key),
            at: name.span(),
            value,
        })
    }

    /// As `get`, and reports a missing key.
    pub(super) fn need(&self, key: &str, example: String) -> Option<Field<'a>> {
        let item = self.get(key);
        if item.is_none() {
            let problem = Problem::Missing { example };
            self.source.error(&self.at, self.key(key), problem);
        }
        item
    }

    /// The value of a key; None if it is not written or wrong.
    pub(super) fn read<T>(
        &self,
        key: &str,
        read: impl FnOnce(&Field<'a>) -> Option<T>,
    ) -> Option<T> {
        read(&self.get(key)?)
    }

    pub(super) fn is_on(&self, key: &str) -> bool {
        self.read(key, Field::yes_or_no).unwrap_or(false)
    }

    /// The tables inside the table `key`, in the order of the file.
    pub(super) fn children(&self, key: &str) -> Vec<Section<'a>> {
        let Some(parent) = self.read(key, Field::table) else {
            return Vec::new();
        };
        let mut found: Vec<Section<'a>> = Vec::new();
        for name in parent.table.keys() {
            found.extend(parent.read(name.get_ref(), Field::table));
        }
        found.sort_by_key(|section| section.at.start);
        found
    }

    /// The last part of the full name: `h100` of `pool.h100`, of which `pool` is the `parent`.
    pub(super) fn own_name(&self, parent: &str) -> String {
        let own = self.name.strip_prefix(parent);
        let own = own.and_then(|own| own.strip_prefix('.'));
        own.unwrap_or(&self.name).to_owned()
    }
}

impl<'a> Field<'a> {
    pub(super) fn wrong(&self, problem: Problem) {
        self.source.error(&self.at, self.key.clone(), problem);
    }

    /// Reports a key that has no meaning here.
    pub(super) fn meaningless(&self, of: &str) {
        let of = of.to_owned();
        self.wrong(Problem::Meaningless { of });
    }

    fn wrong_type(&self, expected: &'static str) {
        let found = self.value.get_ref().type_str();
        self.wrong(Problem::WrongType { expected, found });
    }

    /// The value of `found`, or the mistake in it.
    pub(super) fn right<T>(&self, found: Result<T, Problem>) -> Option<T> {
        found.map_err(|problem| self.wrong(problem)).ok()
    }

    pub(super) fn table(&self) -> Option<Section<'a>> {
        let Some(table) = self.value.get_ref().as_table() else {
            self.wrong_type("a table");
            return None;
        };
        Some(Section {
            source: self.source,
            name: self.key.clone(),
            at: self.at.clone(),
            table,
        })
    }

    /// A text; an empty one is an error.
    pub(super) fn text(&self) -> Option<&'a str> {
        let Some(text) = self.value.get_ref().as_str() else {
            self.wrong_type("a text in quotes");
            return None;
        };
        if text.is_empty() {
            self.wrong(Problem::Empty);
            return None;
        }
        Some(text)
    }

    pub(super) fn string(&self) -> Option<String> {
        self.text().map(str::to_owned)
    }

    /// A text, or a mistake if it is not right.
    pub(super) fn string_if(
        &self,
        is_right: impl Fn(&str) -> bool,
        problem: impl Fn(String) -> Problem,
    ) -> Option<String> {
        let value = self.string()?;
        self.right(if is_right(&value) { Ok(value) } else { Err(problem(value)) })
    }

    /// A word that becomes part of a mail header or an argument of a command.
    pub(super) fn mail_word(&self) -> Option<String> {
        self.string_if(
            |value| !value.starts_with('-') && value.chars().all(|c| c.is_ascii_graphic()),
            |value| Problem::MailWord { value },
        )
    }

    pub(super) fn path(&self) -> Option<String> {
        let problem = |value| Problem::RelativePath { value };
        self.string_if(|value| value.starts_with('/'), problem)
    }

    /// An absolute path of a node, in which only `%n` has a meaning.
    pub(super) fn node_path(&self) -> Option<String> {
        let value = self.string()?;
        if value.replace("%n", "").contains('%') {
            self.wrong(Problem::Percent { value });
            return None;
        }
        // `nvml` may be a bare library name, which the dynamic linker looks up.
        let bare_name = self.key == "paths.nvml" && !value.contains('/');
        if bare_name { Some(value) } else { self.path() }
    }

    pub(super) fn one_of<T: Copy>(&self, words: &[(&str, T)]) -> Option<T> {
        let word = self.text()?;
        let found = words.iter().find(|(known, _)| *known == word);
        if found.is_none() {
            let known: Vec<&str> = words.iter().map(|(known, _)| *known).collect();
            self.wrong(Problem::UnknownWord {
                word: word.to_owned(),
                known: known.join(", "),
            });
        }
        found.map(|(_, value)| *value)
    }

    pub(super) fn yes_or_no(&self) -> Option<bool> {
        let value = self.value.get_ref().as_bool();
        if value.is_none() {
            self.wrong_type("true or false");
        }
        value
    }

    /// A whole number as it is written; of another value its type.
    pub(super) fn integer(&self) -> String {
        match self.value.get_ref() {
            DeValue::Integer(number) => number.to_string(),
            other => other.type_str().to_owned(),
        }
    }

    /// As `integer`, or a text.
    pub(super) fn number_or_text(&self) -> String {
        match self.value.get_ref() {
            DeValue::String(text) => text.to_string(),
            _ => self.integer(),
        }
    }

    /// As `integer`, or a number with decimals.
    pub(super) fn number(&self) -> String {
        match self.value.get_ref() {
            DeValue::Float(number) => number.to_string(),
            _ => self.integer(),
        }
    }

    pub(super) fn memory(&self) -> Option<MemoryMib> {
        let value = self.integer();
        self.right(match value.parse::<u32>() {
            Ok(mib) if mib > 0 => Ok(MemoryMib(mib.into())),
            _ => Err(Problem::Memory { value }),
        })
    }

    /// A count from 1.
    pub(super) fn count(&self) -> Option<u32> {
        let value = self.integer();
        self.right(match value.parse::<u8>() {
            Ok(count) if count > 0 => Ok(count.into()),
            _ => Err(Problem::Count { value }),
        })
    }

    pub(super) fn percent(&self) -> Option<f64> {
        let value = self.number();
        self.right(match value.parse::<f64>() {
            Ok(percent) if (0.0..=100.0).contains(&percent) => Ok(percent),
            _ => Err(Problem::Percentage { value }),
        })
    }

    pub(super) fn whole_percent(&self) -> Option<u8> {
        let percent = self.percent()?;
        let value = percent.to_string();
        self.right(if percent.fract() == 0.0 {
            Ok(percent as u8)
        } else {
            Err(Problem::WholePercentage { value })
        })
    }

    pub(super) fn fraction(&self) -> Option<Fraction> {
        let text = match self.value.get_ref() {
            DeValue::String(text) => text.as_ref(),
            DeValue::Float(number) => number.as_str(),
            DeValue::Integer(number) => number.as_str(),
            _ => {
                self.wrong_type("a fraction such as 0.25 or \"1/8\"");
                return None;
            }
        };
        let problem = |source| Problem::Fraction {
            text: text.to_owned(),
            source,
        };
        self.right(Fraction::parse(text).map_err(problem))
    }

    /// The values of a list; an empty list is an error.
    pub(super) fn list(&self) -> Option<Vec<Field<'a>>> {
        let Some(array) = self.value.get_ref().as_array() else {
            self.wrong_type("a list in [ ]");
            return None;
        };
        if array.is_empty() {
            self.wrong(Problem::Empty);
            return None;
        }
        let item = |value: &'a Spanned<DeValue<'a>>| Field {
            source: self.source,
            key: self.key.clone(),
            at: value.span(),
            value,
        };
        Some(array.iter().map(item).collect())
    }

    /// The texts of a list; the same text twice is an error.
    pub(super) fn texts(&self) -> Option<Vec<String>> {
        let mut found: Vec<String> = Vec::new();
        for item in self.list()? {
            match item.string() {
                Some(value) if found.contains(&value) => item.wrong(Problem::Twice { value }),
                text => found.extend(text),
            }
        }
        Some(found)
    }

    /// A decimal number of at most six decimals.
    pub(super) fn price(&self) -> Option<Millionths> {
        let value = match self.value.get_ref() {
            DeValue::Integer(number) => number.as_str(),
            DeValue::Float(number) => number.as_str(),
            other => other.type_str(),
        };
        let problem = || Problem::Price {
            value: value.to_owned(),
        };
        self.right(Millionths::parse(value).ok_or_else(problem))
    }

    /// The texts of a list, with `*` and `?`.
    pub(super) fn patterns(&self) -> Option<Vec<WildMatch>> {
        let texts = self.texts()?;
        Some(texts.iter().map(|text| WildMatch::new(text)).collect())
    }

    pub(super) fn duration(&self) -> Option<Duration> {
        self.length(false)
    }

    /// As `duration`, in a range.
    pub(super) fn duration_in(
        &self,
        range: RangeInclusive<Duration>,
        problem: fn(String) -> Problem,
    ) -> Option<Duration> {
        let length = self.duration()?;
        let problem = || problem(humantime::format_duration(length).to_string());
        self.right(if range.contains(&length) { Ok(length) } else { Err(problem()) })
    }

    /// As `duration`, with `"off"` allowed: `Some(None)`.
    pub(super) fn duration_or_off(&self) -> Option<Option<Duration>> {
        if self.value.get_ref().as_str() == Some("off") {
            return Some(None);
        }
        self.length(true).map(Some)
    }

    fn length(&self, or_off: bool) -> Option<Duration> {
        let value = match self.value.get_ref() {
            DeValue::Integer(number) => number.to_string(),
            _ => self.string()?,
        };
        let parsed = humantime::parse_duration(&value);
        self.right(parsed.map_err(|_| Problem::Duration { value, or_off }))
    }
}
