//! What a device tells unasked.

/// An event of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AsyncEvent {
    /// A port carries data again.
    PortActive(u8),
    /// A port carries none any more.
    PortDown(u8),
    /// The device is broken, or is being taken away.
    DeviceFatal,
    /// The GID table of a port changed.
    GidChange(u8),
    /// The LID of a port changed.
    LidChange(u8),
    /// The P_Key table of a port changed.
    PkeyChange(u8),
    /// Something of the subnet changed (its manager, or all must register again); of no consequence here.
    Subnet(u8),
    /// A completion queue overran or is broken: none of its pairs can go on.
    QueueBroken,
    /// A pair is in error, for a reason that no completion tells. Its local number.
    PairFailed(u32),
    /// Something about a pair that needs nothing done. Its local number.
    PairNote(u32),
    /// Something else, by the library's number.
    Other(u32),
}
