//! Common mistakes of admins, on real Slurm. `cargo xtask mistakes` makes them one at a time and prints the outcome:
//! the finding of `gpufrac check`, what a user saw, and whether the cure works.

mod configuration;
mod installation;
mod losses;
mod node;
mod settings;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::time::Duration;

use gpufrac_lab::{Job, JobId, Lab, LabError, Outcome};
use nix::sys::signal::Signal;

use crate::{HOLD, go};

const QUARTER: &str = "--gres=gpufrac:0.25";

/// The file to which each mistake adds a line.
const TABLE: &str = "GPUFRAC_MISTAKES_TABLE";

const POOLS: &str = "[pool.halves]\nmechanism = \"mig\"\nlayout = \"halves\"\ngpu = \"H100-80\"\n\
     partitions = [\"gpu\"]\nnodes = \"@NODES@\"\n";

/// An action of an admin on a site.
type Step = fn(&mut Site) -> Result<(), LabError>;

struct Mistake {
    name: &'static str,
    /// Makes the mistake. Files are restored afterwards.
    make: Step,
    /// Corrects it, besides restoring files.
    mend: Step,
    /// Words in the output of `gpufrac check`, one of them in an error. None: check cannot see the mistake.
    said: &'static [&'static str],
    /// The request of a user meanwhile.
    ask: &'static str,
    /// The outcome of this job.
    job: Fate,
    /// Whether it is made in each run of the tests, not only in the long one.
    quick: bool,
    /// The exit status of `gpufrac check`: 2 for an error, 1 for a warning.
    status: i32,
}

impl Mistake {
    /// A mistake that `check` names with these words, and a user's job meanwhile.
    const fn new(name: &'static str, make: Step, said: &'static [&'static str], job: Fate) -> Self {
        Self {
            name,
            make,
            mend: |_| Ok(()),
            said,
            ask: QUARTER,
            job,
            quick: false,
            status: 2,
        }
    }

    const fn mended(self, mend: Step) -> Self {
        Self { mend, ..self }
    }

    /// Another request of the user.
    const fn asked(self, ask: &'static str) -> Self {
        Self { ask, ..self }
    }

    /// `gpufrac check` warns of it.
    const fn warned(self) -> Self {
        Self { status: 1, ..self }
    }

    const fn quick(self) -> Self {
        Self {
            quick: true,
            ..self
        }
    }
}

/// The outcomes of a job.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Fate {
    /// It runs on its slice, or it does not run; it never runs without a slice.
    SliceOrNone,
    /// It runs on its slice.
    Slice,
    /// It is refused, with these words for its user.
    Refused(&'static str),
    /// The change takes effect after a restart, so no job is tried.
    NotTried,
}

/// A saved file: text, mode and owner.
struct Kept {
    bytes: Option<Vec<u8>>,
    mode: u32,
    owner: u32,
}

/// A cluster with a gpufrac.toml on each host: one on slurmctld's and the login host, and one on each node.
struct Site {
    lab: Lab,
    kept: RefCell<BTreeMap<PathBuf, Kept>>,
    /// Jobs that run during a mistake.
    jobs: Vec<JobId>,
}

impl Site {
    fn start(reaper: bool) -> Result<Self, LabError> {
        let mut builder = Lab::builder().nodes(2).gpus("H100-80", 2).pools(POOLS);
        if reaper {
            builder = builder.reaper("[reaper]\nmode = \"dry-run\"\nmetrics = \"off\"\n");
        }
        let lab = builder.slurm_user().start()?;
        let site = Self {
            lab,
            kept: RefCell::default(),
            jobs: Vec::new(),
        };
        let text = fs::read(site.lab.folder().gpufrac_conf()).expect("the lab's gpufrac.toml");
        for node in site.lab.nodes() {
            fs::write(site.own_config(node), &text).expect("a copy");
        }
        for program in ["prolog", "epilog"] {
            let path = site.program(program);
            let wrapper = fs::read_to_string(&path).expect("the lab's wrapper");
            let own = wrapper.replace("etc/gpufrac.toml", "etc/$SLURMD_NODENAME.toml");
            assert_ne!(own, wrapper);
            fs::write(&path, own).expect("root may");
        }
        Ok(site)
    }

