//! What follows when a slice cannot be removed: `stuck`, and `[hooks]`.

use super::keys;
use super::read::{Field, Section};
use super::tables::{Hooks, WhenStuck};

pub(super) fn when(item: &Field<'_>) -> Option<WhenStuck> {
    item.one_of(&[("avoid", WhenStuck::Avoid), ("drain", WhenStuck::Drain)])
}

pub(super) fn hooks(section: &Section<'_>) -> Hooks {
    section.only(&[keys::HOOKS]);
    let mut hooks = Hooks {
        before_destroy: section.read("before_destroy", Field::path),
        stuck: section.read("stuck", Field::path),
        ..Hooks::default()
    };
    section.set("time_limit", &mut hooks.time_limit, Field::duration);
    hooks
}
