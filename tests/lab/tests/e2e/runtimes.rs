//! Programs in containers of Debian's own Charliecloud and podman: they see the slice of their job, and no other.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use debian::{DebianError, Release};
use gpufrac_lab::{Lab, LabBuilder, LabError};
use serde_json::json;

use crate::shared_devices::{control, start_with_control};
use crate::timeslice_and_hami;

const POOLS: &str = r#"
[pool.mig]
mechanism = "mig"
layout = "halves"
gpu = "H100-80"
partitions = ["mig"]
cdi = true
nodes = "@NODES@"
gpus = [0]

[pool.mps]
mechanism = "mps"
tenancy = "shared"
gpu = "L40S-48"
partitions = ["mps"]
cdi = true
nodes = "@NODES@"
gpus = [1]

[pool.timeslice]
mechanism = "timeslice"
gpu = "T4-16"
partitions = ["timeslice"]
cdi = true
nodes = "@NODES@"
gpus = [2]

[pool.hami]
mechanism = "hami"
library = "@LIBRARY@"
gpu = "L40S-48"
partitions = ["hami"]
cdi = true
nodes = "@NODES@"
gpus = [3]
"#;
const MECHANISMS: [&str; 4] = ["mig", "mps", "timeslice", "hami"];

/// A program in a container: its variables, the nodes in a folder that it opens (without a driver they answer that
/// there is no device), the answer of its control daemon, and the library of HAMi-core that is loaded.
const LOOK: &str = r#"echo "mechanism=$GPUFRAC_MECHANISM device=$CUDA_VISIBLE_DEVICES"
echo "limits=$CUDA_MPS_ACTIVE_THREAD_PERCENTAGE,$CUDA_MPS_PINNED_DEVICE_MEM_LIMIT,$CUDA_DEVICE_MEMORY_LIMIT"
echo "library=$(grep -om1 libvgpu.so /proc/self/maps)"
for file in "$1"/nvidia[0-9]* "$1"/nvidia-caps/*; do
    (exec 3<"$file") 2>&1 | grep -q 'No such device' && echo "node=${file##*/}"
done
perl "${0%/*}/connect.pl" "$CUDA_MPS_PIPE_DIRECTORY/control" | sed 's/^/daemon=/'; echo
"#;

/// Makes the root of a container from the machine's own /usr.
const ROOT: &str = "mkdir image.$SLURM_JOB_ID && cd image.$SLURM_JOB_ID && \
    mkdir usr proc sys dev tmp run etc && for name in bin lib lib64 sbin; do ln -s usr/$name; done && \
    touch etc/passwd etc/group etc/hosts etc/resolv.conf && cd ..\n";

/// Starts podman in a namespace where the simulated driver's nodes are in /dev and the node's files of CDI in /run, as
/// on a real node. crun of bookworm refuses a machine that has control groups of both versions, so one is hidden.
const PODMAN: &str = r#"set -e
mkdir dev run
mount -t tmpfs dev dev
mkdir dev/pts dev/shm dev/mqueue
for node in null zero full random urandom tty; do
    touch "dev/$node"; mount --bind "/dev/$node" "dev/$node"
done
for node in $(cd "$DEV" && find nvidia* ! -type d); do
    mkdir -p "dev/$(dirname "$node")"; touch "dev/$node"; mount --bind "$DEV/$node" "dev/$node"