    /// gpufrac.toml of a node.
    fn own_config(&self, node: &str) -> PathBuf {
        self.lab.folder().etc().join(format!("{node}.toml"))
    }

    /// The node on which mistakes are made.
    fn node(&self) -> &str {
        &self.lab.nodes()[1]
    }

    /// gpufrac.toml of that node.
    fn config(&self) -> PathBuf {
        self.own_config(self.node())
    }

    fn etc(&self, name: &str) -> PathBuf {
        self.lab.folder().etc().join(name)
    }

    fn program(&self, name: &str) -> PathBuf {
        self.lab.folder().bin().join(name)
    }

    fn plugin(&self, name: &str) -> PathBuf {
        self.lab.folder().lib().join(name)
    }

    /// Saves a file. A hard link to the build is replaced by a copy.
    fn keep(&self, path: &Path) {
        let before = fs::metadata(path).ok().map(|known| {
            let bytes = if known.is_file() { fs::read(path).ok() } else { None };
            Kept {
                mode: known.permissions().mode(),
                owner: known.uid(),
                bytes,
            }
        });
        let kept = before.unwrap_or(Kept {
            bytes: None,
            mode: 0,
            owner: 0,
        });
        if let Some(bytes) = &kept.bytes {
            replace(path, bytes, kept.mode);
        }
        self.kept
            .borrow_mut()
            .entry(path.to_owned())
            .or_insert(kept);
    }

    fn write(&self, path: &Path, text: &str) {
        self.keep(path);
        let mode = self.kept.borrow().get(path).map_or(0, |kept| kept.mode);
        replace(path, text.as_bytes(), if mode == 0 { 0o644 } else { mode });
    }

    /// Changes a text that must be in a file.
    fn change(&self, path: &Path, from: &str, to: &str) {
        let text = fs::read_to_string(path).expect("a file of the lab");
        assert!(text.contains(from), "no {from:?} in {text}");
        self.write(path, &text.replace(from, to));
    }

    /// Changes gpufrac.toml on all hosts.
    fn change_everywhere(&self, from: &str, to: &str) {
        self.change(&self.etc("gpufrac.toml"), from, to);
        for node in self.lab.nodes() {
            self.change(&self.own_config(node), from, to);
        }
    }

    fn remove(&self, path: &Path) {
        self.keep(path);
        fs::remove_file(path).expect("it is there");
    }

    fn set_mode(&self, path: &Path, mode: u32) {
        self.keep(path);
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("root may");
    }

    fn give_to_user(&self, path: &Path) {
        self.keep(path);
        chown(path, Some(self.lab.users()[0].uid), None).expect("root may");
    }

    /// Restores all files, as the admin would.
    fn put_back(&self) {
        for (path, kept) in std::mem::take(&mut *self.kept.borrow_mut()) {
            match &kept.bytes {
                Some(bytes) => {
                    if path.is_dir() {
                        fs::remove_dir(&path).expect("root may");
                    }
                    replace(&path, bytes, kept.mode);
                    chown(&path, Some(kept.owner), None).expect("root may");
                }
                None if kept.mode == 0 => {
                    // The mistake was to create it.
                    let _ = fs::remove_file(&path);
                }
                None => {
                    let mode = fs::Permissions::from_mode(kept.mode);
                    chown(&path, Some(kept.owner), None).expect("root may");
                    fs::set_permissions(&path, mode).expect("root may");
                }
            }
        }
    }

    /// slurmctld reads its files again, and gpufrac.toml.
    fn reconfigure(&self) -> Result<(), LabError> {
        reconfigure(&self.lab)
    }

    /// slurmctld starts again, and loads its plugins again.
    fn restart(&mut self) -> Result<(), LabError> {
        self.lab.stop_daemon("slurmctld", Signal::SIGTERM)?;
        self.lab.start_slurmctld()?;
        self.wait_until_right()
    }

