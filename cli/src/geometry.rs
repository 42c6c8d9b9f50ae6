//! `gpufrac geometry`: what the driver says of a GPU, as the `[geometry.NAME]` table of gpufrac.toml.

use std::fmt::Write as _;

use gpufrac_core::config::Config;
use gpufrac_core::geometry::{Geometry, Profile};
use gpufrac_core::ids::GpuIndex;
use gpufrac_core::layout::{HEADINGS, Served};
use gpufrac_host::exit::Exit;
use gpufrac_node::node::{Node, NodeError};

use crate::args::GeometryArgs;
use crate::conf;
use crate::error::CliError;

pub fn run(args: &GeometryArgs) -> Result<Exit, CliError> {
    let (path, name) = (args.config.path(), args.config.node_name());
    let node = match Node::load(&path, &name) {
        // A model that is not known yet has no pool, and the file may name a table that is to be made.
        Err(NodeError::NoConfig { .. } | NodeError::Config(_)) => Node::new(Config::empty(), &name),
        other => other?,
    };
    let refused = |source| CliError::NoGpu { source };
    let session = node.nvml().map_err(refused)?;
    let gpu = session.gpu(GpuIndex(args.gpu)).map_err(refused)?;
    let (product, geometry) = (gpu.name(), gpu.geometry().map_err(refused)?);
    if geometry.profiles.is_empty() {
        let gpu = GpuIndex(args.gpu);
        return Err(CliError::NoProfiles { gpu, product });
    }
    let name = args
        .name
        .clone()
        .unwrap_or_else(|| Geometry::name_of_product(&product));
    if !Geometry::is_table_name(&name) {
        return Err(CliError::TableName { name });
    }
    print!("{}", text(&name, &product, &geometry));
    Ok(Exit::Done)
}

/// The model of gpufrac with these profiles: the one of its name, or one whose profiles are the same.
fn known(product: &str, geometry: &Geometry) -> Option<&'static str> {
    let named = Geometry::model_of_product(product, geometry.memory()?).filter(|name| {
        Geometry::builtin(name).is_some_and(|known| known.differences(geometry).is_empty())
    });
    named.or_else(|| geometry.model_of_profiles())
}

fn text(name: &str, product: &str, geometry: &Geometry) -> String {
    let mut text = format!("# {product}, as its driver reports it.\n");
    if let Some(known) = known(product, geometry) {
        // Writing to a string does not fail.
        let _ = writeln!(
            text,
            "# gpufrac knows this model: write `gpu = \"{known}\"`, and no table."
        );
    }
    let _ = write!(
        text,
        "[geometry.{name}]\nmemory_slices = {}\ncompute_slices = {}\n",
        geometry.memory_slices, geometry.compute_slices
    );
    for profile in &geometry.profiles {
        let _ = write!(text, "\n[[geometry.{name}.profiles]]\n{}", keys(profile));
    }
    let mut lines = vec![HEADINGS.map(str::to_owned).to_vec()];
    lines.extend(
        Served::table(geometry)
            .iter()
            .map(|row| row.cells().to_vec()),
    );
    let _ = write!(
        text,
        "\n# What each layout serves on it, proved for every order of jobs: pieces of one size on a full GPU.\n{}\
         # A pool has it by `gpu = \"{name}\"`. Please send this text to the project, with the output of\n\
         # `nvidia-smi mig -lgip`, `nvidia-smi mig -lgipp` and `nvidia-smi`, so that gpufrac knows the model.\n",
        conf::comments(&lines)
    );
    text
}

fn keys(profile: &Profile) -> String {
    let places = profile.placements.iter();
    let places = places.map(|p| format!("{{ start = {}, size = {} }}", p.start, p.size));
    format!(
        "id = {}\nslice_enum = {}\nname = {:?}\ncompute_slices = {}\nmultiprocessors = {}\nmemory = {}\n\
         max_instances = {}\nplacements = [{}]\n",
        profile.id,
        profile.slice_enum,
        profile.name,
        profile.compute_slices,
        profile.multiprocessors,
        profile.memory.0,
        profile.max_instances,
        places.collect::<Vec<_>>().join(", ")
    )
}

#[cfg(test)]
mod tests {
    use gpufrac_core::layout::LayoutKind;

    use super::*;

    /// Promise (admins): `gpufrac geometry` prints a table for any GPU with MIG that gpufrac.toml takes, with the
    /// layouts that are proved for it, and names the model if gpufrac knows it.
    /// With `prove.rs::geometry_prints_the_table_of_a_gpu`.
    #[test]
    fn a_table_is_read_back_as_it_was_and_serves_what_it_says() {
        for model in Geometry::builtin_names() {
            let geometry = Geometry::builtin(model).expect("a model");
            let printed = text("NEW-1", "NVIDIA NEW 1", &geometry);
            assert!(printed.contains("knows this model"), "{printed}");
            let mut other = geometry.clone();
            other.profiles[0].multiprocessors += 2;
            let printed = text("NEW-1", "NVIDIA NEW 1", &other);
            assert!(!printed.contains("knows this model"), "{printed}");
            for row in Served::table(&geometry) {
                let menu = match row.kind {
                    LayoutKind::Halves | LayoutKind::Uniform => {
                        format!("menu = [\"{}\"]\n", row.size.ratio())
                    }
                    _ => String::new(),
                };
                let equal = if row.equal { "equal = true\n" } else { "" };
                let file = format!(
                    "version = 1\n[pool.p]\nmechanism = \"mig\"\nlayout = \"{}\"\n{menu}{equal}gpu = \"NEW-1\"\n\
                     partitions = [\"gpu\"]\nnodes = \"n1\"\n{printed}",
                    row.kind
                );
                let config = Config::parse(&file, "file")
                    .unwrap_or_else(|error| panic!("{error:?}: {file}"));
                let read = &config.pools[0].geometry;
                assert_eq!(read.profiles, other.profiles);
                assert!(geometry.differences(read).is_empty());
            }
        }
    }

    #[test]
    fn names_are_made_of_what_nvml_says() {
        assert_eq!(
            Geometry::name_of_product("NVIDIA GH200 144G HBM3e"),
            "GH200-144G-HBM3e"
        );
        assert_eq!(
            Geometry::name_of_product("NVIDIA B300 SXM6 AC"),
            "B300-SXM6-AC"
        );
        assert_eq!(Geometry::name_of_product("NVIDIA"), "");
    }

    #[test]
    fn a_gpu_without_mig_is_told_by_a_name_and_its_memory() {
        let error = CliError::UnknownGpu {
            index: 0,
            product: "NVIDIA GeForce RTX 3090".to_owned(),
            memory: 24_576,
        };
        let hint = error.hint().unwrap_or_default();
        let told = "`--gpu GeForce-RTX-3090 --memory 24576`";
        assert!(hint.contains(told), "{hint}");
    }
}
