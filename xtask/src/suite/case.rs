//! A run of a test, and its outcome.

use std::ffi::OsString;
use std::io::{self, Read};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::programs::Program;

/// The time after which a test counts as hanging.
const LIMIT: Duration = Duration::from_secs(20 * 60);
/// As [`LIMIT`], in the tier `--full`.
const LIMIT_FULL: Duration = Duration::from_secs(4 * 3600);

/// A run of a test.
#[derive(Debug, Clone)]
pub(crate) struct Case {
    pub program: Arc<Program>,
    /// The path of the test in its program.
    pub test: String,
    /// The series of Slurm; None for a test without Slurm.
    pub series: Option<&'static str>,
    /// The option of `cargo xtask test` for this Slurm; empty for a test without Slurm.
    pub option: String,
    pub environment: Vec<(&'static str, OsString)>,
    pub load: Load,
    pub full: bool,
}

/// How a test uses its time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Load {
    /// The test keeps a core busy.
    Computes,
    /// The test mostly waits for daemons.
    Waits,
}

/// The outcome of a case.
#[derive(Debug)]
pub(crate) struct Outcome {
    pub case: Case,
    pub verdict: Verdict,
    pub took: Duration,
    /// The output of the test with its failure messages.
    pub output: String,
}

/// The result of a case.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict {
    Passed,
    Failed,
    /// The test ended with the reason why it does not apply to this machine or this series.
    NotHere,
}

impl Case {
    /// The whole name, `lab::e2e reaper::stalls::time_slices`.
    pub fn name(&self) -> String {
        format!("{} {}", self.program.name, self.test)
    }

    /// Runs the test in a separate process and waits for its end.
    pub fn run(self) -> Outcome {
        let began = Instant::now();
        let (verdict, output) = match self.output() {
            Ok((passed, text)) => (verdict(passed, &text), text),
            Err(error) => {
                let program = self.program.path.display();
                (
                    Verdict::Failed,
                    format!("starting {program} failed: {error}"),
                )
            }
        };
        Outcome {
            verdict,
            took: began.elapsed(),
            output,
            case: self,
        }
    }

    fn output(&self) -> io::Result<(bool, String)> {
        let mut child = Command::new(&self.program.path)
            .args(["--exact", &self.test, "--test-threads=1", "--show-output"])
            .arg("--include-ignored")
            .current_dir(&self.program.folder)
            .env("CARGO_MANIFEST_DIR", &self.program.folder)
            .envs(self.environment.iter().map(|(name, value)| (*name, value)))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()?;
        let collect = |stream: Option<Box<dyn Read + Send>>| {
            std::thread::spawn(move || {
                let mut bytes = Vec::new();
                // After an error the output read so far is used.
                let _ = stream.map(|mut stream| stream.read_to_end(&mut bytes));
                String::from_utf8_lossy(&bytes).into_owned()
            })
        };
        let stdout = collect(child.stdout.take().map(|s| Box::new(s) as _));
        let stderr = collect(child.stderr.take().map(|s| Box::new(s) as _));
        let limit = if self.full { LIMIT_FULL } else { LIMIT };
        let deadline = Instant::now() + limit;
        let mut hangs = false;
        let status = loop {
            match child.try_wait()? {
                Some(status) => break status,
                None if !hangs && Instant::now() >= deadline => {
                    hangs = true;
                    child.kill()?;
                }
                None => std::thread::sleep(Duration::from_millis(10)),
            }
        };
        let mut text = stdout.join().unwrap_or_default();
        text.push_str(&stderr.join().unwrap_or_default());
        if hangs {
            let seconds = limit.as_secs();
            text.push_str(&format!(
                "\nkilled: the test did not end within {seconds} s\n"
            ));
        }
        // Without this check a name that matches no test would pass.
        let ran = text.contains("running 1 test");
        Ok((status.success() && ran, text))
    }
}

fn verdict(passed: bool, output: &str) -> Verdict {
    if passed {
        Verdict::Passed
    } else if not_run(output).is_some() {
        Verdict::NotHere
    } else {
        Verdict::Failed
    }
}