    /// Waits until `gpufrac check` has no findings. The slurmctld of 22.05 knows no shares of a node that has not
    /// registered since its start.
    fn wait_until_right(&self) -> Result<(), LabError> {
        let limit = Duration::from_secs(120);
        self.lab.wait("check has no findings", limit, || {
            Ok(self.check()?.status.success().then_some(()))
        })
    }

    /// `gpufrac check` on the node.
    fn check(&self) -> Result<Outcome, LabError> {
        let check = self.lab.command("gpufrac").args(["check"]);
        check
            .env("SLURMD_NODENAME", self.node())
            .env("GPUFRAC_CONFIG", self.config())
            .run()
    }

    fn node_setup(&self) -> Result<Outcome, LabError> {
        let setup = self.lab.command("gpufrac").args(["node-setup"]);
        setup
            .env("SLURMD_NODENAME", self.node())
            .env("GPUFRAC_CONFIG", self.config())
            .run()
    }

    /// Runs a job on the node; returns what its user sees.
    fn try_job(&self, ask: &str) -> Result<Seen, LabError> {
        let lab = &self.lab;
        let wanted = format!("--nodelist={}", self.node());
        let script = "--wrap=echo D=$CUDA_VISIBLE_DEVICES F=$GPUFRAC_FRACTION";
        let args = [ask, "-n1", &wanted, script];
        let submitted = lab.try_sbatch(&lab.users()[0], &args)?;
        let number = submitted.stdout.split_whitespace().last().map(str::parse);
        let Some(Ok(job)) = number.filter(|_| submitted.status.success()) else {
            let told = submitted.stderr.trim();
            return Ok(Seen::NotRun(if told.is_empty() {
                format!("sbatch: {}", submitted.status)
            } else {
                told.to_owned()
            }));
        };
        let job = JobId(job);
        let patience = "the job ended, or waits for a reason";
        let ended = lab.wait(patience, Duration::from_secs(45), || {
            let seen = lab.job(job)?;
            let drained = !lab.drained_nodes()?.is_empty();
            Ok((!seen.is_active() || waits(&seen, drained)).then_some(seen))
        })?;
        if ended.is_active() {
            lab.command("scancel").args([job.to_string()]).stdout()?;
            let drained = lab.node(self.node())?.field("Reason").to_owned();
            lab.wait_for_end(job)?;
            return Ok(Seen::NotRun(format!(
                "{}; {drained}",
                ended.field("Reason")
            )));
        }
        let output = lab.output(job).unwrap_or_default();
        Ok(
            match output.contains("D=MIG-") && output.contains("F=0.25") {
                true => Seen::Slice,
                false if output.contains("D=") => Seen::Without(output.trim().to_owned()),
                false => Seen::NotRun(ended.state().to_owned()),
            },
        )
    }

    /// Resumes the nodes that are drained.
    fn resume_drained(&self) -> Result<(), LabError> {
        for node in self.lab.drained_nodes()? {
            let node = node.split(':').next().unwrap_or_default();
            let name = format!("NodeName={node}");
            self.lab
                .command("scontrol")
                .args(["update", &name, "State=RESUME"])
                .stdout()?;
        }
        Ok(())
    }

    /// Makes one mistake after the other beside a job of another user, on the same or the other node, and reports each.
    fn make_all<'m>(
        mut self,
        mistakes: impl IntoIterator<Item = &'m Mistake>,
        beside: usize,
    ) -> Result<(), LabError> {
        let script = format!("--wrap={HOLD}");
        let wanted = format!("--nodelist={}", self.lab.nodes()[beside]);
        let args = [QUARTER, &wanted, &script];
        let victim = self.lab.sbatch(&self.lab.users()[1], &args)?;
        self.lab.wait_for_state(victim, &["RUNNING"])?;
        let sane = self.check()?;
        assert!(sane.status.success(), "before any mistake: {sane:?}");
        let mut wrong = Vec::new();
        for mistake in mistakes {
            wrong.extend(self.make(mistake, victim)?);
        }
        go(&self.lab)?;
        let ended = self.lab.wait_for_end(victim)?;
        if ended.state() != "COMPLETED" || ended.field("Restarts") != "0" {
            wrong.push(format!("job {victim} of another user: {ended:?}"));
        }
        wrong.extend(self.lab.ended_daemons());
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
        self.lab.expect_nothing_left()
    }

