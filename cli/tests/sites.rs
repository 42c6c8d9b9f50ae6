//! `gpufrac init` on clusters in the forms of real sites (`cli/tests/sites`), with simulated GPUs.
#![allow(clippy::unwrap_used, reason = "a test stops where it fails")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use nvidia_ml::model::Model;
use nvidia_ml::node::Node;
use nvidia_ml::store::Store;

/// A site, and what `init` makes of it on one of its nodes.
struct Case {
    site: &'static str,
    node: &'static str,
    /// The GPUs that NVML shows; none where it does not answer.
    gpus: &'static [&'static str],
    args: &'static [&'static str],
    /// A line of each file after the change.
    lines: &'static [(&'static str, &'static str)],
    /// Texts that the files no longer have.
    gone: &'static [(&'static str, &'static str)],
    /// Parts of what is printed.
    said: &'static [&'static str],
}

const H100: &str = "H100-80";
const MODEL: [&str; 2] = ["--gpu", H100];

// Each pool lists its GPUs, and lends other parts.
const TWO_MODELS: Case = Case {
    site: "two-models",
    node: "mix01",
    gpus: &["A100-40", "L40S-48", "L40S-48", "A100-40"],
    args: &[],
    lines: &[
        ("gpufrac.toml", "cpus_per_gpu = 16"),
        ("gpufrac.toml", "memory_per_gpu = \"125000M\""),
    ],
    gone: &[],
    said: &[
        "partition gpu: a GPU brings 16 CPUs and 125000 MB",
        "instead of --gres=gpu:a100:1 users write --gres=gpufrac:0.5, the largest part",
        "instead of --gres=gpu:l40s:1 users write --gres=gpufrac:1\n",
    ],
};

