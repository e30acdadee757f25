//! A parser that splits an HTTP/1.1 response into head, data and end, without I/O. Input may be
//! split anywhere, and only the head and an incomplete line are buffered.
//!
//! It is used instead of hyper because it runs for every token: bytes pass from the socket to the
//! frame parser without a copy, a channel, a timer or a per-connection buffer.

use std::time::Duration;

use mcctl_base::text::one_line;

/// Maximum number of characters kept from a header value.
const HEADER_CHARS_MAX: usize = 200;
/// Maximum size of a head or a trailer.
pub const HEAD_BYTES_MAX: usize = 64 << 10;
/// Maximum length of a chunk-size line.
const CHUNK_LINE_BYTES_MAX: u32 = 1024;

/// The response is not valid HTTP/1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HttpParseError {
    /// The first line is not a status line.
    #[error("the response is not HTTP/1")]
    Status,
    /// A header has no colon or an invalid length.
    #[error("invalid header in the response")]
    Header,
    /// The head exceeds [`HEAD_BYTES_MAX`].
    #[error("the response head exceeds {HEAD_BYTES_MAX} bytes")]
    Head,
    /// Invalid chunk size or chunk terminator.
    #[error("invalid chunk in the response")]
    Chunk,
}

/// Response head: what is known before the first byte of the body.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ResponseHead {
    pub status: u16,
    /// Whether the connection can be reused after this response.
    pub keeps: bool,
    /// `Retry-After`, if specified in seconds.
    pub retry_after: Option<Duration>,
    /// `Location`, the target of a redirect.
    pub location: Option<String>,
    /// `Content-Type`, unless it denotes an event stream.
    pub kind: Option<String>,
}

/// Returns a header value as text, shortened if needed.
pub(super) fn header_text(value: &[u8]) -> String {
    one_line(&String::from_utf8_lossy(value), HEADER_CHARS_MAX)
}

/// Whether the content type denotes an event stream.
pub(super) fn is_stream(kind: &[u8]) -> bool {
    const STREAM: &[u8] = b"text/event-stream";
    kind.get(..STREAM.len()).is_some_and(|begin| begin.eq_ignore_ascii_case(STREAM))
}

/// A piece of a response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Piece<'a> {
    Head(ResponseHead),
    /// The next bytes of the body.
    Data(&'a [u8]),
    /// The response is complete. Any further bytes do not belong to it.
    End,
    /// More bytes are needed.
    More,
}

#[derive(Debug)]
enum ParseState {
    Head,
    /// In a body with this many bytes remaining.
    Length(u64),
    /// In a body that ends when the connection closes.
    ToEnd,
    /// In a chunk-size line: size so far, number of digits, number of bytes in the line, and
    /// whether the digits have ended.
    Size {
        size: u64,
        digits: u32,
        line: u32,
        over: bool,
    },
    /// In a chunk with this many bytes remaining.
    Chunk(u64),
    /// After a chunk, before its terminator.
    ChunkEnd,
    /// In the trailer: bytes so far, in total and on the current line.
    Trailer {
        bytes: usize,
        line: usize,
    },
    Ended,
}

const SIZE: ParseState = ParseState::Size { size: 0, digits: 0, line: 0, over: false };

/// Incremental parser for one response.
#[derive(Debug)]
pub struct ResponseParser {
    state: ParseState,
    /// The bytes of an incomplete head.
    head: Vec<u8>,
}

impl Default for ResponseParser {
    fn default() -> ResponseParser {
        ResponseParser::new()
    }
}

impl ResponseParser {
    /// Creates a parser for a new response.
    pub fn new() -> ResponseParser {
        ResponseParser { state: ParseState::Head, head: Vec::new() }
    }

