//! Control daemons of MPS, on an instance where the GPU is in MIG mode.

use gpufrac_compute::client::{Client, Setting};
use gpufrac_compute::mps::{self, Outcome, Record, Servers};

use crate::Settings;
use crate::driver::Stop;
use crate::record::Record as Answers;
use crate::work::Work;

/// The folder of control daemons in `<run>`.
const FOLDER: &str = "prove-mps";

pub fn mps(work: &Work<'_, '_>, settings: &Settings) -> Result<Option<Record>, Stop> {
    let record = work.record;
    let all = "limits and faults under MPS";
    if work.out_of_time() {
        record.not_measured(all, "the time of the run was over");
        return Ok(None);
    }
    if !settings.mps_control.exists() {
        record.not_measured(all, "there is no nvidia-cuda-mps-control");
        return Ok(None);
    }
    let made = if work.is_mig()? { work.make_smallest()? } else { None };
    let on_instance = made.as_ref().and_then(|made| made.compute.as_ref());
    let device = on_instance.map_or(work.gpu.uuid.clone(), |it| it.uuid.clone());
    let client = Client::start(&work.program.client, &Setting::on(&device));
    let measured = match client.and_then(|mut client| client.list_devices()) {
        Err(failure) => {
            record.not_measured(all, failure);
            None
        }
        Ok(seen) if seen.devices.first().is_none_or(|it| it.compute_mode != 0) => {
            record.not_measured(all, "the compute mode is not the default");
            None
        }
        Ok(_) => Some(mps::measure(&mps::Plan {
            program: &work.program.client,
            control: &settings.mps_control,
            folder: &settings.run.join(FOLDER),
            device: &device,
            pace: settings.pace.mps,
            stop: &|| work.go_on().is_err(),
        })),
    };
    if let Some(measured) = &measured {
        answers(record, measured);
    }
    if let Some(made) = made {
        work.remove(&made)?;
    }
    work.go_on()?;
    Ok(measured)
}

fn answers(record: &Answers, measured: &Record) {
    let of_kind = |kind, servers: &Servers| {
        limits(record, kind, servers);
        users(record, kind, servers);
    };
    of_kind("one server for all users", &measured.one_server);
    of_kind("a server for each user", &measured.server_per_user);
}

/// What gpufrac takes for true of the limits of a server: a half of the device, and a quarter for one client.
fn limits(record: &Answers, kind: &str, servers: &Servers) {
    let question = |text: &str| format!("{text}, {kind}");
    let of_memory = question("a client gets no more memory than its limit");
    let of_sms = question("a client sees no more multiprocessors than its share");
    match &servers.shares {
        Outcome::NotMeasured(reason) => record.not_measured(&of_memory, reason),
        Outcome::Measured(shares) => match (&shares.quarter, &shares.half) {
            (Ok(quarter), Ok(half)) => {
                let limit = shares.quarter_limit_mib;
                record.check(
                    &of_memory,
                    "a quarter",
                    true,
                    quarter.largest.pieces_mib <= limit,
                );
                record.check(
                    &of_sms,
                    "a quarter",
                    true,
                    quarter.multiprocessors <= half.multiprocessors,
                );
            }
            (Err(failure), _) | (_, Err(failure)) => record.not_measured(&of_memory, failure),
        },
    }
    let question = question("no client sheds the server's limit of a half");
    match &servers.limits {
        Outcome::NotMeasured(reason) => record.not_measured(&question, reason),
        Outcome::Measured(limits) => {
            for (name, limited) in limits.iter().filter(|(_, it)| it.is_client) {
                if let Ok(part) = &limited.got {
                    let keeps = part.largest.pieces_mib <= part.memory_mib.div_ceil(2);
                    record.check(&question, name.replace('_', " "), true, keeps);
                }
            }
        }
    }
}

/// A second user's client beside one of the first user.
fn users(record: &Answers, kind: &str, servers: &Servers) {
    let question = format!("a second user's client beside the first user's, {kind}");
    match &servers.second_user {
        Outcome::NotMeasured(reason) => record.not_measured(&question, reason),
        Outcome::Measured(second) => {
            let value = match (&second.beside, &second.after) {
                (Ok(()), _) => "starts beside it".to_owned(),
                (Err(_), Some(Ok(()))) => "waits for its end".to_owned(),
                (Err(failure), _) => failure.to_string(),
            };
            record.note(&question, value);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use gpufrac_compute::mps::{Limited, Part, SecondUser, Shares};
    use gpufrac_compute::order::{Failure, Largest};

    use super::*;

    fn part(mib: u64, multiprocessors: u32) -> Part {
        Part {
            multiprocessors,
            affinity: None,
            blocks_on: multiprocessors,
            memory_mib: 1000,
            free_mib: mib,
            largest: Largest {
                single_mib: mib,
                pieces_mib: mib,
            },
            computed: None,
        }
    }

    /// One kind of servers: what a quarter gets, and a client with a limit of its own.
    fn servers(quarter_mib: u64, own_mib: u64) -> Servers {
        let not_measured = || Outcome::NotMeasured("left over".to_owned());
        let silent = || Failure::Silent { seconds: 8 };
        let limited = Limited {
            got: Ok(part(own_mib, 50)),
            is_client: true,
        };
        Servers {
            shares: Outcome::Measured(Shares {
                quarter_limit_mib: 250,
                quarter: Ok(part(quarter_mib, 25)),
                half: Ok(part(500, 50)),
                at_once: [Err(silent()), Err(silent())],
            }),
            limits: Outcome::Measured(BTreeMap::from([("of_another_uuid".to_owned(), limited)])),
            raised: not_measured_of(),
            second_user: Outcome::Measured(SecondUser {
                beside: Err(silent()),
                after: Some(Ok(())),
            }),
            fault: not_measured(),
            terminated: not_measured(),
            killed: not_measured(),
            shut_down: not_measured(),
            killed_daemon: not_measured(),
            quit_in_time: not_measured(),
            quit: not_measured(),
        }
    }

    fn not_measured_of<T>() -> Outcome<T> {
        Outcome::NotMeasured("left over".to_owned())
    }

    fn differing(quarter_mib: u64, own_mib: u64) -> Vec<String> {
        let record = Answers::default();
        record.begin("mps");
        answers(
            &record,
            &Record {
                without: not_measured_of(),
                one_server: servers(quarter_mib, own_mib),
                server_per_user: servers(250, 500),
            },
        );
        let answers = record.answers().into_iter();
        let differs = |it: &crate::document::Answer| {
            matches!(it.outcome, crate::document::Outcome::Differs { .. })
        };
        answers.filter(differs).map(|it| it.question).collect()
    }

    #[test]
    fn a_client_with_more_than_its_limit_differs() {
        assert_eq!(differing(250, 500), Vec::<String>::new());
        let more = "a client gets no more memory than its limit, one server for all users";
        assert_eq!(differing(600, 500), [more]);
        let shed = "no client sheds the server's limit of a half, one server for all users";
        assert_eq!(differing(250, 900), [shed]);
    }
}
