mod cases;

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use gpufrac_core::config::Config;
use gpufrac_core::finding::Severity;

use super::*;

const POOLS: &str = include_str!("right/gpufrac.toml");
const GRES: &str = include_str!("right/gres.conf");

/// Files by name, in /etc/slurm.
struct World(BTreeMap<PathBuf, String>);

impl World {
    fn right() -> World {
        let mut world = World(BTreeMap::new());
        world.write("slurm.conf", include_str!("right/slurm.conf"));
        world.write("gres.conf", GRES);
        world.write("cgroup.conf", include_str!("right/cgroup.conf"));
        world.write("plugstack.conf", include_str!("right/plugstack.conf"));
        let container = include_str!("right/job_container.conf");
        world.write("job_container.conf", container);
        world
    }

    fn write(&mut self, name: &str, text: &str) {
        self.0
            .insert(Path::new("/etc/slurm").join(name), text.to_owned());
    }

    /// Replaces a text that must occur exactly once.
    #[track_caller]
    fn change(&mut self, name: &str, from: &str, to: &str) {
        self.try_change(name, from, to).unwrap();
    }

    fn try_change(&mut self, name: &str, from: &str, to: &str) -> Result<(), String> {
        let path = Path::new("/etc/slurm").join(name);
        let text = self.0.get_mut(&path).ok_or(format!("no file {name}"))?;
        match text.matches(from).count() {
            1 => *text = text.replace(from, to),
            count => return Err(format!("{from:?} stands {count} times in {name}: {text}")),
        }
        Ok(())
    }

    fn files(&self) -> Files {
        let read = |path: &Path| {
            self.0
                .get(path)
                .cloned()
                .ok_or(io::ErrorKind::NotFound.into())
        };
        let glob = |pattern: &Path| {
            let start = pattern.to_str().unwrap().trim_end_matches('*').to_owned();
            let fits = |path: &&PathBuf| path.to_str().unwrap().starts_with(&start);
            self.0.keys().filter(fits).cloned().collect()
        };
        Files::read(Path::new("/etc/slurm/slurm.conf"), &read, &glob).unwrap()
    }

    fn judge(&self) -> Vec<Finding> {
        let settings = Settings {
            files: Some(self.files()),
            ..Settings::default()
        };
        judge(&settings, &pools(POOLS))
    }
}

/// The place of a finding; every finding about Slurm's settings has one.
fn place(finding: &Finding) -> &str {
    finding.place.as_deref().unwrap()
}

fn pools(text: &str) -> Config {
    Config::parse(text, "gpufrac.toml").unwrap()
}

/// The recorded output of scontrol of a release, with these changes.
fn recorded(release: &str, changes: &[(&str, &str)]) -> Running {
    let text = |what: &str| {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/recorded");
        let path = folder.join(format!("{what}-{release}.txt"));
        let mut text = std::fs::read_to_string(path).unwrap();
        for (from, to) in changes {
            text = text.replace(from, to);
        }
        text
    };
    Running::parse(&text("config"), &text("node"), &text("partition"))
}

/// The clusters were recorded without gpufrac's plugins.
const PLUGINS: [(&str, &str); 2] = [
    (
        "JobSubmitPlugins        = (null)",
        "JobSubmitPlugins        = gpufrac",
    ),
    (
        "CliFilterPlugins        = (null)",
        "CliFilterPlugins        = gpufrac",
    ),
];

const RELEASES: [&str; 3] = ["22.05", "24.11", "26.05"];

/// Promise (admins): `gpufrac check` has no finding for a Slurm that works.
/// With `the_labs_own_settings_are_right`, `the_samples_of_slurms_files_pass_the_check`.
#[test]
fn correct_settings_have_no_findings() {
    assert_eq!(World::right().judge(), []);
    for release in RELEASES {
        let settings = Settings {
            files: Some(World::right().files()),
            running: Some(recorded(release, &PLUGINS)),
            ..Settings::default()
        };
        assert_eq!(judge(&settings, &pools(POOLS)), [], "{release}");
    }
}

