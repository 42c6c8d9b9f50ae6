//! The GPU models that can be simulated.

use crate::geometry::{self, Geometry};

/// NVIDIA's architectures of these models.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Architecture {
    /// T4-16.
    Turing,
    /// A30, A100.
    Ampere,
    /// L40S-48.
    Ada,
    /// H100, H200.
    Hopper,
    /// B200, RTX PRO 6000.
    Blackwell,
}

impl Architecture {
    /// `NVML_DEVICE_ARCH_*`.
    pub fn nvml(self) -> u32 {
        match self {
            Architecture::Turing => 6,
            Architecture::Ampere => 7,
            Architecture::Ada => 8,
            Architecture::Hopper => 9,
            Architecture::Blackwell => 10,
        }
    }

    /// From Hopper on MIG mode is switched at once, and lost at a reboot; Ampere needs a reset, and keeps the mode in
    /// its InfoROM. GPM exists from Hopper on.
    pub fn is_hopper_or_newer(self) -> bool {
        self >= Architecture::Hopper
    }
}

/// The common properties of all GPUs of a model.
#[derive(Debug)]
pub struct Model {
    /// The name in gpufrac.toml: `H100-80`.
    pub name: &'static str,
    /// The product name in NVML.
    pub product: &'static str,
    /// PCI device and vendor id.
    pub pci_id: u32,
    /// PCI subsystem id.
    pub pci_subsystem: u32,
    pub architecture: Architecture,
    /// CUDA compute capability.
    pub compute_capability: (u32, u32),
    /// Memory of the whole GPU in MiB.
    pub memory_mib: u64,
    /// Memory that the driver reserves, in MiB.
    pub reserved_mib: u64,
    /// Multiprocessors of the whole GPU without MIG.
    pub multiprocessors: u32,
    /// CUDA cores of a multiprocessor.
    pub cores_per_multiprocessor: u32,
    /// Power limit in milliwatts.
    pub power_limit_mw: u32,
    /// Power drawn when idle, in milliwatts.
    pub idle_power_mw: u32,
    /// The highest clock of the multiprocessors in MHz.
    pub clock_mhz: u32,
    pub memory_clock_mhz: u32,
    /// Width of the memory bus in bits.
    pub memory_bus_bits: u32,
    /// PCI Express generation.
    pub pcie_generation: u32,
    /// The MIG tables; None without MIG.
    pub geometry: Option<fn() -> Geometry>,
}

const A30_24: Model = Model {
    name: "A30-24",
    product: "NVIDIA A30",
    pci_id: 0x20B7_10DE,
    pci_subsystem: 0x1532_10DE,
    architecture: Architecture::Ampere,
    compute_capability: (8, 0),
    memory_mib: 24576,
    reserved_mib: 437,
    multiprocessors: 56,
    cores_per_multiprocessor: 64,
    power_limit_mw: 165_000,
    idle_power_mw: 30_000,
    clock_mhz: 1440,
    memory_clock_mhz: 1215,
    memory_bus_bits: 3072,
    pcie_generation: 4,
    geometry: Some(geometry::a30_24),
};

const A100_40: Model = Model {
    name: "A100-40",
    product: "NVIDIA A100-SXM4-40GB",
    pci_id: 0x20B0_10DE,
    pci_subsystem: 0x134F_10DE,
    memory_mib: 40960,
    reserved_mib: 571,
    multiprocessors: 108,
    power_limit_mw: 400_000,
    idle_power_mw: 52_000,
    clock_mhz: 1410,
    memory_bus_bits: 5120,
    geometry: Some(geometry::a100_40),
    ..A30_24
};

const H100_80: Model = Model {
    name: "H100-80",
    product: "NVIDIA H100 80GB HBM3",
    pci_id: 0x2330_10DE,
    pci_subsystem: 0x16C1_10DE,
    architecture: Architecture::Hopper,
    compute_capability: (9, 0),
    memory_mib: 81559,
    reserved_mib: 551,
    multiprocessors: 132,
    cores_per_multiprocessor: 128,
    power_limit_mw: 700_000,
    idle_power_mw: 70_000,
    clock_mhz: 1980,
    memory_clock_mhz: 2619,
    memory_bus_bits: 5120,
    pcie_generation: 5,
    geometry: Some(geometry::h100_80),
};

const L40S_48: Model = Model {
    name: "L40S-48",
    product: "NVIDIA L40S",
    pci_id: 0x26B9_10DE,
    pci_subsystem: 0x1851_10DE,
    architecture: Architecture::Ada,
    compute_capability: (8, 9),
    memory_mib: 46068,
    reserved_mib: 597,
    multiprocessors: 142,
    cores_per_multiprocessor: 128,
    power_limit_mw: 350_000,
    idle_power_mw: 34_000,
    clock_mhz: 2520,
    memory_clock_mhz: 9001,
    memory_bus_bits: 384,
    pcie_generation: 4,
    geometry: None,
};

