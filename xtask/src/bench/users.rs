//! Submissions of many users with accounting: how long sbatch takes for them, and what slurmctld and slurmdbd hold.
//!
//! Two clusters with slurmdbd: gpufrac with halves, and the same halves and shares without its plugins. One job holds
//! every CPU, so that the others wait; Slurm's scheduler has its defaults and runs meanwhile.

use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow};
use gpufrac_lab::{Lab, User};

use super::scale::{GPUS, Side, number_after, request};
use super::table::{Goal, Table};
use super::{BenchArguments, Pair, percentile, time};

const USERS: u32 = 50;
/// Users who submit at the same time.
const AT_ONCE: usize = 8;
/// Jobs of one cluster before the other one has its turn.
const TURN: usize = 400;
/// Above the ids of Debian's users; none has a name.
const FIRST_UID: u32 = 61_100;
const LIMIT: Duration = Duration::from_secs(600);
/// Slurm's own limit is 10,000.
const SETTINGS: &str = "MaxJobCount=100000\n";

pub(super) fn measure(arguments: &BenchArguments, build: &Path, table: &mut Table) -> Result<()> {
    let (nodes, jobs) = (arguments.scale_nodes, arguments.users_jobs);
    println!("starting two clusters of {nodes} nodes with accounting ...");
    let builder = Lab::builder()
        .quiet()
        .nodes(nodes)
        .gpus("H100-80", GPUS)
        .accounting()
        .slurm_conf_extra(SETTINGS)
        .build_folder(build);
    let ours = Side::new(builder.clone().start()?, 0)?;
    let shares = Side::new(builder.plugins(false).start()?, 1)?;
    println!("{USERS} users submit {jobs} jobs to each ...");
    let mut pair = Pair {
        ours: Vec::new(),
        theirs: Vec::new(),
    };
    for turn in 0..jobs.div_ceil(TURN) {
        pair.ours.extend(submit(&ours, turn)?);
        pair.theirs.extend(submit(&shares, turn)?);
    }
    let load = format!("{} jobs of {USERS} users on {nodes} nodes", pair.ours.len());
    let against = "the same shares, no plugins";
    table.add(
        &format!("{load}: sbatch, {AT_ONCE} at once"),
        against,
        &pair,
        Goal::None,
    );
    let last = Pair {
        ours: vec![percentile(&pair.ours, 99)],
        theirs: vec![percentile(&pair.theirs, 99)],
    };
    table.add(
        "the same, 99 of 100 take at most",
        against,
        &last,
        Goal::None,
    );
    let held = Pair {
        ours: vec![ours.submission()?],
        theirs: vec![shares.submission()?],
    };
    table.add(
        "slurmctld's time for one (sdiag)",
        against,
        &held,
        Goal::None,
    );
    for (side, name) in [(ours, "gpufrac"), (shares, against)] {
        let waited = time(&mut || nothing_left_to_send(&side))?;
        table.note(format!(
            "{load}, {name}: slurmctld has {:.0} MiB, slurmdbd {:.0} MiB; {:.1} s later nothing was left to send to slurmdbd",
            side.memory("slurmctld")?,
            side.memory("slurmdbd")?,
            waited.as_secs_f64()
        ));
        side.stop()?;
    }
    Ok(())
}

/// The times of one turn's submissions, each by an sbatch of its own.
fn submit(side: &Side, turn: usize) -> Result<Vec<Duration>> {
    let (lab, column) = (&side.lab, side.column);
    let of_one = |first: usize| {
        let numbers = (first..TURN)
            .step_by(AT_ONCE)
            .map(|number| turn * TURN + number);
        let times = numbers.map(|number| {
            let uid = FIRST_UID + number as u32 % USERS;
            let user = User {
                name: format!("user{uid}"),
                uid,
                gid: uid,
            };
            let request = request(column, number);
            let command = lab.command("sbatch").user(&user).limit(LIMIT);
            let command = command.args(request).args(["-t60", "--wrap=true"]);
            let before = Instant::now();
            command.stdout()?;
            Ok(before.elapsed())
        });
        times.collect::<Result<Vec<Duration>>>()
    };
    thread::scope(|scope| {
        let threads: Vec<_> = (0..AT_ONCE)
            .map(|first| scope.spawn(move || of_one(first)))
            .collect();
        let mut times = Vec::new();
        for thread in threads {
            times.extend(
                thread
                    .join()
                    .map_err(|_| anyhow!("a thread that submits panicked"))??,
            );
        }
        Ok(times)
    })
}

/// Waits until slurmctld has nothing left to send to slurmdbd.
fn nothing_left_to_send(side: &Side) -> Result<()> {
    Ok(side.lab.wait("an empty queue to slurmdbd", LIMIT, || {
        let left = number_after(
            &side.lab.command("sdiag").stdout()?,
            "DBD Agent queue size:",
        );
        Ok((left.ok() == Some(0)).then_some(()))
    })?)
}
