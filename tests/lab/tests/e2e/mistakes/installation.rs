//! Programs and plugins that are missing, not executable, writable by others, or not called.

use std::fs;
use std::process::Command;
use std::time::Duration;

use gpufrac_lab::{JobId, LabError};
use nix::sys::signal::Signal;

use super::{Fate, Mistake, Site, replace};
use crate::upgrade::install_all;

/// A plugin for a series of Slurm that no lab runs.
const OF_ANOTHER_SERIES: &str = "const char plugin_name[] = \"gpufrac\";\n\
    const char plugin_type[] = \"spank\";\n\
    const unsigned int plugin_version = 0x190500;\n\
    const unsigned int spank_plugin_version = 1;\n";

/// The leases of jobs whose epilog never came. They keep no job from its slice, and the admin need not wait for that.
fn drop_leases_of_ended_jobs(site: &mut Site) -> Result<(), LabError> {
    let leases = site.lab.folder().run(site.node()).join("leases");
    for entry in fs::read_dir(leases).expect("the node's leases").flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let job = JobId(name.parse().expect("a job's number"));
        if site.lab.job(job)?.is_active() {
            continue;
        }
        let checked = site.check()?;
        let way = format!("`gpufrac lease drop {name}`");
        assert!(checked.stderr.contains(&way), "no {way}: {checked:?}");
        let drop = site
            .lab
            .command("gpufrac")
            .args(["lease", "drop", "--yes", &name]);
        drop.env("SLURMD_NODENAME", site.node())
            .env("GPUFRAC_CONFIG", site.config())
            .stdout()?;
    }
    Ok(())
}

