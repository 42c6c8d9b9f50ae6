//! Scripts of sites beside gpufrac's prolog and epilog: the order in which Slurm runs them, and the script of
//! contrib/neighbours for jobstats.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use gpufrac_lab::{JobId, Lab, LabError};

use crate::{HOLD, go};

const QUARTER: &str = "--gres=gpufrac:0.25";
/// The scripts of two folders.
const SCRIPTS: [(&str, &[&str]); 2] = [
    ("prolog.d", &["10-one", "50-gpufrac", "90-two"]),
    ("site.d", &["20-three", "80-four"]),
];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn script(path: &Path, text: &str) {
    fs::create_dir_all(path.parent().expect("a folder")).expect("root may");
    fs::write(path, text).expect("root may");
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).expect("root may");
}

/// The text of the lab's own prolog or epilog, which ends with `exec gpufrac-...`.
fn own(lab: &Lab, kind: &str) -> String {
    fs::read_to_string(lab.folder().bin().join(kind)).expect("a file of the lab")
}

/// Replaces the lab's line of a setting, and makes slurmd read it.
fn set(lab: &Lab, key: &str, values: &[&str]) -> Result<(), LabError> {
    let path = lab.folder().etc().join("slurm.conf");
    let start = format!("{key}=");
    let text = fs::read_to_string(&path).expect("a file of the lab");
    let kept = text.lines().filter(|line| !line.starts_with(&start));
    let lines = values.iter().map(|value| format!("{start}{value}"));
    let lines: Vec<String> = kept.map(str::to_owned).chain(lines).collect();
    // slurmd may read the file at this moment.
    let next = path.with_extension("next");
    fs::write(&next, lines.join("\n") + "\n").expect("root may");
    fs::rename(&next, &path).expect("root may");
    // In another second than slurmctld's last read.
    std::thread::sleep(Duration::from_millis(1100));
    lab.reconfigure()
}

/// The scripts that the prologs, or epilogs, of a job ran, in order.
fn ran(lab: &Lab, kind: &str) -> Vec<String> {
    let log = lab.folder().log().join(format!("order-{kind}"));
    let text = fs::read_to_string(&log).unwrap_or_default();
    // The next job starts again with an empty file.
    let _ = fs::remove_file(log);
    text.lines().map(str::to_owned).collect()
}

/// Names in the form of the page's table.
fn listed(names: &[impl AsRef<str>]) -> String {
    let names = names.iter().map(|name| format!("`{}`", name.as_ref()));
    names.collect::<Vec<_>>().join(", ")
}

/// Whether the page has this order in the row of this case.
fn page_says(case: &str, order: &[String]) {
    let page = fs::read_to_string(root().join("docs/admin/install.md")).expect("the page");
    let row = page
        .lines()
        .find(|line| line.starts_with(&format!("| {case} |")));
    let row = row.unwrap_or_else(|| panic!("no row of {case}"));
    let said = row.trim_end_matches(" |").rsplit("| ").next();
    assert_eq!(said, Some(listed(order).as_str()), "{case}");
}

/// Promise (admins): scripts of a folder, and several lines of Prolog and Epilog, run in the order of
/// docs/admin/install.md.
#[test]
fn scripts_run_in_the_order_of_the_page() -> Result<(), LabError> {
    let lab = Lab::builder().gpus("H100-80", 1).start()?;
    let (user, node) = (&lab.users()[0], &lab.nodes()[0]);
    let (bin, log) = (lab.folder().bin(), lab.folder().log());
    let (bin, log) = (bin.display(), log.display());
    for kind in ["prolog", "epilog"] {
        for (folder, names) in SCRIPTS {
            for name in names {
                let path = format!("{bin}/{kind}-{folder}/{name}");
                let echo = format!("echo {name} >>{log}/order-{kind}");
                let text = if name.ends_with("gpufrac") {
                    own(&lab, kind).replace("exec ", &format!("{echo}\nexec "))
                } else {
                    format!("#!/bin/sh\n{echo}\n")
                };
                script(Path::new(&path), &text);
            }
        }
    }
    let pattern = |kind: &str, folder: &str| format!("{bin}/{kind}-{folder}/*");
    let both = [("Prolog", "prolog"), ("Epilog", "epilog")];
    let run = || -> Result<[Vec<String>; 2], LabError> {
        let job = lab.sbatch(user, &[QUARTER, "--wrap=echo $GPUFRAC_FRACTION"])?;
        assert_eq!(lab.wait_for_end(job)?.state(), "COMPLETED");
        assert_eq!(lab.output(job)?, "0.25\n");
        lab.expect_nothing_left()?;
        Ok([ran(&lab, "prolog"), ran(&lab, "epilog")])
    };

    // A folder.
    for (key, kind) in both {
        set(&lab, key, &[&pattern(kind, "prolog.d")])?;
    }
    let [folder, epilog] = run()?;
    assert_eq!(folder, epilog);
    page_says("`prolog.d/*`", &folder);
    let said = lab.command("gpufrac").args(["check"]);
    let said = said.env("SLURMD_NODENAME", node).run()?.success()?;
    assert_eq!(said.stderr, "");

    // Several lines; before 24.05 the last one counts.
    for (key, kind) in both {
        let one = format!("{bin}/{kind}-site.d/20-three");
        let ours = format!("{bin}/{kind}-prolog.d/50-gpufrac");
        set(&lab, key, &[&pattern(kind, "site.d"), &one, &ours])?;
    }
    let [lines, epilog] = run()?;
    assert_eq!(lines, epilog);
    if lab.slurm().since(24, 5) {
        page_says(
            "`site.d/*`, then `site.d/20-three`, then `prolog.d/50-gpufrac`",
            &lines,
        )
    } else {
        assert_eq!(lines, ["50-gpufrac"])
    }

    // The first failure ends the row.
    set(&lab, "Prolog", &[&pattern("prolog", "prolog.d")])?;
    let first = &folder[0];
    let path = format!("{bin}/prolog-prolog.d/{first}");
    let text = format!("#!/bin/sh\necho {first} >>{log}/order-prolog\nexit 1\n");
    script(Path::new(&path), &text);
    let job = lab.sbatch(user, &[QUARTER, "--wrap=true"])?;
    lab.wait("the node is drained", Duration::from_secs(60), || {
        Ok(lab.node(node)?.is_drained().then_some(()))
    })?;
    assert_eq!(ran(&lab, "prolog"), folder[..1]);
    lab.command("scancel").args([job.to_string()]).stdout()?;
    Ok(())
}

