//! `gpufrac check --migration` on the files of a site, with recorded answers of Slurm's programs.
#![allow(clippy::unwrap_used, reason = "a test stops where it fails")]

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

const POOLS: &str = "version = 1\n[gres]\nname = \"frac\"\n[pool.h100]\nmechanism = \"mig\"\nlayout = \"halves\"\ngpu = \"H100-80\"\npartitions = [\"h100\"]\nnodes = \"gn[01-02]\"\n";

const PROGRAMS: [(&str, &str); 4] = [
    (
        "scontrol",
        "echo 'slurm_load_ctl_conf error: no answer' >&2; exit 1",
    ),
    ("sbatch", "exit 1"),
    (
        "squeue",
        "echo '7_[1-5]  |ann |h100 |1 |gres/gpu:h100:1 |N/A |N/A |N/A'; echo '8|bob|h100|1|gres/shard:12|N/A|N/A|N/A'",
    ),
    (
        "sacct",
        "echo 'ann|h100|cpu=1,gres/gpu=1|sbatch --gres=gpu:h100:1 job.sh'; echo 'eve|h100|cpu=1,gres/gpu=1|sbatch --gres=gpu:h100:1 x'; echo 'eve|h100|cpu=1,gres/shard=4|sbatch x'",
    ),
];

struct World(tempfile::TempDir);

impl World {
    fn new() -> World {
        let world = World(tempfile::tempdir().unwrap());
        let site = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/sites/shards");
        for entry in fs::read_dir(site).unwrap().flatten() {
            fs::copy(
                entry.path(),
                world.path(entry.file_name().to_str().unwrap()),
            )
            .unwrap();
        }
        fs::write(world.path("gpufrac.toml"), POOLS).unwrap();
        fs::create_dir(world.path("bin")).unwrap();
        for (name, script) in PROGRAMS {
            let path = world.path("bin").join(name);
            fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        }
        world
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn list(&self, more: &[&str]) -> (Option<i32>, String) {
        let output = Command::new(env!("CARGO_BIN_EXE_gpufrac"))
            .args(["check", "--migration"])
            .args(more)
            .env("GPUFRAC_CONFIG", self.path("gpufrac.toml"))
            .env("SLURM_CONF", self.path("slurm.conf"))
            .env("SLURMD_NODENAME", "login")
            .env(
                "PATH",
                format!("{}:/usr/bin:/bin", self.path("bin").display()),
            )
            .output()
            .unwrap();
        let texts = [output.stdout, output.stderr].map(|text| String::from_utf8(text).unwrap());
        (output.status.code(), texts.concat())
    }
}

#[test]
fn a_migration_is_listed_before_anything_is_written() {
    let world = World::new();
    let before = fs::read_to_string(world.path("slurm.conf")).unwrap();
    let (code, said) = world.list(&[]);
    assert_eq!(code, Some(1), "{said}");
    for line in [
        "GPUs of partition h100 are lent in parts.",
        "  - the Type h100 of whole GPUs ends on gn[01-02]: instead of --gres=gpu:h100:1 users write --gres=gpufrac:0.5, the largest part",
        "  - the 48 shards of gn[01-02] end: ",
        "  - GPUs without a Type (--gres=gpu:1) are refused in partition h100: users write --gres=gpufrac:0.5, the largest part",
        "  - partition h100: --gres=gpu:h100:1 -> --gres=gpufrac:0.5 (2 jobs of ann, eve)\n",
        // 48 shards are two GPUs.
        "  - partition h100: --gres=shard:4 -> --gres=gpufrac:0.25 (1 job of eve)\n",
        "  - partition h100: --gres=shard:12 -> --gres=gpufrac:0.5 (1 job of bob)\n",
        "  - job 7_[1-5] of ann, partition h100: --gres=gpu:h100:1 -> --gres=gpufrac:0.5\n",
        "partition h100 bills gres/gpu and not gres/frac: ",
        "TRESBillingWeights=\"CPU=1.0,Mem=0.25G,GRES/frac=0.2\"",
    ] {
        assert!(said.contains(line), "no `{line}` in {said}");
    }
    assert_eq!(
        fs::read_to_string(world.path("slurm.conf")).unwrap(),
        before
    );
}

#[test]
fn a_migration_is_also_an_object_and_says_what_is_not_known() {
    let world = World::new();
    fs::write(
        world.path("bin/sacct"),
        "#!/bin/sh\necho 'no slurmdbd' >&2\nexit 1\n",
    )
    .unwrap();
    let (code, said) = world.list(&["--json"]);
    assert_eq!(code, Some(1), "{said}");
    let list: serde_json::Value = serde_json::from_str(&said).unwrap();
    assert_eq!(list["pending"][1]["user"], "bob");
    assert_eq!(list["requests"][0]["new"], "--gres=gpufrac:0.5");
    let unknown = list["unknown"].to_string();
    assert!(
        unknown.contains(
            "sacct does not answer (no slurmdbd): requests of the last 30 days are not listed"
        ),
        "{unknown}"
    );
    assert!(
        unknown.contains("scontrol does not answer (slurm_load_ctl_conf error: no answer): limits and reservations are not judged"),
        "{unknown}"
    );
    fs::write(world.path("gpufrac.toml"), "version = 1\nx = 1\n").unwrap();
    assert_eq!(world.list(&[]).0, Some(2));
}