/// Promise (admins): a line of slurm.conf that was lost is named while Slurm still runs with it.
#[test]
fn a_line_that_was_lost_is_named_while_slurm_still_runs_with_it() {
    let keys = [
        "GresTypes",
        "PrologFlags",
        "JobSubmitPlugins",
        "Prolog",
        "Epilog",
    ];
    for key in keys {
        let mut world = World::right();
        let (line, comment) = (format!("\n{key}="), format!("\n#{key}="));
        world.change("slurm.conf", &line, &comment);
        let settings = Settings {
            files: Some(world.files()),
            running: Some(recorded("24.11", &PLUGINS)),
            ..Settings::default()
        };
        let found = judge(&settings, &pools(POOLS));
        let [lost] = found.as_slice() else {
            panic!("{key}: {found:?}");
        };
        assert_eq!(lost.severity, Severity::Error);
        assert!(
            lost.what.starts_with(&format!("{key} is not set")),
            "{lost:?}"
        );
        assert!(
            lost.fix.starts_with(&format!("add the line: {key}=")),
            "{lost:?}"
        );
    }
}

#[test]
fn lines_are_found_in_included_files_and_the_last_one_counts() {
    let mut world = World::right();
    world.change(
        "slurm.conf",
        "TaskPlugin=",
        "include site-%c.conf\n#TaskPlugin=",
    );
    world.write(
        "site-c.conf",
        "# ours\ntaskplugin=task/cgroup, \\\n  \nTaskPlugin = task/affinity # not this\n",
    );
    let found = world.judge();
    assert_eq!(found.len(), 1, "{found:#?}");
    assert_eq!(place(&found[0]), "/etc/slurm/site-c.conf:4");
    world.write("plugstack.conf", "include plugstack.conf.d/*\n");
    world.write(
        "plugstack.conf.d/gpufrac.conf",
        "required /opt/spank_gpufrac.so config=/x\n",
    );
    assert_eq!(world.judge().len(), 1);
}

/// Promise (admins): the running Slurm and its files are distinguished, on every release, and either of them suffices.
/// With `running_and_written_settings_are_told_apart`, `without_slurmctld_the_files_are_judged`.
#[test]
fn the_running_values_and_the_files_are_told_apart() {
    let config = pools(POOLS);
    for release in RELEASES {
        let mut changes = PLUGINS.to_vec();
        changes.push(("= task/cgroup", "= task/affinity"));
        changes.push((
            "ConstrainDevices        = yes",
            "ConstrainDevices        = no",
        ));
        changes.push(("gpu:half:16", "gpu:half:12"));
        let running = recorded(release, &changes);
        let settings = |files| Settings {
            files,
            running: Some(running.clone()),
            ..Settings::default()
        };
        // The files were corrected, but the daemons were not restarted.
        let found = judge(&settings(Some(World::right().files())), &config);
        let places: Vec<&str> = found.iter().map(place).collect();
        let config_at = "scontrol show config";
        assert_eq!(
            places,
            [config_at, config_at, "scontrol show node"],
            "{release}: {found:#?}"
        );
        assert!(
            found[0]
                .fix
                .contains("/etc/slurm/slurm.conf:10 has it right: restart"),
            "{found:#?}"
        );
        // No file can be read.
        let found = judge(&settings(None), &config);
        assert_eq!(found.len(), 3, "{release}: {found:#?}");
        assert!(found[2].fix.contains("Gres=gpu:half:16,"), "{found:#?}");
        // The running Slurm is right, but the file is not.
        let mut world = World::right();
        world.change("slurm.conf", "select/cons_tres", "select/linear");
        let right = Settings {
            files: Some(world.files()),
            running: Some(recorded(release, &PLUGINS)),
            ..Settings::default()
        };
        let found = judge(&right, &config);
        assert_eq!(found.len(), 1, "{release}: {found:#?}");
        assert_eq!(place(&found[0]), "/etc/slurm/slurm.conf:3");
    }
}

