use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use gpufrac_core::config::Config;

use super::*;

const POOLS: &str = r#"version = 1
[pool.halves]
mechanism = "mig"
layout = "halves"
gpu = "H100-80"
partitions = ["gpu"]
nodes = "gn[01-02]"
gpus = [0, 1, 2, 3, 4, 5, 6, 7]
"#;

const SLURM: &str = "\
ClusterName=c
GresTypes=gpu,shard,gpufrac
SelectType=select/cons_tres
PrologFlags=Alloc,Contain,DeferBatch
Prolog=/usr/sbin/gpufrac-prolog
Epilog=/usr/sbin/gpufrac-epilog
JobSubmitPlugins=lua,gpufrac
CliFilterPlugins=gpufrac
ProctrackType=proctrack/cgroup
TaskPlugin=task/cgroup,task/affinity
NodeName=gn[01-02] CPUs=64 Gres=gpu:half:16,shard:half:800,gpufrac:800
PartitionName=gpu Nodes=gn[01-02] Default=YES
JobAcctGatherParams=DisableGPUAcct
";

const GRES: &str = "\
NodeName=gn[01-02] Name=gpu Type=half File=/dev/gpufrac/half[0-15]
NodeName=gn[01-02] Name=shard Type=half Count=800 File=/dev/gpufrac/half[0-15]
NodeName=gn[01-02] Name=gpufrac Count=800
";

/// Files by name, in /etc/slurm.
struct World(BTreeMap<PathBuf, String>);

impl World {
    fn right() -> World {
        let mut world = World(BTreeMap::new());
        world.write("slurm.conf", SLURM);
        world.write("gres.conf", GRES);
        world.write("cgroup.conf", "ConstrainDevices=yes\n");
        world.write("plugstack.conf", "# x\nrequired spank_gpufrac.so\n");
        world.write("job_container.conf", "# CLONE_NEWUSER\nAutoBasePath=true\n");
        world
    }

    fn write(&mut self, name: &str, text: &str) {
        self.0
            .insert(Path::new("/etc/slurm").join(name), text.to_owned());
    }

