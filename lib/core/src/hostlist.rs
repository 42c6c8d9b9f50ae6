//! Slurm's hostlist notation: `gn[01-16]`, `r[1-2]n[01-04,07]`, `login,gn3`.

use std::cmp::Ordering;

/// The most nodes of a list. A longer list is a typing mistake and would exhaust the memory.
pub const MAX_HOSTS: usize = 65_536;

/// The most digits of a number in brackets.
const MAX_DIGITS: usize = 9;

/// A list of node names, expanded; each name once, in the order of the text.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Hostlist {
    names: Vec<String>,
    /// Positions in `names`, sorted by name. Every sbatch reads the lists of all pools; a set of copies would double
    /// the time.
    sorted: Vec<u32>,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HostlistError {
    /// A list of nodes has an empty name, as in `gn1,,gn2`.
    /// Cure: Remove the comma.
    #[error("a node name is missing in {text:?}")]
    Empty { text: String },
    /// A list of nodes has `[` without `]`, or the reverse.
    /// Cure: Write `gn[01-16]`.
    #[error("brackets do not match in {text:?}")]
    Brackets { text: String },
    /// The text in brackets is not a range of numbers.
    /// Cure: Write `gn[01-16]` or `gn[01,03]`.
    #[error("{range:?} is not a range such as 01-16, in {text:?}")]
    Range { range: String, text: String },
    /// The character is not allowed in a node name.
    /// Cure: Write the name as in slurm.conf.
    #[error("{character:?} cannot be in a node name, in {text:?}")]
    Character { character: char, text: String },
    /// The list is longer than gpufrac reads.
    /// Cure: Split the pool, or correct a range with too many digits.
    #[error("more than {MAX_HOSTS} nodes in {text:?}")]
    TooMany { text: String },
    /// The node is written twice.
    /// Cure: Remove one of the two.
    #[error("node {name} is written twice in {text:?}")]
    Twice { name: String, text: String },
}

impl Hostlist {
    /// Reads and expands a list.
    pub fn parse(text: &str) -> Result<Hostlist, HostlistError> {
        let list = Hostlist::of(all_names(split_outside_brackets(text)?, text)?);
        if let Some(name) = list.repeated() {
            return Err(HostlistError::Twice {
                name: name.to_owned(),
                text: text.to_owned(),
            });
        }
        Ok(list)
    }

    /// Reads a list as Slurm reads its own files (`_next_tok` of `src/common/hostlist.c`): items may be empty or
    /// repeated, and blanks separate them too.
    pub fn as_slurm(text: &str) -> Result<Hostlist, HostlistError> {
        let items = split_outside_brackets(text)?.into_iter();
        let items = items.flat_map(str::split_whitespace).collect();
        let mut names = all_names(items, text)?;
        let mut seen = std::collections::HashSet::new();
        names.retain(|name| seen.insert(name.clone()));
        Ok(Hostlist::of(names))
    }

    fn of(names: Vec<String>) -> Hostlist {
        let mut sorted: Vec<u32> = (0..).take(names.len()).collect();
        sorted.sort_by_key(|position| &names[*position as usize]);
        Hostlist { names, sorted }
    }

    fn repeated(&self) -> Option<&str> {
        let mut neighbours = self.in_order().zip(self.in_order().skip(1));
        let (name, _) = neighbours.find(|(one, next)| one == next)?;
        Some(name)
    }

    fn in_order(&self) -> impl DoubleEndedIterator<Item = &str> + Clone {
        let name = |position: &u32| self.names[*position as usize].as_str();
        self.sorted.iter().map(name)
    }

    pub fn contains(&self, name: &str) -> bool {
        let of = |position: &u32| self.names[*position as usize].as_str();
        let found = self.sorted.binary_search_by(|at| of(at).cmp(name));
        found.is_ok()
    }

    pub fn names(&self) -> &[String] {
        &self.names
    }

    /// The first name that is in both lists.
    pub fn common<'a>(&'a self, other: &'a Hostlist) -> Option<&'a str> {
        let (mut ours, mut theirs) = (self.in_order(), other.in_order());
        // A quick test for the common case: all names of one list sort before those of the other.
        if self.in_order().next_back()? < theirs.clone().next()?
            || other.in_order().next_back()? < ours.clone().next()?
        {
            return None;
        }
        let (mut one, mut two) = (ours.next()?, theirs.next()?);
        loop {
            match one.cmp(two) {
                Ordering::Equal => return Some(one),
                Ordering::Less => one = ours.next()?,
                Ordering::Greater => two = theirs.next()?,
            }
        }
    }
}

