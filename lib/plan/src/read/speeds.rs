//! Measured speeds on slices: CSV with the columns `slice` (`2g.10gb`) and `speed_against_7g`.

use std::io::{self, Read};

use serde::Deserialize;

#[derive(Deserialize)]
struct SpeedOfSlice {
    slice: String,
    speed_against_7g: f64,
}

/// Compute slices and speeds. Errors: when a line has no speed, or the system refuses.
pub fn read(source: impl Read) -> io::Result<Vec<(u8, f64)>> {
    let mut speeds = Vec::new();
    for row in csv::Reader::from_reader(source).deserialize::<SpeedOfSlice>() {
        let row = row?;
        let (compute, speed) = (row.slice.split_once('g'), row.speed_against_7g);
        let compute = compute.and_then(|(count, _)| count.parse().ok());
        let known = compute.filter(|_| speed > 0.0 && speed.is_finite());
        let compute = known.ok_or_else(|| {
            let wrong = format!("`{}` is no slice with a speed", row.slice);
            io::Error::new(io::ErrorKind::InvalidData, wrong)
        })?;
        speeds.push((compute, speed));
    }
    Ok(speeds)
}