/// MIG instances and shares on one node.
const POOLS: &str = r#"
[pool.halves]
mechanism = "mig"
layout = "halves"
gpu = "H100-80"
partitions = ["gpu"]
nodes = "@NODE1@"
gpus = [0, 1]

[pool.shared]
mechanism = "timeslice"
gpu = "L40S-48"
partitions = ["shared"]
nodes = "@NODE1@"
gpus = [2, 3]
"#;

/// The files of the GPU exporter, with their text.
fn credited(folder: &Path) -> BTreeMap<String, String> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let shown = entries.filter_map(|entry| {
        let name = entry.file_name().into_string().ok()?;
        let text = fs::read_to_string(entry.path()).ok()?;
        (!name.starts_with('.')).then_some((name, text))
    });
    shown.collect()
}

/// Promise (admins): jobstats credits a job with its own GPU or MIG instance by contrib/neighbours/gpustat, and nobody
/// with a GPU that jobs share.
#[test]
fn jobstats_credits_the_gpu_that_a_job_has() -> Result<(), LabError> {
    let lab = Lab::builder()
        .gpu_list(&["H100-80:mig", "H100-80:mig", "L40S-48", "L40S-48"])
        .partition("shared", "")
        .pools(POOLS)
        .start()?;
    let (user, node) = (&lab.users()[0], &lab.nodes()[0]);
    let (bin, run) = (lab.folder().bin(), lab.folder().run(node));
    let folder = lab.folder().root().join("gpustat");
    let helper = root().join("contrib/neighbours/gpustat");
    let call = format!(
        "{} {}/leases {}",
        helper.display(),
        run.display(),
        folder.display()
    );
    for (key, kind) in [("Prolog", "prolog"), ("Epilog", "epilog")] {
        let path = bin.join(format!("site-{kind}"));
        let text = own(&lab, kind).replace("exec ", "");
        let text = format!("{} || exit $?\n{call}\n", text.trim_end());
        script(&path, &text);
        set(&lab, key, &[&path.display().to_string()])?;
    }
    let said = lab.command("gpufrac").args(["check"]);
    let said = said.env("SLURMD_NODENAME", node).run()?.success()?;
    assert_eq!(said.stderr, "");
    let start = |options: &[&str]| -> Result<JobId, LabError> {
        let wrap = format!("--wrap={HOLD}");
        let job = lab.sbatch(user, &[options, &[&wrap]].concat())?;
        lab.wait_for_state(job, &["RUNNING"])?;
        Ok(job)
    };
    let owner = |job: JobId| format!("{job} {}\n", user.uid);
    let lease = |job: JobId| -> Result<_, LabError> {
        let lease = lab.lease(node, job)?.expect("it has a lease");
        Ok(lease.slice)
    };
    let mig = |job: JobId| -> Result<String, LabError> {
        Ok(lab.slice(node, job)?.instance.uuids[0].clone())
    };

    let (small, large) = (start(&[QUARTER])?, start(&["--gres=gpufrac:0.5"])?);
    let alone = start(&["--partition=shared", "--gres=gpufrac:0.5"])?;
    let gpu = lease(alone)?;
    // jobstats' own script takes Slurm's number for that of a GPU.
    assert_ne!(gpu.device_index.to_string(), gpu.gpu_index.to_string());
    let of_gpu = [gpu.gpu_uuid.clone(), gpu.gpu_index.to_string()];
    let mut expected = BTreeMap::from([(mig(small)?, owner(small)), (mig(large)?, owner(large))]);
    expected.extend(of_gpu.clone().map(|name| (name, owner(alone))));
    assert_eq!(credited(&folder), expected);

    // Two jobs on one GPU: its activity is of neither alone.
    let mut second = start(&["--partition=shared", "--gres=gpufrac:0.5"])?;
    if lease(second)?.gpu_uuid != gpu.gpu_uuid {
        second = start(&["--partition=shared", "--gres=gpufrac:0.5"])?;
    }
    let shown = credited(&folder);
    assert_eq!(lease(second)?.gpu_uuid, gpu.gpu_uuid);
    for name in &of_gpu {
        assert_eq!(shown.get(name), None, "{shown:?}");
    }
    lab.command("scancel").args([second.to_string()]).stdout()?;
    lab.wait("the first is alone again", Duration::from_secs(60), || {
        let shown = credited(&folder);
        Ok((shown.get(&of_gpu[0]) == Some(&owner(alone))).then_some(()))
    })?;

    // A file of another tool stays.
    fs::write(folder.join("GPU-of-another"), "1 2\n").expect("root may");
    go(&lab)?;
    lab.expect_nothing_left()?;
    let other = [("GPU-of-another".to_owned(), "1 2\n".to_owned())];
    assert_eq!(credited(&folder), BTreeMap::from(other));
    Ok(())
}
