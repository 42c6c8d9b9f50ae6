//! Changes of files, shown as a diff or written.

use std::path::PathBuf;
use std::time::SystemTime;

use diffy::DiffOptions;
use gpufrac_host::replace::replace;
use gpufrac_slurm_settings::propose::Change;

use crate::error::CliError;

/// The changes in the format of `diff -u`, which `patch -p0` reads.
pub fn text(changes: &[Change]) -> String {
    let one = |change: &Change| {
        let path = change.path.display().to_string();
        let old = match change.before {
            Some(_) => path.clone(),
            None => "/dev/null".to_owned(),
        };
        between(
            (&old, change.before.as_deref().unwrap_or_default()),
            (&path, &change.after),
        )
    };
    changes.iter().map(one).collect()
}

/// The diff between two texts, each with its name.
pub fn between(first: (&str, &str), second: (&str, &str)) -> String {
    let mut options = DiffOptions::new();
    options.set_original_filename(first.0.to_owned());
    options.set_modified_filename(second.0.to_owned());
    options.create_patch(first.1, second.1).to_string()
}

/// Writes the changes, and prints the paths of the copies.
pub fn write(changes: &[Change]) -> Result<(), CliError> {
    let time: String = humantime::format_rfc3339_seconds(SystemTime::now())
        .to_string()
        .chars()
        .filter(char::is_ascii_alphanumeric)
        .collect();
    for change in changes {
        let copy = format!("before-gpufrac-{time}");
        let before = change.before.as_deref();
        let kept: Option<PathBuf> = replace(&change.path, before, &change.after, &copy)?;
        let path = change.path.display();
        match kept {
            Some(kept) => println!("wrote {path}; as it was: {}", kept.display()),
            None => println!("wrote {path}, which is new"),
        }
    }
    Ok(())
}
