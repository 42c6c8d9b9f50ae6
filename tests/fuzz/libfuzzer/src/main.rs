//! Runs libFuzzer for the target named by `GPUFRAC_FUZZ_TARGET`.
#![no_main]

use std::sync::LazyLock;

use fuzz_targets::Target;
use libfuzzer_sys::fuzz_target;

static TARGET: LazyLock<&'static Target> = LazyLock::new(|| {
    let name = std::env::var("GPUFRAC_FUZZ_TARGET").unwrap_or_default();
    fuzz_targets::target(&name).unwrap_or_else(|| panic!("no target is called `{name}`"))
});

fuzz_target!(|input: &[u8]| (TARGET.run)(input));
