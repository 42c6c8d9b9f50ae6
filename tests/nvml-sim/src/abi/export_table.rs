//! The table of functions that `nvidia-smi` requests by UUID.
//!
//! NVIDIA does not document it. This version comes from observing the calls of `nvidia-smi` 535 and 550, and from
//! what others published who run it without a GPU: the first word is the table's size, the rest are functions, a few
//! of which are known. All others return "not supported", which `nvidia-smi` prints as N/A.

use std::ffi::{c_uint, c_void};
use std::sync::OnceLock;

use nvml_wrapper_sys::bindings as sys;

use super::clients::{self, List};
use super::{Out, Target, enter, nvml};
use crate::code::{Answer, Code};
use crate::session::{Call, Handle};

/// 6c3efec4-8fc9-4e6c-a327-ee696e12f7c4, in memory order.
const KNOWN: [u8; 16] = [
    0xc4, 0xfe, 0x3e, 0x6c, 0xc9, 0x8f, 0x6c, 0x4e, 0xa3, 0x27, 0xee, 0x69, 0x6e, 0x12, 0xf7, 0xc4,
];
const SLOTS: usize = 256;

/// `(index, out handle, flags)`.
const HANDLE_BY_INDEX: usize = 81;
/// `(device, in/out count, entries)`: compute, graphics, and MPS processes.
const PROCESSES: std::ops::RangeInclusive<usize> = 213..=215;

/// A process in the table's own list: NVML's detail, and the name behind it.
#[repr(C)]
#[derive(Clone, Copy)]
struct Entry {
    detail: sys::nvmlProcessDetail_v1_t,
    name: [std::ffi::c_char; 4096],
}

type Slot = extern "C" fn(usize, usize, usize, usize) -> c_uint;

extern "C" fn slot<const NUMBER: usize>(a: usize, b: usize, c: usize, _d: usize) -> c_uint {
    let target = Target::default();
    enter(&format!("slot{NUMBER}"), target, &|| {
        answer(NUMBER, a, b, c)
    })
}

fn pointer<T>(address: usize) -> Out<T> {
    Out(std::ptr::with_exposed_provenance_mut(address))
}

fn answer(slot: usize, a: usize, b: usize, c: usize) -> Answer {
    let call = Call::new()?;
    if slot == HANDLE_BY_INDEX {
        let index = call.session.visible.get(a).ok_or(Code::INVALID_ARGUMENT)?;
        return pointer::<sys::nvmlDevice_t>(b).set(call.handle(Handle::Gpu(*index)));
    }
    if PROCESSES.contains(&slot) {
        let device: sys::nvmlDevice_t = std::ptr::without_provenance_mut(a);
        let list = match slot - PROCESSES.start() {
            0 => List::Compute,
            1 => List::Graphics,
            _ => List::Mps,
        };
        let rows = clients::details(&call, device, list)?;
        let rows: Vec<Entry> = rows
            .into_iter()
            .map(|(detail, name)| Entry {
                detail,
                name: super::text_field(&name),
            })
            .collect();
        return pointer::<Entry>(c).fill(pointer::<c_uint>(b), &rows);
    }
    Err(Code::NOT_SUPPORTED)
}

macro_rules! row {
    ($high:literal: $($low:literal)*) => {
        [$(slot::<{ $high * 16 + $low }> as Slot),*]
    };
}
macro_rules! table {
    ($($high:literal)*) => {
        [$(row!($high: 0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15)),*]
    };
}

static FUNCTIONS: [[Slot; 16]; SLOTS / 16] = table!(0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15);

fn table() -> &'static [usize; SLOTS] {
    static TABLE: OnceLock<[usize; SLOTS]> = OnceLock::new();
    TABLE.get_or_init(|| {
        let mut table = [0; SLOTS];
        for (number, word) in table.iter_mut().enumerate() {
            *word = FUNCTIONS[number / 16][number % 16] as usize;
        }
        table[0] = size_of_val(&table);
        table
    })
}

nvml! {
    fn nvmlInternalGetExportTable(out: Out<*const c_void>, id: Out<[u8; 16]>) {
        if id.get()? != KNOWN {
            out.set(std::ptr::null())?;
            return Err(Code::NOT_FOUND);
        }
        out.set(table().as_ptr().cast())
    }
}