/// The names of all items of a list. `text`: the whole list.
fn all_names(items: Vec<&str>, text: &str) -> Result<Vec<String>, HostlistError> {
    let mut names = Vec::new();
    for item in items {
        names.extend(expand(item, text)?);
        if names.len() > MAX_HOSTS {
            return Err(HostlistError::TooMany {
                text: text.to_owned(),
            });
        }
    }
    Ok(names)
}

fn split_outside_brackets(text: &str) -> Result<Vec<&str>, HostlistError> {
    let brackets = || HostlistError::Brackets {
        text: text.to_owned(),
    };
    let mut items = Vec::new();
    let (mut start, mut inside) = (0, false);
    for (position, character) in text.char_indices() {
        match character {
            '[' if inside => return Err(brackets()),
            ']' if !inside => return Err(brackets()),
            '[' | ']' => inside = !inside,
            ',' if !inside => {
                items.push(text[start..position].trim());
                start = position + 1;
            }
            _ => {}
        }
    }
    if inside {
        return Err(brackets());
    }
    items.push(text[start..].trim());
    Ok(items)
}

/// All names of one item such as `r[1-2]n[01-04]`.
fn expand(item: &str, text: &str) -> Result<Vec<String>, HostlistError> {
    if item.is_empty() {
        return Err(HostlistError::Empty {
            text: text.to_owned(),
        });
    }
    let mut names = vec![String::new()];
    let mut rest = item;
    while !rest.is_empty() {
        let (literal, tail) = rest.split_once('[').unwrap_or((rest, ""));
        let unusual = |c: &char| !(c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.'));
        if let Some(character) = literal.chars().find(unusual) {
            return Err(HostlistError::Character {
                character,
                text: text.to_owned(),
            });
        }
        for name in &mut names {
            name.push_str(literal);
        }
        if literal.len() == rest.len() {
            break;
        }
        let (ranges, after) = tail.split_once(']').unwrap_or((tail, ""));
        let numbers = numbers(ranges, text)?;
        if names.len() * numbers.len() > MAX_HOSTS {
            return Err(HostlistError::TooMany {
                text: text.to_owned(),
            });
        }
        names = names
            .iter()
            .flat_map(|name| {
                numbers
                    .iter()
                    .map(move |number| [name, number.as_str()].concat())
            })
            .collect();
        rest = after;
    }
    Ok(names)
}

/// Expands `01-03,7`; the width of the first number is kept, as Slurm does.
fn numbers(ranges: &str, text: &str) -> Result<Vec<String>, HostlistError> {
    let mut found = Vec::new();
    for range in ranges.split(',') {
        let wrong = || HostlistError::Range {
            range: range.to_owned(),
            text: text.to_owned(),
        };
        let (low, high) = range.split_once('-').unwrap_or((range, range));
        let number = |s: &str| -> Option<u64> {
            let digits =
                !s.is_empty() && s.len() <= MAX_DIGITS && s.bytes().all(|b| b.is_ascii_digit());
            digits.then(|| s.parse().ok()).flatten()
        };
        let (first, last) = number(low).zip(number(high)).ok_or_else(wrong)?;
        if first > last {
            return Err(wrong());
        }
        let count = usize::try_from(last - first).unwrap_or(usize::MAX);
        if count >= MAX_HOSTS - found.len() {
            return Err(HostlistError::TooMany {
                text: text.to_owned(),
            });
        }
        let width = low.len();
        found.extend((first..=last).map(|number| format!("{number:0width$}")));
    }
    Ok(found)
}

/// Width, first and last number of a run; None for a name without a number.
type Numbers = Option<(usize, u64, u64)>;

/// The short form of a list: `gn01,gn02,gn03,login` as `gn[01-03],login`. The order stays the same.
pub fn short(names: &[impl AsRef<str>]) -> String {
    let mut runs: Vec<(&str, Numbers)> = Vec::new();
    for name in names.iter().map(AsRef::as_ref) {
        let digits = name.len() - name.trim_end_matches(|c: char| c.is_ascii_digit()).len();
        let digits = digits.min(MAX_DIGITS);
        let (prefix, number) = name.split_at(name.len() - digits);
        let Ok(number) = number.parse::<u64>() else {
            runs.push((name, None));
            continue;
        };
        match runs.last_mut() {
            Some((known, Some((width, _, last))))
                if *known == prefix && *width == digits && *last + 1 == number =>
            {
                *last = number;
            }
            _ => runs.push((prefix, Some((digits, number, number)))),
        }
    }
    let texts: Vec<String> = runs
        .iter()
        .map(|(prefix, numbers)| match *numbers {
            None => (*prefix).to_owned(),
            Some((width, first, last)) if first == last => format!("{prefix}{first:0width$}"),
            Some((width, first, last)) => format!("{prefix}[{first:0width$}-{last:0width$}]"),
        })
        .collect();
    texts.join(",")
}

/// Adds a name to those with the same value, which stand in the order of the first name of each.
pub fn group<T: PartialEq, N>(groups: &mut Vec<(T, Vec<N>)>, value: T, name: N) {
    match groups.iter_mut().find(|(known, _)| *known == value) {
        Some((_, names)) => names.push(name),
        None => groups.push((value, vec![name])),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn names(text: &str) -> Vec<String> {
        Hostlist::parse(text).unwrap().names().to_vec()
    }

    #[test]
    fn lists_in_slurms_short_form_are_expanded() {
        assert_eq!(names("gn1"), ["gn1"]);
        assert_eq!(names("gn[08-11]"), ["gn08", "gn09", "gn10", "gn11"]);
        assert_eq!(names("gn[8-11]"), ["gn8", "gn9", "gn10", "gn11"]);
        assert_eq!(
            names("a, r[1-2]n[01,03]x ,b-c.d"),
            ["a", "r1n01x", "r1n03x", "r2n01x", "r2n03x", "b-c.d"]
        );
        let list = Hostlist::parse("gn[01-16]").unwrap();
        assert!(list.contains("gn07") && !list.contains("gn7") && !list.contains("gn17"));
        let other = Hostlist::parse("x,gn[16-20]").unwrap();
        assert_eq!(list.common(&other), Some("gn16"));
    }

    #[test]
    fn slurms_own_lists_may_have_repeated_and_empty_items() {
        let names = |text| Hostlist::as_slurm(text).unwrap().names().to_vec();
        assert_eq!(
            names("gn[01-02],gn02,,gn03, gn01 gn[04,04],"),
            ["gn01", "gn02", "gn03", "gn04"]
        );
        assert_eq!(names(""), [""; 0]);
        assert!(Hostlist::as_slurm("gn[1").is_err());
    }

    #[test]
    fn invalid_lists_of_nodes_are_refused() {
        use HostlistError::*;
        let error = |text: &str| Hostlist::parse(text).unwrap_err();
        for text in ["", "a,,b", ",a", "a,"] {
            assert!(matches!(error(text), Empty { .. }), "{text}");
        }
        for text in ["a[1", "a1]", "a[[1]]", "a[1]]"] {
            assert!(matches!(error(text), Brackets { .. }), "{text}");
        }
        for text in [
            "a[]",
            "a[1-]",
            "a[x-y]",
            "a[3-1]",
            "a[1--2]",
            "a[9999999999]",
        ] {
            assert!(matches!(error(text), Range { .. }), "{text}");
        }
        for text in ["a b", "a/b", "gn*", "ä"] {
            assert!(matches!(error(text), Character { .. }), "{text}");
        }
        let again = format!("a[{}]", ["0-65535"; 1000].join(","));
        for text in [
            "a[0-99999999]",
            "a[0-999]b[0-999]c[0-999]",
            "a[0-65535],b",
            "a[0-65535,65536]",
            &again,
        ] {
            assert!(matches!(error(text), TooMany { .. }), "{text}");
        }
        assert!(matches!(error("a[1-3],a2"), Twice { .. }));
    }

    #[test]
    fn runs_of_numbers_become_ranges() {
        assert_eq!(short(&["gn01", "gn02", "gn03"]), "gn[01-03]");
        assert_eq!(short(&["gn9", "gn10", "gn12"]), "gn9,gn10,gn12");
        assert_eq!(short(&["a", "b1", "b2", "c"]), "a,b[1-2],c");
        assert_eq!(short(&["7"]), "7");
        // A number in brackets has at most nine digits.
        let long = [
            "gn26190375123267827",
            "gn26190375123267828",
            "gn26190376000000000",
        ];
        assert_eq!(
            short(&long),
            "gn26190375[123267827-123267828],gn26190376000000000"
        );
        assert_eq!(names(&short(&long)), long);
        assert_eq!(
            short(&["n999999999", "n1000000000"]),
            "n999999999,n1000000000"
        );
        assert_eq!(short(&[""; 0]), "");
    }

    proptest! {
        #[test]
        fn any_text_is_read_or_refused(text in "[a-c0-9\\[\\],-]{0,24}") {
            if let Ok(list) = Hostlist::parse(&text) {
                prop_assert!(list.names().iter().all(|name| list.contains(name)));
                let again = Hostlist::parse(&list.names().join(",")).unwrap();
                prop_assert_eq!(again.names(), list.names());
            }
        }
    }
}
