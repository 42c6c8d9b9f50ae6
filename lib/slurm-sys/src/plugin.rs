//! The three symbols that Slurm expects in every plugin (`src/common/plugin.c`), and gpufrac's own.

/// A NUL-terminated text in the form that Slurm expects of a symbol: the bytes themselves, not a pointer.
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

/// Exports `plugin_name`, `plugin_type` and `plugin_version`, and `gpufrac_build`, which `gpufrac check` reads.
///
/// `slurm_plugin!("human name", "spank");`: the version is that of the build. Of a SPANK plugin Slurm itself compares
/// only the series, and skips one that does not match if plugstack.conf says `optional`.
///
/// `slurm_plugin!("human name", "job_submit/gpufrac", any release);`: the version is always that of the host. The
/// plugin must call [`foreign`](crate::release::foreign) before anything else.
#[macro_export]
macro_rules! slurm_plugin {
    ($name:literal, $type:literal, any release) => {
        $crate::slurm_plugin!(@names $name, $type);
        /// Slurm compares it with its own release. An atomic number has the same layout as a number.
        #[unsafe(no_mangle)]
        pub static plugin_version: ::std::sync::atomic::AtomicU32 =
            ::std::sync::atomic::AtomicU32::new($crate::release::Release::BUILT_FOR.number());
        /// The loader calls it in `dlopen`, before Slurm looks up a symbol.
        #[used]
        #[unsafe(link_section = ".init_array")]
        static ADOPT_RELEASE: unsafe extern "C" fn() = at_load::exported::adopt_release;
        mod at_load {
            $crate::for_slurm! {
                silent fn adopt_release(), or ();
            }
            fn adopt_release() {
                $crate::release::adopt(&super::plugin_version);
            }
        }
    };
    ($name:literal, $type:literal) => {
        $crate::slurm_plugin!(@names $name, $type);
        /// Slurm compares it with its own release.
        #[unsafe(no_mangle)]
        pub static plugin_version: u32 = $crate::release::Release::BUILT_FOR.number();
    };
    (@names $name:literal, $type:literal) => {
        /// The human-readable name.
        #[unsafe(no_mangle)]
        pub static plugin_name: [u8; $name.len() + 1] = $crate::plugin::name($name);
        #[unsafe(no_mangle)]
        pub static gpufrac_build: [u8; $crate::release::BUILD.len() + 1] =
            $crate::plugin::name($crate::release::BUILD);
        /// Slurm compares it with the type in slurm.conf.
        #[unsafe(no_mangle)]
        pub static plugin_type: [u8; $type.len() + 1] = $crate::plugin::name($type);
    };
}
