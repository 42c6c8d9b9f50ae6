//! Requests as newcomers write them: each gets one message that says what to write, and no other slice.

use std::path::PathBuf;

use gpufrac_lab::{Lab, LabError, Outcome};

/// Refused options, and words of the message.
const WRONG: &[(&str, &str)] = &[
    // Other notations of numbers.
    ("--gres=gpufrac:0,25", "write gpufrac:0.25"),
    ("--gres=gpufrac:,5", "write gpufrac:0.5"),
    ("--gres=gpufrac:mig:0,25", "write gpufrac:mig:0.25"),
    ("--gres=gpu:0,25", "write gpufrac:0.25"),
    ("--gpus-per-node=0,25", "write gpufrac:0.25"),
    ("--gpus=0,25", "write --gres=gpufrac:0.25"),
    ("--gres=gpufrac:25", "write --gres=gpufrac:0.25"),
    ("--gres=gpufrac:25%", "gpufrac:0.25"),
    (
        "--gres=gpufrac:percent:0.25",
        "write for example gpufrac:percent:25",
    ),
    ("--gres=gpufrac:percent:12,5", "write gpufrac:0.125"),
    ("--gres=gpufrac:mig:percent:25", "write gpufrac:mig:0.25"),
    ("--gres=gpufrac:1/4", "gpufrac:0.25"),
    ("--gres=gpufrac:-0.25", "write for example gpufrac:0.25"),
    ("--gres=gpufrac:+0.25", "write for example gpufrac:0.25"),
    ("--gres=gpufrac:1.5G", "such as gpufrac:10G"),
    ("--gres=gpufrac:quarter", "write for example gpufrac:0.25"),
    // Another order of words, or too many words.
    ("--gres=gpufrac:0.25:2", "write gpufrac:0.25"),
    ("--gres=gpufrac:0.25:mig", "write gpufrac:mig:0.25"),
    ("--gres=gpufrac:MIG:0.25", "write gpufrac:mig:0.25"),
    ("--gres=gpufrac::0.25", "write gpufrac:0.25"),
    ("--gres=gpufrac:h100:0.25", "write gpufrac:0.25"),
    ("--gres=gpufrac:0.25,none", "write only --gres=gpufrac:0.25"),
    (
        "--gres=gpufrac:0.25,gpufrac:0.25",
        "write a single --gres=gpufrac:0.25",
    ),
    // Other names.
    ("--gres=gpufrac0.25", "write gpufrac:0.25"),
    ("--gres=GPUFRAC:0.25", "write gpufrac:0.25"),
    ("--gres=gpufraction:0.25", "write gpufrac:0.25"),
    ("--gres=gpu_frac:0.25", "write gpufrac:0.25"),
    ("--gres=frac:0.5", "write gpufrac:0.5"),
    ("--gres=mps:0.25", "write gpufrac:mps:0.25"),
    ("--gres=shard:0.25", "write gpufrac:0.25"),
    ("--gres=gpu:h100:0.25", "write gpufrac:0.25"),
    // Whole GPUs, if no pool lends one.
    ("--gres=gpu:1", "write --gres=gpufrac:0.125 or"),
    (
        "--gres=gpu:h100:1",
        "no GPU of this cluster has the Type \"h100\"",
    ),
    (
        "--gpus=h100:1",
        "no GPU of this cluster has the Type \"h100\"",
    ),
    ("--gres=gpu:1g.10gb:1", "write --gres=gpufrac:0.125 or"),
    ("--gres=shard:25", "write --gres=gpufrac:0.125 or"),
    (
        "--gres=gpufrac:0.25,mps:50",
        "write only --gres=gpufrac:0.25",
    ),
    ("--gres=gpufrac:1", "write --gres=gpufrac:0.125 or"),
    // Together with other options. The message about rounding is not printed for a refused job.
    ("--gres=gpufrac:0.33 -G 2", "cannot be combined with --gpus"),
    (
        "--gres=gpufrac:0.33 --gpus-per-task=1 -n1",
        "cannot be combined with --gpus-per-task",
    ),
    (
        "--gres=gpufrac:0.33 --gpus-per-socket=1 --sockets-per-node=1",
        "cannot be combined with --gpus-per-socket",
    ),
    (
        "--gres=gpufrac:0.33 --ntasks-per-gpu=1 -n1",
        "cannot be combined with --ntasks-per-gpu",
    ),
    (
        "--gres=gpufrac:0.33 --gpu-freq=low",
        "cannot be combined with --gpu-freq",
    ),
    ("--gres=gpufrac:0.33 --exclusive", "leave --exclusive out"),
    ("--gres=gpufrac:0.33 --gpus-per-node=1", "leave gpu out"),
    // A partition that only gpufrac.toml has is not recommended.
    ("--gres=gpufrac:0.33 -p cpu", "use --partition=gpu\n"),
];

