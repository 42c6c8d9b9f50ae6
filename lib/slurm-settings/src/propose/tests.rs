//! For each state of Slurm's files: after the proposal gpufrac's own lines have no finding, a second run proposes
//! nothing, and other lines are unchanged.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use gpufrac_core::config::Config;

use super::super::{HostGpu, HostGpus, Running, Settings, judge};
use super::*;
use gpufrac_slurm_conf::Files;

const POOL: &str = "version = 1\n[pool.h100]\nmechanism = \"mig\"\nlayout = \"halves\"\ngpu = \"H100-80\"\npartitions = [\"gpu\"]\nnodes = \"gn[01-02]\"\n";

struct World {
    files: BTreeMap<PathBuf, String>,
    config: Config,
    gpus: Gpus,
    running: Option<Running>,
    nvml: Option<HostGpus>,
}

impl World {
    fn new(slurm_conf: &str, gres_conf: &str) -> World {
        let mut world = World {
            files: BTreeMap::new(),
            config: Config::parse(POOL, "gpufrac.toml").unwrap(),
            gpus: Gpus::default(),
            running: None,
            nvml: None,
        };
        world.write("slurm.conf", slurm_conf);
        world.write("gres.conf", gres_conf);
        world
    }

    fn pools(mut self, from: &str, to: &str) -> World {
        assert!(POOL.contains(from));
        self.config = Config::parse(&POOL.replace(from, to), "gpufrac.toml").unwrap();
        self
    }

    fn write(&mut self, name: &str, text: &str) {
        self.files
            .insert(Path::new("/etc/slurm").join(name), text.to_owned());
    }

    fn text(&self, name: &str) -> &str {
        &self.files[&Path::new("/etc/slurm").join(name)]
    }

    fn propose(&self) -> (Settings, Proposal) {
        let read = |path: &Path| {
            let text = self.files.get(path).cloned();
            text.ok_or(io::Error::from(io::ErrorKind::NotFound))
        };
        let glob = |path: &Path| vec![path.to_owned()];
        let settings = Settings {
            files: Some(Files::read(Path::new("/etc/slurm/slurm.conf"), &read, &glob).unwrap()),
            running: self.running.clone(),
            gpus: self.nvml.clone(),
            ..Settings::default()
        };
        let texts = Texts {
            read: &read,
            glob: &glob,
        };
        let proposal = propose(&settings, &self.config, texts, self.gpus).unwrap();
        (settings, proposal)
    }

    /// Writes the proposal, and checks that it is right.
    #[track_caller]
    fn follow(&mut self) -> Proposal {
        let (_, proposal) = self.propose();
        for change in &proposal.changes {
            assert_eq!(self.files.get(&change.path), change.before.as_ref());
            self.files.insert(change.path.clone(), change.after.clone());
        }
        let (settings, again) = self.propose();
        assert_eq!(again.changes, [], "a second run changes more");
        let found = judge(&settings, &self.config);
        let wrong: Vec<_> = found
            .iter()
            .filter(|one| one.severity != Severity::Note)
            .collect();
        let left = proposal.left.iter();
        let left = left.filter(|one| one.severity != Severity::Note);
        assert_eq!(wrong, left.collect::<Vec<_>>());
        proposal
    }
}

const SITE: &str = "\
# the site's
ClusterName=site
SlurmctldHost=ctl
GresTypes=gpu   # GPUs
ProctrackType=proctrack/cgroup
TaskPlugin=task/affinity
JobSubmitPlugins=lua
SelectType=select/cons_tres
NodeName=gn[01-02] CPUs=8 Gres=gpu:h100:2,tmpdisk:5 Weight=3  # two
NodeName=cn01 CPUs=4
PartitionName=gpu Nodes=gn[01-02]
";

