//! The proposals of `gpufrac init` for sites in the forms of real ones (cli/tests/sites): Slurm starts with them, a
//! fraction runs on each pool, and all else stays as it was.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::time::Duration;

use gpufrac_core::hostlist::Hostlist;
use gpufrac_lab::{Lab, LabError, Outcome};
use gpufrac_slurm_conf::{Record, Running};
use nix::sys::signal::Signal;

/// A site, and the nodes on which `gpufrac init` runs.
struct Site {
    folder: &'static str,
    nodes: &'static [Host],
}

/// A node with a pool: its number in the site, its GPUs, and a partition of the pool.
struct Host(usize, &'static [&'static str], &'static str);

const SITES: [Site; 12] = [
    Site {
        folder: "untyped",
        nodes: &[Host(1, &["H100-80:4"], "gpu")],
    },
    Site {
        folder: "static-mig",
        nodes: &[Host(2, &["H100-80:2"], "gpu")],
    },
    Site {
        folder: "shards",
        nodes: &[
            Host(1, &["H100-80:2"], "h100"),
            Host(3, &["L40S-48:2"], "a40"),
        ],
    },
    Site {
        folder: "nodeset",
        nodes: &[Host(1, &["H100-80:8"], "gpu")],
    },
    Site {
        folder: "lists",
        nodes: &[Host(1, &["H100-80:4"], "gpu")],
    },
    Site {
        folder: "mps",
        nodes: &[Host(1, &["H100-80:2"], "gpu")],
    },
    Site {
        folder: "defaults",
        nodes: &[Host(3, &["H100-80:4"], "gpu")],
    },
    Site {
        folder: "part-of-a-node",
        nodes: &[Host(1, &["H100-80:8"], "gpu")],
    },
    Site {
        folder: "part-untyped",
        nodes: &[Host(1, &["H100-80:4"], "gpu")],
    },
    Site {
        folder: "per-gpu-defaults",
        nodes: &[Host(1, &["H100-80:8"], "small")],
    },
    Site {
        folder: "models",
        nodes: &[Host(
            1,
            &["A100-40:mig", "L40S-48", "H100-80", "L40S-48", "H100-94"],
            "gpu",
        )],
    },
    Site {
        folder: "instances-beside",
        nodes: &[Host(1, &["H100-80:2"], "gpu")],
    },
];

/// Fields that change by themselves, or that follow from the devices.
const CHANGING: [&str; 12] = [
    "state",
    "reason",
    "boottime",
    "slurmdstarttime",
    "lastbusytime",
    "resumeaftertime",
    "cpuload",
    "freemem",
    "cfgtres",
    "alloctres",
    "version",
    "tres",
];
/// What slurmd says of its machine as soon as it runs.
const OF_SLURMD: [&str; 4] = ["arch", "os", "gresdrain", "gresused"];

/// Runs `gpufrac "$@"` where `/dev` has the files of GPUs.
const WITH_FILES: &str = "\
files=$(mktemp -d) && trap 'umount /dev; umount \"$files\"; rmdir \"$files\"' EXIT &&
mount -t tmpfs tmpfs \"$files\" && mkdir \"$files/upper\" \"$files/work\" || exit 1
for number in 0 1 2 3 4 5 6 7; do ln -s null \"$files/upper/nvidia$number\"; done
mkdir \"$files/upper/nvidia-caps\"
for number in 156 157 165 166; do ln -s ../null \"$files/upper/nvidia-caps/nvidia-cap$number\"; done
mount -t overlay -o \"lowerdir=/dev,upperdir=$files/upper,workdir=$files/work\" overlay /dev || exit 1
gpufrac \"$@\"";

/// The text with the names of the lab's nodes: `gn01` is the first.
fn renamed(text: &str, prefix: &str) -> String {
    let mut out = String::new();
    let bytes: Vec<char> = text.chars().collect();
    for (at, letter) in bytes.iter().enumerate() {
        let before = at.checked_sub(1).map(|at| bytes[at]);
        let after = bytes.get(at + 1);
        let pads = before.is_some_and(|c| "[,n".contains(c) || (c == '-' && out.contains('[')));
        if *letter == '0' && pads && after.is_some_and(char::is_ascii_digit) {
            continue;
        }
        out.push(*letter);
    }
    out.replace("gn", prefix)
}

/// A lab that becomes one site after the other.
struct World {
    lab: Lab,
    prefix: String,
    /// The lines of the lab's own slurm.conf that every site needs.
    base: String,
    ports: Vec<u16>,
    /// The lab's gpufrac.toml without pools.
    paths: String,
}

