//! The sample for JupyterHub in contrib/jupyterhub, loaded by batchspawner and JupyterHub of PyPI.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Command;

const HUB: [&str; 2] = ["batchspawner==1.3.0", "jupyterhub==6.1.1"];

const POOLS: &str = r#"version = 1
[pool.halves]
mechanism = "mig"
layout = "halves"
gpu = "H100-80"
partitions = ["gpu"]
nodes = "gn1"
"#;

/// Room of two sizes; the third has no row.
const ROOM: &str = r#"{"version": 1, "at": 0, "nodes": [], "free": [
    {"partition": "gpu", "fraction": "0.25", "units": 25, "jobs": 3},
    {"partition": "gpu", "fraction": "0.5", "units": 50, "jobs": 0}]}"#;

/// Loads a configuration as the hub does; prints the form and, for each choice, the batch script or the refusal.
const LOAD: &str = r#"
import asyncio, sys
from jupyterhub.app import JupyterHub
hub = JupyterHub()
hub.load_config_file(sys.argv[1])
spawner = hub.spawner_class(config=hub.config)
spawner.user = type("User", (), {"name": "root"})()
print(asyncio.run(spawner.get_options_form()))
for choice in sys.argv[2:]:
    try:
        options = asyncio.run(spawner.run_options_from_form({"gpu": [choice]}))
    except ValueError as error:
        print("REFUSED", error)
        continue
    words = {"cmd": "SERVER", "srun": spawner.req_srun, "runtime": spawner.req_runtime}
    print(asyncio.run(spawner._get_batch_script(**words, **options)))
"#;

/// The output of the hub with a `gpufrac` that is this script.
fn load(gpufrac: &str, choices: &[&str]) -> String {
    let place = Path::new(env!("CARGO_TARGET_TMPDIR")).join("jupyterhub");
    let programs = test_seed::needed(debian::python(&place, &HUB));
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("gpufrac");
    fs::write(&path, format!("#!/bin/sh\n{gpufrac}\n")).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    let config = folder.path().join("gpufrac.toml");
    fs::write(&config, POOLS).unwrap();
    let sample =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../contrib/jupyterhub/jupyterhub_config.py");
    let mut command = Command::new(programs.join("python"));
    command.args(["-B", "-c", LOAD]).arg(sample).args(choices);
    command.env("PATH", format!("{}:/usr/bin:/bin", folder.path().display()));
    command
        .env("GPUFRAC_CONFIG", config)
        .current_dir(folder.path());
    let output = command.output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    String::from_utf8(output.stdout).unwrap()
}

/// Promise (users): the sample for JupyterHub offers the sizes of gpufrac.toml with the room of each, and submits the
/// one that was chosen, and nothing else.
#[test]
fn a_server_of_jupyterhub_asks_for_the_size_of_the_form() {
    let real = env!("CARGO_BIN_EXE_gpufrac");
    let gpufrac = format!(
        "case \"$*\" in\n'conf --json') exec {real} conf --json;;\n\
         'status --cluster --json') cat <<'END'\n{ROOM}\nEND\n;;\n*) exit 9;;\nesac"
    );
    let foreign = "gpu/gpufrac:0.25\n#SBATCH --nodes=4";
    let shown = load(&gpufrac, &["gpu/gpufrac:0.25", foreign]);
    for text in [
        ">gpu: 0.125 of a GPU, 9 GiB<",
        ">gpu: 0.25 of a GPU, 19 GiB, 3 free now<",
        ">gpu: 0.5 of a GPU, 39 GiB, 0 free now<",
        "\n#SBATCH --partition=gpu\n",
        "\n#SBATCH --gres=gpufrac:0.25\n",
        "\nsrun SERVER\n",
        "\nREFUSED ",
    ] {
        assert!(shown.contains(text), "{text}: {shown}");
    }
    assert_eq!(shown.matches("#!/bin/bash").count(), 1, "{shown}");

    // A hub without gpufrac's file.
    let shown = load("exit 1", &["gpu/gpufrac:0.25"]);
    assert!(!shown.contains("<option"), "{shown}");
    assert!(shown.contains("\nREFUSED "), "{shown}");
}
