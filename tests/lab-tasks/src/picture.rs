//! Draws jobs on GPUs for README.md, in a light and a dark form.

use std::path::Path;

use anyhow::{Result, anyhow};
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use crate::map::Stand;

/// Width and height of one memory slice, in pixels.
const SLICE: (i32, i32) = (86, 56);
const MARGIN: i32 = 16;
/// Width of a GPU's name, left of its slices, in pixels.
const NAME: i32 = 64;
const GAP: i32 = 22;

struct Theme {
    name: &'static str,
    paper: RGBColor,
    ink: RGBColor,
    free: RGBColor,
    jobs: [RGBColor; 4],
}

const THEMES: [Theme; 2] = [
    Theme {
        name: "light",
        paper: RGBColor(255, 255, 255),
        ink: RGBColor(31, 35, 40),
        free: RGBColor(208, 215, 222),
        jobs: [
            RGBColor(184, 219, 255),
            RGBColor(193, 235, 201),
            RGBColor(255, 224, 178),
            RGBColor(229, 208, 255),
        ],
    },
    Theme {
        name: "dark",
        paper: RGBColor(13, 17, 23),
        ink: RGBColor(230, 237, 243),
        free: RGBColor(48, 54, 61),
        jobs: [
            RGBColor(31, 78, 130),
            RGBColor(33, 98, 52),
            RGBColor(120, 74, 18),
            RGBColor(83, 53, 130),
        ],
    },
];

/// Writes `four-jobs-light.svg` and `four-jobs-dark.svg` of GPUs with `slices` memory slices each to a folder.
pub(crate) fn write(folder: &Path, slices: u32, gpus: &[Vec<Stand>]) -> Result<()> {
    for theme in &THEMES {
        let path = folder.join(format!("four-jobs-{}.svg", theme.name));
        std::fs::write(&path, draw(theme, i32::try_from(slices)?, gpus)?)?;
        println!("    {}", path.display());
    }
    Ok(())
}

fn draw(theme: &Theme, slices: i32, gpus: &[Vec<Stand>]) -> Result<String> {
    let rows = i32::try_from(gpus.len())?;
    let width = 2 * MARGIN + NAME + slices * SLICE.0;
    let height = 2 * MARGIN + rows * SLICE.1 + (rows - 1) * GAP;
    let failed = |error: &dyn std::fmt::Display| anyhow!("drawing the picture failed: {error}");
    let mut text = String::new();
    {
        let size = (u32::try_from(width)?, u32::try_from(height)?);
        let area = SVGBackend::with_string(&mut text, size).into_drawing_area();
        area.fill(&theme.paper).map_err(|error| failed(&error))?;
        let words = |size: f64, horizontal| {
            let font = ("sans-serif", size).into_font();
            font.color(&theme.ink)
                .pos(Pos::new(horizontal, VPos::Center))
        };
        let mut job = 0;
        for (number, stands) in (0_i32..).zip(gpus) {
            let top = MARGIN + number * (SLICE.1 + GAP);
            let middle = top + SLICE.1 / 2;
            let name = format!("GPU {number}");
            area.draw_text(&name, &words(19.0, HPos::Left), (MARGIN, middle))
                .map_err(|error| failed(&error))?;
            let left = |slice: i32| MARGIN + NAME + slice * SLICE.0;
            for slice in 0..slices {
                let frame = [(left(slice) + 2, top), (left(slice + 1) - 2, top + SLICE.1)];
                area.draw(&Rectangle::new(frame, theme.free.stroke_width(1)))
                    .map_err(|error| failed(&error))?;
            }
            for (start, size, labels) in stands {
                let (start, size) = (i32::try_from(*start)?, i32::try_from(*size)?);
                let frame = [
                    (left(start) + 2, top),
                    (left(start + size) - 2, top + SLICE.1),
                ];
                let colour = theme.jobs[job % theme.jobs.len()];
                job += 1;
                area.draw(&Rectangle::new(frame, colour.filled()))
                    .map_err(|error| failed(&error))?;
                // A character is about eight pixels wide.
                let fits = |label: &&String| label.len() * 8 < (size * SLICE.0) as usize;
                let label = labels.iter().find(fits).or(labels.last());
                let place = (left(start) + size * SLICE.0 / 2, middle);
                if let Some(label) = label {
                    area.draw_text(label, &words(18.0, HPos::Center), place)
                        .map_err(|error| failed(&error))?;
                }
            }
        }
        area.present().map_err(|error| failed(&error))?;
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_job_is_in_the_picture_of_each_theme() {
        let first = vec![
            (0, 4, vec!["job 2: 1/2 4g.40gb".to_owned()]),
            (4, 2, vec!["x".repeat(100), "4: 1/4".to_owned()]),
        ];
        let gpus = [first, vec![(0, 1, vec!["5: 1/8".to_owned()])]];
        let pictures = THEMES.map(|theme| draw(&theme, 8, &gpus).unwrap());
        for picture in &pictures {
            for label in ["GPU 0", "GPU 1", "job 2: 1/2 4g.40gb", "4: 1/4", "5: 1/8"] {
                assert!(picture.contains(label), "{label}: {picture}");
            }
            assert!(!picture.contains("xxx"), "a label that does not fit");
        }
        assert_ne!(pictures[0], pictures[1]);
    }
}