    /// Replaces text that must be there once.
    fn change(&mut self, name: &str, from: &str, to: &str) {
        let text = self.0.get_mut(&Path::new("/etc/slurm").join(name)).unwrap();
        assert_eq!(text.matches(from).count(), 1, "{from:?} in {text}");
        *text = text.replace(from, to);
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

fn pools(text: &str) -> Config {
    Config::parse(text, "gpufrac.toml").unwrap()
}

/// What scontrol printed on a release, with this said otherwise.
fn recorded(release: &str, changes: &[(&str, &str)]) -> Running {
    let text = |what: &str| {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/settings/recorded");
        let path = folder.join(format!("{what}-{release}.txt"));
        let mut text = std::fs::read_to_string(path).unwrap();
        for (from, to) in changes {
            text = text.replace(from, to);
        }
        text
    };
    Running::parse(&text("config"), &text("node"), &text("partition"))
}

/// The recorded clusters have no plugin of ours, as they were recorded without.
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

#[test]
fn what_is_right_is_not_named() {
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

/// One wrong line each: file, what it is instead of what, and then severity, place, and words of the finding
/// and the fix.
#[test]
fn each_wrong_line_is_named_with_its_fix() {
    use Severity::{Error, Note, Warning};
    let gres_fix = "Name=shard Type=half Count=800 File=/dev/gpufrac/half[0-15]";
    let gres = "write in the line of gn[01-02]: Gres=gpu:half:16,shard:half:800,gpufrac:800";
    let s = "slurm.conf";
    let cases: &[(&str, &str, &str, Severity, &str, &str, &str)] = &[
        (
            s,
            "SelectType=select/cons_tres",
            "SelectType=select/linear",
            Error,
            "slurm.conf:3",
            "cons_tres counts",
            "write instead: SelectType=select/cons_tres",
        ),
        (
            s,
            "SelectType=select/cons_tres\n",
            "",
            Warning,
            "slurm.conf",
            "SelectType is not set",
            "add the line: SelectType=select/cons_tres",
        ),
        (
            s,
            "gpu,shard,gpufrac",
            "gpu,gpufrac",
            Error,
            "slurm.conf:2",
            "counted as shard",
            "GresTypes=gpu,gpufrac,shard",
        ),
        (
            s,
            "gpu,shard,gpufrac",
            "gpu,mps",
            Error,
            "slurm.conf:2",
            "shard and gpufrac",
            "GresTypes=gpu,mps,shard,gpufrac",
        ),
        (
            s,
            "SelectType=select/cons_tres",
            "SelectType=select/cons_tres\nSelectTypeParameters=CR_Core,MULTIPLE_SHARING_GRES_PJ",
            Error,
            "slurm.conf:4",
            "several GPUs",
            "write instead: SelectTypeParameters=CR_Core",
        ),
        (
            s,
            "SelectType=select/cons_tres",
            "SelectType=select/cons_tres\nSelectTypeParameters=CR_Core,ONE_TASK_PER_SHARING_GRES",
            Error,
            "slurm.conf:4",
            "several tasks",
            "SelectTypeParameters=CR_Core",
        ),
        (
            s,
            "SelectType=select/cons_tres",
            "SelectType=select/cons_tres\nSelectTypeParameters=LL_SHARED_GRES",
            Note,
            "slurm.conf:4",
            "spread",
            "remove the line",
        ),
        (
            s,
            "PrologFlags=Alloc,Contain,DeferBatch\n",
            "",
            Error,
            "slurm.conf",
            "PrologFlags is not set",
            "add the line: PrologFlags=Alloc,Contain,DeferBatch",
        ),
        (
            s,
            "Alloc,Contain,DeferBatch",
            "DeferBatch,Serial",
            Error,
            "slurm.conf:4",
            "without Alloc",
            "PrologFlags=DeferBatch,Serial,Alloc,Contain",
        ),
        (
            s,
            "Alloc,Contain,DeferBatch",
            "X11",
            Warning,
            "slurm.conf:4",
            "without DeferBatch",
            "PrologFlags=X11,DeferBatch",
        ),
        (
            s,
            "Alloc,Contain,DeferBatch",
            "ForceRequeueOnFail,DeferBatch",
            Warning,
            "slurm.conf:4",
            "without Contain",
            "PrologFlags=ForceRequeueOnFail,DeferBatch,Contain",
        ),
        (
            s,
            "Alloc,Contain,DeferBatch",
            "RunInJob,DeferBatch",
            Error,
            "slurm.conf:4",
            "reaches no GPU",
            "PrologFlags=DeferBatch,Alloc,Contain",
        ),
        (
            s,
            "Alloc,Contain,DeferBatch",
            "Alloc,DeferBatch",
            Warning,
            "slurm.conf:4",
            "without Contain",
            "PrologFlags=Alloc,DeferBatch,Contain",
        ),
        (
            s,
            "Alloc,Contain,DeferBatch",
            "Alloc,Contain",
            Warning,
            "slurm.conf:4",
            "without DeferBatch",
            "PrologFlags=Alloc,Contain,DeferBatch",
        ),
        (
            s,
            "Alloc,Contain,DeferBatch",
            "Alloc,Contain,DeferBatch,RunInJob",
            Error,
            "slurm.conf:4",
            "reaches no GPU",
            "PrologFlags=Alloc,Contain,DeferBatch",
        ),
        (
            s,
            "Alloc,Contain,DeferBatch",
            "Alloc,DeferBatch,NoHold",
            Error,
            "slurm.conf:4",
            "NoHold",
            "PrologFlags=Alloc,DeferBatch,Contain",
        ),
        (
            s,
            "TaskPlugin=task/cgroup,task/affinity",
            "TaskPlugin=task/affinity",
            Error,
            "slurm.conf:10",
            "keeps a job from GPUs",
            "TaskPlugin=task/cgroup,task/affinity",
        ),
        (
            s,
            "ProctrackType=proctrack/cgroup",
            "ProctrackType=proctrack/linuxproc",
            Warning,
            "slurm.conf:9",
            "all processes",
            "ProctrackType=proctrack/cgroup",
        ),
        (
            s,
            "JobSubmitPlugins=lua,gpufrac\n",
            "",
            Error,
            "slurm.conf",
            "no `gpufrac:0.25`",
            "add the line: JobSubmitPlugins=gpufrac",
        ),
        (
            s,
            "JobSubmitPlugins=lua,gpufrac",
            "JobSubmitPlugins=gpufrac,lua",
            Warning,
            "slurm.conf:7",
            "lua writes",
            "JobSubmitPlugins=lua,gpufrac",
        ),
        (
            s,
            "CliFilterPlugins=gpufrac",
            "CliFilterPlugins=lua",
            Warning,
            "slurm.conf:8",
            "steps",
            "CliFilterPlugins=lua,gpufrac",
        ),
        (
            s,
            "Prolog=/usr/sbin/gpufrac-prolog\n",
            "Prolog=gpufrac-prolog\nSlurmctldParameters=enable_configless\n",
            Error,
            "slurm.conf:5",
            "scripts alone",
            "Prolog=/usr/sbin/gpufrac-prolog",
        ),
        (
            s,
            "Prolog=/usr/sbin/gpufrac-prolog\n",
            "",
            Error,
            "slurm.conf",
            "Prolog is not set",
            "add the line: Prolog=/usr/sbin/gpufrac-prolog",
        ),
        (
            s,
            "Epilog=/usr/sbin/gpufrac-epilog",
            "Epilog=/site/epilog",
            Note,
            "slurm.conf:6",
            "can not be seen",
            "Epilog=/usr/sbin/gpufrac-epilog",
        ),
        (
            s,
            "ClusterName=c",
            "ClusterName=c\nPrologEpilogTimeout=20",
            Warning,
            "slurm.conf:2",
            "drains the node",
            "PrologEpilogTimeout=60",
        ),
        (
            s,
            "ClusterName=c",
            "ClusterName=c\nPrEpPlugins=prep/other",
            Error,
            "slurm.conf:2",
            "not run",
            "PrEpPlugins=prep/other,prep/script",
        ),
        (
            s,
            "ClusterName=c",
            "ClusterName=c\nSlurmdUser=slurm",
            Error,
            "slurm.conf:2",
            "only root",
            "SlurmdUser=root",
        ),
        (
            s,
            "ClusterName=c",
            "ClusterName=c\nJobRequeue=0",
            Note,
            "slurm.conf:2",
            "ends",
            "JobRequeue=1",
        ),
        (
            s,
            "ClusterName=c",
            "ClusterName=c\nPreemptMode=SUSPEND,GANG",
            Warning,
            "slurm.conf:2",
            "keeps its slice",
            "PreemptMode=REQUEUE",
        ),
        (
            s,
            "ClusterName=c",
            "ClusterName=c\nAcctGatherEnergyType=acct_gather_energy/gpu",
            Warning,
            "slurm.conf:2",
            "keeps the GPUs open",
            "remove the line",
        ),
        (
            s,
            "ClusterName=c",
            "ClusterName=c\nAcctGatherEnergyType=gpu",
            Warning,
            "slurm.conf:2",
            "keeps the GPUs open",
            "remove the line",
        ),
        (
            s,
            "JobSubmitPlugins=lua,gpufrac",
            "JobSubmitPlugins=job_submit/gpufrac,job_submit/lua",
            Warning,
            "slurm.conf:7",
            "lua writes into a job after gpufrac",
            "JobSubmitPlugins=lua,gpufrac",
        ),
        (
            s,
            "ClusterName=c",
            "ClusterName=c\nAccountingStorageType=accounting_storage/slurmdbd\nAccountingStorageTRES=gres/gpu",
            Note,
            "slurm.conf:3",
            "sacct",
            "AccountingStorageTRES=gres/gpu,gres/gpufrac",
        ),
        (
            s,
            " Gres=gpu:half:16,shard:half:800,gpufrac:800",
            "",
            Error,
            "slurm.conf:11",
            "nothing is counted",
            gres,
        ),
        (
            s,
            "gpu:half:16",
            "gpu:half:14",
            Error,
            "slurm.conf:11",
            "gpu:half is 14 and must be 16",
            gres,
        ),
        (
            s,
            "shard:half:800",
            "shard:half:600",
            Error,
            "slurm.conf:11",
            "shard is 600 and must be 800",
            gres,
        ),
        (
            s,
            "shard:half:800",
            "shard:800",
            Warning,
            "slurm.conf:11",
            "without its Type",
            gres,
        ),
        (
            s,
            ",gpufrac:800",
            "",
            Error,
            "slurm.conf:11",
            "gpufrac is 0 and must be 800",
            gres,
        ),
        (
            s,
            "PartitionName=gpu Nodes",
            "PartitionName=cpu Nodes",
            Warning,
            "slurm.conf",
            "for partition gpu",
            "add the partition",
        ),
        (
            s,
            "Default=YES",
            "Default=YES OverSubscribe=EXCLUSIVE",
            Error,
            "slurm.conf:12",
            "whole nodes",
            "OverSubscribe=NO",
        ),
        (
            s,
            "Default=YES",
            "Default=YES Shared=EXCLUSIVE",
            Error,
            "slurm.conf:12",
            "whole nodes",
            "Shared=NO",
        ),
        (
            s,
            "Default=YES",
            "Default=YES PreemptMode=SUSPEND",
            Warning,
            "slurm.conf:12",
            "keeps its slice",
            "PreemptMode=REQUEUE",
        ),
        (
            "gres.conf",
            "NodeName=gn[01-02] Name=gpufrac Count=800",
            "NodeName=gn[01-02] Name=gpufrac Count=100",
            Error,
            "gres.conf:1",
            "Count=100 and must have 800",
            "Name=gpufrac Count=800",
        ),
        (
            "gres.conf",
            "Name=gpu Type=half",
            "Name=gpu",
            Error,
            "gres.conf:1",
            "Type without one",
            "Name=gpu Type=half File=/dev/gpufrac/half[0-15]",
        ),
        (
            "gres.conf",
            "Name=gpu Type=half File=/dev/gpufrac/half[0-15]",
            "Name=gpu Type=half File=/dev/nvidia[0-15]",
            Error,
            "gres.conf:1",
            "/dev/nvidia0",
            gres_fix,
        ),
        (
            "gres.conf",
            "NodeName=gn[01-02] Name=gpu Type=half",
            "NodeName=gn[01-02] Name=gpu Cores=0-3 Type=half",
            Warning,
            "gres.conf:1",
            "23.11.5",
            gres_fix,
        ),
        (
            "gres.conf",
            "NodeName=gn[01-02] Name=gpu Type=half",
            "NodeName=gn[01-02] Name=gpu CPUs=0-3 Type=half",
            Warning,
            "gres.conf:1",
            "23.11.5",
            gres_fix,
        ),
        (
            "gres.conf",
            "Name=shard Type=half Count=800 File=/dev/gpufrac/half[0-15]",
            "Name=shard Count=800",
            Warning,
            "gres.conf:2",
            "refuses its steps",
            gres_fix,
        ),
        (
            "gres.conf",
            "Type=half Count=800",
            "Type=half Count=350",
            Error,
            "gres.conf:1",
            "350 shards",
            gres_fix,
        ),
        (
            "gres.conf",
            "NodeName=gn[01-02] Name=gpufrac",
            "AutoDetect=nvml\nNodeName=gn[01-02] Name=gpufrac",
            Error,
            "gres.conf:3",
            "AutoDetect=nvml",
            "AutoDetect=off",
        ),
        (
            "cgroup.conf",
            "ConstrainDevices=yes",
            "ConstrainDevices=no",
            Error,
            "cgroup.conf:1",
            "keeps a job",
            "ConstrainDevices=yes",
        ),
        (
            "cgroup.conf",
            "ConstrainDevices=yes",
            "",
            Error,
            "cgroup.conf",
            "is not set",
            "add the line: ConstrainDevices=yes",
        ),
        (
            "cgroup.conf",
            "ConstrainDevices=yes",
            "ConstrainDevices=yes\nCgroupPlugin=disabled",
            Error,
            "cgroup.conf:2",
            "without control groups",
            "autodetect",
        ),
        (
            "job_container.conf",
            "AutoBasePath=true",
            "CloneNSFlags=CLONE_NEWUSER|CLONE_NEWPID",
            Warning,
            "job_container.conf:2",
            "does not start",
            "leave it out",
        ),
        (
            "plugstack.conf",
            "required spank_gpufrac.so",
            "",
            Error,
            "plugstack.conf",
            "no fence",
            "required spank_gpufrac.so",
        ),
        (
            "plugstack.conf",
            "required",
            "optional",
            Warning,
            "plugstack.conf:2",
            "runs without one",
            "required spank_gpufrac.so",
        ),
    ];
    for (file, from, to, severity, place, what, fix) in cases {
        let mut world = World::right();
        world.change(file, from, to);
        let found = world.judge();
        let case = format!("{file}: {to:?}: {found:#?}");
        assert_eq!(found.len(), 1, "{case}");
        let finding = &found[0];
        assert_eq!(finding.severity, *severity, "{case}");
        assert_eq!(finding.place, format!("/etc/slurm/{place}"), "{case}");
        assert!(finding.what.contains(what), "no {what:?}: {case}");
        assert!(finding.fix.contains(fix), "no {fix:?}: {case}");
    }
}

#[test]
fn what_slurm_takes_for_the_same_is_the_same() {
    for (file, from, to) in [
        (
            "slurm.conf",
            "JobSubmitPlugins=lua,gpufrac",
            "JobSubmitPlugins=job_submit/lua,job_submit/gpufrac",
        ),
        (
            "slurm.conf",
            "CliFilterPlugins=gpufrac",
            "CliFilterPlugins=cli_filter/gpufrac",
        ),
        (
            "slurm.conf",
            "ClusterName=c",
            "ClusterName=c\nPrEpPlugins=script",
        ),
        (
            "cgroup.conf",
            "ConstrainDevices=yes",
            "ConstrainDevices=True",
        ),
        ("cgroup.conf", "ConstrainDevices=yes", "ConstrainDevices=1"),
    ] {
        let mut world = World::right();
        world.change(file, from, to);
        assert!(world.judge().is_empty(), "{to}: {:#?}", world.judge());
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
    assert_eq!(found[0].place, "/etc/slurm/site-c.conf:4");
    world.write("plugstack.conf", "include plugstack.conf.d/*\n");
    world.write(
        "plugstack.conf.d/gpufrac.conf",
        "required /opt/spank_gpufrac.so config=/x\n",
    );
    assert_eq!(world.judge().len(), 1);
}

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
        // The files were put right and the daemons were not restarted.
        let found = judge(&settings(Some(World::right().files())), &config);
        let places: Vec<&str> = found.iter().map(|finding| finding.place.as_str()).collect();
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
        // The running Slurm is right, the file will not be.
        let mut world = World::right();
        world.change("slurm.conf", "select/cons_tres", "select/linear");
        let right = Settings {
            files: Some(world.files()),
            running: Some(recorded(release, &PLUGINS)),
            ..Settings::default()
        };
        let found = judge(&right, &config);
        assert_eq!(found.len(), 1, "{release}: {found:#?}");
        assert_eq!(found[0].place, "/etc/slurm/slurm.conf:3");
    }
}

#[test]
fn flags_of_the_prolog_bring_others_with_them() {
    let mut world = World::right();
    world.change("slurm.conf", "Alloc,Contain,DeferBatch", "X11,DeferBatch");
    assert_eq!(world.judge(), []);
    world.change("slurm.conf", "X11,DeferBatch", "contain,deferbatch");
    assert_eq!(world.judge(), []);
    // DeferBatch alone brings Alloc from 26.05 on.
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
    // Nothing at all is counted.
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
        found.retain(|finding| finding.place != "scontrol show node");
        found
    };
    let flags = "Alloc,Contain,DeferBatch";
    assert_eq!(ours(&settings("process", flags)), []);
    let found = ours(&settings("control-group", flags));
    assert_eq!(found[0].place, "slurmd.service", "{found:#?}");
}
