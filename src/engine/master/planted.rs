//! Mistakes that tests plant in the master, to show that the crash tests detect them.

/// A mistake in the master. Each mixes bytes or loses acknowledged data after some crash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlantedMistake {
    /// A response leaves before its changes are in the kernel.
    AnswerBeforeRecord,
    /// Freed memory is handed out before the change that freed it is durable.
    RangeFreedBeforeItsRecord,
    /// After a restart, objects do not count as leased.
    LeaseAssumedEnded,
    /// A segment that is mounted again accepts new objects at once.
    RemountWithoutHold,
}

#[cfg(test)]
thread_local! {
    static PLANTED: std::cell::Cell<Option<PlantedMistake>> = const { std::cell::Cell::new(None) };
}

/// Plants `mistake` in the masters that this thread runs. `None`: no mistake.
#[cfg(test)]
pub fn plant(mistake: Option<PlantedMistake>) {
    PLANTED.set(mistake);
}

/// Whether `mistake` is planted.
#[cfg(test)]
pub(super) fn is_planted(mistake: PlantedMistake) -> bool {
    PLANTED.get() == Some(mistake)
}

/// A program contains no planted mistakes: they are compiled for the unit tests only.
#[cfg(not(test))]
pub(super) const fn is_planted(_: PlantedMistake) -> bool {
    false
}
