//! Builds the [`Config`] from the tables of the file.

use serde::Deserialize;
use toml::de::{DeTable, DeValue, ValueDeserializer};

use super::checks::{self, Places};
use super::error::{ConfigError, ConfigErrors, Problem};
use super::options;
use super::read::{Field, Section, Source};
use super::tables::{Config, Hooks, PartitionRules, Paths, VERSION};
use super::{reaper, report, stuck, web};
use crate::count_name::CountName;
use crate::fraction::{Fraction, MemoryMib};
use crate::geometry::Geometry;
use crate::hostlist::Hostlist;
use crate::ids::GpuIndex;
use crate::layout::{Layout, LayoutError, LayoutKind};
use crate::mechanism::Mechanism;
use crate::policy::Reaper;
use crate::pool::{Pool, WholeGpu};
use crate::rates::Rates;

/// The tables of the file, and its version.
const TABLES: [&str; 11] = [
    "version",
    "paths",
    "gres",
    "pool",
    "partition",
    "geometry",
    "reaper",
    "report",
    "web",
    "stuck",
    "hooks",
];

impl Config {
    /// Reads the text of a file. `path` is used in messages only.
    ///
    /// # Errors
    /// All mistakes of the file, in the order of lines.
    pub fn parse(text: &str, path: &str) -> Result<Config, ConfigErrors> {
        match config(text, path)? {
            (config, None) => Ok(config),
            (_, Some(errors)) => Err(errors),
        }
    }

    /// Reads all but `[reaper]`, `[report]`, `[web]`, `stuck` and `[hooks]`, for the programs that make slices: a
    /// mistake there must not stop them. The second value has the mistakes there; if there are any, the configuration
    /// has the defaults of `[reaper]`.
    ///
    /// # Errors
    /// All other mistakes of the file together with those of these tables, in the order of lines.
    pub fn parse_pools(
        text: &str,
        path: &str,
    ) -> Result<(Config, Option<ConfigErrors>), ConfigErrors> {
        config(text, path)
    }
}

fn config(text: &str, path: &str) -> Result<(Config, Option<ConfigErrors>), ConfigErrors> {
    let mut source = Source {
        path,
        text,
        errors: Vec::new(),
    };
    let table = match DeTable::parse(text) {
        Ok(table) => table,
        Err(error) => {
            let at = error.span().unwrap_or(0..0);
            source.error(&at, "", syntax(&error, text));
            return Err(ConfigErrors(source.errors));
        }
    };
    let root = Section::root(table.get_ref());
    root.only(&mut source, &TABLES);
    if !version(&mut source, &root) {
        // Another version may give the other keys another meaning, so they are not checked.
        return Err(by_line(source));
    }
    let paths = match root.get("paths").and_then(|item| item.table(&mut source)) {
        Some(section) => paths(&mut source, &section),
        None => Paths::default(),
    };
    let count_name = count_name(&mut source, &root);
    let geometries = geometries(&mut source, &root);
    let mut places = Places::default();
    let pool_sections = root.children(&mut source, "pool");
    let mut pools = Vec::new();
    let pool_count = pool_sections.len();
    for section in pool_sections {
        if let Some(pool) = pool(&mut source, &section, &geometries) {
            places.pools.push(section);
            pools.push(pool);
        }
    }
    if pool_count == 0 && root.get("pool").is_none() {
        source.error(&(0..0), "pool", Problem::NoPool);
    }
    let mut partitions = Vec::new();
    for section in root.children(&mut source, "partition") {
        if let Some(rules) = rules(&mut source, &section) {
            places.partitions.push(section);
            partitions.push(rules);
        }
    }
    let elsewhere = std::mem::take(&mut source.errors);
    let reaper = match root.get("reaper").and_then(|item| item.table(&mut source)) {
        Some(section) => reaper::read(&mut source, &section),
        None => Reaper::default(),
    };
    let rates = match root.get("report").and_then(|item| item.table(&mut source)) {
        Some(section) => report::read(&mut source, &section),
        None => Rates::default(),
    };
    let web = root.get("web").and_then(|item| item.table(&mut source));
    let web = web.and_then(|section| web::read(&mut source, &section));
    let stuck = root.get("stuck");
    let stuck = stuck.and_then(|item| stuck::when(&mut source, &item));
    let hooks = match root.get("hooks").and_then(|item| item.table(&mut source)) {
        Some(section) => stuck::hooks(&mut source, &section),
        None => Hooks::default(),
    };
    // No slice depends on these tables.
    let aside = std::mem::replace(&mut source.errors, elsewhere);
    let config = Config {
        paths,
        count_name,
        pools,
        partitions,
        reaper: if aside.is_empty() { reaper } else { Reaper::default() },
        rates,
        web,
        stuck: stuck.unwrap_or_default(),
        hooks,
    };
    // Contradictions between tables are only looked for if all pools could be read. Otherwise a mistake in a pool
    // would be reported again at its partitions.
    if config.pools.len() == pool_count {
        checks::check(&mut source, &config, &places);
    }
    judged(source, aside, config)
}

