//! Common parts of the tests of jobs that share a device.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use gpufrac_lab::{JobId, Lab, LabBuilder, LabError, MpsProcess, Outcome, User};

/// For a job's script: records its environment, the devices that it reaches, and whether its daemon answers, then
/// waits for [`release`].
pub const SEE: &str = "env > seen.$SLURM_JOB_ID; bash reach.sh > reached.$SLURM_JOB_ID; \
    perl connect.pl \"$CUDA_MPS_PIPE_DIRECTORY/control\" > connected.$SLURM_JOB_ID; \
    touch ready.$SLURM_JOB_ID; while [ ! -e go.$SLURM_JOB_ID ]; do sleep 0.05; done";

/// A device that may be opened answers like one without a driver.
const REACH: &str = r#"for file in DEV/nvidia[0-9]* DEV/nvidia-caps/*; do
    (exec 3<"$file") 2>&1 | grep -q 'No such device' && echo "${file##*/}"
done; true
"#;

/// Connects to a socket as a client of MPS does.
const CONNECT: &str = r#"use Socket;
socket(my $socket, AF_UNIX, SOCK_SEQPACKET, 0) or die;
print connect($socket, pack_sockaddr_un($ARGV[0])) ? "connected" : $!;
"#;

/// NVIDIA's own control program, which the tests of gpusim download.
pub fn control() -> PathBuf {
    let cache = Path::new(env!("CARGO_TARGET_TMPDIR")).join("clients");
    test_seed::needed(debian::mps_control(&cache))
}

/// Starts a lab with the scripts of this module.
pub fn start(builder: LabBuilder) -> Result<Lab, LabError> {
    let lab = builder.start()?;
    let devices = lab.folder().gpus(&lab.nodes()[0]).join("dev");
    let reach = REACH.replace("DEV", &devices.display().to_string());
    lab.write_work("reach.sh", &reach)?;
    lab.write_work("connect.pl", CONNECT)?;
    Ok(lab)
}

/// A lab with the real control program, which users can run as `mps-control` in `work`.
pub fn start_with_control(builder: LabBuilder, control: &Path) -> Result<Lab, LabError> {
    let lab = start(builder.mps_control(control))?;
    let copy = lab.folder().work().join("mps-control");
    std::fs::copy(control, copy).expect("a copy of the control program");
    Ok(lab)
}

/// Submits a job that runs [`SEE`].
pub fn submit(lab: &Lab, user: &User, args: &[&str]) -> Result<JobId, LabError> {
    let wrap = format!("--wrap={SEE}");
    lab.sbatch(user, &[args, &[wrap.as_str()]].concat())
}

/// Waits until a job of [`submit`] has recorded its environment.
pub fn ready(lab: &Lab, job: JobId) -> Result<Seen, LabError> {
    let work = lab.folder().work();
    lab.wait(&format!("job {job} runs"), Duration::from_secs(60), || {
        Ok(work.join(format!("ready.{job}")).exists().then_some(()))
    })?;
    let read = |name: &str| {
        std::fs::read_to_string(work.join(format!("{name}.{job}"))).expect("what the job saw")
    };
    let variable = |line: &str| {
        let (name, value) = line.split_once('=')?;
        // The lab's own variable, which every client has.
        (name != "GPUFRAC_CONFIG").then(|| (name.to_owned(), value.to_owned()))
    };
    Ok(Seen {
        environment: read("seen").lines().filter_map(variable).collect(),
        connected: read("connected"),
        devices: read("reached").lines().map(str::to_owned).collect(),
    })
}

/// [`submit`] and [`ready`].
pub fn run(lab: &Lab, user: &User, args: &[&str]) -> Result<(JobId, Seen), LabError> {
    let job = submit(lab, user, args)?;
    Ok((job, ready(lab, job)?))
}

/// Lets a job of [`submit`] end.
pub fn release(lab: &Lab, job: JobId) -> Result<(), LabError> {
    lab.write_work(&format!("go.{job}"), "").map(drop)
}

/// As [`release`], and waits until the job has succeeded.
pub fn finish(lab: &Lab, job: JobId) -> Result<(), LabError> {
    release(lab, job)?;
    let ended = lab.wait_for_end(job)?;
    assert_eq!(ended.state(), "COMPLETED", "{ended:?}");
    Ok(())
}

/// The records of a job.
#[derive(Debug)]
pub struct Seen {
    environment: BTreeMap<String, String>,
    /// `connected` if its control daemon admits it.
    pub connected: String,
    /// Names of the device nodes that it could open.
    pub devices: Vec<String>,
}

impl Seen {
    /// A variable; "" if there is none.
    pub fn get(&self, name: &str) -> &str {
        self.environment.get(name).map_or("", String::as_str)
    }

    /// Variables with this prefix, as `NAME=VALUE`.
    pub fn starting(&self, prefix: &str) -> Vec<String> {
        let all = self.environment.iter();
        all.filter(|(name, _)| name.starts_with(prefix))
            .map(|(name, value)| format!("{name}={value}"))
            .collect()
    }
}

/// The control daemons of a node, without their servers.
pub fn daemons(lab: &Lab, node: &str) -> Vec<MpsProcess> {
    let mut found = lab.mps_processes(node);
    found.retain(|process| process.control);
    found
}

/// The pipe directory of the daemon of a folder.
pub fn pipe(lab: &Lab, node: &str, folder: &str) -> PathBuf {
    lab.folder().run(node).join("mps").join(folder).join("pipe")
}

/// Sends a command to a daemon; returns its answer.
pub fn tell(lab: &Lab, user: &User, pipe: &Path, command: &str) -> Result<String, LabError> {
    // A front end without a daemon may wait.
    let script = "printf '%s\\n' \"$1\" | timeout 10 ./mps-control 2>&1";
    let told = lab.command("sh").args(["-c", script, "sh", command]);
    told.user(user)
        .env("CUDA_MPS_PIPE_DIRECTORY", pipe)
        .run()
        .map(|Outcome { stdout, .. }| stdout.trim().to_owned())
}

/// The result of a user's connection to the daemon: `connected`, or the error.
pub fn connect(lab: &Lab, user: &User, pipe: &Path) -> Result<String, LabError> {
    let socket = pipe.join("control").display().to_string();
    let connected = lab.command("perl").args(["connect.pl", &socket]).user(user);
    connected.stdout()
}

/// The limits of a daemon: threads and memory.
pub fn limits(lab: &Lab, pipe: &Path) -> Result<(String, String), LabError> {
    let ask = |command| tell(lab, &User::root(), pipe, command);
    Ok((
        ask("get_default_active_thread_percentage")?,
        ask("get_default_device_pinned_mem_limit 0")?,
    ))
}
