//! The three symbols that Slurm looks for in every plugin (`src/common/plugin.c`).

/// A NUL-terminated text as Slurm wants it exported: the bytes themselves, not a pointer.
#[must_use]
pub const fn name<const N: usize>(text: &str) -> [u8; N] {
    let bytes = text.as_bytes();
    assert!(bytes.len() < N, "the array must have room for the NUL");
    let mut out = [0; N];
    let mut position = 0;
    while position < bytes.len() {
        out[position] = bytes[position];
        position += 1;
    }
    out
}

/// Exports `plugin_name`, `plugin_type` and `plugin_version`.
///
/// `slurm_plugin!("human name", "job_submit/gpufrac");`
#[macro_export]
macro_rules! slurm_plugin {
    ($name:literal, $type:literal) => {
        /// The human-readable name.
        #[unsafe(no_mangle)]
        pub static plugin_name: [u8; $name.len() + 1] = $crate::plugin::name($name);
        /// What Slurm compares with the type that slurm.conf asks for.
        #[unsafe(no_mangle)]
        pub static plugin_type: [u8; $type.len() + 1] = $crate::plugin::name($type);
        /// What Slurm compares with its own release.
        #[unsafe(no_mangle)]
        pub static plugin_version: u32 = $crate::VERSION;
    };
}
