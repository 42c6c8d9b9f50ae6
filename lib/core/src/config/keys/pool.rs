//! `[pool.NAME]`.

use std::ops::RangeInclusive;
use std::time::Duration;

use crate::config::error::Problem;
use crate::config::schema::{Table, rows};
use crate::config::values;
use crate::layout::LayoutKind::{Halves, Shares, Uniform, Whole};
use crate::lease::visible::Visible;
use crate::mechanism::Mechanism::{Hami, Mig, MigMps, Mps, Timeslice};
use crate::pool::{PoolOptions, Tenancy, TimesliceLength, WholeGpu};

/// No instance is reused in less than a second; after an hour without a job an instance is no longer useful.
const REUSE: RangeInclusive<Duration> = Duration::from_secs(1)..=Duration::from_secs(3600);

/// GPUs that are shared by one mechanism. A GPU can be in one pool only. The GPUs of a node can be in several pools,
/// each with its `gpus` list. The devices of a node are numbered in the order of the file, with all devices of one Type
/// together. A key of another mechanism or layout is an error.
pub(in crate::config) const POOL: Table<PoolOptions> = Table {
    heading: "[pool.NAME]",
    keys: rows! { PoolOptions:
        /// How a GPU is shared. The guarantees of each mechanism are in `gpufrac(7)`.
        ///
        /// - `mig`: A MIG instance for each job.
        /// - `mps`: NVIDIA's Multi-Process Service, on GPUs of Volta and later that are not in MIG mode: a percentage
        ///   of the multiprocessors and a memory limit.
        /// - `mig+mps`: Each half of a GPU is one MIG instance, with one MPS control daemon for all jobs in it.
        /// - `timeslice`: The driver's time slices. Only Slurm counts; nothing is limited.
        /// - `hami`: HAMi-core's library, preloaded into the programs of a job.
        Required mechanism = "mig" | "mps" | "mig+mps" | "timeslice" | "hami";
        /// Required for `mig`, which has `halves`, `uniform`, `slices` and `whole`; `mig+mps` has `halves` only; the
        /// others have `shares` without the key, and `whole`.
        ///
        /// - `halves`: Each GPU is two devices with 50 units each. Sizes: the menu.
        /// - `uniform`: Each GPU is one device with 100 units. Jobs get equal pieces with the single size of the menu,
        ///   or with `gpufrac:1` the whole GPU while no job has a piece of it: whole GPUs and pieces come from the same
        ///   GPUs, by demand. The whole GPU is one MIG instance.
        /// - `slices`: Each GPU is one device of instances of the smallest profile: seven of 14 units on GPUs with
        ///   seven slices, four of 25 units on those with four.
        /// - `whole`: Each GPU is one device that a job gets as a whole, for `gpufrac:1`.
        /// - `shares`: Each GPU is one device with 100 units. Users can ask for any whole percent. `gpufrac:1` is the
        ///   whole GPU for one job alone, without MPS and without HAMi-core.
        ///
        /// Slurm's Types of the devices: `half`, `mpshalf` (`mig+mps`), `uniform`, `slices`, `whole`, `mps`,
        /// `timeslice` and `hami`.
        Example layout = "halves" | "uniform" | "slices" | "whole" | "shares";
        /// The model. With MIG: A30-24, A100-40, A100-80, H100-80, H100-94, H100-96, GH200-144, H200-141, B200-180,
        /// GB200-186, B300-269, GB300-278, RTX-PRO-6000-96, or the NAME of a `[geometry.NAME]` table, which `gpufrac
        /// geometry` prints for any other. A800 is A100 and H800 is H100 with the same memory, GH200 and H20 with 96 GB
        /// are H100-96. For `mps`, `timeslice` and `hami` also
        /// A10-24, A40-48, L4-24, L40-48, L40S-48, RTX-6000-ADA-48, T4-16, V100-16, V100-32, or any other name together
        /// with `memory`. A node compares its GPUs with the model and makes no slice if they differ: by other MIG
        /// profiles, or, without MIG, by more than a tenth of the memory.
        Required gpu = "H100-80";
        /// The memory of one GPU, in MiB. The key overrides the memory of the model.
        Example memory = 46068, for [Mps, Timeslice, Hami] [];
        /// The sizes of slices. For `halves` of `mig` at most one half; without it 1/2, 1/4 and 1/8, on GPUs with four
        /// slices 1/2 and 1/4. For `shares` and `mig+mps` without it every whole percent, with `mig+mps` up to 50; a
        /// menu of `shares` always has 1 too. For `uniform` one size is required: 1/2, 1/4, or 1/7 on GPUs with seven
        /// slices; 1 is always possible too. Fractions are numbers or texts, 0.25 or "1/4".
        ///
        /// Where jobs share a control daemon (`mps` with `tenancy` `"shared"`, `mig+mps`) the smallest share is 3 %. A
        /// daemon takes 48 clients on a GPU and 20 on a half, and each job needs room for one client. A job with more
        /// GPU processes uses more clients.
        Example menu = ["1/2", "1/4", "1/8"];
        /// A GPU with seven compute slices has four of them in one half and three in the other. With `true` both halves
        /// have three.
        Default equal_halves = false, for [Mig, MigMps] [Halves];
        /// Pieces have the same memory, and as much compute as there is: of four quarters of a GPU with seven compute
        /// slices three have two and one has one. With `true` all pieces have the same compute.
        Default equal = false, for [Mig] [Uniform];
        /// Required there.
        ///
        /// - `shared`: One control daemon a GPU, with one server for all users, and compute mode EXCLUSIVE_PROCESS
        ///   while jobs hold shares. Kernels of several jobs run at the same time. A fault of one job ends the GPU work
        ///   of all of them. The control daemon must be of driver 555 or later: those of Debian's 535.261 and 550.163
        ///   refuse the option `-multiuser-server`.
        /// - `private`: One control daemon a job, with its limits in the daemon, and compute mode DEFAULT. The daemons
        ///   take turns on the GPU.
        ///
        /// `mig+mps` is always shared, and needs the same driver.
        Example tenancy: ["shared" => Tenancy::Shared, "private" => Tenancy::Private], for [Mps] [Shares];
        /// Static partitions of multiprocessors instead of percentages, not with `tenancy` `"private"`. The number is
        /// the number of chunks of the device (the GPU or the half), as the command `lspart` of the control daemon
        /// prints it. A job gets its part of the chunks, rounded down, and at least one; so the smallest share is one
        /// chunk. For drivers of CUDA 13.1 and later. Tested only with a stand-in for the daemon.
        Example sm_chunks: count = 15, for [Mps, MigMps] [Shares, Halves];
        /// Lends idle compute, not with `tenancy` `"private"`. The highest ceiling of compute that a job may ask for
        /// with `--gpufrac-burst`, as a part of one GPU; see `gpufrac(7)`. Without the key a share is the ceiling.
        /// Slurm counts, bills and limits shares alone, and memory limits stay. With `mig+mps` at most 0.5, the half.
        /// With `hami` only 1: HAMi-core's limit can be lifted and not raised. It has no meaning with `sm_chunks`.
        ///
        /// The daemon of MPS knows limits for all of its clients, not for one. A client that unsets its own limit has
        /// the highest ceiling of the jobs that are on the GPU, which is at most `burst_max` or the largest share. So
        /// `burst_max` is a right of each job of the pool, and no rule takes it from a user.
        ///
        /// A lower value holds for jobs that start from then on; a job that asked for more has what the pool lends, and
        /// the prolog logs that.
        Example burst_max = 0.75, for [Mps, MigMps, Hami] [Shares, Halves];
        /// The ceiling of jobs of the pool without the option, at most `burst_max`. A job whose share is larger has its
        /// share, and `--gpufrac-burst` with the job's own share asks for no burst. Without the key a job has a burst
        /// only if it asks for one.
        Example burst_default = 0.5, for [Mps, MigMps, Hami] [Shares, Halves];
        /// The driver limits the memory of the control group of each task to the job's share. For drivers r615 and
        /// later and control groups of version 2 (`nvidia-smi memory-limits`); on other nodes the prolog logs that the
        /// limit is missing and sets none, and `gpufrac check` reports it. A task whose limit cannot be set does not
        /// start. Each task has a limit of its own: a job of four tasks can take four times its share. Processes that
        /// come to the node by ssh have no limit. Never tested with such a driver.
        Default memory_limits: yes_or_no = false, for [Mps, Timeslice, Hami] [Shares];
        /// `gpufrac node-setup` sets the length of time slices of the GPU with `nvidia-smi compute-policy`. Without the
        /// key the length stays unchanged.
        Example timeslice: [
            "default" => TimesliceLength::Default,
            "short" => TimesliceLength::Short,
            "medium" => TimesliceLength::Medium,
            "long" => TimesliceLength::Long,
        ], for [Timeslice] [Shares];
        /// Jobs get the variables that make JAX, TensorFlow and CuPy stay within a share, see `gpufrac(7)`.
        Default framework_hints: yes_or_no = false, for [Mps, MigMps, Timeslice, Hami] [Shares, Halves];
        /// How `CUDA_VISIBLE_DEVICES` of jobs without `--gpufrac-visible` names the devices, see `gpufrac(7)`: by UUID,
        /// or by CUDA's numbers where these are certain, for programs that cannot read UUIDs.
        Default visible: ["uuid" => Visible::Uuid, "index" => Visible::Index] = "uuid";
        /// The prolog of a job writes `/run/cdi/gpufrac-JOBID.json`, a file of the Container Device Interface with the
        /// job's slices, and the epilog removes it: `podman run --device gpufrac.io/slice=$SLURM_JOB_ID`. Every user
        /// of the node can read it: it has the number of the job, its devices and sizes, and no name. A job whose file
        /// cannot be written starts without it, and the prolog logs that.
        Default cdi: yes_or_no = false;
        /// HAMi-core's library, which the site installs on the node. Required there. Only root may be able to change
        /// the library and the folders above. An absolute path without blanks and colons.
        Example library: own(values::library) = "/opt/hami/libvgpu.so", for [Hami] [Shares];
        /// What a job with a whole GPU gets.
        ///
        /// - `mig`: The largest MIG instance.
        /// - `bare`: The GPU itself with MIG off, as peer access over NVLink needs it. The job sees the GPU's UUID and
        ///   has the GPU's device and no capability. The prolog switches MIG off for a whole job and on for a piece,
        ///   only while no other job has a lease on the GPU, and only if the GPU is in the other mode. No job's end
        ///   switches the mode. If a process holds the GPU, the driver refuses. The prolog names the process, tries
        ///   again for six seconds and gives the job back to the queue; the node stays in service. Needs Hopper or
        ///   later: A30 and A100 change their mode only by a reset of the GPU, so the configuration refuses `bare` for
        ///   them. For a model of a `[geometry.NAME]` table `gpufrac node-setup` asks the driver. Never tested with
        ///   such a GPU.
        Default whole: ["mig" => WholeGpu::Mig, "bare" => WholeGpu::Bare] = "mig", for [Mig] [Uniform, Whole];
        /// How long the instance of an ended job is kept for the next job of the same user. The next job of this user
        /// with the same size on the same device takes the instance over, if every later job then has a place, and
        /// the driver neither makes nor destroys an instance. The key is meant for arrays of short jobs of one size.
        /// While `gpufrac-reaperd(8)` runs, the prolog of this job does not start NVML either. A job takes an instance
        /// over only if the driver shows no process and no memory on the instance and no process of another user has
        /// its files open. The job has a lease and a usage record of its own. A job of another user never gets the
        /// instance: it takes another place with the same compute, if every later job then has a place, and otherwise
        /// destroys the instance first. The lease of a kept instance is in state `kept`, no usage record counts the
        /// time of keeping, and `gpufrac-reaperd(8)` destroys the instance when the time is over. Without a reaper
        /// the instance is kept until a job needs its place or `gpufrac node-setup` runs. Without the key no instance
        /// is kept: it was not yet tested on a GPU what a driver leaves in the memory of an instance between two
        /// jobs.
        Example reuse: duration_in(REUSE, |value| Problem::Reuse { value }) = "30s", for [Mig] [];
        /// The partitions that the pool serves.
        Required partitions = ["gpu"];
        /// The nodes with GPUs of the pool.
        Required nodes = "gn[01-16]";
        /// The GPUs of each of these nodes, by NVML's index. Without the key every GPU of the node.
        Example gpus = [0, 1];
    },
};
