//! BPF programs that decide which devices the processes of a control group of version 2 can open: bpf(2), types and
//! layouts from linux/bpf.h.
#![allow(unsafe_code)]

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

/// Commands of bpf(2), `enum bpf_cmd`.
mod command {
    use libc::c_int;

    pub const PROG_LOAD: c_int = 5;
    pub const PROG_ATTACH: c_int = 8;
    pub const PROG_DETACH: c_int = 9;
    pub const PROG_GET_FD_BY_ID: c_int = 13;
    pub const OBJ_GET_INFO_BY_FD: c_int = 15;
    pub const PROG_QUERY: c_int = 16;
}

/// `BPF_PROG_TYPE_CGROUP_DEVICE`
const TYPE_CGROUP_DEVICE: u32 = 15;
/// `BPF_CGROUP_DEVICE`
const ATTACH_CGROUP_DEVICE: u32 = 6;
/// `BPF_F_ALLOW_MULTI`: the program applies together with others of the group and of the groups below.
pub const TOGETHER: u32 = 2;
/// The most programs of a group (`BPF_CGROUP_MAX_PROGS`).
const MOST: usize = 64;
/// `BPF_OBJ_NAME_LEN`, with the final zero byte.
const NAME_LENGTH: usize = 16;
/// The offsets of tag and name in `struct bpf_prog_info`.
const INFO_TAG: usize = 8;
const INFO_NAME: usize = 64;

/// `union bpf_attr`, larger than that of any kernel, because a kernel also writes to fields that the caller does not
/// know.
#[repr(C, align(8))]
struct Attributes([u8; 512]);

impl Attributes {
    fn new() -> Self {
        Attributes([0; 512])
    }

    fn u32(mut self, offset: usize, value: u32) -> Self {
        self.0[offset..offset + 4].copy_from_slice(&value.to_ne_bytes());
        self
    }

    /// Writes an address. The memory there must outlive the call.
    fn address<T>(mut self, offset: usize, of: *const T) -> Self {
        let value = of as usize as u64;
        self.0[offset..offset + 8].copy_from_slice(&value.to_ne_bytes());
        self
    }

    fn fd(self, offset: usize, fd: &impl AsRawFd) -> Self {
        self.u32(offset, fd.as_raw_fd().cast_unsigned())
    }

    fn get(&self, offset: usize) -> u32 {
        let bytes = self.0[offset..offset + 4].try_into();
        bytes.map_or(0, u32::from_ne_bytes)
    }

    /// # Safety
    /// Addresses in the attributes must point to memory that the command may read or write.
    unsafe fn call(&mut self, command: libc::c_int, size: usize) -> io::Result<libc::c_int> {
        // SAFETY: the attributes are larger than what any kernel writes there; the rest is the caller's promise.
        let answer = unsafe { libc::syscall(libc::SYS_bpf, command, self.0.as_mut_ptr(), size) };
        match answer {
            -1 => Err(io::Error::last_os_error()),
            answer => Ok(libc::c_int::try_from(answer).unwrap_or(-1)),
        }
    }

    /// Runs a command that returns a new descriptor.
    ///
    /// # Safety
    /// As [`Attributes::call`]; the command must return a descriptor.
    unsafe fn open(&mut self, command: libc::c_int, size: usize) -> io::Result<OwnedFd> {
        // SAFETY: the caller's promise.
        let fd = unsafe { self.call(command, size) }?;
        // SAFETY: the kernel made it for this call, so nobody else has it.
        Ok(unsafe { OwnedFd::from_raw_fd(fd) })
    }
}

/// An instruction, `struct bpf_insn`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub struct Instruction {
    pub code: u8,
    /// The destination in the lower four bits, the source in the upper four.
    pub registers: u8,
    /// The number of instructions that a jump skips, or the offset of a load.
    pub offset: i16,
    pub immediate: i32,
}

/// A BPF program; it exists as long as a descriptor is open or it is attached.
#[derive(Debug)]
pub struct Program(OwnedFd);

