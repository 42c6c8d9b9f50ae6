//! The namespaces that Slurm gives to jobs: job_container.conf, or namespace.yaml since 26.05.

use std::path::Path;

use gpufrac_core::config::Config;
use gpufrac_core::finding::{Finding, Severity};
use gpufrac_slurm_conf::LinePosition;

use crate::Settings;

/// The lines of a text without comments, each with its place.
fn lines<'a>(path: &'a Path, text: &'a str) -> impl Iterator<Item = (LinePosition, &'a str)> {
    text.lines().zip(1..).map(|(text, line)| {
        let place = LinePosition {
            file: path.to_owned(),
            line,
        };
        (place, text.split('#').next().unwrap_or_default())
    })
}

pub(super) fn users(settings: &Settings, found: &mut Vec<Finding>) {
    let files = settings.files.iter().flat_map(|files| &files.namespaces);
    let mut lines = files.flat_map(|(path, text)| lines(path, text));
    if let Some((place, _)) = lines.find(|(_, text)| text.contains("CLONE_NEWUSER")) {
        // `job_container` or `oci.conf` uses user namespaces. Cure: Remove the setting on nodes with pools.
        found.push(Finding {
            severity: Severity::Warning,
            place: Some(place.to_string()),
            what: "CLONE_NEWUSER: in a user namespace there is no right to fence a task, and one that cannot be \
                   fenced does not start (not tried)"
                .into(),
            fix: "leave it out where there are pools".into(),
        });
    }
}

/// A `/dev/shm` for each job, which is the default of `Dirs` (job_container.conf(5), namespace.yaml(5)).
pub(super) fn shared_memory(settings: &Settings, config: &Config, found: &mut Vec<Finding>) {
    let keys = ["NamespaceType", "JobContainerType"];
    let plugin = keys.iter().find_map(|key| settings.value(key));
    let has_own = |plugin: &str| plugin.ends_with("/tmpfs") || plugin.ends_with("/linux");
    let has_mps = config.pools.iter().any(|pool| pool.mechanism.uses_mps());
    if !has_mps || !plugin.is_some_and(has_own) {
        return;
    }
    let files = settings.files.iter().flat_map(|files| &files.namespaces);
    for (path, text) in files {
        let key = |line: &str, key: &str| line.to_ascii_lowercase().contains(key);
        let folders = || lines(path, text).filter(|(_, line)| key(line, "dirs"));
        let names_it = lines(path, text).any(|(_, line)| line.contains("/dev/shm"));
        let is_left_out = folders().next().is_some() && !names_it;
        let mut bases = lines(path, text)
            .filter(|(_, line)| key(line, "basepath="))
            .peekable();
        let is_off = bases.peek().is_some() && bases.all(|(_, line)| key(line, "basepath=none"));
        if is_left_out || is_off {
            continue;
        }
        let place = folders().next().map(|(place, _)| place.to_string());
        // `Dirs` has `/dev/shm`, as it has by default. Cure: Write `Dirs=/tmp` for the nodes of pools with MPS.
        found.push(Finding {
            severity: Severity::Warning,
            place: Some(place.unwrap_or_else(|| path.display().to_string())),
            what: "each job has a /dev/shm of its own, and programs under MPS need that of their daemon: with `mps` and \
                   `mig+mps` CUDA may fail or crash (not tried)"
                .into(),
            fix: "write `Dirs=/tmp`, with your other folders, for the nodes of these pools".into(),
        });
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;
    use crate::Files;

    /// The places of findings about shared memory.
    fn found(mechanism: &str, slurm: &str, name: &str, text: &str) -> Vec<String> {
        let read = |path: &Path| match path.file_name().and_then(|name| name.to_str()) {
            Some("slurm.conf") => Ok(format!("ClusterName=c\n{slurm}\n")),
            Some(file) if file == name => Ok(text.to_owned()),
            _ => Err(io::ErrorKind::NotFound.into()),
        };
        let files = Files::read(Path::new("/etc/slurm.conf"), &read, &|_| Vec::new()).unwrap();
        let settings = Settings {
            files: Some(files),
            ..Settings::default()
        };
        let tenancy = if mechanism == "mps" { "tenancy = \"shared\"\n" } else { "" };
        let pool = format!(
            "version = 1\n[pool.p]\nmechanism = \"{mechanism}\"\n{tenancy}gpu = \"H100-80\"\npartitions = [\"gpu\"]\nnodes = \"gn1\"\n"
        );
        let config = Config::parse(&pool, "gpufrac.toml").unwrap();
        let mut found = Vec::new();
        shared_memory(&settings, &config, &mut found);
        found
            .into_iter()
            .filter_map(|finding| finding.place)
            .collect()
    }

    /// Promise (admins): `gpufrac check` names a `/dev/shm` of each job's own where pools use MPS.
    #[test]
    fn shared_memory_of_each_job_is_named_for_mps_alone() {
        let old = "job_container.conf";
        let tmpfs =
            |mechanism, text| found(mechanism, "JobContainerType=job_container/tmpfs", old, text);
        assert_eq!(
            tmpfs("mps", "AutoBasePath=true\nBasePath=/nvme\n"),
            ["/etc/job_container.conf"]
        );
        assert_eq!(
            tmpfs("mps", "BasePath=/nvme\nDirs=/tmp,/dev/shm\n"),
            ["/etc/job_container.conf:2"]
        );
        assert_eq!(
            tmpfs("mps", "BasePath=/nvme Dirs=/tmp,/var/tmp # no /dev/shm\n"),
            [""; 0]
        );
        assert_eq!(tmpfs("mps", "BasePath=none\n"), [""; 0]);
        assert_eq!(tmpfs("timeslice", "BasePath=/nvme\n"), [""; 0]);
        assert_eq!(
            found(
                "mps",
                "JobContainerType=job_container/none",
                old,
                "BasePath=/nvme\n"
            ),
            [""; 0]
        );
        let linux = |text| {
            found(
                "mps",
                "NamespaceType=namespace/linux",
                "namespace.yaml",
                text,
            )
        };
        assert_eq!(
            linux("defaults:\n  base_path: /nvme\n"),
            ["/etc/namespace.yaml"]
        );
        assert_eq!(
            linux("defaults:\n  base_path: /nvme\n  dirs: /tmp\n"),
            [""; 0]
        );
    }
}
