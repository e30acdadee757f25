//! An answer of HTTP/1.1 as a stream of pieces: head, data, end. Pure: bytes come in as they were read, however they were cut, and
//! nothing but the head and the beginning of a line is kept.
//!
//! Our own and not hyper's, because this is what a token costs: bytes go from the socket through here to the frames without a
//! copy, a channel, a timer or a buffer per connection.

use std::time::Duration;

use crate::engine::base::text::one_line;

/// Characters of a header's words that are kept.
const WORDS_CHARS: usize = 200;
/// The longest head, and the longest trailer, that is read.
pub const HEAD_BYTES_MAX: usize = 64 << 10;
/// The longest line that gives the length of a chunk.
const CHUNK_LINE_BYTES_MAX: u32 = 1024;

/// What comes is not HTTP/1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    /// The first line is no status line.
    #[error("what came is no HTTP/1 answer")]
    Status,
    /// A header without a colon, or a length that is none.
    #[error("a header of the answer cannot be read")]
    Header,
    /// See [`HEAD_BYTES_MAX`].
    #[error("the head of the answer has more than {HEAD_BYTES_MAX} bytes")]
    Head,
    /// A chunk's length, or what follows a chunk.
    #[error("a chunk of the answer cannot be read")]
    Chunk,
}

/// What is known before the first byte of the body.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Head {
    /// The status.
    pub status: u16,
    /// May the connection take another request afterwards?
    pub keeps: bool,
    /// `Retry-After`, if it is in seconds.
    pub retry_after: Option<Duration>,
    /// `Location`: where else a redirection wants us.
    pub location: Option<String>,
    /// `Content-Type`, where it is not that of a stream.
    pub kind: Option<String>,
}

/// What a header says, as far as it is kept.
pub(super) fn words(value: &[u8]) -> String {
    one_line(&String::from_utf8_lossy(value), WORDS_CHARS)
}

/// Is this the type of a stream of events?
pub(super) fn is_stream(kind: &[u8]) -> bool {
    const STREAM: &[u8] = b"text/event-stream";
    kind.get(..STREAM.len()).is_some_and(|begin| begin.eq_ignore_ascii_case(STREAM))
}

/// The next piece of an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Piece<'a> {
    /// The head.
    Head(Head),
    /// Bytes of the body.
    Data(&'a [u8]),
    /// The answer is whole. What follows belongs to nobody.
    End,
    /// More bytes have to come.
    More,
}

#[derive(Debug)]
enum State {
    Head,
    /// A body of so many more bytes.
    Length(u64),
    /// A body up to the end of the connection.
    ToEnd,
    /// In the line that gives a chunk's length: the length so far, digits, bytes of the line, and whether the digits are over.
    Size {
        size: u64,
        digits: u32,
        line: u32,
        over: bool,
    },
    /// In a chunk of so many more bytes.
    Chunk(u64),
    /// After a chunk, before the end of its line.
    ChunkEnd,
    /// In the trailer: bytes so far, and those of this line.
    Trailer {
        bytes: usize,
        line: usize,
    },
    Ended,
}

const SIZE: State = State::Size { size: 0, digits: 0, line: 0, over: false };

/// Reads one answer.
#[derive(Debug)]
pub struct Answering {
    state: State,
    /// A head that has not come whole.
    head: Vec<u8>,
}

impl Default for Answering {
    fn default() -> Answering {
        Answering::new()
    }
}

impl Answering {
    /// Nothing has come yet.
    pub fn new() -> Answering {
        Answering { state: State::Head, head: Vec::new() }
    }

