//! A cluster without gpufrac, whose GPUs Slurm itself allocates.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Result;
use gpufrac_lab::Lab;

use super::node::run;
use lab_tasks::series::Series;

/// The settings of the cluster.
pub(super) struct Plain<'a> {
    /// The folder of cargo's build results.
    pub build: &'a Path,
    pub nodes: usize,
    /// GPUs of each node.
    pub gpus: u32,
    /// `Gres=` of each node.
    pub gres: &'a str,
    /// Further lines of gres.conf.
    pub gres_conf: &'a str,
    /// Further lines of slurm.conf; at least `GresTypes=`.
    pub slurm_conf: &'a str,
    /// The series of Slurm; None for the machine's own.
    pub series: Option<&'a Series>,
}

/// A running cluster in a folder that existed before.
pub(super) struct PlainLab {
    pub lab: Lab,
    pub folder: PathBuf,
}

/// A folder with `etc` for the cluster `name` of this run.
pub(super) fn folder(name: &str) -> Result<PathBuf> {
    let folder = format!("gpufrac-bench-{name}-{}", std::process::id());
    let folder = std::env::temp_dir().join(folder);
    fs::create_dir_all(folder.join("etc"))?;
    Ok(folder)
}

impl Plain<'_> {
    pub fn start(&self, folder: &Path) -> Result<PlainLab> {
        for number in 0..self.gpus {
            // A major number for local use, which no driver serves.
            run(Command::new("mknod")
                .arg(folder.join(format!("gpu{number}")))
                .args(["c", "240", &number.to_string(), "--mode=666"]))?;
        }
        let file = folder.join(format!("gpu[0-{}]", self.gpus - 1));
        let text = format!("Name=gpu File={}\n{}\n", file.display(), self.gres_conf);
        fs::write(folder.join("etc/gres.conf"), text)?;
        let extra = format!("NodeName=DEFAULT Gres={}\n{}", self.gres, self.slurm_conf);
        let mut builder = Lab::builder();
        if let Some(series) = self.series {
            builder = series.give(builder);
        }
        let lab = builder
            .quiet()
            .nodes(self.nodes)
            .plugins(false)
            .build_folder(self.build)
            .gpu_list(&[])
            .slurm_conf_extra(&extra)
            .folder(folder)
            .start()?;
        Ok(PlainLab {
            lab,
            folder: folder.to_path_buf(),
        })
    }
}

impl PlainLab {
    pub fn stop(self) -> Result<()> {
        self.lab.stop()?;
        Ok(fs::remove_dir_all(self.folder)?)
    }
}