/// The configuration, if only tables on which no slice depends have mistakes, which are `aside`.
fn judged(
    mut source: Source<'_>,
    aside: Vec<ConfigError>,
    config: Config,
) -> Result<(Config, Option<ConfigErrors>), ConfigErrors> {
    let is_right = source.errors.is_empty();
    source.errors.extend(aside);
    match (is_right, source.errors.is_empty()) {
        (true, true) => Ok((config, None)),
        (true, false) => Ok((config, Some(by_line(source)))),
        (false, _) => Err(by_line(source)),
    }
}

fn by_line(mut source: Source<'_>) -> ConfigErrors {
    source.errors.sort_by_key(|error| error.line);
    ConfigErrors(source.errors)
}

/// The error of the TOML parser on one line, with the line of the file if that line is short.
fn syntax(error: &toml::de::Error, text: &str) -> Problem {
    let message = error.message().replace('\n', "; ");
    let start = error.span().map_or(0, |span| span.start);
    let before = text.get(..start).unwrap_or("");
    let line = text.lines().nth(before.matches('\n').count());
    Problem::Syntax(match line.map(str::trim) {
        Some(line) if !line.is_empty() && line.len() <= 60 => format!("{message}, in {line:?}"),
        _ => message,
    })
}

fn version(source: &mut Source<'_>, root: &Section<'_, '_>) -> bool {
    let Some(item) = root.need(source, "version", "version = 1") else {
        return false;
    };
    let found = match item.value.get_ref() {
        DeValue::Integer(number) => number.to_string(),
        DeValue::Float(number) => number.to_string(),
        DeValue::String(text) => format!("{text:?}"),
        other => other.type_str().to_owned(),
    };
    let ours = found == VERSION.to_string();
    if !ours {
        item.wrong(source, Problem::Version { found });
    }
    ours
}

fn paths(source: &mut Source<'_>, section: &Section<'_, '_>) -> Paths {
    let mut paths = Paths::default();
    let mut shared = String::new();
    let known = [
        "run",
        "state",
        "devices",
        "driver_root",
        "nvml",
        "mps_control",
        "nvidia_smi",
        "shared",
    ];
    section.only(source, &known);
    let targets = [
        &mut paths.run,
        &mut paths.state,
        &mut paths.devices,
        &mut paths.driver_root,
        &mut paths.nvml,
        &mut paths.mps_control,
        &mut paths.nvidia_smi,
        &mut shared,
    ];
    for (key, target) in known.into_iter().zip(targets) {
        let Some(item) = section.get(key) else {
            continue;
        };
        let Some(text) = item.text(source) else {
            continue;
        };
        let value = text.to_owned();
        // `nvml` may be a bare library name, which the dynamic linker looks up.
        let bare_name = key == "nvml" && !text.contains('/');
        if text.replace("%n", "").contains('%') {
            item.wrong(source, Problem::Percent { value });
        } else if !text.starts_with('/') && !bare_name {
            item.wrong(source, Problem::RelativePath { value });
        } else {
            *target = value;
        }
    }
    paths.shared = (!shared.is_empty()).then_some(shared);
    paths
}

