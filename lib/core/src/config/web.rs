//! `[web]`: the pages of the cluster.

use super::error::Problem;
use super::read::{Section, Source};
use super::tables::Web;

pub(super) fn read(source: &mut Source<'_>, section: &Section<'_, '_>) -> Option<Web> {
    section.only(source, &["host", "folder"]);
    let host = section.need(source, "host", "host = \"gn01\"");
    let host = host.and_then(|item| item.text(source).map(str::to_owned));
    let folder = section.need(source, "folder", "folder = \"/var/www/gpufrac\"");
    let folder = folder.and_then(|item| {
        let value = item.text(source)?.to_owned();
        if value.starts_with('/') {
            return Some(value);
        }
        item.wrong(source, Problem::RelativePath { value });
        None
    });
    Some(Web {
        host: host?,
        folder: folder?,
    })
}
