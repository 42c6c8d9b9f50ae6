//! `lab-keeper FOLDER`: stops the lab in FOLDER when the program that started the lab ends without writing a goodbye
//! to the keeper's stdin.

#![forbid(unsafe_code)]

use std::path::PathBuf;
use std::process::ExitCode;

fn main() -> ExitCode {
    let Some(root) = std::env::args_os().nth(1).map(PathBuf::from) else {
        eprintln!("lab-keeper failed: no folder is given; write: lab-keeper FOLDER");
        return ExitCode::from(2);
    };
    match gpufrac_lab::keep(std::io::stdin(), &root) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!(
                "lab-keeper: stopping the lab in {} failed: {error}",
                root.display()
            );
            ExitCode::FAILURE
        }
    }
}
