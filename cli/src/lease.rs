//! `gpufrac lease drop`: ends the lease of a job that has ended, even if the lease cannot be read.

use gpufrac_core::ids::JobId;
use gpufrac_core::lease::{Lease, read_name};
use gpufrac_host::exit::Exit;
use gpufrac_host::files::RootDir;
use gpufrac_host::log::JobLog;
use gpufrac_node::gpu::locked::LockedGpu;
use gpufrac_node::node::{Node, now_unix};
use gpufrac_node::slice::teardown::{self, TeardownError};
use gpufrac_node::slice::{reconcile, unleased};

use crate::admin;
use crate::args::LeaseDropArgs;
use crate::error::CliError;
use crate::slurm;
use crate::status;

/// The folder in `<state>` for copies of damaged leases.
const DROPPED: &str = "dropped";

pub fn drop(args: &LeaseDropArgs) -> Result<Exit, CliError> {
    let node = admin::node(&args.config)?;
    let name = args.name.as_str();
    let Some((job, _)) = read_name(name) else {
        return Err(CliError::NoLease { name: name.into() });
    };
    let lease = match node.leases()?.one(name) {
        Ok(Some(lease)) => {
            status::table(std::slice::from_ref(&lease))
                .iter()
                .for_each(|line| println!("{line}"));
            Some(lease)
        }
        Ok(None) => return Err(CliError::NoLease { name: name.into() }),
        Err(error) => {
            println!("{error}");
            None
        }
    };
    println!("job {job}: {}", over(job, &node)?);
    let question = match &lease {
        Some(_) => "end this lease, and destroy what stands for it?",
        None => "remove this file? A copy is kept",
    };
    if !admin::confirm(question, args.yes)? {
        println!("nothing was dropped");
        return Ok(Exit::Done);
    }
    let log = JobLog::command("lease drop");
    match lease {
        Some(lease) => end(&node, lease, &log)?,
        None => remove(&node, name, &log)?,
    }
    println!("dropped the lease {name}");
    tell_unleased(&node);
    Ok(Exit::Done)
}

/// Slurm's statement that the job holds nothing on this node; an error if it may hold something.
fn over(job: JobId, node: &Node) -> Result<String, CliError> {
    match slurm::job(job).map_err(CliError::SlurmIsSilent)? {
        None => Ok("Slurm does not know it any more".into()),
        Some(found) if found.is_on(&node.name) => Err(CliError::JobIsThere {
            job,
            state: found.state,
        }),
        Some(found) => Ok(format!("{} by Slurm", found.state)),
    }
}

/// Removes the slice as the epilog would have done.
fn end(node: &Node, mut lease: Lease, log: &JobLog) -> Result<(), CliError> {
    let store = node.leases()?;
    let locks = node.locks().map_err(CliError::File)?;
    let session = node.nvml().map_err(TeardownError::from)?;
    let gpu = match teardown::gpu_of(node, &session, &lease) {
        // Without the GPU there is no instance to destroy.
        Err(error) if error.is_without_gpu() => {
            let lock = locks.gpu(lease.slice.gpu_index, node.lock_patience)?;
            store.remove(&lock, &lease)?;
            // The GPU of the lease is not in the node any more. Cure: Nothing.
            log.warning(format!(
                "dropped the lease {}, whose GPU is gone",
                lease.name()
            ));
            return Ok(());
        }
        other => other?,
    };
    let lock = locks.gpu(gpu.index, node.lock_patience)?;
    let mut locked = LockedGpu::new(lock, node, &store, gpu, log);
    // The epilog may have removed the lease meanwhile.
    if let Some(now) = store.again(&lease)? {
        lease = now;
        match reconcile::end(&mut locked, &mut lease) {
            // Another GPU has the index now, or it has just fallen off the bus.
            Err(error) if error.is_without_gpu() => {
                store.remove(locked.lock(), &lease)?;
            }
            other => other?,
        }
        // The lease and its slice are gone. Cure: Nothing.
        log.warning(format!(
            "ended the lease {} on {}",
            lease.name(),
            lease.place()
        ));
    }
    Ok(())
}

fn remove(node: &Node, name: &str, log: &JobLog) -> Result<(), CliError> {
    let Some(text) = node.leases()?.drop_unreadable(name)? else {
        return Ok(());
    };
    let kept = RootDir::create(&node.state.join(DROPPED), 0o700)
        .and_then(|(dir, _)| dir.write(&format!("{name}.{}", now_unix()), &text, 0o600));
    let copy = match kept {
        Ok(()) => format!("a copy is in `{}`", node.state.join(DROPPED).display()),
        Err(error) => format!("no copy is kept: {error}"),
    };
    // The damaged lease was removed; its instance may still exist. Cure: Run `gpufrac clean`.
    log.warning(format!(
        "dropped the lease {name}, which could not be read; {copy}"
    ));
    Ok(())
}

/// Warns that an instance of the dropped lease may still exist.
fn tell_unleased(node: &Node) {
    let found = node
        .nvml()
        .map_err(unleased::CleanError::from)
        .and_then(|session| unleased::of_node(node, &session));
    for it in found.unwrap_or_default() {
        eprintln!("gpufrac: {it}\nhint: {}", unleased::FIX);
    }
}
