//! Mistakes that tests build into the state, to show that the tests find them. Compiled only with the cargo feature `planted-mistakes`.

/// A mistake in the state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlantedMistake {
    /// Freed memory is handed out before the change that freed it is durable.
    RangeFreedBeforeItsRecord,
    /// After a restart, objects do not count as leased.
    LeaseAssumedEnded,
    /// A segment that is mounted again accepts new objects at once.
    RemountWithoutHold,
}
