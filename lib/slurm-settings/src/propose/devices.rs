//! Changes the lines of the pools' nodes: in gres.conf, and `Gres=` in slurm.conf.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};

use gpufrac_core::config::Pool;
use gpufrac_core::finding::{Finding, Severity};
use gpufrac_core::gres::GresLines;
use gpufrac_core::hostlist::{self, Hostlist};
use gpufrac_core::mig_type::MigType;

use super::super::gpu_count;
use super::super::gres_lines::{
    GresDevice, NodeLines, PLAIN, files_of, is_own_type, share_line, short_files,
};
use super::super::{nodes, rules};
use super::{Draft, Gpus, own_files};
use gpufrac_slurm_conf::{Files, Line, Site, SlurmNode, counts, edit};

/// GRES that gpufrac manages on nodes of pools, in `Gres=` and gres.conf, beside the name of `[gres]`: the fractions
/// may have been counted as `gpufrac` before.
///
/// `mps` goes from these nodes: Slurm gives a job with mps a GPU of gres.conf, and these are placeholders.
const OURS: [&str; 4] = ["gpu", "shard", "gpufrac", "mps"];
/// Keys of a node's line with one value for each node: such a line cannot be split.
const ONE_BY_ONE: [&str; 4] = ["NodeAddr", "NodeHostname", "BcastAddr", "Port"];

/// A change of a line: file, line number, new text.
type Edit = (PathBuf, usize, String);

