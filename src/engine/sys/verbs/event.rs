//! Asynchronous device events.

/// An asynchronous event of a device.
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
    /// The subnet changed (another manager, or a request to reregister). Ignored here.
    Subnet(u8),
    /// A completion queue overran or failed: none of its queue pairs can continue.
    QueueBroken,
    /// A queue pair is in the error state without a completion that reports it. Its local number.
    PairFailed(u32),
    /// An event of a queue pair that needs no action. Its local number.
    PairNote(u32),
    /// Another event, by the library's number.
    Other(u32),
}
