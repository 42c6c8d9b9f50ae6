//! The boundary between C and Rust, which no panic crosses. [`for_slurm!`](crate::for_slurm) lists all functions that
//! C calls.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Lists the functions of a module that C calls, each with its return value after a panic:
///
/// ```ignore
/// for_slurm! {
///     export fn job_submit(job: *mut raw::job_desc_msg_t) -> c_int, or REFUSED;
///     callback fn check_idle(value: c_int) -> c_int, or FAILED;
/// }
/// ```
///
/// The macro makes a module `exported` with functions of the same names, which call the module's own inside
/// [`guard`](crate::boundary::guard). `export` makes the function a symbol of the plugin, `callback` does not.
/// `silent` is a callback for a time when Slurm's log does not exist yet. The module's own function may be unsafe;
/// its contract is that of the C function.
///
/// Tests check that there is no other function for C, in the sources and among the symbols of the plugins.
#[macro_export]
macro_rules! for_slurm {
    ($(
        $(#[$meta:meta])*
        $kind:ident fn $name:ident($($argument:ident: $type:ty),* $(,)?) $(-> $result:ty)?, or $answer:expr;
    )*) => {
        pub(super) mod exported {
            #[allow(unused_imports, reason = "where no function has arguments")]
            use super::*;
            $($crate::for_slurm!(
                @$kind [$(#[$meta])*] $name [$($argument: $type),*] [$(-> $result)?] $answer, [$($argument),*]
            );)*
        }
    };
    (@export [$($meta:tt)*] $($function:tt)*) => {
        $crate::for_slurm!(@function guard [$($meta)* #[unsafe(no_mangle)]] $($function)*);
    };
    (@callback $($function:tt)*) => {
        $crate::for_slurm!(@function guard $($function)*);
    };
    (@silent $($function:tt)*) => {
        $crate::for_slurm!(@function guard_silently $($function)*);
    };
    (@function $guard:ident
        [$($meta:tt)*] $name:ident [$($argument:ident: $type:ty),*] [$($result:tt)*] $answer:expr, [$($given:ident),*]
    ) => {
        $($meta)*
        #[allow(unused_unsafe, reason = "some have no contract")]
        pub unsafe extern "C" fn $name($($argument: $type),*) $($result)* {
            $crate::boundary::$guard(stringify!($name), $answer, move || {
                // SAFETY: both have the same contract.
                unsafe { super::$name($($given),*) }
            })
        }
    };
}

/// Runs `body`. If it panics, logs the panic under `what` and returns `on_panic`.
///
/// Unwinding into C is undefined, and an abort would end slurmctld. Therefore each function that C calls runs its
/// whole body inside this function, by [`for_slurm!`](crate::for_slurm). A panic can leave state half changed, so
/// callers only use state that is replaced whole.
pub fn guard<T>(what: &str, on_panic: T, body: impl FnOnce() -> T) -> T {
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(value) => value,
        Err(panic) => {
            // The payload of a panic may itself panic when it is dropped.
            let told = catch_unwind(AssertUnwindSafe(move || {
                // A part of the plugin failed. Slurm goes on. Cure: Report the message with the lines before it.
                crate::log::error(&format!(
                    "gpufrac: {what}: internal error: {}; please report this",
                    message(panic.as_ref())
                ));
            }));
            std::mem::forget(told);
            on_panic
        }
    }
}

/// As [`guard`], without a log line.
pub fn guard_silently<T>(_what: &str, on_panic: T, body: impl FnOnce() -> T) -> T {
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(value) => value,
        Err(panic) => {
            std::mem::forget(panic);
            on_panic
        }
    }
}

/// With the feature `planted-panic`: panics if the variable `GPUFRAC_PLANT` names this entry point. Only for tests of
/// [`guard`], never in an installed build.
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

#[cfg(test)]
mod tests {
    use std::ffi::c_int;
    use std::panic::panic_any;

    mod plugin {
        use super::*;

        crate::for_slurm! {
            silent fn answer(what: c_int) -> c_int, or -1;
            silent fn nothing(), or ();
        }

        /// A payload that panics when it is dropped.
        struct Bomb;

        impl Drop for Bomb {
            fn drop(&mut self) {
                panic!("dropped");
            }
        }

        fn answer(what: c_int) -> c_int {
            match what {
                0 => panic!("a text"),
                1 => panic_any(Bomb),
                other => other,
            }
        }

        fn nothing() {
            panic!("nothing to answer");
        }
    }

    #[test]
    fn a_panic_does_not_leave_the_boundary() {
        // SAFETY: they have no contract.
        let answers = unsafe {
            plugin::exported::nothing();
            [0, 1, 2].map(|what| plugin::exported::answer(what))
        };
        assert_eq!(answers, [-1, -1, 2]);
    }
}
