//! Chooses a port from the configured range.

use std::io;
use std::ops::RangeInclusive;
use std::sync::Arc;

use crate::TransferError;

/// Maps a random number to a port in `ports`.
pub(crate) fn draw(ports: &RangeInclusive<u16>, random: u64) -> u16 {
    let span = u64::from(ports.end().saturating_sub(*ports.start())) + 1;
    ports.start() + u16::try_from(random % span).expect("less than the span, which is at most 65536")
}

/// Returns the error for `what` if none of `ports` could be bound in `tries` attempts. `source` is
/// the last error.
pub(crate) fn no_port(what: &'static str, ports: &RangeInclusive<u16>, tries: u32, source: io::Error) -> TransferError {
    TransferError::NoPort { what, first: *ports.start(), last: *ports.end(), tries, source: Arc::new(source) }
}
