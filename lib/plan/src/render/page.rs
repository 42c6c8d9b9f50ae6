//! A plan as a document: text for a terminal, or a page.

use gpufrac_page::chart::{Bar, Chart, Part};
use gpufrac_page::page::{Page, Table};
use gpufrac_page::words;

use super::{Forecast, band, size, time};
use crate::search::{Bands, Judged};
use crate::sums::Band;

/// Colours of ways of lending; today first.
const COLOURS: [&str; 5] = ["unknown", "busy", "idle", "changing", "warned"];

impl Forecast<'_> {
    /// The document.
    pub fn page(&self) -> Page {
        let mut page = Page::new(self.answer());
        let bars = |figure: &dyn Fn(&Bands) -> (Band, String)| {
            let shown = self.shown().zip(COLOURS.into_iter().cycle());
            let bars = shown.map(|((judged, bands), colour)| {
                let (band, value) = figure(bands);
                Bar {
                    name: judged.candidate.to_string(),
                    parts: vec![(band.value, colour)],
                    band: Some((band.low, band.high)),
                    value,
                }
            });
            Chart::Bars(bars.collect())
        };
        let needed = bars(&|bands| (needed(bands), bands.needed.gpus.to_string()));
        page.chart("GPUs for the waits of today", Vec::new(), needed);
        let wait = bars(&|bands| (bands.wait_mean, time(bands.wait_mean.value)));
        page.chart("Mean wait with the GPUs of today", Vec::new(), wait);
        let hours = bars(&|bands| (bands.allocated, format!("{:.0}", bands.allocated.value)));
        page.chart("GPU-hours that Slurm counts", Vec::new(), hours);
        let lines = self.shown().zip(COLOURS.into_iter().cycle());
        let course = Chart::Course {
            lines: lines
                .map(|((judged, _), colour)| (judged.course.clone(), colour))
                .collect(),
            ceiling: self.gpus.into(),
            end: format!("{:.0} days", self.span as f64 / 86_400.0),
        };
        let key = self.shown().zip(COLOURS.into_iter().cycle());
        let key: Vec<Part> = key
            .map(|((judged, _), colour)| (colour, judged.candidate.to_string()))
            .collect();
        page.chart(
            "GPUs that Slurm counts as allocated, over the time of the history",
            key,
            course,
        );
        page.table(self.figures());
        if let Some(best) = self.plan.best.first() {
            page.table(sizes(best));
        }
        if self.plan.reaped > 0.0 {
            page.paragraph(format!(
                "The reaper would give back {:.1} GPU-hours of idle jobs.",
                self.plan.reaped
            ));
        }
        page.title("What this rests on:");
        page.list(self.grounds());
        if !self.file.is_empty() {
            page.file(
                "gpufrac.toml (`gpufrac check --file-only` reads it)",
                &self.file,
            );
            page.file("Lines of Slurm's files", self.lines.join("\n"));
        }
        page
    }

    /// The figures of each way of lending, with their bands.
    fn figures(&self) -> Table {
        let slowed = 100.0 * (self.options.slow - 1.0);
        let saved = self.rate.as_ref().map_or("", |_| "|saved");
        let heads = format!(
            "|GPUs for the waits of today|mean wait|wait of 1 in 20|GPU-hours|use of the GPUs, %|jobs slowed by over {slowed:.0} %, %|gain, %{saved}"
        );
        let today = self.plan.today.bands.as_ref();
        let today = today.map_or(self.gpus, |bands| bands.needed.gpus);
        let rows = self.shown().map(|(judged, bands)| {
            let mut cells = vec![
                judged.candidate.to_string(),
                band(needed(bands), 0),
                times(bands.wait_mean),
                times(bands.wait_p95),
                band(bands.allocated, 0),
                band(bands.utilisation, 1),
                band(bands.slowed, 1),
                band(bands.gain, 1),
            ];
            cells.extend(self.money(bands.needed.gpus, today));
            cells
        });
        Table {
            turned: true,
            ..Table::new("Ways of lending", &heads, 1, rows)
        }
    }
}

fn needed(bands: &Bands) -> Band {
    let needed = bands.needed;
    Band {
        value: needed.gpus.into(),
        low: needed.low.into(),
        high: needed.high.into(),
    }
}

/// Times with their band.
fn times(band: Band) -> String {
    let [value, low, high] = [band.value, band.low, band.high].map(time);
    format!("{value} ({low} to {high})")
}

fn sizes(best: &Judged) -> Table {
    let rows = best.sizes.iter().map(|one| {
        let jobs = match one.jobs {
            0 => "nobody needs it".to_owned(),
            jobs => jobs.to_string(),
        };
        let waits = [one.waits.0, one.waits.1].map(words::span);
        [size(one.units), jobs].into_iter().chain(waits).collect()
    });
    let caption = format!("Sizes with {}", best.candidate);
    Table::new(
        caption,
        "size|jobs|wait in the middle|wait of 1 in 20",
        1,
        rows,
    )
}
