//! The mail queue, with its own thread: a mail system that hangs must not stop the rounds.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{SyncSender, TrySendError, sync_channel};
use std::thread::JoinHandle;
use std::time::Duration;

use gpufrac_core::policy::Mail;
use gpufrac_host::log::JobLog;

use crate::act::mail::{self, MailError, Message};

/// The time limit for one message.
const LONGEST_DELIVERY: Duration = Duration::from_secs(10);
const MOST_WAITING_MESSAGES: usize = 200;

/// Waiting messages, and the results of earlier ones.
pub(crate) struct MailQueue {
    out: Option<SyncSender<(Mail, Message)>>,
    thread: Option<JoinHandle<()>>,
    failed: Arc<AtomicU64>,
    closing: Arc<AtomicBool>,
}

impl MailQueue {
    pub fn new() -> MailQueue {
        let (out, inbox) = sync_channel::<(Mail, Message)>(MOST_WAITING_MESSAGES);
        let failed = Arc::new(AtomicU64::new(0));
        let count = Arc::clone(&failed);
        let closing = Arc::new(AtomicBool::new(false));
        let closed = Arc::clone(&closing);
        let thread = std::thread::spawn(move || {
            let log = JobLog::reaper();
            for (mail, message) in inbox {
                let sent = if closed.load(Ordering::Relaxed) {
                    Err(MailError::DaemonEnds)
                } else {
                    mail::send(&mail, &message, LONGEST_DELIVERY)
                };
                if let Err(error) = sent {
                    count.fetch_add(1, Ordering::Relaxed);
                    // The mail program failed; the text says why. Cure: Correct `[reaper.mail]`; send a mail message by
                    // hand.
                    log.error(format!(
                        "a mail ({}) was not sent: {error}",
                        message.subject
                    ));
                }
            }
        });
        MailQueue {
            out: Some(out),
            thread: Some(thread),
            failed,
            closing,
        }
    }

    /// Adds a message. A message that does not fit in the queue is dropped, logged and counted.
    pub fn send(&self, mail: &Mail, message: Message) {
        let Some(out) = &self.out else { return };
        match out.try_send((mail.clone(), message)) {
            Ok(()) => {}
            Err(TrySendError::Full((_, message)) | TrySendError::Disconnected((_, message))) => {
                self.failed.fetch_add(1, Ordering::Relaxed);
                let lost = format!("a mail ({}) was not sent: too many wait", message.subject);
                JobLog::reaper().error(lost);
            }
        }
    }

    /// The number of failed messages since the last call.
    pub fn failed(&self) -> u64 {
        self.failed.swap(0, Ordering::Relaxed)
    }

    /// Waits for the message that is being sent; the waiting ones are dropped.
    pub fn finish(&mut self) {
        self.closing.store(true, Ordering::Relaxed);
        self.out = None;
        if let Some(thread) = self.thread.take() {
            // If the thread panicked there is nothing to wait for.
            let _ = thread.join();
        }
    }
}
