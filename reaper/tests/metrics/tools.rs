//! Checks with other projects' programs: Prometheus of Debian, Grafana's types for Python. Each is downloaded once,
//! into the build folder.

use std::fs;
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use debian::{DebianError, Release};
use serde_json::Value;

/// A version with the schema of Grafana 10.1, the oldest that has every panel of the dashboard.
const GRAFANA_TYPES: &str = "grafana-foundation-sdk==1769699998!10.1.0";
/// The time limit for an answer on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

fn cache() -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join("clients")
}

/// The path of a file in `etc`.
pub fn etc(name: &str) -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    root.join("etc").join(name)
}

/// `promtool` or `prometheus`.
pub fn program(name: &str) -> Result<PathBuf, DebianError> {
    let folder = cache().join("bookworm/prometheus");
    let programs = folder.join("usr/bin");
    // Locked from here on, because the tests of this file start at the same time.
    let release = Release::open(&cache(), "bookworm")?;
    if !programs.join("complete").exists() {
        debian::extract(&release.package("prometheus")?, &folder)?;
        fs::write(programs.join("complete"), "").unwrap();
    }
    Ok(programs.join(name))
}

/// A Python with Grafana's types.
pub fn python() -> Result<PathBuf, DebianError> {
    let programs = debian::python(&cache().join("grafana"), &[GRAFANA_TYPES])?;
    Ok(programs.join("python"))
}

/// The output of a program; an error if it fails.
pub fn run(command: &mut Command) -> Result<String, String> {
    let output = command.stdin(Stdio::null()).output();
    let output = output.map_err(|error| format!("{command:?}: {error}"))?;
    let told = [output.stdout, output.stderr].concat();
    let told = String::from_utf8_lossy(&told).into_owned();
    if output.status.success() {
        Ok(told)
    } else {
        Err(format!("{command:?}: {told}"))
    }
}

/// An address at which no program listens.
fn free_address() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap()
}

/// A running Prometheus.
pub struct Prometheus {
    process: Child,
    address: SocketAddr,
    folder: tempfile::TempDir,
}

impl Prometheus {
    /// Starts Prometheus, which reads these targets each second, and the rules of `etc`.
    pub fn start(targets: &[SocketAddr]) -> Result<Prometheus, DebianError> {
        let program = program("prometheus")?;
        let folder = tempfile::tempdir().unwrap();
        let configuration = folder.path().join("prometheus.yml");
        let rules = etc("prometheus-rules.yml");
        let targets: Vec<String> = targets.iter().map(SocketAddr::to_string).collect();
        // JSON is valid YAML.
        let text = serde_json::json!({
            "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
            "rule_files": [rules],
            "scrape_configs": [{"job_name": "gpufrac", "static_configs": [{"targets": targets}]}],
        });
        fs::write(&configuration, text.to_string()).unwrap();
        let address = free_address();
        let process = Command::new(program)
            .arg(format!("--config.file={}", configuration.display()))
            .arg(format!("--storage.tsdb.path={}", folder.path().display()))
            .arg(format!("--web.listen-address={address}"))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(fs::File::create(folder.path().join("log")).unwrap())
            .spawn()
            .unwrap();
        let mut prometheus = Prometheus {
            process,
            address,
            folder,
        };
        prometheus.wait("it is ready", |prometheus| {
            let ready = prometheus.get("/-/ready").send();
            ready.is_ok_and(|answer| answer.status_code == 200)
        });
        Ok(prometheus)
    }

    fn get(&self, path: &str) -> minreq::Request {
        minreq::get(format!("http://{}{path}", self.address)).with_timeout(20)
    }

    /// Waits until a condition is true.
    pub fn wait(&mut self, what: &str, so: impl Fn(&Prometheus) -> bool) {
        let begin = Instant::now();
        while !so(self) {
            let ended = self.process.try_wait().unwrap();
            if ended.is_some() || begin.elapsed() > PATIENCE {
                let log = fs::read_to_string(self.folder.path().join("log"));
                panic!("not so: {what}; ended: {ended:?}; {}", log.unwrap());
            }
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    /// `data` of an answer of the API, or the error.
    pub fn ask(&self, path: &str) -> Result<Value, String> {
        let answer = self.get(&format!("/api/v1/{path}")).send();
        let answer = answer.map_err(|error| error.to_string())?;
        let text = answer.as_str().unwrap();
        let answer: Value = serde_json::from_str(text).map_err(|_| text.to_owned())?;
        if answer["status"] == "success" {
            Ok(answer["data"].clone())
        } else {
            Err(answer["error"].to_string())
        }
    }

    /// The result vector of a query.
    pub fn query(&self, text: &str) -> Result<Vec<Value>, String> {
        let bytes = text.bytes();
        let text: String = bytes.map(|byte| format!("%{byte:02x}")).collect();
        let data = self.ask(&format!("query?query={text}"))?;
        Ok(data["result"].as_array().unwrap().clone())
    }
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