/// The reason why a test was not run (`test_seed::not_run`, or an error of the lab), unless it panicked for another
/// reason too.
fn not_run(output: &str) -> Option<&str> {
    let mut lines = output.lines();
    let mut reason = None;
    while let Some(line) = lines.next() {
        reason = line.strip_prefix("Error: not run: ").or(reason);
        if line.contains(" panicked at ") {
            match lines.next()? {
                "a scoped thread panicked" => {}
                said => reason = Some(said.strip_prefix("not run: ")?),
            }
        }
    }
    reason
}

impl Outcome {
    /// Why the test was not run; empty unless that is its result.
    pub fn not_run(&self) -> &str {
        let reason = not_run(&self.output);
        reason
            .filter(|_| self.verdict == Verdict::NotHere)
            .unwrap_or_default()
    }

    /// The seconds for which the test's labs ran, and for which the test waited for them, from the lab's lines `lab:
    /// up 12.3 s, started in 2.1 s, waited 8.0 s`.
    pub fn labs(&self) -> (f64, f64) {
        let lines = self
            .output
            .lines()
            .filter_map(|line| line.strip_prefix("lab: up "));
        let times = lines.filter_map(|line| {
            let up = line.split(' ').next()?.parse::<f64>().ok()?;
            let waited = line.split_once("waited ")?.1.split(' ').next()?;
            Some((up, waited.parse::<f64>().ok()?))
        });
        times.fold((0.0, 0.0), |sum, time| (sum.0 + time.0, sum.1 + time.1))
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn outcome(test: &str, series: Option<&'static str>, verdict: Verdict) -> Outcome {
        let program = Program {
            name: "lab::e2e".to_owned(),
            path: std::env::current_exe().unwrap(),
            folder: std::env::temp_dir(),
            tests: Vec::new(),
        };
        Outcome {
            case: Case {
                program: Arc::new(program),
                test: test.to_owned(),
                series,
                option: series.map_or_else(String::new, |name| format!("--slurm {name}")),
                environment: Vec::new(),
                load: Load::Computes,
                full: false,
            },
            verdict,
            took: Duration::from_secs(2),
            output: "lab: up 12.5 s, started in 2.1 s, waited 8.0 s\nlab: up 1.5 s, started in 1.0 s, waited 1.0 s\n"
                .to_owned(),
        }
    }

    #[test]
    fn the_times_of_labs_are_added() {
        assert_eq!(outcome("a", None, Verdict::Passed).labs(), (14.0, 9.0));
    }

    #[test]
    fn a_test_that_is_not_in_the_program_fails() {
        let ran = outcome("suite::no_such_test", None, Verdict::Passed)
            .case
            .run();
        assert_eq!(ran.verdict, Verdict::Failed, "{}", ran.output);
        let own = "suite::case::tests::the_times_of_labs_are_added";
        let ran = outcome(own, None, Verdict::Failed).case.run();
        assert_eq!(ran.verdict, Verdict::Passed, "{}", ran.output);
    }

    #[test]
    fn a_test_that_was_not_run_is_skipped_unless_it_also_failed() {
        let panic = |said| format!("\nthread 'a' (7) panicked at a.rs:1:2:\n{said}\n");
        let not_run = panic("not run: no network");
        assert_eq!(verdict(false, &not_run), Verdict::NotHere);
        let threads = not_run.clone() + &not_run + &panic("a scoped thread panicked");
        assert_eq!(verdict(false, &threads), Verdict::NotHere);
        assert_eq!(
            verdict(false, &(not_run + &panic("wrong"))),
            Verdict::Failed
        );
        assert_eq!(verdict(false, "not run: no network"), Verdict::Failed);
        assert_eq!(verdict(true, "not run: no network"), Verdict::Passed);
        assert_eq!(verdict(false, "Error: not run: one node"), Verdict::NotHere);
    }

    #[test]
    #[ignore = "the test below runs it"]
    fn is_not_run() {
        test_seed::not_run("this machine has no moon");
    }

    #[test]
    fn a_test_that_is_not_run_says_why() {
        let own = "suite::case::tests::is_not_run";
        let ran = outcome(own, None, Verdict::Failed).case.run();
        assert_eq!(ran.verdict, Verdict::NotHere, "{}", ran.output);
        assert_eq!(ran.not_run(), "this machine has no moon");
    }
}
