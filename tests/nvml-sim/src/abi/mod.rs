//! NVML's C functions.
//!
//! Each is declared with the macro `nvml!`, which counts the call, applies faults and delays, and stops panics.
//! Pointers are [`Out`] and [`Text`], so that the functions themselves need no `unsafe`.
#![allow(
    missing_docs,
    non_snake_case,
    reason = "the functions are NVML's, and nvml.h describes them"
)]

mod clients;
mod compute;
mod device;
mod export_table;
mod fields;
mod gpm;
mod health;
mod legacy;
mod mig;
mod stubs;
mod system;

use std::ffi::{c_char, c_uint};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

pub(crate) use crate::argument::Target;
pub use crate::argument::Text;
use crate::code::{Answer, Code};
use crate::disturb::Effect;
use crate::journal;
use crate::session;
use crate::sessions::Turn;
use crate::store::Store;

/// A caller's pointer for a result, possibly null.
#[repr(transparent)]
pub struct Out<T>(*mut T);

impl<T> Clone for Out<T> {
    fn clone(&self) -> Out<T> {
        *self
    }
}

impl<T> Copy for Out<T> {}

impl<T: Copy> Out<T> {
    fn is_null(self) -> bool {
        self.0.is_null()
    }

    fn set(self, value: T) -> Answer {
        if self.0.is_null() {
            return Err(Code::INVALID_ARGUMENT);
        }
        // SAFETY: nvml.h lets callers pass null or a pointer to a T that they own.
        unsafe { self.0.write(value) };
        Ok(())
    }

    fn get(self) -> Answer<T> {
        if self.0.is_null() {
            return Err(Code::INVALID_ARGUMENT);
        }
        // SAFETY: as in `set`; callers fill what a function reads.
        Ok(unsafe { self.0.read() })
    }

    /// The element at a position of an array whose length the caller passed.
    fn at(self, position: usize) -> Out<T> {
        Out(self.0.wrapping_add(position))
    }

    /// Writes an array with room for `count` elements, and the number of elements to `count`. Without enough room
    /// only the number is written.
    fn fill(self, count: Out<c_uint>, values: &[T]) -> Answer {
        let room = count.get()? as usize;
        count.set(values.len() as c_uint)?;
        if room < values.len() {
            return Err(Code::INSUFFICIENT_SIZE);
        }
        self.write_all(values)
    }

    fn write_all(self, values: &[T]) -> Answer {
        for (position, value) in values.iter().enumerate() {
            if self.is_null() {
                return Err(Code::INVALID_ARGUMENT);
            }
            self.at(position).set(*value)?;
        }
        Ok(())
    }

    /// A versioned struct, whose version the caller set.
    fn versioned(self, version: c_uint) -> Answer<T> {
        if Out(self.0.cast::<c_uint>()).get()? == tagged::<T>(version) {
            self.get()
        } else {
            Err(Code::ARGUMENT_VERSION_MISMATCH)
        }
    }
}

/// The value that callers write to the `version` of a struct.
const fn tagged<T>(version: c_uint) -> c_uint {
    size_of::<T>() as c_uint | version << 24
}

impl Out<c_char> {
    /// Writes a text into a buffer of `length` bytes.
    fn text(self, length: c_uint, text: &str) -> Answer {
        if self.is_null() {
            return Err(Code::INVALID_ARGUMENT);
        }
        if (length as usize) < text.len() + 1 {
            return Err(Code::INSUFFICIENT_SIZE);
        }
        for (position, byte) in text.bytes().chain([0]).enumerate() {
            self.at(position).set(byte as c_char)?;
        }
        Ok(())
    }
}

/// Fills a text field of a struct.
fn text_field<const N: usize>(text: &str) -> [c_char; N] {
    let mut field = [0; N];
    for (to, from) in field.iter_mut().zip(text.bytes().take(N - 1)) {
        *to = from as c_char;
    }
    field
}

fn kill_self() {
    // SAFETY: a plain system call, which does not return.
    unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
}