#[test]
fn flags_of_the_prolog_bring_others_with_them() {
    let mut world = World::right();
    world.change("slurm.conf", "Alloc,Contain,DeferBatch", "X11,DeferBatch");
    assert_eq!(world.judge(), []);
    world.change("slurm.conf", "X11,DeferBatch", "contain,deferbatch");
    assert_eq!(world.judge(), []);
    // From 26.05 on DeferBatch includes Alloc.
    world.change("slurm.conf", "contain,deferbatch", "DeferBatch");
    let config = pools(POOLS);
    for (release, severity) in [("24.11", Severity::Error), ("26.05", Severity::Warning)] {
        let settings = Settings {
            files: Some(world.files()),
            running: Some(recorded(release, &PLUGINS)),
            ..Settings::default()
        };
        let found = judge(&settings, &config);
        assert_eq!(found.len(), 1, "{release}: {found:#?}");
        assert_eq!(found[0].severity, severity, "{release}: {found:#?}");
    }
}

#[test]
fn without_slurmdbd_two_series_give_no_reason() {
    let found = |version: &str| {
        let version = format!("SLURM_VERSION           = {version}");
        let changes = [
            PLUGINS[0],
            PLUGINS[1],
            ("SLURM_VERSION           = 24.11.5", &version),
        ];
        let settings = Settings {
            running: Some(recorded("24.11", &changes)),
            ..Settings::default()
        };
        let found = judge(&settings, &pools(POOLS));
        let about = |it: &&Finding| it.what.starts_with("AccountingStorageType");
        found.iter().find(about).map(|it| it.severity)
    };
    for version in ["23.11.10", "24.05.8"] {
        assert_eq!(found(version), Some(Severity::Note), "{version}");
    }
    for version in ["23.02.8", "24.11.0", "25.05.1"] {
        assert_eq!(found(version), None, "{version}");
    }
}

/// A note about a line of slurm.conf explains no difference of the file.
#[test]
fn another_slurm_conf_is_named_beside_a_note_and_not_beside_a_fault() {
    for (line, is_named) in [
        ("AccountingStorageType=accounting_storage/none", true),
        ("ProctrackType=proctrack/pgid", false),
    ] {
        let mut world = World::right();
        let name = line.split('=').next().unwrap();
        let text = world.0.get_mut(Path::new("/etc/slurm/slurm.conf")).unwrap();
        let kept = text.lines().filter(|it| !it.starts_with(name));
        *text = kept.chain([line]).collect::<Vec<_>>().join("\n");
        let changes = [
            PLUGINS[0],
            PLUGINS[1],
            (
                "SLURM_VERSION           = 24.11.5",
                "SLURM_VERSION           = 24.05.8",
            ),
            (
                "HASH_VAL                = Match",
                "HASH_VAL                = Different Ours=0x1 Slurmctld=0x2",
            ),
        ];
        let settings = Settings {
            files: Some(world.files()),
            running: Some(recorded("24.11", &changes)),
            ..Settings::default()
        };
        let found = judge(&settings, &pools(POOLS));
        let on_line = found.iter().any(|it| it.what.starts_with(name));
        assert!(on_line, "{line}: {found:#?}");
        let named = found
            .iter()
            .any(|it| it.what.starts_with("this is not the file"));
        assert_eq!(named, is_named, "{line}: {found:#?}");
    }
}

#[test]
fn detection_of_gpus_goes_with_their_accounting() {
    let mut world = World::right();
    world.write(
        "gres.conf",
        &format!("AutoDetect=nvml\nNodeName=gn[01-02] AutoDetect=off\n{GRES}"),
    );
    assert_eq!(world.judge(), []);
    world.change("slurm.conf", "JobAcctGatherParams=DisableGPUAcct", "");
    let found = world.judge();
    assert_eq!(found.len(), 1, "{found:#?}");
    assert_eq!(
        found[0].fix,
        "add the line: JobAcctGatherParams=DisableGPUAcct"
    );
}

#[test]
fn a_partition_of_whole_nodes_is_seen_on_every_release() {
    let config = pools(&POOLS.replace("\"gpu\"]", "\"excl\", \"force\"]"));
    for release in RELEASES {
        let settings = Settings {
            running: Some(recorded(release, &PLUGINS)),
            ..Settings::default()
        };
        let found = judge(&settings, &config);
        assert_eq!(found.len(), 1, "{release}: {found:#?}");
        assert!(found[0].what.starts_with("partition excl, "), "{found:#?}");
    }
}

