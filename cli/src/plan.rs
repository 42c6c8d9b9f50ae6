//! `gpufrac plan`: what sharing would win on the history of a site.

use gpufrac_host::exit::Exit;
use gpufrac_plan::command::{self, PlanArgs};

use crate::error::CliError;

pub fn run(args: &PlanArgs) -> Result<Exit, CliError> {
    let text = command::run(args, &mut |line| eprintln!("{line}"))?;
    print!("{text}");
    Ok(Exit::Done)
}
