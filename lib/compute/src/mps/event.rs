//! Steps that disturb: a fault, a killed client, an ended server or daemon, with two clients at work.

use std::time::{Duration, Instant};

use gpufrac_host::pause::Pause;
use gpufrac_host::syscalls::ProcessHandle;

use super::stage::{Daemon, Stage, begins};
use super::{After, State};
use crate::client::Client;

/// How long a killed daemon may take to end.
const END_LIMIT: Duration = Duration::from_secs(5);

/// What happens to the clients.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// An illegal address in the victim.
    Fault,
    /// `terminate_client` of the victim.
    Terminate,
    /// SIGKILL of the victim.
    Kill,
    /// `shutdown_server -f`.
    ShutDown,
    /// SIGKILL of the control daemon.
    KillDaemon,
    /// `quit -t 1`.
    QuitInTime,
    /// `quit`, which may wait for the clients.
    Quit,
}

/// Lets the event happen to two clients, and looks at what follows.
pub fn after(stage: &Stage<'_>, event: Event) -> Result<After, String> {
    let pace = stage.plan.pace;
    let daemon = Daemon::start(stage, 50)?;
    let (mut victim, mut neighbour) = (stage.client(Some(25))?, stage.client(Some(50))?);
    for client in [&mut victim, &mut neighbour] {
        begins(client).map_err(|failure| format!("a client failed before the event: {failure}"))?;
    }
    let works = |client: &mut Client| {
        let started = client.start_computing(pace.interrupted);
        started.map_err(|failure| format!("a client failed before the event: {failure}"))
    };
    works(&mut neighbour)?;
    if event != Event::Fault {
        works(&mut victim)?;
    }
    let answered = happen(event, &daemon, &mut victim)?;
    let at_event = daemon.state();
    // An event may come too late for the computation; the next kernel notices it.
    let finish = |client: &mut Client| client.finish().and_then(|_| client.work());
    let of_victim = match event {
        Event::Fault => victim.fault(),
        _ => finish(&mut victim),
    };
    let at_event = match event {
        Event::Fault => daemon.state(),
        _ => at_event,
    };
    let of_neighbour = finish(&mut neighbour);
    let newcomer = || -> Result<_, String> {
        let mut client = stage.start(&stage.setting(Some(25)), pace.wait)?;
        let started = begins(&mut client);
        Ok((started, daemon.serves(&client)))
    };
    let (beside, is_client) = newcomer()?;
    victim.end();
    neighbour.end();
    let (alone, is_client_alone) = newcomer()?;
    Ok(After {
        answered,
        victim: of_victim,
        neighbour: of_neighbour,
        newcomer: beside,
        newcomer_alone: alone,
        newcomers_are_clients: [is_client, is_client_alone],
        daemon: [at_event, daemon.state()],
    })
}

/// Returns whether the daemon answered, if it was asked.
fn happen(event: Event, daemon: &Daemon<'_>, victim: &mut Client) -> Result<Option<bool>, String> {
    let to_servers = |command: &dyn Fn(i32) -> String| {
        let servers = daemon.servers();
        let taken = servers.iter().all(|pid| daemon.takes(&command(*pid)));
        Some(taken && !servers.is_empty())
    };
    Ok(match event {
        // The victim itself is told.
        Event::Fault => None,
        Event::Terminate => {
            let victim = victim.pid();
            to_servers(&|pid| format!("terminate_client {pid} {victim}"))
        }
        Event::Kill => {
            victim.kill();
            None
        }
        Event::ShutDown => to_servers(&|pid| format!("shutdown_server {pid} -f")),
        Event::KillDaemon => {
            let pid = daemon.pid().ok_or("the control daemon has no pid file")?;
            let killed = ProcessHandle::open(pid).and_then(|process| process.kill());
            killed.map_err(|error| format!("killing the control daemon failed: {error}"))?;
            let begun = Instant::now();
            let mut pause = Pause::new(Duration::from_millis(1), Duration::from_millis(50));
            while !matches!(daemon.state(), State::Ended { .. }) && begun.elapsed() < END_LIMIT {
                pause.sleep(END_LIMIT);
            }
            None
        }
        Event::QuitInTime => Some(daemon.takes("quit -t 1")),
        Event::Quit => Some(daemon.takes("quit")),
    })
}