#[test]
fn a_prolog_of_the_site_is_believed_when_it_names_ours() {
    let config = pools(POOLS);
    let mut world = World::right();
    world.change(
        "slurm.conf",
        "/usr/sbin/gpufrac-prolog",
        "/etc/slurm/prolog.d/*",
    );
    for (names_ours, severity) in [
        (Some(true), None),
        (None, Some(Severity::Note)),
        (Some(false), Some(Severity::Error)),
    ] {
        let settings = Settings {
            files: Some(world.files()),
            scripts: vec![Script {
                key: "Prolog",
                path: "/etc/slurm/prolog.d/*".into(),
                names_ours,
            }],
            ..Settings::default()
        };
        let found = judge(&settings, &config);
        assert_eq!(
            found.first().map(|finding| finding.severity),
            severity,
            "{found:#?}"
        );
    }
}

#[test]
fn a_host_whose_node_has_another_name_is_known() {
    let mut world = World::right();
    let line = "NodeName=gn[01-02] CPUs=64";
    let hosts = "NodeName=gn[01-02] NodeHostname=host[11-12] CPUs=64";
    let on = |world: &World, host: &str| {
        let settings = Settings {
            files: Some(world.files()),
            ..Settings::default()
        };
        settings.node_on(host)
    };
    assert_eq!(on(&world, "gn02"), None);
    world.change("slurm.conf", line, hosts);
    assert_eq!(on(&world, "host12").as_deref(), Some("gn02"));
    assert_eq!(on(&world, "gn02"), None);
}

#[test]
fn the_last_of_several_epilogs_holds_before_24_05() {
    let config = pools(POOLS);
    let mut world = World::right();
    let ours = "Epilog=/usr/sbin/gpufrac-epilog\n";
    world.change("slurm.conf", ours, &format!("{ours}Epilog=/site/epilog\n"));
    for (release, running, is_named) in [
        ("22.05.8", "Epilog = /site/epilog", true),
        (
            "24.05.1",
            "Epilog[0] = /usr/sbin/gpufrac-epilog\nEpilog[1] = /site/epilog",
            false,
        ),
    ] {
        let shown =
            format!("SLURM_VERSION = {release}\nProlog = /usr/sbin/gpufrac-prolog\n{running}\n");
        let settings = Settings {
            files: Some(world.files()),
            running: Some(Running::parse(&shown, "", "")),
            scripts: vec![Script {
                key: "Epilog",
                path: "/site/epilog".into(),
                names_ours: Some(false),
            }],
            ..Settings::default()
        };
        let found = judge(&settings, &config);
        let named = |finding: &Finding| finding.what.contains("does not name gpufrac-epilog");
        assert_eq!(found.iter().any(named), is_named, "{found:#?}");
    }
}

/// Promise (admins): `gpufrac check` names a program of slurmctld that replaces AdminComment.
#[test]
fn a_program_that_replaces_admin_comment_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let script = folder.path().join("slurmctldepilog.sh");
    let judged = |text: &str| {
        std::fs::write(&script, text).unwrap();
        let mut world = World::right();
        let line = format!("ClusterName=c\nEpilogSlurmctld={}", script.display());
        world.change("slurm.conf", "ClusterName=c", &line);
        let mut settings = Settings {
            files: Some(world.files()),
            ..Settings::default()
        };
        settings.comment_writers = comments::writers(&settings);
        judge(&settings, &pools(POOLS))
    };
    // As jobstats does it.
    let found =
        judged("#!/bin/sh\nsacctmgr -i update job where jobid=$ID set AdminComment=JS1:$STATS\n");
    let [finding] = &found[..] else {
        panic!("{found:#?}")
    };
    assert_eq!(
        (finding.severity, place(finding)),
        (Severity::Warning, "/etc/slurm/slurm.conf:2")
    );
    assert!(finding.what.contains("sets AdminComment"), "{finding:?}");
    for other in [
        "#!/bin/sh\n# AdminComment=x\nlogger done\n",
        "#!/bin/sh\nsacct -o AdminComment\n",
    ] {
        assert_eq!(judged(other), [], "{other}");
    }
    assert_eq!(judged("\u{7f}ELF"), []);
}

