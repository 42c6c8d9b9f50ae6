//! The scripts that slurm.conf names, and those that they run.

use std::fs;
use std::path::{Path, PathBuf};

use glob::MatchOptions;
use gpufrac_host::trust;

use super::{Script, Settings};

/// The settings for programs that slurmd runs on a node, and gpufrac's program for each.
pub(super) const HOOKS: [(&str, &str); 2] =
    [("Prolog", "gpufrac-prolog"), ("Epilog", "gpufrac-epilog")];
/// The settings for scripts that run on a node with jobs of others.
pub(super) const NODE_SCRIPTS: [&str; 4] = ["Prolog", "Epilog", "TaskProlog", "TaskEpilog"];
/// A longer file is not taken for a script.
const MANY_BYTES: u64 = 1 << 20;

/// The values of `Prolog` or `Epilog`, each with the line of the file, or with the command that prints it.
pub(super) fn hooks<'a>(settings: &'a Settings, key: &'a str) -> Vec<(String, &'a str)> {
    let files = settings.files.iter().flat_map(|files| files.slurm.all(key));
    let mut found: Vec<_> = files
        .map(|(place, value)| (place.to_string(), value))
        .collect();
    let running = settings.running.iter().flat_map(|running| running.all(key));
    for value in running {
        if !found.iter().any(|(_, known)| *known == value) {
            found.push(("scontrol show config".into(), value));
        }
    }
    found
}

/// A relative path is relative to the folder of slurm.conf (24.11; 22.05 accepts none).
pub(super) fn beside_slurm_conf(settings: &Settings, path: &str) -> PathBuf {
    let files = settings.files.as_ref();
    let folder = files.and_then(|files| files.slurm.path.parent());
    folder.unwrap_or(Path::new("/")).join(path)
}

/// The prologs and epilogs that are set, and whether they run gpufrac's programs.
pub(super) fn scripts(settings: &Settings) -> Vec<Script> {
    let mut scripts = Vec::new();
    for (key, program) in HOOKS {
        for (_, path) in hooks(settings, key) {
            let names = glob(&beside_slurm_conf(settings, path));
            let texts: Vec<Option<bool>> =
                names.iter().map(|path| names_it(path, program)).collect();
            let names_ours = match (
                texts.contains(&Some(true)),
                texts.is_empty() || texts.contains(&None),
            ) {
                (true, _) => Some(true),
                (false, true) => None,
                (false, false) => Some(false),
            };
            scripts.push(Script {
                key,
                path: path.to_owned(),
                names_ours,
            });
        }
    }
    scripts
}

fn names_it(path: &Path, program: &str) -> Option<bool> {
    let ours = HOOKS.map(|(_, ours)| ours);
    if let Some(name) = path.file_name().and_then(|name| name.to_str())
        && ours.contains(&name)
    {
        return Some(name == program);
    }
    let code = code_of(path)?;
    Some(code.contains(program) || names_through(&code, program, SCRIPTS_BEHIND))
}

/// The most files of a folder of scripts.
const MOST_FILES: usize = 64;

/// The greatest number of scripts between that of slurm.conf and gpufrac's program.
pub(super) const SCRIPTS_BEHIND: usize = 3;

/// Whether a script that this code names, or one in a folder that it names, names the program.
pub(super) fn names_through(code: &str, program: &str, depth: usize) -> bool {
    let Some(depth) = depth.checked_sub(1) else {
        return false;
    };
    scripts_named(code).into_iter().any(|script| {
        let Some(code) = code_of(&script) else {
            return false;
        };
        let name = script.file_name();
        name.is_some_and(|name| name == program)
            || code.contains(program)
            || names_through(&code, program, depth)
    })
}

/// The absolute paths in a script, as far as they have no variables.
pub(super) fn paths_in(code: &str) -> impl Iterator<Item = &str> {
    let words = code.split(|c: char| c.is_whitespace() || "\"'=;()|&".contains(c));
    words.filter(|word| word.starts_with('/') && !word.contains('$'))
}