    /// Returns the next piece of `bytes` and the number of bytes consumed. Call it again with the
    /// remaining bytes until it returns [`Piece::More`] or [`Piece::End`].
    ///
    /// # Errors
    /// The bytes are not a valid HTTP/1 response; see [`HttpParseError`].
    pub fn take<'a>(&mut self, bytes: &'a [u8]) -> Result<(Piece<'a>, usize), HttpParseError> {
        let mut at = 0;
        loop {
            let rest = &bytes[at..];
            match &mut self.state {
                ParseState::Ended => return Ok((Piece::End, at)),
                _ if rest.is_empty() => return Ok((Piece::More, at)),
                ParseState::Head => {
                    let (head, used) = self.head(rest)?;
                    at += used;
                    if let Some(head) = head {
                        return Ok((Piece::Head(head), at));
                    }
                }
                ParseState::ToEnd => return Ok((Piece::Data(rest), bytes.len())),
                ParseState::Length(left) | ParseState::Chunk(left) => {
                    let data = &rest[..rest.len().min(usize::try_from(*left).unwrap_or(usize::MAX))];
                    *left -= data.len() as u64;
                    if *left == 0 {
                        self.state = if matches!(self.state, ParseState::Chunk(_)) {
                            ParseState::ChunkEnd
                        } else {
                            ParseState::Ended
                        };
                    }
                    return Ok((Piece::Data(data), at + data.len()));
                }
                ParseState::ChunkEnd => match rest[0] {
                    b'\r' => at += 1,
                    b'\n' => (self.state, at) = (SIZE, at + 1),
                    _ => return Err(HttpParseError::Chunk),
                },
                ParseState::Size { size, digits, line, over } => {
                    let byte = rest[0];
                    at += 1;
                    *line += 1;
                    match (byte, char::from(byte).to_digit(16)) {
                        (b'\n', _) if *digits > 0 => {
                            self.state = match *size {
                                0 => ParseState::Trailer { bytes: 0, line: 0 },
                                size => ParseState::Chunk(size),
                            }
                        }
                        (_, Some(digit)) if !*over && *digits < 15 => {
                            (*size, *digits) = (*size << 4 | u64::from(digit), *digits + 1)
                        }
                        (b';' | b' ' | b'\t' | b'\r', _) if *digits > 0 => *over = true,
                        _ if *over && *line < CHUNK_LINE_BYTES_MAX => {}
                        _ => return Err(HttpParseError::Chunk),
                    }
                }
                ParseState::Trailer { bytes, line } => {
                    at += 1;
                    *bytes += 1;
                    match rest[0] {
                        b'\r' => {}
                        b'\n' if *line == 0 => self.state = ParseState::Ended,
                        b'\n' => *line = 0,
                        _ if *bytes > HEAD_BYTES_MAX => return Err(HttpParseError::Head),
                        _ => *line += 1,
                    }
                }
            }
        }
    }

    /// Whether the response is complete now that the connection has closed.
    pub fn ends(&self) -> bool {
        matches!(self.state, ParseState::Ended | ParseState::ToEnd)
    }

    /// Parses head bytes. Returns the head once it is complete and not interim, and the number of
    /// bytes consumed.
    fn head(&mut self, bytes: &[u8]) -> Result<(Option<ResponseHead>, usize), HttpParseError> {
        // The end of the head may be split between two reads, so the last three bytes are searched
        // again.
        let before = self.head.len();
        let whole: &[u8] = if before == 0 {
            bytes
        } else {
            self.head.extend_from_slice(bytes);
            &self.head
        };
        let Some(end) = head_end(whole, before.saturating_sub(3)) else {
            if whole.len() > HEAD_BYTES_MAX {
                return Err(HttpParseError::Head);
            }
            if !b"HTTP/1.".starts_with(&whole[..whole.len().min(7)]) {
                return Err(HttpParseError::Status);
            }
            if before == 0 {
                self.head.extend_from_slice(bytes);
            }
            return Ok((None, bytes.len()));
        };
        if end > HEAD_BYTES_MAX {
            return Err(HttpParseError::Head);
        }
        let (head, state) = parse(&whole[..end])?;
        self.head.clear();
        // 1xx responses are interim: the final response follows.
        if (100..200).contains(&head.status) {
            return Ok((None, end - before));
        }
        self.state = state;
        Ok((Some(head), end - before))
    }
}

