//! `gpufrac report`: who held what, how it was used, what it costs, and whether the books balance.

mod accounting;
mod export;
pub mod files;

use std::path::PathBuf;
use std::time::SystemTime;

use gpufrac_core::config::Config;
use gpufrac_host::exit::Exit;
use gpufrac_records::usage::Line;
use gpufrac_report::audit::Audit;
use gpufrac_report::days::Days;
use gpufrac_report::hints::Hints;
use gpufrac_report::ledger::{Ledger, LedgerSlice};
use gpufrac_report::own::{self, Size};
use gpufrac_report::period::Period;
use gpufrac_report::render::{self, Own, Report};
use gpufrac_report::sums::{By, Table};
use jiff::{Timestamp, Zoned};

use crate::args::{ReportArgs, ReportBy, ReportFormat};
use crate::error::CliError;

/// Seconds of a week.
const WEEK: u64 = 7 * 24 * 3600;
/// Rows unless `--by` names others.
const DEFAULT_BY: [By; 1] = [By::User];

pub fn run(args: &ReportArgs) -> Result<Exit, CliError> {
    let config = config(args)?;
    let now = now();
    let period = Period::read(&args.since, &args.until, &now)?;
    let files = files(args, &config, period)?;
    let runs = accounting::runs(args, &config.count_name, period)?;
    if args.export.is_some() && !runs.is_known {
        return Err(CliError::NoAccounting);
    }
    let (report, exported) = Collected::read(args, &config, period, &files, runs, &now)?;
    // A table and a page have them themselves.
    if args.export.is_some() || matches!(args.format, ReportFormat::Csv | ReportFormat::Json) {
        for remark in report.remarks() {
            eprintln!("gpufrac: {remark}");
        }
    }
    if args.export.is_some() {
        return export::run(&exported, period, args.dry_run);
    }
    let text = match args.format {
        ReportFormat::Table => render::page(&report).text(),
        ReportFormat::Csv => render::csv::text(&report)?,
        ReportFormat::Json => render::json::text(&report)?,
        ReportFormat::Html => render::page(&report).html(),
    };
    print!("{text}");
    let balances = report.audit.is_none_or(|audited| audited.balances());
    Ok(if balances { Exit::Done } else { Exit::Broken })
}

/// Login hosts may have no gpufrac.toml: then there are no prices, and `--records` says where the records are.
fn config(args: &ReportArgs) -> Result<Config, CliError> {
    match args.config.read() {
        Err(CliError::Read { .. }) if !args.records.is_empty() => Ok(Config::empty()),
        other => other,
    }
}

fn now() -> Zoned {
    let now = Timestamp::try_from(SystemTime::now()).unwrap_or(Timestamp::UNIX_EPOCH);
    now.to_zoned(jiff::tz::TimeZone::system())
}

fn files(args: &ReportArgs, config: &Config, period: Period) -> Result<Vec<PathBuf>, CliError> {
    let files = if !args.records.is_empty() {
        files::named(&args.records)?
    } else {
        files::of(&config.paths.for_node(&args.config.node_name()), period)?
    };
    if files.is_empty() { Err(CliError::NoRecords) } else { Ok(files) }
}

/// The input of a report.
struct Collected<'a> {
    config: &'a Config,
    user: Option<String>,
    table: Table,
    hints: Hints,
    days: Days,
    audit: Option<Audit>,
    own: Vec<Own>,
    /// The end of the period: seconds since 1970.
    until: u64,
    /// All of it, for an export.
    exported: Option<Vec<LedgerSlice>>,
}