/// The files that this code names, and those in folders that it names. What a user can write, such as a file in /tmp,
/// is left out.
pub(super) fn scripts_named(code: &str) -> Vec<PathBuf> {
    let paths = paths_in(code);
    let scripts = paths.flat_map(|word| {
        let path = Path::new(word);
        let of_folder = path.join("*");
        let pattern = if path.is_dir() { &of_folder } else { path };
        let files = matches(pattern, MOST_FILES + 1);
        // A folder of all programs is no folder of hooks.
        if files.len() > MOST_FILES { Vec::new() } else { files }
    });
    scripts
        .filter(|script| trust::resolve(script).is_ok())
        .collect()
}

/// The lines of a script that are run; None for what is no script, or cannot be read.
pub(super) fn code_of(path: &Path) -> Option<String> {
    let text = text_of(path)?;
    // Comments are removed, because a program named in a comment is not run.
    let code = text
        .lines()
        .filter(|line| !line.trim_start().starts_with('#'));
    Some(code.collect::<Vec<_>>().join("\n"))
}

/// The text of a script; None for what is no script, or cannot be read.
pub(super) fn text_of(path: &Path) -> Option<String> {
    let file = fs::metadata(path).ok()?;
    if !file.is_file() || file.len() > MANY_BYTES {
        return None;
    }
    // A program that is not a script could run anything.
    String::from_utf8(fs::read(path).ok()?).ok()
}

/// The files that match a pattern, in order, as glob(3) gives them to Slurm. A path that is no pattern stays as it is.
pub fn glob(pattern: &Path) -> Vec<PathBuf> {
    matches(pattern, usize::MAX)
}

/// As [`glob`], of so many files at most.
fn matches(pattern: &Path, most: usize) -> Vec<PathBuf> {
    const OPTIONS: MatchOptions = MatchOptions {
        case_sensitive: true,
        require_literal_separator: true,
        require_literal_leading_dot: true,
    };
    let mut text = pattern.to_string_lossy().into_owned();
    if !text.contains(['*', '?', '[']) {
        return vec![pattern.to_owned()];
    }
    // To the crate two stars are folders in folders, to glob(3) one star.
    while text.contains("**") {
        text = text.replace("**", "*");
    }
    match glob::glob_with(&text, OPTIONS) {
        Ok(paths) => paths.flatten().take(most).collect(),
        Err(_) => vec![pattern.to_owned()],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_are_those_of_slurm() {
        let folder = tempfile::tempdir().unwrap();
        let names = ["10-a.sh", "20-b.sh", "30-c.conf", ".hidden.sh"];
        for set in ["gpu", "cpu"] {
            fs::create_dir(folder.path().join(set)).unwrap();
            for name in names {
                fs::write(folder.path().join(set).join(name), "").unwrap();
            }
        }
        let found = |pattern: &str| {
            let found = glob(&folder.path().join(pattern));
            let found = found.iter().map(|path| {
                let below = path.strip_prefix(folder.path()).unwrap();
                below.display().to_string()
            });
            found.collect::<Vec<_>>()
        };
        assert_eq!(found("gpu/*.sh"), ["gpu/10-a.sh", "gpu/20-b.sh"]);
        assert_eq!(
            found("*pu/[12]0-?.sh"),
            ["cpu/10-a.sh", "cpu/20-b.sh", "gpu/10-a.sh", "gpu/20-b.sh"]
        );
        assert_eq!(found("gpu/[!1]*.sh"), ["gpu/20-b.sh"]);
        assert_eq!(found("gpu/1**h"), ["gpu/10-a.sh"]);
        assert_eq!(found("**/30*"), ["cpu/30-c.conf", "gpu/30-c.conf"]);
        assert_eq!(found("gpu/40*"), Vec::<String>::new());
        assert_eq!(found("gpu/40-none"), ["gpu/40-none"]);
    }
}