    /// The next piece of `bytes`, and how many of them it took; to be called again with the rest until it says
    /// [`Piece::More`] or [`Piece::End`].
    ///
    /// # Errors
    /// See [`Malformed`].
    pub fn take<'a>(&mut self, bytes: &'a [u8]) -> Result<(Piece<'a>, usize), Malformed> {
        let mut at = 0;
        loop {
            let rest = &bytes[at..];
            match &mut self.state {
                State::Ended => return Ok((Piece::End, at)),
                _ if rest.is_empty() => return Ok((Piece::More, at)),
                State::Head => {
                    let (head, used) = self.head(rest)?;
                    at += used;
                    if let Some(head) = head {
                        return Ok((Piece::Head(head), at));
                    }
                }
                State::ToEnd => return Ok((Piece::Data(rest), bytes.len())),
                State::Length(left) | State::Chunk(left) => {
                    let data = &rest[..rest.len().min(usize::try_from(*left).unwrap_or(usize::MAX))];
                    *left -= data.len() as u64;
                    if *left == 0 {
                        self.state = if matches!(self.state, State::Chunk(_)) { State::ChunkEnd } else { State::Ended };
                    }
                    return Ok((Piece::Data(data), at + data.len()));
                }
                State::ChunkEnd => match rest[0] {
                    b'\r' => at += 1,
                    b'\n' => (self.state, at) = (SIZE, at + 1),
                    _ => return Err(Malformed::Chunk),
                },
                State::Size { size, digits, line, over } => {
                    let byte = rest[0];
                    at += 1;
                    *line += 1;
                    match (byte, char::from(byte).to_digit(16)) {
                        (b'\n', _) if *digits > 0 => {
                            self.state = match *size {
                                0 => State::Trailer { bytes: 0, line: 0 },
                                size => State::Chunk(size),
                            }
                        }
                        (_, Some(digit)) if !*over && *digits < 15 => {
                            (*size, *digits) = (*size << 4 | u64::from(digit), *digits + 1)
                        }
                        (b';' | b' ' | b'\t' | b'\r', _) if *digits > 0 => *over = true,
                        _ if *over && *line < CHUNK_LINE_BYTES_MAX => {}
                        _ => return Err(Malformed::Chunk),
                    }
                }
                State::Trailer { bytes, line } => {
                    at += 1;
                    *bytes += 1;
                    match rest[0] {
                        b'\r' => {}
                        b'\n' if *line == 0 => self.state = State::Ended,
                        b'\n' => *line = 0,
                        _ if *bytes > HEAD_BYTES_MAX => return Err(Malformed::Head),
                        _ => *line += 1,
                    }
                }
            }
        }
    }

    /// The connection is over: was the answer whole?
    pub fn ends(&self) -> bool {
        matches!(self.state, State::Ended | State::ToEnd)
    }

    /// Bytes of a head; the head once it is whole and no interim one, and how many of the bytes were used.
    fn head(&mut self, bytes: &[u8]) -> Result<(Option<Head>, usize), Malformed> {
        // The end of the head may be cut anywhere: look again at the last three bytes of what came before.
        let before = self.head.len();
        let whole: &[u8] = if before == 0 {
            bytes
        } else {
            self.head.extend_from_slice(bytes);
            &self.head
        };
        let Some(end) = head_end(whole, before.saturating_sub(3)) else {
            if whole.len() > HEAD_BYTES_MAX {
                return Err(Malformed::Head);
            }
            if !b"HTTP/1.".starts_with(&whole[..whole.len().min(7)]) {
                return Err(Malformed::Status);
            }
            if before == 0 {
                self.head.extend_from_slice(bytes);
            }
            return Ok((None, bytes.len()));
        };
        if end > HEAD_BYTES_MAX {
            return Err(Malformed::Head);
        }
        let (head, state) = parse(&whole[..end])?;
        self.head.clear();
        // 1xx: the answer proper comes after it.
        if (100..200).contains(&head.status) {
            return Ok((None, end - before));
        }
        self.state = state;
        Ok((Some(head), end - before))
    }
}

/// Where the head ends, after its blank line.
fn head_end(bytes: &[u8], from: usize) -> Option<usize> {
    memchr::memchr_iter(b'\n', &bytes[from..]).map(|at| from + at).find_map(|at| match &bytes[at + 1..] {
        [b'\n', ..] => Some(at + 2),
        [b'\r', b'\n', ..] => Some(at + 3),
        _ => None,
    })
}

/// A head whose lines have all come.
fn parse(bytes: &[u8]) -> Result<(Head, State), Malformed> {
    let mut lines = bytes.split(|byte| *byte == b'\n').map(|line| line.strip_suffix(b"\r").unwrap_or(line));
    let first = lines.next().and_then(|line| line.strip_prefix(b"HTTP/1.")).ok_or(Malformed::Status)?;
    let (minor, status) = match first {
        [minor @ (b'0' | b'1'), b' ', status @ ..] => (*minor, status),
        _ => return Err(Malformed::Status),
    };
    let status = status.get(..3).and_then(number).filter(|status| *status >= 100).ok_or(Malformed::Status)? as u16;
    let (mut length, mut chunked, mut closes, mut retry_after) = (None, false, minor == b'0', None);
    let (mut location, mut kind) = (None, None);
    for line in lines.take_while(|line| !line.is_empty()) {
        let colon = memchr::memchr(b':', line).ok_or(Malformed::Header)?;
        let (name, value) = (&line[..colon], line[colon + 1..].trim_ascii());
        if name.eq_ignore_ascii_case(b"content-length") {
            let said = number(value).ok_or(Malformed::Header)?;
            if length.is_some_and(|length| length != said) {
                return Err(Malformed::Header);
            }
            length = Some(said);
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
            // A stream's type, that of nearly every answer, costs no allocation.
            kind = (!is_stream(value)).then(|| words(value));
        } else if name.eq_ignore_ascii_case(b"location") {
            location = Some(words(value));
        }
    }
    let state = match (status, chunked, length) {
        (204 | 304, _, _) => State::Ended,
        (_, true, _) => SIZE,
        (_, false, Some(0)) => State::Ended,
        (_, false, Some(length)) => State::Length(length),
        (_, false, None) => State::ToEnd,
    };
    let unclear = matches!(state, State::ToEnd) || (chunked && length.is_some());
    let keeps = !closes && !unclear;
    Ok((Head { status, keeps, retry_after, location, kind }, state))
}