    /// Makes a mistake and corrects it. Returns what else went wrong.
    fn make(&mut self, mistake: &Mistake, victim: JobId) -> Result<Vec<String>, LabError> {
        let mut wrong = Vec::new();
        let mut note = |what: String| wrong.push(format!("{}: {what}", mistake.name));
        (mistake.make)(self)?;
        let checked = self.check()?;
        let said = format!("{}{}", checked.stdout, checked.stderr);
        let words = mistake.said.iter().all(|word| said.contains(word));
        if !mistake.said.is_empty() && (checked.status.code() != Some(mistake.status) || !words) {
            note(format!(
                "check does not say {:?}: {checked:?}",
                mistake.said
            ));
        }
        let seen = match mistake.job {
            Fate::NotTried => Seen::NotTried,
            _ => self.try_job(mistake.ask)?,
        };
        match (&seen, mistake.job) {
            (Seen::Without(output), _) => note(format!("a job ran without its slice: {output}")),
            (Seen::NotRun(why), Fate::Slice) => note(format!("no job ran: {why}")),
            (Seen::NotRun(why), Fate::Refused(words)) if !why.contains(words) => {
                note(format!("its user is not told {words:?}: {why}"));
            }
            (Seen::Slice, Fate::Refused(_)) => note("a job ran".to_owned()),
            _ => {}
        }
        // slurmctld may be what is missing.
        let drained = self.lab.drained_nodes().unwrap_or_default();
        self.put_back();
        (mistake.mend)(self)?;
        self.resume_drained()?;
        let mended = self.check()?;
        let again = match mistake.job {
            Fate::NotTried => Seen::Slice,
            _ => self.try_job(QUARTER)?,
        };
        let way_out = mended.status.success() && again == Seen::Slice;
        if !way_out {
            note(format!("the way out is none: {again:?}, {mended:?}"));
        }
        let lost = u32::from(self.lab.job(victim)?.state() != "RUNNING");
        if lost > 0 {
            note(format!("job {victim} of another user is lost"));
        }
        let error = checked.stderr.lines().next().unwrap_or("ok");
        let root = self.lab.folder().root().display().to_string();
        let error = format!("{error} ({})", checked.status.code().unwrap_or(-1));
        record(&[
            mistake.name,
            &self.lab.slurm().series(),
            &error.replace(&root, "LAB"),
            &seen.to_string().replace(&root, "LAB"),
            &drained.len().to_string(),
            &lost.to_string(),
            if way_out { "ok" } else { "none" },
        ]);
        Ok(wrong)
    }
}

/// What a user sees of a job.
#[derive(Debug, PartialEq, Eq)]
enum Seen {
    Slice,
    /// It ran, but not on its slice.
    Without(String),
    NotRun(String),
    NotTried,
}

impl std::fmt::Display for Seen {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Seen::Slice => f.write_str("the slice"),
            Seen::Without(output) => write!(f, "NO SLICE: {output}"),
            Seen::NotRun(why) => f.write_str(why),
            Seen::NotTried => f.write_str("-"),
        }
    }
}

/// slurmctld reads its files again, and gpufrac.toml: before 23.11 the plugin does so a little later, when
/// slurmctld's time of reading has changed by a second.
pub(crate) fn reconfigure(lab: &Lab) -> Result<(), LabError> {
    if lab.slurm().since(23, 11) {
        return lab.reconfigure();
    }
    let log = lab.folder().log().join("slurmctld.log");
    let times_read = || {
        let text = fs::read_to_string(&log).unwrap_or_default();
        let done = [
            "gpufrac: configuration read again",
            "gpufrac: reconfigure keeps",
        ];
        done.map(|words| text.matches(words).count())
            .iter()
            .sum::<usize>()
    };
    let before = times_read();
    std::thread::sleep(Duration::from_millis(1100));
    lab.reconfigure()?;
    lab.wait(
        "our plugin has read its file",
        Duration::from_secs(30),
        || Ok((times_read() > before).then_some(())),
    )
}

