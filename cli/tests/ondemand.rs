//! The form for Open OnDemand in contrib/ondemand, rendered by Ruby from what `gpufrac conf --json` prints.
//! Ruby comes from Debian, once.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use debian::{DebianError, Release};
use serde_json::{Value, json};

const POOLS: &str = r#"version = 1
[pool.halves]
mechanism = "mig"
layout = "halves"
gpu = "H100-80"
partitions = ["gpu"]
nodes = "gn1"
gpus = [0]
[pool.pieces]
mechanism = "mig"
layout = "uniform"
menu = ["1/4"]
gpu = "H100-80"
partitions = ["pieces"]
nodes = "gn2"
"#;

/// Renders a file as Open OnDemand does, with `locals` for the names in it, and prints its YAML as JSON.
const RENDER: &str = r#"
require "erb"; require "json"; require "yaml"
locals = JSON.parse(ARGV[1])
scope = binding
locals.each { |name, value| scope.local_variable_set(name, value) }
text = ERB.new(File.read(ARGV[0]), trim_mode: "-").result(scope)
puts JSON.generate(YAML.safe_load(text))
"#;

/// A folder with Ruby in it, for chroot.
fn tree() -> Result<PathBuf, DebianError> {
    let cache = Path::new(env!("CARGO_TARGET_TMPDIR")).join("ruby");
    let tree = cache.join("tree");
    if !tree.join("usr/bin/ruby").exists() {
        let release = Release::open(&cache, "bookworm")?;
        let packages = release.packages_with_dependencies(&["ruby", "dash", "coreutils"])?;
        debian::tree(&packages, &tree)?;
    }
    Ok(tree)
}

struct Ruby(PathBuf);

impl Ruby {
    /// What a file of contrib becomes.
    fn render(&self, file: &str, locals: &Value) -> Value {
        let contrib = Path::new(env!("CARGO_MANIFEST_DIR")).join("../contrib/ondemand");
        fs::copy(contrib.join(file), self.0.join("file.erb")).unwrap();
        fs::write(self.0.join("render.rb"), RENDER).unwrap();
        let mut command = Command::new("chroot");
        command
            .arg(&self.0)
            .env("PATH", "/usr/sbin:/usr/bin")
            .env("LC_ALL", "C.UTF-8");
        command.args(["/usr/bin/ruby", "/render.rb", "/file.erb"]);
        let output = command.arg(locals.to_string()).output().unwrap();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{errors}");
        serde_json::from_slice(&output.stdout).unwrap()
    }

    /// What a `gpufrac` of the web host prints.
    fn gpufrac(&self, text: &str, status: u8) {
        let path = self.0.join("usr/bin/gpufrac");
        let script = format!(
            "#!/bin/sh\n[ \"$*\" = 'conf --json' ] || exit 9\ncat <<'END'\n{text}\nEND\nexit {status}\n"
        );
        fs::write(&path, script).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    }
}

#[test]
fn the_form_offers_what_each_partition_gives() {
    let ruby = Ruby(test_seed::needed(tree()));
    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("gpufrac.toml");
    fs::write(&config, POOLS).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_gpufrac"));
    let output = command
        .args(["conf", "--json", "--config"])
        .arg(&config)
        .output()
        .unwrap();
    ruby.gpufrac(&String::from_utf8(output.stdout).unwrap(), 0);
    let form = ruby.render("form.yml.erb", &json!({}));
    let attributes = &form["attributes"];
    assert_eq!(
        attributes["gpu_partition"]["options"],
        json!([["gpu", "gpu"], ["pieces", "pieces"]])
    );
    let hidden = |partition: &str| {
        let name = format!("data-option-for-gpu-partition-{partition}");
        json!({ name: false })
    };
    assert_eq!(
        attributes["gpu_size"]["options"],
        json!([
            ["0.125 of a GPU, 9 GiB", "gpufrac:0.125", hidden("pieces")],
            ["0.25 of a GPU, 19 GiB", "gpufrac:0.25"],
            ["0.5 of a GPU, 39 GiB", "gpufrac:0.5", hidden("pieces")],
            ["1 of a GPU, 79 GiB", "gpufrac:1", hidden("gpu")],
        ])
    );
    let locals = json!({"gpu_partition": "gpu", "gpu_size": "gpufrac:0.25"});
    let submit = ruby.render("submit.yml.erb", &locals);
    assert_eq!(submit["script"]["queue_name"], "gpu");
    assert_eq!(submit["script"]["native"], json!(["--gres=gpufrac:0.25"]));
    // What a user writes in place of a choice stays one option.
    let locals = json!({"gpu_partition": "gpu", "gpu_size": "a\"\n- --uid=0"});
    let submit = ruby.render("submit.yml.erb", &locals);
    assert_eq!(submit["script"]["native"].as_array().unwrap().len(), 1);

    // A web host without gpufrac's file, or with a mistake in it.
    ruby.gpufrac("gpufrac.toml:1: version: missing", 1);
    let form = ruby.render("form.yml.erb", &json!({}));
    assert_eq!(form["attributes"]["gpu_partition"]["options"], Value::Null);
    assert_eq!(form["form"], json!(["gpu_partition", "gpu_size"]));
}
