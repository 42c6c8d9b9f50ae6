//! The keys of each table of the file. The comments of the rows are the text of gpufrac.toml(5), which
//! `cargo xtask pages` writes.

mod pool;
mod reaper;

use super::schema::{DocumentedKey, Table, rows};
use super::tables::{AboveMax, Config, Hooks, PartitionRules, Paths, Web, WhenStuck};
use super::values;
use crate::count_name::CountName;
use crate::rates::{Millionths, Rate, Rates};

pub(super) use pool::POOL;
pub(super) use reaper::{BREAKER, CONDITIONS, MAIL, POLICY, REAPER};

/// Behind a key stands its default, an example, or all possible values. A duration is a text with its units: `"90s"`,
/// `"20m"`, `"1h 30m"`, `"14d"`.
pub(super) const TOP: Table<Config> = Table {
    heading: "Top level",
    keys: rows! { Config:
        /// The version of the file's format.
        Required version = 1;
        Table paths;
        Table gres;
        Table pool;
        Table partition;
        Table geometry;
        Table reaper;
        Table report;
        Table web;
        /// What happens to a node with a place that cannot be freed or used: it failed three times, or for two minutes.
        /// With `avoid` a job of root named `gpufrac-stuck` takes the units of the place if Slurm preempts no jobs, and
        /// the node is drained only if more than half of a GPU is lost for ten minutes. With `drain` the node is
        /// drained at once. Both are taken back when the place is free. A place that a process of a user holds drains
        /// no node. A mistake here stops no job.
        Default stuck: ["avoid" => WhenStuck::Avoid, "drain" => WhenStuck::Drain] = "avoid";
        Table hooks;
    },
};

pub(super) const GRES: Table<CountName> = Table {
    heading: "[gres]",
    keys: rows! { CountName:
        /// The name of the GRES that counts fractions in Slurm: in GresTypes, gres.conf, limits, sacct and sreport.
        /// Users write `gpufrac:0.25` whatever the name is; job_submit and cli_filter write the name in its place. Some
        /// tools of others take every GRES whose name begins with `gpu` for GPUs, and read a quarter as 25 GPUs:
        /// another name, such as `frac`, prevents the mistake. Small letters, digits and `_`, at most 32, beginning
        /// with a letter; not `gpu`, `shard`, `mps` or another word of such lists. A change is one of Slurm's counts:
        /// no job with a fraction may run or wait, then as for `layout` on all nodes, with `AccountingStorageTRES` and
        /// limits of the new name.
        Default name: own(values::count_name) = "gpufrac";
    },
};

/// All are optional. `%n` stands for the node's name.
pub(super) const PATHS: Table<Paths> = Table {
    heading: "[paths]",
    keys: rows! { Paths:
        /// Leases, locks, the record of node-setup; the folders of MPS control daemons (`mps`), HAMi-core's files
        /// (`hami`), the compute modes to restore (`modes`). The folder should be on a file system that a reboot
        /// empties, because a reboot destroys MIG instances.
        Default run: node_path = "/run/gpufrac";
        /// Usage records.
        Default state: node_path = "/var/lib/gpufrac";
        /// The placeholder devices.
        Default devices: node_path = "/dev/gpufrac";
        /// Prefix of `dev/nvidia*`, `dev/nvidia-caps`, `proc/devices`, `proc/driver/nvidia` and
        /// `proc/driver/nvidia-caps`.
        Default driver_root: node_path = "/";
        /// NVML: a path, or a name for the dynamic linker.
        Default nvml: node_path = "libnvidia-ml.so.1";
        /// The control daemon of MPS, for `mps` and `mig+mps`.
        Default mps_control: node_path = "/usr/bin/nvidia-cuda-mps-control";
        /// For what NVML cannot set: `timeslice` and `memory_limits`.
        Default nvidia_smi: node_path = "/usr/bin/nvidia-smi";
        /// The files of jobs in pools with `cdi`, where runtimes of containers look for them.
        Default cdi: node_path = "/run/cdi";
        /// A folder on a file system that all nodes mount. The folder must exist. Only root of the nodes may write
        /// there, and in every folder above; an NFS server needs `no_root_squash` in its export. The daemons of
        /// `gpufrac-reaperd(8)` share there the state of jobs on several nodes and the number of idle slices, keep
        /// records for `gpufrac why`, and write the state of their node for `gpufrac status --cluster` and `gpufrac
        /// top`, which read it on each host, login nodes too, that mounts the folder. Without the folder a job on
        /// several nodes is never reaped, and the breaker of the cluster stays closed.
        Example shared: node_path = "/shared/gpufrac";
    },
};

