//! What commands print. A reader that goes away (`gpufrac status | head -1`) ends nothing, as a command may be in the middle of a
//! change; any other failure is told once, at the end. The macros take the place of the standard library's, which panic.

use std::fmt;
use std::io::{self, ErrorKind, Write};
use std::process::ExitCode;
use std::sync::OnceLock;

use gpufrac_host::exit::Exit;

/// The first failure of stdout that is not a reader's end.
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
    // Nothing is left to which this could be told.
    let _ = io::stderr().write_fmt(text);
}

fn note(written: io::Result<()>) {
    if let Err(error) = written
        && error.kind() != ErrorKind::BrokenPipe
    {
        let _ = FAILED.set(error);
    }
}

/// Ends a command: what it printed is written, or the command failed.
pub(crate) fn end(exit: ExitCode) -> ExitCode {
    note(io::stdout().flush());
    match FAILED.get() {
        None => exit,
        Some(error) => {
            eprintln!("gpufrac: writing to stdout failed: {error}; write to another place");
            Exit::Broken.into()
        }
    }
}
