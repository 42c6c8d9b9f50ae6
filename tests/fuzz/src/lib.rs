//! Targets for readers of texts from other sources: users, admins, Slurm, NVIDIA's daemons, damaged files.
//!
//! Each target is a function of bytes. It panics if a reader panics, or if the result breaks a promise of the reader.
//! `tests/seeds.rs` runs the seeds and random changes of them with each run of the tests; `cargo xtask fuzz` runs the
//! targets under libFuzzer.
#![forbid(unsafe_code)]

use std::fs;
use std::path::{Path, PathBuf};

mod crc64;
mod targets;

/// A reader with the checks of its result.
pub struct Target {
    /// The name, also of the folder of its seeds.
    pub name: &'static str,
    /// Words of its texts, which random changes of bytes would rarely produce.
    pub words: &'static [&'static str],
    /// Reads an input.
    pub run: fn(&[u8]),
}

/// All targets.
pub const TARGETS: [Target; 8] = [
    Target {
        name: "request",
        words: &[
            "gpufrac",
            "gpu",
            "shard",
            "gres:",
            "gres/",
            ":",
            "=",
            ",",
            "0.25",
            "10G",
            "whole",
            "mig",
            "mps",
            "percent",
            "half",
            "4294967296",
            "\n",
        ],
        run: targets::request,
    },
    Target {
        name: "config",
        words: &[
            "version = 1",
            "[pool.a]",
            "[reaper]",
            "[partition.a]",
            "mechanism = \"mps\"",
            "layout = \"slices\"",
            "menu = [\"1/8\"]",
            "nodes = \"n[1-2]\"",
            "gpus = [0]",
            "9223372036854775807",
            "-1",
            "\"",
            "\n",
        ],
        run: targets::config,
    },
    Target {
        name: "lease",
        words: &[
            "version = 3",
            "state = \"active\"",
            "[slice]",
            "[slice.mig]",
            "[slice.mps]",
            "number = 4294967295",
            "fraction = \"1/0\"",
            "units = 0",
            "18446744073709551615",
            "\n",
        ],
        run: targets::lease,
    },
    Target {
        name: "entry",
        words: &[
            "v1:",
            "units=",
            ":mech=",
            "mig+mps",
            "any",
            ":per=task",
            ":idle=",
            "long",
            "off",
            "4294967296",
        ],
        run: targets::entry,
    },
    Target {
        name: "hostlist",
        words: &["[", "]", "-", ",", "0", "65535", "999999999", "gn"],
        run: targets::hostlist,
    },
    Target {
        name: "gres_of_nodes",
        words: &[
            "shard:",
            "half:",
            "gpufrac(CNT:50)",
            "(",
            ")",
            "50/50",
            ",",
            "4294967296",
            "gn[1-2]",
            "\n",
        ],
        run: targets::gres_of_nodes,
    },
    Target {
        name: "mps",
        words: &[
            "G",
            "M",
            "\n",
            "17592186044416G",
            "-1",
            "13010",
            "2147483648",
        ],
        run: targets::mps,
    },
    Target {
        name: "dcgm",
        words: &[
            "HTTP/1.0 200 OK\r\n",
            "\r\n\r\n",
            "Content-Length: ",
            "DCGM_FI_PROF_GR_ENGINE_ACTIVE",
            "{",
            "}",
            "UUID=\"",
            "GPU_I_ID=\"7\"",
            "NaN",
            "1e999",
            "\n",
        ],
        run: targets::dcgm,
    },
];

pub fn target(name: &str) -> Option<&'static Target> {
    TARGETS.iter().find(|target| target.name == name)
}

impl Target {
    /// The folder of its seeds.
    pub fn folder(&self) -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("seeds")
            .join(self.name)
    }

    /// Its seeds with their files, in the order of names.
    ///
    /// # Panics
    /// They cannot be read.
    pub fn seeds(&self) -> Vec<(PathBuf, Vec<u8>)> {
        let folder = self.folder();
        let entries =
            fs::read_dir(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
        let mut paths: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
        paths.sort();
        let read = |path: PathBuf| {
            let bytes =
                fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
            (path, bytes)
        };
        paths.into_iter().map(read).collect()
    }
}