#[test]
fn a_site_of_whole_gpus_gets_all_lines_and_keeps_its_own() {
    let mut world = World::new(
        SITE,
        "NodeName=gn[01-02] Name=gpu Type=h100 File=/dev/nvidia[0-1]\nName=tmpdisk Count=5\n",
    );
    world.write("plugstack.conf", "required other.so");
    let proposal = world.follow();
    assert_eq!(proposal.left, []);
    assert_eq!(proposal.nodes, ["gn01", "gn02"]);
    let expected = SITE
        .replace("GresTypes=gpu ", "GresTypes=gpu,shard,gpufrac ")
        .replace(
            "TaskPlugin=task/affinity",
            "TaskPlugin=task/cgroup,task/affinity",
        )
        .replace("Plugins=lua", "Plugins=lua,gpufrac")
        .replace("gpu:h100:2,", "gpu:half:4,shard:half:200,gpufrac:200,");
    let added = "# gpufrac\nPrologFlags=Alloc,Contain,DeferBatch\nCliFilterPlugins=gpufrac\nProlog=/usr/sbin/gpufrac-prolog\nEpilog=/usr/sbin/gpufrac-epilog\n";
    assert_eq!(world.text("slurm.conf"), format!("{expected}{added}"));
    assert_eq!(
        world.text("gres.conf"),
        "NodeName=gn[01-02] Name=gpu Type=half File=/dev/gpufrac/half[0-3]\n\
         NodeName=gn[01-02] Name=shard Type=half Count=200 File=/dev/gpufrac/half[0-3]\n\
         NodeName=gn[01-02] Name=gpufrac Count=200\nName=tmpdisk Count=5\n"
    );
    assert_eq!(
        world.text("plugstack.conf"),
        "required other.so\n# gpufrac\nrequired spank_gpufrac.so\n"
    );
    assert_eq!(
        world.text("cgroup.conf"),
        "# gpufrac\nConstrainDevices=yes\n"
    );
}

#[test]
fn one_node_of_a_line_gets_a_line_of_its_own() {
    let gres = "# all\nAutoDetect=nvml\nName=gpu Type=h100 File=/dev/nvidia[0-1] Cores=0-3\n";
    let mut world = World::new(SITE, gres).pools("gn[01-02]", "gn01");
    let proposal = world.follow();
    assert_eq!(proposal.nodes, ["gn01"]);
    let told = &proposal.consequences;
    assert!(
        told.iter()
            .any(|text| text.contains("no longer says which cores are near")),
        "{told:?}"
    );
    assert!(world.text("slurm.conf").contains(
        "NodeName=gn01 CPUs=8 Gres=gpu:half:4,shard:half:200,gpufrac:200,tmpdisk:5 Weight=3  # two\n\
         NodeName=gn02 CPUs=8 Gres=gpu:h100:2,tmpdisk:5 Weight=3  # two\n"
    ));
    assert_eq!(
        world.text("gres.conf"),
        "# all\nAutoDetect=nvml\nNodeName=gn01 AutoDetect=off\n\
         NodeName=gn01 Name=gpu Type=half File=/dev/gpufrac/half[0-3]\n\
         NodeName=gn01 Name=shard Type=half Count=200 File=/dev/gpufrac/half[0-3]\n\
         NodeName=gn01 Name=gpufrac Count=200\n\
         NodeName=gn02 Name=gpu Type=h100 File=/dev/nvidia[0-1] Cores=0-3\n"
    );
}

#[test]
fn a_nodes_own_autodetect_stays_off() {
    let off = "NodeName=gn[01-02] AutoDetect=off";
    let gpus = "Name=gpu Type=h100 File=/dev/nvidia[0-1]\n";
    for own in [
        format!("{off}\nNodeName=gn[01-02] {gpus}"),
        format!("{off} {gpus}"),
    ] {
        let mut world = World::new(SITE, &format!("AutoDetect=nvml\n{own}"));
        world = world.pools("gn[01-02]", "gn[01-02]");
        let proposal = world.follow();
        let mut left = proposal.left.iter();
        assert!(
            left.all(|one| one.severity != Severity::Error),
            "{:?}",
            proposal.left
        );
        let text = world.text("gres.conf");
        let start = format!("AutoDetect=nvml\n{off}\nNodeName=gn[01-02] Name=gpu Type=half");
        assert!(text.starts_with(&start), "{text}");
    }
}

/// Promise (admins): gres.conf names the cores near each GPU from Slurm 23.11.5 on.
/// With `a_jobs_cpus_are_near_its_slice`.
#[test]
fn gpus_have_their_cores_where_slurm_counts_them_right() {
    let gres = "NodeName=gn[01-02] Name=gpu Type=h100 File=/dev/nvidia[0-1]\n";
    let gpu = |minor, cores: &str| HostGpu {
        minor,
        product: "NVIDIA H100 80GB HBM3".to_owned(),
        cores: Some(cores.to_owned()),
    };
    for (release, has) in [("22.05.8", false), ("23.11.4", false), ("23.11.5", true)] {
        let mut world = World::new(SITE, gres);
        let config = format!("SLURM_VERSION          = {release}\n");
        world.running = Some(Running::parse(&config, "", ""));
        world.nvml = Some(HostGpus {
            node: "gn01".to_owned(),
            gpus: vec![gpu(0, "0-1"), gpu(1, "2-3")],
        });
        let (_, proposal) = world.propose();
        let gres = proposal
            .changes
            .iter()
            .find(|change| change.path.ends_with("gres.conf"));
        let after = &gres.unwrap().after;
        for (files, cores) in [("half[0-1]", "0-1"), ("half[2-3]", "2-3")] {
            let line = format!("File=/dev/gpufrac/{files} Cores={cores}\n");
            assert_eq!(after.contains(&line), has, "{release}: {after}");
        }
    }
}

