//! Server-sent events, as inference servers send them: frames of `data:` lines with a blank line after each.

/// The longest frame that is read: a cumulative one of a million tokens is far below.
pub const FRAME_BYTES_MAX: usize = 64 << 20;

/// One event of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event<'a> {
    /// The data of a frame.
    Data(&'a [u8]),
    /// `[DONE]`: the answer is complete.
    Done,
}

/// A frame grew beyond [`FRAME_BYTES_MAX`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a frame of the stream has more than {FRAME_BYTES_MAX} bytes")]
pub struct FrameTooLong;

/// Cuts a stream into frames. A line that came whole is not copied.
#[derive(Debug, Default)]
pub struct Frames {
    /// The beginning of a line whose end has not come.
    line: Vec<u8>,
}

impl Frames {
    /// More bytes; `told` hears of every frame that they end.
    ///
    /// Servers of this kind put a frame on one line, so that a frame is told at the end of its line, a blank line before the one
    /// after it comes. Data of several lines (which no known server sends) would be told line by line.
    ///
    /// # Errors
    /// See [`FrameTooLong`].
    pub fn push(&mut self, bytes: &[u8], mut told: impl FnMut(Event<'_>)) -> Result<(), FrameTooLong> {
        let mut rest = bytes;
        while let Some(end) = memchr::memchr(b'\n', rest) {
            let (line, after) = (&rest[..end], &rest[end + 1..]);
            rest = after;
            if self.line.is_empty() {
                tell(line, &mut told);
            } else {
                self.line.extend_from_slice(line);
                tell(&self.line, &mut told);
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

/// Tell what `line` carries, if anything: comments, event names and blank lines do not.
fn tell(line: &[u8], told: &mut impl FnMut(Event<'_>)) {
    let line = line.strip_suffix(b"\r").unwrap_or(line);
    let Some(data) = line.strip_prefix(b"data:") else { return };
    match data.strip_prefix(b" ").unwrap_or(data) {
        b"" => {}
        b"[DONE]" => told(Event::Done),
        data => told(Event::Data(data)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(pieces: &[&str]) -> Vec<String> {
        let (mut frames, mut all) = (Frames::default(), Vec::new());
        for piece in pieces {
            let tell = |event: Event<'_>| {
                all.push(match event {
                    Event::Data(data) => String::from_utf8_lossy(data).into_owned(),
                    Event::Done => "DONE".to_owned(),
                });
            };
            frames.push(piece.as_bytes(), tell).expect("short");
        }
        all
    }

    #[test]
    fn frames_are_found_with_either_end_of_line_and_any_cut() {
        assert_eq!(told(&["data: a\n\ndata: b\r\n\r\ndata: [DONE]\n\n"]), ["a", "b", "DONE"]);
        assert_eq!(told(&["da", "ta: a", "b\n", "\ndata:c\n"]), ["ab", "c"]);
        assert_eq!(told(&[": ping\nevent: x\nid: 1\n\ndata:\n\n"]), Vec::<String>::new());
        assert_eq!(told(&["data: without an end"]), Vec::<String>::new());
    }

    #[test]
    fn a_line_without_end_is_refused() {
        let (mut frames, piece) = (Frames::default(), vec![b'x'; FRAME_BYTES_MAX / 4]);
        let results: Vec<bool> = (0..5).map(|_| frames.push(&piece, |_| {}).is_ok()).collect();
        assert_eq!(results, [true, true, true, true, false]);
    }
}
