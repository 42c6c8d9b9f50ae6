//! Readers of gpufrac.toml. Root's programs can always read it; slurmctld and the users' commands only if the modes of
//! the file and its folders allow it.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use gpufrac_core::finding::{Finding, Severity};
use nix::unistd::{Gid, Uid, User, getgrouplist, gethostname};
use rustix::fs::getxattr;

use super::Settings;

/// A file or folder whose mode keeps a reader from gpufrac.toml.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Closed {
    /// gpufrac.toml, or a folder above it.
    pub path: PathBuf,
    /// The permission that everybody needs: `r` of a file, `x` of a folder.
    pub permission: char,
    /// The user of this host's slurmctld, if the mode keeps slurmctld from the file.
    pub slurm_user: Option<String>,
}

impl Closed {
    pub(super) fn finding(&self) -> Finding {
        let path = self.path.display();
        let (severity, what) = match &self.slurm_user {
            // The user of slurmctld may not read the file. Cure: Give the user the right to read the file and its
            // folders.
            Some(user) => (
                Severity::Error,
                format!("slurmctld runs as {user}, which cannot read gpufrac.toml because of this: it refuses every fraction"),
            ),
            // Users may not read the file. Cure: `chmod go+r` on the file, `go+x` on its folders.
            None => (
                Severity::Warning,
                "users' commands cannot read gpufrac.toml: `srun --gres=gpufrac:0.25` inside of a job is refused"
                    .to_owned(),
            ),
        };
        Finding {
            severity,
            place: Some(path.to_string()),
            what,
            fix: format!(
                "`chmod o+{} {path}`: root alone writes it, all read it",
                self.permission
            ),
        }
    }
}

/// A user by name or by number, because `SlurmUser=` accepts both. scontrol prints the number behind the name:
/// `slurm(64030)`.
pub(super) fn user(told: &str) -> Option<User> {
    let name = told.split('(').next()?;
    let by_number = || User::from_uid(Uid::from_raw(name.parse().ok()?)).ok()?;
    let by_name = User::from_name(name).ok().flatten();
    by_name.or_else(by_number)
}

/// The class of a reader's permission bits: owner, group or others.
struct Reader {
    uid: Option<Uid>,
    groups: Vec<Gid>,
}

impl Reader {
    /// A reader who is neither the owner nor in the group.
    const OTHER: Reader = Reader {
        uid: None,
        groups: Vec::new(),
    };

    /// A user that this host does not know is in no group.
    fn of(name: &str) -> Reader {
        let Some(user) = user(name) else {
            return Reader::OTHER;
        };
        let groups = std::ffi::CString::new(user.name)
            .ok()
            .and_then(|name| getgrouplist(&name, user.gid).ok());
        Reader {
            uid: Some(user.uid),
            groups: groups.unwrap_or_else(|| vec![user.gid]),
        }
    }

    /// The first of these files and folders whose mode keeps the reader out.
    fn stopped_at<'a>(
        &self,
        places: &'a [(PathBuf, u32, char)],
    ) -> Option<&'a (PathBuf, u32, char)> {
        places.iter().find(|(path, bit, _)| {
            // Files that cannot be read here, or that have an access list, are not judged.
            let Ok(of) = fs::metadata(path) else {
                return false;
            };
            if has_list(path) {
                return false;
            }
            let shift = match self.uid.map(Uid::as_raw) == Some(of.uid()) {
                true => 6,
                false if self.groups.contains(&Gid::from_raw(of.gid())) => 3,
                false => 0,
            };
            of.mode() >> shift & bit == 0
        })
    }
}

fn has_list(path: &Path) -> bool {
    let mut none = [0_u8; 0];
    getxattr(path, "system.posix_acl_access", &mut none).is_ok_and(|length| length > 0)
}

/// A file with the folders above it, each with the permission that its reader needs. None if it cannot be found.
fn on_the_way(path: &Path) -> Option<Vec<(PathBuf, u32, char)>> {
    let path = fs::canonicalize(path).ok()?;
    let folders = path.ancestors().skip(1);
    let mut places: Vec<_> = folders
        .map(|folder| (folder.to_owned(), 0o1, 'x'))
        .collect();
    places.reverse();
    places.push((path, 0o4, 'r'));
    Some(places)
}

/// The user of this host's slurmctld, if that is not root.
fn user_of_slurmctld(settings: &Settings) -> Option<&str> {
    let user = settings.value("SlurmUser").unwrap_or("root");
    let user = user.split('(').next();
    user.filter(|user| *user != "root" && controls(settings))
}

