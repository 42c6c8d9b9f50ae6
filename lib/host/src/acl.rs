//! Access of several users to one file: POSIX access control lists (acl(5)), in the format of the attribute
//! `system.posix_acl_access` (linux/posix_acl_xattr.h).

use std::io;
use std::path::Path;

use crate::syscalls::{attribute_length, set_attribute};
use gpufrac_core::ids::UserId;

const ATTRIBUTE: &str = "system.posix_acl_access";
const VERSION: u32 = 2;
/// The id in entries that are not about a named user.
const NOBODY: u32 = u32::MAX;

const USER_OBJ: u16 = 0x01;
const USER: u16 = 0x02;
const GROUP_OBJ: u16 = 0x04;
const MASK: u16 = 0x10;
const OTHER: u16 = 0x20;

/// Gives `path` an access control list: `owner` for the owner, `permission` for each of `users` (4 read, 2 write, 1
/// execute), nothing for others. The mode of the file changes with it.
pub(crate) fn set(path: &Path, owner: u16, permission: u16, users: &[UserId]) -> io::Result<()> {
    set_attribute(path, ATTRIBUTE, &list(owner, permission, users))
}

/// Whether the file system of `path` keeps access control lists.
pub(crate) fn are_kept(path: &Path) -> bool {
    match attribute_length(path, ATTRIBUTE) {
        Ok(_) => true,
        // The file has none, and could have one.
        Err(error) => error.raw_os_error() == Some(libc::ENODATA),
    }
}

fn list(owner: u16, permission: u16, users: &[UserId]) -> Vec<u8> {
    let mut users = users.to_vec();
    users.sort_unstable();
    users.dedup();
    let named = users.iter().map(|uid| (USER, permission, uid.0));
    let entries = std::iter::once((USER_OBJ, owner, NOBODY))
        .chain(named)
        .chain([
            (GROUP_OBJ, 0, NOBODY),
            (MASK, if users.is_empty() { 0 } else { permission }, NOBODY),
            (OTHER, 0, NOBODY),
        ]);
    let mut bytes = VERSION.to_le_bytes().to_vec();
    for (tag, permission, id) in entries {
        bytes.extend(tag.to_le_bytes());
        bytes.extend(permission.to_le_bytes());
        bytes.extend(id.to_le_bytes());
    }
    bytes
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_list_has_the_kernels_form() {
        let bytes = list(7, 1, &[UserId(1000), UserId(5), UserId(1000)]);
        assert_eq!(bytes.len(), 4 + 8 * 6);
        assert_eq!(bytes[..12], [2, 0, 0, 0, 1, 0, 7, 0, 255, 255, 255, 255]);
        assert_eq!(bytes[12..20], [2, 0, 1, 0, 5, 0, 0, 0]);
    }

    #[test]
    fn the_mode_follows() {
        let keep = tempfile::tempdir().unwrap();
        set(keep.path(), 7, 1, &[UserId(1000)]).unwrap();
        let mode = std::fs::metadata(keep.path()).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o710);
        assert!(are_kept(keep.path()));
        assert!(!are_kept(Path::new("/proc/self")));
        set(keep.path(), 7, 1, &[]).unwrap();
        let mode = std::fs::metadata(keep.path()).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o700);
    }
}
