//! Builds the [`Config`] from the tables of the file.

use std::cell::RefCell;

use serde::Deserialize;
use toml::de::{DeTable, DeValue, ValueDeserializer};

use super::checks::{self, Places};
use super::error::{ConfigErrors, Problem};
use super::read::{Field, Section, Source};
use super::tables::{Config, PartitionRules, VERSION, Web};
use super::{keys, options, reaper, report};
use crate::fraction::{Fraction, MemoryMib};
use crate::geometry::Geometry;
use crate::hostlist::Hostlist;
use crate::ids::GpuIndex;
use crate::layout::{Layout, LayoutError, LayoutKind};
use crate::mechanism::Mechanism;
use crate::pool::{Pool, WholeGpu};

impl Config {
    /// Reads the text of a file. `path` is used in messages only.
    /// Errors: all mistakes of the file, in the order of lines.
    pub fn parse(text: &str, path: &str) -> Result<Config, ConfigErrors> {
        match config(text, path)? {
            (config, None) => Ok(config),
            (_, Some(errors)) => Err(errors),
        }
    }

    /// Reads all but `[reaper]`, `[report]`, `[web]`, `stuck` and `[hooks]`, for the programs that make slices: a
    /// mistake there must not stop them. The second value has the mistakes there; if there are any, the configuration
    /// has the defaults of `[reaper]`.
    /// Errors: all other mistakes of the file together with those of these tables, in the order of lines.
    pub fn parse_pools(
        text: &str,
        path: &str,
    ) -> Result<(Config, Option<ConfigErrors>), ConfigErrors> {
        config(text, path)
    }
}

fn config(text: &str, path: &str) -> Result<(Config, Option<ConfigErrors>), ConfigErrors> {
    let source = Source {
        path,
        text,
        errors: RefCell::default(),
    };
    let source = &source;
    let table = match DeTable::parse(text) {
        Ok(table) => table,
        Err(error) => {
            let at = error.span().unwrap_or(0..0);
            source.error(&at, "", syntax(&error, text));
            return Err(by_line(source));
        }
    };
    let root = Section {
        source,
        name: String::new(),
        at: 0..0,
        table: table.get_ref(),
    };
    keys::TOP.check(&root, &[]);
    if !version(&root) {
        // Another version may give the other keys another meaning, so they are not checked.
        return Err(by_line(source));
    }
    let mut config = Config::empty();
    keys::PATHS.read(&root, "paths", &mut config.paths);
    keys::GRES.read(&root, "gres", &mut config.count_name);
    let geometries = geometries(&root);
    let mut places = Places::default();
    let pool_sections = root.children("pool");
    let pool_count = pool_sections.len();
    for section in pool_sections {
        if let Some(pool) = pool(&section, &geometries) {
            places.pools.push(section);
            config.pools.push(pool);
        }
    }
    if pool_count == 0 && root.get("pool").is_none() {
        source.error(&(0..0), "pool", Problem::NoPool);
    }
    for section in root.children("partition") {
        if let Some(rules) = rules(&section) {
            places.partitions.push(section);
            config.partitions.push(rules);
        }
    }
    // No slice depends on the tables from here on.
    let elsewhere = source.errors.take();
    let table = |key| root.read(key, Field::table);
    let reaper = table("reaper").map(|section| reaper::read(&section));
    config.rates = table("report")
        .map(|section| report::read(&section))
        .unwrap_or_default();
    config.web = table("web").and_then(|section| web(&section));
    keys::TOP.fill(&root, &mut config);
    keys::HOOKS.read(&root, "hooks", &mut config.hooks);
    let aside = source.errors.replace(elsewhere);
    config.reaper = reaper.filter(|_| aside.is_empty()).unwrap_or_default();
    // Contradictions between tables are only looked for if all pools could be read. Otherwise a mistake in a pool
    // would be reported again at its partitions.
    if config.pools.len() == pool_count {
        checks::check(source, &config, &places);
    }
    let is_right = source.mistakes() == 0;
    source.errors.borrow_mut().extend(aside);
    match (is_right, source.mistakes()) {
        (true, 0) => Ok((config, None)),
        (true, _) => Ok((config, Some(by_line(source)))),
        (false, _) => Err(by_line(source)),
    }
}

