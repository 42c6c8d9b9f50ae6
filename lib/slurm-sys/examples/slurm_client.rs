//! Calls one function of [`slurm_sys::client`] for a job and prints the answer: `slurm_client WORD JOB`.
//!
//! The end-to-end tests run it as a program, because libslurm reads the configuration once in each process, and
//! because the layout of Slurm's structures is that of the headers of this build.

use std::fmt::Debug;
use std::process::ExitCode;

use slurm_sys::client::{Client, ClientError, JobInfo, JobState};

/// SIGUSR1 on Linux (signal(7)).
const SIGUSR1: u8 = 10;

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [word, job] = words.as_slice() else {
        eprintln!(
            "usage: slurm_client limits|show|comment|tell-script|tell-steps|notify|cancel|requeue JOB"
        );
        return ExitCode::from(2);
    };
    let answer = match (Client::connect(), job.parse()) {
        (Ok(client), Ok(job)) => answer(&client, word, job),
        (Err(error), _) => Err(error.to_string()),
        (_, Err(error)) => Err(format!("`{job}` is not the number of a job: {error}")),
    };
    match answer {
        Ok(answer) => {
            println!("{answer}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

/// Slurm's answer or its error.
fn answer(client: &Client, word: &str, job_id: u32) -> Result<String, String> {
    if word == "limits" {
        // This question is about no job.
        let limits = client.hook_limits().ok_or("no slurm_conf")?;
        return Ok(format!(
            "prolog={:?} epilog={:?}",
            limits.prolog, limits.epilog
        ));
    }
    let job = match client.known_job(job_id) {
        Ok(job) => job,
        Err(error) => return Ok(format!("{error:?}")),
    };
    let done = match word {
        "show" => return Ok(show(&job)),
        "comment" => client.set_admin_comment(&job, "from-the-test"),
        "tell-script" => client.signal(&job, SIGUSR1, true),
        "tell-steps" => client.signal(&job, SIGUSR1, false),
        "notify" => client.notify(&job, "a line from the test"),
        "cancel" => client.cancel(&job),
        "requeue" => client.requeue(&job, true),
        other => return Err(format!("unknown word `{other}`")),
    };
    match done {
        Ok(()) => Ok("done".to_owned()),
        Err(error @ ClientError::Call { .. }) => Ok(format!("{error:?}")),
        Err(error) => Err(error.to_string()),
    }
}

/// All fields, on one line.
fn show(job: &JobInfo) -> String {
    let part = |name: &str, value: &dyn Debug| format!("{name}={value:?}");
    [
        part("name", &job.name),
        part("qos", &job.qos),
        part("account", &job.account),
        part("reservation", &job.reservation),
        part("nodes", &job.nodes),
        part("node_count", &job.node_count),
        part("array", &job.array),
        part("het", &job.het_job_id),
        part("started", &(job.start_unix > 1_600_000_000)),
        part("suspended", &(job.suspend_unix >= job.start_unix)),
        part("running", &(job.state == JobState::Running)),
        part("can_requeue", &job.can_requeue),
        part("mail_user", &job.mail_user),
        part("admin_comment", &job.admin_comment),
    ]
    .join(" ")
}
