//! The receive buffer for one of the target's connections. It mostly holds headers, since a peer
//! may send several requests at once.

use std::io::{self, Read};
use std::net::TcpStream;

use crate::tcp::codec::{HEADER_BYTES, RequestFrame};
use crate::tcp::connection::RUN_MAX;
use crate::types::OpKind;

/// Bytes to receive per call: enough for the headers of a run of reads.
const HEADERS_BYTES: usize = RUN_MAX * HEADER_BYTES;
/// Bytes to receive per call after a small write, since another small write and its bytes are
/// likely to follow. The extra copy costs less than the system calls it saves.
const WRITES_BYTES: usize = 32 << 10;
/// Maximum size of a small write.
const SMALL_BYTES: u64 = 8 << 10;

/// Received bytes that have not been processed yet.
pub(super) struct ReceiveBuffer {
    bytes: Vec<u8>,
    from: usize,
    to: usize,
    ahead: usize,
}

impl ReceiveBuffer {
    pub(super) fn new() -> ReceiveBuffer {
        ReceiveBuffer { bytes: vec![0; HEADERS_BYTES], from: 0, to: 0, ahead: HEADERS_BYTES }
    }

    /// Removes the next header, if it has arrived completely.
    pub(super) fn header(&mut self) -> Option<RequestFrame> {
        let header = RequestFrame::decode(self.bytes[self.from..self.to].first_chunk()?);
        self.from += HEADER_BYTES;
        let small_write = header.kind == OpKind::Write && header.size <= SMALL_BYTES;
        self.ahead = if small_write { WRITES_BYTES } else { HEADERS_BYTES };
        Some(header)
    }

    /// Removes and returns up to `most` of the next bytes.
    pub(super) fn take(&mut self, most: usize) -> &[u8] {
        let begin = self.from;
        self.from += most.min(self.to - begin);
        &self.bytes[begin..self.from]
    }

    /// Whether the next header has arrived completely.
    pub(super) fn has_header(&self) -> bool {
        self.to - self.from >= HEADER_BYTES
    }

    pub(super) fn is_empty(&self) -> bool {
        self.from == self.to
    }

    /// Receives more bytes in one call. Returns false if the peer has closed the connection.
    ///
    /// # Errors
    /// Fails with the socket's error.
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
