//! Programs and plugins that are missing, not executable, writable by others, or not called.

use std::fs;
use std::process::Command;

use gpufrac_lab::LabError;

use super::{Fate, Mistake, Site, replace};
use crate::upgrade::install_all;

/// A plugin for a series of Slurm that no lab runs.
const OF_ANOTHER_SERIES: &str = "const char plugin_name[] = \"gpufrac\";\n\
    const char plugin_type[] = \"spank\";\n\
    const unsigned int plugin_version = 0x190500;\n\
    const unsigned int spank_plugin_version = 1;\n";

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
