//! The ticker: the task that does the state's background work, one slice per lock acquisition.

use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::sync::watch;

use crate::engine::env::Env;
use crate::engine::master::server::ha::HaGate;
use crate::engine::master::server::handle::MasterHandle;
use crate::engine::master::server::shared::YIELD_PAUSE;
use crate::engine::master::stall::StallReport;

/// Runs the state's background work until `stopping` is true.
pub(super) async fn run_ticker<E: Env>(master: MasterHandle<E>, mut stopping: watch::Receiver<bool>) {
    let MasterHandle { shared, polls } = master;
    loop {
        let slice = || {
            let answered_until = polls.oldest();
            let more = shared.with_guarded(None, |guarded, now, effects| {
                // The next slice, or computing the next wakeup, follows immediately.
                guarded.stalls.expect_by(now);
                guarded.state.tick(now, answered_until.unwrap_or(now), effects)
            });
            // A call on this thread must not wait for the ticker's changes.
            HaGate::forget();
            more
        };
        while shared.may_tick() && slice() {
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
            // Do not use the time that was just read: it may precede a stall that another caller has already observed.
            let now = guard.stalls.latest();
            let next = guard.state.next_wakeup(now, answered_until.unwrap_or(now));
            guard.planned = next;
            // A wakeup time in the past with no work to do would make the ticker spin. The shortest regular pause is the one between
            // eviction rounds.
            let pause = next.since(now).max(Duration::from_millis(1));
            guard.stalls.expect_by(now + pause);
            (pause, guard.stalls.take_report())
        };
        if let Some(StallReport { stalled, extension }) = report {
            tracing::warn!(
                ?stalled,
                client_ttl_extension = ?extension,
                "the master stalled (suspended, or short of processor time); client deadlines were extended"
            );
        }
        tokio::select! {
            () = shared.env.sleep(pause) => {}
            () = shared.wake.notified() => {}
            _ = stopping.wait_for(|stop| *stop) => return,
        }
    }
}
