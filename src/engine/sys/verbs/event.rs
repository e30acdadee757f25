//! Asynchronous device events.

/// An asynchronous device event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AsyncEvent {
    /// A port is active again.
    PortActive(u8),
    /// A port is no longer active.
    PortDown(u8),
    /// The device failed, or is being removed.
    DeviceFatal,
    /// The GID table of a port changed.
    GidChange(u8),
    /// The LID of a port changed.
    LidChange(u8),
    /// The P_Key table of a port changed.
    PkeyChange(u8),
    /// The subnet changed (a new subnet manager, or a request to reregister). Ignored here.
    Subnet(u8),
    /// A completion queue overran or failed: none of its queue pairs can continue.
    QueueBroken,
    /// A queue pair is in the error state, and no completion reports it. Contains the queue pair's
    /// local number.
    PairFailed(u32),
    /// A queue pair event that requires no action. Contains the queue pair's local number.
    PairNote(u32),
    /// Another event. Contains the library's event number.
    Other(u32),
}