/// A number in decimal digits, and nothing else.
fn number(digits: &[u8]) -> Option<u64> {
    let plain = !digits.is_empty() && digits.len() <= 18 && digits.iter().all(u8::is_ascii_digit);
    plain.then(|| digits.iter().fold(0, |value, digit| value * 10 + u64::from(digit - b'0')))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Read `bytes` in pieces of `step`: the head, the body, whether it ended, and how many bytes were left over.
    fn read(bytes: &[u8], step: usize) -> Result<(Option<Head>, Vec<u8>, bool, usize), Malformed> {
        let (mut answer, mut head, mut body, mut used) = (Answering::new(), None, Vec::new(), 0);
        for piece in bytes.chunks(step) {
            let mut rest = piece;
            loop {
                let (what, took) = answer.take(rest)?;
                (rest, used) = (&rest[took..], used + took);
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
    fn a_body_is_cut_out_by_its_length_by_chunks_or_by_the_end_of_the_connection() {
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
    fn a_connection_is_kept_where_the_end_of_the_answer_is_known_and_nobody_objects() {
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
    fn retry_after_is_read_in_seconds() {
        let head = |value: &str| {
            let text = format!("HTTP/1.1 429 No\r\nRetry-After: {value}\r\ncontent-length: 0\r\n\r\n");
            let head = read(text.as_bytes(), 4096).expect("HTTP").0.expect("a head");
            (head.status, head.retry_after)
        };
        assert_eq!(head("7"), (429, Some(Duration::from_secs(7))));
        assert_eq!(head("Wed, 21 Oct 2015 07:28:00 GMT"), (429, None));
    }

    #[test]
    fn where_a_redirection_leads_and_what_is_no_stream_are_known() {
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
        let long = head(&format!("location: {}\r\n", "x".repeat(10_000))).0.expect("told");
        assert_eq!(long.len(), WORDS_CHARS);
    }

    #[test]
    fn what_is_no_http_is_told_at_once_and_what_has_no_end_in_time() {
        let error = |bytes: &[u8]| read(bytes, 4096).expect_err("no HTTP");
        assert_eq!(error(b"SSH-2.0-OpenSSH_9.2\r\n"), Malformed::Status);
        assert_eq!(error(b"HTTP/1.1 2x0 OK\r\n\r\n"), Malformed::Status);
        assert_eq!(error(b"HTTP/2 200\r\n\r\n"), Malformed::Status);
        assert_eq!(error(b"HTTP/1.1 200 OK\r\nno colon\r\n\r\n"), Malformed::Header);
        assert_eq!(error(b"HTTP/1.1 200 OK\r\ncontent-length: -1\r\n\r\n"), Malformed::Header);
        assert_eq!(error(b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\n"), Malformed::Header);
        assert_eq!(error(&[&b"HTTP/1.1 200 OK\r\nx: "[..], &[b'y'; HEAD_BYTES_MAX]].concat()), Malformed::Head);
        let chunks =
            |text: &str| error(format!("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n{text}").as_bytes());
        assert_eq!(chunks("x\r\n"), Malformed::Chunk);
        assert_eq!(chunks("\r\n"), Malformed::Chunk);
        assert_eq!(chunks("1\r\nabc\r\n"), Malformed::Chunk);
        assert_eq!(chunks("ffffffffffffffff\r\n"), Malformed::Chunk);
        assert_eq!(chunks(&format!("1;{}", "x".repeat(2000))), Malformed::Chunk);
        assert_eq!(chunks(&format!("0\r\n{}", "x".repeat(HEAD_BYTES_MAX + 1))), Malformed::Head);
    }

    #[test]
    fn what_follows_an_answer_is_not_taken_and_half_of_one_is_none() {
        let (_, body, whole, left) = read(b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\n\r\nabc", 4096).expect("HTTP");
        assert_eq!((body, whole, left), (b"a".to_vec(), true, 2));
        for half in ["", "HTTP/1.1 200", "HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nabc"] {
            assert!(!read(half.as_bytes(), 4096).expect("so far").2, "{half}");
        }
    }

    proptest! {
        #[test]
        fn an_answer_is_the_same_however_its_bytes_are_cut(step in 1_usize..80) {
            let text = b"HTTP/1.1 103 Early\r\nlink: x\r\n\r\nHTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\nretry-after: 1\r\n\r\n\
                         4\r\nabcd\r\n12\r\n0123456789abcdefgh\r\n0\r\ntrailer: 1\r\n\r\n";
            let (head, body, whole, left) = read(text, step).expect("HTTP");
            let expected = Head { status: 200, keeps: true, retry_after: Some(Duration::from_secs(1)), ..Head::default() };
            prop_assert_eq!(head, Some(expected));
            prop_assert_eq!((body, whole, left), (b"abcd0123456789abcdefgh".to_vec(), true, 0));
        }

        #[test]
        fn no_bytes_make_it_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200), step in 1_usize..50, which in 0..3_usize) {
            let before: &[u8] = [&b""[..], b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n", b"HTTP/1.1 200 OK\r\n"][which];
            let _ = read(&[before, &bytes[..]].concat(), step);
        }
    }
}