/// The name of `[gres]`.
fn count_name(source: &mut Source<'_>, root: &Section<'_, '_>) -> CountName {
    let Some(section) = root.get("gres").and_then(|item| item.table(source)) else {
        return CountName::default();
    };
    section.only(source, &["name"]);
    let name = section.get("name").and_then(|item| {
        let text = item.text(source)?;
        let problem = |error| Problem::CountName {
            name: text.to_owned(),
            source: error,
        };
        let name = text.parse();
        name.map_err(|error| item.wrong(source, problem(error)))
            .ok()
    });
    name.unwrap_or_default()
}

fn geometries(source: &mut Source<'_>, root: &Section<'_, '_>) -> Vec<(String, Option<Geometry>)> {
    let mut found = Vec::new();
    for section in root.children(source, "geometry") {
        let name = section.own_name().to_owned();
        if Geometry::builtin(&name).is_some() || Geometry::without_mig(&name).is_some() {
            let problem = Problem::BuiltinName { name: name.clone() };
            source.error(&section.at, section.name.clone(), problem);
        }
        let parent = root.get("geometry").and_then(|item| item.table(source));
        let item = parent.and_then(|parent| parent.get(&name));
        // A pool may name a table that could not be read; the pool must not be reported as well.
        found.push((name.clone(), item.and_then(|i| geometry(source, &i, name))));
    }
    found
}

fn geometry(source: &mut Source<'_>, item: &Field<'_, '_>, name: String) -> Option<Geometry> {
    match Geometry::deserialize(ValueDeserializer::from(item.value.clone())) {
        Ok(mut geometry) => {
            geometry.model = name;
            Some(geometry)
        }
        Err(error) => {
            let at = error.span().unwrap_or_else(|| item.at.clone());
            source.error(&at, item.key.clone(), syntax(&error, ""));
            None
        }
    }
}

/// A name that Slurm accepts, and that needs no quoting in a path or a message.
fn name_of(source: &mut Source<'_>, section: &Section<'_, '_>) -> Option<String> {
    let name = section.own_name();
    let usual = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    if name.is_empty() || !name.chars().all(usual) {
        let problem = Problem::Name {
            name: name.to_owned(),
        };
        source.error(&section.at, section.name.clone(), problem);
        return None;
    }
    Some(name.to_owned())
}

const POOL_KEYS: [&str; 20] = [
    "mechanism",
    "layout",
    "gpu",
    "memory",
    "menu",
    "equal_halves",
    "equal",
    "tenancy",
    "sm_chunks",
    "burst_max",
    "burst_default",
    "memory_limits",
    "timeslice",
    "framework_hints",
    "library",
    "whole",
    "reuse",
    "partitions",
    "nodes",
    "gpus",
];

