//! A plan as text and as a page, byte by byte.

#![allow(clippy::unwrap_used, reason = "a test stops where it fails")]

use std::fmt::Write;
use std::fs;

use clap::Parser;
use expect_test::expect_file;
use gpufrac_plan::command::{self, PlanArgs};

#[derive(Parser)]
struct Command {
    #[command(flatten)]
    args: PlanArgs,
}

/// Two days of small jobs on two nodes, more than have room.
fn history() -> String {
    let mut text = "JobID|User|Account|QOS|Partition|Submit|Start|End|ElapsedRaw|TimelimitRaw|AllocTRES|NNodes|NodeList|TRESUsageInMax|TRESUsageInAve\n".to_owned();
    for job in 0_u64..40 {
        let submit = 1_790_000_000 + job * 1800;
        let start = submit + 600;
        let end = start + 7200;
        let (user, node) = (job % 3, job % 2 + 1);
        let memory = 4 + job % 8;
        writeln!(text, "{job}|u{user}|physics|normal|gpu|{submit}|{start}|{end}|7200|240|cpu=8,gres/gpu:h100=1,gres/gpu=1|1|gn0{node}|gres/gpumem={memory}G,gres/gpuutil=30|gres/gpumem={memory}G,gres/gpuutil=30").unwrap();
    }
    text + "x|broken\n"
}

#[test]
fn a_plan_has_its_bytes_as_text_and_as_a_page() {
    let folder = tempfile::tempdir().unwrap();
    let (jobs, page) = (folder.path().join("jobs"), folder.path().join("page"));
    fs::write(&jobs, history()).unwrap();
    let (jobs, html) = (jobs.to_str().unwrap(), page.to_str().unwrap());
    let options = "--nodes 2 --gpus-per-node 2 --layouts halves,uniform:1/4,mps --samples 3 --rate 1.2 --quiet";
    let words = ["plan", jobs, "--html", html].into_iter();
    let command = Command::parse_from(words.chain(options.split(' ')));
    let text = command::run(&command.args, &mut |_| {}).unwrap();
    let plain = |text: &str| text.replace(jobs, "JOBS");
    expect_file!["snapshots/plan.txt"].assert_eq(&plain(&text));
    let drawn = fs::read_to_string(&page).unwrap();
    let (_style, body) = drawn.split_once("</style>").unwrap();
    expect_file!["snapshots/plan.html"].assert_eq(&plain(body));
}
