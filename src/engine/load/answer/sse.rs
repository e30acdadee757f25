//! Server-sent events, as sent by inference servers: frames of `data:` lines, each followed by a
//! blank line.

/// Maximum frame size. Even a cumulative frame with a million tokens is far smaller.
pub(super) const FRAME_BYTES_MAX: usize = 64 << 20;

/// One event in a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SseEvent<'a> {
    /// The data of a frame.
    Data(&'a [u8]),
    /// `[DONE]`: the response is complete.
    Done,
}

/// A frame exceeded [`FRAME_BYTES_MAX`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a frame in the stream exceeds {FRAME_BYTES_MAX} bytes")]
pub struct FrameTooLong;

/// Splits a stream into frames. A line that arrives in one piece is not copied.
#[derive(Debug, Default)]
pub struct SseParser {
    /// The start of a line that has not been terminated yet.
    line: Vec<u8>,
}

impl SseParser {
    /// Parses more bytes and calls `emit` for every frame that they complete.
    ///
    /// Inference servers put each frame on one line, so a frame is emitted at the end of its line
    /// without waiting for the blank line. Multi-line data, which no known server sends, would be
    /// emitted line by line.
    ///
    /// # Errors
    /// A line exceeds [`FRAME_BYTES_MAX`].
    pub fn push(&mut self, bytes: &[u8], mut emit: impl FnMut(SseEvent<'_>)) -> Result<(), FrameTooLong> {
        let mut rest = bytes;
        while let Some(end) = memchr::memchr(b'\n', rest) {
            let line = &rest[..end];
            let after = &rest[end + 1..];
            rest = after;
            if self.line.is_empty() {
                parse_line(line, &mut emit);
            } else {
                self.line.extend_from_slice(line);
                parse_line(&self.line, &mut emit);
                self.line.clear();
            }
        }
        if self.line.len() + rest.len() > FRAME_BYTES_MAX {
            return Err(FrameTooLong);
        }
        self.line.extend_from_slice(rest);
        Ok(())
    }
}

/// Emits the data in `line`, if any. Comments, event names and blank lines contain none.
fn parse_line(line: &[u8], emit: &mut impl FnMut(SseEvent<'_>)) {
    let line = line.strip_suffix(b"\r").unwrap_or(line);
    let Some(data) = line.strip_prefix(b"data:") else { return };
    match data.strip_prefix(b" ").unwrap_or(data) {
        b"" => {}
        b"[DONE]" => emit(SseEvent::Done),
        data => emit(SseEvent::Data(data)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn events(pieces: &[&str]) -> Vec<String> {
        let mut frames = SseParser::default();
        let mut all = Vec::new();
        for piece in pieces {
            let emit = |event: SseEvent<'_>| {
                all.push(match event {
                    SseEvent::Data(data) => String::from_utf8_lossy(data).into_owned(),
                    SseEvent::Done => "DONE".to_owned(),
                });
            };
            frames.push(piece.as_bytes(), emit).expect("short");
        }
        all
    }

    #[test]
    fn frames_are_found_with_any_line_ending_and_any_split() {
        assert_eq!(events(&["data: a\n\ndata: b\r\n\r\ndata: [DONE]\n\n"]), ["a", "b", "DONE"]);
        assert_eq!(events(&["da", "ta: a", "b\n", "\ndata:c\n"]), ["ab", "c"]);
        assert_eq!(events(&[": ping\nevent: x\nid: 1\n\ndata:\n\n"]), Vec::<String>::new());
        assert_eq!(events(&["data: without an end"]), Vec::<String>::new());
    }

    #[test]
    fn endless_line_is_refused() {
        let mut frames = SseParser::default();
        let piece = vec![b'x'; FRAME_BYTES_MAX / 4];
        let results: Vec<bool> = (0..5).map(|_| frames.push(&piece, |_| {}).is_ok()).collect();
        assert_eq!(results, [true, true, true, true, false]);
    }
}
