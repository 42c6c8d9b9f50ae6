//! Tests of the judgement of a host's files.

use std::os::unix::fs::chown;

use gpufrac_core::finding::Severity;

use super::start::NoStart;

use super::*;

struct World {
    keep: tempfile::TempDir,
}

impl World {
    fn new() -> World {
        // For files of root.
        test_seed::needs_root();
        let keep = tempfile::tempdir().unwrap();
        let world = World { keep };
        fs::set_permissions(world.keep.path(), fs::Permissions::from_mode(0o755)).unwrap();
        world
    }

    fn path(&self, name: &str) -> PathBuf {
        self.keep.path().canonicalize().unwrap().join(name)
    }

    fn put(&self, name: &str, text: &str, mode: u32) {
        let path = self.path(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
    }

    /// Makes a library with this version number.
    fn plugin(&self, name: &str, version: u32) {
        let source = format!("const unsigned int plugin_version = {version};\n");
        self.library(name, &source);
    }

    /// Makes a library of this C source.
    fn library(&self, name: &str, source: &str) {
        let path = self.path(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        let code = self.path("code.c");
        fs::write(&code, source).unwrap();
        let mut compiler = std::process::Command::new("cc");
        let built = compiler
            .args(["-shared", "-fPIC", "-o"])
            .arg(&path)
            .arg(&code);
        assert!(built.status().unwrap().success());
    }

    fn inspect(&self, slurm_conf: &str, is_node: bool) -> Vec<Trouble> {
        let role = Role {
            is_node,
            has_commands: has_commands(),
        };
        self.look_as(slurm_conf, role)
    }

    fn look_as(&self, slurm_conf: &str, role: Role) -> Vec<Trouble> {
        troubles(&self.settings(slurm_conf), role)
    }

    fn settings(&self, slurm_conf: &str) -> Settings {
        let host = nix::unistd::gethostname().unwrap();
        let text = format!(
            "SlurmctldHost={}\nPluginDir={}\nPrologs=\n{slurm_conf}",
            host.to_string_lossy(),
            self.path("lib").display()
        );
        self.put("etc/slurm.conf", &text, 0o644);
        let read = |path: &Path| fs::read_to_string(path);
        let files = super::super::Files::read(&self.path("etc/slurm.conf"), &read, &scripts::glob);
        Settings {
            files: Some(files.unwrap()),
            ..Settings::default()
        }
    }
}

fn wrong(found: &[Trouble]) -> Vec<&Wrong> {
    found.iter().map(|trouble| &trouble.wrong).collect()
}

/// Promise (admins): `gpufrac check` names a plugin that is missing, no plugin, or of another series; a program that is
/// missing, cannot run or whose status is lost; files that others can change, or that their reader cannot read.
/// With `files_that_users_cannot_read_are_named_where_users_submit`,
/// `files_that_name_roots_programs_belong_to_root_or_slurm`, `programs_that_the_kernel_does_not_start_are_named`,
/// `programs_that_slurmd_cannot_run_are_named_on_nodes`, `scripts_that_lose_the_exit_status`,
/// `scripts_that_end_with_the_programs_exit_status`, `scripts_that_are_not_understood_are_reported_as_unknown`,
/// `scripts_that_never_make_a_slice_are_named`, `conditions_of_the_program_are_named`, `each_step_of_the_way_is_roots`,
/// `mistakes_on_hosts_are_named_with_their_cure`.
#[test]
fn plugins_that_slurm_cannot_load_are_named() {
    let world = World::new();
    let names = "JobSubmitPlugins=lua,job_submit/gpufrac\n";
    world.plugin("lib/hash_k12.so", 0x18_0b_05);
    world.put("etc/plugstack.conf", "required spank_gpufrac.so\n", 0o644);
    let found = world.inspect(names, true);
    assert!(
        matches!(
            wrong(&found)[..],
            [Wrong::NoPlugin { .. }, Wrong::NoPlugin { .. }]
        ),
        "{found:#?}"
    );
    assert!(found[0].place.ends_with("slurm.conf:4"), "{found:#?}");
    // Another micro release is the same series.
    world.plugin("lib/job_submit_gpufrac.so", 0x18_0b_01);
    world.plugin("lib/spank_gpufrac.so", 0x16_05_08);
    let found = world.inspect(names, true);
    let Wrong::OtherSeries { built_for, host } = wrong(&found)[0] else {
        panic!("{found:#?}");
    };
    assert_eq!(
        (built_for.to_string(), host.to_string()),
        ("22.05".into(), "24.11".into())
    );
    assert_eq!(found.len(), 1);
    world.put("lib/spank_gpufrac.so", "half of", 0o644);
    assert_eq!(wrong(&world.inspect(names, true)), [&Wrong::IsNoPlugin]);
    world.plugin("lib/spank_gpufrac.so", 0x18_0b_05);
    assert_eq!(world.inspect(names, true), []);
    // A user could replace the plugin.
    chown(world.path("lib"), Some(65534), None).unwrap();
    let found = world.inspect(names, true);
    assert_eq!(found.len(), 2, "{found:#?}");
    let Wrong::Untrusted {
        at, is_slurm_user, ..
    } = wrong(&found)[0]
    else {
        panic!("{found:#?}");
    };
    assert_eq!((at.clone(), *is_slurm_user), (world.path("lib"), false));
    let found = world.inspect(&format!("SlurmUser=nobody\n{names}"), true);
    assert!(
        found
            .iter()
            .all(|it| it.finding().severity == Severity::Warning),
        "{found:#?}"
    );
}

#[test]
fn programs_that_slurmd_cannot_run_are_named_on_nodes() {
    let world = World::new();
    let hook = world.path("prolog.sh").display().to_string();
    let ours = world.path("sbin/gpufrac-prolog").display().to_string();
    let named = format!("Prolog={hook}\n");
    assert_eq!(world.inspect(&named, false), []);
    assert_eq!(wrong(&world.inspect(&named, true)), [&Wrong::NoProgram]);
    let pattern = world.path("prolog.d/*").display().to_string();
    let found = world.inspect(&format!("Prolog={pattern}\n"), true);
    assert_eq!(wrong(&found), [&Wrong::NoFiles("gpufrac-prolog")]);
    world.put(
        "prolog.sh",
        &format!("#!/bin/sh\n{ours} || exit $?\ntrue\n"),
        0o644,
    );
    let found = world.inspect(&named, true);
    assert_eq!(wrong(&found), [&Wrong::NotExecutable, &Wrong::NoProgram]);
    assert_eq!(found[1].path, world.path("sbin/gpufrac-prolog"));
    world.put("sbin/gpufrac-prolog", "#!/bin/sh\n", 0o755);
    world.put("prolog.sh", &format!("#!/bin/sh\n{ours}\ntrue\n"), 0o755);
    let lost = Wrong::StatusLost("gpufrac-prolog", 3);
    assert_eq!(wrong(&world.inspect(&named, true)), [&lost]);
    world.put(
        "prolog.sh",
        &format!("#!/bin/sh\n{ours} || exit $?\ntrue\n"),
        0o755,
    );
    assert_eq!(world.inspect(&named, true), []);
    fs::set_permissions(world.path("sbin"), fs::Permissions::from_mode(0o777)).unwrap();
    let found = world.inspect(&named, true);
    assert!(
        matches!(wrong(&found)[..], [Wrong::Untrusted { .. }]),
        "{found:#?}"
    );
    // A pattern; one of its files has no execute permission.
    fs::set_permissions(world.path("sbin"), fs::Permissions::from_mode(0o755)).unwrap();
    world.put("prolog.d/10-site", "#!/bin/sh\n", 0o644);
    world.put(
        "prolog.d/20-gpufrac",
        &format!("#!/bin/sh\nexec {ours}\n"),
        0o755,
    );
    let pattern = format!("Prolog={}/*\n", world.path("prolog.d").display());
    assert_eq!(
        wrong(&world.inspect(&pattern, true)),
        [&Wrong::NotExecutable]
    );
}

#[test]
fn files_that_users_cannot_read_are_named_where_users_submit() {
    let world = World::new();
    let role = Role {
        is_node: false,
        has_commands: true,
    };
    world.plugin("lib/hash_k12.so", 0x18_0b_05);
    for name in ["job_submit", "cli_filter", "spank"] {
        world.plugin(&format!("lib/{name}_gpufrac.so"), 0x18_0b_05);
    }
    let stack = "required spank_gpufrac.so\n";
    world.put("etc/plugstack.conf", stack, 0o644);
    let names = "JobSubmitPlugins=gpufrac\nCliFilterPlugins=gpufrac\nSlurmUser=nobody\n";
    assert_eq!(world.look_as(names, role), []);
    let close = |name: &str, mode: u32| {
        let mode = fs::Permissions::from_mode(mode);
        fs::set_permissions(world.path(name), mode).unwrap();
    };
    let closed = |reader: &'static str, name: &str, permission: char, then: &'static str| {
        let at = world.path(name);
        Wrong::Closed {
            reader,
            at,
            permission,
            then,
        }
    };
    let users = |name: &str, permission: char| closed(USERS, name, permission, COMMANDS_FAIL);
    // As under `umask 077`.
    for name in [
        "lib/cli_filter_gpufrac.so",
        "lib/spank_gpufrac.so",
        "etc/plugstack.conf",
    ] {
        close(name, 0o600);
        assert_eq!(wrong(&world.look_as(names, role)), [&users(name, 'r')]);
        close(name, 0o644);
    }
    close("lib/job_submit_gpufrac.so", 0o700);
    let slurmctld = closed(
        "slurmctld",
        "lib/job_submit_gpufrac.so",
        'r',
        "slurmctld does not start again",
    );
    assert_eq!(wrong(&world.look_as(names, role)), [&slurmctld]);
    // The slurmctld of root reads it.
    let of_root = names.replace("SlurmUser=nobody\n", "SlurmUser=root\n");
    assert_eq!(world.look_as(&of_root, role), []);
    close("lib/job_submit_gpufrac.so", 0o755);
    close("lib", 0o700);
    let found = world.look_as(&of_root, role);
    assert_eq!(wrong(&found), [&users("lib", 'x'), &users("lib", 'x')]);
    let fix = format!("`chmod o+x {}`", world.path("lib").display());
    assert_eq!(found[0].finding().fix, fix);
    // No user submits jobs on this host.
    let alone = Role {
        has_commands: false,
        ..role
    };
    assert_eq!(world.look_as(&of_root, alone), []);
}

#[test]
fn files_that_name_roots_programs_belong_to_root_or_slurm() {
    let world = World::new();
    let role = Role {
        is_node: true,
        has_commands: false,
    };
    world.plugin("lib/spank_gpufrac.so", 0x18_0b_05);
    let of_another = "required spank_gpufrac.so config=/nowhere/gpufrac.toml\n";
    world.put("etc/plugstack.conf", of_another, 0o644);
    assert_eq!(wrong(&world.look_as("", role)), [&Wrong::NoConfig]);
    let names = "SlurmUser=nobody\n";
    world.put("etc/plugstack.conf", "include stack.d/*.conf\n", 0o644);
    world.put("etc/stack.d/gpufrac.conf", "required other.so\n", 0o664);
    let found = world.look_as(names, role);
    let [trouble] = &found[..] else {
        panic!("{found:#?}");
    };
    let finding = trouble.finding();
    assert_eq!(finding.severity, Severity::Error);
    assert!(
        finding
            .what
            .contains("gpufrac.conf` names programs of root"),
        "{finding:?}"
    );
    assert!(finding.fix.contains("chmod go-w"), "{finding:?}");
    world.put("etc/stack.d/gpufrac.conf", "required other.so\n", 0o644);
    assert_eq!(world.look_as(names, role), []);
    // slurmctld's user controls all jobs anyway; another user would gain root's rights.
    chown(world.path("etc"), Some(65534), None).unwrap();
    assert_eq!(world.look_as(names, role), []);
    let found = world.look_as("SlurmUser=root\n", role);
    assert!(
        matches!(wrong(&found)[..], [Wrong::Untrusted { .. }, ..]),
        "{found:#?}"
    );
}

#[test]
fn programs_that_the_kernel_does_not_start_are_named() {
    let world = World::new();
    let hook = world.path("prolog.sh");
    let named = format!("Prolog={}\n", hook.display());
    world.put("sbin/gpufrac-prolog", "#!/bin/sh\n", 0o755);
    let call = format!(
        "{} || exit $?\n",
        world.path("sbin/gpufrac-prolog").display()
    );
    let none = PathBuf::from("/nowhere/sh");
    let cases = [
        (format!("#!/bin/sh\n{call}"), None),
        (format!("#! /bin/sh -e\n{call}"), None),
        (call.clone(), Some(NoStart::NoShebang)),
        (
            format!("\u{feff}#!/bin/sh\n{call}"),
            Some(NoStart::NoShebang),
        ),
        (
            format!("#!/bin/sh\r\n{}", call.replace('\n', "\r\n")),
            Some(NoStart::CarriageReturn),
        ),
        (
            format!("#!/nowhere/sh\n{call}"),
            Some(NoStart::NoInterpreter(none)),
        ),
    ];
    for (text, expected) in cases {
        world.put("prolog.sh", &text, 0o755);
        let found = world.inspect(&named, true);
        let of_start = found.iter().find_map(|trouble| match &trouble.wrong {
            Wrong::NoStart(why) => Some(why.clone()),
            _ => None,
        });
        assert_eq!(of_start, expected, "{text:?}");
    }
    world.put("prolog.sh", &format!("#!/bin/sh\n{call}"), 0o755);
    // Half of a program, as a full disk leaves it.
    world.put("sbin/gpufrac-prolog", "", 0o755);
    let found = world.inspect(&named, true);
    assert_eq!(wrong(&found), [&Wrong::NoStart(NoStart::NoShebang)]);
    let folder = format!("Prolog={}\n", world.path("sbin").display());
    let found = world.inspect(&folder, true);
    assert_eq!(wrong(&found), [&Wrong::NoStart(NoStart::NoFile)]);
}

/// Promise (admins): `gpufrac check` names programs, plugins and a slurmctld of another build of gpufrac.
/// With `a_slurmctld_of_another_build_is_named`, `the_build_of_a_plugin_of_gpufrac_is_read_from_its_file`.
#[test]
fn programs_and_plugins_of_another_build_are_named() {
    let world = World::new();
    world.plugin("lib/hash_k12.so", 0x18_0b_05);
    world.plugin("lib/spank_gpufrac.so", 0x18_0b_05);
    world.put("etc/plugstack.conf", "required spank_gpufrac.so\n", 0o644);
    let ours = world.path("sbin/gpufrac-prolog");
    let named = format!("Prolog={}\n", ours.display());
    fs::create_dir(world.path("sbin")).unwrap();
    let program = |build: &str| {
        let text = format!("#!/bin/sh\necho gpufrac-prolog {build} for Slurm 24.11\n");
        // Another process writes it: a child of another test could keep a file open that this process writes, and the
        // kernel does not start such a program.
        let write = "printf %s \"$1\" >\"$0\" && chmod 755 \"$0\"";
        let mut writer = std::process::Command::new("sh");
        let wrote = writer.args(["-c", write]).arg(&ours).arg(&text).status();
        assert!(wrote.unwrap().success());
        world.inspect(&named, true)
    };
    assert_eq!(program(BUILD), []);
    let other = Wrong::OtherBuild("0.0.9".to_owned());
    assert_eq!(wrong(&program("0.0.9")), [&other]);
    assert_eq!(program(BUILD), []);
    world.library(
        "lib/spank_gpufrac.so",
        "const char gpufrac_build[] = \"0.0.9\";\nconst unsigned int plugin_version = 0x180b05;\n",
    );
    let found = world.inspect(&named, true);
    assert_eq!(wrong(&found), [&other]);
    assert_eq!(found[0].finding().severity, Severity::Warning);
}

#[test]
fn two_files_of_gpufrac_that_differ_are_named() {
    let world = World::new();
    let role = Role {
        is_node: true,
        has_commands: false,
    };
    let old = world.path("old/gpufrac.toml").display().to_string();
    world.put("old/gpufrac.toml", "version = 1\n", 0o644);
    world.put("etc/gpufrac.toml", "version = 1\n", 0o644);
    let line = format!("required spank_gpufrac.so config={old}\n");
    world.put("etc/plugstack.conf", &line, 0o644);
    world.plugin("lib/hash_k12.so", 0x18_0b_05);
    world.plugin("lib/spank_gpufrac.so", 0x18_0b_05);
    let look = || {
        let settings = Settings {
            config: Some(world.path("etc/gpufrac.toml")),
            ..world.settings("")
        };
        troubles(&settings, role)
    };
    assert_eq!(look(), []);
    world.put("etc/gpufrac.toml", "version = 1\n# newer\n", 0o644);
    let found = look();
    let differs = Wrong::OtherConfig(world.path("etc/gpufrac.toml"));
    assert_eq!(wrong(&found), [&differs]);
    assert_eq!(found[0].finding().severity, Severity::Error);
    // slurmstepd refuses a file that a user could change.
    world.put("old/gpufrac.toml", "version = 1\n", 0o666);
    assert!(matches!(wrong(&look())[..], [Wrong::Untrusted { .. }]));
    // A word that the plugin ignores, and a blank behind `=`.
    for argument in ["conf=/etc/gpufrac.toml", "config= /etc/gpufrac.toml"] {
        let line = format!("required spank_gpufrac.so {argument}\noptional site.so conf=x\n");
        world.put("etc/plugstack.conf", &line, 0o644);
        let found = look();
        assert!(
            matches!(wrong(&found)[..], [Wrong::UnknownArgument(_)]),
            "{argument}: {found:#?}"
        );
    }
}

/// Promise (admins): `gpufrac check` finds gpufrac's programs behind scripts of the site.
#[test]
fn a_program_behind_scripts_of_the_site_is_found() {
    let world = World::new();
    world.put("sbin/gpufrac-prolog", "#!/bin/sh\n", 0o755);
    let ours = world.path("sbin/gpufrac-prolog").display().to_string();
    let folder = world.path("prolog.d").display().to_string();
    world.put("prolog.d/10-site", "#!/bin/sh\ntrue\n", 0o755);
    world.put(
        "prolog.d/20-gpufrac",
        &format!("#!/bin/sh\nexec {ours}\n"),
        0o755,
    );
    let hook = world.path("prolog.sh");
    let named = format!("Prolog={}\n", hook.display());
    for code in [
        format!("run-parts {folder} || exit 1\n"),
        format!("for script in {folder}/*; do $script || exit 1; done\n"),
        format!("DIR={folder}\nfor script in $DIR/*; do $script || exit 1; done\n"),
        format!(". {folder}/20-gpufrac\n"),
        format!("{folder}/20-gpufrac || exit $?\n"),
    ] {
        world.put("prolog.sh", &format!("#!/bin/sh\n{code}"), 0o755);
        let unsure = Wrong::StatusUnsure("gpufrac-prolog", 1);
        assert_eq!(wrong(&world.inspect(&named, true)), [&unsure], "{code}");
        let settings = world.settings(&named);
        let scripts = scripts::scripts(&settings);
        assert_eq!(scripts[0].names_ours, Some(true), "{code}");
    }
    world.put("prolog.sh", "#!/bin/sh\n/bin/true || exit 1\n", 0o755);
    assert_eq!(world.inspect(&named, true), []);
    // A file that a user can write is not opened, wherever it leads.
    let theirs = world.path("theirs");
    fs::create_dir(&theirs).unwrap();
    std::os::unix::fs::symlink("/proc/kmsg", theirs.join("log")).unwrap();
    fs::set_permissions(&theirs, fs::Permissions::from_mode(0o777)).unwrap();
    let code = format!("#!/bin/sh\ncd {} || exit 1\n", theirs.display());
    world.put("prolog.sh", &code, 0o755);
    assert_eq!(world.inspect(&named, true), []);
    world.put("prolog.sh", "#!/bin/sh\n/bin/true || exit 1\n", 0o755);
    assert_eq!(
        scripts::scripts(&world.settings(&named))[0].names_ours,
        Some(false)
    );
}

/// Promise (admins): `gpufrac check` names scripts of a site that end all processes on a GPU, or write jobstats' files
/// by Slurm's numbers.
/// With `scripts_that_end_all_processes_on_a_gpu`, `harmless_scripts_are_not_named`,
/// `scripts_that_credit_jobs_by_slurms_numbers`.
#[test]
fn scripts_that_harm_other_jobs_are_named() {
    let world = World::new();
    let call = |name: &str| world.path(name).display().to_string();
    world.put("sbin/gpufrac-prolog", "#!/bin/sh\n", 0o755);
    world.put("sbin/gpufrac-epilog", "#!/bin/sh\n", 0o755);
    let script = |name: &str, code: &str| {
        world.put(name, &format!("#!/bin/sh\n# by the site\n{code}\n"), 0o755);
    };
    let ours = |program: &str| format!("{} || exit $?", call(&format!("sbin/gpufrac-{program}")));
    script("prolog.d/50-gpufrac", &ours("prolog"));
    script("epilog.d/50-gpufrac", &ours("epilog"));
    let names = format!(
        "Prolog={}/*\nEpilog={}/*\nTaskProlog={}\n",
        call("prolog.d"),
        call("epilog.d"),
        call("task")
    );
    script("task", "echo export A=1");
    assert_eq!(world.inspect(&names, true), []);

    script(
        "prolog.d/60-jobstats",
        "echo $SLURM_JOB_ID >/run/gpustat/$i",
    );
    script(
        "epilog.d/60-clean",
        &format!("{} || true", call("lib/clean.sh")),
    );
    script(
        "lib/clean.sh",
        "nvidia-smi -q >/dev/null\nfuser -k /dev/nvidia*",
    );
    script("task", "kill -9 $(lsof -t /dev/nvidia0)");
    let found = world.inspect(&names, true);
    let found: Vec<(&Path, &Wrong)> = found.iter().map(|it| (&*it.path, &it.wrong)).collect();
    let [jobstats, clean, task] =
        ["prolog.d/60-jobstats", "lib/clean.sh", "task"].map(|name| world.path(name));
    assert_eq!(
        found,
        [
            (&*jobstats, &Wrong::Credits(3)),
            (&*clean, &Wrong::EndsAll(4)),
            (&*task, &Wrong::EndsAll(3)),
        ]
    );
    // A host without pools, and a file that a user can write.
    assert_eq!(world.inspect(&names, false), []);
    for path in [jobstats, clean, task] {
        fs::set_permissions(path, fs::Permissions::from_mode(0o777)).unwrap();
    }
    let found = world.inspect(&names, true);
    let is_harm = |it: &&Wrong| matches!(it, Wrong::Credits(_) | Wrong::EndsAll(_));
    assert_eq!(wrong(&found).iter().find(|it| is_harm(it)), None);
}