impl World {
    fn start() -> Result<World, LabError> {
        let lab = Lab::builder()
            .gpus("H100-80", 1)
            .nodes(3)
            .accounting()
            .mps_standin()
            .start()?;
        // The partitions of a site have it.
        let qos = ["-i", "add", "qos", "part"];
        lab.command("sacctmgr").args(qos).run()?.success()?;
        let prefix = lab.nodes()[0].trim_end_matches('1').to_owned();
        let text = fs::read_to_string(lab.folder().slurm_conf()).expect("the lab's slurm.conf");
        let of_site = [
            "NodeName",
            "PartitionName",
            "GresTypes",
            "JobSubmitPlugins",
            "CliFilterPlugins",
            "Prolog",
            "Epilog",
            "Select",
            "TaskPlugin",
            "ProctrackType",
        ];
        let base = text
            .lines()
            .filter(|line| !of_site.iter().any(|key| line.starts_with(key)));
        let base = base.collect::<Vec<_>>().join("\n");
        // As at sites whose partitions have a price for GPUs.
        let base = base.replace("=gres/gpufrac,", "=gres/gpu,gres/frac,gres/gpufrac,");
        let ports = text
            .split_whitespace()
            .filter_map(|word| word.strip_prefix("Port=")?.parse().ok());
        let ports = ports.collect();
        let toml = fs::read_to_string(lab.folder().gpufrac_conf()).expect("the lab's gpufrac.toml");
        let paths = toml.split("[pool").next().unwrap_or_default().to_owned();
        Ok(World {
            base,
            ports,
            paths,
            prefix,
            lab,
        })
    }

    fn etc(&self, name: &str) -> PathBuf {
        self.lab.folder().etc().join(name)
    }

    fn edit(&self, name: &str, how: impl Fn(&str) -> String) {
        let text = fs::read_to_string(self.etc(name)).expect("a file of the site");
        fs::write(self.etc(name), how(&text)).expect("root may");
    }

    /// A line of the site with the lab's addresses.
    fn line(&self, line: &str) -> String {
        let name = line.strip_prefix("NodeName=").map(|rest| {
            let end = rest.find(char::is_whitespace).unwrap_or(rest.len());
            &rest[..end]
        });
        let Some(name) = name.filter(|name| *name != "DEFAULT") else {
            return line.to_owned();
        };
        let names = Hostlist::as_slurm(name).expect("nodes of the site");
        let ports = names.names().iter().map(|name| {
            let number = name.strip_prefix(&self.prefix);
            let number: Option<usize> = number.and_then(|number| number.parse().ok());
            let port = number.and_then(|number| self.ports.get(number - 1));
            // No slurmd of the lab: nobody listens there.
            port.copied().unwrap_or(1).to_string()
        });
        let ports = ports.collect::<Vec<_>>().join(",");
        let host = nix::unistd::gethostname().expect("a name");
        let host = host.to_string_lossy();
        format!("{line} NodeHostname={host} NodeAddr=127.0.0.1 Port=[{ports}]")
    }

    fn write(&self, folder: &str) {
        for name in ["slurm.conf", "gres.conf", "nodes.conf", "cgroup.conf.bak"] {
            let _ = fs::remove_file(self.etc(name));
        }
        let from = Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("../../cli/tests/sites")
            .join(folder);
        let _ = fs::remove_file(self.lab.folder().gpufrac_conf());
        for entry in fs::read_dir(from).expect("a site").flatten() {
            let text = fs::read_to_string(entry.path()).expect("a file of a site");
            let text = renamed(&text, &self.prefix);
            let name = entry.file_name().into_string().expect("a name");
            let of_lab = |line: &&str| {
                !["ClusterName", "SlurmctldHost", "ProctrackType"]
                    .iter()
                    .any(|key| line.starts_with(key))
            };
            let lines = text.lines().filter(of_lab);
            let lines = lines
                .map(|line| if name == "gres.conf" { line.to_owned() } else { self.line(line) });
            let mut text = lines.collect::<Vec<_>>().join("\n") + "\n";
            if name == "slurm.conf" {
                text = format!("{}\nProctrackType=proctrack/cgroup\n{text}", self.base);
            }
            fs::write(self.etc(&name), text).expect("root may");
        }
        fs::write(self.etc("plugstack.conf"), "").expect("root may");
    }

    /// Starts slurmctld without a state, also after a start; one of 22.05 that is asked to end at once after its start
    /// can hang.
    fn restart(&mut self) -> Result<(), LabError> {
        self.lab.stop_daemon("slurmctld", Signal::SIGKILL)?;
        let state = self.lab.folder().root().join("state");
        fs::remove_dir_all(&state).expect("root may");
        fs::create_dir(state).expect("root may");
        self.lab.start_slurmctld()
    }