/// An argument of a function that may determine the call's GPU.
pub(crate) trait Names {
    /// Records the argument.
    fn note(&self, _target: &mut Target) {}
}

impl<T> Names for *mut T {
    fn note(&self, target: &mut Target) {
        target.handle = target.handle.or(Some(self.addr()));
    }
}

impl Names for c_uint {
    fn note(&self, target: &mut Target) {
        target.number = target.number.or(Some(*self));
    }
}

impl Names for Text {
    fn note(&self, target: &mut Target) {
        target.text = Some(*self);
    }
}

impl<T> Names for Out<T> {}
impl Names for std::ffi::c_int {}
impl Names for u64 {}

/// The common part of every call. It is not generic: it would be compiled for each function of NVML.
fn enter(name: &str, target: Target, call: &dyn Fn() -> Answer) -> c_uint {
    let result = disturbed(name, target, call);
    if std::env::var_os("NVML_SIM_TRACE").is_some() {
        eprintln!("nvml-sim: {name} = {result}");
    }
    result
}

fn disturbed(name: &str, target: Target, call: &dyn Fn() -> Answer) -> c_uint {
    let store = session::store();
    let place = || session::place(name, &target);
    let others = || {
        store
            .as_ref()
            .map_or(0, |store| session::others(store.root()))
    };
    let effect = store
        .as_ref()
        .and_then(|store| store.disturbance_of(name, place, others).ok())
        .unwrap_or_default();
    let start = Instant::now();
    let code = affected(effect, store.as_deref(), call);
    if let (Some(store), Some(gpu)) = (store, effect.note) {
        journal::note(store.root(), name, gpu, code, start.elapsed());
    }
    code
}

/// Runs a call with its effect.
fn affected(effect: Effect, store: Option<&Store>, call: &dyn Fn() -> Answer) -> c_uint {
    let turn = |gpu| store.and_then(|store| Turn::wait(store.root(), gpu));
    let _turn = effect.turn.and_then(turn);
    if effect.delay_us > 0 {
        std::thread::sleep(Duration::from_micros(effect.delay_us));
    }
    if effect.kill {
        kill_self();
    }
    if let Some(code) = effect.fail {
        return code.0;
    }
    let answer = catch_unwind(AssertUnwindSafe(call)).unwrap_or(Err(Code::UNKNOWN));
    if effect.kill_after {
        kill_self();
    }
    let code = match (effect.fail_after, answer) {
        (Some(code), _) | (None, Err(code)) => code.0,
        (None, Ok(())) => 0,
    };
    match effect.instead {
        Some((own, other)) if own == code => other,
        _ => code,
    }
}

/// Declares functions of NVML.
macro_rules! nvml {
    ($(fn $name:ident($($arg:ident: $type:ty),* $(,)?) $body:block)*) => {
        $(
            #[unsafe(no_mangle)]
            pub extern "C" fn $name($($arg: $type),*) -> ::std::ffi::c_uint {
                #[allow(unused_mut, reason = "some functions take nothing")]
                let mut target = $crate::abi::Target::default();
                $($crate::abi::Names::note(&$arg, &mut target);)*
                $crate::abi::enter(stringify!($name), target, &move || -> $crate::code::Answer { $body })
            }
        )*
    };
}
use nvml;

/// Declares functions that write one value of a whole GPU. Their bodies use the three names at the beginning.
macro_rules! getters {
    ($names:tt $(fn $name:ident($($arg:ident: $kind:ty),*) -> $type:ty $value:block)*) => {
        $($crate::abi::getters! { @ $names $name ($($arg: $kind),*) $type, $value })*
    };
    (@ ($call:ident, $device:ident, $gpu:ident) $name:ident ($($arg:ident: $kind:ty),*) $type:ty, $value:block) => {
        $crate::abi::nvml! {
            fn $name($device: DeviceHandle, $($arg: $kind,)* out: Out<$type>) {
                let $call = &Call::new()?;
                #[allow(unused_variables, reason = "some values are the same for all GPUs")]
                let (_, $gpu) = $call.gpu($device)?;
                out.set($value)
            }
        }
    };
}
use getters;
