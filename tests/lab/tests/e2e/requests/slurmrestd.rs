//! Submission by slurmrestd.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use gpufrac_lab::{JobId, Lab, LabError, Running, Slurm};

use super::counts;
use crate::share::{SITE, counted};
use crate::{HOLD, go};

/// The differences between releases.
struct Api {
    version: &'static str,
    /// slurmrestd's options to use only this version.
    options: &'static [&'static str],
    /// The key of a job's TRES per node.
    per_node: &'static str,
    /// Whether the script is a key of the job, and the environment a list.
    nested: bool,
    /// The key of the variables for prolog and epilog; None if clients cannot set it.
    spank: Option<&'static str>,
}

impl Api {
    fn of(slurm: &Slurm) -> Self {
        let latest = |version, options| Self {
            version,
            options,
            per_node: "tres_per_node",
            nested: true,
            spank: Some("spank_environment"),
        };
        match slurm.series().as_str() {
            "22.05" => Self {
                version: "v0.0.38",
                options: &["-s", "openapi/v0.0.38"],
                per_node: "gres",
                nested: false,
                spank: None,
            },
            "23.02" => latest("v0.0.39", &["-s", "openapi/v0.0.39"]),
            "23.11" => latest("v0.0.40", &["-s", "openapi/slurmctld", "-d", "v0.0.40"]),
            "24.05" => latest("v0.0.41", &["-s", "openapi/slurmctld", "-d", "v0.0.41"]),
            "24.11" => latest("v0.0.42", &["-s", "openapi/slurmctld", "-d", "v0.0.42"]),
            "25.05" => latest("v0.0.43", &["-s", "openapi/slurmctld", "-d", "v0.0.43"]),
            _ => latest("v0.0.44", &["-s", "openapi/slurmctld", "-d", "v0.0.44"]),
        }
    }