fn by_line(source: &Source<'_>) -> ConfigErrors {
    let mut errors = source.errors.take();
    errors.sort_by_key(|error| error.line);
    ConfigErrors(errors)
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

fn version(root: &Section<'_>) -> bool {
    let Some(item) = root.get("version") else {
        return false;
    };
    let found = match item.value.get_ref() {
        DeValue::String(text) => format!("{text:?}"),
        _ => item.number(),
    };
    let ours = found == VERSION.to_string();
    if !ours {
        item.wrong(Problem::Version { found });
    }
    ours
}

fn web(section: &Section<'_>) -> Option<Web> {
    let mut web = Web::default();
    keys::WEB.check(section, &[]);
    keys::WEB.fill(section, &mut web);
    (!web.host.is_empty() && !web.folder.is_empty()).then_some(web)
}

fn geometries(root: &Section<'_>) -> Vec<(String, Option<Geometry>)> {
    let mut found = Vec::new();
    for section in root.children("geometry") {
        let name = section.own_name("geometry");
        if Geometry::builtin(&name).is_some() || Geometry::without_mig(&name).is_some() {
            section.wrong(Problem::BuiltinName { name: name.clone() });
        }
        let parent = root.read("geometry", Field::table);
        let own = parent.and_then(|parent| parent.read(&name, geometry));
        let own = own.map(|geometry| Geometry {
            model: name.clone(),
            ..geometry
        });
        // A pool may name a table that could not be read; the pool must not be reported as well.
        found.push((name, own));
    }
    found
}

fn geometry(item: &Field<'_>) -> Option<Geometry> {
    let found = Geometry::deserialize(ValueDeserializer::from(item.value.clone()));
    let wrong = |error: toml::de::Error| {
        let at = error.span().unwrap_or_else(|| item.at.clone());
        item.source.error(&at, item.key.clone(), syntax(&error, ""));
    };
    found.map_err(wrong).ok()
}

/// A name that Slurm accepts, and that needs no quoting in a path or a message.
fn name_of(section: &Section<'_>, parent: &str) -> Option<String> {
    let name = section.own_name(parent);
    let usual = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    if name.is_empty() || !name.chars().all(usual) {
        section.wrong(Problem::Name { name });
        return None;
    }
    Some(name)
}

fn pool(section: &Section<'_>, geometries: &[(String, Option<Geometry>)]) -> Option<Pool> {
    keys::POOL.check(section, &[]);
    let before = section.source.mistakes();
    let name = name_of(section, "pool");
    let mechanism = mechanism(section);
    let kind = layout_kind(section, mechanism);
    let gpu = gpu(section, mechanism, geometries);
    let options = mechanism.and_then(|mechanism| options::read(section, mechanism, kind));
    let menu = menu(section);
    // `equal_halves` belongs to layout `halves`, `equal` to `uniform`.
    let equal = section.is_on("equal_halves") || section.is_on("equal");
    let partitions = section.read("partitions", Field::texts);
    let nodes = section.read("nodes", |item| {
        let list = Hostlist::parse(item.text()?);
        item.right(list.map_err(Problem::from))
    });
    let gpus = match section.get("gpus") {
        Some(item) => Some(gpu_indexes(&item)?),
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
            solved_or_why(section, solved)
        }
        _ => None,
    };
    if section.source.mistakes() > before {
        return None;
    }
    let (geometry, gpu_memory) = gpu?;
    Some(Pool {
        name: name?,
        mechanism: mechanism?,
        geometry,
        layout: layout?,
        partitions: partitions?,
        nodes: nodes?,
        gpus,
        gpu_memory,
        options: options?,
    })
}

/// The layout, or an error at the key that causes it.
fn solved_or_why(section: &Section<'_>, solved: Result<Layout, LayoutError>) -> Option<Layout> {
    let keys: &[&str] = match &solved {
        Err(LayoutError::NeedsReset { .. }) => &["whole"],
        _ => &["menu", "layout", "mechanism"],
    };
    let place = keys.iter().find_map(|key| section.get(key));
    match place {
        Some(item) => item.right(solved.map_err(Problem::from)),
        None => solved.ok(),
    }
}

