//! The release of the plugins that came with the host's Slurm; they are in the folder of its library
//! (`libslurmfull.so`, both in `pkglibdir`).
//!
//! The file is read, not loaded. Loading would be less code, but many plugins need symbols of slurmctld or slurmd, so
//! that other programs cannot load them; some load further libraries; and a process that maps a file which an upgrade
//! is replacing may be killed, whereas reading such a file at worst gives no result.

use std::ffi::CStr;
use std::path::Path;

use object::{Object, ObjectSegment, ObjectSymbol};

use super::Release;

/// Plugins of every series from 22.05 to 26.05, because a plugin that Slurm dropped could be left over from an older
/// Slurm in the same folder. The first is the default of `HashPlugin`, so every installation has it.
const NAMES: [&str; 4] = [
    "hash_k12.so",
    "cli_filter_user_defaults.so",
    "job_submit_all_partitions.so",
    "select_linear.so",
];

/// A larger file is not a plugin.
const MANY_BYTES: u64 = 64 << 20;

/// The release of Slurm's own plugins in a folder.
pub fn beside(folder: &Path) -> Option<Release> {
    let mut found = NAMES.iter().map(|name| of_file(&folder.join(name)));
    found.find_map(|found| Some(found?.0))
}

/// The release for which a plugin file was built, and for a plugin of gpufrac its build ([`super::BUILD`]), which
/// earlier builds do not tell.
pub fn of_file(path: &Path) -> Option<(Release, Option<String>)> {
    // Reading a named pipe would never end.
    let file = std::fs::metadata(path).ok()?;
    if !file.is_file() || file.len() > MANY_BYTES {
        return None;
    }
    let bytes = std::fs::read(path).ok()?;
    let file = object::File::parse(bytes.as_slice()).ok()?;
    let version = symbol(&file, "plugin_version")?;
    let release = Release(u32::from_ne_bytes(version.try_into().ok()?));
    let build =
        symbol(&file, "gpufrac_build").and_then(|text| CStr::from_bytes_until_nul(text).ok());
    Some((
        release,
        build.map(|text| text.to_string_lossy().into_owned()),
    ))
}

/// The value of a symbol in a plugin file.
fn symbol<'f>(file: &object::File<'f>, name: &str) -> Option<&'f [u8]> {
    let symbol = file
        .dynamic_symbols()
        .find(|symbol| symbol.is_definition() && symbol.name() == Ok(name))?;
    file.segments()
        .find_map(|segment| segment.data_range(symbol.address(), symbol.size()).ok()?)
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use tempfile::TempDir;

    use super::*;

    /// A folder with a library compiled from C source.
    fn plugin(source: &str) -> TempDir {
        let folder = tempfile::tempdir().unwrap();
        let code = folder.path().join("plugin.c");
        std::fs::write(&code, source).unwrap();
        let mut compiler = Command::new("cc");
        compiler
            .args(["-shared", "-fPIC", "-o"])
            .arg(folder.path().join("hash_k12.so"))
            .arg(&code);
        assert!(compiler.status().unwrap().success());
        folder
    }

    #[test]
    fn the_release_of_a_plugin_is_read_from_its_file() {
        let source = "extern int of_slurmctld;\n\
            int *used(void) { return &of_slurmctld; }\n\
            const char plugin_type[] = \"hash/k12\";\n\
            const unsigned int plugin_version = 0x16050b;\n";
        let folder = plugin(source);
        assert_eq!(beside(folder.path()), Some(Release(0x16_05_0b)));
        // Stripped, as in Slurm's packages.
        let file = folder.path().join("hash_k12.so");
        let stripped = Command::new("strip").arg(&file).status().unwrap();
        assert!(stripped.success());
        assert_eq!(beside(folder.path()), Some(Release(0x16_05_0b)));
    }

    #[test]
    fn the_build_of_a_plugin_of_gpufrac_is_read_from_its_file() {
        let source = "const char gpufrac_build[] = \"0.1.0~dev7.gabc\";\n\
            const unsigned int plugin_version = 0x16050b;\n";
        let folder = plugin(source);
        let file = folder.path().join("hash_k12.so");
        let build = Some("0.1.0~dev7.gabc".to_owned());
        assert_eq!(of_file(&file), Some((Release(0x16_05_0b), build)));
        let folder = plugin("const unsigned int plugin_version = 0x16050b;\n");
        let file = folder.path().join("hash_k12.so");
        assert_eq!(of_file(&file), Some((Release(0x16_05_0b), None)));
    }

    #[test]
    fn a_file_that_is_no_plugin_has_no_release() {
        let folder = plugin("int nothing;\n");
        assert_eq!(beside(folder.path()), None);
        let file = folder.path().join("hash_k12.so");
        let whole = std::fs::read(&file).unwrap();
        // Incomplete files, as during an upgrade, and damaged ones.
        for end in [0, 1, 64, 200, whole.len() / 2] {
            std::fs::write(&file, &whole[..end]).unwrap();
            assert_eq!(beside(folder.path()), None);
        }
        let gone = folder.path().to_owned();
        folder.close().unwrap();
        assert_eq!(beside(&gone), None);
    }
}
