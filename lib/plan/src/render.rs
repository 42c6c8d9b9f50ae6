//! A plan as text and as a page.

mod page;
mod room;

use gpufrac_core::config::ConfigErrors;
use gpufrac_page::words;

use crate::cluster::Cluster;
use crate::job::{History, Skipped};
use crate::proposal;
use crate::search::{Bands, Judged, Options, Plan};
use crate::sums::{Band, quantile};

/// All that is to be shown.
#[derive(Debug)]
pub struct Forecast<'a> {
    pub plan: &'a Plan,
    /// The input of the plan.
    pub options: &'a Options,
    /// Names of the files.
    pub source: String,
    /// Jobs that were read.
    pub jobs: usize,
    /// Jobs of one GPU, and those of them without telemetry.
    pub unmeasured: (usize, usize),
    /// Jobs that had a part of a GPU.
    pub pieces: usize,
    /// The length of the history: seconds.
    pub span: u64,
    /// All GPUs.
    pub gpus: u32,
    /// Where the cluster comes from.
    pub cluster: String,
    /// Lines without a job.
    pub skipped: &'a Skipped,
    /// The price of a GPU-hour and its currency.
    pub rate: Option<(f64, String)>,
    /// What the plan knows of CPUs.
    pub cpus: String,
    /// Whether memory of nodes is counted.
    pub counts_memory: bool,
    /// How many of the smallest pieces the nodes hold at once.
    pub room: Vec<String>,
    /// The gpufrac.toml of the best way of lending; empty where there is no gain.
    pub file: String,
    /// The lines of Slurm's files.
    pub lines: Vec<String>,
}

impl<'a> Forecast<'a> {
    /// Of a plan. Errors: when the proposed gpufrac.toml is wrong.
    pub fn new(
        plan: &'a Plan,
        options: &'a Options,
        history: &'a History,
        cluster: (&Cluster, String),
        source: String,
        rate: Option<(f64, String)>,
    ) -> Result<Forecast<'a>, ConfigErrors> {
        let (first, last) = history.span();
        let best = plan.best.first().unwrap_or(&plan.today);
        // Without a gain nothing is proposed, unless it was asked for.
        let (mut file, mut lines) = (String::new(), Vec::new());
        if plan.winner().is_some() || !options.candidates.is_empty() {
            file = proposal::file(best.candidate, &options.model, cluster.0);
            lines = proposal::lines(&file, cluster.0)?;
        }
        Ok(Forecast {
            plan,
            options,
            source,
            jobs: history.jobs.len(),
            unmeasured: (
                history.jobs.iter().filter(|job| job.can_share()).count(),
                history.unmeasured(),
            ),
            pieces: history.pieces(),
            span: last.saturating_sub(first),
            gpus: cluster.0.gpus(),
            cluster: cluster.1,
            skipped: &history.skipped,
            rate,
            cpus: cpus(options, history, cluster.0),
            room: room::lines(best.candidate, &options.model, cluster.0),
            counts_memory: cluster.0.nodes.iter().any(|node| node.memory.is_some()),
            file,
            lines,
        })
    }

    /// All ways of lending that are shown, today first.
    pub fn shown(&self) -> impl Iterator<Item = (&Judged, &Bands)> {
        let all = std::iter::once(&self.plan.today).chain(&self.plan.best);
        all.filter_map(|judged| Some((judged, judged.bands.as_ref()?)))
    }

    /// The answer in a sentence.
    pub fn answer(&self) -> String {
        let figure =
            if self.plan.by_wait { "the time from submission to end" } else { "GPU-hours" };
        let gain = |best: &Judged| {
            best.bands
                .as_ref()
                .map(|bands| bands.gain)
                .unwrap_or_default()
        };
        match (self.plan.winner(), self.plan.best.first()) {
            (Some(best), _) => {
                let gain = band(gain(best), 0);
                format!("{} lowers {figure} by {gain} %.", best.candidate)
            }
            (None, Some(best)) => {
                let gain = gain(best);
                let change = Band {
                    value: -gain.value,
                    low: -gain.high,
                    high: -gain.low,
                };
                format!(
                    "No gain here: the best of {} ways of lending, {}, changes {figure} by {} %, and the band includes none.",
                    self.plan.compared,
                    best.candidate,
                    band(change, 0)
                )
            }
            (None, None) => {
                "No gain here: no way of lending can run the jobs that run today.".to_owned()
            }
        }
    }

    /// The basis of the figures, a line each.
    pub fn grounds(&self) -> Vec<String> {
        let (single, unmeasured) = self.unmeasured;
        let percent = 100.0 * unmeasured as f64 / single.max(1) as f64;
        let days = self.span as f64 / 86_400.0;
        let mut lines = vec![
            format!(
                "{} jobs with GPUs in {days:.1} days, from {}",
                self.jobs, self.source
            ),
            format!(
                "{} GPUs: {}; each {} with {}",
                self.gpus, self.cluster, self.options.model.name, self.options.model.memory
            ),
            format!(
                "{percent:.0} % of the jobs of one GPU have no telemetry: they get a whole GPU, and in the bands a part of them needs as much as jobs with telemetry"
            ),
            format!(
                "a size holds {} times the greatest memory in use",
                self.options.rule.margin
            ),
            format!("speeds on pieces: {}", self.options.curve.source),
            format!(
                "bands: 5 to 95 % of {} resampled histories, each with other speeds",
                self.plan.samples
            ),
        ];
        if self.pieces > 0 {
            lines.push(format!(
                "{} jobs had a part of a GPU: without telemetry each needs this part; `whole`, with which the gain is compared, gives each a GPU of its own",
                self.pieces
            ));
        }
        if let Some(gain) = self.plan.if_measured {
            lines.push(format!(
                "if the jobs without telemetry needed as much as the others, the gain would be {} %",
                number(gain, 1)
            ));
        }
        if let Some(waited) = self.plan.waited {
            lines.push(format!(
                "check: the mean wait in the history is {}, played as today it is {}",
                time(waited),
                time(self.plan.today.sums.wait_mean)
            ));
        }
        lines.push(self.cpus.clone());
        if self.counts_memory {
            lines.push("the memory of nodes is counted, as slurm.conf says".to_owned());
        }
        lines.extend(self.room.iter().cloned());
        lines.extend(self.limits());
        let skipped = self.skipped;
        lines.push(format!(
            "left out: {} jobs without GPU, {} that had not started, {} broken lines",
            skipped.without_gpu, skipped.not_started, skipped.broken
        ));
        if skipped.with_shards > 0 {
            lines.push(format!(
                "left out: {} jobs with shards, because nothing says how many shards a GPU has; name the nodes with --cluster FILE, with `shard:` in their Gres",
                skipped.with_shards
            ));
        }
        lines.extend(skipped.first.iter().map(|line| format!("broken: {line}")));
        lines
    }

    /// What the plan knows of limits, a line each; nothing without limits.
    fn limits(&self) -> Vec<String> {
        let limits = &self.options.limits;
        if limits.classes.is_empty() {
            return Vec::new();
        }
        let mut lines = vec![format!("limits: {}", limits.source)];
        for (jobs, lack, of) in [
            (limits.without_account, "no account", "accounts"),
            (
                limits.unknown_account,
                "an account without an association",
                "accounts",
            ),
            (limits.without_qos, "no QOS", "the job's QOS"),
            (
                limits.unknown_qos,
                "a QOS that is not among the limits",
                "the job's QOS",
            ),
        ] {
            if jobs > 0 {
                lines.push(format!(
                    "{jobs} of {} jobs have {lack}: limits of {of} do not hold for them",
                    self.jobs
                ));
            }
        }
        let barred = self.plan.today.sums.barred;
        if barred > 0 {
            lines.push(format!(
                "{barred} jobs are larger than a limit and would never start: left out of the play"
            ));
        }
        if !limits.uncounted.is_empty() {
            lines.push(format!(
                "limits that are not counted: {}",
                limits.uncounted.join(", ")
            ));
        }
        if limits.counts_gpus {
            lines.push(
                "limits on gres/gpu count pieces as parts of a GPU; Slurm does so for gres/gpufrac alone: write gres/gpufrac=100 for each GPU".to_owned(),
            );
        }
        lines
    }

    /// Money that the GPUs that are no longer needed cost in the time of the history.
    pub fn money(&self, needed: u32, today: u32) -> Option<String> {
        let (rate, currency) = self.rate.as_ref()?;
        let saved = f64::from(today) - f64::from(needed);
        Some(format!(
            "{:.0} {currency}",
            saved * rate * self.span as f64 / 3600.0
        ))
    }
}