/// Returns the end of the head, just after its blank line.
fn head_end(bytes: &[u8], from: usize) -> Option<usize> {
    memchr::memchr_iter(b'\n', &bytes[from..]).map(|at| from + at).find_map(|at| match &bytes[at + 1..] {
        [b'\n', ..] => Some(at + 2),
        [b'\r', b'\n', ..] => Some(at + 3),
        _ => None,
    })
}

/// Parses a complete head.
fn parse(bytes: &[u8]) -> Result<(ResponseHead, ParseState), HttpParseError> {
    let mut lines = bytes.split(|byte| *byte == b'\n').map(|line| line.strip_suffix(b"\r").unwrap_or(line));
    let first = lines.next().and_then(|line| line.strip_prefix(b"HTTP/1.")).ok_or(HttpParseError::Status)?;
    let (minor, status) = match first {
        [minor @ (b'0' | b'1'), b' ', status @ ..] => (*minor, status),
        _ => return Err(HttpParseError::Status),
    };
    let status = status.get(..3).and_then(number).filter(|status| *status >= 100).ok_or(HttpParseError::Status)? as u16;
    let mut length = None;
    let mut chunked = false;
    let mut closes = minor == b'0';
    let mut retry_after = None;
    let mut location = None;
    let mut kind = None;
    for line in lines.take_while(|line| !line.is_empty()) {
        let colon = memchr::memchr(b':', line).ok_or(HttpParseError::Header)?;
        let name = &line[..colon];
        let value = line[colon + 1..].trim_ascii();
        if name.eq_ignore_ascii_case(b"content-length") {
            let value = number(value).ok_or(HttpParseError::Header)?;
            if length.is_some_and(|length| length != value) {
                return Err(HttpParseError::Header);
            }
            length = Some(value);
        } else if name.eq_ignore_ascii_case(b"transfer-encoding") {
            chunked = value.to_ascii_lowercase().ends_with(b"chunked");
        } else if name.eq_ignore_ascii_case(b"connection") {
            let words = value.split(|byte| *byte == b',').map(<[u8]>::trim_ascii);
            for word in words {
                closes = (closes && !word.eq_ignore_ascii_case(b"keep-alive")) || word.eq_ignore_ascii_case(b"close");
            }
        } else if name.eq_ignore_ascii_case(b"retry-after") {
            retry_after = number(value).map(Duration::from_secs);
        } else if name.eq_ignore_ascii_case(b"content-type") {
            // The usual content type, an event stream, needs no allocation.
            kind = (!is_stream(value)).then(|| header_text(value));
        } else if name.eq_ignore_ascii_case(b"location") {
            location = Some(header_text(value));
        }
    }
    let state = match (status, chunked, length) {
        (204 | 304, _, _) => ParseState::Ended,
        (_, true, _) => SIZE,
        (_, false, Some(0)) => ParseState::Ended,
        (_, false, Some(length)) => ParseState::Length(length),
        (_, false, None) => ParseState::ToEnd,
    };
    let unclear = matches!(state, ParseState::ToEnd) || (chunked && length.is_some());
    let keeps = !closes && !unclear;
    Ok((ResponseHead { status, keeps, retry_after, location, kind }, state))
}

