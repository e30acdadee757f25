//! What devices tell unasked: ports that go down and come up, addresses that change, devices that die; and, now and then, whether
//! the peers of idle endpoints still live.
//!
//! There is no disconnect message, so an endpoint that a peer made and left behind would stay for ever. A write of no bytes, which
//! needs no memory of the peer's, tells whether its device still answers.

use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use crate::engine::sys::readiness::{Wake, wait_readable};
use crate::engine::sys::verbs::AsyncEvent;
use crate::engine::transfer::rdma::batch::Trouble;
use crate::engine::transfer::rdma::nic::Nic;
use crate::engine::transfer::rdma::shared::Shared;

/// How long a thread waits for an event before it looks after idle endpoints.
const TICK: Duration = Duration::from_secs(5);
/// How long a port that came up is left alone.
const SETTLE: Duration = Duration::from_secs(1);
/// Bytes of a watcher's stack.
const STACK_BYTES: usize = 256 << 10;

/// The threads that watch.
pub(super) struct Watch {
    stop: Arc<Stop>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

/// Tells them to end.
struct Stop {
    over: AtomicBool,
    wake: Wake,
}

impl Stop {
    fn is_over(&self) -> bool {
        self.over.load(Ordering::Relaxed)
    }

    fn now(&self) {
        self.over.store(true, Ordering::Relaxed);
        // Never cleared, so that all see it.
        self.wake.wake();
    }
}

impl Watch {
    /// Watch the devices of `shared`.
    pub(super) fn start(shared: &Arc<Shared>) -> std::io::Result<Watch> {
        let stop = Arc::new(Stop { over: AtomicBool::new(false), wake: Wake::new()? });
        let watch = Watch { stop, threads: Mutex::default() };
        for nic in &shared.nics {
            let (shared, nic, stop) = (Arc::clone(shared), Arc::clone(nic), Arc::clone(&watch.stop));
            let run = move || {
                while !stop.is_over() {
                    look(&shared, &nic, &stop);
                }
            };
            let thread = thread::Builder::new().name("te-rdma-watch".into()).stack_size(STACK_BYTES).spawn(run)?;
            watch.threads.lock().unwrap_or_else(PoisonError::into_inner).push(thread);
        }
        Ok(watch)
    }

    /// Stop, and wait until the threads have.
    pub(super) fn stop(&self) {
        self.stop.now();
        let threads = std::mem::take(&mut *self.threads.lock().unwrap_or_else(PoisonError::into_inner));
        for thread in threads {
            // A panic there has been told, and there is nothing more to be done.
            let _ = thread.join();
        }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.stop.now();
    }
}

/// Wait for an event of `nic`, or a while, and see to it.
fn look(shared: &Shared, nic: &Arc<Nic>, stop: &Stop) {
    let event = match wait_readable(&[stop.wake.as_fd(), nic.device.events_fd()], TICK) {
        Ok(0) => {
            shared.keep_up(nic);
            return;
        }
        Ok(ready) if ready & 1 != 0 => return,
        Ok(_) => nic.device.next_event(Duration::ZERO).map_err(|error| error.to_string()),
        Err(error) => Err(error.to_string()),
    };
    let event = match event {
        Ok(Some(event)) => event,
        Ok(None) => return,
        Err(error) => {
            tracing::warn!(device = %nic.name, %error, "events of the device cannot be read");
            // It may be gone; nothing would slow this loop then.
            pause(stop, SETTLE);
            return;
        }
    };
    tracing::info!(device = %nic.name, ?event, "device event");
    match event {
        AsyncEvent::PortDown(port) if port == nic.port => out(shared, nic, "its port is down"),
        AsyncEvent::LidChange(port) if port == nic.port && !nic.is_out() => moved(shared, nic),
        AsyncEvent::DeviceFatal => out(shared, nic, "the device failed"),
        AsyncEvent::QueueBroken => out(shared, nic, "its completion queue is broken"),
        AsyncEvent::PortActive(port) if port == nic.port => {
            pause(stop, SETTLE);
            back(shared, nic);
        }
        AsyncEvent::GidChange(port) if port == nic.port => match nic.why_out() {
            None => moved(shared, nic),
            Some(NO_ADDRESS) => back(shared, nic),
            Some(_) => {}
        },
        AsyncEvent::PairFailed(number) => nic.pair_failed(number),
        _ => {}
    }
}

/// Why a device is out of use whose port has no address.
const NO_ADDRESS: &str = "it has no address";

/// Nothing more goes through `nic`; what does comes back, and may go another way.
fn out(shared: &Shared, nic: &Nic, why: &'static str) {
    if nic.take_out(why) {
        tracing::warn!(device = %nic.name, port = nic.port, why, "device is out of use");
    }
    // Also where whoever polled saw it first.
    for endpoint in nic.all() {
        endpoint.retire(nic, &Trouble::Dropped);
    }
    shared.changed();
}

/// `nic`'s port is up.
fn back(shared: &Shared, nic: &Nic) {
    match shared.place(nic) {
        Ok(place) => {
            nic.moved_to(place);
            if nic.take_back() {
                tracing::info!(device = %nic.name, port = nic.port, "device is in use again");
                shared.changed();
            }
        }
        Err(error) => tracing::warn!(device = %nic.name, port = nic.port, %error, "device stays out of use"),
    }
}

/// `nic`'s GID table or LID changed.
fn moved(shared: &Shared, nic: &Nic) {
    match shared.place(nic) {
        Ok(place) if place == nic.place() => {}
        Ok(place) => {
            tracing::info!(device = %nic.name, gid = %place.gid_text(), row = place.gid_index, "address changed");
            nic.moved_to(place);
            for endpoint in nic.all() {
                endpoint.retire(nic, &Trouble::Dropped);
            }
            shared.changed();
        }
        Err(error) => {
            tracing::warn!(device = %nic.name, %error, "no address is left");
            out(shared, nic, NO_ADDRESS);
        }
    }
}

/// Let a while pass, unless it is time to stop.
fn pause(stop: &Stop, limit: Duration) {
    if wait_readable(&[stop.wake.as_fd()], limit).is_err() {
        thread::yield_now();
    }
}