done
mount --rbind dev /dev
mount -t tmpfs run run
mkdir run/cdi
cp "$CDI"/* "$WORK"/driver.json run/cdi
mount --rbind run /run
[ ! -d /sys/fs/cgroup/unified ] || mount -t tmpfs none /sys/fs/cgroup/unified
podman $STORE run --rm --cgroups=disabled --network=host --security-opt seccomp=unconfined \
    $OPTIONS -v /usr:/usr:ro -v "$WORK:$WORK" \
    --rootfs "$PWD/image.$SLURM_JOB_ID" /bin/bash "$WORK/$PROGRAM" /dev
"#;

/// The job's device of CDI, and what `nvidia-ctk cdi generate` describes on a real node.
const DEVICES: &str = "--device gpufrac.io/slice=$SLURM_JOB_ID --device test.io/driver=all";

/// The GPUs in a container that `nvidia-smi` lists, and programs that take a part of the slice's memory and more than
/// all of it.
const USE: &str = r#""${0%/*}/nvidia-smi" -L
for memory in 8G 20G; do
    "${0%/*}/gpusim" --root "$GPUS" run --memory $memory --seconds 0 && echo "took=$memory"
done
true
"#;

/// What a program saw.
#[derive(Debug, PartialEq, Eq)]
struct Seen {
    mechanism: String,
    device: String,
    limits: String,
    nodes: BTreeSet<String>,
    daemon: String,
    library: String,
}

impl Seen {
    fn read(output: &str) -> Seen {
        let words = || output.split_whitespace();
        let get = |name: &str| {
            let value = words().find_map(|word| word.strip_prefix(name));
            value.unwrap_or_default().to_owned()
        };
        Seen {
            mechanism: get("mechanism="),
            device: get("device="),
            limits: get("limits="),
            nodes: words()
                .filter_map(|word| word.strip_prefix("node="))
                .map(str::to_owned)
                .collect(),
            daemon: get("daemon="),
            library: get("library="),
        }
    }
}

/// Unpacks packages of a release in a folder of this name, once: another test may run what is there.
pub(crate) fn unpack(release: &str, name: &str, packages: &[&str]) -> Result<PathBuf, DebianError> {
    let cache = Path::new(env!("CARGO_TARGET_TMPDIR")).join("runtimes");
    let packed = Release::open(&cache, release)?;
    let folder = cache.join(release).join(name);
    if folder.exists() {
        return Ok(folder);
    }
    let partial = folder.with_extension("partial");
    for name in packages {
        debian::extract(&packed.package(name)?, &partial)?;
    }
    fs::rename(&partial, &folder).expect("a new folder");
    Ok(folder)
}

/// The variable with the libraries of unpacked packages.
fn libraries(folder: &Path) -> String {
    let folder = folder.display();
    let usr = format!("{folder}/usr/lib/x86_64-linux-gnu");
    format!("LD_LIBRARY_PATH={usr}:{folder}/lib/x86_64-linux-gnu")
}

/// A pool of each mechanism; `place` is for the library of HAMi-core.
fn builder(place: &Path) -> LabBuilder {
    let builder = Lab::builder().gpu_list(&["H100-80:mig", "L40S-48", "T4-16", "L40S-48"]);
    let library = timeslice_and_hami::build(place, "vgpu");
    let builder = builder.pools(&POOLS.replace("@LIBRARY@", &library));
    let with_partition = |builder: LabBuilder, mechanism| builder.partition(mechanism, "");
    MECHANISMS.into_iter().fold(builder, with_partition)
}

/// The output of a job in the pool of a mechanism.
fn output(lab: &Lab, mechanism: &str, script: &str) -> Result<String, LabError> {
    let dev = lab.folder().gpus(&lab.nodes()[0]).join("dev");
    let (dev, work) = (dev.display(), lab.folder().work());
    let work = work.display();
    let script =
        format!("#!/bin/bash\nexport USER=$(id -un) WORK={work} DEV={dev}\n{ROOT}{script}");
    let script = lab.write_work(&format!("{mechanism}.sh"), &script)?;
    let script = script.display().to_string();
    let user = &lab.users()[0];
    let job = lab.sbatch(user, &["-p", mechanism, "--gres=gpufrac:0.25", &script])?;
    let ended = lab.wait_for_end(job)?;
    let output = lab.output(job)?;
    assert_eq!(ended.state(), "COMPLETED", "{output}");
    Ok(output)
}

/// What a batch script saw without a container, and what a script printed after that.
fn run(lab: &Lab, mechanism: &str, script: &str) -> Result<(Seen, String), LabError> {
    lab.write_work("look.sh", LOOK)?;
    let look = "bash $WORK/look.sh $DEV; echo BORDER";
    let output = output(lab, mechanism, &format!("{look}\n{script}"))?;
    let (outside, inside) = output.split_once("BORDER").expect("the script");
    let outside = Seen::read(outside);
    assert_eq!(outside.mechanism, mechanism, "{output}");
    let nodes = if mechanism == "mig" { 3 } else { 1 };
    assert_eq!(outside.nodes.len(), nodes, "{output}");
    let daemon = if mechanism == "mps" { "connected" } else { "No" };
    assert_eq!(outside.daemon, daemon, "{output}");
    let has_limits = ["mps", "hami"].contains(&mechanism);
    assert_eq!(outside.limits.len() > 2, has_limits, "{output}");
    assert_eq!(!outside.library.is_empty(), mechanism == "hami", "{output}");
    Ok((outside, inside.to_owned()))
}

/// Promise (users): a program in a container of Charliecloud sees the slice of its job and no other, with MIG, MPS,
/// time slices and HAMi-core, without an option of gpufrac.
#[test]
fn charliecloud_shows_a_program_its_slice() -> Result<(), LabError> {
    let packages = [
        "charliecloud-runtime",
        "libfuse3-3",
        "liblzo2-2",
        "libsquashfuse0",
    ];
    let folder = test_seed::needed(unpack("bookworm", "charliecloud", &packages));
    let place = timeslice_and_hami::folder();
    let lab = start_with_control(builder(place.path()), &control())?;
    let ch_run = format!("{}/usr/bin/ch-run", folder.display());
    let script = format!(
        "{} {ch_run} -b /usr:/usr $WORK/image.$SLURM_JOB_ID -- /bin/bash $WORK/look.sh $DEV",
        libraries(&folder)
    );
    for mechanism in MECHANISMS {
        let (outside, inside) = run(&lab, mechanism, &script)?;
        assert_eq!(Seen::read(&inside), outside, "{inside}");
    }
    lab.expect_nothing_left()
}

/// A program of unpacked packages that another program starts without its environment.
fn wrapped(lab: &Lab, folder: &Path, program: &str) -> Result<String, LabError> {
    let binary = folder.join("usr/bin").join(program);
    let libraries = libraries(folder);
    let script = format!("#!/bin/sh\n{libraries} exec {} \"$@\"\n", binary.display());
    let path = lab.write_work(program, &script)?;
    Ok(path.display().to_string())
}

/// Lines of a job's script that start podman, and podman the program `$PROGRAM` of the folder of work.
fn podman(lab: &Lab) -> Result<String, LabError> {
    let packages = [
        "podman",
        "conmon",
        "crun",
        "libassuan0",
        "libcap2",
        "libdevmapper1.02.1",
        "libglib2.0-0",
        "libgpgme11",
        "libseccomp2",
        "libsubid4",
        "libyajl2",
    ];
    let folder = test_seed::needed(unpack("bookworm", "podman", &packages));
    wrapped(lab, &folder, "podman")?;
    let [conmon, crun] = ["conmon", "crun"].map(|program| wrapped(lab, &folder, program));
    let conf = format!(
        "[engine]\nconmon_path = [\"{}\"]\nruntime = \"crun\"\ncgroup_manager = \"cgroupfs\"\nevents_logger = \"none\"\n\
         [engine.runtimes]\ncrun = [\"{}\"]\n",
        conmon?, crun?
    );
    let conf = lab.write_work("containers.conf", &conf)?;
    lab.write_work("podman.sh", PODMAN)?;
    let gpus = lab.folder().gpus(&lab.nodes()[0]);
    // What the files of nvidia-ctk are on a node with GPUs: the driver's libraries.
    let mount = json!({"hostPath": gpus, "containerPath": gpus, "options": ["rbind", "rw"]});
    let libraries = format!("LD_LIBRARY_PATH={}", gpus.join("lib").display());
    let edits = json!({"mounts": [mount], "env": [libraries, format!("GPUS={}", gpus.display())]});
    let device = json!({"name": "all", "containerEdits": edits});
    let driver = json!({"cdiVersion": "0.5.0", "kind": "test.io/driver", "devices": [device]});
    lab.write_work("driver.json", &driver.to_string())?;
    Ok(format!(
        "export CONTAINERS_CONF={} CDI={} PATH=$WORK:$PATH HOME=$PWD/home.$SLURM_JOB_ID\n\
         mkdir -m 700 $HOME $HOME/user && export XDG_RUNTIME_DIR=$HOME/user\n\
         export STORE=\"--root $HOME/store --runroot $HOME/user/store --storage-driver=vfs\"\n\
         mv image.$SLURM_JOB_ID $HOME && cd $HOME && podman $STORE unshare sh $WORK/podman.sh",
        conf.display(),
        folder_of_cdi(lab).display()
    ))
}

/// Where the prolog writes files of CDI.
fn folder_of_cdi(lab: &Lab) -> PathBuf {
    lab.folder().root().join("cdi").join(&lab.nodes()[0])
}

/// Promise (users): a program in a container of rootless podman sees the slice of its job and no other by the job's
/// device of CDI, with MIG, MPS, time slices and HAMi-core; without the device it has no GPU.
#[test]
fn podman_shows_a_program_its_slice() -> Result<(), LabError> {
    let place = timeslice_and_hami::folder();
    let lab = start_with_control(builder(place.path()), &control())?;
    let podman = podman(&lab)?;
    let with = |options| format!("export PROGRAM=look.sh OPTIONS=\"{options}\"\n{podman}");
    for mechanism in MECHANISMS {
        let (outside, inside) = run(&lab, mechanism, &with(DEVICES))?;
        assert_eq!(Seen::read(&inside), outside, "{inside}");
    }
    for options in ["", "--env-host"] {
        let (outside, inside) = run(&lab, "mig", &with(options))?;
        let seen = Seen::read(&inside);
        assert!(
            seen.nodes.is_empty() && outside.daemon == seen.daemon,
            "{inside}"
        );
        let variables = [seen.mechanism, seen.device];
        let expected = if options.is_empty() {
            [String::new(), String::new()]
        } else {
            [outside.mechanism, outside.device]
        };
        assert_eq!(variables, expected, "{inside}");
    }
    lab.wait_until_empty(Duration::from_secs(20))?;
    assert_eq!(
        fs::read_dir(folder_of_cdi(&lab)).expect("root may").count(),
        0
    );
    lab.expect_nothing_left()
}

/// Promise (users): `nvidia-smi -L` in a container with the job's device of CDI lists the slice alone, and a program
/// there cannot take more memory than MPS allows the job.
#[test]
fn a_container_has_the_devices_and_the_limits_of_its_job() -> Result<(), LabError> {
    let clients = Path::new(env!("CARGO_TARGET_TMPDIR")).join("clients");
    let (nvidia_smi, driver) = test_seed::needed(debian::nvidia_smi(&clients, "bookworm"));
    let place = timeslice_and_hami::folder();
    let lab = builder(place.path())
        .mps_standin()
        .driver(&driver)
        .start()?;
    for program in [nvidia_smi, lab.folder().bin().join("gpusim")] {
        let copy = lab
            .folder()
            .work()
            .join(program.file_name().expect("a name"));
        fs::copy(&program, copy).expect("a copy of the program");
    }
    lab.write_work("use.sh", USE)?;
    let script = format!(
        "export PROGRAM=use.sh OPTIONS=\"{DEVICES}\"\necho $CUDA_VISIBLE_DEVICES\n{}",
        podman(&lab)?
    );

    let mig = output(&lab, "mig", &script)?;
    let (uuid, listed) = mig.split_once('\n').expect("the script");
    assert!(listed.contains(&format!("(UUID: {uuid})")), "{mig}");
    assert_eq!(listed.matches("UUID: MIG-").count(), 1, "{mig}");
    assert_eq!(listed.matches("UUID: GPU-").count(), 1, "{mig}");
    // A fourth of an H100 has 20 GB; the driver keeps a part of it.
    assert_eq!(listed.matches("took=").count(), 1, "{mig}");

    let mps = output(&lab, "mps", &script)?;
    let (uuid, listed) = mps.split_once('\n').expect("the script");
    assert!(listed.contains(&format!("(UUID: {uuid})")), "{mps}");
    assert_eq!(listed.matches("UUID: ").count(), 1, "{mps}");
    // A simulated program finds no client of its server by number in a container, so none takes memory.
    let refused = listed.split_once("asked for 20480 MiB, ");
    let free = refused.and_then(|(_, rest)| rest.split_once(" MiB of 45471 MiB are free"));
    let free: Option<u32> = free.and_then(|(free, _)| free.parse().ok());
    assert!(free.is_some_and(|free| free <= 12 * 1024), "{mps}");
    lab.expect_nothing_left()
}
