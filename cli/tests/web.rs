//! The pages of `gpufrac web` in Debian's Chromium: without a window, on a phone and on a desktop, on a light and on a
//! dark screen.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Output, Stdio};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use base64::Engine as _;
use gpufrac_view::NodeStatus;
use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeValLike as _;
use serde_json::{Value, json};
use test_examples::{CONFIG, NOW, nodes};

/// Judges the page it is in, and leaves what it found in the page's body.
const JUDGE: &str = include_str!("web/judge.js");

fn now() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap()
        .as_secs()
}

/// Usage records: of each day from 00:00 to 12:00 UTC half of a GPU, busy for a quarter of the time.
fn records() -> String {
    const DAY: u64 = 86_400;
    let first = now() / DAY - 9;
    let boot = |from: u64, until: u64| json!({"id": "b", "from": from - first * DAY, "until": until - first * DAY});
    let mut lines = String::new();
    for day in first..=first + 9 {
        let (from, noon, until) = (day * DAY, day * DAY + DAY / 2, (day + 1) * DAY);
        let gpu = json!({
            "version": 2, "node": "gn0001", "gpu_uuid": "GPU-1", "pool": "h100", "from": from, "until": until,
            "boot": boot(from, until), "devices": [[0, 50], [1, 50]], "menu": [13, 25, 50],
        });
        // A line with a kind begins with it.
        lines += &gpu.to_string().replacen('{', "{\"kind\":\"gpu\",", 1);
        lines.push('\n');
        let used =
            json!({"busy": 10_800, "idle": 32_400, "unknown": 0, "suspended": 0, "source": "gpm"});
        let slice = json!({
            "version": 2, "job": day, "restart_count": 0, "user": "ada", "uid": 1001, "account": null, "partition": "gpu",
            "node": "gn0001", "pool": "h100", "fraction": "0.5", "units": 50, "profile": "4g.40gb", "gpu_uuid": "GPU-1",
            "device": 0, "start": from, "end": noon, "seconds": noon - from, "boot": boot(from, noon), "used": used,
        });
        lines += &format!("{slice}\n");
    }
    lines
}

struct Site {
    folder: tempfile::TempDir,
}

impl Site {
    fn new(nodes: &[NodeStatus]) -> Site {
        let site = Site {
            folder: tempfile::tempdir().unwrap(),
        };
        fs::create_dir(site.path("status")).unwrap();
        for node in nodes {
            site.put(node);
        }
        site
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// A node of the generator, as if it were written now.
    fn put(&self, node: &NodeStatus) {
        let mut node = node.clone();
        let later = now() - NOW;
        node.written += later;
        for slice in node.gpus.iter_mut().flat_map(|gpu| &mut gpu.slices) {
            slice.since += later;
            if let Some(ends) = slice.usage.as_mut().and_then(|usage| usage.ends.as_mut()) {
                *ends += later;
            }
        }
        let path = self.path("status").join(format!("{}.json", node.node));
        fs::write(path, serde_json::to_string(&node).unwrap()).unwrap();
    }

    fn export(&self) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_gpufrac"));
        command.args(["web", "--export"]).arg(self.path("pages"));
        command.arg("--from").arg(self.path("status"));
        if self.path("gpufrac.toml").exists() {
            let path = std::env::var("PATH").unwrap();
            let path = format!("{}:{path}", self.path("bin").display());
            command.env("PATH", path).env("TZ", "UTC");
        } else {
            command.arg("--no-slurm");
        }
        command
            .env("GPUFRAC_CONFIG", self.path("gpufrac.toml"))
            .output()
            .unwrap()
    }

