//! Generates the bindings from the headers of the Slurm that this build is for.
//!
//! Layouts differ between series of Slurm, so nothing is declared by hand: every structure, enum and prototype comes
//! from the installed headers. bindgen's layout tests run with `cargo test -p slurm-sys`.

use std::env;
use std::path::{Path, PathBuf};

/// Functions of the host process (slurmctld, slurmstepd, srun) that the plugins call.
const HOST_FUNCTIONS: &[&str] = &[
    "slurm_info",
    "slurm_error",
    "slurm_debug",
    "slurm_free_partition_info_msg",
    "slurm_list_iterator_create",
    "slurm_list_iterator_destroy",
    "slurm_list_next",
    "slurm_load_partitions",
    "spank_context",
    "spank_get_item",
    "spank_getenv",
    "spank_option_register",
    "spank_remote",
    "spank_setenv",
    "spank_unsetenv",
    "spank_strerror",
];

/// Functions of libslurm that `client` loads at run time.
const CLIENT_FUNCTIONS: &[&str] = &[
    "slurm_free_job_array_resp",
    "slurm_free_job_info_msg",
    "slurm_free_node_info_msg",
    "slurm_free_submit_response_response_msg",
    "slurm_init",
    "slurm_init_job_desc_msg",
    "slurm_init_update_node_msg",
    "slurm_job_will_run2",
    "slurm_kill_job2",
    "slurm_load_job",
    "slurm_load_node_single",
    "slurm_notify_job",
    "slurm_requeue2",
    "slurm_strerror",
    "slurm_submit_batch_job",
    "slurm_update_job2",
    "slurm_update_node",
];

const TYPES: &[&str] = &[
    "job_array_resp_msg_t",
    "job_defaults_t",
    "job_desc_msg_t",
    "job_info_msg_t",
    "job_states",
    "node_info_msg_t",
    "partition_info_msg_t",
    "slurm_conf_t",
    "slurm_err_t",
    "slurm_step_id_t",
    "spank_context",
    "spank_err_t",
    "spank_f",
    "spank_item",
    "spank_option",
    "spank_t",
    "submit_response_msg_t",
    "update_node_msg_t",
    "will_run_response_msg_t",
];

const CONSTANTS: &[&str] = &[
    "ESLURM_.*",
    "GPUFRAC_.*",
    "JOB_DEF_.*",
    "NO_VAL.*",
    "SLURM_ERROR",
    "SLURM_SUCCESS",
    "SLURM_VERSION_NUMBER",
    "SLURM_VERSION_STRING",
];

fn main() {
    println!("cargo:rerun-if-changed=wrapper.h");
    println!("cargo:rerun-if-env-changed=GPUFRAC_SLURM_INCLUDE");
    let include = env::var_os("GPUFRAC_SLURM_INCLUDE")
        .map_or_else(|| PathBuf::from("/usr/include"), PathBuf::from);
    let header = include.join("slurm/slurm.h");
    assert!(
        header.exists(),
        "{} does not exist: install Slurm's development package (libslurm-dev on Debian) \
         or set GPUFRAC_SLURM_INCLUDE to the folder that holds `slurm/slurm.h`",
        header.display()
    );
    println!("cargo:rerun-if-changed={}", header.display());

    let version = version(&include);
    // Since these releases a call has a step's id in place of a job's number, or Prolog and Epilog have separate time
    // limits.
    for (name, since) in [
        ("limits_by_hook", 0x19_05_00),
        ("records_by_step_id", 0x19_0b_00),
        ("calls_by_step_id", 0x1a_05_00),
    ] {
        println!("cargo:rustc-check-cfg=cfg({name})");
        if version >= since {
            println!("cargo:rustc-cfg={name}");
        }
    }
    // job_modify got its `err_msg` in 23.02; the plugin's own build script asks for it.
    println!("cargo:modify_has_message={}", version >= 0x17_02_00);
    println!("cargo:rustc-env=GPUFRAC_SLURM_LIB={}", libraries(&include));
    link_unwinder_statically();

    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    let base = || {
        bindgen::Builder::default()
            .header("wrapper.h")
            .clang_arg(format!("-I{}", include.display()))
            .default_enum_style(bindgen::EnumVariation::Consts)
            .prepend_enum_name(false)
            .generate_comments(false)
            .derive_default(false)
            .layout_tests(true)
            .formatter(bindgen::Formatter::Prettyplease)
    };

    let mut host = base();
    if cfg!(feature = "plugin") {
        for name in HOST_FUNCTIONS {
            host = host.allowlist_function(name);
        }
    }
    for name in TYPES {
        host = host.allowlist_type(name);
    }
    for name in CONSTANTS {
        host = host.allowlist_var(name);
    }
    write(host, &out.join("host.rs"));

    let mut client = base()
        .dynamic_library_name("LibSlurm")
        .dynamic_link_require_all(true)
        .allowlist_recursively(false)
        .raw_line("use crate::raw::*;");
    for name in CLIENT_FUNCTIONS {
        client = client.allowlist_function(name);
    }
    write(client, &out.join("client.rs"));
}

fn write(builder: bindgen::Builder, path: &Path) {
    builder
        .generate()
        .expect("bindgen could not bind Slurm's headers")
        .write_to_file(path)
        .expect("the bindings could not be written to OUT_DIR");
}

/// Links GCC's unwinder statically into every plugin and program of gpufrac. std asks for `libgcc_s.so`, and loading
/// it is a large part of what gpufrac costs a job without a GPU. The linker finds a script of this name first, which
/// refers to the static `libgcc_eh`. A search path that the build script of a library sets holds for everything that
/// links the library.
fn link_unwinder_statically() {
    if env::var("CARGO_CFG_TARGET_ENV").is_ok_and(|env| env == "gnu") {
        let folder =
            PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR")).join("link");
        std::fs::create_dir_all(&folder).expect("OUT_DIR is writable");
        std::fs::write(folder.join("libgcc_s.so"), "INPUT(-lgcc_eh -lgcc)\n")
            .expect("OUT_DIR is writable");
        println!("cargo:rustc-link-search=native={}", folder.display());
    }
}

/// The folder of libslurm in the prefix of these headers; empty if there is none, as in Debian, where the loader
/// finds libslurm by itself.
fn libraries(include: &Path) -> String {
    let prefix = include.parent().unwrap_or(include);
    ["lib64", "lib"]
        .map(|name| prefix.join(name))
        .into_iter()
        .find(|folder| folder.join("libslurm.so").exists())
        .map_or_else(String::new, |folder| folder.display().to_string())
}

/// `SLURM_VERSION_NUMBER` (0xMMmmuu) of the headers.
fn version(include: &Path) -> u32 {
    let path = include.join("slurm/slurm_version.h");
    let text = std::fs::read_to_string(&path)
        .unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    text.lines()
        .find_map(|line| line.strip_prefix("#define SLURM_VERSION_NUMBER"))
        .and_then(|value| u32::from_str_radix(value.trim().trim_start_matches("0x"), 16).ok())
        .unwrap_or_else(|| panic!("{}: no SLURM_VERSION_NUMBER", path.display()))
}
