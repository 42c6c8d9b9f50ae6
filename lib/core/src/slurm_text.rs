//! The lines of slurm.conf and of the files that it includes, in the order in which Slurm reads them.

/// The greatest depth of Include lines that are followed.
const MAX_DEPTH: usize = 4;

/// Calls `each` with every line that is no Include, without its comment. `include` reads a file by the name in the
/// text. None if a file cannot be read, or its name is a pattern, or `each` returns None.
pub(crate) fn each_line(
    text: &str,
    include: &dyn Fn(&str) -> Option<String>,
    each: &mut dyn FnMut(&str) -> Option<()>,
) -> Option<()> {
    walk(text, include, each, MAX_DEPTH)
}

fn walk(
    text: &str,
    include: &dyn Fn(&str) -> Option<String>,
    each: &mut dyn FnMut(&str) -> Option<()>,
    depth: usize,
) -> Option<()> {
    // A line that ends with a backslash goes on in the next one.
    for line in text.replace("\\\n", " ").lines() {
        let line = line.split('#').next().unwrap_or_default().trim();
        let mut words = line.split_whitespace();
        let is_include = |word: &str| word.eq_ignore_ascii_case("include");
        if words.clone().next().is_some_and(is_include) {
            // A name with `%c` or `*` is a pattern, not a file.
            let file = words.nth(1).filter(|file| !file.contains(['%', '*']))?;
            walk(&include(file)?, include, each, depth.checked_sub(1)?)?;
        } else {
            each(line)?;
        }
    }
    Some(())
}