const CASES: [Case; 20] = [
    Case {
        site: "untyped",
        node: "gn01",
        gpus: &[],
        args: &MODEL,
        lines: &[
            (
                "slurm.conf",
                "NodeName=gn[01-04] Sockets=2 CoresPerSocket=32 RealMemory=512000 Gres=gpu:half:8,shard:half:400,frac:400",
            ),
            (
                "gres.conf",
                "NodeName=gn[01-04] Name=gpu Type=half File=/dev/gpufrac/half[0-7]",
            ),
        ],
        gone: &[("gres.conf", "/dev/nvidia")],
        said: &[
            "GPUs without a Type (--gres=gpu:1) are refused in partition gpu: users write --gres=gpufrac:0.5, the largest part",
        ],
    },
    Case {
        site: "static-mig",
        node: "gn02",
        gpus: &[H100, H100],
        args: &[],
        lines: &[(
            "slurm.conf",
            "NodeName=gn[01-04] Sockets=2 CoresPerSocket=32 RealMemory=512000 Gres=gpu:half:4,shard:half:200,frac:200",
        )],
        gone: &[("slurm.conf", "1g.10gb")],
        said: &[
            "gn01,gn[03-04]: taken to have 2 GPUs, as many as gn02",
            "gn[01-04] has MIG instances that the site made (gpu:h100_1g.10gb:7,gpu:h100_3g.40gb:2)",
        ],
    },
    Case {
        site: "static-mig",
        node: "gn01",
        gpus: &[],
        args: &["--gpu", H100, "--gpus", "2"],
        lines: &[(
            "slurm.conf",
            "NodeName=gn[01-04] Sockets=2 CoresPerSocket=32 RealMemory=512000 Gres=gpu:half:4,shard:half:200,frac:200",
        )],
        gone: &[],
        said: &[],
    },
    Case {
        site: "shards",
        node: "gn01",
        gpus: &[],
        args: &MODEL,
        lines: &[
            (
                "slurm.conf",
                "NodeName=gn[01-02] Sockets=2 CoresPerSocket=24 RealMemory=512000 Gres=gpu:half:4,shard:half:200,frac:200",
            ),
            (
                "slurm.conf",
                "NodeName=gn03 Sockets=2 CoresPerSocket=16 RealMemory=256000 Gres=gpu:a40:2,shard:a40:400",
            ),
            ("gres.conf", "NodeName=gn[01-02] AutoDetect=off"),
            ("gres.conf", "NodeName=gn03 Name=shard Count=400"),
            ("gpufrac.toml", "partitions = [\"h100\"]"),
        ],
        gone: &[],
        said: &[
            "the 48 shards of gn[01-02] end",
            "the Type h100 of whole GPUs ends on gn[01-02]",
        ],
    },
    Case {
        site: "shards",
        node: "gn03",
        gpus: &[],
        args: &["--gpu", "A40-48"],
        lines: &[(
            "slurm.conf",
            "NodeName=gn03 Sockets=2 CoresPerSocket=16 RealMemory=256000 Gres=gpu:mps:2,shard:mps:200,frac:200",
        )],
        gone: &[],
        said: &["the 400 shards of gn03 end"],
    },
    Case {
        site: "nodeset",
        node: "gn1",
        gpus: &[],
        args: &MODEL,
        lines: &[
            ("gpufrac.toml", "partitions = [\"gpu\", \"long\"]"),
            ("gpufrac.toml", "nodes = \"gn[1-5]\""),
        ],
        gone: &[],
        said: &[],
    },
    Case {
        site: "lists",
        node: "gn01",
        gpus: &[H100, H100, H100, H100],
        args: &[],
        lines: &[
            ("gpufrac.toml", "partitions = [\"gpu\", \"some\"]"),
            (
                "slurm.conf",
                "PartitionName=gpu Nodes=gn[01-04],gn02,,gn05,",
            ),
        ],
        gone: &[],
        said: &[],
    },
    Case {
        site: "mps",
        node: "gn01",
        gpus: &[H100, H100],
        args: &[],
        lines: &[(
            "slurm.conf",
            "NodeName=gn[01-02] Sockets=2 CoresPerSocket=32 RealMemory=512000 Gres=gpu:half:4,shard:half:200,frac:200",
        )],
        gone: &[("gres.conf", "Name=mps"), ("slurm.conf", "mps:200")],
        said: &["mps ends on gn[01-02]"],
    },
    Case {
        site: "defaults",
        node: "gn03",
        gpus: &[],
        args: &MODEL,
        lines: &[
            (
                "nodes.conf",
                "NodeName=gn[01-04] Gres=gpu:half:8,shard:half:400,frac:400",
            ),
            ("gpufrac.toml", "partitions = [\"gpu\", \"long\"]"),
            ("gres.conf", "AutoDetect=nvml"),
            ("gres.conf", "NodeName=gn[01-04] AutoDetect=off"),
        ],
        gone: &[],
        said: &[],
    },
    Case {
        site: "part-of-a-node",
        node: "gn01",
        gpus: &[H100; 8],
        args: &[],
        lines: &[
            (
                "gres.conf",
                "NodeName=gn[01-02] Name=gpu Type=half File=/dev/gpufrac/half[0-3]",
            ),
            (
                "gres.conf",
                "NodeName=gn[01-02] Name=gpu Type=h100 File=/dev/nvidia[2-7]",
            ),
            (
                "gres.conf",
                "NodeName=gn[01-02] Name=shard Type=h100 Count=6 File=/dev/nvidia[2-7]",
            ),
            (
                "slurm.conf",
                "NodeName=gn[01-02] Sockets=2 CoresPerSocket=32 RealMemory=512000 Gres=gpu:half:4,shard:half:200,gpufrac:200,gpu:h100:6,shard:h100:6",
            ),
        ],
        gone: &[],
        said: &[],
    },
    // gres.conf has the lines of this node's line of slurm.conf alone: l[01-04] have another file.
    Case {
        site: "own-files",
        node: "h01",
        gpus: &[],
        args: &MODEL,
        lines: &[(
            "gres.conf",
            "NodeName=h[01-02] Name=gpu Type=half File=/dev/gpufrac/half[0-7]",
        )],
        gone: &[("gres.conf", "l[01-04]"), ("gres.conf", "h100")],
        said: &[
            "gres.conf: l[01-04] have other GPUs by their Gres= than the lines without NodeName, and get none of these lines",
            "run `gpufrac init` on one of them",
            "write the same on every other one, but gres.conf not on l[01-04], which keep their own;",
        ],
    },
    TWO_MODELS,
    Case {
        site: "two-detected",
        ..TWO_MODELS
    },
    Case {
        site: "linear",
        node: "h01",
        gpus: &[],
        args: &MODEL,
        lines: &[
            ("slurm.conf", "SelectType=select/cons_tres"),
            (
                "slurm.conf",
                "SelectTypeParameters=CR_Core_Memory,CR_ONE_TASK_PER_CORE",
            ),
        ],
        gone: &[],
        said: &[
            "with select/linear each job got whole nodes; with select/cons_tres jobs share nodes, also nodes without GPUs",
        ],
    },
    // The partition has nodes with other GPUs, which are in no pool.
    Case {
        site: "other-models",
        node: "h01",
        gpus: &[],
        args: &MODEL,
        lines: &[("gpufrac.toml", "nodes = \"h[01-02]\"")],
        gone: &[],
        said: &[
            "GPUs without a Type (--gres=gpu:1) are refused in partition gpu: users write --gres=gpufrac:0.5, the largest part, because no whole \
             GPU is lent there, or the Type of a GPU that is in no pool, --gres=gpu:l40s:1",
        ],
    },
    // Slurm uses the last `Gres=` of a line.
    Case {
        site: "twice",
        node: "gn01",
        gpus: &[],
        args: &MODEL,
        lines: &[(
            "slurm.conf",
            "NodeName=gn[01-03] CPUs=64 Gres=gpu:h200:4 RealMemory=500000 Gres=gpu:half:16,shard:half:800,frac:800",
        )],
        gone: &[],
        said: &[],
    },
    Case {
        site: "part-untyped",
        node: "gn01",
        gpus: &[H100; 4],
        args: &[],
        lines: &[
            (
                "gres.conf",
                "NodeName=gn[01-02] Name=gpu File=/dev/nvidia2,/dev/nvidia3 Type=plain",
            ),
            (
                "gres.conf",
                "NodeName=gn[01-02] Name=shard Type=plain Count=2 File=/dev/nvidia[2-3]",
            ),
            (
                "slurm.conf",
                "NodeName=gn[01-02] Sockets=2 CoresPerSocket=32 RealMemory=512000 Gres=gpu:half:4,shard:half:200,gpufrac:200,gpu:plain:2,shard:plain:2",
            ),
        ],
        gone: &[],
        said: &["the GPUs without a pool on gn[01-02] get the Type plain"],
    },
    Case {
        site: "per-gpu-defaults",
        node: "gn01",
        gpus: &[H100; 8],
        args: &[],
        lines: &[
            ("gpufrac.toml", "partitions = [\"gpu\", \"small\"]"),
            (
                "slurm.conf",
                "NodeName=gn[01-02] Sockets=2 CoresPerSocket=32 RealMemory=512000 Gres=gpu:half:16,shard:half:800,frac:800",
            ),
            (
                "slurm.conf",
                "PartitionName=small Nodes=gn[01-02] DefCpuPerGPU=4 DefMemPerGPU=16000",
            ),
        ],
        gone: &[],
        said: &[],
    },
    // AutoDetect gave the GPUs without a pool their Types.
    Case {
        site: "models",
        node: "gn01",
        gpus: &["A100-40", "L40S-48", H100, "L40S-48", "H100-94"],
        args: &[],
        lines: &[
            (
                "gres.conf",
                "NodeName=gn01 Name=gpu Type=h100_80gb File=/dev/nvidia2",
            ),
            (
                "gres.conf",
                "NodeName=gn01 Name=gpu Type=h100 File=/dev/nvidia4",
            ),
            (
                "gres.conf",
                "NodeName=gn01 Name=gpu Type=L40S File=/dev/nvidia1,/dev/nvidia3",
            ),
            (
                "slurm.conf",
                "NodeName=gn01 CPUs=64 Gres=gpu:half:2,shard:half:100,gpufrac:100,gpu:L40S:2,shard:L40S:2,gpu:h100:1,shard:h100:1,gpu:h100_80gb:1,shard:h100_80gb:1",
            ),
        ],
        gone: &[],
        said: &[],
    },
    // Instances of the site on a GPU that has no pool stay, behind gpufrac's devices.
    Case {
        site: "instances-beside",
        node: "gn01",
        gpus: &[H100, H100],
        args: &[],
        lines: &[
            (
                "gres.conf",
                "NodeName=gn01 Name=gpu Type=half File=/dev/gpufrac/half[0-1]",
            ),
            (
                "gres.conf",
                "NodeName=gn01 Name=gpu Type=h100_1g.10gb MultipleFiles=/dev/nvidia1,/dev/nvidia-caps/nvidia-cap156,/dev/nvidia-caps/nvidia-cap157",
            ),
            (
                "slurm.conf",
                "NodeName=gn01 CPUs=64 Gres=gpu:half:2,shard:half:100,gpufrac:100,gpu:h100_1g.10gb:2",
            ),
        ],
        gone: &[("gres.conf", "/dev/nvidia0")],
        said: &["from 23.11 on Slurm wants shares of each Type, which an instance cannot have"],
    },
];