    fn node(&self, number: usize) -> String {
        format!("{}{number}", self.prefix)
    }

    fn shown(&self) -> Result<Running, LabError> {
        let show = |what| {
            let scontrol = self.lab.command("scontrol");
            scontrol.args(["-a", "-o", "show", what]).stdout()
        };
        Ok(Running::parse("", &show("node")?, &show("partition")?))
    }

    fn init(&self, node: &str, args: &[&str]) -> Result<String, LabError> {
        Ok(self.try_init(node, args)?.success()?.stdout)
    }

    /// `gpufrac init` on a node whose `/dev` has files of GPUs.
    fn try_init(&self, node: &str, args: &[&str]) -> Result<Outcome, LabError> {
        let own = [
            "--mount",
            "--propagation",
            "private",
            "sh",
            "-c",
            WITH_FILES,
            "sh",
            "init",
        ];
        let said = self.lab.command("unshare").args(own).args(args);
        let library = self.lab.folder().gpus(node).join("lib");
        let said = said
            .env("SLURMD_NODENAME", node)
            .env("LD_LIBRARY_PATH", library);
        said.run()
    }

    /// The paths of an installed gpufrac are those of the lab, and its nodes have other files of GPUs.
    fn adapt(&self, nodes: &[Host]) {
        let folder = self.lab.folder();
        let bin = folder.bin().display().to_string();
        self.edit("slurm.conf", |text| {
            // Nobody switches these nodes on.
            let text = text.replace(" State=CLOUD", "");
            let text = text.replace("/usr/sbin/gpufrac-prolog", &format!("{bin}/prolog"));
            text.replace("/usr/sbin/gpufrac-epilog", &format!("{bin}/epilog"))
        });
        let config = folder.gpufrac_conf().display().to_string();
        self.edit("plugstack.conf", |text| {
            text.replace(
                "spank_gpufrac.so",
                &format!("spank_gpufrac.so config={config}"),
            )
        });
        self.edit("gpufrac.toml", |text| {
            text.replacen("version = 1\n", &self.paths, 1)
        });
        self.edit("gres.conf", |text| {
            let lines = text.lines().map(|line| {
                let is_of = |host: &&Host| line.contains(&self.prefix) && self.covers(line, host.0);
                let Some(host) = nodes.iter().find(is_of) else {
                    return line.to_owned();
                };
                let node = self.node(host.0);
                let (devices, gpus) = (folder.devices(&node), folder.gpus(&node));
                let line = line.replace("/dev/gpufrac/", &format!("{}/", devices.display()));
                line.replace("/dev/nvidia", &format!("{}/dev/nvidia", gpus.display()))
            });
            lines.collect::<Vec<_>>().join("\n") + "\n"
        });
    }

    /// Whether `NodeName=` of a line has a node.
    fn covers(&self, line: &str, number: usize) -> bool {
        let mut words = line.split_whitespace();
        let list = words.find_map(|word| word.strip_prefix("NodeName="));
        list.is_some_and(|list| {
            Hostlist::as_slurm(list).is_ok_and(|list| list.contains(&self.node(number)))
        })
    }

