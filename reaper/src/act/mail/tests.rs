use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::time::Instant;

use gpufrac_core::policy::Signal;
use gpufrac_records::evidence::Decision;
use mail_parser::{MessageParser, MimeHeaders};
use proptest::prelude::*;
use test_examples::evidence::{event, record};

use super::*;

const LIMIT: Duration = Duration::from_secs(20);

/// A mail program of the site that records its input.
struct Site {
    keep: tempfile::TempDir,
}

impl Site {
    fn new() -> Site {
        let keep = tempfile::tempdir().unwrap();
        Site { keep }
    }

    fn program(&self, text: &str) -> String {
        let path = self.path("program");
        let folder = self.keep.path().display();
        fs::write(&path, format!("#!/bin/sh\ncd {folder}\n{text}\n")).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        path.to_string_lossy().into_owned()
    }

    /// A program that records arguments, stdin and environment of each call.
    fn recorder(&self) -> String {
        self.program(
            "for a in \"$@\"; do printf '<%s>' \"$a\" >>args; done\necho >>args\ncat >>input\nenv >environment",
        )
    }

    fn path(&self, name: &str) -> PathBuf {
        self.keep.path().join(name)
    }

    fn text(&self, name: &str) -> String {
        fs::read_to_string(self.path(name)).unwrap_or_default()
    }
}

fn sendmail(program: String) -> Mail {
    Mail {
        sendmail: Some(program),
        from: Some("gpufrac@cluster.example.org".to_owned()),
        ..Mail::default()
    }
}

fn mail_prog(program: String) -> Mail {
    Mail {
        program: Some(program),
        ..Mail::default()
    }
}

fn message(mail: &Mail) -> Message {
    let policy = Policy {
        signal: "USR1"
            .parse()
            .ok()
            .map(|s: Signal| (s, Duration::from_secs(300))),
        ..Policy::default()
    };
    let notice = Notice {
        to: vec!["alice@example.org".to_owned()],
        action: Action::Requeue,
        ends_in: Duration::from_secs(1200),
        policy: &policy,
    };
    warning(
        &record(),
        &event(560, Decision::Warn, Stall::Idle),
        &notice,
        mail,
    )
}

/// A text without its line breaks.
fn flat(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[test]
fn a_warning_says_what_when_why_and_what_to_do() {
    let mail = Mail {
        contact: Some("Ask hpc@example.org for an exemption.".to_owned()),
        ..sendmail("/x".to_owned())
    };
    let message = message(&mail);
    assert_eq!(
        message.subject,
        "Job 4242 on gn07 will be requeued in 20m: its GPU is idle"
    );
    let text = flat(&message.text);
    for wanted in [
        "Your job 4242 holds 0.25 of a GPU (2g.20gb) on node gn07.",
        "It will be requeued at 2026-11-18 20:46:44 UTC, 20m after",
        "Reason: the slice has been idle (idle), for 3h40m until now; [reaper] ends jobs after 4h00m. \
         Source of the samples: gpm.",
        "- Use the GPU",
        "`scancel 4242`",
        "Catch SIGUSR1 in the batch script and write a checkpoint: the signal comes at 2026-11-18 20:41:44 UTC, 5m before the \
         end.",
        "submit it with `--gpufrac-idle=long` (4 times as long).",
        "Ask hpc@example.org for an exemption.",
        "`gpufrac why 4242`",
        "100 % ┤",
    ] {
        assert!(text.contains(wanted), "{wanted}\n{}", message.text);
    }
    assert!(
        !text.contains("idle=off") && !text.contains("dry-run:"),
        "{text}"
    );
    assert!(message.chart_svg.unwrap().starts_with("<svg"));
    for line in message.text.lines() {
        assert!(line.chars().count() <= LINE_WIDTH, "{line}");
    }
}

#[test]
fn allowed_windows_depend_on_rules_and_option() {
    let said = |wish: IdleWish, stall: Stall, allowed: &[IdleWish]| {
        let policy = Policy {
            idle_option: allowed.to_vec(),
            ..Policy::default()
        };
        let mut record = record();
        record.wish = wish;
        exemption(&record, &event(1, Decision::Warn, stall), &policy).unwrap_or_default()
    };
    let all = IdleWish::ALL;
    let both = said(IdleWish::Default, Stall::Idle, &all);
    assert!(
        both.contains("idle=long") && both.contains("idle=off"),
        "{both}"
    );
    let off = said(IdleWish::Long, Stall::NeverUsed, &all);
    assert!(
        !off.contains("idle=long") && off.contains("idle=off"),
        "{off}"
    );
    assert_eq!(
        said(IdleWish::Default, Stall::Idle, &[IdleWish::Default]),
        ""
    );
    assert_eq!(said(IdleWish::Default, Stall::OverShare, &all), "");
}

#[test]
fn a_dry_run_says_so() {
    let mut event = event(560, Decision::Warn, Stall::OverShare);
    event.dry_run = true;
    let notice = Notice {
        to: Vec::new(),
        action: Action::Cancel,
        ends_in: Duration::from_secs(60),
        policy: &Policy::default(),
    };
    let message = warning(&record(), &event, &notice, &mail_prog("/x".to_owned()));
    assert!(
        message.subject.ends_with("(dry-run)"),
        "{}",
        message.subject
    );
    assert!(message.text.contains("the job will not be ended"));
    assert!(flat(&message.text).contains("`gpufrac why 4242 --svg FILE`"));
    assert_eq!(message.chart_svg, None);
}

#[test]
fn the_message_is_what_a_mail_program_reads() {
    let site = Site::new();
    let mail = sendmail(site.recorder());
    let message = message(&mail);
    send(&mail, &message, LIMIT).unwrap();
    assert_eq!(
        site.text("args"),
        "<-i><-f><gpufrac@cluster.example.org><--><alice@example.org>\n"
    );
    let environment = site.text("environment");
    let names: Vec<&str> = environment
        .lines()
        .filter_map(|line| line.split('=').next())
        .collect();
    // A shell sets the other variables itself.
    assert!(
        names
            .iter()
            .all(|name| ["PATH", "PWD", "OLDPWD", "SHLVL", "_"].contains(name)),
        "{names:?}"
    );
    let input = site.text("input");
    assert!(!input.contains('\r') && input.is_ascii());
    let parsed = MessageParser::default().parse(input.as_bytes()).unwrap();
    let address = |list: Option<&mail_parser::Address<'_>>| {
        list.unwrap().first().unwrap().address().unwrap().to_owned()
    };
    assert_eq!(address(parsed.from()), "gpufrac@cluster.example.org");
    assert_eq!(address(parsed.to()), "alice@example.org");
    assert_eq!(parsed.subject(), Some(message.subject.as_str()));
    assert!(parsed.date().is_some());
    assert_eq!(parsed.body_text(0).unwrap().trim(), message.text.trim());
    assert_eq!(parsed.attachment_count(), 1);
    let chart = parsed.attachment(0).unwrap();
    assert_eq!(chart.attachment_name(), Some("chart.svg"));
    assert_eq!(chart.content_type().unwrap().subtype(), Some("svg+xml"));
    assert_eq!(chart.contents(), message.chart_svg.unwrap().as_bytes());
}