impl Draft<'_> {
    /// Changes gres.conf first, because `Gres=` counts the GPUs without a pool that remain in gres.conf.
    pub(super) fn devices(&mut self, gpus: Gpus) -> io::Result<()> {
        let names = nodes::of_pools(self.config);
        let mut wanted = BTreeMap::new();
        for &name in &names {
            if let Some(lines) = nodes::wanted(&self.settings, self.config, name, gpus) {
                wanted.insert(name.to_owned(), lines);
            }
        }
        let mut changed = BTreeSet::new();
        self.gres_conf(&wanted, &mut changed)?;
        self.gres_of_nodes(&wanted, &mut changed)?;
        let changed = names.into_iter().filter(|name| changed.contains(*name));
        self.proposal.nodes = changed.map(str::to_owned).collect();
        Ok(())
    }

    fn gres_conf(
        &mut self,
        wanted: &BTreeMap<String, GresLines>,
        changed: &mut BTreeSet<String>,
    ) -> io::Result<()> {
        let files = self.files();
        // Nodes that need the same lines, with those of GPUs without a pool that AutoDetect found there.
        let mut groups = Vec::new();
        for name in nodes::of_pools(self.config) {
            if let Some(lines) = wanted.get(name)
                && nodes::is_wrong_in_gres_conf(&self.settings, name, lines)
            {
                let detected = self.detected(&files, name);
                hostlist::group(&mut groups, (lines.clone(), detected), name);
                changed.insert(name.to_owned());
            }
        }
        if groups.is_empty() {
            return Ok(());
        }
        let others = counting_gpus(&files.site).into_iter();
        let others = others.filter(|node| !changed.contains(node));
        self.proposal.own_gres_conf = others
            .filter(|node| own_files::has_own(&files, node))
            .collect();
        let mut edits: Vec<Edit> = Vec::new();
        for line in &files.gres.lines {
            edits.extend(self.line_of_gres_conf(line, changed, &files.site));
        }
        // Lines of all nodes stay, those of the nodes go.
        let for_all = files.gres.lines.iter().any(|line| {
            let how = line.get("AutoDetect");
            line.get("NodeName").is_none() && how.is_some_and(|how| !rules::is(how, "off"))
        });
        let mut block = String::new();
        for ((lines, detected), nodes) in &groups {
            let names = hostlist::short(nodes);
            let detects = |name: &&str| {
                let lines = NodeLines::of(&files.gres, name, &self.config.count_name);
                lines.detects().is_some()
            };
            if for_all || nodes.iter().any(detects) {
                block += &format!("NodeName={names} AutoDetect=off\n");
            }
            for line in lines.gres_conf(&names) {
                block += &line;
                block.push('\n');
            }
            for detected in detected {
                block += &format!("NodeName={names} {detected}\n");
            }
        }
        // The new lines go to the place of the first line of these nodes, because Slurm numbers devices in the order
        // of lines.
        let first = edits.first().map(|(path, line, _)| (path.clone(), *line));
        match first {
            Some(at) => {
                let own = edits
                    .iter_mut()
                    .find(|(path, line, _)| (path, line) == (&at.0, &at.1));
                if let Some((_, _, text)) = own {
                    text.insert_str(0, &block);
                }
            }
            None => {
                let path = files.gres.path.clone();
                self.edit(&path, |text| {
                    edit::append(text, block.trim_end());
                })?;
            }
        }
        self.apply(edits)
    }

    /// Whether gpufrac writes the GRES of this name on nodes of pools.
    fn is_ours(&self, name: &str) -> bool {
        let mut known = OURS.into_iter().chain([self.config.count_name.as_str()]);
        known.any(|known| rules::is(name, known))
    }

    /// Applies the edits from the last line to the first, so that line numbers stay valid.
    fn apply(&mut self, mut edits: Vec<Edit>) -> io::Result<()> {
        edits.sort_by(|a, b| (&b.0, b.1).cmp(&(&a.0, a.1)));
        for (path, number, with) in edits {
            self.edit(&path, |text| edit::replace(text, number, &with))?;
        }
        Ok(())
    }

    /// A line of gres.conf without gpufrac's GRES of these nodes; None if nothing is left.
    fn line_of_gres_conf(
        &self,
        line: &Line,
        changed: &BTreeSet<String>,
        site: &Site,
    ) -> Option<Edit> {
        let raw = self.raw(&line.place.file, line.place.line);
        let name = line.get("Name");
        let ours = match name {
            Some(name) => self.is_ours(name),
            // A node's own AutoDetect is removed; that of all nodes belongs to the site.
            None => line.get("AutoDetect").is_some() && line.get("NodeName").is_some(),
        };
        if !ours
            || !changed
                .iter()
                .any(|node| line.covers(node) || line.get("NodeName").is_none())
        {
            return None;
        }
        let all = match line.get("NodeName") {
            Some(text) if !text.eq_ignore_ascii_case("ALL") => {
                Hostlist::as_slurm(text).ok()?.names().to_vec()
            }
            // A line without NodeName is for all nodes that count GPUs, except those with another file.
            _ => {
                let mut all = counting_gpus(site);
                all.retain(|node| !self.proposal.own_gres_conf.contains(node));
                all
            }
        };
        let (gone, stay): (Vec<String>, Vec<String>) =
            all.into_iter().partition(|node| changed.contains(node));
        let with_names = |names: &[String], raw: &str| {
            let mut text = raw.to_owned();
            match line.get("NodeName") {
                Some(_) => edit::set(&mut text, 1, "NodeName", &hostlist::short(names)),
                None => text.insert_str(0, &format!("NodeName={} ", hostlist::short(names))),
            }
            text
        };
        let mut text = String::new();
        let (key, kept_files) = self.kept_files(line, &gone);
        for (files, nodes) in kept_files {
            let mut kept = raw.clone();
            edit::set(&mut kept, 1, key, &files);
            let type_name = line.get("Type").unwrap_or(PLAIN);
            edit::set(&mut kept, 1, "Type", type_name);
            text += &with_names(&nodes, &kept);
            if key == "File" {
                let devices: Vec<&str> = files.split(',').collect();
                let share = share_line(type_name, &devices);
                text += &format!("NodeName={} {share}\n", hostlist::short(&nodes));
            }
        }
        if !stay.is_empty() {
            text += &with_names(&stay, &raw);
        }
        Some((line.place.file.clone(), line.place.line, text))
    }

    /// Lines of the GPUs without a pool that a node has by AutoDetect, which cannot stay: it would find the GPUs of
    /// pools, too. Such GPUs whose Type is not known are added to [`super::Proposal::lost`].
    fn detected(&mut self, files: &Files, node: &str) -> Vec<String> {
        let lines = NodeLines::of(&files.gres, node, &self.config.count_name);
        let detects = lines.detects().is_some();
        let is_whole = |gpu: &GresDevice| !gpu.type_name.as_deref().is_some_and(is_own_type);
        let Some(shared) = self.shared(node) else {
            return Vec::new();
        };
        if !detects || lines.gpus.iter().any(is_whole) {
            return Vec::new();
        }
        let gres = files.site.node(node).and_then(SlurmNode::gres);
        let gres = counts(gres.unwrap_or_default());
        let types = gres.keys().filter(|(name, type_name)| {
            name == "gpu" && MigType::of(type_name).is_none() && !is_own_type(type_name)
        });
        let types: Vec<&str> = types.map(|(_, type_name)| type_name.as_str()).collect();
        let all = gpu_count::of_all(&self.settings, self.config, node).number();
        let mut found: BTreeMap<&str, Vec<u32>> = BTreeMap::new();
        for index in 0..all.unwrap_or(0) {
            let minor = gpu_count::minor(&self.settings, node, index);
            if shared.contains(&minor) {
                continue;
            }
            match self.type_of(node, index, &types) {
                Some(name) => found.entry(name).or_default().push(minor),
                None => self.proposal.lost.push((node.to_owned(), minor)),
            }
        }
        let lines = |(name, mut minors): (&str, Vec<u32>)| {
            minors.sort_unstable();
            let files = minors.iter().map(|minor| format!("/dev/nvidia{minor}"));
            let files: Vec<String> = files.collect();
            let all = short_files(&files);
            let name = if name.is_empty() { PLAIN } else { name };
            [
                format!("Name=gpu Type={name} File={all}"),
                share_line(name, &files),
            ]
        };
        found.into_iter().flat_map(lines).collect()
    }

    /// The Type that AutoDetect gives a GPU: the longest one of `Gres=` that its product's name contains
    /// (`_normalize_sys_gres_types` of `src/plugins/gres/gpu/gres_gpu.c`), or the only one.
    fn type_of<'t>(&self, node: &str, index: u32, types: &[&'t str]) -> Option<&'t str> {
        if let [only] = types {
            return Some(only);
        }
        let host = gpu_count::in_nvml(&self.settings, node)?;
        let product = &host.gpus.get(index as usize)?.product;
        let product = product.to_ascii_lowercase().replace(' ', "_");
        let fit = types
            .iter()
            .filter(|name| !name.is_empty() && product.contains(&name.to_ascii_lowercase()));
        fit.max_by_key(|name| name.len()).copied()
    }

    /// N of `/dev/nvidiaN` of the GPUs that are in pools; None where all of the node's are.
    fn shared(&self, node: &str) -> Option<BTreeSet<u32>> {
        let pools = self.config.pools_of_node(node);
        let mut shared = BTreeSet::new();
        for pool in pools {
            let gpus = pool.gpus.as_ref()?.iter();
            shared.extend(gpus.map(|gpu| gpu_count::minor(&self.settings, node, gpu.0)));
        }
        Some(shared)
    }

    /// Devices of a line that are GPUs without a pool, by the nodes that keep them.
    fn kept_files(
        &self,
        line: &Line,
        nodes: &[String],
    ) -> (&'static str, BTreeMap<String, Vec<String>>) {
        let mut kept: BTreeMap<String, Vec<String>> = BTreeMap::new();
        let of_gpus = line.get("Name").is_some_and(|name| rules::is(name, "gpu"));
        let own_type = line
            .get("Type")
            .is_some_and(|name| Pool::TYPE_NAMES.contains(&name));
        let key = match line.get("MultipleFiles") {
            Some(_) => "MultipleFiles",
            None => "File",
        };
        let files = line.get(key).map(files_of).unwrap_or_default();
        if !of_gpus || own_type || files.is_empty() {
            return (key, kept);
        }
        for node in nodes {
            let Some(shared) = self.shared(node) else {
                continue;
            };
            let shared: Vec<String> = shared
                .iter()
                .map(|gpu| format!("/dev/nvidia{gpu}"))
                .collect();
            let is_shared = |file: &&str| shared.iter().any(|shared| shared == file);
            let names = files.iter().map(String::as_str);
            let of_no_pool: Vec<&str> = match key {
                // All files of such a line are one device, which stays whole or goes.
                "MultipleFiles" if names.clone().any(|file| is_shared(&file)) => Vec::new(),
                "MultipleFiles" => names.collect(),
                _ => names.filter(|file| !is_shared(file)).collect(),
            };
            if !of_no_pool.is_empty() {
                kept.entry(of_no_pool.join(","))
                    .or_default()
                    .push(node.clone());
            }
        }
        (key, kept)
    }

    fn raw(&self, path: &Path, number: usize) -> String {
        let text = match self.changed.get(path) {
            Some(change) => Ok(change.after.clone()),
            None => (self.texts.read)(path),
        };
        text.map_or(String::new(), |text| edit::raw(&text, number))
    }

    /// Sets `Gres=` in the lines of nodes; splits a line if its nodes need different values.
    fn gres_of_nodes(
        &mut self,
        wanted: &BTreeMap<String, GresLines>,
        changed: &mut BTreeSet<String>,
    ) -> io::Result<()> {
        let files = self.files();
        let mut edits: Vec<Edit> = Vec::new();
        for line in files.slurm.starting("NodeName") {
            let text = line.get("NodeName").unwrap_or_default();
            let Ok(list) = Hostlist::as_slurm(text) else {
                continue;
            };
            // For each class of nodes the needed value; None to keep the value.
            let mut classes: Vec<(Option<String>, Vec<String>)> = Vec::new();
            for node in list.names() {
                let right = self.right_gres(&files, line, node, wanted);
                if right.is_some() {
                    changed.insert(node.clone());
                }
                hostlist::group(&mut classes, right, node.clone());
            }
            if classes.iter().all(|(right, _)| right.is_none()) {
                continue;
            }
            let one_by_one = ONE_BY_ONE.iter().find(|key| {
                line.get(key)
                    .is_some_and(|value| value.contains(['[', ',']))
            });
            // `judge` reports the fault of such a line.
            if one_by_one.is_some() && classes.len() > 1 {
                continue;
            }
            let raw = self.raw(&line.place.file, line.place.line);
            let mut new = String::new();
            for (right, names) in &classes {
                let mut one = raw.clone();
                if classes.len() > 1 {
                    edit::set(&mut one, 1, "NodeName", &hostlist::short(names));
                }
                if let Some(right) = right {
                    edit::set(&mut one, 1, "Gres", right);
                }
                new += &one;
            }
            edits.push((line.place.file.clone(), line.place.line, new));
        }
        self.apply(edits)
    }

    /// The `Gres=` that a node needs, if this line has another one for it.
    fn right_gres(
        &self,
        files: &Files,
        line: &Line,
        node: &str,
        wanted: &BTreeMap<String, GresLines>,
    ) -> Option<String> {
        let lines = wanted.get(node)?;
        let written = files.site.node(node)?;
        let gres = written.gres();
        let devices = NodeLines::of(&files.gres, node, &self.config.count_name);
        if *written.entry.place() != line.place || !nodes::is_wrong_gres(lines, gres, &devices) {
            return None;
        }
        let mut items = vec![lines.gres.clone()];
        let instances = devices.instances_beside().into_iter();
        items.extend(instances.map(|(name, count)| format!("gpu:{name}:{count}")));
        for (name, files) in devices.plain_gpus() {
            let (name, count) = (if name.is_empty() { PLAIN } else { name }, files.len());
            items.push(format!("gpu:{name}:{count},shard:{name}:{count}"));
        }
        let others = gres.unwrap_or_default().split(',').filter(|item| {
            let name = item.split([':', '(']).next().unwrap_or_default();
            !item.is_empty() && !self.is_ours(name)
        });
        items.extend(others.map(str::to_owned));
        Some(items.join(","))
    }
}

