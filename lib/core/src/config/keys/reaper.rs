//! `[reaper]` and the tables below it.

use std::ops::RangeInclusive;
use std::time::Duration;

use crate::config::error::Problem;
use crate::config::schema::{Table, rows};
use crate::config::values;
use crate::policy::{Action, Breaker, Conditions, Mail, Mode, Policy, Reaper};

/// A sample reads the counters twice, 100 ms apart (nvml.h, GPM). systemd kills the daemon after two minutes without a
/// sign of life (WatchdogSec of the unit).
const INTERVAL: RangeInclusive<Duration> = Duration::from_millis(200)..=Duration::from_secs(60);

/// What `gpufrac-reaperd(8)` does about idle slices. The table and all its keys are optional. Without the table `mode`
/// is `"dry-run"`.
///
/// The keys of the daemon itself:
pub(in crate::config) const REAPER: Table<Reaper> = Table {
    heading: "[reaper]",
    keys: rows! { Reaper:
        /// The time from one sample to the next. On GPUs without MIG use at most 15s. With a longer interval the
        /// activity of their jobs is unknown and counts as use, because the driver does not say how far back its
        /// records of processes reach.
        Default interval: duration_in(INTERVAL, |value| Problem::Interval { value }) = "10s";
        /// Address and port of the metrics for Prometheus; `"off"` disables them. Everybody who can connect to the
        /// address can read job ids, users and accounts of the node.
        Default metrics: own(values::metrics) = "127.0.0.1:9835";
        /// The text of dcgm-exporter on the node, for the activity of MIG instances where the GPU has no GPM (before
        /// Hopper). Without the key the daemon judges such slices by processes, memory and CPU time, see
        /// `gpufrac-reaperd(8)`. A numeric loopback address (`127.0.0.1`, `[::1]`), neither a name nor another machine.
        /// The daemon connects and looks up the owner of the process that accepted the connection. It refuses an answer
        /// of a user: a user id of 1000 or more, or a user with a slice on the node. It also refuses an answer whose
        /// owner is unknown, for example if the exporter runs in a network namespace of its own.
        Example dcgm_exporter: own(values::dcgm_exporter) = "http://127.0.0.1:9400/metrics";
        /// How long the daemon keeps records of jobs with decisions, for `gpufrac why`.
        Default keep: duration = "14d";
        /// The daemon of one node ends at most this number of jobs in an hour. Further jobs wait.
        Default reaps_per_hour: count = 6;
        Table breaker;
        Table mail;
        Table rule;
    },
};

/// The policy: in `[reaper]` for all jobs that no rule names, in a rule for its jobs.
///
/// A slice can be stalled in four ways: `never_used`, `idle`, `finished` and `over_share`. Each has a window: the time
/// that a slice may be stalled in this way. `"off"` disables the window of its key. A window must be as long as three
/// samples, and longer than the longest of `warn`. If a default is too short, gpufrac uses twice the longest of `warn`.
///
/// Missing data counts as activity. So does a time without samples, for example while the daemon did not run; the start
/// of a process on the slice; and a change of the slice's memory.
pub(in crate::config) const POLICY: Table<Policy> = Table {
    heading: "[reaper] and [reaper.rule.NAME]",
    keys: rows! { Policy:
        /// - `off`: The daemon measures slices and decides nothing.
        /// - `dry-run`: The daemon logs and records decisions. It warns no user and ends no job.
        /// - `on`: The daemon warns users and ends jobs. Decisions of dry-run do not count: users are warned again.
        Default mode: ["off" => Mode::Off, "dry-run" => Mode::DryRun, "on" => Mode::On] = "dry-run";
        /// Time after the start of a job in which the job never counts as idle. The windows `never_used`, `idle` and
        /// `finished` start after it at the earliest.
        Default grace: duration = "15m";
        /// No context on the slice and no activity since the job started. With `"off"` only `idle` counts, from the
        /// first use on.
        Default never_used: duration_or_off = "2h";
        /// Used before, but not any more.
        Default idle: duration_or_off = "4h";
        /// Used before. No process of the job is left on the slice, but memory is still allocated. The daemon sees this
        /// only on a MIG instance of one job.
        Default finished: duration_or_off = "30m";
        /// The job uses more than its share, with any mechanism but `mig`: more memory (600 MiB more are allowed for
        /// each of its contexts), or processes that bypass the control daemon of MPS.
        Default over_share: duration_or_off = "30m";
        /// A sample is idle up to this percentage of activity. With 0 any activity counts.
        Default busy_above: percent = 0;
        /// A job is idle up to this percentage of one CPU core, if the source of samples sees only the job's processes,
        /// or cannot attribute the activity to a job. With 0 any CPU time counts.
        Default cpu_busy_above: percent = 1;
        /// The times before the end at which the user is warned; at least one time. With `["1h", "15m"]` the first
        /// warning is an hour before the window ends, the second a quarter of an hour. A job ends when its slice has
        /// been stalled for the whole window *and* every warning was sent at least its time before the end. A warning
        /// that is late, because the daemon or Slurm was down, delays the end. Activity, however short, takes all
        /// warnings back and restarts the window.
        Default warn: own(values::warnings) = ["20m"];
        /// A signal to the shell of the batch script (of a job without one, to its steps) when the window is over, so
        /// that it can write a checkpoint: HUP, INT, QUIT, USR1, USR2, TERM, CONT or URG, with or without SIG. Without
        /// the key, or with `"off"`, no signal is sent.
        Example signal: own(values::signal) = "USR1";
        /// With `signal`: the time between the signal and `action`. The time in the warnings includes the checkpoint.
        Default checkpoint: own(values::checkpoint) = "5m";
        /// How the job is reclaimed. A job that cannot be requeued is cancelled.
        Default action: [
            "requeue" => Action::Requeue,
            "requeue-hold" => Action::RequeueHold,
            "cancel" => Action::Cancel,
        ] = "cancel";
        /// `--gpufrac-idle=long` multiplies all windows by this number, except `over_share`.
        Default long_factor: count = 4;
        /// The values of `--gpufrac-idle` that users may ask for. `default` is always allowed. With `off` the job is
        /// not reaped, except for `over_share`.
        ///
        /// At submission a value is refused if no rule that may apply to the job allows the value.
        Default idle_option: own(values::idle_option) = ["default", "long"];
    },
};