/// Accepted options with Slurm's counts; some of Slurm's own commands do not know all of them.
const RIGHT: &[(&str, &str)] = &[
    ("--gres=gpufrac:.25", "gpufrac:25,shard:25"),
    ("--gres=gpufrac=0.25", "gpufrac:25,shard:25"),
    ("--gres=gpufrac:10Gi", "gpufrac:25,shard:25"),
    ("--gres=gpufrac:percent:25", "gpufrac:25,shard:25"),
    ("--gpus-per-node=gpufrac:percent:25", "gpufrac:25,shard:25"),
    (
        "--gres=gpufrac:0.25 --exclusive=user",
        "gpufrac:25,shard:25",
    ),
    (
        "--gres=gpu:none_of_ours:0 --gres=gpufrac:0.25",
        "gpufrac:25,shard:25",
    ),
];

const POOLS: &str = "[pool.halves]\nmechanism = \"mig\"\nlayout = \"halves\"\ngpu = \"H100-80\"\n\
     partitions = [\"gpu\", \"gppu\"]\nnodes = \"@NODES@\"\n";

/// slurm.conf of a login host without the client's plugin.
fn without_filter(lab: &Lab) -> PathBuf {
    let etc = lab.folder().etc();
    let text = std::fs::read_to_string(etc.join("slurm.conf")).expect("the lab's slurm.conf");
    let kept = text
        .lines()
        .filter(|line| !line.starts_with("CliFilterPlugins"));
    let path = etc.join("slurm.without-filter.conf");
    std::fs::write(&path, kept.collect::<Vec<_>>().join("\n") + "\n").expect("a slurm.conf");
    path
}

fn submit(lab: &Lab, slurm_conf: Option<&PathBuf>, options: &str) -> Result<Outcome, LabError> {
    let mut command = lab.command("sbatch").user(&lab.users()[0]);
    if let Some(path) = slurm_conf {
        command = command.env("SLURM_CONF", path);
    }
    command
        .args(["--hold", "--parsable", "--wrap=true"])
        .args(options.split_whitespace())
        .run()
}

fn said(outcome: &Outcome) -> usize {
    outcome.stderr.matches("gpufrac: ").count()
}