fn mechanism(section: &Section<'_>) -> Option<Mechanism> {
    let item = section.get("mechanism")?;
    let parsed = item.text()?.parse::<Mechanism>();
    item.right(parsed.map_err(Problem::from))
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

fn layout_kind(section: &Section<'_>, mechanism: Option<Mechanism>) -> Option<LayoutKind> {
    let item = match mechanism {
        Some(Mechanism::Mig) => keys::POOL.need(section, "layout")?,
        // Shares have a single layout, so that the key is only needed for a pool of whole GPUs.
        Some(other) if section.get("layout").is_none() => {
            return layouts_of(other).first().copied();
        }
        _ => section.get("layout")?,
    };
    let word = item.string()?;
    let mechanism = mechanism?;
    let kinds = layouts_of(mechanism);
    let kind = kinds.iter().copied().find(|kind| kind.name() == word);
    if kind.is_none() {
        let names: Vec<&str> = kinds.iter().map(|kind| kind.name()).collect();
        let known = names.join(", ");
        item.wrong(Problem::UnknownLayout {
            word,
            mechanism,
            known,
        });
    }
    kind
}

/// The GPU model, and the memory of one GPU.
fn gpu(
    section: &Section<'_>,
    mechanism: Option<Mechanism>,
    geometries: &[(String, Option<Geometry>)],
) -> Option<(Geometry, MemoryMib)> {
    let item = section.get("gpu")?;
    let name = item.text()?;
    let mig = mechanism?.uses_mig();
    let own = match section.get("memory") {
        Some(item) if !mig => Some(item.memory()?),
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
            item.wrong(problem);
            return None;
        }
    };
    match own.or(memory) {
        Some(memory) => Some((geometry, memory)),
        // A table without profiles: the layout reports the error.
        None if mig => Some((geometry, MemoryMib(0))),
        None => {
            keys::POOL.need(section, "memory");
            None
        }
    }
}

/// The sizes of the menu; empty if the file has no menu.
fn menu(section: &Section<'_>) -> Option<Vec<Fraction>> {
    let Some(item) = section.get("menu") else {
        return Some(Vec::new());
    };
    let before = section.source.mistakes();
    let mut menu = Vec::new();
    for item in item.list()? {
        let Some(fraction) = item.fraction() else {
            continue;
        };
        if menu.contains(&fraction) {
            let value = fraction.ratio();
            item.wrong(Problem::Twice { value });
        }
        menu.push(fraction);
    }
    (section.source.mistakes() == before).then_some(menu)
}

/// None if one of them is wrong.
fn gpu_indexes(item: &Field<'_>) -> Option<Vec<GpuIndex>> {
    let (mut gpus, mut count) = (Vec::new(), 0);
    for item in item.list()? {
        let value = item.integer();
        count += 1;
        match value.parse::<u8>().map(|index| GpuIndex(index.into())) {
            Ok(index) if gpus.contains(&index) => item.wrong(Problem::Twice { value }),
            Ok(index) => gpus.push(index),
            Err(_) => item.wrong(Problem::GpuIndex { value }),
        }
    }
    (gpus.len() == count).then_some(gpus)
}

fn rules(section: &Section<'_>) -> Option<PartitionRules> {
    keys::PARTITION.check(section, &[]);
    let mut rules = PartitionRules {
        name: name_of(section, "partition")?,
        ..PartitionRules::default()
    };
    keys::PARTITION.fill(section, &mut rules);
    let (is, max) = (rules.per_gpu, rules.max_per_gpu);
    let pairs = [
        ("cpus_per_gpu", is.cpus, "max_cpus_per_gpu", max.cpus),
        (
            "memory_per_gpu",
            is.memory,
            "max_memory_per_gpu",
            max.memory,
        ),
    ];
    for (key, is, max_key, max) in pairs {
        if let (Some(is), Some(max), Some(item)) = (is, max, section.get(key))
            && is > max
        {
            item.wrong(Problem::AboveMax { max: max_key });
        }
    }
    Some(rules)
}