    fn run(&mut self, site: &Site) -> Result<(), LabError> {
        for node in self.lab.nodes().to_vec() {
            let name = format!("slurmd.{node}");
            self.lab.stop_daemon(&name, Signal::SIGTERM)?;
        }
        self.write(site.folder);
        for Host(number, gpus, _) in site.nodes {
            let node = self.node(*number);
            let folder = self.lab.folder();
            // Another machine than that of the last site.
            for own in [folder.devices(&node), folder.run(&node), folder.var(&node)] {
                fs::remove_dir_all(&own).expect("root may");
                fs::create_dir(&own).expect("root may");
            }
            let _ = fs::remove_dir_all(folder.gpus(&node));
            let library = self.lab.folder().lib().join("libnvidia_ml.so");
            let library = library.display().to_string();
            let mut args = vec!["init", "--lib", &library];
            args.extend(gpus.iter().flat_map(|gpu| ["--gpu", gpu]));
            self.lab.gpusim(&node, &args)?;
        }
        self.restart()?;
        let before = self.shown()?;

        if site.folder == "instances-beside" && crate::since(23, 11)? {
            let said = self.try_init(&self.node(1), &["--write"])?;
            assert!(!said.status.success(), "{said:?}");
            assert!(
                said.stderr.contains("proposing changes of Slurm failed: "),
                "{said:?}"
            );
            assert!(
                said.stderr.contains("has MIG instances of the site"),
                "{said:?}"
            );
            assert!(!said.stdout.contains("wrote "), "{said:?}");
            return Ok(());
        }
        for Host(number, ..) in site.nodes {
            let said = self.init(&self.node(*number), &["--write"])?;
            let tried = "tried with copies of the files: nothing against them from slurmctld and slurmd -G of this host";
            assert!(said.contains(tried), "{}: {said}", site.folder);
        }
        for Host(number, ..) in site.nodes {
            let again = self.init(&self.node(*number), &[])?;
            assert!(
                again.contains("nothing to change"),
                "{}: {again}",
                site.folder
            );
        }

        self.adapt(site.nodes);
        self.restart()?;
        for Host(number, ..) in site.nodes {
            let node = self.node(*number);
            // Those of instances of the site; slurmd waits for each file of gres.conf, and takes the device from jobs.
            let caps = self.lab.folder().gpus(&node).join("dev/nvidia-caps");
            fs::create_dir_all(&caps).expect("root may");
            for number in [156, 157, 165, 166] {
                let _ = symlink("/dev/full", caps.join(format!("nvidia-cap{number}")));
            }
            let setup = self.lab.command("gpufrac").args(["node-setup"]);
            setup.env("SLURMD_NODENAME", &node).run()?.success()?;
            self.lab.start_slurmd(&node)?;
        }
        for Host(number, _, partition) in site.nodes {
            self.serves(&self.node(*number), partition)?;
        }
        let after = self.shown()?;
        let config = fs::read_to_string(self.lab.folder().gpufrac_conf()).expect("gpufrac.toml");
        let config =
            gpufrac_core::config::Config::parse(&config, "gpufrac.toml").expect("a good file");
        // Before 23.02 Slurm does not show nodes that are switched off.
        assert!(
            before
                .nodes
                .keys()
                .all(|name| after.nodes.contains_key(name))
        );
        for (name, node) in &before.nodes {
            let gres = (!config.pools_of_node(name).is_empty()).then_some("gres");
            let now = &after.nodes[name];
            assert_eq!(
                fields(node, gres),
                fields(now, gres),
                "{}: {name}",
                site.folder
            );
        }
        let parts = |running: &Running| -> Vec<_> {
            let all = running.partitions.iter();
            all.map(|(name, record)| (name.clone(), fields(record, None)))
                .collect()
        };
        assert_eq!(parts(&before), parts(&after), "{}", site.folder);
        for Host(number, ..) in site.nodes {
            let node = self.node(*number);
            self.lab
                .wait("the node is empty", Duration::from_secs(30), || {
                    let is_empty =
                        self.lab.leases(&node)?.is_empty() && self.lab.instances(&node)?.is_empty();
                    Ok(is_empty.then_some(()))
                })?;
        }
        Ok(())
    }

    /// A half of a GPU runs on a node.
    fn serves(&self, node: &str, partition: &str) -> Result<(), LabError> {
        let lab = &self.lab;
        lab.wait("the node is idle", Duration::from_secs(60), || {
            Ok((lab.node(node)?.state() == "IDLE").then_some(()))
        })?;
        let options = [
            "--gres=gpufrac:0.5",
            &format!("--nodelist={node}"),
            &format!("--partition={partition}"),
            "--mem=1",
            "--wrap=echo $GPUFRAC_FRACTION",
        ];
        let job = lab.sbatch(&lab.users()[0], &options)?;
        assert_eq!(lab.wait_for_end(job)?.state(), "COMPLETED");
        assert_eq!(lab.output(job)?, "0.5\n");
        Ok(())
    }
}

/// The fields of a node or a partition that a proposal may not change.
fn fields(record: &Record, changed: Option<&str>) -> Vec<(String, String)> {
    let mut pairs = record.pairs();
    pairs.retain(|(key, _)| {
        let key = key.as_str();
        !CHANGING.contains(&key) && !OF_SLURMD.contains(&key) && changed != Some(key)
    });
    pairs
}

/// Promise (admins): the proposal of `gpufrac init` is tried with the host's slurmctld and `slurmd -G`; Slurm starts
/// with it on each kind of site, a fraction runs on each pool, and nodes and partitions stay as they were otherwise.
/// With `only_devices_of_pools_may_change`, `what_both_say_speaks_against_nothing`.
#[test]
fn slurm_starts_with_the_proposal_for_each_site_and_a_fraction_runs() -> Result<(), LabError> {
    // An everyday run tries each site on one series, and --full, which reads more random sites too, each on all.
    let is_full = std::env::var_os("GPUFRAC_SITES").is_some();
    let series = usize::from(crate::since(24, 11)?) + usize::from(crate::since(26, 5)?);
    let mut world = World::start()?;
    for (number, site) in SITES.iter().enumerate() {
        if is_full || number % 3 == series {
            world.run(site)?;
        }
    }
    Ok(())
}