/// Promise (users): common mistakes of newcomers get one message with what to write, with and without cli_filter, and
/// no other meaning.
/// With `misspelt_fractions_are_told_what_to_write`, `advice_is_what_can_be_had_there`.
#[test]
fn common_wrong_requests_are_answered_once_with_the_right_one() -> Result<(), LabError> {
    let lab = Lab::builder().pools(POOLS).partition("cpu", "").start()?;
    let bare = without_filter(&lab);
    let mut wrong = Vec::new();
    for (options, words) in WRONG {
        let outcome = submit(&lab, None, options)?;
        let once = said(&outcome) == 1 && !outcome.stderr.contains("rounded");
        if outcome.status.success() || !once || !outcome.stderr.contains(words) {
            wrong.push(format!("{options}: {words:?} is expected: {outcome:?}"));
        }
        // Without the plugin the command may refuse with its own message; no option is taken for another one.
        let outcome = submit(&lab, Some(&bare), options)?;
        let mine = said(&outcome);
        let advice = ["write ", "leave ", "use "];
        let advised = advice.iter().any(|word| outcome.stderr.contains(word));
        let answered = mine == 0 || (mine == 1 && advised);
        if outcome.status.success() || !answered {
            wrong.push(format!("{options} without cli_filter: {outcome:?}"));
        }
    }
    for (options, counted) in RIGHT {
        for slurm_conf in [None, Some(&bare)] {
            let outcome = submit(&lab, slurm_conf, options)?;
            let job = outcome.stdout.trim().parse().map(gpufrac_lab::JobId);
            match job {
                Ok(job) if super::counts(&lab, job)? == *counted => {}
                Err(_) if slurm_conf.is_some() && said(&outcome) == 0 => {}
                _ => wrong.push(format!("{options} {slurm_conf:?}: {outcome:?}")),
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    // srun and salloc read the same options by the same code; their messages come before anything starts.
    for command in ["srun", "salloc"] {
        let refused = lab.command(command).user(&lab.users()[0]);
        let refused = refused.args(["--gres=gpufrac:0,25", "-n1", "true"]).run()?;
        super::expect_refusal(&refused, "write gpufrac:0.25");
        assert_eq!(said(&refused), 1, "{refused:?}");
    }
    // A step reads its own options.
    let script = "srun --gres=gpufrac:0,25 true";
    let step = lab.command("srun").user(&lab.users()[0]);
    let step = step
        .args(["-n1", "--gres=gpufrac:0.5", "sh", "-c", script])
        .run()?;
    super::expect_refusal(&step, "write gpufrac:0.25");
    lab.command("scancel").args(["-p", "gpu"]).stdout()?;
    lab.expect_nothing_left()
}

/// A cluster where other nodes share their GPUs by Slurm's own `mps`, so that Slurm takes the name.
#[test]
fn mps_of_slurm_is_refused_in_a_partition_with_pools() -> Result<(), LabError> {
    let pools = format!("{POOLS}[partition.raw]\nallow_raw = true\n").replace("gppu", "raw");
    let lab = Lab::builder()
        .pools(&pools)
        .partition("raw", "")
        .slurm_conf_extra("GresTypes=gpu,shard,gpufrac,mps\n")
        .start()?;
    let run = |command, options: &[&str]| {
        let command = lab.command(command).user(&lab.users()[0]);
        command.args(options).run()
    };
    let words = "mps cannot be asked for by itself; write --gres=gpufrac:0.125 or";
    for gres in ["mps", "mps:50", "mps:h100:50"] {
        let gres = format!("--gres={gres}");
        super::expect_refusal(&run("sbatch", &["--wrap=true", &gres])?, words);
        super::expect_refusal(&run("salloc", &["-n1", &gres, "true"])?, words);
        super::expect_refusal(&run("srun", &["-n1", &gres, "true"])?, words);
        // Left to Slurm, which has no such node.
        let raw = run("srun", &["-p", "raw", "-n1", &gres, "true"])?;
        assert!(!raw.status.success() && said(&raw) == 0, "{raw:?}");
    }
    let both = run("sbatch", &["--wrap=true", "--gres=gpufrac:0.25,mps:50"])?;
    super::expect_refusal(&both, "leave mps out of the request");
    // An update.
    let held = run("sbatch", &["--hold", "--parsable", "--wrap=true"])?;
    let job = format!("JobId={}", held.success()?.stdout.trim());
    let update = run("scontrol", &["update", &job, "Gres=mps:50"])?;
    assert!(!update.status.success(), "{update:?}");
    lab.command("scancel").args(["-p", "gpu"]).stdout()?;
    lab.expect_nothing_left()
}
