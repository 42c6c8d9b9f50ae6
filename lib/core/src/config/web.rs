//! `[web]`: the pages of the cluster.

use super::keys;
use super::read::{Field, Section};
use super::tables::Web;

pub(super) fn read(section: &Section<'_>) -> Option<Web> {
    section.only(&[keys::WEB]);
    let host = section.need("host", "host = \"gn01\"");
    let host = host.as_ref().and_then(Field::string);
    let folder = section.need("folder", "folder = \"/var/www/gpufrac\"");
    let folder = folder.as_ref().and_then(Field::path);
    Some(Web {
        host: host?,
        folder: folder?,
    })
}
