//! The edge between C and Rust: a panic ends here.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Runs `body`; if it panics, logs the panic under `what` and returns `on_panic`.
///
/// Unwinding into C is undefined, and an abort would take slurmctld down with every job's
/// submission, so each function that Slurm calls wraps its whole body in this.
/// The state that `body` touches may be left half changed: callers use only state that is
/// replaced whole.
pub fn guard<T>(what: &str, on_panic: T, body: impl FnOnce() -> T) -> T {
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(value) => value,
        Err(panic) => {
            crate::log::error(&format!(
                "gpufrac: {what}: internal error: {}; please report this",
                message(panic.as_ref())
            ));
            on_panic
        }
    }
}

/// With the feature `planted-panic`: panics if the variable `GPUFRAC_PLANT` names this entry point.
/// For the tests of [`guard`], never in a build that is installed.
pub fn plant(_entry_point: &str) {
    #[cfg(feature = "planted-panic")]
    if std::env::var("GPUFRAC_PLANT").is_ok_and(|name| name == _entry_point) {
        panic!("planted in {_entry_point}");
    }
}

fn message(panic: &(dyn Any + Send)) -> &str {
    if let Some(text) = panic.downcast_ref::<&str>() {
        text
    } else if let Some(text) = panic.downcast_ref::<String>() {
        text
    } else {
        "a panic without a message"
    }
}