/// The nodes of slurm.conf that count GPUs.
fn counting_gpus(site: &Site) -> Vec<String> {
    let counts = |node: &&SlurmNode| {
        let gres = counts(node.gres().unwrap_or_default());
        gres.keys().any(|(name, _)| name == "gpu")
    };
    let nodes = site.nodes.iter().filter(counts);
    nodes.map(|node| node.name.clone()).collect()
}

/// The findings about GPUs that Slurm no longer finds.
pub(super) fn lost(lost: &[(String, u32)], slurm_conf: &str) -> Vec<Finding> {
    let mut by_gpu: BTreeMap<u32, Vec<String>> = BTreeMap::new();
    for (node, minor) in lost {
        by_gpu.entry(*minor).or_default().push(node.clone());
    }
    // `gpufrac init` names GPUs without a pool in gres.conf, and cannot tell the Type of this one. Cure: Add the line
    // of the hint behind gpufrac's lines, and count the GPU in `Gres=`.
    let finding = |(minor, nodes): (u32, Vec<String>)| Finding {
        severity: Severity::Error,
        place: Some(slurm_conf.to_owned()),
        what: format!(
            "/dev/nvidia{minor} of {} is in no pool, and AutoDetect, which found it, ends there; its Type is not known",
            hostlist::short(&nodes)
        ),
        fix: format!(
            "add to gres.conf, behind the lines of gpufrac: NodeName={} Name=gpu Type=TYPE File=/dev/nvidia{minor}; and count it in Gres=",
            hostlist::short(&nodes)
        ),
    };
    by_gpu.into_iter().map(finding).collect()
}