impl Collected<'_> {
    fn read(
        args: &ReportArgs,
        config: &Config,
        period: Period,
        files: &[PathBuf],
        runs: accounting::AccountedJobs,
        now: &Zoned,
    ) -> Result<(Report, Vec<LedgerSlice>), CliError> {
        let zone = now.time_zone();
        let mut ledger = Ledger::new(period, runs.runs);
        let by: Vec<By> = args.by.iter().map(|by| by.by()).collect();
        let mut collected = Collected {
            config,
            user: args.me.then(own_name).transpose()?,
            table: Table::new(if by.is_empty() { &DEFAULT_BY } else { &by }),
            hints: Hints::default(),
            days: Days::new(period, zone),
            audit: args.audit.then(Audit::default),
            own: Vec::new(),
            until: period.until,
            exported: args.export.map(|_| Vec::new()),
        };
        for file in files {
            files::lines(file, |_, text| {
                if text.starts_with("{\"kind\":\"end\"")
                    && let Ok(line) = Line::parse(text)
                {
                    ledger.learn_end(&line);
                }
            })?;
        }
        for file in files {
            files::lines(file, |number, text| match Line::parse(text) {
                Ok(line) => collected.line(line, &mut ledger),
                Err(error) => ledger.skip(|| format!("{}:{number}", file.display()), &error),
            })?;
        }
        let unrecorded = ledger.without_records();
        for held in &unrecorded {
            collected.held(held);
        }
        let rates = &config.rates;
        let report = Report {
            period: period.text(zone),
            table: collected.table,
            currency: rates.are_set().then(|| rates.currency.clone()),
            hints: collected.hints,
            days: collected.days.sums(zone),
            skipped: ledger.skipped,
            without_records: runs.is_known.then_some(unrecorded.len() as u64),
            own: collected.user.is_some().then_some(collected.own),
            audit: collected
                .audit
                .map(|audit| audit.balance(period, now.timestamp().as_second().unsigned_abs())),
        };
        Ok((report, collected.exported.unwrap_or_default()))
    }

    fn line(&mut self, line: Line, ledger: &mut Ledger) {
        match line {
            Line::Slice(record) => {
                let (is_new, held) = ledger.slice(&record);
                if let Some(audit) = self.audit.as_mut().filter(|_| is_new) {
                    audit.slice(&record);
                }
                if let Some(held) = held {
                    self.held(&held);
                }
            }
            Line::Gpu(gpu) => {
                if let Some(audit) = &mut self.audit {
                    audit.gpu(gpu);
                }
            }
            Line::End(..) => {}
        }
    }

    fn held(&mut self, held: &LedgerSlice) {
        let rates = &self.config.rates;
        if self.user.as_ref().is_some_and(|user| held.user != *user) {
            return;
        }
        if let Some(exported) = &mut self.exported {
            exported.push(held.clone());
        }
        self.table.add(held, rates);
        self.hints.add(held);
        self.days.add(held, rates);
        if self.user.is_some() {
            let menu = self.menu(&held.pool);
            let is_recent = held.to >= self.until.saturating_sub(WEEK);
            self.own.push(Own {
                job: held.job,
                size: held.size.clone(),
                allocated: held.allocated(),
                activity: held.activity,
                memory: (held.peak_memory_mib, held.memory_mib),
                enough: own::enough(held, &menu),
                full: held.full.clone(),
                next_smaller: is_recent.then(|| own::next_smaller(held, &menu)).flatten(),
            });
        }
    }

    /// The sizes of a pool; none where gpufrac.toml does not name it any more.
    fn menu(&self, pool: &str) -> Vec<Size> {
        let Some(pool) = self.config.pool(pool) else {
            return Vec::new();
        };
        let sizes = pool.layout.menu.iter().map(|size| Size {
            fraction: size.fraction.to_string(),
            units: size.units.0.into(),
            memory: size.memory,
        });
        sizes.collect()
    }
}

fn own_name() -> Result<String, CliError> {
    let user = nix::unistd::User::from_uid(nix::unistd::getuid());
    let user = user.ok().flatten();
    user.map(|user| user.name).ok_or(CliError::NoName)
}

impl ReportBy {
    fn by(self) -> By {
        match self {
            ReportBy::User => By::User,
            ReportBy::Account => By::Account,
            ReportBy::Qos => By::Qos,
            ReportBy::Partition => By::Partition,
            ReportBy::Pool => By::Pool,
            ReportBy::Node => By::Node,
            ReportBy::Size => By::Size,
        }
    }
}