/// Promise (reaper): nobody adds a header or a recipient to a mail.
/// With `only_one_sane_address_is_a_recipient`.
#[test]
fn a_header_cannot_be_added() {
    let site = Site::new();
    let mail = sendmail(site.recorder());
    let mut message = message(&mail);
    message.subject = "a\r\nBcc: eve@example.org\n\nb ü".to_owned();
    send(&mail, &message, LIMIT).unwrap();
    let input = site.text("input");
    let parsed = MessageParser::default().parse(input.as_bytes()).unwrap();
    assert!(parsed.bcc().is_none());
    assert_eq!(parsed.subject(), Some("a??Bcc: eve@example.org??b ü"));
    for wrong in [
        "-Cfile",
        "+folder",
        "a\u{7f}",
        "a@b\nBcc: c",
        "a,b",
        "|cat",
        "/etc/x",
        "a@b@c",
        "",
    ] {
        message.to = vec![wrong.to_owned()];
        let error = send(&mail, &message, LIMIT).unwrap_err();
        assert!(matches!(error, MailError::Address(_)), "{wrong}: {error}");
    }
}

#[test]
fn mail_prog_is_called_as_slurm_does() {
    let site = Site::new();
    let mail = mail_prog(site.recorder());
    let mut message = message(&mail);
    message.subject = "of `id` $(id)".to_owned();
    message.to = vec!["alice@example.org".to_owned(), "bob".to_owned()];
    send(&mail, &message, LIMIT).unwrap();
    assert_eq!(
        site.text("args"),
        "<-s><of `id` $(id)><alice@example.org>\n<-s><of `id` $(id)><bob>\n"
    );
    assert_eq!(site.text("input"), message.text.repeat(2));
}

#[test]
fn without_a_program_nothing_is_sent() {
    let mail = Mail::default();
    send(&mail, &message(&mail), LIMIT).unwrap();
    let mail = mail_prog("/x".to_owned());
    let nobody = Message {
        to: Vec::new(),
        ..message(&mail)
    };
    assert!(matches!(
        send(&mail, &nobody, LIMIT),
        Err(MailError::NoRecipient)
    ));
}

