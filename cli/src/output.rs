//! Output of commands. If the reader of a pipe ends (`gpufrac status | head -1`), the command continues, because it
//! may be changing something; any other failure is reported once, at the end. These macros replace those of the
//! standard library, which panic.

use std::fmt;
use std::io::{self, ErrorKind, Write};
use std::process::ExitCode;
use std::sync::OnceLock;

use gpufrac_host::exit::Exit;

/// The first failure of stdout that is not a broken pipe.
static FAILED: OnceLock<io::Error> = OnceLock::new();

macro_rules! print {
    ($($text:tt)*) => { $crate::output::to_stdout(format_args!($($text)*)) };
}

macro_rules! println {
    () => { $crate::output::to_stdout(format_args!("\n")) };
    ($($text:tt)*) => { $crate::output::to_stdout(format_args!("{}\n", format_args!($($text)*))) };
}

macro_rules! eprint {
    ($($text:tt)*) => { $crate::output::to_stderr(format_args!($($text)*)) };
}

macro_rules! eprintln {
    ($($text:tt)*) => { $crate::output::to_stderr(format_args!("{}\n", format_args!($($text)*))) };
}

pub(crate) fn to_stdout(text: fmt::Arguments<'_>) {
    note(io::stdout().write_fmt(text));
}

pub(crate) fn to_stderr(text: fmt::Arguments<'_>) {
    // There is no other place to report a failure of stderr.
    let _ = io::stderr().write_fmt(text);
}

fn note(written: io::Result<()>) {
    if let Err(error) = written
        && error.kind() != ErrorKind::BrokenPipe
    {
        let _ = FAILED.set(error);
    }
}

/// Ends a command: with its exit code, or with a failure if its output could not be written.
pub(crate) fn end(exit: ExitCode) -> ExitCode {
    note(io::stdout().flush());
    match FAILED.get() {
        None => exit,
        Some(error) => {
            // The output goes to a full disk or a closed device. Cure: Write the output to another file.
            eprintln!("gpufrac: writing to stdout failed: {error}; write to another place");
            Exit::Broken.into()
        }
    }
}
