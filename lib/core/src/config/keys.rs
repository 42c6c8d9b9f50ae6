//! The keys of each table of the file, in the order in which messages list them. Beside each key stands what its
//! heading in gpufrac.toml(5) shows: the default, an example where there is none, or the possible values. A key whose
//! heading has no value, or several keys, has none here.
//!
//! A test compares the page with this list. This command writes the headings:
//! `GPUFRAC_BLESS=1 cargo test -p gpufrac-core headings_of_the_keys`

/// The name of a key, and the value that the page shows.
pub(super) type Key = (&'static str, &'static str);

pub(super) const TOP: &[Key] = &[
    ("version", "1"),
    ("paths", ""),
    ("gres", ""),
    ("pool", ""),
    ("partition", ""),
    ("geometry", ""),
    ("reaper", ""),
    ("report", ""),
    ("web", ""),
    ("stuck", r#""avoid""#),
    ("hooks", ""),
];

pub(super) const PATHS: &[Key] = &[
    ("run", r#""/run/gpufrac""#),
    ("state", r#""/var/lib/gpufrac""#),
    ("devices", r#""/dev/gpufrac""#),
    ("driver_root", r#""/""#),
    ("nvml", r#""libnvidia-ml.so.1""#),
    ("mps_control", r#""/usr/bin/nvidia-cuda-mps-control""#),
    ("nvidia_smi", r#""/usr/bin/nvidia-smi""#),
    ("shared", r#""/shared/gpufrac""#),
];

pub(super) const GRES: &[Key] = &[("name", r#""gpufrac""#)];

pub(super) const POOL: &[Key] = &[
    (
        "mechanism",
        r#""mig" | "mps" | "mig+mps" | "timeslice" | "hami""#,
    ),
    (
        "layout",
        r#""halves" | "uniform" | "slices" | "whole" | "shares""#,
    ),
    ("gpu", r#""H100-80""#),
    ("memory", "46068"),
    ("menu", r#"["1/2", "1/4", "1/8"]"#),
    ("equal_halves", "false"),
    ("equal", "false"),
    ("tenancy", r#""shared" | "private""#),
    ("sm_chunks", "15"),
    ("burst_max", "0.75"),
    ("burst_default", "0.5"),
    ("memory_limits", "false"),
    ("timeslice", r#""default" | "short" | "medium" | "long""#),
    ("framework_hints", "false"),
    ("library", r#""/opt/hami/libvgpu.so""#),
    ("whole", r#""mig" | "bare""#),
    ("reuse", r#""30s""#),
    ("partitions", r#"["gpu"]"#),
    ("nodes", r#""gn[01-16]""#),
    ("gpus", "[0, 1]"),
];

pub(super) const PARTITION: &[Key] = &[
    ("min", ""),
    ("max", ""),
    ("default", ""),
    ("allow_raw", "false"),
];

/// Keys of the daemon itself, only in `[reaper]`.
pub(super) const REAPER: &[Key] = &[
    ("interval", r#""10s""#),
    ("metrics", r#""127.0.0.1:9835""#),
    ("dcgm_exporter", r#""http://127.0.0.1:9400/metrics""#),
    ("keep", r#""14d""#),
    ("reaps_per_hour", "6"),
    ("breaker", ""),
    ("mail", ""),
    ("rule", ""),
];

/// Keys of a policy: in `[reaper]` for all jobs, in a rule for the jobs that match its conditions.
pub(super) const POLICY: &[Key] = &[
    ("mode", r#""off" | "dry-run" | "on""#),
    ("grace", r#""15m""#),
    ("never_used", r#""2h""#),
    ("idle", r#""4h""#),
    ("finished", r#""30m""#),
    ("over_share", r#""30m""#),
    ("busy_above", "0"),
    ("cpu_busy_above", "1"),
    ("warn", r#"["20m"]"#),
    ("signal", r#""USR1""#),
    ("checkpoint", r#""5m""#),
    ("action", r#""cancel" | "requeue" | "requeue-hold""#),
    ("long_factor", "4"),
    ("idle_option", r#"["default", "long"]"#),
];

/// Keys of a rule that are its conditions.
pub(super) const CONDITIONS: &[Key] = &[
    ("pools", ""),
    ("partitions", ""),
    ("qos", ""),
    ("accounts", ""),
    ("users", ""),
    ("reservations", ""),
    ("names", ""),
    ("interactive", "true"),
];

pub(super) const BREAKER: &[Key] = &[
    ("node_share", "60"),
    ("cluster_share", "30"),
    ("least", "4"),
];

pub(super) const MAIL: &[Key] = &[
    ("sendmail", r#""/usr/sbin/sendmail""#),
    ("program", r#""/usr/bin/mail""#),
    ("from", r#""gpufrac@example.org""#),
    ("domain", r#""example.org""#),
    ("admins", r#"["root"]"#),
    ("contact", r#""Write to hpc@example.org.""#),
];

pub(super) const HOOKS: &[Key] = &[
    ("before_destroy", r#""/etc/gpufrac/dcgm-pause""#),
    ("stuck", r#""/etc/gpufrac/restart-exporter""#),
    ("time_limit", r#""30s""#),
];

pub(super) const REPORT: &[Key] = &[("currency", r#""CHF""#), ("pool", ""), ("qos", "")];

/// Keys of a price: in `[report]`, and in `[report.pool.NAME]`.
pub(super) const PRICES: &[Key] = &[("gpu_hour", "1.25"), ("idle_hour", "0.40")];

pub(super) const QOS: &[Key] = &[("factor", "")];

pub(super) const WEB: &[Key] = &[("host", r#""gn01""#), ("folder", r#""/srv/www/gpufrac""#)];