/// Parses an unsigned decimal number.
fn number(digits: &[u8]) -> Option<u64> {
    let plain = !digits.is_empty() && digits.len() <= 18 && digits.iter().all(u8::is_ascii_digit);
    plain.then(|| digits.iter().fold(0, |value, digit| value * 10 + u64::from(digit - b'0')))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Reads `bytes` in pieces of `step`. Returns the head, the body, whether the response is
    /// complete, and the number of unused bytes.
    fn read(bytes: &[u8], step: usize) -> Result<(Option<ResponseHead>, Vec<u8>, bool, usize), HttpParseError> {
        let mut answer = ResponseParser::new();
        let mut head = None;
        let mut body = Vec::new();
        let mut used = 0;
        for piece in bytes.chunks(step) {
            let mut rest = piece;
            loop {
                let (what, took) = answer.take(rest)?;
                rest = &rest[took..];
                used += took;
                match what {
                    Piece::Head(it) => head = Some(it),
                    Piece::Data(data) => body.extend_from_slice(data),
                    Piece::End => return Ok((head, body, true, bytes.len() - used)),
                    Piece::More => break,
                }
            }
        }
        Ok((head, body, answer.ends(), bytes.len() - used))
    }

    fn body(bytes: &str) -> String {
        let (_, body, whole, _) = read(bytes.as_bytes(), 4096).expect("HTTP");
        assert!(whole, "{bytes}");
        String::from_utf8(body).expect("text")
    }

    #[test]
    fn body_ends_by_length_by_chunks_or_with_the_connection() {
        assert_eq!(body("HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\nabc"), "abc");
        assert_eq!(body("HTTP/1.1 200\r\nContent-Length:3\r\n\r\nabc"), "abc");
        assert_eq!(
            body("HTTP/1.1 200 OK\r\ntransfer-encoding: Chunked\r\n\r\n3\r\nabc\r\n0A;x=y\r\n0123456789\r\n0\r\n\r\n"),
            "abc0123456789"
        );
        assert_eq!(body("HTTP/1.1 200 OK\ntransfer-encoding: chunked\n\n1\na\n0\nx: y\n\n"), "a");
        assert_eq!(body("HTTP/1.0 200 OK\r\n\r\nall"), "all");
        assert_eq!(body("HTTP/1.1 204 No\r\n\r\n"), "");
        assert_eq!(body("HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\ncontent-length: 1\r\n\r\na"), "a");
    }

    #[test]
    fn connection_is_reused_only_if_the_end_is_known_and_allowed() {
        let keeps = |head: &str| {
            let text = format!("HTTP/1.{head}\r\n\r\n");
            read(text.as_bytes(), 4096).expect("HTTP").0.expect("a head").keeps
        };
        assert!(keeps("1 200 OK\r\ncontent-length: 0"));
        assert!(keeps("0 200 OK\r\ncontent-length: 0\r\nconnection: keep-alive"));
        assert!(!keeps("0 200 OK\r\ncontent-length: 0"));
        assert!(!keeps("1 200 OK\r\ncontent-length: 0\r\nConnection: foo, Close"));
        assert!(!keeps("1 200 OK"));
        assert!(!keeps("1 200 OK\r\ncontent-length: 3\r\ntransfer-encoding: chunked"));
    }

    #[test]
    fn retry_after_is_parsed_in_seconds() {
        let head = |value: &str| {
            let text = format!("HTTP/1.1 429 No\r\nRetry-After: {value}\r\ncontent-length: 0\r\n\r\n");
            let head = read(text.as_bytes(), 4096).expect("HTTP").0.expect("a head");
            (head.status, head.retry_after)
        };
        assert_eq!(head("7"), (429, Some(Duration::from_secs(7))));
        assert_eq!(head("Wed, 21 Oct 2015 07:28:00 GMT"), (429, None));
    }

    #[test]
    fn redirect_target_and_other_content_types_are_kept() {
        let head = |lines: &str| {
            let text = format!("HTTP/1.1 302 Found\r\n{lines}content-length: 0\r\n\r\n");
            let head = read(text.as_bytes(), 4096).expect("HTTP").0.expect("a head");
            (head.location, head.kind)
        };
        let some = |text: &str| Some(text.to_owned());
        assert_eq!(head("Location: /login\r\n"), (some("/login"), None));
        assert_eq!(head("content-type: Text/Event-Stream; charset=utf-8\r\n"), (None, None));
        assert_eq!(
            head("Content-Type: text/html\r\nlocation: h\u{e9}\u{7}\r\n"),
            (some("h\u{e9} "), some("text/html"))
        );
        let long = head(&format!("location: {}\r\n", "x".repeat(10_000))).0.expect("a location");
        assert_eq!(long.len(), HEADER_CHARS_MAX);
    }

    #[test]
    fn malformed_and_oversized_responses_are_refused() {
        let error = |bytes: &[u8]| read(bytes, 4096).expect_err("no HTTP");
        assert_eq!(error(b"SSH-2.0-OpenSSH_9.2\r\n"), HttpParseError::Status);
        assert_eq!(error(b"HTTP/1.1 2x0 OK\r\n\r\n"), HttpParseError::Status);
        assert_eq!(error(b"HTTP/2 200\r\n\r\n"), HttpParseError::Status);
        assert_eq!(error(b"HTTP/1.1 200 OK\r\nno colon\r\n\r\n"), HttpParseError::Header);
        assert_eq!(error(b"HTTP/1.1 200 OK\r\ncontent-length: -1\r\n\r\n"), HttpParseError::Header);
        assert_eq!(error(b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\n"), HttpParseError::Header);
        assert_eq!(error(&[&b"HTTP/1.1 200 OK\r\nx: "[..], &[b'y'; HEAD_BYTES_MAX]].concat()), HttpParseError::Head);
        let chunks =
            |text: &str| error(format!("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n{text}").as_bytes());
        assert_eq!(chunks("x\r\n"), HttpParseError::Chunk);
        assert_eq!(chunks("\r\n"), HttpParseError::Chunk);
        assert_eq!(chunks("1\r\nabc\r\n"), HttpParseError::Chunk);
        assert_eq!(chunks("ffffffffffffffff\r\n"), HttpParseError::Chunk);
        assert_eq!(chunks(&format!("1;{}", "x".repeat(2000))), HttpParseError::Chunk);
        assert_eq!(chunks(&format!("0\r\n{}", "x".repeat(HEAD_BYTES_MAX + 1))), HttpParseError::Head);
    }

    #[test]
    fn bytes_after_a_response_are_left_and_partial_ones_incomplete() {
        let (_, body, whole, left) = read(b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\n\r\nabc", 4096).expect("HTTP");
        assert_eq!((body, whole, left), (b"a".to_vec(), true, 2));
        for half in ["", "HTTP/1.1 200", "HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nabc"] {
            assert!(!read(half.as_bytes(), 4096).expect("so far").2, "{half}");
        }
    }

    proptest! {
        #[test]
        fn a_response_does_not_depend_on_how_its_bytes_are_split(step in 1_usize..80) {
            let text = b"HTTP/1.1 103 Early\r\nlink: x\r\n\r\nHTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\nretry-after: 1\r\n\r\n\
                         4\r\nabcd\r\n12\r\n0123456789abcdefgh\r\n0\r\ntrailer: 1\r\n\r\n";
            let (head, body, whole, left) = read(text, step).expect("HTTP");
            let expected = ResponseHead { status: 200, keeps: true, retry_after: Some(Duration::from_secs(1)), ..ResponseHead::default() };
            prop_assert_eq!(head, Some(expected));
            prop_assert_eq!((body, whole, left), (b"abcd0123456789abcdefgh".to_vec(), true, 0));
        }

        #[test]
        fn arbitrary_bytes_do_not_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200), step in 1_usize..50, which in 0..3_usize) {
            let before: &[u8] = [&b""[..], b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n", b"HTTP/1.1 200 OK\r\n"][which];
            let _ = read(&[before, &bytes[..]].concat(), step);
        }
    }
}
