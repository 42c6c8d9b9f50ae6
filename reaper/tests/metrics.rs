//! The metrics as their readers get them: the text, the server, Prometheus with the rules of `etc`, and the dashboard.
#![expect(clippy::disallowed_methods, reason = "waits for real programs")]
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::collections::BTreeSet;
use std::fs;
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::path::Path;
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use gpufrac_core::ids::JobId;
use gpufrac_reaper::keep::hooks::{ByCause, HookTotals, Times};
use gpufrac_reaper::keep::totals::Totals;
use gpufrac_reaper::report::metrics::{
    PoolMetrics, Server, ServerError, SliceMetrics, Snapshot, render,
};
use gpufrac_records::evidence::Source;
use serde_json::Value;

#[path = "metrics/tools.rs"]
mod tools;

use tools::{Prometheus, etc};

fn slice(job: u32) -> SliceMetrics {
    SliceMetrics {
        job: JobId(job),
        user: "ada".to_owned(),
        account: "physics".to_owned(),
        partition: "gpu".to_owned(),
        pool: "h100".to_owned(),
        gpu: "GPU-5a".to_owned(),
        device: format!("MIG-{job}"),
        fraction: 0.5,
        busy_share: Some(0.25),
        memory_bytes: Some(1 << 30),
        memory_limit_bytes: 40 << 30,
        idle_seconds: 0.0,
        source: Source::Gpm,
    }
}

/// A different number everywhere.
fn hooks() -> HookTotals {
    let times = |number: u64| Times {
        seconds: number as f64 + 0.5,
        counts: [number, 0, 1, 0, 0, 2, 0, 0, 0, 0, 3],
    };
    let causes = |number| ByCause {
        user: number,
        root: number + 1,
        hardware: number + 2,
    };
    HookTotals {
        prologs: times(30),
        waits: times(31),
        epilogs: times(32),
        requeued: causes(33),
        held: causes(36),
        cancelled: causes(39),
        unserved: causes(42),
        not_released: causes(45),
    }
}

/// A slice with values and one without, and a different number for every counter.
fn snapshot() -> Snapshot {
    Snapshot {
        slices: vec![
            slice(17),
            SliceMetrics {
                account: String::new(),
                fraction: 0.03,
                busy_share: None,
                memory_bytes: None,
                idle_seconds: 1234.5,
                source: Source::Processes,
                ..slice(18)
            },
        ],
        totals: Totals {
            rounds: 1001,
            reclaimed_slice_seconds: 7200.5,
            warnings: [1, 2, 3, 4],
            signals: 5,
            requeued: 6,
            cancelled: 7,
            refused_rate: 8,
            refused_breaker: 9,
            dry_run: 10,
            unknown_samples: 11,
            driver_errors: 12,
            slurm_errors: 13,
            mail_errors: 14,
            jobs_put_back: 18,
            hooks: hooks(),
        },
        node_breaker: true,
        cluster_breaker: false,
        unleased_instances: 15,
        overdue_leases: 16,
        stuck_places: 19,
        stuck_units: 20,
        strangers: 17,
        pools: vec![
            PoolMetrics {
                pool: "h100".to_owned(),
                gpus: 4,
                faulty: 1,
                room: [("0.25".to_owned(), 9), ("0.5".to_owned(), 3)].into(),
            },
            PoolMetrics {
                pool: "whole".to_owned(),
                gpus: 2,
                faulty: 0,
                room: [("1".to_owned(), 2)].into(),
            },
        ],
        hides_jobs: false,
    }
}

#[test]
fn the_text_of_a_snapshot() {
    let expected = include_str!("metrics/expected.txt");
    assert_eq!(render(&snapshot(), "gn01"), expected);
}

