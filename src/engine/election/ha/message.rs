//! The payloads of frames.

use std::ops::Range;
use std::time::Duration;

use bytes::{Buf, BufMut};

use crate::ha::action::{HaMessage, StandbyAck};
use mcctl_base::{ClientId, Unix};

/// A payload does not match the type of its frame. The stream must be closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("malformed replication message: truncated, too long, or of an unknown type")]
pub struct StreamMessageError;

/// Numbers of the messages in a frame of the kind `Control`.
mod tag {
    pub(super) const PING: u8 = 1;
    pub(super) const ACK: u8 = 2;
    pub(super) const TAKE_OVER: u8 = 3;
    pub(super) const READY: u8 = 4;
    pub(super) const RELEASED: u8 = 5;
    pub(super) const CANCEL: u8 = 6;
    pub(super) const RECREATED: u8 = 7;
    pub(super) const LEAVE: u8 = 8;
}

impl HaMessage {
    /// Appends the message to `out`.
    pub fn encode(self, out: &mut Vec<u8>) {
        match self {
            HaMessage::Ping { stamp, promise, last } => {
                out.put_u8(tag::PING);
                out.put_u64_le(stamp);
                out.put_u64_le(u64::try_from(promise.as_millis()).unwrap_or(u64::MAX));
                out.put_u64_le(last);
            }
            HaMessage::Ack(StandbyAck { applied, echo, key_seen, is_preparing }) => {
                out.put_u8(tag::ACK);
                out.put_u64_le(applied);
                let flags = [echo.is_some(), key_seen.is_some(), is_preparing];
                out.put_u8((0..).zip(flags).fold(0, |byte, (bit, flag)| byte | u8::from(flag) << bit));
                out.put_u64_le(echo.unwrap_or(0));
                out.put_u64_le(key_seen.unwrap_or(0));
            }
            HaMessage::TakeOver { last } => {
                out.put_u8(tag::TAKE_OVER);
                out.put_u64_le(last);
            }
            HaMessage::Ready => out.put_u8(tag::READY),
            HaMessage::Released => out.put_u8(tag::RELEASED),
            HaMessage::Cancel => out.put_u8(tag::CANCEL),
            HaMessage::Leave => out.put_u8(tag::LEAVE),
            HaMessage::Recreated { revision } => {
                out.put_u8(tag::RECREATED);
                out.put_u64_le(revision);
            }
        }
    }

    /// Reads a message, which is the whole payload.
    ///
    /// # Errors
    /// The payload is not a message.
    pub fn decode(mut payload: &[u8]) -> Result<HaMessage, StreamMessageError> {
        let input = &mut payload;
        let message = match byte(input)? {
            tag::PING => HaMessage::Ping {
                stamp: number(input)?,
                promise: Duration::from_millis(number(input)?),
                last: number(input)?,
            },
            tag::ACK => {
                let applied = number(input)?;
                let flags = byte(input)?;
                let stamp = number(input)?;
                let seen = number(input)?;
                let given = |bit: u8, value: u64| (flags & bit != 0).then_some(value);
                let echo = given(1, stamp);
                let key_seen = given(2, seen);
                HaMessage::Ack(StandbyAck { applied, echo, key_seen, is_preparing: flags & 4 != 0 })
            }
            tag::TAKE_OVER => HaMessage::TakeOver { last: number(input)? },
            tag::READY => HaMessage::Ready,
            tag::RELEASED => HaMessage::Released,
            tag::CANCEL => HaMessage::Cancel,
            tag::LEAVE => HaMessage::Leave,
            tag::RECREATED => HaMessage::Recreated { revision: number(input)? },
            _ => return Err(StreamMessageError),
        };
        if input.is_empty() { Ok(message) } else { Err(StreamMessageError) }
    }
}

/// The changes in a frame of the kind `Changes`: when they were written, and each one's length and
/// records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Changes<'a> {
    /// Wall-clock time of the leader.
    pub written: Unix,
    encoded: &'a [u8],
}

impl<'a> Changes<'a> {
    /// Begins the payload of a frame.
    pub fn begin(out: &mut Vec<u8>, written: Unix) {
        out.put_i64_le(written.0);
    }

    /// Appends a change to the payload.
    pub fn add(out: &mut Vec<u8>, change: &[u8]) {
        out.put_u32_le(u32::try_from(change.len()).unwrap_or(u32::MAX));
        out.put_slice(change);
    }