#[test]
fn gpus_of_no_pool_stay_whole_behind_ours() {
    let gres = "NodeName=gn[01-02] Name=gpu Type=h100 File=/dev/nvidia[0-3]\n";
    let slurm = SITE.replace("gpu:h100:2", "gpu:h100:4");
    let mut world = World::new(&slurm, gres).pools("nodes =", "gpus = [0, 2]\nnodes =");
    world.follow();
    let whole = "NodeName=gn[01-02] Name=gpu Type=h100 File=/dev/nvidia1,/dev/nvidia3\n\
                 NodeName=gn[01-02] Name=shard Type=h100 Count=2 File=/dev/nvidia1,/dev/nvidia3\n";
    assert!(
        world.text("gres.conf").ends_with(whole),
        "{}",
        world.text("gres.conf")
    );
    assert!(
        world
            .text("slurm.conf")
            .contains("gpufrac:200,gpu:h100:2,shard:h100:2,tmpdisk:5 ")
    );
}

#[test]
fn lines_in_other_files_are_changed_where_they_stand() {
    let slurm = SITE
        .replace("GresTypes=gpu   # GPUs\n", "include site.conf\n")
        .replace(
            "NodeName=gn[01-02] CPUs=8 Gres=gpu:h100:2,tmpdisk:5 Weight=3  # two\n",
            "include nodes.conf\n",
        );
    let mut world = World::new(&slurm, "");
    world.write("site.conf", "GresTypes=gpu\n");
    world.write(
        "nodes.conf",
        "NodeName=DEFAULT Gres=gpu:h100:2\nNodeName=gn01,gn02 \\\n  CPUs=8",
    );
    world.follow();
    assert_eq!(world.text("site.conf"), "GresTypes=gpu,shard,gpufrac\n");
    assert_eq!(
        world.text("nodes.conf"),
        "NodeName=DEFAULT Gres=gpu:h100:2\nNodeName=gn01,gn02 \\\n  CPUs=8 Gres=gpu:half:4,shard:half:200,gpufrac:200\n"
    );
    assert!(!world.text("slurm.conf").contains("\nGresTypes"));
}

#[test]
fn another_layout_changes_the_devices_alone() {
    let mut world = World::new(SITE, "");
    world.follow();
    let slurm_conf = world.text("slurm.conf").to_owned();
    world = World {
        files: world.files.clone(),
        ..world.pools("halves", "slices")
    };
    let proposal = world.follow();
    assert_eq!(proposal.nodes, ["gn01", "gn02"]);
    assert!(!proposal.concerns_all_nodes);
    assert_eq!(
        world.text("slurm.conf"),
        slurm_conf.replace("gpu:half:4,shard:half:200", "gpu:slices:2,shard:slices:200")
    );
    assert!(!world.text("gres.conf").contains("half"));
    // Three GPUs instead of two.
    world.gpus.told = Some(3);
    world.follow();
    assert!(
        world
            .text("slurm.conf")
            .contains("Gres=gpu:slices:3,shard:slices:300,gpufrac:300,tmpdisk:5")
    );
}

#[test]
fn a_prolog_of_the_site_is_left_to_the_site_unless_slurm_takes_several() {
    let slurm = format!("{SITE}Prolog=/etc/slurm/prolog.sh\n");
    let scripts = |running| {
        let mut world = World::new(&slurm, "");
        world.running = running;
        let (_, proposal) = world.propose();
        let change = proposal
            .changes
            .iter()
            .find(|change| change.path.ends_with("slurm.conf"));
        let text = change.unwrap().after.clone();
        (
            text.contains("Prolog=/usr/sbin/gpufrac-prolog"),
            proposal.left.len(),
        )
    };
    assert_eq!(
        scripts(None),
        (false, 1),
        "a script that cannot be read may call ours: the admin must look"
    );
    let running = |version: &str| Running::parse(&format!("SLURM_VERSION = {version}\n"), "", "");
    assert!(!scripts(Some(running("22.05.8"))).0);
}

