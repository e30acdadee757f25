//! The bytes that a target has received and not looked at yet: headers, mostly, since a peer may send several requests at once.

use std::io::{self, Read};
use std::net::TcpStream;

use crate::engine::transfer::tcp::codec::{HEADER_BYTES, Header};
use crate::engine::transfer::tcp::lane::RUN_MAX;
use crate::engine::transfer::transport::OpKind;

/// What is received in one call: the headers of a run of reads.
const HEADERS_BYTES: usize = RUN_MAX * HEADER_BYTES;
/// What is received in one call after a small write: likely another one, with its bytes. That copies them once more, and saves more
/// than that in system calls.
const WRITES_BYTES: usize = 32 << 10;
/// The largest small write.
const SMALL_BYTES: u64 = 8 << 10;

/// Received bytes.
pub(super) struct Inbox {
    bytes: Vec<u8>,
    from: usize,
    to: usize,
    ahead: usize,
}

impl Inbox {
    pub(super) fn new() -> Inbox {
        Inbox { bytes: vec![0; HEADERS_BYTES], from: 0, to: 0, ahead: HEADERS_BYTES }
    }

    /// The next header, if it is here whole.
    pub(super) fn header(&mut self) -> Option<Header> {
        let header = Header::decode(self.bytes[self.from..self.to].first_chunk()?);
        self.from += HEADER_BYTES;
        let small_write = header.kind == OpKind::Write && header.size <= SMALL_BYTES;
        self.ahead = if small_write { WRITES_BYTES } else { HEADERS_BYTES };
        Some(header)
    }

    /// The next bytes, at most `most`.
    pub(super) fn take(&mut self, most: usize) -> &[u8] {
        let begin = self.from;
        self.from += most.min(self.to - begin);
        &self.bytes[begin..self.from]
    }

    /// Is the next header here whole?
    pub(super) fn has_header(&self) -> bool {
        self.to - self.from >= HEADER_BYTES
    }

    /// Is nothing here?
    pub(super) fn is_empty(&self) -> bool {
        self.from == self.to
    }

    /// Receive more, in one call. False when the peer has closed.
    ///
    /// # Errors
    /// The socket's.
    pub(super) fn receive(&mut self, mut stream: &TcpStream) -> io::Result<bool> {
        self.bytes.copy_within(self.from..self.to, 0);
        (self.from, self.to) = (0, self.to - self.from);
        if self.bytes.len() < self.ahead {
            self.bytes.resize(self.ahead, 0);
        }
        let got = stream.read(&mut self.bytes[self.to..self.ahead])?;
        self.to += got;
        Ok(got > 0)
    }
}
