//! The frames that a standby receives while it stores a snapshot. They are handled afterwards, in
//! order.

use std::collections::VecDeque;

use crate::server::ha::stream::StreamError;
use mcctl_election::ha::frame::{FRAME_HEADER_BYTES, Frame, FrameKind};

/// Frames in the order of their arrival.
#[derive(Debug, Default)]
pub(in crate::server::ha) struct DeferredFrames {
    frames: VecDeque<Frame>,
    bytes: usize,
}

impl DeferredFrames {
    /// Whether a frame must not be handled before the frames that came earlier.
    pub(crate) fn is_ordered(frame: &Frame) -> bool {
        !matches!(frame.kind, FrameKind::Control | FrameKind::Clients)
    }

    /// Appends a frame. All frames may have `bytes_max` bytes.
    ///
    /// # Errors
    /// The frames are too large.
    pub(crate) fn push(&mut self, frame: Frame, bytes_max: usize) -> Result<(), StreamError> {
        self.bytes += FRAME_HEADER_BYTES + frame.payload.len();
        if self.bytes > bytes_max {
            return Err(StreamError::TooManyChanges(bytes_max));
        }
        self.frames.push_back(frame);
        Ok(())
    }

    /// Removes the first frame.
    pub(crate) fn pop(&mut self) -> Option<Frame> {
        let frame = self.frames.pop_front()?;
        self.bytes -= FRAME_HEADER_BYTES + frame.payload.len();
        Some(frame)
    }

    /// Whether there are no frames.
    pub(crate) fn is_empty(&self) -> bool {
        self.frames.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;

    fn frame(sequence: u64, payload: &Bytes) -> Frame {
        Frame { kind: FrameKind::Changes, view: 1, sequence, payload: payload.clone() }
    }

    #[test]
    fn frames_keep_their_order_and_their_size_is_limited() {
        let mut deferred = DeferredFrames::default();
        let payload = Bytes::from(vec![0; 64 << 20]);
        for round in 0..2 {
            for sequence in 0..7 {
                deferred.push(frame(sequence, &payload), 512 << 20).unwrap();
            }
            for sequence in 0..7 {
                assert_eq!(deferred.pop().map(|frame| frame.sequence), Some(sequence), "{round}");
            }
            assert!(deferred.is_empty() && deferred.pop().is_none());
        }
        let pushed = (0..8).map(|sequence| deferred.push(frame(sequence, &payload), 512 << 20));
        assert!(matches!(pushed.collect::<Result<Vec<()>, _>>(), Err(StreamError::TooManyChanges(_))));
    }
}
