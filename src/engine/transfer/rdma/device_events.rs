//! Handles asynchronous device events (ports going down and coming up, address changes, fatal
//! errors), and periodically checks the peers of idle endpoints.
//!
//! RDMA has no disconnect message, so if a peer connects and then disappears, its endpoint here
//! would otherwise remain forever. A zero-byte write, which does not access the peer's memory,
//! detects whether the peer's device still responds.

use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use crate::rdma::batch::WorkError;
use crate::rdma::nic::Nic;
use crate::rdma::shared::RdmaShared;
use mcctl_sys::readiness::{WakeEvent, wait_readable};
use mcctl_sys::verbs::AsyncEvent;

/// How long to wait for an event before checking idle endpoints.
const TICK: Duration = Duration::from_secs(5);
/// How long to wait after a port comes up before using it.
const SETTLE: Duration = Duration::from_secs(1);
/// Stack size of a watcher thread, in bytes.
const STACK_BYTES: usize = 256 << 10;

/// The watcher threads, one per device.
pub(super) struct DeviceWatcher {
    stop: Arc<StopSignal>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

/// Signals the watcher threads to stop.
struct StopSignal {
    stopped: AtomicBool,
    wake: WakeEvent,
}

impl StopSignal {
    fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::Relaxed)
    }

    fn signal(&self) {
        self.stopped.store(true, Ordering::Relaxed);
        // Never cleared, so that every thread wakes up.
        self.wake.wake();
    }
}

impl DeviceWatcher {
    /// Starts watching the devices of `shared`.
    pub(super) fn start(shared: &Arc<RdmaShared>) -> std::io::Result<DeviceWatcher> {
        let stop = Arc::new(StopSignal { stopped: AtomicBool::new(false), wake: WakeEvent::new()? });
        let watch = DeviceWatcher { stop, threads: Mutex::default() };
        for nic in &shared.nics {
            let shared = Arc::clone(shared);
            let nic = Arc::clone(nic);
            let stop = Arc::clone(&watch.stop);
            let run = move || {
                while !stop.is_stopped() {
                    handle_next_event(&shared, &nic, &stop);
                }
            };
            let thread = thread::Builder::new().name("te-rdma-watch".into()).stack_size(STACK_BYTES).spawn(run)?;
            watch.threads.lock().unwrap_or_else(PoisonError::into_inner).push(thread);
        }
        Ok(watch)
    }

    /// Stops the threads and waits for them.
    pub(super) fn stop(&self) {
        self.stop.signal();
        let threads = std::mem::take(&mut *self.threads.lock().unwrap_or_else(PoisonError::into_inner));
        for thread in threads {
            // A panic in the thread has already been reported.
            let _ = thread.join();
        }
    }
}

impl Drop for DeviceWatcher {
    fn drop(&mut self) {
        self.stop.signal();
    }
}

/// Waits for an event from `nic` and handles it. Checks idle endpoints if none arrives within a
/// [`TICK`].
fn handle_next_event(shared: &RdmaShared, nic: &Arc<Nic>, stop: &StopSignal) {
    let event = match wait_readable(&[stop.wake.as_fd(), nic.device.events_fd()], TICK) {
        Ok(0) => {
            shared.check_idle_endpoints(nic);
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
            tracing::warn!(device = %nic.name, %error, "cannot read device events");
            // The device may be gone. Without a pause, this loop would spin.
            pause(stop, SETTLE);
            return;
        }
    };
    tracing::info!(device = %nic.name, ?event, "device event");
    match event {
        AsyncEvent::PortDown(port) if port == nic.port => disable(shared, nic, "port is down"),
        AsyncEvent::LidChange(port) if port == nic.port && !nic.is_disabled() => update_address(shared, nic),
        AsyncEvent::DeviceFatal => disable(shared, nic, "fatal device error"),
        AsyncEvent::QueueBroken => disable(shared, nic, "completion queue error"),
        AsyncEvent::PortActive(port) if port == nic.port => {
            pause(stop, SETTLE);
            enable(shared, nic);
        }
        AsyncEvent::GidChange(port) if port == nic.port => match nic.disabled_reason() {
            None => update_address(shared, nic),
            Some(NO_ADDRESS) => enable(shared, nic),
            Some(_) => {}
        },
        AsyncEvent::PairFailed(number) => nic.qp_failed(number),
        _ => {}
    }
}

/// The reason recorded for disabling a device whose port has no address.
const NO_ADDRESS: &str = "port has no address";

/// Disables `nic` and retires its endpoints. Their requests are flushed and may use another path.
fn disable(shared: &RdmaShared, nic: &Nic, why: &'static str) {
    if nic.disable(why) {
        tracing::warn!(device = %nic.name, port = nic.port, why, "rdma device disabled");
    }
    // Retire the endpoints even if the polling thread disabled the device first.
    for endpoint in nic.all_endpoints() {
        endpoint.retire(nic, &WorkError::Dropped);
    }
    shared.changed();
}

/// Enables `nic` after its port has come up.
fn enable(shared: &RdmaShared, nic: &Nic) {
    match shared.address(nic) {
        Ok(address) => {
            nic.set_address(address);
            if nic.enable() {
                tracing::info!(device = %nic.name, port = nic.port, "rdma device enabled again");
                shared.changed();
            }
        }
        Err(error) => tracing::warn!(device = %nic.name, port = nic.port, %error, "rdma device stays disabled"),
    }
}

/// Updates the address after `nic`'s GID table or LID has changed.
fn update_address(shared: &RdmaShared, nic: &Nic) {
    match shared.address(nic) {
        Ok(address) if address == nic.address() => {}
        Ok(address) => {
            tracing::info!(device = %nic.name, gid = %address.gid_text(), row = address.gid_index, "rdma device address changed");
            nic.set_address(address);
            for endpoint in nic.all_endpoints() {
                endpoint.retire(nic, &WorkError::Dropped);
            }
            shared.changed();
        }
        Err(error) => {
            tracing::warn!(device = %nic.name, %error, "rdma device has no address left");
            disable(shared, nic, NO_ADDRESS);
        }
    }
}

/// Waits for `limit`, or until the watchers are stopped.
fn pause(stop: &StopSignal, limit: Duration) {
    if wait_readable(&[stop.wake.as_fd()], limit).is_err() {
        thread::yield_now();
    }
}