#[test]
fn a_line_that_cannot_be_divided_is_left() {
    let slurm = SITE.replace("CPUs=8", "NodeAddr=10.0.0.[1-2] CPUs=8");
    let mut world = World::new(&slurm, "").pools("gn[01-02]", "gn01");
    let (_, proposal) = world.propose();
    assert!(
        proposal
            .left
            .iter()
            .any(|left| left.what.starts_with("Gres= of gn01")),
        "{:#?}",
        proposal.left
    );
    world = world.pools("gn[01-02]", "gn[01-02]");
    assert_eq!(world.follow().left, []);
}

#[test]
fn where_nothing_counts_gpus_their_number_is_told() {
    let slurm = SITE.replace("Gres=gpu:h100:2,tmpdisk:5 ", "");
    let mut world = World::new(&slurm, "");
    assert!(
        world
            .propose()
            .1
            .left
            .iter()
            .any(|left| left.what.contains("no GPUs are counted"))
    );
    world.gpus.told = Some(2);
    assert_eq!(world.follow().left, []);
}

/// Promise (admins): `gpufrac init` writes its line of plugstack.conf before plugins that start containers.
#[test]
fn the_line_of_plugstack_conf_stands_before_plugins_that_start_containers() {
    let pyxis = "required /usr/local/lib/slurm/spank_pyxis.so";
    let include = "include /etc/slurm/pyxis.conf";
    for line in [pyxis, include, "optional enroot.so x=1"] {
        let mut world = World::new(SITE, "NodeName=gn[01-02] Name=gpu File=/dev/nvidia[0-1]\n");
        world.write("pyxis.conf", pyxis);
        world.write(
            "plugstack.conf",
            &format!("required other.so\n{line}\noptional last.so\n"),
        );
        world.follow();
        assert_eq!(
            world.text("plugstack.conf"),
            format!(
                "required other.so\n# gpufrac\nrequired spank_gpufrac.so\n{line}\noptional last.so\n"
            )
        );
        assert_eq!(world.text("pyxis.conf"), pyxis);
    }
}

/// Each mistake in the cases of `gpufrac check`, in gpufrac's own lines or in others.
#[test]
fn a_second_run_changes_nothing_after_any_mistake() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/cases");
    let mut count = 0;
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let case: toml::Table = std::fs::read_to_string(&path).unwrap().parse().unwrap();
        let mut world = World::new(
            include_str!("../right/slurm.conf"),
            include_str!("../right/gres.conf"),
        );
        world.write("cgroup.conf", include_str!("../right/cgroup.conf"));
        world.write("plugstack.conf", include_str!("../right/plugstack.conf"));
        world.config =
            Config::parse(include_str!("../right/gpufrac.toml"), "gpufrac.toml").unwrap();
        assert_eq!(world.propose().1.changes, [], "what is right stays");
        for change in case["change"].as_array().unwrap() {
            let text = |key: &str| change[key].as_str().unwrap();
            let path = Path::new("/etc/slurm").join(text("file"));
            if let Some(file) = world.files.get_mut(&path) {
                *file = file.replace(text("from"), text("to"));
            }
        }
        println!("{}", path.display());
        world.follow();
        count += 1;
    }
    assert!(count > 50, "{count} cases");
}

#[test]
fn settings_of_the_running_slurmctld_are_compared_separately() {
    let mut world = World::new(SITE, "");
    world.follow();
    let config = "GresTypes = gpu\nSelectType = select/cons_tres\nJobSubmitPlugins = lua,gpufrac\nCliFilterPlugins = gpufrac\n\
                  PrologFlags = Alloc,Contain,DeferBatch\nTaskPlugin = task/cgroup\nProlog = /usr/sbin/gpufrac-prolog\n";
    world.running = Some(Running::parse(
        config,
        "NodeName=gn01 Gres=gpu:h100:2\nNodeName=gn02 Gres=gpu:half:4(S:0),shard:half:200(S:0),gpufrac:200\n",
        "",
    ));
    let (settings, proposal) = world.propose();
    assert_eq!(proposal.changes, []);
    let found = running_difference(&settings, &world.config, world.gpus);
    assert_eq!(found.is, ["GresTypes=gpu", "NodeName=gn01 Gres=gpu:h100:2"]);
    assert_eq!(
        found.right,
        [
            "GresTypes=gpu,shard,gpufrac",
            "Epilog=/usr/sbin/gpufrac-epilog",
            "NodeName=gn01 Gres=gpu:half:4,shard:half:200,gpufrac:200"
        ]
    );
    assert_eq!(found.nodes, ["gn01"]);
}