/// The file or folder whose mode keeps slurmctld (if it runs on this host) or users from gpufrac.toml.
pub(super) fn closed(config: &Path, settings: &Settings) -> Option<Closed> {
    let places = on_the_way(config)?;
    let for_others = Reader::OTHER.stopped_at(&places)?;
    let user = user_of_slurmctld(settings);
    let stopped = user.and_then(|user| Some((user, Reader::of(user).stopped_at(&places)?)));
    let (path, _, permission) = stopped.map_or(for_others, |(_, place)| place);
    Some(Closed {
        path: path.clone(),
        permission: *permission,
        slurm_user: stopped.map(|(user, _)| user.to_owned()),
    })
}

/// The file or folder whose mode keeps users from a file, and the missing permission.
pub(super) fn closed_to_users(path: &Path) -> Option<(PathBuf, char)> {
    let places = on_the_way(path)?;
    let (path, _, permission) = Reader::OTHER.stopped_at(&places)?;
    Some((path.clone(), *permission))
}

/// As [`closed_to_users`], for the slurmctld of this host.
pub(super) fn closed_to_slurmctld(path: &Path, settings: &Settings) -> Option<(PathBuf, char)> {
    let reader = Reader::of(user_of_slurmctld(settings)?);
    let places = on_the_way(path)?;
    let (path, _, permission) = reader.stopped_at(&places)?;
    Some((path.clone(), *permission))
}

/// Whether this host is one of slurmctld's hosts.
pub(super) fn controls(settings: &Settings) -> bool {
    let short = |name: &str| name.split(['(', '.']).next().unwrap_or_default().to_owned();
    let Ok(own) = gethostname() else {
        return false;
    };
    let own = short(&own.to_string_lossy());
    let files = settings
        .files
        .iter()
        .flat_map(|files| files.slurm.all("SlurmctldHost"));
    let running = settings
        .running
        .iter()
        .flat_map(|running| running.all("SlurmctldHost"));
    let mut hosts = files.map(|(_, value)| value).chain(running);
    hosts.any(|host| short(host) == own)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;
    use gpufrac_slurm_conf::Files;

    fn settings(slurm_conf: &str) -> Settings {
        let text = slurm_conf.replace("@HERE@", &gethostname().unwrap().to_string_lossy());
        let read = |path: &Path| {
            if path.ends_with("slurm.conf") {
                Ok(text.clone())
            } else {
                Err(std::io::ErrorKind::NotFound.into())
            }
        };
        Settings {
            files: Files::read(Path::new("/etc/slurm/slurm.conf"), &read, &|_| Vec::new()).ok(),
            ..Settings::default()
        }
    }

    /// Promise (admins): `gpufrac check` says who cannot read gpufrac.toml; users are told what is wrong with it now.
    /// With `users_who_cannot_read_the_configuration_are_named`.
    #[test]
    fn modes_say_who_is_kept_out() {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().canonicalize().unwrap().join("gpufrac");
        fs::create_dir(&folder).unwrap();
        let config = folder.join("gpufrac.toml");
        fs::write(&config, "").unwrap();
        let nobody = "SlurmUser=nobody\nSlurmctldHost=@HERE@(127.0.0.1)\n";
        let look = |modes: [u32; 3], slurm_conf: &str| {
            for (path, mode) in [dir.path(), &folder, &config].into_iter().zip(modes) {
                fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
            }
            closed(&config, &settings(slurm_conf))
        };
        let kept = |path: &Path, permission, user: Option<&str>| {
            Some(Closed {
                path: path.to_owned(),
                permission,
                slurm_user: user.map(str::to_owned),
            })
        };
        assert_eq!(look([0o755, 0o755, 0o644], nobody), None);
        // A folder with `x` and without `r` is enough.
        assert_eq!(look([0o755, 0o711, 0o604], nobody), None);
        let file = [0o755, 0o755, 0o640];
        assert_eq!(look(file, nobody), kept(&config, 'r', Some("nobody")));
        assert_eq!(
            look(file, "SlurmUser=root\nSlurmctldHost=@HERE@\n"),
            kept(&config, 'r', None)
        );
        assert_eq!(
            look(file, "SlurmctldHost=@HERE@\n"),
            kept(&config, 'r', None)
        );
        assert_eq!(
            look(file, "SlurmUser=nobody\nSlurmctldHost=elsewhere\n"),
            kept(&config, 'r', None)
        );
        assert_eq!(
            look([0o755, 0o700, 0o600], nobody),
            kept(&folder, 'x', Some("nobody"))
        );
        // The group may read the file, and so may a user of the group.
        if let Ok(Some(user)) = User::from_name("nobody")
            && nix::unistd::geteuid().is_root()
        {
            std::os::unix::fs::chown(&config, None, Some(user.gid.as_raw())).unwrap();
            assert_eq!(look(file, nobody), kept(&config, 'r', None));
        }
    }
}
