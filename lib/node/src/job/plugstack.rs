//! Whether slurmstepd loads the SPANK plugin. Without the plugin a job runs with no slice in its environment and no
//! fence, and without any message. The prolog is the last program that can detect this.
//!
//! plugstack.conf is read in Slurm's way (`_spank_stack_create` of `src/common/spank.c`): lines of `required` or
//! `optional` with a plugin, and of `include` with a pattern.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use slurm_sys::client::SpankFiles;

/// The plugin's file.
const PLUGIN: &str = "spank_gpufrac.so";
/// The greatest depth of include lines.
const DEPTH: usize = 8;

/// The reasons why slurmstepd does not load the plugin.
#[derive(Debug, thiserror::Error)]
pub enum NoSpank {
    /// plugstack.conf cannot be read.
    /// Cure: Correct the path and the owner of the file.
    #[error("reading `{}` failed: {source}; {}", path.display(), add_line(path))]
    Unread { path: PathBuf, source: io::Error },
    /// plugstack.conf has no line for the plugin.
    /// Cure: Add the line of [install](../install.md).
    #[error("`{}` does not name {PLUGIN}; {}", path.display(), add_line(path))]
    Unnamed { path: PathBuf },
    /// The package of the plugins is missing.
    /// Cure: Install `gpufrac-plugins-SERIES` on the node.
    #[error("`{}` names `{plugin}`, which does not exist; install it on this node", path.display())]
    Missing {
        path: PathBuf,
        /// The name in the line.
        plugin: String,
    },
}

fn add_line(path: &Path) -> String {
    format!("add the line `required {PLUGIN}` to {}", path.display())
}

/// Looks for the plugin in the same way as slurmstepd. Errors: the plugin is not found.
pub fn check(files: &SpankFiles) -> Result<(), NoSpank> {
    let path = &files.plugstack;
    let mut plugins = Vec::new();
    let all_read = read(path, 0, &mut plugins).map_err(|source| NoSpank::Unread {
        path: path.clone(),
        source,
    })?;
    let is_there = |plugin: &String| {
        if Path::new(plugin).is_absolute() {
            Path::new(plugin).exists()
        } else {
            files
                .folders
                .iter()
                .any(|folder| folder.join(plugin).exists())
        }
    };
    match plugins.iter().find(|plugin| is_there(plugin)) {
        Some(_) => Ok(()),
        // A file that was not found may name it.
        None if !all_read => Ok(()),
        None => Err(match plugins.pop() {
            Some(plugin) => NoSpank::Missing {
                path: path.clone(),
                plugin,
            },
            None => NoSpank::Unnamed { path: path.clone() },
        }),
    }
}

/// Adds the lines that name the plugin. Returns whether all patterns of includes were understood.
fn read(path: &Path, depth: usize, plugins: &mut Vec<String>) -> io::Result<bool> {
    let text = fs::read(path)?;
    let text = String::from_utf8_lossy(&text);
    let mut all_read = true;
    for line in text.lines() {
        let line = line.split_once('#').map_or(line, |(line, _)| line);
        let mut words = line.split_whitespace();
        match (words.next(), words.next()) {
            (Some("include"), Some(pattern)) => {
                let pattern = path.parent().unwrap_or(Path::new("/")).join(pattern);
                match matching(&pattern).filter(|_| depth < DEPTH) {
                    // SPANK ignores a file that it cannot read.
                    Some(files) => {
                        for file in files {
                            all_read &= read(&file, depth + 1, plugins).unwrap_or(true);
                        }
                    }
                    None => all_read = false,
                }
            }
            (Some("required" | "optional"), Some(plugin))
                if plugin.rsplit('/').next() == Some(PLUGIN) =>
            {
                plugins.push(plugin.to_owned());
            }
            _ => {}
        }
    }
    Ok(all_read)
}

/// The files that match a pattern with `*` and `?` in its last part; None for other patterns.
fn matching(pattern: &Path) -> Option<Vec<PathBuf>> {
    let name = pattern.file_name()?.to_str()?;
    let folder = pattern.parent()?;
    let has = |text: &str, marks: &[char]| text.contains(marks);
    if has(name, &['[', '{', '\\']) || has(&folder.to_string_lossy(), &['*', '?', '[', '{', '\\']) {
        return None;
    }
    if !has(name, &['*', '?']) {
        return Some(vec![pattern.to_owned()]);
    }
    let Ok(entries) = fs::read_dir(folder) else {
        return Some(Vec::new());
    };
    let fits = |path: &PathBuf| {
        let found = path.file_name().unwrap_or_default().to_string_lossy();
        !found.starts_with('.') && fits(found.as_bytes(), name.as_bytes())
    };
    Some(
        entries
            .flatten()
            .map(|entry| entry.path())
            .filter(fits)
            .collect(),
    )
}