pub(super) const MISTAKES: &[Mistake] = &[
    Mistake::new(
        "no prolog",
        |site| {
            site.remove(&site.program("prolog"));
            Ok(())
        },
        &["bin/prolog` does not exist on this node"],
        Fate::SliceOrNone,
    ),
    Mistake::new(
        "a prolog without its x",
        |site| {
            site.set_mode(&site.program("prolog"), 0o644);
            Ok(())
        },
        &["bin/prolog` cannot be run", "`chmod 755 "],
        Fate::SliceOrNone,
    )
    .quick(),
    Mistake::new(
        "no gpufrac-prolog behind the site's",
        |site| {
            site.remove(&site.program("gpufrac-prolog"));
            Ok(())
        },
        &["gpufrac-prolog` does not exist on this node"],
        Fate::SliceOrNone,
    ),
    Mistake::new(
        "an epilog without its x",
        |site| {
            site.set_mode(&site.program("epilog"), 0o644);
            Ok(())
        },
        &["bin/epilog` cannot be run", "`chmod 755 "],
        Fate::NotTried,
    ),
    Mistake::new(
        "a site's prolog that does not call gpufrac's",
        |site| {
            site.write(&site.program("prolog"), "#!/bin/sh\nexit 0\n");
            Ok(())
        },
        &["it does not name gpufrac-prolog"],
        Fate::SliceOrNone,
    ),
    Mistake::new(
        "a site's prolog that swallows the status",
        |site| {
            let text = "#!/bin/sh\nexport GPUFRAC_CONFIG=/nowhere\ngpufrac-prolog\nexit 0\n";
            site.write(&site.program("prolog"), text);
            Ok(())
        },
        &[
            "the script goes on, or ends well, after gpufrac-prolog failed",
            "gpufrac-prolog || exit $?",
        ],
        Fate::SliceOrNone,
    )
    .quick(),
    Mistake::new(
        "a prolog without Slurm's variables",
        |site| {
            site.change(&site.program("prolog"), "exec ", "exec env -i ");
            Ok(())
        },
        &[
            "gpufrac-prolog runs without Slurm's variables there",
            "without env -i",
        ],
        Fate::SliceOrNone,
    ),
    Mistake::new(
        "a site's prolog that ends before it calls gpufrac's",
        |site| {
            site.change(&site.program("prolog"), "exec ", "exit 0\nexec ");
            Ok(())
        },
        &["the script ends there, before it runs gpufrac-prolog"],
        Fate::SliceOrNone,
    ),
    Mistake::new(
        "a site's prolog that gives gpufrac's 5 seconds",
        |site| {
            site.change(&site.program("prolog"), "exec ", "exec timeout 5 ");
            Ok(())
        },
        &["timeout ends gpufrac-prolog after 5 s", "give it 60 s"],
        Fate::Slice,
    )
    .warned(),
    Mistake::new(
        "a gpufrac-prolog of an older build",
        |site| {
            let (prolog, ours) = (site.program("gpufrac-prolog"), site.program("newer"));
            site.keep(&prolog);
            site.keep(&ours);
            fs::rename(&prolog, &ours).expect("root may");
            // The same program under another version: it still makes the slice.
            let text = format!(
                "#!/bin/sh\n[ \"$1\" = --version ] && echo gpufrac-prolog 0.0.9 for Slurm 24.11 && exit\nexec {} \"$@\"\n",
                ours.display()
            );
            site.write(&prolog, &text);
            Ok(())
        },
        &["is of build 0.0.9, and `gpufrac` of build", "from one build"],
        Fate::Slice,
    )
    .warned(),
    Mistake::new(
        "a site's epilog that does not call gpufrac's",
        |site| {
            site.write(&site.program("epilog"), "#!/bin/sh\nexit 0\n");
            Ok(())
        },
        &["it does not name gpufrac-epilog"],
        Fate::SliceOrNone,
    )
    .mended(drop_leases_of_ended_jobs),
    Mistake::new(
        "the prolog's program as the epilog",
        |site| {
            let text = std::fs::read_to_string(site.program("prolog")).expect("the lab's wrapper");
            site.write(&site.program("epilog"), &text);
            Ok(())
        },
        &["it does not name gpufrac-epilog"],
        Fate::SliceOrNone,
    )
    .mended(drop_leases_of_ended_jobs),
    Mistake::new(
        "an epilog of an ordinary user",
        |site| {
            site.give_to_user(&site.program("epilog"));
            Ok(())
        },
        &["bin/epilog` runs as root, and ", "`chown root:root "],
        Fate::NotTried,
    ),
    Mistake::new(
        "the plugin twice in plugstack.conf",
        |site| {
            let path = site.etc("plugstack.conf");
            let text = fs::read_to_string(&path).expect("the lab's file");
            site.write(&path, &format!("{text}\n{text}"));
            Ok(())
        },
        // Slurm loads it twice, and the job finds its slice.
        &[],
        Fate::Slice,
    ),
    Mistake::new(
        "a prolog with the line ends of Windows",
        |site| {
            let prolog = site.program("prolog");
            let text = fs::read_to_string(&prolog).expect("the lab's wrapper");
            site.write(&prolog, &text.replace('\n', "\r\n"));
            Ok(())
        },
        &["it has the line ends of Windows", "`sed -i "],
        Fate::SliceOrNone,
    ),
    Mistake::new(
        "a prolog without its first line",
        |site| {
            let prolog = site.program("prolog");
            let text = fs::read_to_string(&prolog).expect("the lab's wrapper");
            let (_, rest) = text.split_once('\n').expect("a script");
            site.write(&prolog, rest);
            Ok(())
        },
        &["does not begin with `#!`"],
        Fate::SliceOrNone,
    ),
    Mistake::new(
        "a prolog whose interpreter does not exist",
        |site| {
            let prolog = site.program("prolog");
            site.change(&prolog, "#!/bin/sh", "#!/opt/site/bin/bash");
            Ok(())
        },
        &["its interpreter `/opt/site/bin/bash` does not exist"],
        Fate::SliceOrNone,
    ),
    Mistake::new(
        "gpufrac-prolog of no bytes, as a full disk leaves it",
        |site| {
            site.write(&site.program("gpufrac-prolog"), "");
            Ok(())
        },
        &["it is no program", "install it again"],
        Fate::SliceOrNone,
    ),
    Mistake::new(
        "a plugin for the commands that users cannot read",
        |site| {
            site.set_mode(&site.plugin("cli_filter_gpufrac.so"), 0o600);
            Ok(())
        },
        &["users cannot read `", "`chmod o+r "],
        Fate::SliceOrNone,
    ),
    Mistake::new(
        "a plugin for slurmstepd that users cannot read",
        |site| {
            site.set_mode(&site.plugin("spank_gpufrac.so"), 0o700);
            Ok(())
        },
        &["users cannot read `", "`chmod o+r "],
        Fate::SliceOrNone,
    )
    .quick(),
    Mistake::new(
        "plugstack.conf that users cannot read",
        |site| {
            site.set_mode(&site.etc("plugstack.conf"), 0o600);
            Ok(())
        },
        &["users cannot read `", "plugstack.conf`", "`chmod o+r "],
        Fate::SliceOrNone,
    ),
    Mistake::new(
        "a plugin that the user of slurmctld cannot read",
        |site| {
            site.set_mode(&site.plugin("job_submit_gpufrac.so"), 0o600);
            Ok(())
        },
        &["slurmctld cannot read `", "`chmod o+r "],
        Fate::NotTried,
    ),
    Mistake::new(
        "plugstack.conf of an ordinary user",
        |site| {
            site.give_to_user(&site.etc("plugstack.conf"));
            Ok(())
        },
        &[
            "plugstack.conf` names programs of root",
            "`chown root:root ",
        ],
        Fate::NotTried,
    ),
    Mistake::new(
        "both plugins removed from slurm.conf",
        |site| {
            let conf = site.etc("slurm.conf");
            for key in ["JobSubmitPlugins", "CliFilterPlugins"] {
                site.change(&conf, &format!("{key}=gpufrac\n"), "");
            }
            site.lab.stop_daemon("slurmctld", Signal::SIGTERM)?;
            site.lab.start_slurmctld()?;
            let node = site.node().to_owned();
            let limit = Duration::from_secs(120);
            site.lab.wait("the node has registered", limit, || {
                let state = site.lab.node(&node)?.state().to_owned();
                let serves = ["IDLE", "MIXED"].iter().any(|word| state.starts_with(word));
                Ok((serves && !state.contains('*')).then_some(()))
            })
        },
        &["add the line: JobSubmitPlugins=gpufrac"],
        Fate::SliceOrNone,
    )
    // Slurm takes it for a count of a GRES without devices.
    .asked("--gres=gpufrac:25")
    .mended(|site| site.restart()),
    Mistake::new(
        "the plugins twice in slurm.conf",
        |site| {
            let conf = site.etc("slurm.conf");
            for key in ["JobSubmitPlugins", "CliFilterPlugins"] {
                let line = format!("{key}=gpufrac");
                site.change(&conf, &line, &format!("{line},gpufrac"));
            }
            site.restart()
        },
        // Slurm calls each twice, and the second call changes nothing.
        &[],
        Fate::Slice,
    )
    .mended(|site| site.restart()),
    Mistake::new(
        "no line in plugstack.conf",
        |site| {
            site.write(&site.etc("plugstack.conf"), "");
            Ok(())
        },
        &["plugstack.conf: spank_gpufrac.so is not there"],
        Fate::SliceOrNone,
    )
    .quick(),
    Mistake::new(
        "no plugin for slurmstepd",
        |site| {
            site.remove(&site.plugin("spank_gpufrac.so"));
            Ok(())
        },
        &["spank_gpufrac.so is named and not in "],
        Fate::SliceOrNone,
    ),
    Mistake::new(
        "a plugin of another series",
        |site| {
            let spank = site.plugin("spank_gpufrac.so");
            site.keep(&spank);
            let code = site.lab.folder().root().join("another.c");
            fs::write(&code, OF_ANOTHER_SERIES).expect("root may");
            let built = code.with_extension("so");
            let mut compiler = Command::new("cc");
            compiler.args(["-shared", "-o"]).arg(&built).arg(&code);
            assert!(compiler.status().is_ok_and(|status| status.success()));
            replace(&spank, &fs::read(built).expect("a plugin"), 0o755);
            Ok(())
        },
        &[
            "is built for Slurm 25.05",
            "install gpufrac's plugins for Slurm",
        ],
        Fate::SliceOrNone,
    ),
    Mistake::new(
        "half of a plugin",
        |site| {
            let spank = site.plugin("spank_gpufrac.so");
            site.keep(&spank);
            let whole = fs::read(&spank).expect("a plugin");
            replace(&spank, &whole[..whole.len() / 2], 0o755);
            Ok(())
        },
        &[
            "is no plugin of Slurm, or only a part of one",
            "install it again",
        ],
        Fate::SliceOrNone,
    ),
    Mistake::new(
        "a new build over the running one, as `cargo xtask dist` installs it",
        |site| {
            install_all(&site.lab);
            Ok(())
        },
        &[],
        Fate::Slice,
    ),
    Mistake::new(
        "no plugin for the commands",
        |site| {
            site.remove(&site.plugin("cli_filter_gpufrac.so"));
            Ok(())
        },
        &["cli_filter_gpufrac.so is named and not in "],
        Fate::SliceOrNone,
    ),
    Mistake::new(
        "no plugin for slurmctld",
        |site| {
            site.remove(&site.plugin("job_submit_gpufrac.so"));
            Ok(())
        },
        &["job_submit_gpufrac.so is named and not in "],
        Fate::SliceOrNone,
    ),
    Mistake::new(
        "a program of an ordinary user",
        |site| {
            site.give_to_user(&site.program("gpufrac-prolog"));
            Ok(())
        },
        &[
            "bin/gpufrac-prolog` runs as root, and ",
            "`chown root:root ",
        ],
        Fate::NotTried,
    ),
    Mistake::new(
        "a plugin of an ordinary user",
        |site| {
            site.give_to_user(&site.plugin("spank_gpufrac.so"));
            Ok(())
        },
        &["spank_gpufrac.so` runs as root, and ", "`chown root:root "],
        Fate::NotTried,
    ),
    Mistake::new(
        "a folder of programs that everybody may write",
        |site| {
            site.set_mode(&site.lab.folder().bin(), 0o777);
            Ok(())
        },
        &["only root may be able to change it", "chmod go-w"],
        Fate::NotTried,
    ),
];

#[test]
#[ignore = "full: each mistake takes seconds"]
fn mistakes_of_installation_are_named_and_lose_nothing() -> Result<(), LabError> {
    Site::start(false)?.make_all(MISTAKES, 1)
}
