//! Places that cannot be freed, or where no slice can be made.

use gpufrac_core::config::Device;
use gpufrac_core::ids::{DeviceIndex, GpuIndex};
use gpufrac_core::layout::Side;
use serde::{Deserialize, Serialize};

use gpufrac_page::words::{plain, span};

/// A place that jobs do not get until what keeps it is gone.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stuck {
    /// The place in words: `GPU 0 1g.10gb at 3:1`, `the left half of GPU 0`, `the node`.
    pub place: String,
    /// NVML's index of the GPU; None for the whole node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpu: Option<GpuIndex>,
    /// The device of Slurm on which no slice can be made; None for one slice that cannot be removed, and for the node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device: Option<DeviceIndex>,
    /// The first failure: seconds since 1970.
    pub since: u64,
    /// Failures so far.
    pub failures: u32,
    /// The answer of the driver or the system, and the programs that hold the place; None where Slurm's PrivateData
    /// hides jobs from the reader.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cause: Option<String>,
}

impl Stuck {
    /// One line for people. `now`: seconds since 1970.
    pub fn text(&self, now: u64) -> String {
        let age = span(now.saturating_sub(self.since));
        let cause = self.cause.as_deref().unwrap_or("root can see why");
        plain(&format!("{} is stuck for {age}: {cause}", self.place))
    }
}

/// The sides of a GPU on which no slice can be made. `devices`: those of the node.
pub fn lost(stuck: &[Stuck], gpu: GpuIndex, devices: &[Device<'_>]) -> Vec<Side> {
    let own = devices.iter().filter(|device| device.gpu_index == gpu);
    let is_lost = |device: &&Device<'_>| {
        let mut stuck = stuck.iter();
        stuck.any(|place| place.device == Some(device.index) || place.gpu.is_none())
    };
    own.filter(is_lost).map(|device| device.side).collect()
}
