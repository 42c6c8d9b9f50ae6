//! A shell by ssh, which pam_slurm_adopt moves into a job, has the variables of the job's slice.

use std::collections::BTreeMap;
use std::time::Duration;

use gpufrac_lab::{JobId, Lab, LabError};

/// A pool whose jobs have limits of MPS, too.
const POOL: &str = r#"
[pool.p]
mechanism = "mig+mps"
layout = "halves"
gpu = "H100-80"
partitions = ["gpu"]
nodes = "@NODES@"
"#;

/// Variables that describe a slice.
fn of_slice(text: &str) -> BTreeMap<String, String> {
    let pairs = text.lines().filter_map(|line| line.split_once('='));
    let starts = ["CUDA_", "NVIDIA_", "GPUFRAC_"];
    let own = pairs.filter(|(name, _)| {
        starts.iter().any(|start| name.starts_with(start)) && *name != "GPUFRAC_CONFIG"
    });
    own.map(|(name, value)| (name.to_owned(), value.to_owned()))
        .collect()
}

/// What a shell prints that sourced the profile, in a job or in none.
fn login(lab: &Lab, job: Option<JobId>, line: &str) -> Result<String, LabError> {
    let profile = include_str!("../../../../packaging/profile.sh");
    lab.write_work("profile.sh", profile)?;
    adopted(lab, job, &format!(". ./profile.sh; {line}"))
}

/// The same of csh.
fn login_by_csh(lab: &Lab, job: Option<JobId>) -> Result<String, LabError> {
    let folder = test_seed::needed(crate::runtimes::unpack("bookworm", "tcsh", &["tcsh"]));
    // The users of the lab cannot read the tests' own folder.
    let tcsh = lab.folder().work().join("tcsh");
    if !tcsh.exists() {
        std::fs::copy(folder.join("bin/tcsh"), &tcsh).expect("tcsh of Debian");
    }
    lab.write_work(
        "profile.csh",
        include_str!("../../../../packaging/profile.csh"),
    )?;
    adopted(lab, job, "exec ./tcsh -f -c 'source profile.csh; env'")
}

/// What a line of bash prints, in a job or in none.
fn adopted(lab: &Lab, job: Option<JobId>, line: &str) -> Result<String, LabError> {
    let node = &lab.nodes()[0];
    let script = format!("until [ -e adopted ]; do sleep 0.05; done; {line}");
    let shell = lab
        .command("bash")
        .user(&lab.users()[0])
        .env("SLURMD_NODENAME", node)
        .current_dir(lab.folder().work())
        .args(["-c", &script])
        .spawn()?;
    if let Some(job) = job {
        lab.put_in_extern_step(node, job, shell.pid())?;
    }
    lab.write_work("adopted", "")?;
    let outcome = shell.wait()?.success()?;
    std::fs::remove_file(lab.folder().work().join("adopted")).expect("the file");
    Ok(outcome.stdout)
}

/// Outside of a job the profile only reads one file of the kernel: it starts no program, and takes less than 3 ms. The
/// quickest of many runs counts, because the machine may be busy.
fn expect_no_cost_outside(lab: &Lab) -> Result<(), LabError> {
    let many = "PATH=/nowhere; gpufrac() { echo started; }; i=0; least=9999999; \
                while [ $i -lt 100 ]; do from=${EPOCHREALTIME/[.,]/}; . ./profile.sh; \
                took=$((${EPOCHREALTIME/[.,]/} - from)); [ $took -ge $least ] || least=$took; \
                i=$((i + 1)); done; echo $least";
    let printed = login(lab, None, many)?;
    let microseconds: u32 = printed.trim().parse().expect("a time, and no program");
    assert!(microseconds < 3000, "{printed}");
    Ok(())
}

/// Promise (users): a login shell in a job has the variables of its slice, as a step has them; other shells have none.
#[test]
fn a_shell_by_ssh_has_the_variables_of_its_job() -> Result<(), LabError> {
    let lab = Lab::builder().mps_standin().pools(POOL);
    // Where node-setup cannot read slurm.conf, the reaper lets users read their leases.
    let lab = lab.reaper(crate::MEASURES_ONLY).start()?;
    let user = lab.users()[0].clone();
    let mut jobs = Vec::new();
    for size in ["0.25", "0.5"] {
        let gres = format!("--gres=gpufrac:{size}");
        let job = lab.sbatch(&user, &[&gres, "--wrap=srun env; sleep 1000"])?;
        lab.wait_for_state(job, &["RUNNING"])?;
        jobs.push(job);
    }
    for &job in &jobs {
        let step = lab.wait("the step printed", Duration::from_secs(60), || {
            let step = of_slice(&lab.output(job).unwrap_or_default());
            Ok(step.contains_key("CUDA_VISIBLE_DEVICES").then_some(step))
        })?;
        assert!(step.contains_key("CUDA_MPS_PIPE_DIRECTORY"), "{step:?}");
        lab.wait("the same in a shell", Duration::from_secs(60), || {
            let shell = of_slice(&login(&lab, Some(job), "env")?);
            let is_there = !shell.is_empty();
            assert!(!is_there || shell == step, "{shell:?} {step:?}");
            Ok(is_there.then_some(()))
        })?;
        assert_eq!(of_slice(&login_by_csh(&lab, Some(job))?), step);
    }
    assert_eq!(of_slice(&login_by_csh(&lab, None)?), BTreeMap::new());
    // A step that asked for no GPU has none by a login shell either.
    let job = format!("--jobid={}", jobs[0]);
    let args = [
        &job,
        "--overlap",
        "--gres=none",
        "sh",
        "-c",
        ". ./profile.sh; env",
    ];
    let step = lab.command("srun").user(&user).args(args);
    let step = step.current_dir(lab.folder().work()).run()?.success()?;
    let left = of_slice(&step.stdout);
    assert!(!left.contains_key("GPUFRAC_FRACTION"), "{left:?}");
    let by_number = "GPUFRAC_VISIBLE=index gpufrac env | grep CUDA_VISIBLE";
    let numbered = login(&lab, Some(jobs[0]), by_number)?;
    assert_eq!(numbered, "export CUDA_VISIBLE_DEVICES='0'\n");
    assert_eq!(of_slice(&login(&lab, None, "env")?), BTreeMap::new());
    expect_no_cost_outside(&lab)?;
    let outside = login(&lab, None, "gpufrac env 2>&1 || true")?;
    let [one, two] = [jobs[0], jobs[1]];
    let words = format!("this shell is in no job with a slice; yours here are {one}, {two}");
    assert!(outside.contains(&words), "{outside}");
    let named = login(&lab, None, &format!("gpufrac env --job {two} --shell json"))?;
    let named: serde_json::Value = serde_json::from_str(&named).expect("JSON");
    assert_eq!(named["GPUFRAC_FRACTION"], "0.5", "{named}");
    lab.command("scancel")
        .args(["-u", &user.name])
        .run()?
        .success()?;
    lab.wait_until_empty(Duration::from_secs(60))?;
    lab.expect_nothing_left()
}