#[test]
fn each_slice_of_a_job_on_one_device_is_exported() {
    let shared = SliceMetrics {
        device: "GPU-5a".to_owned(),
        ..slice(17)
    };
    let tasks = Snapshot {
        slices: vec![shared.clone(), shared.clone(), shared, slice(17)],
        ..Snapshot::default()
    };
    let text = render(&tasks, "gn01");
    for device in ["GPU-5a", "GPU-5a-2", "GPU-5a-3", "MIG-17"] {
        let line = format!(
            "gpufrac_slice_fraction_ratio{{node=\"gn01\",jobid=\"17\",device=\"{device}\"}} 0.5"
        );
        assert!(text.contains(&line), "{line}: {text}");
    }
    // Prometheus rejects a line that stands there twice.
    let lines: Vec<&str> = text
        .lines()
        .filter(|line| line.contains("jobid="))
        .collect();
    assert_eq!(
        lines.len(),
        lines.iter().collect::<BTreeSet<_>>().len(),
        "{text}"
    );
}

#[test]
fn where_jobs_are_private_no_label_tells_of_one() {
    let shared = |job| SliceMetrics {
        device: "GPU-5a".to_owned(),
        ..slice(job)
    };
    let hidden = Snapshot {
        slices: vec![slice(17), shared(18), shared(19)],
        hides_jobs: true,
        ..Snapshot::default()
    };
    let text = render(&hidden, "gn01");
    for word in ["ada", "physics", "jobid=\"1", "partition=\"gpu\""] {
        assert!(!text.contains(word), "{word}: {text}");
    }
    for (job, device) in [
        ("hidden", "MIG-17"),
        ("hidden", "GPU-5a"),
        ("hidden-2", "GPU-5a"),
    ] {
        let line = format!(
            "gpufrac_slice_activity_ratio{{node=\"gn01\",jobid=\"{job}\",device=\"{device}\"}} 0.25"
        );
        assert!(text.contains(&line), "{line}: {text}");
    }
    assert!(text.contains("gpufrac_leases{node=\"gn01\"} 3"), "{text}");
}

/// How long a client is served: `LONGEST_SERVICE` of the server.
const SERVED: Duration = Duration::from_secs(5);
/// The time after which the test fails, even on a busy machine.
const HANGS: Duration = Duration::from_secs(120);

fn serve(snapshot: Snapshot) -> (Server, Arc<Mutex<Snapshot>>) {
    let snapshot = Arc::new(Mutex::new(snapshot));
    let anywhere = SocketAddr::from(([127, 0, 0, 1], 0));
    let server = Server::start(anywhere, "gn01".to_owned(), Arc::clone(&snapshot));
    (server.unwrap(), snapshot)
}

/// Sends these bytes and returns the answer.
fn send(server: &Server, request: &str) -> String {
    let mut stream = TcpStream::connect(server.address()).unwrap();
    stream.write_all(request.as_bytes()).unwrap();
    read(stream)
}

