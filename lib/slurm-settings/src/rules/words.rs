//! Values that are words or lists of words.

pub(in super::super) fn is(value: &str, name: &str) -> bool {
    value.trim().eq_ignore_ascii_case(name)
}

pub(super) fn words(value: Option<&str>) -> Vec<&str> {
    let words = value.into_iter().flat_map(|value| value.split(','));
    words
        .map(str::trim)
        .filter(|word| !word.is_empty())
        .collect()
}

pub(super) fn has(words: &[&str], name: &str) -> bool {
    words.iter().any(|word| is(word, name))
}

/// Whether a plugin or a GRES is in the list: Slurm distinguishes upper and lower case in their names.
pub(super) fn names(words: &[&str], name: &str) -> bool {
    words.contains(&name)
}

/// The list without other spellings of a name.
pub(super) fn without_spellings<'a>(words: &[&'a str], name: &str) -> Vec<&'a str> {
    let kept = words
        .iter()
        .filter(|word| **word == name || !is(word, name));
    kept.copied().collect()
}

/// The list without the unwanted words, with the missing words added at the end.
pub(super) fn list(words: &[&str], missing: &[&str], unwanted: &[&str]) -> String {
    let kept = words.iter().filter(|word| !has(unwanted, word)).copied();
    let new = missing.iter().filter(|name| !words.contains(name)).copied();
    kept.chain(new).collect::<Vec<_>>().join(",")
}

/// The names of plugins in a value. Slurm accepts the names of some kinds with the kind before them, too, only in
/// lower case.
pub(super) fn plugins<'a>(value: Option<&'a str>, kind: &str) -> Vec<&'a str> {
    let mut words = words(value);
    for word in &mut words {
        if let Some((_, name)) = word.split_once('/').filter(|(before, _)| *before == kind) {
            *word = name;
        }
    }
    words
}
