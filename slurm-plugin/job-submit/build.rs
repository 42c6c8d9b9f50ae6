//! Tells the plugin what the Slurm that it is built for has.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rustc-check-cfg=cfg(modify_has_message)");
    let version = std::env::var("DEP_SLURM_VERSION").expect("slurm-sys tells the version");
    let version = u32::from_str_radix(&version, 16).expect("a hexadecimal number");
    // job_modify got its `err_msg` in 23.02.
    if version >= 0x17_02_00 {
        println!("cargo:rustc-cfg=modify_has_message");
    }
}
