//! Takes samples of slices from the driver, dcgm-exporter and control groups.

pub mod cpu;
pub(crate) mod observation;
mod owners;
pub mod sample;
pub mod telemetry;
mod view;
