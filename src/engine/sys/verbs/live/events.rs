//! Reads asynchronous device events.

use std::io;
use std::time::Duration;

use ibverbs_sys as ffi;
use ibverbs_sys::ibv_event_type as kind;

use super::RdmaDevice;
use crate::readiness::wait_readable;
use crate::verbs::{AsyncEvent, VerbsError};

impl RdmaDevice {
    /// Waits up to `timeout` for the next event. `None` if none arrived, or after a signal. Any
    /// number of threads may wait. Each event is delivered to one of them.
    ///
    /// # Errors
    /// Fails if the device is gone.
    pub fn next_event(&self, timeout: Duration) -> Result<Option<AsyncEvent>, VerbsError> {
        let failed = |source| self.error("ibv_get_async_event", String::new(), source);
        if wait_readable(&[self.events_fd()], timeout).map_err(failed)? == 0 {
            return Ok(None);
        }
        let mut event = ffi::ibv_async_event::default();
        // SAFETY: the context is open, and `event` is writable. The context's descriptor is
        // non-blocking.
        if unsafe { ffi::ibv_get_async_event(self.context(), &raw mut event) } != 0 {
            let error = io::Error::last_os_error();
            return if error.kind() == io::ErrorKind::WouldBlock { Ok(None) } else { Err(failed(error)) };
        }
        // SAFETY: the event was just received and is not acknowledged yet.
        let convert = unsafe { convert(&event) };
        // SAFETY: the event was received and is acknowledged once.
        unsafe { ffi::ibv_ack_async_event(&raw mut event) };
        Ok(Some(convert))
    }
}

/// # Safety
/// The event was received and has not been acknowledged. Until it is acknowledged, the queue pair
/// that it may refer to is not destroyed (`ibv_destroy_qp` blocks).
unsafe fn convert(event: &ffi::ibv_async_event) -> AsyncEvent {
    // SAFETY: the type of an event determines the valid field of the union, and each field is read
    // only for its types.
    let port = || u8::try_from(unsafe { event.element.port_num }).unwrap_or(0);
    // SAFETY: as above. The queue pair is not destroyed (guaranteed by the caller), and its number
    // never changes.
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
