//! Links the unwinder of GCC into the program. std asks for `libgcc_s.so`, and loading that is a
//! quarter of what the program costs a job without a GPU; so the linker finds a script of that name
//! first, which stands for the static `libgcc_eh`.

use std::path::PathBuf;

fn main() -> std::io::Result<()> {
    println!("cargo:rerun-if-changed=build.rs");
    let gnu = std::env::var("CARGO_CFG_TARGET_ENV").is_ok_and(|env| env == "gnu");
    if let Some(out) = std::env::var_os("OUT_DIR").map(PathBuf::from)
        && gnu
    {
        std::fs::write(out.join("libgcc_s.so"), "INPUT(-lgcc_eh -lgcc)\n")?;
        println!("cargo:rustc-link-search=native={}", out.display());
    }
    Ok(())
}