impl Program {
    /// Loads a program; the kernel verifies it.
    pub fn load(instructions: &[Instruction], name: &str) -> io::Result<Program> {
        let count = u32::try_from(instructions.len()).unwrap_or(u32::MAX);
        let mut attributes = Attributes::new()
            .u32(0, TYPE_CGROUP_DEVICE)
            .u32(4, count)
            .address(8, instructions.as_ptr())
            .address(16, c"GPL".as_ptr());
        let shown = name.len().min(NAME_LENGTH - 1);
        attributes.0[48..48 + shown].copy_from_slice(&name.as_bytes()[..shown]);
        // SAFETY: instructions and licence outlive the call, and the kernel only reads them.
        let fd = unsafe { attributes.open(command::PROG_LOAD, 64) }?;
        Ok(Program(fd))
    }

    pub fn of_id(id: u32) -> io::Result<Program> {
        let mut attributes = Attributes::new().u32(0, id);
        // SAFETY: no addresses.
        let fd = unsafe { attributes.open(command::PROG_GET_FD_BY_ID, 12) }?;
        Ok(Program(fd))
    }

    /// The kernel's information about the program.
    pub fn about(&self) -> io::Result<About> {
        let mut info = [0_u64; 64];
        let size = u32::try_from(size_of_val(&info)).unwrap_or(u32::MAX);
        let mut attributes = Attributes::new()
            .fd(0, &self.0)
            .u32(4, size)
            .address(8, info.as_mut_ptr());
        // SAFETY: `info` outlives the call and is as large as is said.
        unsafe { attributes.call(command::OBJ_GET_INFO_BY_FD, 16) }?;
        let words = info[INFO_NAME / 8..].iter().take(NAME_LENGTH / 8);
        let bytes: Vec<u8> = words.flat_map(|word| word.to_ne_bytes()).collect();
        let name = bytes.split(|byte| *byte == 0).next().unwrap_or_default();
        Ok(About {
            name: String::from_utf8_lossy(name).into_owned(),
            tag: info[INFO_TAG / 8],
        })
    }

    /// Attaches the program to a group. `flags`: [`TOGETHER`], or others of linux/bpf.h.
    pub fn attach(&self, group: &File, flags: u32) -> io::Result<()> {
        let mut attributes = self.at(group).u32(12, flags);
        // SAFETY: no addresses.
        unsafe { attributes.call(command::PROG_ATTACH, 16) }.map(drop)
    }

    /// Detaches the program from a group.
    pub fn detach(&self, group: &File) -> io::Result<()> {
        // SAFETY: no addresses.
        unsafe { self.at(group).call(command::PROG_DETACH, 16) }.map(drop)
    }

    fn at(&self, group: &File) -> Attributes {
        Attributes::new()
            .fd(0, group)
            .fd(4, &self.0)
            .u32(8, ATTACH_CGROUP_DEVICE)
    }
}

/// A part of `struct bpf_prog_info`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct About {
    /// The name given when it was loaded.
    pub name: String,
    /// A digest of the instructions; equal programs have equal tags.
    pub tag: u64,
}

/// The programs of a group itself, without those of the groups above it.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Attached {
    /// The ids of the programs.
    pub ids: Vec<u32>,
    /// Whether they apply together with programs of groups below; otherwise those replace them.
    pub together: bool,
}

/// Queries the programs of a group.
pub fn attached(group: &File) -> io::Result<Attached> {
    let mut ids = [0_u32; MOST];
    let mut attributes = Attributes::new()
        .fd(0, group)
        .u32(4, ATTACH_CGROUP_DEVICE)
        .address(16, ids.as_mut_ptr())
        .u32(24, u32::try_from(ids.len()).unwrap_or(0));
    // SAFETY: `ids` outlives the call and has room for as many as is said.
    unsafe { attributes.call(command::PROG_QUERY, 32) }?;
    let count = (attributes.get(24) as usize).min(MOST);
    Ok(Attached {
        ids: ids[..count].to_vec(),
        together: attributes.get(12) & TOGETHER != 0,
    })
}