    /// A site with waiting requests, and with a GPU that was half in use in the last days.
    fn with_slurm(&self) {
        let root = self.folder.path().display();
        let paths = format!("[paths]\nrun = \"{root}/run\"\nstate = \"{root}/state\"\n");
        fs::write(
            self.path("gpufrac.toml"),
            CONFIG.replacen('\n', &format!("\n{paths}"), 1),
        )
        .unwrap();
        fs::create_dir(self.path("bin")).unwrap();
        let starts = now() + 3600;
        let job = |id: u32, units: u32, reason: &str, starts: &str| {
            format!(
                "{id}|{id}|gpu|PENDING|1|1790000000|{starts}||gres/gpufrac:{units},gres/shard:{units}|N/A|{reason}|ada"
            )
        };
        let lines = [
            job(1, 25, "Priority", "N/A"),
            job(2, 25, "Priority", &starts.to_string()),
            job(3, 50, "Resources", "N/A"),
        ];
        let script = format!(
            "#!/bin/sh\n[ \"$SLURM_TIME_FORMAT\" = %s ] && [ \"$1\" = --array ] || exit 1\ncat <<'END'\n{}\nEND\n",
            lines.join("\n")
        );
        let sinfo = "#!/bin/sh\necho 'gn0001|mixed|||none'\necho 'gn0002|drained|||a fan'\n";
        for (program, script) in [("squeue", &*script), ("sinfo", sinfo)] {
            let path = self.path("bin").join(program);
            fs::write(&path, script).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        }
        fs::create_dir(self.path("state")).unwrap();
        fs::write(self.path("state/usage.jsonl"), records()).unwrap();
    }

    fn exported(&self) {
        let output = self.export();
        assert!(
            output.status.success(),
            "{}",
            String::from_utf8_lossy(&output.stderr)
        );
    }

    fn page(&self, name: &str) -> String {
        fs::read_to_string(self.path("pages").join(name)).unwrap()
    }

    fn names(&self, folder: &str) -> Vec<String> {
        let entries = fs::read_dir(self.path("pages").join(folder)).unwrap();
        let mut names: Vec<String> = entries
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }
}

/// Chromium without a window, which takes commands of the DevTools protocol through a pipe.
struct Browser {
    child: Child,
    to: ChildStdin,
    from: BufReader<ChildStdout>,
    _profile: tempfile::TempDir,
    session: Option<String>,
    last: u64,
}