fn pool(
    source: &mut Source<'_>,
    section: &Section<'_, '_>,
    geometries: &[(String, Option<Geometry>)],
) -> Option<Pool> {
    section.only(source, &POOL_KEYS);
    let before = source.errors.len();
    let name = name_of(source, section);
    let mechanism = mechanism(source, section);
    let kind = layout_kind(source, section, mechanism);
    let gpu = gpu(source, section, mechanism, geometries);
    let options = mechanism.and_then(|mechanism| options::read(source, section, mechanism, kind));
    let menu = menu(source, section);
    // `equal_halves` belongs to layout `halves`, `equal` to `uniform`.
    let equal = ["equal_halves", "equal"].into_iter().any(|key| {
        let item = section.get(key);
        item.and_then(|item| item.yes_or_no(source)) == Some(true)
    });
    let partitions = section
        .need(source, "partitions", "partitions = [\"gpu\"]")
        .and_then(|item| item.texts(source));
    let nodes = section
        .need(source, "nodes", "nodes = \"gn[01-16]\"")
        .and_then(|item| {
            let list = Hostlist::parse(item.text(source)?);
            list.map_err(|error| item.wrong(source, error.into())).ok()
        });
    let gpus = match section.get("gpus") {
        Some(item) => Some(gpu_indexes(source, &item)?),
        None => None,
    };
    let layout = match (mechanism, kind, &gpu, &menu, &options) {
        (Some(mechanism), Some(kind), Some((geometry, memory)), Some(menu), Some(options)) => {
            let least = options::least_share(mechanism, options);
            let solved = match (mechanism, kind) {
                (_, LayoutKind::Shares) => Layout::shares(mechanism.name(), *memory, menu, least),
                (Mechanism::MigMps, _) => Layout::shared_halves(geometry, menu, least, equal),
                (Mechanism::Mig, kind) => {
                    let solved = Layout::solve(geometry, kind, menu, equal);
                    match options.whole {
                        WholeGpu::Mig => solved,
                        WholeGpu::Bare => solved.and_then(|layout| layout.with_bare_gpu(geometry)),
                    }
                }
                (_, _) => Layout::whole_gpu(&geometry.model, *memory, menu),
            };
            solved_or_why(source, section, solved)
        }
        _ => None,
    };
    if source.errors.len() > before {
        return None;
    }
    let (geometry, gpu_memory) = gpu?;
    Some(Pool {
        name: name?,
        mechanism: mechanism?,
        geometry,
        layout: layout?,
        partitions: partitions?.into_iter().map(str::to_owned).collect(),
        nodes: nodes?,
        gpus,
        gpu_memory,
        options: options?,
    })
}

/// The layout, or an error at the key that causes it.
fn solved_or_why(
    source: &mut Source<'_>,
    section: &Section<'_, '_>,
    solved: Result<Layout, LayoutError>,
) -> Option<Layout> {
    let keys: &[&str] = match &solved {
        Err(LayoutError::NeedsReset { .. }) => &["whole"],
        _ => &["menu", "layout", "mechanism"],
    };
    let place = keys.iter().find_map(|key| section.get(key));
    match (solved, place) {
        (Ok(layout), _) => Some(layout),
        (Err(error), Some(item)) => {
            item.wrong(source, error.into());
            None
        }
        (Err(_), None) => None,
    }
}

fn mechanism(source: &mut Source<'_>, section: &Section<'_, '_>) -> Option<Mechanism> {
    let item = section.need(source, "mechanism", "mechanism = \"mig\"")?;
    let parsed = item.text(source)?.parse::<Mechanism>();
    parsed
        .map_err(|error| item.wrong(source, error.into()))
        .ok()
}

/// The layouts that a mechanism can have, the default first.
fn layouts_of(mechanism: Mechanism) -> &'static [LayoutKind] {
    match mechanism {
        Mechanism::Mig => &[
            LayoutKind::Halves,
            LayoutKind::Uniform,
            LayoutKind::Slices,
            LayoutKind::Whole,
        ],
        Mechanism::MigMps => &[LayoutKind::Halves],
        Mechanism::Mps | Mechanism::Timeslice | Mechanism::Hami => {
            &[LayoutKind::Shares, LayoutKind::Whole]
        }
    }
}

fn layout_kind(
    source: &mut Source<'_>,
    section: &Section<'_, '_>,
    mechanism: Option<Mechanism>,
) -> Option<LayoutKind> {
    let item = match mechanism {
        Some(Mechanism::Mig) => section.need(source, "layout", "layout = \"halves\"")?,
        // Shares have a single layout, so that the key is only needed for a pool of whole GPUs.
        Some(other) if section.get("layout").is_none() => {
            return layouts_of(other).first().copied();
        }
        _ => section.get("layout")?,
    };
    let word = item.text(source)?;
    let mechanism = mechanism?;
    let kinds = layouts_of(mechanism);
    let kind = kinds.iter().copied().find(|kind| kind.name() == word);
    if kind.is_none() {
        let names: Vec<&str> = kinds.iter().map(|kind| kind.name()).collect();
        item.wrong(
            source,
            Problem::UnknownLayout {
                word: word.to_owned(),
                mechanism,
                known: names.join(", "),
            },
        );
    }
    kind
}

