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

/// The list without the unwanted words, with the missing words added at the end.
pub(super) fn list(words: &[&str], missing: &[&str], unwanted: &[&str]) -> String {
    let kept = words.iter().filter(|word| !has(unwanted, word)).copied();
    let new = missing.iter().filter(|name| !has(words, name)).copied();
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