    /// Reads a payload.
    ///
    /// # Errors
    /// The payload ends early.
    pub fn decode(payload: &'a [u8]) -> Result<Changes<'a>, StreamMessageError> {
        let mut encoded = payload;
        let written = Unix(encoded.try_get_i64_le().map_err(|_| StreamMessageError)?);
        let mut left = encoded;
        while !left.is_empty() {
            change(&mut left)?;
        }
        Ok(Changes { written, encoded })
    }

    /// Iterates over the changes, in the order of their numbers.
    pub fn iter(self) -> impl Iterator<Item = &'a [u8]> {
        let mut left = self.encoded;
        std::iter::from_fn(move || change(&mut left).ok())
    }
}

fn change<'a>(input: &mut &'a [u8]) -> Result<&'a [u8], StreamMessageError> {
    let length = input.try_get_u32_le().map_err(|_| StreamMessageError)? as usize;
    let (change, rest) = input.split_at_checked(length).ok_or(StreamMessageError)?;
    *input = rest;
    Ok(change)
}

/// The end of a snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SnapshotEnd {
    pub objects: u64,
    /// The digest of the state.
    pub digest: u64,
}

impl SnapshotEnd {
    /// Appends it to `out`.
    pub fn encode(self, out: &mut Vec<u8>) {
        out.put_u64_le(self.objects);
        out.put_u64_le(self.digest);
    }

    /// Reads a payload.
    ///
    /// # Errors
    /// It has another length.
    pub fn decode(mut payload: &[u8]) -> Result<SnapshotEnd, StreamMessageError> {
        let end = SnapshotEnd { objects: number(&mut payload)?, digest: number(&mut payload)? };
        if payload.is_empty() { Ok(end) } else { Err(StreamMessageError) }
    }
}

/// A range of slots.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SlotRange {
    pub from: u32,
    pub count: u32,
}

impl SlotRange {
    /// The range, without slots from `end` on.
    pub fn slots(self, end: u32) -> Range<u32> {
        self.from..self.from.saturating_add(self.count).min(end).max(self.from)
    }

    /// The range after this one; the first one after `end`.
    #[must_use]
    pub fn next(self, end: u32) -> SlotRange {
        let from = self.from.saturating_add(self.count);
        SlotRange { from: if from < end { from } else { 0 }, count: self.count }
    }
}

/// The slots of objects and segments that a digest covers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DigestPart {
    pub objects: SlotRange,
    pub segments: SlotRange,
}

/// Digests of a part of the state. Each covers other slots, because a digest of everything would
/// take too long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StateDigest {
    pub part: DigestPart,
    /// The digest of the objects in these slots.
    pub objects: u64,
    /// The digest of the segments in these slots, and of all clients and metadata records.
    pub tables: u64,
}

impl StateDigest {
    /// Appends it to `out`.
    pub fn encode(self, out: &mut Vec<u8>) {
        for SlotRange { from, count } in [self.part.objects, self.part.segments] {
            out.put_u32_le(from);
            out.put_u32_le(count);
        }
        out.put_u64_le(self.objects);
        out.put_u64_le(self.tables);
    }

    /// Reads a payload.
    ///
    /// # Errors
    /// It has another length.
    pub fn decode(mut payload: &[u8]) -> Result<StateDigest, StreamMessageError> {
        let input = &mut payload;
        let objects = SlotRange { from: short(input)?, count: short(input)? };
        let segments = SlotRange { from: short(input)?, count: short(input)? };
        let part = DigestPart { objects, segments };
        let digest = StateDigest { part, objects: number(input)?, tables: number(input)? };
        if payload.is_empty() { Ok(digest) } else { Err(StreamMessageError) }
    }
}

/// Clients, and how long ago each sent its last ping, in milliseconds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClientPings(pub Vec<(ClientId, u32)>);

impl ClientPings {
    /// Appends them to `out`.
    pub fn encode(&self, out: &mut Vec<u8>) {
        for (ClientId(high, low), age_ms) in &self.0 {
            out.put_u64_le(*high);
            out.put_u64_le(*low);
            out.put_u32_le(*age_ms);
        }
    }