#[test]
fn fractions_are_judged_by_the_name_of_the_file() {
    let config = pools(&POOLS.replacen("[pool", "[gres]\nname = \"frac\"\n[pool", 1));
    let judged = |world: &World| {
        let settings = Settings {
            files: Some(world.files()),
            ..Settings::default()
        };
        judge(&settings, &config)
    };
    // As it was before the name: the types, the devices, and the node.
    let found = judged(&World::right());
    let fixes: Vec<&str> = found.iter().map(|finding| finding.fix.as_str()).collect();
    assert!(
        fixes
            .iter()
            .any(|fix| fix.contains("gpu,shard,gpufrac,frac")),
        "{found:#?}"
    );
    assert!(
        fixes.iter().any(|fix| fix.contains("Name=frac Count=800")),
        "{found:#?}"
    );
    assert!(
        fixes
            .iter()
            .any(|fix| fix.contains("shard:half:800,frac:800")),
        "{found:#?}"
    );
    let mut world = World::right();
    world.change("slurm.conf", "gpu,shard,gpufrac", "gpu,shard,frac");
    world.change("slurm.conf", "gpufrac:800", "frac:800");
    world.change("gres.conf", "Name=gpufrac", "Name=frac");
    assert_eq!(judged(&world), []);
}

#[test]
fn where_pools_name_no_gpus_the_counts_are_compared_with_each_other() {
    let config = pools(&POOLS[..POOLS.find("gpus = [0").unwrap()]);
    let mut world = World::right();
    let gres = "\
NodeName=gn[01-02] Name=gpu Type=half File=/dev/gpufrac/half[0-15]
NodeName=gn[01-02] Name=shard Type=half Count=800 File=/dev/gpufrac/half[0-15]
NodeName=gn[01-02] Name=gpufrac Count=800
";
    world.write("gres.conf", gres);
    let judge = |world: &World| {
        let settings = Settings {
            files: Some(world.files()),
            ..Settings::default()
        };
        judge(&settings, &config)
    };
    assert_eq!(judge(&world), []);
    world.change("slurm.conf", "shard:half:800", "shard:half:700");
    let found = judge(&world);
    assert_eq!(found.len(), 1, "{found:#?}");
    assert!(
        found[0]
            .fix
            .ends_with("Gres=gpu:half:16,shard:half:800,gpufrac:800"),
        "{found:#?}"
    );
    // Slurm counts no GPUs at all.
    world.write("gres.conf", "");
    world.change(
        "slurm.conf",
        " Gres=gpu:half:16,shard:half:700,gpufrac:800",
        "",
    );
    let found = judge(&world);
    assert_eq!(found.len(), 1, "{found:#?}");
    assert!(
        found[0]
            .fix
            .contains("gpufrac conf --node 'gn[01-02]' --gpus N"),
        "{found:#?}"
    );
}

#[test]
fn control_daemons_need_a_unit_that_lets_them_live() {
    let config = pools(
        "version = 1\n[pool.p]\nmechanism = \"mps\"\ntenancy = \"private\"\ngpu = \"T4-16\"\npartitions = [\"gpu\"]\nnodes = \"gn[01-02]\"\ngpus = [0]\n",
    );
    let settings = |mode: &str, flags: &str| Settings {
        running: Some(recorded(
            "26.05",
            &[PLUGINS[0], PLUGINS[1], ("Alloc,Contain,DeferBatch", flags)],
        )),
        kill_mode: Some(mode.into()),
        ..Settings::default()
    };
    let ours = |settings: &Settings| {
        let mut found = judge(settings, &config);
        // The recorded nodes have other devices.
        found.retain(|finding| place(finding) != "scontrol show node");
        found
    };
    let flags = "Alloc,Contain,DeferBatch";
    assert_eq!(ours(&settings("process", flags)), []);
    let found = ours(&settings("control-group", flags));
    assert_eq!(place(&found[0]), "slurmd.service", "{found:#?}");
}