/// Optional rules.
pub(super) const PARTITION: Table<PartitionRules> = Table {
    heading: "[partition.NAME]",
    keys: rows! { PartitionRules:
        /// The smallest size of a job in this partition, after rounding.
        Example min: fraction = "1/8";
        /// The largest size, after rounding.
        Example max: fraction = 0.5;
        /// The fraction of a job that asks for no GPU. Without the key such a job gets none. A job that names several
        /// partitions gets the default only if all of them have pools. A job that names a reservation and no partition
        /// does not get it.
        Example default: fraction = 0.25;
        /// Whether users may ask for `gres/gpu`, `gres/shard` and `gres/mps` themselves. The node rounds such a request
        /// down to the menu.
        Default allow_raw: yes_or_no = false;
        /// The CPUs that a job gets with a GPU, and with a fraction in part, rounded up, unless it names CPUs. Slurm's
        /// `DefCpuPerGPU` does the same; this key comes first. 1 to 65000.
        Example cpus_per_gpu: own(values::cpus_per_gpu) = 16;
        /// The memory that a job gets with a GPU, and with a fraction in part, unless it names memory: MiB, or a text
        /// with `M`, `G` or `T`. Slurm's `DefMemPerGPU` does the same; this key comes first.
        Example memory_per_gpu: own(values::memory_per_gpu) = "60G";
        /// The most CPUs that a job may have with a GPU, and with a fraction in part. 1 to 65000.
        Example max_cpus_per_gpu: own(values::max_cpus_per_gpu) = 32;
        /// The most memory that a job may have with a GPU, and with a fraction in part. A job that would get all memory
        /// of its node, because it names none and Slurm has no default, gets this much, and so does one for which the
        /// default of the cluster is more. The default of a partition is not known.
        Example max_memory_per_gpu: own(values::max_memory_per_gpu) = "120G";
        /// What happens to a job above these ceilings: it is refused with a message that says what it can have, or it
        /// gets the most that it may have, and a message. They hold when a job is submitted: `scontrol update` can give
        /// a waiting job more.
        Default above_max: ["refuse" => AboveMax::Refuse, "lower" => AboveMax::Lower] = "refuse";
    },
};

/// A model that is not built in, as `nvidia-smi mig -lgip` and `-lgipp` print it: `memory_slices`, `compute_slices` and
/// for each profile a table `[[geometry.NAME.profiles]]` with `id` (19 for 1g.10gb), `slice_enum` (the number in
/// `NVML_GPU_INSTANCE_PROFILE_*`), `name`, `compute_slices`, `multiprocessors`, `memory` (MiB), `max_instances` and
/// `placements = [{ start = 0, size = 1 }, ...]`.
pub(super) const GEOMETRY: Table<()> = Table {
    heading: "[geometry.NAME]",
    keys: &[],
};

/// Programs of the site, for monitoring that holds handles in the driver. `gpufrac-epilog(8)` and `gpufrac-reaperd(8)`
/// run them as root, without a shell, with an environment of the variables below and `PATH`. The log has what they
/// print; their exit status changes nothing. A program that others than root can change does not run. A mistake here
/// stops no job.
///
/// `GPUFRAC_HOOK` (the key), `GPUFRAC_PLACE` (in words), `GPUFRAC_SINCE` (seconds since 1970), `GPUFRAC_GPU_INDEX` are
/// set unless the whole node is stuck, which has no index; for a slice also `GPUFRAC_GPU_UUID`, `GPUFRAC_GPU_MINOR`,
/// `GPUFRAC_JOB`, `GPUFRAC_GI`, `GPUFRAC_MIG_UUID` and `GPUFRAC_OTHER_LEASES`, the number of other leases on the GPU:
/// without it, or above 0, the GPU must not be reset.
pub(super) const HOOKS: Table<Hooks> = Table {
    heading: "[hooks]",
    keys: rows! { Hooks:
        /// The path of a program that runs before MIG instances are destroyed: once for each job, and before each
        /// further attempt.
        Example before_destroy: path = "/etc/gpufrac/dcgm-pause";
        /// The path of a program that runs when a place is found stuck, and then every ten minutes.
        Example stuck: path = "/etc/gpufrac/restart-exporter";
        /// After this time a program is killed.
        Default time_limit: duration = "30s";
    },
};

/// Prices for `gpufrac report`. A mistake here stops no job. A price is a number of at most six decimals.
pub(super) const REPORT: Table<Rates> = Table {
    heading: "[report]",
    keys: rows! { Rates:
        /// The name that the report prints.
        Example currency: string = "CHF";
        Table pool;
        Table qos;
    },
};

pub(super) const PRICES: Table<Rate> = Table {
    heading: "[report] and [report.pool.NAME]",
    keys: rows! { Rate:
        /// The price of an hour of a GPU; a fraction costs its part.
        Example gpu_hour: price = 1.25;
        /// The price of an idle hour of a GPU, in addition.
        Example idle_hour: price = 0.40;
    },
};

pub(super) const QOS: Table<Millionths> = Table {
    heading: "[report.qos.NAME]",
    keys: rows! { Millionths:
        /// Multiplies the prices of jobs of this QOS.
        Required factor: own(values::factor) = 0.5;
    },
};

/// Static pages of the cluster, which `gpufrac-reaperd(8)` renews each minute by `gpufrac web`. A mistake here stops no
/// job.
pub(super) const WEB: Table<Web> = Table {
    heading: "[web]",
    keys: rows! { Web:
        /// The host that writes them, by its name in Slurm or its short name. It may be a host without GPUs.
        Required host: string = "gn01";
        /// The folder, which must be new, empty or one of an earlier export.
        Required folder: path = "/var/www/gpufrac";
    },
};

/// The tables with their headings, in the order of gpufrac.toml(5).
pub fn of_page() -> [(&'static str, Vec<DocumentedKey>); 16] {
    [
        TOP.rows(),
        GRES.rows(),
        PATHS.rows(),
        POOL.rows(),
        PARTITION.rows(),
        GEOMETRY.rows(),
        REAPER.rows(),
        POLICY.rows(),
        BREAKER.rows(),
        MAIL.rows(),
        CONDITIONS.rows(),
        HOOKS.rows(),
        REPORT.rows(),
        PRICES.rows(),
        QOS.rows(),
        WEB.rows(),
    ]
}