/// The GPU model, and the memory of one GPU.
fn gpu(
    source: &mut Source<'_>,
    section: &Section<'_, '_>,
    mechanism: Option<Mechanism>,
    geometries: &[(String, Option<Geometry>)],
) -> Option<(Geometry, MemoryMib)> {
    let item = section.need(source, "gpu", "gpu = \"H100-80\"")?;
    let name = item.text(source)?;
    let mig = mechanism?.uses_mig();
    let own = match section.get("memory") {
        Some(item) if !mig => Some(item.memory(source)?),
        _ => None,
    };
    let with_mig = match geometries.iter().find(|(known, _)| known == name) {
        Some((_, geometry)) => Some(geometry.clone()?),
        None => Geometry::builtin(name),
    };
    let (geometry, memory) = match (with_mig, Geometry::without_mig(name), own) {
        (Some(geometry), _, _) => {
            let memory = geometry.memory();
            (geometry, memory)
        }
        (None, Some((geometry, memory)), _) if !mig => (geometry, Some(memory)),
        (None, None, Some(_)) => (Geometry::unsliced(name), own),
        (None, without_mig, _) => {
            let mut known: Vec<&str> = Geometry::builtin_names().to_vec();
            for model in Geometry::names_without_mig().filter(|_| !mig) {
                known.push(model);
            }
            known.extend(geometries.iter().map(|(name, _)| name.as_str()));
            let (name, known) = (name.to_owned(), known.join(", "));
            let problem = match without_mig {
                Some(_) => Problem::NoMig { name, known },
                None => Problem::UnknownGpu {
                    name,
                    known,
                    memory_is_enough: !mig,
                },
            };
            item.wrong(source, problem);
            return None;
        }
    };
    match own.or(memory) {
        Some(memory) => Some((geometry, memory)),
        // A table without profiles: the layout reports the error.
        None if mig => Some((geometry, MemoryMib(0))),
        None => {
            section.need(source, "memory", "memory = 46068");
            None
        }
    }
}

/// The sizes of the menu; empty if the file has no menu.
fn menu(source: &mut Source<'_>, section: &Section<'_, '_>) -> Option<Vec<Fraction>> {
    let Some(item) = section.get("menu") else {
        return Some(Vec::new());
    };
    let before = source.errors.len();
    let mut menu = Vec::new();
    for item in item.list(source)? {
        let Some(fraction) = item.fraction(source) else {
            continue;
        };
        if menu.contains(&fraction) {
            let value = fraction.ratio();
            item.wrong(source, Problem::Twice { value });
        }
        menu.push(fraction);
    }
    (source.errors.len() == before).then_some(menu)
}

fn gpu_indexes(source: &mut Source<'_>, item: &Field<'_, '_>) -> Option<Vec<GpuIndex>> {
    let before = source.errors.len();
    let mut gpus = Vec::new();
    for item in item.list(source)? {
        let value = match item.value.get_ref() {
            DeValue::Integer(number) => number.to_string(),
            other => other.type_str().to_owned(),
        };
        match value.parse::<u8>().map(|index| GpuIndex(index.into())) {
            Ok(index) if gpus.contains(&index) => item.wrong(source, Problem::Twice { value }),
            Ok(index) => gpus.push(index),
            Err(_) => item.wrong(source, Problem::GpuIndex { value }),
        }
    }
    (source.errors.len() == before).then_some(gpus)
}

fn rules(source: &mut Source<'_>, section: &Section<'_, '_>) -> Option<PartitionRules> {
    section.only(source, &["min", "max", "default", "allow_raw"]);
    let name = name_of(source, section)?;
    let mut fraction = |key: &str| section.get(key).and_then(|item| item.fraction(source));
    let (min, max, default) = (fraction("min"), fraction("max"), fraction("default"));
    let allow_raw = section
        .get("allow_raw")
        .and_then(|item| item.yes_or_no(source))
        .unwrap_or(false);
    Some(PartitionRules {
        name,
        min,
        max,
        default,
        allow_raw,
    })
}
