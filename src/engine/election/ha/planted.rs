//! Mistakes that tests plant in a master of a cluster, to prove that the simulation detects them.

/// A mistake in the election, in the acknowledgement of changes, or in the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HaMistake {
    /// The gate lets responses pass after the fence.
    FenceNotChecked,
    /// The gate lets responses pass that the required standbys have not acknowledged.
    AcknowledgementNotAwaited,
    /// PutStart and the other changes that hand out or free memory are answered before the standbys
    /// have them.
    StartAnsweredEarly,
    /// PutEnd is answered before the standbys have it.
    EndAnsweredEarly,
    /// The leader's key is overwritten, without comparing anything.
    KeyOverwritten,
    /// A proof counts from the time at which its confirmation was received.
    MeasuredFromReceipt,
    /// A standby that does not acknowledge is no longer waited for, but stays in the sync record.
    SyncFlagKept,
    /// A standby acknowledges changes that its data directory does not have yet.
    AcknowledgedBeforeStored,
    /// A copy that may lack changes keeps its objects when it is promoted.
    LossyObjectsKept,
    /// A standby allocates only the first half of an object's range.
    StandbyRangeShort,
    /// Memory is used again although the sync record still has the barrier.
    BarrierWrittenLate,
    /// A copy that is older than the barrier keeps its objects when it is promoted.
    BarrierIgnored,
    /// With asynchronous acknowledgements, a response to a change does not wait for the standby
    /// that takes over.
    HandOverNotAwaited,
    /// With asynchronous acknowledgements, a hand-over does not wait for the other standbys in the
    /// sync record.
    ListedNotAwaited,
    /// A candidate drops its objects although its copy is complete.
    CompleteCopyDropped,
    /// A standby that has left the sync record is not added again.
    NotAddedAgain,
    /// A leader does not create its expired key again.
    KeyNotCreatedAgain,
    /// The memory of a displaced write is freed at once.
    QuarantineSkipped,
    /// A standby answers a read of a metadata record although it cannot know whether its copy is
    /// current.
    RecordReadFromCopy,
    /// A client completes the write of another one.
    WriterNotCompared,
    /// A client uses one ID for all its writes.
    WriterIdReused,
}

#[cfg(any(test, debug_assertions))]
thread_local! {
    static PLANTED: std::cell::Cell<Option<HaMistake>> = const { std::cell::Cell::new(None) };
}

/// Plants `mistake` in the cores that this thread uses. `None`: no mistake.
#[cfg(any(test, debug_assertions))]
pub fn plant(mistake: Option<HaMistake>) {
    PLANTED.set(mistake);
}

/// Whether this thread has planted `mistake`.
#[cfg(any(test, debug_assertions))]
pub fn is_planted(mistake: HaMistake) -> bool {
    PLANTED.get() == Some(mistake)
}

/// Always false: a release build contains no planted mistakes.
#[cfg(not(any(test, debug_assertions)))]
pub const fn is_planted(_: HaMistake) -> bool {
    false
}
