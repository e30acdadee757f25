//! The ticker: the task that does the state's background work, one slice per lock acquisition.

use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::sync::watch;

use crate::server::ha::CLIENT_CALL_MAX;
use crate::server::handle::MasterHandle;
use crate::server::shared::{MasterShared, YIELD_PAUSE};
use crate::stall::StallReport;
use mcctl_base::Mono;
use mcctl_base::time::RoundedDuration;
use mcctl_sys::env::Env;

/// Time between two checks of the fence of a leader that cannot prove that it leads, or of a log
/// without room.
const FENCED_PAUSE: Duration = Duration::from_millis(50);
/// A client may have aborted a call that waited for longer than this. Shorter waits end no call.
const GIVEN_UP_AFTER: Duration = Duration::from_secs(1);

/// If the ticker did not run for this long, the process was suspended or had no processor time. It
/// runs at least once per second.
const SUSPENDED_MIN: Duration = Duration::from_millis(1_500);

/// Notices when a leader cannot prove that it leads, and when it can again.
#[derive(Default)]
struct FenceObserver {
    fenced_since: Option<Mono>,
    /// The last check.
    checked_at: Option<Mono>,
}

impl FenceObserver {
    fn is_fenced(&self) -> bool {
        self.fenced_since.is_some()
    }

    /// Whether background work may run. While responses waited, clients received no confirmation of
    /// their calls. So the limits of clients are extended.
    fn may_tick<E: Env>(&mut self, shared: &MasterShared<E>) -> bool {
        let now = shared.env.now();
        let paused = self.checked_at.replace(now).map_or(Duration::ZERO, |before| now.since(before));
        match (self.fenced_since, shared.is_fenced()) {
            (None, true) => {
                tracing::warn!("{}", fence_text(paused));
                self.fenced_since = Some(now);
            }
            (Some(since), false) => {
                self.fenced_since = None;
                let fenced = now.since(since);
                let leads = shared.may_tick();
                if leads {
                    let time = RoundedDuration(fenced);
                    tracing::info!("this master can prove again that it leads: responses are sent, after {time}");
                    shared.with_guarded(|guarded, _, _| {
                        guarded.state.extend_client_deadlines(fenced + CLIENT_CALL_MAX);
                    });
                }
            }
            _ => {}
        }
        !self.is_fenced() && shared.may_tick()
    }
}

/// Why a leader cannot prove that it leads, and what follows. `paused`: time since the last check.
fn fence_text(paused: Duration) -> &'static str {
    if paused < SUSPENDED_MIN {
        return "this master cannot prove that it leads: etcd does not respond, and no standby responds or its time without etcd has ended. All \
                responses wait until etcd responds, or another master is elected";
    }
    "this process was suspended, or short of processor time, so a standby may have been elected. All responses wait until etcd shows which master \
     leads"
}

/// Whether the log permits background work. While requests waited for room in the log, clients
/// received no confirmation of their calls, and their pings may have waited behind a request. So
/// the limits of clients are extended.
pub(super) fn log_permits_tick<E: Env>(shared: &MasterShared<E>) -> bool {
    if !shared.log_permits_tick() {
        return false;
    }
    let waited = shared.take_log_wait();
    if !waited.is_zero() {
        let for_calls = if waited >= GIVEN_UP_AFTER { CLIENT_CALL_MAX } else { Duration::ZERO };
        shared.with_guarded(|guarded, _, _| guarded.state.extend_client_deadlines(waited + for_calls));
    }
    true
}

/// Runs the state's background work until `stopping` is true.
pub(super) async fn run_ticker<E: Env>(master: MasterHandle<E>, mut stopping: watch::Receiver<bool>) {
    let MasterHandle { shared, polls, .. } = master;
    let mut fence = FenceObserver::default();
    loop {
        let slice = || {
            let answered_until = polls.oldest();
            shared.with_guarded(|guarded, now, effects| {
                // The next slice, or computing the next wakeup, follows immediately.
                guarded.stalls.expect_by(now);
                guarded.state.tick(now, answered_until.unwrap_or(now), effects)
            })
        };
        while fence.may_tick(&shared) && log_permits_tick(&shared) && slice() {
            if shared.waiting.load(Ordering::Relaxed) > 0 {
                shared.env.sleep(YIELD_PAUSE).await;
            } else {
                tokio::task::yield_now().await;
            }
            if *stopping.borrow() {
                return;
            }
        }
        let (pause, report) = {
            let answered_until = polls.oldest();
            let (mut guard, _) = shared.lock(shared.env.now());
            // Do not use the time that was just read: it may precede a stall that another caller
            // has already observed.
            let now = guard.stalls.latest();
            let next = guard.state.next_wakeup(now, answered_until.unwrap_or(now));
            guard.planned = next;
            // A wakeup time in the past with no work to do would make the ticker spin. The shortest
            // regular pause is the one between eviction rounds.
            let is_held = fence.is_fenced() || !shared.log_permits_tick();
            let pause = next.since(now).max(if is_held { FENCED_PAUSE } else { Duration::from_millis(1) });
            guard.stalls.expect_by(now + pause);
            (pause, guard.stalls.take_report())
        };
        if let Some(StallReport { stalled, extension }) = report {
            let stalled = RoundedDuration(stalled);
            let extension = RoundedDuration(extension);
            let cause = "suspended, or short of processor time";
            match extension.0.is_zero() || fence.is_fenced() {
                // A standby has no clients, and neither may a leader that cannot prove that it
                // leads.
                true => tracing::warn!("this process did not run for {stalled} ({cause})"),
                false => tracing::warn!(
                    "this process did not run for {stalled} ({cause}): calls waited. No node was removed in this time, and each \
                     has up to {extension} more to call"
                ),
            }
        }
        tokio::select! {
            biased;
            _ = stopping.wait_for(|stop| *stop) => return,
            () = shared.wake.notified() => {}
            () = shared.env.sleep(pause) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_suspended_leader_does_not_blame_etcd() {
        assert!(fence_text(Duration::from_secs(1)).contains("etcd does not respond"));
        let suspended = fence_text(Duration::from_millis(5_100));
        assert!(suspended.contains("suspended") && !suspended.contains("etcd does not"), "{suspended}");
    }
}
