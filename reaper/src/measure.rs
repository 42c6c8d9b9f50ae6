//! From the driver, dcgm-exporter and control groups to samples of slices.

pub mod cpu;
pub mod dcgm;
mod observation;
mod owners;
pub mod sample;
pub mod telemetry;
mod view;