/// Whether a name matches a pattern.
fn fits(name: &[u8], pattern: &[u8]) -> bool {
    match (pattern.split_first(), name.split_first()) {
        (None, None) => true,
        (Some((b'*', rest)), Some((_, behind))) => fits(name, rest) || fits(behind, pattern),
        (Some((b'*', rest)), None) => fits(name, rest),
        (Some((b'?', rest)), Some((_, behind))) => fits(behind, rest),
        (Some((mark, rest)), Some((byte, behind))) if mark == byte => fits(behind, rest),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct SlurmFolder(tempfile::TempDir);

    impl SlurmFolder {
        fn new() -> SlurmFolder {
            let place = tempfile::tempdir().unwrap();
            for folder in ["etc/plugstack.conf.d", "lib", "more"] {
                fs::create_dir_all(place.path().join(folder)).unwrap();
            }
            SlurmFolder(place)
        }

        fn write(&self, name: &str, text: &str) -> &SlurmFolder {
            let text = text.replace("@", self.0.path().to_str().unwrap());
            fs::write(self.0.path().join(name), text).unwrap();
            self
        }

        fn check(&self) -> Result<(), String> {
            let at = |name: &str| self.0.path().join(name);
            let files = SpankFiles {
                plugstack: at("etc/plugstack.conf"),
                folders: vec![at("lib"), at("more")],
            };
            check(&files).map_err(|error| {
                error
                    .to_string()
                    .replace(self.0.path().to_str().unwrap(), "")
            })
        }
    }

    #[test]
    fn a_plugin_that_slurmstepd_loads_is_found() {
        for (file, line) in [
            ("etc/plugstack.conf", "required spank_gpufrac.so"),
            (
                "etc/plugstack.conf",
                "\toptional\tspank_gpufrac.so config=/x # ours",
            ),
            ("etc/plugstack.conf", "required @/more/spank_gpufrac.so"),
            (
                "etc/plugstack.conf.d/20-gpu.conf",
                "required spank_gpufrac.so",
            ),
        ] {
            let place = SlurmFolder::new();
            place.write(
                "etc/plugstack.conf",
                "# of the site\noptional lua.so\ninclude plugstack.conf.d/*.conf\n",
            );
            place.write("more/spank_gpufrac.so", "");
            assert!(place.check().is_err());
            let before = fs::read_to_string(place.0.path().join(file)).unwrap_or_default();
            place.write(file, &format!("{before}{line}\n"));
            assert_eq!(place.check(), Ok(()), "{line}");
        }
    }

    #[test]
    fn a_plugin_that_is_not_loaded_is_named() {
        let place = SlurmFolder::new();
        let said = place.check().unwrap_err();
        assert!(
            said.starts_with("reading `/etc/plugstack.conf` failed: No such file"),
            "{said}"
        );
        place.write("lib/spank_gpufrac.so", "");
        for text in [
            "",
            "# required spank_gpufrac.so",
            "required other_spank_gpufrac.so",
            "required spank_gpufrac.so.old",
            "spank_gpufrac.so required",
            "include plugstack.conf.d/*",
            "include etc/nothing.conf",
        ] {
            let said = place.write("etc/plugstack.conf", text).check().unwrap_err();
            assert_eq!(
                said,
                "`/etc/plugstack.conf` does not name spank_gpufrac.so; add the line `required spank_gpufrac.so` to /etc/plugstack.conf",
                "{text}"
            );
        }
        let said = place
            .write("etc/plugstack.conf", "optional @/lib64/spank_gpufrac.so")
            .check()
            .unwrap_err();
        assert_eq!(
            said,
            "`/etc/plugstack.conf` names `/lib64/spank_gpufrac.so`, which does not exist; install it on this node"
        );
    }

    #[test]
    fn a_pattern_that_is_not_understood_refuses_nobody() {
        let place = SlurmFolder::new();
        for text in ["include plugstack.conf.d/[ab].conf", "include */x.conf"] {
            assert_eq!(
                place.write("etc/plugstack.conf", text).check(),
                Ok(()),
                "{text}"
            );
        }
        // A file that includes itself ends the recursion at the limit.
        place.write("etc/plugstack.conf", "include plugstack.conf");
        assert_eq!(place.check(), Ok(()));
    }

    #[test]
    fn patterns_are_those_of_a_shell() {
        for (name, pattern, expected) in [
            ("a.conf", "*.conf", true),
            ("a.conf", "*", true),
            ("a.conf", "?.conf", true),
            ("a.conf", "a*f", true),
            ("a.conf", "a.conf*", true),
            ("a.conf", "??.conf", false),
            ("a.conf.rpmsave", "*.conf", false),
            ("a.conf", "b*", false),
        ] {
            assert_eq!(
                fits(name.as_bytes(), pattern.as_bytes()),
                expected,
                "{name} {pattern}"
            );
        }
    }
}
