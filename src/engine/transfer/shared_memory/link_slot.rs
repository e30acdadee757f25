//! The current link to a node: opened on demand, released when it ends.

use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::thread;
use std::time::Duration;

use crate::MonoClock;
use crate::shared_memory::link::{MemoryLink, ServerIdentity};
use crate::shared_memory::write_pool::WritePool;
use mcctl_base::Mono;
use mcctl_sys::packet_socket::PacketSocket;

/// Pause after a failed attempt. The node is probably on another host.
const RETRY_AFTER: Duration = Duration::from_secs(30);
/// Minimum time between two links.
const LINK_TIME_MIN: Duration = Duration::from_secs(1);
/// Interval at which connections that hold released buffers are closed.
const SWEEP_EVERY: Duration = Duration::from_secs(5);
/// Stack size of the thread that waits for the end of a link.
const STACK_BYTES: usize = 128 << 10;

/// The current link to a node, if any.
pub(super) struct LinkSlot {
    pub(super) server: ServerIdentity,
    segment: String,
    clock: MonoClock,
    state: Mutex<SlotState>,
    pub(super) writes: WritePool,
}

#[derive(Default)]
struct SlotState {
    link: Option<Arc<MemoryLink>>,
    opening: bool,
    /// No link is opened before this time.
    again: Mono,
}

impl LinkSlot {
    pub(super) fn new(server: ServerIdentity, segment: String, clock: MonoClock) -> Arc<LinkSlot> {
        let state = Mutex::new(SlotState { again: Mono::ZERO, ..SlotState::default() });
        Arc::new(LinkSlot { server, segment, clock, state, writes: WritePool::default() })
    }

    /// Returns the current link. Opens one if there is none, unless another thread is doing so or
    /// an attempt has failed recently.
    pub(super) fn acquire(self: &Arc<Self>) -> Option<Arc<MemoryLink>> {
        let now = (self.clock)();
        {
            let mut state = self.state();
            if let Some(link) = &state.link {
                if link.is_current() {
                    return Some(Arc::clone(link));
                }
                self.end(&mut state, now);
            }
            if state.opening || now < state.again {
                return None;
            }
            state.opening = true;
        }
        let opened = MemoryLink::open(&self.server, now);
        let mut state = self.state();
        state.opening = false;
        // The state stays locked until it contains the link, because the thread may see the end of
        // the connection at once.
        match opened.and_then(|link| self.watch(&link.socket).map(|()| Arc::new(link))) {
            Ok(link) => {
                tracing::info!(segment = %self.segment, "reading the segment's memory directly, because it is on this host");
                state.link = Some(Arc::clone(&link));
                Some(link)
            }
            Err(error) => {
                state.again = now + RETRY_AFTER;
                if !matches!(error.kind(), io::ErrorKind::ConnectionRefused | io::ErrorKind::NotFound) {
                    tracing::debug!(segment = %self.segment, %error, "cannot use shared memory; using the transport");
                }
                None
            }
        }
    }

    /// Returns the current link. Does not open one.
    pub(super) fn current(&self) -> Option<Arc<MemoryLink>> {
        self.state().link.as_ref().filter(|link| link.is_current()).map(Arc::clone)
    }

    /// Releases the mappings, except for those that a read is using.
    fn end(&self, state: &mut SlotState, now: Mono) {
        if let Some(link) = state.link.take() {
            link.socket.close();
            state.again = state.again.max(link.opened + LINK_TIME_MIN);
            self.writes.close_idle();
            tracing::debug!(segment = %self.segment, linked_seconds = now.since(link.opened).as_secs(), "shared memory link ended");
        }
    }

    /// Starts a thread that ends the link when its connection ends.
    fn watch(self: &Arc<Self>, socket: &Arc<PacketSocket>) -> io::Result<()> {
        let slot = Arc::downgrade(self);
        let socket = Arc::clone(socket);
        socket.limit_receive(Some(SWEEP_EVERY))?;
        let watch = move || wait_for_end(&slot, &socket);
        thread::Builder::new().name("te-shm-watch".into()).stack_size(STACK_BYTES).spawn(watch).map(drop)
    }

    fn state(&self) -> MutexGuard<'_, SlotState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for LinkSlot {
    fn drop(&mut self) {
        // Wakes the thread.
        if let Some(link) = self.state.get_mut().unwrap_or_else(PoisonError::into_inner).link.take() {
            link.socket.close();
        }
    }
}

fn wait_for_end(slot: &Weak<LinkSlot>, socket: &Arc<PacketSocket>) {
    loop {
        let received = socket.receive(&mut [0; 1]);
        let Some(slot) = slot.upgrade() else { return };
        if received.is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock) {
            slot.writes.close_outdated();
            continue;
        }
        let now = (slot.clock)();
        let mut state = slot.state();
        if state.link.as_ref().is_some_and(|link| Arc::ptr_eq(&link.socket, socket)) {
            slot.end(&mut state, now);
        }
        return;
    }
}