struct World(tempfile::TempDir);

impl World {
    fn of(case: &Case) -> World {
        let folder = tempfile::tempdir().unwrap();
        let world = World(folder);
        let from = Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("tests/sites")
            .join(case.site);
        fs::create_dir(world.path("")).unwrap();
        for entry in fs::read_dir(from).unwrap().flatten() {
            fs::copy(
                entry.path(),
                world.path(entry.file_name().to_str().unwrap()),
            )
            .unwrap();
        }
        if !case.gpus.is_empty() {
            let root = world.0.path().join("gpus");
            let models = case.gpus.iter().map(|name| Model::find(name).unwrap());
            let models: Vec<&Model> = models.collect();
            Store::create(&root, &Node::new("550.54.15", &models, false)).unwrap();
            let built = std::env::current_exe()
                .unwrap()
                .with_file_name("libnvidia_ml.so");
            fs::create_dir_all(root.join("lib")).unwrap();
            fs::copy(built, root.join("lib/libnvidia-ml.so.1")).unwrap();
        }
        world
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join("etc").join(name)
    }

    fn read(&self, name: &str) -> String {
        fs::read_to_string(self.path(name)).unwrap()
    }

    /// The exit status and all that is printed.
    fn init(&self, case: &Case, more: &[&str]) -> (Option<i32>, String) {
        let output = Command::new(env!("CARGO_BIN_EXE_gpufrac"))
            .args(["init", "--slurm-conf"])
            .arg(self.path("slurm.conf"))
            // tests/lab/tests/e2e/proposals.rs tries the proposals.
            .arg("--no-trial")
            .args(case.args)
            .args(more)
            .env("GPUFRAC_CONFIG", self.path("gpufrac.toml"))
            .env("SLURMD_NODENAME", case.node)
            .env("LD_LIBRARY_PATH", self.0.path().join("gpus/lib"))
            .env_remove("NVML_SIM_ROOT")
            .output()
            .unwrap();
        let texts = [output.stdout, output.stderr].map(|text| String::from_utf8(text).unwrap());
        (output.status.code(), texts.concat())
    }
}

