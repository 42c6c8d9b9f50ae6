//! `gpufrac-plan`: the command `gpufrac plan` as a program of its own, which needs no other file of gpufrac, no Slurm
//! and no NVIDIA driver. `cargo xtask dist` links it statically.
#![forbid(unsafe_code)]

use std::io::Write;
use std::process::ExitCode;

use clap::Parser;
use gpufrac_plan::command::{PlanArgs, run};

/// What sharing GPUs would win on the history of a site.
#[derive(Parser)]
#[command(name = "gpufrac-plan", version)]
struct Arguments {
    #[command(flatten)]
    plan: PlanArgs,
}

fn main() -> ExitCode {
    let mut errors = std::io::stderr();
    let planned = run(&Arguments::parse().plan, &mut |line| {
        // There is no other place to report a failure of stderr.
        let _ = writeln!(errors, "{line}");
    });
    let written = match planned {
        Ok(text) => std::io::stdout().write_all(text.as_bytes()),
        Err(error) => {
            let _ = writeln!(std::io::stderr(), "gpufrac-plan: {error}");
            return ExitCode::FAILURE;
        }
    };
    match written {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => {
            let _ = writeln!(
                std::io::stderr(),
                "gpufrac-plan: writing to stdout failed: {error}; write to another place"
            );
            ExitCode::FAILURE
        }
        _ => ExitCode::SUCCESS,
    }
}