    /// Reads a payload.
    ///
    /// # Errors
    /// It ends early.
    pub fn decode(mut payload: &[u8]) -> Result<ClientPings, StreamMessageError> {
        let mut pings = Vec::with_capacity(payload.len() / 20);
        while !payload.is_empty() {
            let client = ClientId(number(&mut payload)?, number(&mut payload)?);
            pings.push((client, payload.try_get_u32_le().map_err(|_| StreamMessageError)?));
        }
        Ok(ClientPings(pings))
    }
}

fn byte(input: &mut &[u8]) -> Result<u8, StreamMessageError> {
    input.try_get_u8().map_err(|_| StreamMessageError)
}

fn short(input: &mut &[u8]) -> Result<u32, StreamMessageError> {
    input.try_get_u32_le().map_err(|_| StreamMessageError)
}

fn number(input: &mut &[u8]) -> Result<u64, StreamMessageError> {
    input.try_get_u64_le().map_err(|_| StreamMessageError)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_round_trip_and_no_other_length_is_accepted() {
        for message in [
            HaMessage::Ping { stamp: 1, promise: Duration::from_millis(1500), last: 3 },
            HaMessage::Ack(StandbyAck { applied: 4, echo: Some(5), ..StandbyAck::default() }),
            HaMessage::Ack(StandbyAck { applied: 4, key_seen: Some(6), is_preparing: true, ..StandbyAck::default() }),
            HaMessage::TakeOver { last: 6 },
            HaMessage::Ready,
            HaMessage::Released,
            HaMessage::Cancel,
            HaMessage::Leave,
            HaMessage::Recreated { revision: 7 },
        ] {
            let mut bytes = Vec::new();
            message.encode(&mut bytes);
            assert_eq!(HaMessage::decode(&bytes), Ok(message));
            assert_eq!(HaMessage::decode(&bytes[..bytes.len() - 1]), Err(StreamMessageError), "{message:?}");
            bytes.push(0);
            assert_eq!(HaMessage::decode(&bytes), Err(StreamMessageError), "{message:?}");
        }
        assert_eq!(HaMessage::decode(&[99]), Err(StreamMessageError));
    }

    #[test]
    fn changes_round_trip() {
        let mut bytes = Vec::new();
        Changes::begin(&mut bytes, Unix(-5));
        Changes::add(&mut bytes, b"one");
        Changes::add(&mut bytes, b"");
        Changes::add(&mut bytes, b"three");
        let changes = Changes::decode(&bytes).unwrap();
        assert_eq!(changes.written, Unix(-5));
        assert_eq!(changes.iter().collect::<Vec<&[u8]>>(), [&b"one"[..], b"", b"three"]);
        for length in [1, 9, bytes.len() - 1] {
            assert_eq!(Changes::decode(&bytes[..length]), Err(StreamMessageError), "{length}");
        }
    }

    #[test]
    fn ranges_of_slots_cover_all_slots_in_turn() {
        let mut range = SlotRange { from: 0, count: 4 };
        let mut visited = Vec::new();
        for _ in 0..4 {
            visited.push(range.slots(9));
            range = range.next(9);
        }
        assert_eq!(visited, [0..4, 4..8, 8..9, 0..4]);
        let ended = SlotRange { from: 8, count: u32::MAX };
        assert_eq!((ended.slots(3), ended.next(3).from), (8..8, 0));
    }

    #[test]
    fn the_other_payloads_round_trip() {
        let end = SnapshotEnd { objects: 1, digest: u64::MAX };
        let mut bytes = Vec::new();
        end.encode(&mut bytes);
        assert_eq!(SnapshotEnd::decode(&bytes), Ok(end));
        assert_eq!(SnapshotEnd::decode(&bytes[1..]), Err(StreamMessageError));
        let digest = StateDigest {
            part: DigestPart { objects: SlotRange { from: 1, count: 2 }, segments: SlotRange { from: 5, count: 6 } },
            objects: 3,
            tables: 4,
        };
        let mut bytes = Vec::new();
        digest.encode(&mut bytes);
        assert_eq!((bytes.len(), StateDigest::decode(&bytes)), (32, Ok(digest)));
        assert_eq!(StateDigest::decode(&bytes[1..]), Err(StreamMessageError));
        let pings = ClientPings(vec![(ClientId(1, 2), 3), (ClientId(4, 5), 6)]);
        let mut bytes = Vec::new();
        pings.encode(&mut bytes);
        assert_eq!(ClientPings::decode(&bytes), Ok(pings));
        assert_eq!(ClientPings::decode(&bytes[..39]), Err(StreamMessageError));
    }
}
