//! Attacks of a hostile user, on real Slurm. `cargo xtask attack` runs these tests on each series and prints their
//! results.

mod fence;
mod jobs;
mod limits;
mod login;
mod mechanism;
mod mps;
mod requests;

use std::fs::OpenOptions;
use std::io::Write;

use gpufrac_core::hostlist::Hostlist;
use gpufrac_lab::{JobId, Lab, LabError};

use crate::{HOLD, go};

/// The file to which each attack adds a line: name, series, and what was reached, drained and lost.
const TABLE: &str = "GPUFRAC_ATTACK_TABLE";

/// An attack on a lab, beside a job of another user.
struct Attack<'a> {
    lab: &'a Lab,
    name: &'static str,
    victim: JobId,
    reached: Vec<String>,
}

impl<'a> Attack<'a> {
    /// Starts with a job of another user, which must end well.
    fn begin(lab: &'a Lab, name: &'static str) -> Result<Self, LabError> {
        let script = format!("--wrap={HOLD}");
        let victim = lab.sbatch(&lab.users()[1], &["--gres=gpufrac:0.25", &script])?;
        lab.wait_for_state(victim, &["RUNNING"])?;
        Ok(Self {
            lab,
            name,
            victim,
            reached: Vec::new(),
        })
    }

    /// Notes something that the attacker reached.
    fn reached(&mut self, what: impl Into<String>) {
        self.reached.push(what.into());
    }

    /// Notes a job whose leases have more units than Slurm counts for it, on each node.
    fn compare(&mut self, job: JobId) -> Result<(), LabError> {
        for node in self.lab.nodes() {
            let leases = self.lab.leases_of(node, job)?;
            let leased: u32 = leases.iter().map(|lease| lease.units.0).sum();
            let counted = counted(self.lab, job, node)?;
            if leased > counted {
                self.reached(format!(
                    "job {job} has {leased} units on {node}, Slurm counts {counted}"
                ));
            }
        }
        Ok(())
    }

    /// Ends the attack: releases all jobs, and checks what was drained and lost.
    fn end(self) -> Result<(), LabError> {
        let Self {
            lab,
            name,
            victim,
            reached,
        } = self;
        go(lab)?;
        let ended = lab.wait_for_end(victim)?;
        let mut lost = Vec::new();
        if ended.state() != "COMPLETED" || ended.field("Restarts") != "0" {
            lost.push(format!("job {victim} of another user: {ended:?}"));
        }
        lost.extend(lab.ended_daemons());
        let drained = lab.drained_nodes()?;
        if let Some(table) = std::env::var_os(TABLE) {
            let mut file = OpenOptions::new()
                .create(true)
                .append(true)
                .open(table)
                .expect("the table can be opened");
            let line = format!(
                "{name}\t{}\t{}\t{}\t{}\n",
                lab.slurm().series(),
                reached.len(),
                drained.len(),
                lost.len()
            );
            file.write_all(line.as_bytes())
                .expect("the table can be written");
        }
        assert!(reached.is_empty(), "{name} reached {reached:?}");
        assert!(drained.is_empty(), "{name} drained {drained:?}");
        assert!(lost.is_empty(), "{name}: lost {lost:?}");
        lab.expect_nothing_left()
    }
}

/// The units of `gpufrac` that Slurm allocated to a job on a node.
fn counted(lab: &Lab, job: JobId, node: &str) -> Result<u32, LabError> {
    let shown = lab
        .command("scontrol")
        .args(["-d", "show", "job", &job.to_string()])
        .stdout()?;
    // One line for nodes with the same resources: `Nodes=n[1-2] CPU_IDs=0 Mem=0 GRES=gpufrac(CNT:50),shard:50(...)`.
    let gres = shown.lines().find_map(|line| {
        let (nodes, rest) = line.trim().strip_prefix("Nodes=")?.split_once(' ')?;
        let nodes = Hostlist::parse(nodes).ok()?;
        let (_, gres) = rest.split_once("GRES=")?;
        nodes.contains(node).then(|| gres.to_owned())
    });
    let gres = gres.unwrap_or_default();
    // `gpufrac(CNT:50)`, because this GRES has no files.
    let units = gres.split(',').find_map(|item| {
        let count = item.strip_prefix("gpufrac(CNT:")?;
        count.strip_suffix(')')?.parse().ok()
    });
    Ok(units.unwrap_or(0))
}