/// Promise (admins): GPUs without a pool get a Type and a share, which Slurm needs beside gpufrac's.
/// With `the_share_of_a_gpu_names_its_file`.
#[test]
fn init_reads_the_forms_of_real_sites() {
    for case in CASES {
        let world = World::of(&case);
        let (code, said) = world.init(&case, &["--write"]);
        let about = format!("{} on {}: {said}", case.site, case.node);
        assert_eq!(code, Some(0), "{about}");
        for (file, line) in case.lines {
            let text = world.read(file);
            let has = text.lines().any(|own| own == *line);
            assert!(has, "{about}\n{file} has no `{line}`:\n{text}");
        }
        for (file, text) in case.gone {
            assert!(!world.read(file).contains(text), "{about}\n{file}: {text}");
        }
        for part in case.said {
            assert!(said.contains(part), "no `{part}`: {about}");
        }
        let (code, again) = world.init(&case, &[]);
        assert_eq!(code, Some(0), "{again}");
        assert!(
            again.contains("nothing to change"),
            "{}: {again}",
            case.site
        );
    }
}

/// Promise (admins): `gpufrac init` reads sites as they are: GPUs without a Type, instances of the site, shards, mps,
/// node sets, AutoDetect; GPUs without a pool stay; it asks where the number of GPUs is not certain.
/// With `init_reads_the_forms_of_real_sites`, `gpus_of_an_unknown_model_are_in_no_pool_unless_their_model_is_told`.
// Facts that do not agree, and a site where nothing tells.
#[test]
fn init_asks_where_the_number_of_gpus_is_not_certain() {
    let mut case = Case {
        site: "untyped",
        node: "gn01",
        gpus: &[H100, H100],
        args: &[],
        lines: &[],
        gone: &[],
        said: &[],
    };
    let (code, said) = World::of(&case).init(&case, &["--write"]);
    assert_eq!(code, Some(1));
    for part in ["NVML says 2", "says 4", "hint: ", "--gpus N"] {
        assert!(said.contains(part), "{said}");
    }
    (case.site, case.gpus, case.args) = ("static-mig", &[], &MODEL);
    let world = World::of(&case);
    let (code, said) = world.init(&case, &["--write"]);
    assert_eq!(code, Some(1));
    for part in ["MIG instances", "gpu:h100_3g.40gb:2", "--gpus N"] {
        assert!(said.contains(part), "{said}");
    }
    assert!(!world.path("gpufrac.toml").exists(), "nothing was written");
    // `--gpu` names one model, and the node has GPUs of two.
    (case.site, case.node, case.args) = ("two-models", "mix01", &["--gpu", "A100-40"]);
    let world = World::of(&case);
    let (code, said) = world.init(&case, &["--write"]);
    assert_eq!(code, Some(1));
    for part in [
        "GPUs of mix01 apart failed: Slurm counts GPUs of the Types a100, l40s there",
        "hint: ",
        "--gpus N",
    ] {
        assert!(said.contains(part), "{said}");
    }
    assert!(!world.path("gpufrac.toml").exists(), "nothing was written");
    let (code, said) = world.init(&case, &["--gpus", "4"]);
    assert_eq!(code, Some(0), "{said}");
}