impl Browser {
    fn start() -> Result<Browser, String> {
        let profile = tempfile::tempdir().unwrap();
        let line = "exec chromium --headless --no-sandbox --disable-gpu --disable-dev-shm-usage --remote-debugging-pipe \
                    --user-data-dir=\"$0\" about:blank 3<&0 4>&1 </dev/null >/dev/null 2>&1";
        let has_it = Command::new("sh")
            .args(["-c", "command -v chromium"])
            .output()
            .unwrap();
        if !has_it.status.success() {
            return Err("install Debian's package chromium".to_owned());
        }
        let mut child = Command::new("sh")
            .args(["-c", line])
            .arg(profile.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut browser = Browser {
            to: child.stdin.take().unwrap(),
            from: BufReader::new(child.stdout.take().unwrap()),
            child,
            _profile: profile,
            session: None,
            last: 0,
        };
        let target = browser.call("Target.createTarget", json!({"url": "about:blank"}));
        let attached = browser.call(
            "Target.attachToTarget",
            json!({"targetId": target["targetId"], "flatten": true}),
        );
        browser.session = attached["sessionId"].as_str().map(str::to_owned);
        browser.call("Page.enable", json!({}));
        browser.call(
            "Emulation.setFocusEmulationEnabled",
            json!({"enabled": true}),
        );
        Ok(browser)
    }

    fn message(&mut self) -> Value {
        let mut bytes = Vec::new();
        self.from.read_until(0, &mut bytes).unwrap();
        assert_eq!(bytes.pop(), Some(0), "Chromium ended");
        serde_json::from_slice(&bytes).unwrap()
    }

    fn call(&mut self, method: &str, params: Value) -> Value {
        self.last += 1;
        let mut command = json!({"id": self.last, "method": method, "params": params});
        if let Some(session) = &self.session {
            command["sessionId"] = session.as_str().into();
        }
        self.to
            .write_all(format!("{command}\0").as_bytes())
            .unwrap();
        loop {
            let mut message = self.message();
            if message["id"] == self.last {
                assert!(message["error"].is_null(), "{method}: {}", message["error"]);
                return message["result"].take();
            }
        }
    }

    /// Shows a page on a screen of this width.
    fn open(&mut self, page: &Path, width: u32, dark: bool) {
        let metrics =
            json!({"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": width < 600});
        self.call("Emulation.setDeviceMetricsOverride", metrics);
        let scheme = if dark { "dark" } else { "light" };
        let media = json!({"features": [{"name": "prefers-color-scheme", "value": scheme}]});
        self.call("Emulation.setEmulatedMedia", media);
        let url = format!("file://{}", page.display());
        let id = self.last + 1;
        self.to
            .write_all(format!("{}\0", json!({"id": id, "method": "Page.navigate", "params": {"url": url}, "sessionId": self.session})).as_bytes())
            .unwrap();
        self.last = id;
        loop {
            if self.message()["method"] == "Page.loadEventFired" {
                return;
            }
        }
    }

    fn evaluate(&mut self, expression: &str) -> Value {
        let params = json!({"expression": expression, "returnByValue": true});
        let mut said = self.call("Runtime.evaluate", params);
        assert!(said["exceptionDetails"].is_null(), "{said}");
        said["result"]["value"].take()
    }

    fn press(&mut self, key: &str, code: u32) {
        for kind in ["keyDown", "keyUp"] {
            let text = if key == "Enter" && kind == "keyDown" { "\r" } else { "" };
            let params = json!({"type": kind, "key": key, "code": key, "windowsVirtualKeyCode": code, "text": text});
            self.call("Input.dispatchKeyEvent", params);
        }
    }

    /// A picture of the screen, as PNG.
    fn png(&mut self) -> Vec<u8> {
        let said = self.call(
            "Page.captureScreenshot",
            json!({"captureBeyondViewport": false}),
        );
        let text = said["data"].as_str().unwrap();
        base64::engine::general_purpose::STANDARD
            .decode(text)
            .unwrap()
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A page of each kind.
fn kinds(site: &Site) -> Vec<String> {
    let has_chart = |name: &String| site.page(&format!("job/{name}")).contains("d=\"M");
    let mut jobs = site
        .names("job")
        .into_iter()
        .filter(|name| name.ends_with(".html"));
    let job = jobs.find(has_chart).unwrap();
    vec![
        "index.html".to_owned(),
        "jobs.html".to_owned(),
        "node/gn0001.html".to_owned(),
        format!("job/{job}"),
    ]
}

/// Promise (admins): the pages of `gpufrac web` can be read on phones and desktops, on light and dark screens, and by
/// keyboard; they load nothing.
/// With `keys_alone_lead_through_the_pages`, `texts_and_bars_stand_out_on_light_and_dark_screens`.
#[test]
fn pages_are_readable_on_phones_and_desktops_light_and_dark() {
    let mut browser = test_seed::needed(Browser::start());
    let mut all = nodes(12, 1);
    let site = Site::new(&all);
    site.with_slurm();
    // Charts with several samples.
    for round in 0..12_u64 {
        for (at, slice) in (0_u64..).zip(
            all.iter_mut()
                .flat_map(|node| &mut node.gpus)
                .flat_map(|gpu| &mut gpu.slices),
        ) {
            if let Some(usage) = &mut slice.usage {
                usage.activity = Some((at * 31 + round * 17) as f64 % 100.0 / 100.0);
            }
        }
        for node in &mut all {
            node.written += 5;
            site.put(node);
        }
        site.exported();
    }
    for name in kinds(&site) {
        for (width, dark) in [(390, false), (390, true), (1280, false), (1280, true)] {
            browser.open(&site.path("pages").join(&name), width, dark);
            let judged = browser.evaluate(JUDGE);
            assert_eq!(judged["found"], json!([]), "{name} {width} {judged}");
            assert_eq!(
                (&judged["width"], &judged["dark"]),
                (&json!(width), &json!(dark)),
                "{name}"
            );
            assert!(
                judged["letters"].as_u64().unwrap() > 100,
                "{name}: {judged}"
            );
            if let Some(folder) = std::env::var_os("GPUFRAC_PICTURES") {
                let name = name.replace('/', "-").replace(".html", "");
                let path = PathBuf::from(folder).join(format!(
                    "web-{name}-{width}-{}.png",
                    if dark { "dark" } else { "light" }
                ));
                fs::write(path, browser.png()).unwrap();
            }
        }
    }
}

/// The map of twelve nodes, at a fixed time.
fn page_of_the_manual() -> String {
    let waits = |size: &str, reason: &str, jobs: u32, starts: Option<u64>| gpufrac_web::Waiting {
        partition: "gpu".to_owned(),
        size: size.to_owned(),
        reason: reason.to_owned(),
        jobs,
        starts,
    };
    let day = |number: u32| gpufrac_web::Day {
        name: format!("09-{number}"),
        busy: 310.0 + f64::from(number),
        idle: 120.0,
        unknown: 6.0,
        free: 90.0,
        down: 24.0,
    };
    let site = gpufrac_web::Site {
        now: NOW + 20,
        build: "0.1.0".to_owned(),
        nodes: nodes(12, 1).into_iter().map(Arc::new).collect(),
        closed: BTreeMap::new(),
        histories: BTreeMap::new(),
        waiting: Some(vec![
            waits("0.25", "Priority", 2, Some(NOW + 3600)),
            waits("0.5", "Resources", 1, None),
        ]),
        week: Some((14..21).map(day).collect()),
    };
    let mut files = gpufrac_web::files(&site).into_iter();
    files.find(|file| file.name == "index.html").unwrap().text
}

/// Promise (admins): the picture of the map in the manual is of the page that `gpufrac web` writes.
// Fonts differ by machine, so the page is compared, and not its picture. `UPDATE_EXPECT=1` writes both; it needs
// Chromium.
#[test]
fn the_picture_of_the_manual_is_of_this_page() {
    let page = page_of_the_manual();
    if std::env::var_os("UPDATE_EXPECT").is_some() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("index.html");
        fs::write(&path, &page).unwrap();
        let mut browser = Browser::start().unwrap();
        browser.open(&path, 1280, false);
        let images = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/images");
        fs::write(images.join("web-map.png"), browser.png()).unwrap();
    }
    expect_test::expect_file!["web/map.html"].assert_eq(&page);
}

#[test]
fn keys_alone_lead_through_the_pages() {
    let mut browser = test_seed::needed(Browser::start());
    let site = Site::new(&nodes(3, 2));
    site.exported();
    browser.open(&site.path("pages/index.html"), 1280, false);
    let now = "[document.activeElement.textContent, getComputedStyle(document.activeElement).outlineStyle, document.activeElement.matches(':focus-visible')]";
    let mut reached = Vec::new();
    for _ in 0..12 {
        browser.press("Tab", 9);
        let at = browser.evaluate(now);
        assert_eq!(at[2], true, "the focus is seen: {at}");
        reached.push(at[0].as_str().unwrap().to_owned());
        if reached.last().unwrap() == "gn0001" {
            break;
        }
    }
    assert_eq!(reached[..3], ["Skip to the content", "Cluster", "Jobs"]);
    assert_eq!(reached.last().unwrap(), "gn0001");
    browser.press("Enter", 13);
    let followed = (0..600).any(|_| {
        std::thread::sleep(Duration::from_millis(100));
        browser.evaluate("document.title") == "Node gn0001"
    });
    assert!(followed, "the link was not followed");
}

/// Promise (admins): `gpufrac web` shows waiting requests by size and the GPU-hours of seven days.
#[test]
fn the_map_has_waiting_requests_and_the_last_days() {
    let site = Site::new(&nodes(2, 8));
    site.with_slurm();
    site.exported();
    let cluster: Value = serde_json::from_str(&site.page("cluster.json")).unwrap();
    let waiting = cluster["waiting"].as_array().unwrap();
    let said: Vec<String> = waiting
        .iter()
        .map(|one| {
            format!(
                "{} {} {} {}",
                one["size"],
                one["reason"],
                one["jobs"],
                one["starts"].is_u64()
            )
        })
        .collect();
    assert_eq!(
        said,
        [
            "\"0.25\" \"Priority\" 2 true",
            "\"0.5\" \"Resources\" 1 false"
        ]
    );
    let closed = cluster["nodes"].as_array().unwrap().iter();
    let closed: Vec<&Value> = closed.map(|node| &node["closed"]).collect();
    assert_eq!(closed, [&Value::Null, &json!("drained")]);
    let week = cluster["week"].as_array().unwrap();
    assert_eq!(week.len(), 7);
    // A GPU for a day; half of it for twelve hours.
    for (key, hours) in [
        ("busy", 1.5),
        ("idle", 4.5),
        ("free", 18.0),
        ("down", 0.0),
        ("unknown", 0.0),
    ] {
        assert_eq!(week[3][key], hours, "{key}: {}", week[3]);
    }
    let page = site.page("index.html");
    for text in ["Priority", "0.25", "GPU-hours of each day", "UTC"] {
        assert!(page.contains(text), "{text}");
    }
    // Without an answer of Slurm the other parts are there.
    fs::write(site.path("bin/squeue"), "#!/bin/sh\nexit 1\n").unwrap();
    assert_eq!(site.export().status.code(), Some(1));
    assert!(site.page("index.html").contains("Slurm gave no answer"));
}

/// Promise (admins): `gpufrac web --export` writes files whole, removes old pages, and leaves a folder with other files
/// alone; the pages of 1,000 nodes are written within a minute.
/// With `a_folder_with_other_files_is_left_alone`, `the_map_of_a_thousand_nodes_is_written_in_time`.
#[test]
fn old_pages_are_removed_and_each_export_adds_a_sample() {
    let mut all = nodes(3, 3);
    let site = Site::new(&all);
    site.exported();
    let first = site.names("job");
    assert!(
        first.len() > 4 && first.len().is_multiple_of(2),
        "a page and a file of each job: {first:?}"
    );
    assert_eq!(site.names("node").len(), 6);
    for node in &mut all {
        node.written += 60;
        site.put(node);
    }
    fs::remove_file(site.path("status").join(format!("{}.json", all[2].node))).unwrap();
    site.exported();
    assert_eq!(site.names("node").len(), 4);
    let jobs = |all: &[NodeStatus]| {
        let slices = all
            .iter()
            .flat_map(|node| &node.gpus)
            .flat_map(|gpu| &gpu.slices);
        let owners = slices.filter_map(|slice| slice.owner.clone());
        owners
            .map(|owner| owner.job.0)
            .collect::<std::collections::BTreeSet<u32>>()
    };
    let (left, gone) = (jobs(&all[..2]), jobs(&all[2..]));
    for job in &left {
        let file: Value = serde_json::from_str(&site.page(&format!("job/{job}.json"))).unwrap();
        let points = file["history"]["points"].as_array().unwrap();
        assert!(points.len() >= 2, "{job}: {points:?}");
    }
    let names = site.names("job");
    for job in gone.difference(&left) {
        assert!(!names.contains(&format!("{job}.html")), "{job}");
    }
    // Nothing unfinished, and only root writes.
    for folder in ["", "node", "job"] {
        for name in site.names(folder) {
            let path = site.path("pages").join(folder).join(&name);
            let mode = fs::metadata(&path).unwrap().permissions().mode();
            assert!(
                !name.ends_with(".tmp") && mode & 0o022 == 0,
                "{name} {mode:o}"
            );
        }
    }
}

/// Promise (admins): texts of users are escaped in the pages of `gpufrac web`, and owners that Slurm hides are not in
/// them.
/// With `owners_that_slurm_hides_are_nowhere`.
#[test]
fn every_text_is_escaped_and_leads_nowhere_else() {
    let mut all = nodes(1, 4);
    let evil = "\"'><script>window.hostile=1</script><img src=http://example.org/x onerror=window.hostile=1>&amp;\u{202e}";
    all[0].build = evil.to_owned();
    let gpu = &mut all[0].gpus[0];
    gpu.model = evil.to_owned();
    gpu.pool = evil.to_owned();
    gpu.partitions = vec![evil.to_owned()];
    gpu.fault = Some(evil.to_owned());
    for room in &mut gpu.room {
        room.fraction = evil.to_owned();
    }
    for slice in all[0].gpus.iter_mut().flat_map(|gpu| &mut gpu.slices) {
        slice.kind = evil.to_owned();
        slice.state = evil.to_owned();
        slice.fraction = evil.to_owned();
        if let Some(owner) = &mut slice.owner {
            owner.user = evil.to_owned();
            owner.account = Some(evil.to_owned());
            owner.partition = evil.to_owned();
        }
    }
    let site = Site::new(&all);
    all[0].node = "../../<b>".to_owned();
    fs::write(
        site.path("status/evil.json"),
        serde_json::to_string(&all[0]).unwrap(),
    )
    .unwrap();
    site.exported();
    assert!(
        site.names("node").contains(&"_.___.._b_.html".to_owned()) || site.names("node").len() == 4
    );
    assert_eq!(
        fs::read_dir(site.folder.path()).unwrap().count(),
        2,
        "no file outside of the folder"
    );
    let mut pages = kinds(&site);
    pages.extend(
        site.names("node")
            .into_iter()
            .filter(|name| name.ends_with(".html"))
            .map(|name| format!("node/{name}")),
    );
    for page in &pages {
        let text = site.page(page);
        assert!(
            !text.contains("<script") && !text.contains("<img"),
            "{page}"
        );
        assert!(
            !text.contains("http://") && !text.contains("https://") || text.contains("&lt;img"),
            "{page}"
        );
        for attribute in text.split(['<', '>']).filter(|tag| tag.starts_with("a ")) {
            assert_eq!(attribute.matches('"').count() % 2, 0, "{attribute}");
            assert!(
                !attribute.contains(' ') || attribute.split(' ').count() <= 3,
                "{attribute}"
            );
        }
    }
    let mut browser = test_seed::needed(Browser::start());
    for page in &pages {
        browser.open(&site.path("pages").join(page), 390, false);
        let judged = browser.evaluate(JUDGE);
        assert_eq!(judged["found"], json!([]), "{page}");
    }
}

#[test]
fn owners_that_slurm_hides_are_nowhere() {
    let mut all = nodes(2, 5);
    for slice in all
        .iter_mut()
        .flat_map(|node| &mut node.gpus)
        .flat_map(|gpu| &mut gpu.slices)
    {
        slice.owner = None;
    }
    let site = Site::new(&all);
    site.exported();
    assert!(site.names("job").is_empty());
    assert!(site.page("jobs.html").contains("Slurm hides the jobs of"));
    assert!(site.page("node/gn0001.html").contains("hidden"));
}

#[test]
fn a_folder_with_other_files_is_left_alone() {
    let site = Site::new(&nodes(1, 6));
    fs::create_dir(site.path("pages")).unwrap();
    fs::write(site.path("pages/thesis.html"), "mine").unwrap();
    let output = site.export();
    assert_eq!(output.status.code(), Some(1));
    let errors = String::from_utf8(output.stderr).unwrap();
    assert!(errors.contains("has files of others"), "{errors}");
    assert_eq!(site.names(""), ["thesis.html"]);
}

#[test]
fn the_map_of_a_thousand_nodes_is_written_in_time() {
    let site = Site::new(&nodes(1000, 7));
    site.exported();
    let used = getrusage(UsageWho::RUSAGE_CHILDREN).unwrap();
    let seconds = (used.user_time() + used.system_time()).num_seconds();
    println!("1000 nodes: {seconds} s, {} files", site.names("job").len());
    // The daemon writes the pages each minute. Other load does not count.
    assert!(seconds < 60);
}
