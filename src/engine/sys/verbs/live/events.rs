//! What a device tells unasked.

use std::io;
use std::time::Duration;

use ibverbs_sys as ffi;
use ibverbs_sys::ibv_event_type as kind;

use super::Device;
use crate::engine::sys::readiness::wait_readable;
use crate::engine::sys::verbs::{AsyncEvent, VerbsError};

impl Device {
    /// The next event, for which it waits so long; `None` when none came, or a signal. Any number of threads may wait; each event
    /// goes to one of them.
    ///
    /// # Errors
    /// The device is gone.
    pub fn next_event(&self, timeout: Duration) -> Result<Option<AsyncEvent>, VerbsError> {
        let failed = |source| self.error("ibv_get_async_event", String::new(), source);
        if wait_readable(&[self.events_fd()], timeout).map_err(failed)? == 0 {
            return Ok(None);
        }
        let mut event = ffi::ibv_async_event::default();
        // SAFETY: the context is open, `event` is for writing. Its descriptor does not block.
        if unsafe { ffi::ibv_get_async_event(self.context(), &raw mut event) } != 0 {
            let error = io::Error::last_os_error();
            return if error.kind() == io::ErrorKind::WouldBlock { Ok(None) } else { Err(failed(error)) };
        }
        // SAFETY: the event was just got and is not acknowledged yet.
        let told = unsafe { told(&event) };
        // SAFETY: it was got, and is acknowledged once.
        unsafe { ffi::ibv_ack_async_event(&raw mut event) };
        Ok(Some(told))
    }
}

/// # Safety
/// The event was got and is not acknowledged: until then, the pair that it may be about is not destroyed (`ibv_destroy_qp` waits).
unsafe fn told(event: &ffi::ibv_async_event) -> AsyncEvent {
    // SAFETY: the type of an event says which of the union's fields it has, and each is read for its types only.
    let port = || u8::try_from(unsafe { event.element.port_num }).unwrap_or(0);
    // SAFETY: as above; the pair is not destroyed (the caller's promise), and its number never changes.
    let pair = || unsafe { (*event.element.qp).qp_num };
    match event.event_type {
        kind::IBV_EVENT_PORT_ACTIVE => AsyncEvent::PortActive(port()),
        kind::IBV_EVENT_PORT_ERR => AsyncEvent::PortDown(port()),
        kind::IBV_EVENT_DEVICE_FATAL => AsyncEvent::DeviceFatal,
        kind::IBV_EVENT_GID_CHANGE => AsyncEvent::GidChange(port()),
        kind::IBV_EVENT_LID_CHANGE => AsyncEvent::LidChange(port()),
        kind::IBV_EVENT_PKEY_CHANGE => AsyncEvent::PkeyChange(port()),
        kind::IBV_EVENT_SM_CHANGE | kind::IBV_EVENT_CLIENT_REREGISTER => AsyncEvent::Subnet(port()),
        kind::IBV_EVENT_CQ_ERR => AsyncEvent::QueueBroken,
        kind::IBV_EVENT_QP_FATAL | kind::IBV_EVENT_QP_REQ_ERR | kind::IBV_EVENT_QP_ACCESS_ERR => {
            AsyncEvent::PairFailed(pair())
        }
        kind::IBV_EVENT_COMM_EST
        | kind::IBV_EVENT_SQ_DRAINED
        | kind::IBV_EVENT_PATH_MIG
        | kind::IBV_EVENT_PATH_MIG_ERR
        | kind::IBV_EVENT_QP_LAST_WQE_REACHED => AsyncEvent::PairNote(pair()),
        other => AsyncEvent::Other(other),
    }
}
