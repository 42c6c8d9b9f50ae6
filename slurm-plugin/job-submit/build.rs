//! Passes facts about the Slurm headers to the plugin's code.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rustc-check-cfg=cfg(modify_has_message)");
    let has = std::env::var("DEP_SLURM_MODIFY_HAS_MESSAGE").expect("slurm-sys tells it");
    if has == "true" {
        println!("cargo:rustc-cfg=modify_has_message");
    }
}