fn read(mut stream: TcpStream) -> String {
    stream.set_read_timeout(Some(HANGS)).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

fn get(server: &Server) -> String {
    send(server, "GET /metrics HTTP/1.1\r\nHost: gn01\r\n\r\n")
}

#[test]
fn http_requests_get_their_answers() {
    let (server, shared) = serve(snapshot());
    let answer = get(&server);
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    assert!(head.starts_with("HTTP/1.0 200 OK\r\n"), "{head}");
    let kind = "Content-Type: application/openmetrics-text; version=1.0.0; charset=utf-8";
    assert!(head.contains(kind), "{head}");
    assert_eq!(body, render(&snapshot(), "gn01"));
    // The answer always has the current values.
    shared.lock().unwrap().slices.clear();
    assert!(get(&server).contains("\ngpufrac_leases{node=\"gn01\"} 0\n"));

    let answer = send(&server, "HEAD /metrics HTTP/1.1\r\n\r\n");
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    assert!(head.starts_with("HTTP/1.0 200 OK\r\n") && body.is_empty());
    assert!(head.contains("Content-Length: "), "{head}");

    let body = "x".repeat(100_000);
    let long = format!("GET /metrics HTTP/1.1\r\nX: {body}\r\n\r\n");
    let post = format!("POST /metrics HTTP/1.1\r\nContent-Length: 100000\r\n\r\n{body}");
    for (request, status, hint) in [
        ("GET /metrics?x=1 HTTP/1.0\r\n\r\n", "200 OK", "# EOF"),
        ("GET / HTTP/1.1\r\n\r\n", "404 Not Found", "at /metrics"),
        (&post, "405 Method Not Allowed", "Allow: GET, HEAD"),
        ("GRAB /metrics HTTP/1.1\r\n\r\n", "405", "GRAB does nothing"),
        (
            "GET /metrics\r\n\r\n",
            "400 Bad Request",
            "no request of HTTP",
        ),
        ("\r\n\r\n", "400 Bad Request", "no request of HTTP"),
        ("GET /metrics HTTP/2.0\r\n\r\n", "400", "no request of HTTP"),
        (&long, "431", "too long"),
    ] {
        let answer = send(&server, request);
        let start = format!("HTTP/1.0 {status}");
        assert!(answer.starts_with(&start), "{request:.40}: {answer}");
        assert!(answer.contains(hint), "{request:.40}: {answer}");
    }
}

fn threads() -> usize {
    fs::read_dir("/proc/self/task").unwrap().count()
}

/// Promise (reaper): a client of the metrics stops nobody.
#[test]
fn clients_that_say_nothing_or_never_read_stop_nobody() {
    let many = Snapshot {
        slices: (0..6000).map(slice).collect(),
        ..Snapshot::default()
    };
    let begin = Instant::now();
    render(&many, "gn01");
    let once = begin.elapsed();
    let (server, shared) = serve(many);
    let before = threads();
    let mut idlers = Vec::new();
    for number in 0..150 {
        let mut stream = TcpStream::connect(server.address()).unwrap();
        match number % 3 {
            0 => {}
            1 => stream.write_all(b"GET /met").unwrap(),
            _ => stream.write_all(b"GET /metrics HTTP/1.1\r\n\r\n").unwrap(),
        }
        idlers.push(stream);
    }
    let begin = Instant::now();
    assert!(get(&server).ends_with("# EOF\n"));
    // One thread answers the earlier clients, each once; a busy machine needs a few times as long.
    let longest = SERVED + once * 150 * 4;
    assert!(
        begin.elapsed() < longest,
        "{:?}, {once:?} each",
        begin.elapsed()
    );
    // Other tests run at the same time and may start a few threads.
    assert!(threads() < before + 20);
    assert!(shared.try_lock().is_ok());
    // In the end all clients are closed.
    for mut stream in idlers {
        stream.set_read_timeout(Some(HANGS)).unwrap();
        let mut rest = Vec::new();
        let kind = stream.read_to_end(&mut rest).map_err(|error| error.kind());
        assert!(matches!(kind, Ok(_) | Err(ErrorKind::ConnectionReset)));
    }
}

#[test]
fn a_request_without_end_is_ended() {
    let (server, _shared) = serve(snapshot());
    let mut stream = TcpStream::connect(server.address()).unwrap();
    let header = [b'x'; 4096];
    let begin = Instant::now();
    // The server answers after 8 KiB and closes the connection after another MiB.
    while stream.write_all(&header).is_ok() {
        assert!(begin.elapsed() < HANGS);
    }
    // A client that sends one byte a second is closed, too.
    let mut stream = TcpStream::connect(server.address()).unwrap();
    let begin = Instant::now();
    while stream.write_all(b"x").is_ok() {
        assert!(begin.elapsed() < HANGS);
        std::thread::sleep(Duration::from_millis(200));
    }
    assert!(begin.elapsed() > Duration::from_secs(4));
}

#[test]
fn a_client_that_stops_sending_is_answered() {
    let (server, _shared) = serve(snapshot());
    let mut stream = TcpStream::connect(server.address()).unwrap();
    stream.write_all(b"GET /metrics HTTP/1.0\n\n").unwrap();
    stream.shutdown(Shutdown::Write).unwrap();
    assert!(read(stream).ends_with("# EOF\n"));
}

#[test]
fn a_server_that_is_dropped_is_gone() {
    let (server, shared) = serve(snapshot());
    let address = server.address();
    let taken = Server::start(address, String::new(), Arc::clone(&shared));
    let error = taken.unwrap_err();
    assert!(matches!(error, ServerError::Listen { .. }));
    assert!(error.to_string().contains(&address.to_string()));
    let _silent = TcpStream::connect(address).unwrap();
    drop(server);
    // Another program may get the port at once; the server's thread has ended and released its snapshot.
    assert_eq!(Arc::strong_count(&shared), 1);
}

/// The names of metrics in a text; those of recording rules have a colon.
fn names(text: &str) -> BTreeSet<String> {
    let part = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == ':';
    text.split(|c| !part(c))
        .map(|word| word.trim_end_matches(':'))
        .filter(|word| word.contains("gpufrac_"))
        .map(family)
        .collect()
}

fn rendered() -> BTreeSet<String> {
    let text = render(&snapshot(), "gn01");
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    let names = lines.filter_map(|line| line.split('{').next());
    names.map(family).collect()
}

/// The name without what a histogram adds to it.
fn family(name: &str) -> String {
    let ends = ["_bucket", "_sum", "_count"];
    let family = ends.iter().find_map(|end| name.strip_suffix(end));
    let family = family.filter(|family| family.ends_with("_seconds"));
    family.unwrap_or(name).to_owned()
}

/// Promise (reaper): Prometheus reads the metrics, alerts fire, and each query of the two dashboards, of nodes and of
/// the cluster, has an answer.
/// With `alerts_fire_when_they_should`, `the_dashboards_ask_for_what_there_is`,
/// `prometheus_answers_every_query_of_the_dashboards`, `grafanas_own_types_take_the_dashboards`.
#[test]
fn prometheus_reads_what_is_served() {
    let names = "a \"b\" \\ c\nd é";
    let other = SliceMetrics {
        user: names.to_owned(),
        idle_seconds: 1e9,
        ..slice(19)
    };
    let mut all = snapshot();
    all.slices.push(other);
    let (server, shared) = serve(all);
    let mut prometheus = test_seed::needed(Prometheus::start(&[server.address()]));
    let value = |prometheus: &Prometheus, query: &str| -> Option<f64> {
        let result = prometheus.query(query).unwrap();
        let text = result.first()?["value"][1].as_str().unwrap().to_owned();
        Some(text.parse().unwrap())
    };
    prometheus.wait("it was read", |prometheus| {
        value(prometheus, "up{job=\"gpufrac\"}") == Some(1.0)
    });
    for (query, expected) in [
        ("gpufrac_leases", Some(3.0)),
        ("gpufrac_slice_fraction_ratio{jobid=\"17\"}", Some(0.5)),
        ("gpufrac_slice_activity_ratio{jobid=\"18\"}", None),
        (
            "gpufrac_slice_memory_bytes{device=\"MIG-17\"}",
            Some(1073741824.0),
        ),
        ("gpufrac_slice_idle_seconds{jobid=\"18\"}", Some(1234.5)),
        ("gpufrac_reaper_reclaimed_slice_seconds_total", Some(7200.5)),
        (
            "gpufrac_reaper_warnings_total{stall=\"over-share\"}",
            Some(4.0),
        ),
        ("gpufrac_reaper_breaker_open{scope=\"node\"}", Some(1.0)),
    ] {
        assert_eq!(value(&prometheus, query), expected, "{query}");
    }
    let info = prometheus
        .query("gpufrac_slice_info{jobid=\"19\"}")
        .unwrap();
    let labels = &info[0]["metric"];
    assert_eq!(labels["user"], names);
    // The target's own label `job` does not collide with Slurm's job.
    assert_eq!(labels["job"], "gpufrac");
    assert_eq!(labels["node"], "gn01");
    let told = prometheus.query("{__name__=~\"gpufrac_.*\"}").unwrap();
    let told = told
        .iter()
        .map(|series| series["metric"]["__name__"].as_str());
    let told: BTreeSet<String> = told.flatten().map(family).collect();
    assert_eq!(told, rendered());
    types_and_units_are_known(&prometheus);
    rules_are_evaluated(&mut prometheus);

    // An ended job is no longer in the answer.
    shared.lock().unwrap().slices.clear();
    prometheus.wait("the slices are gone", |prometheus| {
        value(prometheus, "gpufrac_slice_idle_seconds").is_none()
    });
}

fn types_and_units_are_known(prometheus: &Prometheus) {
    let metadata = prometheus.ask("metadata").unwrap();
    for (name, kind, unit) in [
        ("gpufrac_slice", "info", ""),
        ("gpufrac_slice_activity_ratio", "gauge", "ratio"),
        ("gpufrac_slice_memory_limit_bytes", "gauge", "bytes"),
        (
            "gpufrac_reaper_reclaimed_slice_seconds",
            "counter",
            "seconds",
        ),
        ("gpufrac_reaper_rounds", "counter", ""),
    ] {
        let told = &metadata[name][0];
        assert_eq!(told["type"], kind, "{name}");
        assert_eq!(told["unit"], unit, "{name}");
    }
}

fn rules_are_evaluated(prometheus: &mut Prometheus) {
    let rules = |prometheus: &Prometheus| -> Vec<Value> {
        let data = prometheus.ask("rules").unwrap();
        let groups = data["groups"].as_array().unwrap().iter();
        let rules = groups.flat_map(|group| group["rules"].as_array().unwrap().clone());
        rules.collect()
    };
    prometheus.wait("the rules were evaluated", |prometheus| {
        let rules = rules(prometheus);
        rules.iter().all(|rule| rule["health"] != "unknown")
    });
    let mut known = rendered();
    for rule in rules(prometheus) {
        assert_eq!(rule["health"], "ok", "{rule}");
        if rule["type"] == "recording" {
            known.insert(rule["name"].as_str().unwrap().to_owned());
        }
    }
    let text = fs::read_to_string(etc("prometheus-rules.yml")).unwrap();
    assert_eq!(names(&text).difference(&known).next(), None);
    let test = fs::read_to_string(etc("prometheus-rules.test.yml")).unwrap();
    assert_eq!(names(&test).difference(&known).next(), None);
}

#[test]
fn alerts_fire_when_they_should() {
    let promtool = test_seed::needed(tools::program("promtool"));
    let in_etc = |words: [&str; 3]| {
        let mut command = Command::new(&promtool);
        tools::run(command.args(words).current_dir(etc("")))
    };
    in_etc(["check", "rules", "prometheus-rules.yml"]).unwrap();
    in_etc(["test", "rules", "prometheus-rules.test.yml"]).unwrap();
    // Each alert is tested, once when it fires and once when it does not.
    let rules = fs::read_to_string(etc("prometheus-rules.yml")).unwrap();
    let test = fs::read_to_string(etc("prometheus-rules.test.yml")).unwrap();
    let alerts = rules
        .lines()
        .filter_map(|line| line.trim().strip_prefix("- alert: "));
    for alert in alerts {
        let name = format!("alertname: {alert}\n");
        let after = test.split(name.as_str()).skip(1);
        let mut fires = after.map(|text| {
            let case = text.split("- alertname: ").next().unwrap();
            case.contains("exp_alerts:")
        });
        assert!(fires.clone().any(|fires| fires), "{alert}");
        assert!(fires.any(|fires| !fires), "{alert}");
    }
}

/// The dashboards: of nodes and their slices, and of the cluster.
const DASHBOARDS: [&str; 2] = ["grafana-dashboard.json", "grafana-cluster.json"];

/// Every query of a dashboard, with values for its variables.
fn queries(dashboard: &Value) -> Vec<String> {
    let panels = dashboard["panels"].as_array().unwrap().iter();
    let targets = panels
        .filter_map(|panel| panel["targets"].as_array())
        .flatten();
    let queries = targets.map(|target| {
        let query = target["expr"].as_str().unwrap();
        let query = query.replace("$__rate_interval", "5m");
        let query = query.replace("$__range", "1h");
        let query = query.replace("$node", ".*").replace("$pool", ".*");
        query.replace("$top", "10").replace("$idle", "900")
    });
    queries.collect()
}

fn dashboard(name: &str) -> Value {
    serde_json::from_str(&fs::read_to_string(etc(name)).unwrap()).unwrap()
}

/// The names that recording rules give.
fn recorded() -> BTreeSet<String> {
    let rules = fs::read_to_string(etc("prometheus-rules.yml")).unwrap();
    let rules = rules.lines();
    let records = rules.filter_map(|line| line.trim().strip_prefix("- record: "));
    records.map(str::to_owned).collect()
}

#[test]
fn the_dashboards_ask_for_what_there_is() {
    let rendered = rendered();
    let known: BTreeSet<String> = rendered.union(&recorded()).cloned().collect();
    let mut asked = BTreeSet::new();
    for name in DASHBOARDS {
        let dashboard = dashboard(name);
        for query in queries(&dashboard) {
            assert!(!query.contains('$'), "an unknown variable: {query}");
            asked.extend(names(&query));
        }
        assert_eq!(asked.difference(&known).next(), None, "{name}");
        let variables = dashboard["templating"]["list"].as_array().unwrap().iter();
        for variable in variables.filter(|variable| variable["type"] == "query") {
            let names = names(variable["query"].as_str().unwrap());
            assert!(!names.is_empty() && names.is_subset(&rendered));
        }
    }
    // The dashboards show every metric.
    assert_eq!(rendered.difference(&asked).next(), None);
}

#[test]
fn prometheus_answers_every_query_of_the_dashboards() {
    let mut idle = snapshot();
    // A value for the panels that only show idle slices.
    idle.slices[0].idle_seconds = 1000.0;
    let (server, shared) = serve(idle);
    let mut prometheus = test_seed::needed(Prometheus::start(&[server.address()]));
    // A rate needs two scrapes.
    prometheus.wait("it was read twice", |prometheus| {
        shared.lock().unwrap().totals.rounds += 1;
        let read = prometheus.query("count_over_time(gpufrac_leases[1h]) > 1");
        !read.unwrap().is_empty()
    });
    for name in DASHBOARDS {
        for query in queries(&dashboard(name)) {
            // Recording rules are evaluated after a scrape, and so are alerts.
            prometheus.wait(&format!("there is something to show: {query}"), |it| {
                !it.query(&query).unwrap().is_empty()
            });
        }
    }
    let value = |query: &str| -> f64 {
        let result = prometheus.query(query).unwrap();
        let text = result[0]["value"][1].as_str().unwrap().to_owned();
        text.parse().unwrap()
    };
    assert_eq!(value("pool:gpufrac_gpus:sum{pool=\"h100\"}"), 4.0);
    assert_eq!(value("pool:gpufrac_gpus_held:sum{pool=\"h100\"}"), 0.53);
    assert_eq!(value("pool:gpufrac_gpus_held:sum{pool=\"whole\"}"), 0.0);
    assert_eq!(value("sum(gpufrac_room_jobs{fraction=\"0.25\"})"), 9.0);
}

#[test]
fn grafanas_own_types_take_the_dashboards() {
    let python = test_seed::needed(tools::python());
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/metrics/dashboard.py");
    for name in DASHBOARDS {
        let mut command = Command::new(&python);
        tools::run(command.arg(&script).arg(etc(name))).unwrap();
    }
}