/// `12 (10 to 15)`.
fn band(band: Band, decimals: usize) -> String {
    let [value, low, high] = [band.value, band.low, band.high].map(|value| number(value, decimals));
    format!("{value} ({low} to {high})")
}

/// A number without a sign before zero.
fn number(value: f64, decimals: usize) -> String {
    let text = format!("{value:.decimals$}");
    if text.bytes().any(|byte| (b'1'..=b'9').contains(&byte)) {
        text
    } else {
        text.trim_start_matches('-').to_owned()
    }
}

/// A time, to the second.
pub fn time(seconds: f64) -> String {
    words::span(seconds.round() as u64)
}

/// A size as users write it.
pub fn size(units: u32) -> String {
    match units {
        100 => "1".to_owned(),
        units => format!("0.{units:02}"),
    }
}

/// Whether CPUs are counted, and whether pieces run out of them.
fn cpus(options: &Options, history: &History, cluster: &Cluster) -> String {
    let asked = history.jobs.iter().filter(|job| job.can_share());
    let asked: Vec<f64> = asked
        .map(|job| f64::from(job.cpus))
        .filter(|cpus| *cpus > 0.0)
        .collect();
    let known = || {
        cluster
            .nodes
            .iter()
            .filter_map(|node| Some((node.cpus?, node.gpus)))
    };
    let gpus: f64 = known().map(|(_, gpus)| f64::from(gpus)).sum();
    let cpus: f64 = known().map(|(cpus, _)| f64::from(cpus)).sum();
    let why = match (options.counts_cpus, gpus > 0.0, asked.is_empty()) {
        (false, ..) => "as --what-if says",
        (true, false, _) => "it is not known how many the nodes have",
        (true, true, true) => "the history has none",
        (true, true, false) => {
            let middle = quantile(&asked, 0.5);
            let each = cpus / gpus;
            let lack = if middle * 2.0 > each {
                "; beside such a job a piece of the same GPU has no CPU left: --what-if cpus=off shows what jobs with fewer would win"
            } else {
                ""
            };
            return format!(
                "CPUs are counted: a job of one GPU has {middle:.0} in the middle, nodes have {each:.1} for each GPU{lack}"
            );
        }
    };
    format!("CPUs are not counted: {why}")
}