/// If many slices look stalled at once, the telemetry is probably faulty, and the circuit breaker opens. Slices of a
/// single user do not open it: if other users have slices, the share must also be exceeded without the slices of any
/// one user, and in the cluster `least` slices of the other users must be stalled. While the breaker is open, warnings
/// and reclaims are suspended, and `admins` get a mail message. When the breaker closes, samples from before do not
/// count: a slice that was stalled then counts as used when its window would end.
pub(in crate::config) const BREAKER: Table<Breaker> = Table {
    heading: "[reaper.breaker]",
    keys: rows! { Breaker:
        /// The breaker of a node opens above this percentage of the node's leases.
        Default node_share: whole_percent = 60;
        /// The breaker of the cluster opens above this percentage of the leases of all nodes. The key needs `shared` in
        /// `[paths]`, and a node that cannot read that folder ends no job.
        Default cluster_share: whole_percent = 30;
        /// Fewer stalled slices than this number never open a breaker.
        Default least: count = 4;
    },
};

/// How users get mail. Users are also warned in the output of the job, on the terminal of an interactive job, and in
/// the job's `AdminComment`. Without `sendmail` and `program` no mail is sent.
pub(in crate::config) const MAIL: Table<Mail> = Table {
    heading: "[reaper.mail]",
    keys: rows! { Mail:
        /// A program that takes a whole message on stdin and the recipients as arguments. The mail has a chart of the
        /// activity.
        Example sendmail: path = "/usr/sbin/sendmail";
        /// A program as Slurm's `MailProg`: `program -s subject recipient`, with the text on stdin. Set only one of
        /// `sendmail` and `program`.
        Example program: own(values::mail_program) = "/usr/bin/mail";
        /// The sender. Without the key the program chooses the sender.
        Example from: mail_word = "gpufrac@example.org";
        /// The part after the @ of a user's address. Without the key the address is the user's name.
        Example domain: mail_word = "example.org";
        /// Recipients of a mail message when the breaker opens.
        Example admins: texts = ["root"];
        /// A sentence for the warning: where users can ask for an exception.
        Example contact: string = "Write to hpc@example.org.";
    },
};

/// Another policy for some jobs. The first rule in the file whose conditions a job meets applies. A rule needs at least
/// one condition. A job must meet all conditions of the rule, and of a list one entry. `*` stands for any text, `?` for
/// one character. A job without an account or a reservation matches no list of accounts or reservations, not even
/// `["*"]`.
///
/// Keys of the policy that the rule lacks have the values of `[reaper]`. The conditions:
pub(in crate::config) const CONDITIONS: Table<Conditions> = Table {
    heading: "[reaper.rule.NAME]",
    keys: rows! { Conditions:
        /// Names of pools.
        Example pools: patterns = ["h100"];
        /// Names of partitions.
        Example partitions: patterns = ["teaching"];
        /// Names of QOS.
        Example qos: patterns = ["low"];
        /// Names of accounts.
        Example accounts: patterns = ["beamline-*"];
        /// Names of users.
        Example users: patterns = ["ada"];
        /// Names of reservations.
        Example reservations: patterns = ["course"];
        /// Names of jobs.
        Example names: patterns = ["train-*"];
        /// Jobs without a batch script: salloc, srun. With `false` jobs with a batch script.
        Example interactive: yes_or_no = true;
    },
};