/// Promise (admins): `gpufrac check` names a host whose files of Slurm are not those of slurmctld, and a slurmctld that
/// does not answer.
/// With `a_slurmctld_that_does_not_answer_is_no_slurm_that_is_right`.
#[test]
fn a_node_whose_files_are_not_those_of_slurmctld_is_named() {
    let role = |is_node: bool| Role {
        is_node,
        has_commands: true,
    };
    for release in RELEASES {
        // The node has no cgroup.conf; scontrol prints that of slurmctld's host.
        let mut world = World::right();
        world.0.remove(Path::new("/etc/slurm/cgroup.conf"));
        let settings = |is_node: bool, changes: &[(&str, &str)]| Settings {
            files: Some(world.files()),
            running: Some(recorded(release, &[&PLUGINS[..], changes].concat())),
            role: Some(role(is_node)),
            ..Settings::default()
        };
        let found = judge(&settings(true, &[]), &pools(POOLS));
        assert!(
            found[0].what.contains("ConstrainDevices is not set"),
            "{release}: {found:#?}"
        );
        assert_eq!(found.len(), 1, "{release}: {found:#?}");
        // slurmd alone reads it.
        assert_eq!(judge(&settings(false, &[]), &pools(POOLS)), [], "{release}");
        let other = [("= Match", "= Different Ours=0x1 Slurmctld=0x2")];
        let found = judge(&settings(false, &other), &pools(POOLS));
        assert!(
            found[0]
                .what
                .contains("not the file by which slurmctld runs"),
            "{found:#?}"
        );
        assert_eq!(
            (found.len(), found[0].severity),
            (1, Severity::Warning),
            "{found:#?}"
        );
        assert_eq!(place(&found[0]), "/etc/slurm/slurm.conf");
    }
}

#[test]
fn a_slurmctld_that_does_not_answer_is_no_slurm_that_is_right() {
    let settings = Settings {
        files: Some(World::right().files()),
        no_answer: Some("scontrol does not answer (Protocol authentication error)".to_owned()),
        ..Settings::default()
    };
    let found = judge(&settings, &pools(POOLS));
    assert_eq!(
        (found.len(), found[0].severity),
        (1, Severity::Warning),
        "{found:#?}"
    );
    assert!(found[0].fix.contains("munge"), "{found:#?}");
}

/// Promise (admins): `gpufrac check` names a node that a failed prolog or epilog left drained.
/// With `the_reason_of_a_node_is_whole`, `unleased_instances_are_shown_and_destroyed_and_those_of_jobs_stay`.
#[test]
fn a_node_that_a_failed_prolog_drained_is_named_until_it_is_resumed() {
    let judged = |release: &str, state: &str, reason: &str| {
        let drained = format!("State={state} Reason={reason} [root@2026-11-25T00:00:00] ");
        let running = recorded(
            release,
            &[PLUGINS[0], PLUGINS[1], ("State=UNKNOWN ", &drained)],
        );
        let settings = Settings {
            files: Some(World::right().files()),
            running: Some(running),
            ..Settings::default()
        };
        judge(&settings, &pools(POOLS))
    };
    for release in RELEASES {
        for reason in [
            "gpufrac: GPU 0 is not in MIG mode",
            "Prolog error",
            "Epilog error",
        ] {
            let found = judged(release, "IDLE+DRAIN", reason);
            let [finding] = &found[..] else {
                panic!("{release}: {found:#?}");
            };
            assert_eq!(finding.severity, Severity::Warning);
            let what = format!("gn[01-02] is drained ({reason}): ");
            assert!(finding.what.starts_with(&what), "{finding:?}");
            let fix = "scontrol update NodeName=gn[01-02] State=RESUME";
            assert!(finding.fix.ends_with(fix), "{finding:?}");
        }
        // An admin's own reason needs no advice.
        assert_eq!(judged(release, "IDLE+DRAIN", "new disk"), [], "{release}");
        assert_eq!(judged(release, "IDLE", "Prolog error"), [], "{release}");
    }
}
