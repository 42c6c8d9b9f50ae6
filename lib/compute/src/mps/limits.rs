//! Steps in which nobody is disturbed: what clients have under limits of their own and of the daemon.

use std::collections::BTreeMap;
use std::time::Duration;

use super::stage::{Daemon, SECOND, Stage, begins, part_of};
use super::{Limited, Raised, SecondUser, Shares, Without};
use crate::client::{Client, Setting};
use crate::order::{Computed, Failure};

const NO_TIME: Duration = Duration::ZERO;
/// A UUID that no GPU has.
const NO_GPU: &str = "GPU-00000000-0000-0000-0000-000000000000";
const MEMORY: &str = "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT";
const PERCENTAGE: &str = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE";

/// Without MPS.
pub fn without(stage: &Stage<'_>) -> Result<Without, String> {
    let pace = stage.plan.pace;
    let setting = Setting::on(stage.plan.device);
    let mut first = stage.start(&setting, pace.answer)?;
    let alone = part_of(&mut first, pace.compute).map_err(|failure| failure.to_string())?;
    let mut second = stage.start(&setting, pace.answer)?;
    let started = begins(&mut second);
    let beside = match started {
        Ok(()) => at_once([&mut first, &mut second], pace.compute),
        Err(failure) => [Err(failure.clone()), Err(failure)],
    };
    Ok(Without { alone, beside })
}

/// Two clients within their shares.
pub fn shares(stage: &Stage<'_>) -> Result<Shares, String> {
    let compute = stage.plan.pace.compute;
    let _daemon = Daemon::start(stage, 50)?;
    let (mut quarter, mut half) = (stage.client(Some(25))?, stage.client(Some(50))?);
    Ok(Shares {
        quarter_limit_mib: stage.share_mib(25),
        quarter: part_of(&mut quarter, compute),
        half: part_of(&mut half, compute),
        at_once: at_once([&mut quarter, &mut half], compute),
    })
}

/// Both compute in the same time.
fn at_once(clients: [&mut Client; 2], time: Duration) -> [Result<Computed, Failure>; 2] {
    let started = clients.map(|client| client.start_computing(time).map(|()| client));
    started.map(|started| started.and_then(|client| client.finish()))
}

/// Clients whose own limits are missing, too high, or of another device.
pub fn unusual(stage: &Stage<'_>) -> Result<BTreeMap<String, Limited>, String> {
    let daemon = Daemon::start(stage, 50)?;
    let all = stage.share_mib(100);
    let quarter = || stage.setting(Some(25));
    let settings = [
        ("without_variables", stage.setting(None)),
        (
            "above_the_server",
            quarter()
                .with(PERCENTAGE, "100")
                .with(MEMORY, format!("0={all}M")),
        ),
        ("by_uuid", {
            let (device, mib) = (stage.plan.device, stage.share_mib(25));
            quarter().with(MEMORY, format!("{device}={mib}M"))
        }),
        ("of_another_number", quarter().with(MEMORY, "1=1024M")),
        (
            "of_another_uuid",
            quarter().with(MEMORY, format!("{NO_GPU}=1024M")),
        ),
        ("no_limit", quarter().with(MEMORY, "nonsense")),
        (
            "device_by_number",
            quarter().with("CUDA_VISIBLE_DEVICES", "0"),
        ),
        ("without_mps", Setting::on(stage.plan.device)),
    ];
    let measured = settings.into_iter().map(|(name, setting)| {
        let mut client = stage.start(&setting, stage.plan.pace.answer)?;
        let got = part_of(&mut client, NO_TIME);
        let is_client = daemon.serves(&client);
        Ok((name.to_owned(), Limited { got, is_client }))
    });
    measured.collect()
}

/// Limits that are raised while a server runs: by the commands for later servers, then by those for this one.
pub fn raised(stage: &Stage<'_>) -> Result<Raised, String> {
    let daemon = Daemon::start(stage, 25)?;
    let mut first = stage.client(Some(25))?;
    let before = part_of(&mut first, NO_TIME);
    let mib = stage.share_mib(50);
    daemon.takes(&format!(
        "set_default_active_thread_percentage 50\nset_default_device_pinned_mem_limit 0 {mib}M"
    ));
    let defaults = part_of(&mut stage.client(Some(50))?, NO_TIME);
    for pid in daemon.servers() {
        daemon.takes(&format!(
            "set_active_thread_percentage {pid} 50\nset_device_pinned_mem_limit {pid} 0 {mib}M"
        ));
    }
    let server = part_of(&mut stage.client(Some(50))?, NO_TIME);
    let blocks = first.blocks();
    Ok(Raised {
        before,
        defaults,
        server,
        before_again: blocks.and_then(|blocks| Ok((blocks, first.largest()?))),
    })
}

/// A second user's client beside one of root.
pub fn second_user(stage: &Stage<'_>) -> Result<SecondUser, String> {
    let pace = stage.plan.pace;
    let _daemon = Daemon::start(stage, 50)?;
    let mut first = stage.client(Some(25))?;
    begins(&mut first).map_err(|failure| format!("the first user's client failed: {failure}"))?;
    let mut setting = stage.setting(Some(50));
    setting.user = Some(SECOND);
    let mut second = stage.start(&setting, pace.wait)?;
    let beside = begins(&mut second);
    first.end();
    let after = match &beside {
        Err(Failure::Silent { .. }) => {
            second.limit = pace.answer;
            Some(second.begun_late().map(drop))
        }
        _ => None,
    };
    Ok(SecondUser { beside, after })
}