#[test]
fn a_hung_program_is_killed_with_its_children() {
    let site = Site::new();
    // The program reads nothing, and the message is larger than a pipe.
    let mail = sendmail(site.program("sleep 100 & echo $! >child\nwait"));
    let mut message = message(&mail);
    message.text = "long ".repeat(100_000);
    let start = Instant::now();
    let error = send(&mail, &message, Duration::from_secs(1)).unwrap_err();
    assert!(matches!(error, MailError::Hung { .. }), "{error}");
    assert!(start.elapsed() < Duration::from_secs(15));
    let child: i32 = site.text("child").trim().parse().unwrap();
    let gone = || {
        let stat = fs::read_to_string(format!("/proc/{child}/stat")).unwrap_or_default();
        // The child may be a zombie that no process has waited for yet.
        stat.is_empty() || stat.contains(") Z ")
    };
    while !gone() {
        assert!(start.elapsed() < LIMIT);
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn a_failure_is_reported_with_its_cause() {
    let site = Site::new();
    let mail = sendmail(site.program("echo said >&2; echo why >&2; sleep 30 & exit 75"));
    let said = send(&mail, &message(&mail), LIMIT).unwrap_err().to_string();
    assert!(
        said.ends_with("/program` failed with exit status: 75: said / why"),
        "{said}"
    );
    let mail = sendmail("/nonexistent/sendmail".to_owned());
    let said = send(&mail, &message(&mail), LIMIT).unwrap_err().to_string();
    assert!(
        said.starts_with("starting `/nonexistent/sendmail` failed: "),
        "{said}"
    );
}

#[test]
fn only_one_sane_address_is_a_recipient() {
    let domain = Some("example.org");
    for (mail_user, user, wanted) in [
        ("", "alice", Some("alice@example.org")),
        (
            "al.ice+hpc@uni.example",
            "alice",
            Some("al.ice+hpc@uni.example"),
        ),
        ("bob", "alice", Some("bob@example.org")),
        ("a@b,c@d", "alice", Some("alice@example.org")),
        ("a@b;c@d", "alice", Some("alice@example.org")),
        ("a@b c@d", "alice", Some("alice@example.org")),
        ("-oQ/tmp", "alice", Some("alice@example.org")),
        ("|id", "alice", Some("alice@example.org")),
        ("+folder", "alice", Some("alice@example.org")),
        ("+folder@example.org", "alice", Some("alice@example.org")),
        ("=folder", "alice", Some("alice@example.org")),
        (".x", "alice", Some("alice@example.org")),
        ("~/file", "alice", Some("alice@example.org")),
        ("a\tb", "alice", Some("alice@example.org")),
        ("\u{1b}a", "alice", Some("alice@example.org")),
        ("a\0b", "alice", Some("alice@example.org")),
        ("_a+b", "alice", Some("_a+b@example.org")),
        ("+x", "+alice", None),
        ("/home/alice/file", "alice", Some("alice@example.org")),
        (":include:/etc/shadow", "alice", Some("alice@example.org")),
        ("a%b@c", "alice", Some("alice@example.org")),
        ("a!b@c", "alice", Some("alice@example.org")),
        ("a@b\r\nBcc: c@d", "alice", Some("alice@example.org")),
        ("\"a b\"@c", "alice", Some("alice@example.org")),
        ("A <a@b>", "alice", Some("alice@example.org")),
        ("a@-b", "alice", Some("alice@example.org")),
        ("@", "ali ce", None),
    ] {
        let found = recipient(mail_user, user, domain);
        assert_eq!(found.as_deref(), wanted, "{mail_user}");
    }
    assert_eq!(recipient("", "alice", None).as_deref(), Some("alice"));
    assert_eq!(
        recipient(&"a".repeat(300), "alice", None).as_deref(),
        Some("alice")
    );
}

proptest! {
    #[test]
    fn an_address_is_a_name_and_perhaps_a_host(text in "[-+|/.=_a@ \r\n\t~:,;\\\"\u{1b}ä]{0,8}") {
        if is_address(&text) {
            let usual = |c: char| c.is_ascii_alphanumeric() || "._+-=@".contains(c);
            prop_assert!(text.chars().all(usual));
            prop_assert!(text.starts_with(|c: char| c.is_ascii_alphanumeric() || c == '_'));
            prop_assert!(text.matches('@').count() <= 1);
        }
    }
}

#[test]
fn admins_are_told_of_a_breaker() {
    let count = Count {
        stalled: 7,
        leases: 8,
    };
    let told = |mail: &Mail| breaker("gn07", BreakerScope::Node, count, 60, 1_795_000_000, mail);
    assert_eq!(told(&Mail::default()), None);
    let mail = Mail {
        admins: vec!["root".to_owned(), "-x".to_owned()],
        ..Mail::default()
    };
    let message = told(&mail).unwrap();
    assert_eq!(message.to, ["root"]);
    assert_eq!(
        message.subject,
        "gpufrac: circuit breaker open, 7 of 8 slices of node gn07 look idle"
    );
    let text = flat(&message.text);
    assert!(text.contains("(limit 60 %)"), "{text}");
    assert!(
        text.contains("opened at 2026-11-18 11:06:40 UTC."),
        "{text}"
    );
}
