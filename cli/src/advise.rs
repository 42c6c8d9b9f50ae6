//! `gpufrac advise`

use gpufrac_core::advise::{self, NOT_LIMITED, Plan, Workload};
use gpufrac_core::fraction::MemoryMib;
use gpufrac_host::exit::Exit;

use crate::args::{AdviseArgs, AdvisedWorkload, SiteArgs};
use crate::error::CliError;

/// Prints the advice; stdout has the file last, so that it can be copied.
pub fn run(args: &AdviseArgs) -> Result<Exit, CliError> {
    let advice = advise::advise(&plan(args.workload, &args.gpu, &args.site))?;
    println!("mechanism: {}", advice.mechanism);
    println!("\nwhy:");
    for reason in &advice.reasons {
        println!("  - {reason}");
    }
    println!("\nnot limited by any mechanism:");
    for text in NOT_LIMITED {
        println!("  - {text}");
    }
    if let Some((count, fraction)) = advice.smallest_pieces() {
        println!("\nCPUs and memory:");
        println!(
            "  - a GPU makes up to {count} pieces of {fraction}: with at least {count} CPUs for a GPU (`DefCpuPerGPU`, or `cpus_per_gpu` of the partition) all run side by side"
        );
        println!(
            "  - where Slurm counts memory, a job that names none needs `DefMemPerGPU` or `memory_per_gpu`, or it gets all memory of its node"
        );
    }
    println!("\na gpufrac.toml to start from (`gpufrac check --file-only` prints its sizes):\n");
    for line in advice.file.lines() {
        println!("{line}");
    }
    Ok(Exit::Done)
}

/// The plan of a pool on this model.
pub fn plan<'a>(named: AdvisedWorkload, gpu: &'a str, site: &SiteArgs) -> Plan<'a> {
    Plan {
        workload: workload(named),
        gpu,
        memory: site.memory.map(MemoryMib),
        driver: site.driver,
        untrusted: site.untrusted,
        vgpu: site.vgpu,
    }
}

fn workload(named: AdvisedWorkload) -> Workload {
    match named {
        AdvisedWorkload::Notebooks => Workload::Notebooks,
        AdvisedWorkload::Training => Workload::Training,
        AdvisedWorkload::Inference => Workload::Inference,
        AdvisedWorkload::Batch => Workload::Batch,
        AdvisedWorkload::Teaching => Workload::Teaching,
        AdvisedWorkload::Mixed => Workload::Mixed,
    }
}