/// Whether a job was requeued, is held, or waits for a drained node.
fn waits(job: &Job, drained: bool) -> bool {
    let reason = job.field("Reason").to_lowercase();
    let kept = job.field("Restarts") != "0" || reason.contains("held");
    job.state() == "PENDING" && (kept || (drained && reason.contains("reqnodenotavail")))
}

/// Replaces a file that may be in use, or be a hard link to the build.
fn replace(path: &Path, bytes: &[u8], mode: u32) {
    let new = path.with_extension("new");
    fs::write(&new, bytes).expect("root may");
    fs::set_permissions(&new, fs::Permissions::from_mode(mode)).expect("root may");
    fs::rename(&new, path).expect("root may");
}

/// Adds a line to the table, if there is one.
fn record(fields: &[&str]) {
    let Some(table) = std::env::var_os(TABLE) else {
        return;
    };
    let clean = fields.iter().map(|field| field.replace(['\t', '\n'], " "));
    let line = clean.collect::<Vec<_>>().join("\t") + "\n";
    let file = fs::OpenOptions::new().create(true).append(true).open(table);
    let mut file = file.expect("the table can be opened");
    file.write_all(line.as_bytes())
        .expect("the table can be written");
}

/// Promise (admins): a slurm.conf that libslurm refuses, saved before Slurm's daemons read it, drains no node and stops
/// no fraction.
#[test]
fn a_slurm_conf_that_libslurm_refuses_stops_no_job() -> Result<(), LabError> {
    let lab = Lab::builder().gpus("H100-80", 1).start()?;
    let (user, node) = (&lab.users()[0], &lab.nodes()[0]);
    let first = lab.sbatch(user, &[QUARTER, "--wrap=sleep 4"])?;
    lab.wait_for_state(first, &["RUNNING"])?;
    let after = format!("--dependency=afterany:{first}");
    let second = lab.sbatch(user, &[QUARTER, &after, "--wrap=sleep 4"])?;
    let conf = lab.folder().etc().join("slurm.conf");
    let right = fs::read_to_string(&conf).expect("slurm.conf");
    fs::write(&conf, format!("{right}PrologFlagz=Alloc\n")).expect("root may");
    // Slurm's commands do not run meanwhile.
    lab.wait(
        "the second job has its slice",
        Duration::from_secs(90),
        || {
            let held = lab.leases_of(node, second)?;
            Ok((!held.is_empty()).then_some(()))
        },
    )?;
    fs::write(&conf, right).expect("root may");
    let ended = lab.wait_for_end(second)?;
    assert_eq!((ended.state(), ended.field("Restarts")), ("COMPLETED", "0"));
    assert!(!lab.node(node)?.is_drained());
    lab.expect_nothing_left()
}

/// Promise (admins): what an admin gets wrong on a host is named by `gpufrac check`, loses no job of others, and is
/// mended by what it says.
/// With `lost_nodes_are_named_and_come_back`, `a_reaper_that_does_not_run_is_named`,
/// `mistakes_in_gpufrac_toml_are_named_and_lose_nothing`, `mistakes_of_installation_are_named_and_lose_nothing`,
/// `lost_and_left_over_state_of_a_node_is_named_and_loses_nothing`,
/// `mistakes_in_slurms_files_are_named_and_lose_nothing`.
// Some mistakes of each kind, in each run of the tests.
#[test]
fn the_most_common_mistakes_are_named_and_lose_nothing() -> Result<(), LabError> {
    if std::env::var_os(TABLE).is_some() {
        test_seed::not_run(
            "the other tests make these mistakes too, and each has one line in the table",
        );
    }
    let all = [
        configuration::MISTAKES,
        installation::MISTAKES,
        node::MISTAKES,
        settings::MISTAKES,
    ];
    let quick = all.into_iter().flatten().filter(|mistake| mistake.quick);
    Site::start(false)?.make_all(quick, 1)
}
