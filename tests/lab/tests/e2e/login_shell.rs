//! A shell by ssh, which pam_slurm_adopt moves into a job, has the variables of the job's slice.

use std::collections::BTreeMap;
use std::path::Path;

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
    let profile = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging/profile.sh");
    let node = &lab.nodes()[0];
    let script = format!(
        "until [ -e adopted ]; do sleep 0.05; done; . {}; {line}",
        profile.display()
    );
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

/// Promise (users): a login shell in a job has the variables of its slice, as a step has them; other shells have none.
#[test]
fn a_shell_by_ssh_has_the_variables_of_its_job() -> Result<(), LabError> {
    let lab = Lab::builder().mps_standin().pools(POOL).start()?;
    let user = lab.users()[0].clone();
    let mut jobs = Vec::new();
    for size in ["0.25", "0.5"] {
        let gres = format!("--gres=gpufrac:{size}");
        let job = lab.sbatch(&user, &[&gres, "--wrap=srun env; sleep 1000"])?;
        lab.wait_for_state(job, &["RUNNING"])?;
        jobs.push(job);
    }
    for &job in &jobs {
        let step = lab.wait(
            "the step printed",
            std::time::Duration::from_secs(60),
            || {
                let step = of_slice(&lab.output(job).unwrap_or_default());
                Ok(step.contains_key("CUDA_VISIBLE_DEVICES").then_some(step))
            },
        )?;
        assert!(step.contains_key("CUDA_MPS_PIPE_DIRECTORY"), "{step:?}");
        assert_eq!(of_slice(&login(&lab, Some(job), "env")?), step);
    }
    assert_eq!(of_slice(&login(&lab, None, "env")?), BTreeMap::new());
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
    lab.wait_until_empty(std::time::Duration::from_secs(60))?;
    lab.expect_nothing_left()
}