/// All models.
pub static MODELS: [Model; 15] = [
    A30_24,
    A100_40,
    Model {
        name: "A100-80",
        product: "NVIDIA A100-SXM4-80GB",
        pci_id: 0x20B2_10DE,
        pci_subsystem: 0x147F_10DE,
        memory_mib: 81920,
        reserved_mib: 642,
        memory_clock_mhz: 1593,
        geometry: Some(geometry::a100_80),
        ..A100_40
    },
    H100_80,
    Model {
        name: "H100-94",
        product: "NVIDIA H100 NVL",
        pci_id: 0x2321_10DE,
        pci_subsystem: 0x1839_10DE,
        memory_mib: 95830,
        power_limit_mw: 400_000,
        geometry: Some(geometry::h100_94),
        ..H100_80
    },
    Model {
        name: "H100-96",
        product: "NVIDIA GH200 480GB",
        pci_id: 0x2342_10DE,
        pci_subsystem: 0x16EB_10DE,
        memory_mib: 97871,
        power_limit_mw: 900_000,
        geometry: Some(geometry::h100_96),
        ..H100_80
    },
    Model {
        name: "GH200-144",
        product: "NVIDIA GH200 144G HBM3e",
        pci_id: 0x2348_10DE,
        memory_mib: 146_831,
        reserved_mib: 616,
        memory_clock_mhz: 3201,
        geometry: Some(geometry::gh200_144),
        ..H100_80
    },
    Model {
        name: "H200-141",
        product: "NVIDIA H200",
        pci_id: 0x2335_10DE,
        pci_subsystem: 0x18BE_10DE,
        memory_mib: 143_771,
        reserved_mib: 616,
        memory_clock_mhz: 3201,
        geometry: Some(geometry::h200_141),
        ..H100_80
    },
    Model {
        name: "B200-180",
        product: "NVIDIA B200",
        pci_id: 0x2901_10DE,
        pci_subsystem: 0x1999_10DE,
        architecture: Architecture::Blackwell,
        compute_capability: (10, 0),
        memory_mib: 183_359,
        reserved_mib: 732,
        multiprocessors: 148,
        power_limit_mw: 1_000_000,
        idle_power_mw: 140_000,
        clock_mhz: 1965,
        memory_clock_mhz: 3996,
        memory_bus_bits: 8192,
        geometry: Some(geometry::b200_180),
        ..H100_80
    },
    Model {
        name: "GB200-186",
        product: "NVIDIA GB200",
        pci_id: 0x2941_10DE,
        pci_subsystem: 0x1999_10DE,
        architecture: Architecture::Blackwell,
        compute_capability: (10, 0),
        memory_mib: 189_471,
        reserved_mib: 732,
        multiprocessors: 152,
        power_limit_mw: 1_000_000,
        idle_power_mw: 140_000,
        clock_mhz: 1965,
        memory_clock_mhz: 3996,
        memory_bus_bits: 8192,
        geometry: Some(geometry::gb200_186),
        ..H100_80
    },
    Model {
        name: "B300-269",
        product: "NVIDIA B300 SXM6 AC",
        pci_id: 0x3182_10DE,
        pci_subsystem: 0x1999_10DE,
        architecture: Architecture::Blackwell,
        compute_capability: (10, 3),
        memory_mib: 275_040,
        reserved_mib: 732,
        multiprocessors: 148,
        power_limit_mw: 1_000_000,
        idle_power_mw: 140_000,
        clock_mhz: 1965,
        memory_clock_mhz: 3996,
        memory_bus_bits: 8192,
        geometry: Some(geometry::b300_269),
        ..H100_80
    },
    Model {
        name: "GB300-278",
        product: "NVIDIA GB300",
        pci_id: 0x31C2_10DE,
        pci_subsystem: 0x1999_10DE,
        architecture: Architecture::Blackwell,
        compute_capability: (10, 3),
        memory_mib: 284_208,
        reserved_mib: 732,
        multiprocessors: 148,
        power_limit_mw: 1_000_000,
        idle_power_mw: 140_000,
        clock_mhz: 1965,
        memory_clock_mhz: 3996,
        memory_bus_bits: 8192,
        geometry: Some(geometry::gb300_278),
        ..H100_80
    },
    Model {
        name: "RTX-PRO-6000-96",
        product: "NVIDIA RTX PRO 6000 Blackwell Server Edition",
        pci_id: 0x2BB5_10DE,
        pci_subsystem: 0x204E_10DE,
        architecture: Architecture::Blackwell,
        compute_capability: (12, 0),
        memory_mib: 97887,
        reserved_mib: 500,
        multiprocessors: 188,
        power_limit_mw: 600_000,
        idle_power_mw: 35_000,
        clock_mhz: 2430,
        memory_clock_mhz: 12481,
        memory_bus_bits: 512,
        geometry: Some(geometry::rtx_pro_6000_96),
        ..H100_80
    },
    L40S_48,
    Model {
        name: "T4-16",
        product: "Tesla T4",
        pci_id: 0x1EB8_10DE,
        pci_subsystem: 0x12A2_10DE,
        architecture: Architecture::Turing,
        compute_capability: (7, 5),
        memory_mib: 15360,
        reserved_mib: 448,
        multiprocessors: 40,
        cores_per_multiprocessor: 64,
        power_limit_mw: 70_000,
        idle_power_mw: 9_000,
        clock_mhz: 1590,
        memory_clock_mhz: 5001,
        memory_bus_bits: 256,
        pcie_generation: 3,
        ..L40S_48
    },
];

impl Model {
    pub fn find(name: &str) -> Option<&'static Model> {
        MODELS.iter().find(|model| model.name == name)
    }

    /// The model's MIG tables; None without MIG.
    pub fn geometry(&self) -> Option<&'static Geometry> {
        use std::sync::OnceLock;
        static BUILT: [OnceLock<Geometry>; MODELS.len()] =
            [const { OnceLock::new() }; MODELS.len()];
        let build = self.geometry?;
        let position = MODELS.iter().position(|model| model.name == self.name)?;
        Some(BUILT[position].get_or_init(build))
    }
}
