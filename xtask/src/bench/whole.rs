//! The prolog of a whole GPU: with MIG off in a pool of MIG, beside one of a pool of MPS.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::Result;
use gpufrac_lab::Lab;

use super::node::{Node, run};
use super::table::{Goal, Table};
use super::{BenchArguments, Pair};

const POOLS: &str = r#"
[pool.bare]
mechanism = "mig"
layout = "uniform"
menu = ["1/2"]
whole = "bare"
gpu = "H100-80"
partitions = ["gpu"]
nodes = "@NODES@"
gpus = [0]

[pool.mps]
mechanism = "mps"
layout = "whole"
gpu = "H100-80"
partitions = ["mps"]
nodes = "@NODES@"
gpus = [1]
"#;

/// A whole GPU: Slurm's index of the device, and the entry.
const BARE: [&str; 2] = ["0", "v1:units=100:mech=mig"];
const MPS: [&str; 2] = ["1", "v1:units=100:mech=mps"];

pub(super) fn measure(arguments: &BenchArguments, build: &Path, table: &mut Table) -> Result<()> {
    println!("measuring prologs of whole GPUs ...");
    let lab = Lab::builder()
        .quiet()
        .nodes(1)
        .gpu_list(&["H100-80:mig", "H100-80"])
        .partition("mps", "")
        .pools(POOLS)
        .build_folder(build)
        .start()?;
    let node = Node {
        lab: &lab,
        name: &lab.nodes()[0],
    };
    // The first prolog, which does not count, switches MIG off; nothing switches it on again.
    let prolog = |slice: [&str; 2]| -> Result<Duration> {
        let hook = |program: &str| {
            let mut command = node.hook(program, false);
            command
                .env("SLURM_JOB_GPUS", slice[0])
                .env("SPANK_GPUFRAC", slice[1]);
            run(&mut command)
        };
        let before = Instant::now();
        hook("gpufrac-prolog")?;
        let took = before.elapsed();
        hook("gpufrac-epilog")?;
        Ok(took)
    };
    let pair = Pair::measure_timed(arguments.rounds, || prolog(BARE), || prolog(MPS))?;
    table.add(
        "prolog of a whole GPU with MIG off, no switch",
        "a whole GPU of a pool of MPS",
        &pair,
        Goal::AtMostTimes(1.1),
    );
    lab.stop()?;
    Ok(())
}
