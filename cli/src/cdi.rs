//! `gpufrac cdi`: the slice of a job as a device of the Container Device Interface.

use gpufrac_host::exit::Exit;
use gpufrac_node::cdi;

use crate::args::JobArgs;
use crate::env;
use crate::error::CliError;

pub fn run(args: &JobArgs) -> Result<Exit, CliError> {
    let (node, leases) = env::leases(args)?;
    println!("{:#}", cdi::file(&node, &leases));
    Ok(Exit::Done)
}
