//! Whether a running Slurm has structures where this build reads them.
//!
//! Functions of Slurm set all bytes of a structure to 0, and then some fields to values of its headers
//! (`src/api/init_msg.c`, the same fields in 22.05 to 26.05). What they write shows the size of the running Slurm's
//! structure and the places of these fields.

use std::ffi::c_void;
use std::fmt;
use std::mem::{offset_of, size_of};

use libloading::os::unix::Library;

use crate::raw;

type Initialise = unsafe extern "C" fn(*mut c_void);

/// A byte that the functions do not write: it is neither 0 nor part of a value that stands for "none".
const UNTOUCHED: u8 = 0xa5;
/// Room for a structure that is larger than that of this build, in bytes.
const ROOM: usize = 16 * 1024;

/// A structure of the headers of this build.
struct Structure {
    name: &'static str,
    /// The function that initialises it, with a NUL.
    function: &'static str,
    size: usize,
    /// Fields with their offsets, and the bytes that the function writes there.
    fields: &'static [(&'static str, usize, &'static [u8])],
}

macro_rules! structure {
    ($type:ident, $function:literal, $($field:ident = $value:expr),+) => {
        Structure {
            name: stringify!($type),
            function: concat!($function, "\0"),
            size: size_of::<raw::$type>(),
            fields: &[$((stringify!($field), offset_of!(raw::$type, $field), &$value)),+],
        }
    };
}

const NONE: [u8; 4] = raw::NO_VAL.to_ne_bytes();
const NONE16: [u8; 2] = (raw::NO_VAL16 as u16).to_ne_bytes();
const NONE64: [u8; 8] = (raw::NO_VAL64 as u64).to_ne_bytes();

/// The structures that gpufrac reads or writes and that Slurm has such a function for.
static STRUCTURES: [Structure; 3] = [
    structure!(
        job_desc_msg_t,
        "slurm_init_job_desc_msg",
        contiguous = NONE16,
        cpus_per_task = NONE16,
        max_nodes = NONE,
        min_cpus = NONE,
        min_nodes = NONE,
        ntasks_per_node = NONE16,
        num_tasks = NONE,
        pn_min_memory = NONE64,
        priority = NONE,
        requeue = NONE16,
        shared = NONE16,
        time_limit = NONE,
        wait4switch = NONE
    ),
    structure!(
        partition_info_t,
        "slurm_init_part_desc_msg",
        default_time = NONE,
        def_mem_per_cpu = NONE64,
        max_mem_per_cpu = NONE64,
        max_nodes = NONE,
        max_time = NONE,
        over_time_limit = NONE16,
        state_up = NONE16
    ),
    structure!(
        update_node_msg_t,
        "slurm_init_update_node_msg",
        node_state = NONE,
        weight = NONE
    ),
];

/// A structure that the running Slurm has in another form.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Difference {
    structure: &'static str,
    /// The field at another place; None if the size differs, in bytes here and there.
    field: Option<&'static str>,
    sizes: (usize, usize),
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            structure,
            field,
            sizes: (here, there),
        } = self;
        match field {
            Some(field) => write!(f, "`{field}` of {structure} is at another place"),
            None => write!(f, "{structure} has {there} bytes in place of {here}"),
        }
    }
}

/// The first difference between the headers of this build and a loaded libslurm, or a process that has its functions.
/// A function that is missing shows none.
pub(crate) fn difference(slurm: &Library) -> Option<Difference> {
    STRUCTURES.iter().find_map(|structure| {
        // SAFETY: all of these functions take a pointer to one structure.
        let initialise = unsafe { slurm.get::<Initialise>(structure.function.as_bytes()) }.ok()?;
        structure.difference(|place| {
            // SAFETY: the place is aligned for any structure, and larger than that of any Slurm by far.
            unsafe { initialise(place.as_mut_ptr().cast()) };
        })
    })
}

impl Structure {
    fn difference(&self, initialise: impl FnOnce(&mut [u64])) -> Option<Difference> {
        let mut place = vec![u64::from_ne_bytes([UNTOUCHED; 8]); (self.size + ROOM) / 8];
        initialise(&mut place);
        let bytes: Vec<u8> = place.into_iter().flat_map(u64::to_ne_bytes).collect();
        let last = bytes.iter().rposition(|byte| *byte != UNTOUCHED);
        let size = last.map_or(0, |last| last + 1);
        let is_elsewhere =
            |(_, at, value): &&(&str, usize, &[u8])| !bytes[*at..].starts_with(value);
        let field = self
            .fields
            .iter()
            .find(is_elsewhere)
            .map(|(name, ..)| *name);
        (size != self.size || field.is_some()).then_some(Difference {
            structure: self.name,
            field: field.filter(|_| size == self.size),
            sizes: (self.size, size),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What Slurm's function does for a structure of this size with fields at these offsets.
    fn write(place: &mut [u64], size: usize, fields: &[(&str, usize, &[u8])]) {
        let mut bytes: Vec<u8> = place.iter().flat_map(|word| word.to_ne_bytes()).collect();
        bytes[..size].fill(0);
        for (_, at, value) in fields {
            bytes[*at..at + value.len()].copy_from_slice(value);
        }
        for (word, bytes) in place.iter_mut().zip(bytes.chunks_exact(8)) {
            *word = u64::from_ne_bytes(bytes.try_into().unwrap());
        }
    }

    #[test]
    fn another_size_or_place_is_found() {
        for structure in &STRUCTURES {
            let of = |size, fields: &[(&str, usize, &[u8])]| {
                structure.difference(|place| write(place, size, fields))
            };
            assert_eq!(of(structure.size, structure.fields), None);
            for size in [structure.size - 8, structure.size + 8] {
                let found = of(size, &structure.fields[..1]).unwrap().to_string();
                assert!(found.contains(&size.to_string()), "{found}");
            }
            let mut moved = structure.fields.to_vec();
            let (name, at, _) = moved[0];
            moved[0].1 = at.checked_sub(8).unwrap_or(at + 8);
            let found = of(structure.size, &moved).unwrap().to_string();
            assert!(found.contains(name), "{found}");
        }
    }

    #[test]
    fn the_installed_slurm_has_the_layouts_of_its_headers() {
        let slurm = crate::client::load().unwrap();
        for structure in &STRUCTURES {
            // SAFETY: as in `difference`.
            let function = unsafe { slurm.get::<Initialise>(structure.function.as_bytes()) };
            assert!(function.is_ok(), "{}", structure.function);
        }
        assert_eq!(difference(&slurm), None);
    }
}
