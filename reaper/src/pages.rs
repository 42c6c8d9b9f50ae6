//! Renews the pages of the cluster: `gpufrac web --export`, each minute, on the host of `[web]`. The program runs
//! beside the rounds, so that a slow or full file system delays no round.
#![expect(clippy::disallowed_methods, reason = "waits for real time")]

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::time::{Duration, Instant};

use gpufrac_core::config::Web;
use gpufrac_host::log::JobLog;
use gpufrac_host::subprocess::{self, Outcome};

/// The time between two beginnings.
const PERIOD: Duration = Duration::from_secs(60);
/// The longest time for all pages.
const LONGEST: Duration = Duration::from_secs(300);
/// The program, if it is not beside this one.
const PROGRAM: &str = "/usr/bin/gpufrac";

/// The arguments of the program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    pub web: Web,
    /// The path of gpufrac.toml.
    pub config: PathBuf,
    /// The node's name in Slurm.
    pub node: String,
}

/// Renews the pages until it is dropped.
pub struct Pages {
    settings: Settings,
    _stop: Sender<()>,
}

impl Pages {
    /// The pages of a configuration; None if another host writes them. `before`: those of the configuration before.
    pub fn follow(before: Option<Pages>, settings: Option<Settings>) -> Option<Pages> {
        let settings = settings.filter(|settings| settings.web.host == settings.node)?;
        if let Some(pages) = before.filter(|pages| pages.settings == settings) {
            return Some(pages);
        }
        let (stop, stopped) = mpsc::channel();
        let of_thread = settings.clone();
        std::thread::spawn(move || renew(&of_thread, &stopped, &JobLog::reaper()));
        Some(Pages {
            settings,
            _stop: stop,
        })
    }
}

fn renew(settings: &Settings, stopped: &Receiver<()>, log: &JobLog) {
    let mut said = None;
    loop {
        let began = Instant::now();
        let problem = write(settings).err();
        // A lasting problem is reported once.
        if problem != said {
            match &problem {
                // The text says why; it is reported once as long as it is the same. Cure: Follow the text; the command
                // prints it with its hint.
                Some(why) => log.error(format!(
                    "writing the pages of the cluster to `{}` failed: {why}; run `gpufrac web --export` by hand",
                    settings.web.folder
                )),
                // The host is that of `[web]`. Cure: Nothing.
                None => log.info(format!(
                    "the pages of the cluster are in `{}`, and are written each minute",
                    settings.web.folder
                )),
            }
        }
        said = problem;
        let rest = PERIOD.saturating_sub(began.elapsed());
        if stopped.recv_timeout(rest) == Err(RecvTimeoutError::Disconnected) {
            return;
        }
    }
}

fn write(settings: &Settings) -> Result<(), String> {
    let mut command = Command::new(program());
    command
        .args([
            "web",
            "--export",
            &settings.web.folder,
            "--node",
            &settings.node,
            "--config",
        ])
        .arg(&settings.config);
    match subprocess::run(&mut command, b"", LONGEST) {
        Ok(Outcome::Ended(ended)) if ended.status.success() => Ok(()),
        Ok(Outcome::Ended(ended)) => Err(match ended.stderr.trim() {
            "" => ended.status.to_string(),
            text => text.replace('\n', "; "),
        }),
        Ok(Outcome::Silent) => Err(format!("it took longer than {} s", LONGEST.as_secs())),
        Err(error) => Err(error.to_string()),
    }
}

/// `gpufrac`: beside this program, or where packages install it.
fn program() -> PathBuf {
    let own = std::env::current_exe().ok();
    let beside = own
        .as_deref()
        .and_then(Path::parent)
        .map(|folder| folder.join("gpufrac"));
    let beside = beside.filter(|path| path.exists());
    beside.unwrap_or_else(|| PROGRAM.into())
}