    /// The body of a submission; `more` are keys of the job.
    fn body(&self, work: &Path, tres: &str, more: &str) -> String {
        let script = format!("#!/bin/sh\\nenv | grep -E '^(CUDA_V|GPUFRAC_)'\\n{HOLD}\\n");
        let script = format!("\"script\": \"{script}\"");
        let forged = "SPANK_GPUFRAC=v1:units=50:mech=mig";
        let environment = match (self.nested, forged.split_once('=')) {
            (false, Some((name, value))) => {
                format!(r#"{{"PATH": "/usr/bin:/bin", "{name}": "{value}"}}"#)
            }
            _ => format!(r#"["PATH=/usr/bin:/bin", "{forged}"]"#),
        };
        let job = format!(
            r#""name": "rest", "tasks": 1, "{}": "{tres}", "current_working_directory": "{}", "environment": {environment}{more}"#,
            self.per_node,
            work.display(),
        );
        if self.nested {
            format!(r#"{{"job": {{{job}, {script}}}}}"#)
        } else {
            format!(r#"{{"job": {{{job}}}, {script}}}"#)
        }
    }
}

/// slurmrestd of a user, on the user's own socket.
struct Rest {
    api: Api,
    work: PathBuf,
    socket: PathBuf,
    daemon: Running,
}

impl Rest {
    fn start(lab: &Lab) -> Result<Self, LabError> {
        let api = Api::of(lab.slurm());
        let work = lab.folder().work();
        let socket = work.join("rest.socket");
        // It submits as the user who runs it, and refuses to run as root.
        let daemon = lab
            .command("slurmrestd")
            .user(&lab.users()[0])
            .args(["-a", "rest_auth/local"])
            .args(api.options)
            .args([format!("unix:{}", socket.display())])
            .spawn()?;
        lab.wait("slurmrestd listens", Duration::from_secs(60), || {
            Ok(UnixStream::connect(&socket).is_ok().then_some(()))
        })?;
        Ok(Self {
            api,
            work,
            socket,
            daemon,
        })
    }

    /// Submits a job; returns head and body of the answer.
    fn submit(&self, tres: &str, more: &str) -> (String, String) {
        let body = self.api.body(&self.work, tres, more);
        let request = format!(
            "POST /slurm/{}/job/submit HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\
             Content-Type: application/json\r\nAccept: application/json\r\nContent-Length: {}\r\n\r\n{body}",
            self.api.version,
            body.len()
        );
        let mut stream = UnixStream::connect(&self.socket).expect("slurmrestd listens");
        stream
            .set_read_timeout(Some(Duration::from_secs(60)))
            .expect("a deadline");
        stream
            .write_all(request.as_bytes())
            .expect("the request is sent");
        let mut answer = Vec::new();
        let mut bytes = [0; 4096];
        loop {
            match stream.read(&mut bytes) {
                Ok(0) => break,
                Ok(count) => answer.extend(&bytes[..count]),
                Err(error) => panic!("{error} after {}", String::from_utf8_lossy(&answer)),
            }
            if is_whole(&answer) {
                break;
            }
        }
        let answer = String::from_utf8_lossy(&answer).into_owned();
        let (head, body) = answer.split_once("\r\n\r\n").expect("an answer by HTTP");
        // slurmrestd of 22.05 writes further text after the body.
        let length = length_of(head).unwrap_or(body.len());
        (head.to_owned(), body[..length].to_owned())
    }

    /// The job of an answer, and the message to its user.
    fn taken(&self, tres: &str, more: &str) -> (JobId, String) {
        let (head, body) = self.submit(tres, more);
        let answer: serde_json::Value = serde_json::from_str(&body).expect("JSON");
        assert!(head.starts_with("HTTP/1.1 200"), "{head}\n{body}");
        let job = answer["job_id"]
            .as_u64()
            .and_then(|id| u32::try_from(id).ok());
        let told = answer["job_submit_user_msg"].as_str().unwrap_or_default();
        (
            JobId(job.unwrap_or_else(|| panic!("no job in {body}"))),
            told.to_owned(),
        )
    }
}

impl Drop for Rest {
    fn drop(&mut self) {
        let pid = i32::try_from(self.daemon.pid()).expect("a pid");
        let pid = nix::unistd::Pid::from_raw(pid);
        // It may have ended already, which is fine.
        let _ = nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGTERM);
    }
}

/// Whether the answer is as long as it says.
fn is_whole(answer: &[u8]) -> bool {
    let text = String::from_utf8_lossy(answer);
    let Some((head, body)) = text.split_once("\r\n\r\n") else {
        return false;
    };
    length_of(head).is_some_and(|length| body.len() >= length)
}

fn length_of(head: &str) -> Option<usize> {
    head.lines().find_map(|line| {
        let (name, value) = line.split_once(':')?;
        let length = value.trim().parse().ok();
        length.filter(|_| name.eq_ignore_ascii_case("content-length"))
    })
}

/// Promise (users): requests through slurmrestd are counted, rounded and refused like others, and forged entries are
/// dropped.
#[test]
fn a_fraction_by_rest_is_counted_rounded_and_refused_like_any_other() -> Result<(), LabError> {
    let builder = Lab::builder().slurm_conf_extra(SITE);
    // slurmrestd of 23.02 takes a job and answers with an error without slurmdbd.
    let needs_accounting = crate::since(23, 2)? && !crate::since(23, 11)?;
    let builder = if needs_accounting { builder.accounting() } else { builder };
    let lab = builder.start()?;
    let node = &lab.nodes()[0];
    let rest = Rest::start(&lab)?;

    let (job, told) = rest.taken("gpufrac:0.2", "");
    for words in [
        "gpufrac: rounded up from 0.2 to 0.25 (2g.20gb, 19.6 GiB)",
        "2 CPUs and 4000 MB with it",
    ] {
        assert!(told.contains(words), "no {words:?} in {told}");
    }
    assert_eq!(counts(&lab, job)?, "gpufrac:25,shard:25");
    let mut jobs = vec![job];
    if let Some(key) = rest.api.spank {
        // A forged variable for the prolog, by its own key.
        let forged = format!(r#", "{key}": ["SPANK_GPUFRAC=v1:units=50:mech=mig"]"#);
        // 23.02 has another form, and refuses this one itself.
        let gres = if lab.slurm().since(23, 11) { "gres/" } else { "gres:" };
        for request in ["gpufrac:0.25", "gpu:0.25"] {
            jobs.push(rest.taken(&format!("{gres}{request}"), &forged).0);
        }
    }
    for &job in &jobs {
        lab.wait_for_state(job, &["RUNNING"])?;
        let shown = lab.job(job)?;
        assert_eq!(counted(&shown), (2, 4000), "{shown:?}");
        assert!(
            shown.field("UserId").starts_with(&lab.users()[0].name),
            "{shown:?}"
        );
        let slice = lab.slice(node, job)?;
        assert_eq!((slice.lease.units.0, slice.instance.size), (25, 2));
    }
    go(&lab)?;
    for &job in &jobs {
        assert_eq!(lab.wait_for_end(job)?.state(), "COMPLETED");
        let output = lab.output(job)?;
        assert!(output.contains("CUDA_VISIBLE_DEVICES=MIG-"), "{output}");
        assert!(output.contains("GPUFRAC_FRACTION=0.25"), "{output}");
    }
    for tres in [
        "gpufrac:1.5",
        "gpufrac:1",
        "gpufrac:25",
        "gpu:1",
        "shard:25",
    ] {
        let (_, body) = rest.submit(tres, "");
        // The reason is in slurmrestd's log: libslurm writes it there and only returns the code.
        assert!(
            body.contains("Invalid generic resource (gres) specification"),
            "{tres}: {body}"
        );
        let answer: serde_json::Value = serde_json::from_str(&body).expect("JSON");
        assert_eq!(answer["job_id"].as_u64().unwrap_or(0), 0, "{tres}: {body}");
    }
    lab.expect_nothing_left()
}
