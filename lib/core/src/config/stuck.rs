//! What follows when a slice cannot be removed: `stuck`, and `[hooks]`.

use super::error::Problem;
use super::options;
use super::read::{Field, Section, Source};
use super::tables::{Hooks, WhenStuck};

pub(super) fn when(source: &mut Source<'_>, item: &Field<'_, '_>) -> Option<WhenStuck> {
    let words = [("avoid", WhenStuck::Avoid), ("drain", WhenStuck::Drain)];
    options::one_of(source, item, &words)
}

pub(super) fn hooks(source: &mut Source<'_>, section: &Section<'_, '_>) -> Hooks {
    section.only(source, &["before_destroy", "stuck", "time_limit"]);
    let mut program = |key: &str| {
        let item = section.get(key)?;
        let value = item.text(source)?.to_owned();
        if value.starts_with('/') {
            return Some(value);
        }
        item.wrong(source, Problem::RelativePath { value });
        None
    };
    let (before_destroy, stuck) = (program("before_destroy"), program("stuck"));
    let limit = section.get("time_limit");
    let limit = limit.and_then(|item| item.duration(source));
    let usual = Hooks::default();
    Hooks {
        before_destroy,
        stuck,
        time_limit: limit.unwrap_or(usual.time_limit),
    }
}
