//! A lane: one connection to a target, on which requests go out one at a time.
//!
//! The protocol has no request numbers: the next header may go out only when the previous request is over. So what runs at the
//! same time runs on different lanes.

use std::io;
use std::net::{Shutdown, TcpStream};
use std::os::fd::{AsFd, AsRawFd};
use std::sync::Arc;
use std::time::Duration;

use nix::sys::socket::MsgFlags;

use crate::engine::sys::{Slice, socket};
use crate::engine::transfer::tcp::codec::{DONE, Header, STATUS_BYTES, Version, decode_status};
use crate::engine::transfer::tcp::watch::{GiveUp, Watch};
use crate::engine::transfer::transport::{Fault, Meaning, OpKind};
use crate::engine::transfer::{Step, TransferError};

/// A request of one lane.
#[derive(Clone)]
pub(super) struct Request {
    pub(super) kind: OpKind,
    pub(super) local: Slice,
    pub(super) remote: u64,
}

/// The limits of a request's steps.
#[derive(Clone, Copy)]
pub(super) struct Limits {
    pub(super) status: Duration,
    pub(super) progress: Duration,
}

/// A connection to a target.
pub(super) struct Lane {
    stream: TcpStream,
    version: Version,
    limits: Limits,
    names: Arc<Names>,
    /// Has it served a request before? Then the peer may have closed it meanwhile.
    served: bool,
}

/// Whom a lane leads to, for errors.
pub(super) struct Names {
    pub(super) segment: String,
    pub(super) peer: String,
}

impl Lane {
    pub(super) fn new(stream: TcpStream, version: Version, limits: Limits, names: Arc<Names>) -> Lane {
        Lane { stream, version, limits, names, served: false }
    }

    /// Send the request, and the bytes of a write.
    pub(super) fn start(&mut self, request: &Request, watch: &mut Watch<'_>) -> Result<(), Fault> {
        let header = self.header(request).encode();
        match request.kind {
            OpKind::Read => self.send(request, &header, &request.local, 0, watch),
            OpKind::Write => self.send(request, &header, &request.local, request.local.len(), watch),
        }
    }

    /// Receive the answer, and the bytes of a read.
    pub(super) fn finish(&mut self, request: &Request, watch: &mut Watch<'_>) -> Result<(), Fault> {
        match (request.kind, self.version) {
            (OpKind::Read, _) => self.receive_bytes(request, watch)?,
            (OpKind::Write, Version::V2) => self.receive_status(request, watch)?,
            (OpKind::Write, Version::V1) => self.wait_for_close(watch)?,
        }
        self.served = true;
        Ok(())
    }

    fn header(&self, request: &Request) -> Header {
        Header { kind: request.kind, version: self.version, address: request.remote, size: request.local.len() as u64 }
    }

    /// Send `header`, then the first `length` bytes of `body`: all or none.
    fn send(
        &self,
        request: &Request,
        header: &[u8],
        body: &Slice,
        length: usize,
        watch: &mut Watch<'_>,
    ) -> Result<(), Fault> {
        let total = header.len() + length;
        let mut done = 0;
        while done < total {
            let sent = if length == 0 {
                nix::sys::socket::send(self.stream.as_raw_fd(), &header[done..], MsgFlags::MSG_NOSIGNAL)
                    .map_err(io::Error::from)
            } else {
                socket::send(self.stream.as_fd(), header, body, done)
            };
            match sent {
                Ok(n) => {
                    done += n;
                    if done < total {
                        watch.moved(Step::Body).map_err(|end| self.give_up(end))?;
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.early_status(request)?;
                    let step = if done < header.len() { Step::Request } else { Step::Body };
                    watch.still(step, self.limits.progress).map_err(|end| self.give_up(end))?;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => {
                    // A target that refuses a write says so and closes; the refusal is the better reason.
                    self.early_status(request)?;
                    return Err(self.lost(Step::Request, error, false));
                }
            }
        }
        Ok(())
    }

    /// Look, without waiting, for a refusal that came before all was sent.
    fn early_status(&self, request: &Request) -> Result<(), Fault> {
        if self.version == Version::V1 || request.kind == OpKind::Read {
            return Ok(());
        }
        let mut status = [0; STATUS_BYTES];
        let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_PEEK;
        match nix::sys::socket::recv(self.stream.as_raw_fd(), &mut status, flags) {
            Ok(STATUS_BYTES) => match self.check(request, status) {
                Err(fault) => Err(fault),
                // Done before all was sent: nobody can know that.
                Ok(()) => Err(self.bad_status(status)),
            },
            _ => Ok(()),
        }
    }

    /// Receive the status of a read, if there is one, and its bytes.
    fn receive_bytes(&self, request: &Request, watch: &mut Watch<'_>) -> Result<(), Fault> {
        let mut status = [0; STATUS_BYTES];
        let head = if self.version == Version::V2 { STATUS_BYTES } else { 0 };
        let total = head + request.local.len();
        let mut done = 0;
        while done < total {
            match socket::receive(self.stream.as_fd(), &mut status[..head], &request.local, done) {
                Ok(0) if done == 0 && self.version == Version::V1 => return Err(self.refused(request, 0)),
                Ok(0) => return Err(self.lost(Step::Status, io::ErrorKind::UnexpectedEof.into(), done > 0)),
                Ok(n) => {
                    let before = done;
                    done += n;
                    if before < head && done >= head {
                        self.check(request, status)?;
                    }
                    if done < total {
                        watch.moved(Step::Body).map_err(|end| self.give_up(end))?;
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    let (step, limit) = if done > 0 && done >= head {
                        (Step::Body, self.limits.progress)
                    } else {
                        (Step::Status, self.limits.status)
                    };
                    watch.still(step, limit).map_err(|end| self.give_up(end))?;
                }
                Err(error) => return Err(self.lost(Step::Body, error, done > 0)),
            }
        }
        Ok(())
    }

    fn receive_status(&self, request: &Request, watch: &mut Watch<'_>) -> Result<(), Fault> {
        let mut status = [0; STATUS_BYTES];
        let mut done = 0;
        while done < STATUS_BYTES {
            match nix::sys::socket::recv(self.stream.as_raw_fd(), &mut status[done..], MsgFlags::empty())
                .map_err(io::Error::from)
            {
                Ok(0) => return Err(self.lost(Step::Status, io::ErrorKind::UnexpectedEof.into(), done > 0)),
                Ok(n) => done += n,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    watch.still(Step::Status, self.limits.status).map_err(|end| self.give_up(end))?;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(self.lost(Step::Status, error, done > 0)),
            }
        }
        self.check(request, status)
    }

    /// Version 1 acknowledges no write. But a target that has taken every byte closes in order when we have closed our half, and
    /// one that left any unread resets the connection; so that tells. The connection is used up.
    fn wait_for_close(&self, watch: &mut Watch<'_>) -> Result<(), Fault> {
        self.stream.shutdown(Shutdown::Write).map_err(|e| self.lost(Step::Status, e, false))?;
        let mut byte = [0; 1];
        loop {
            match nix::sys::socket::recv(self.stream.as_raw_fd(), &mut byte, MsgFlags::empty()).map_err(io::Error::from)
            {
                Ok(0) => return Ok(()),
                Ok(_) => return Err(self.bad_status([byte[0], 0, 0, 0, 0, 0, 0, 0])),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    watch.still(Step::Status, self.limits.status).map_err(|end| self.give_up(end))?;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(self.lost(Step::Status, error, false)),
            }
        }
    }

    fn check(&self, request: &Request, status: [u8; STATUS_BYTES]) -> Result<(), Fault> {
        match decode_status(status) {
            Ok(DONE) => Ok(()),
            Ok(code) => Err(self.refused(request, code)),
            Err(_) => Err(self.bad_status(status)),
        }
    }

    fn refused(&self, request: &Request, code: u32) -> Fault {
        let error = TransferError::Rejected {
            segment: self.names.segment.clone(),
            address: request.remote,
            length: request.local.len() as u64,
            code,
        };
        Fault { error, meaning: Meaning::Refused }
    }

    fn bad_status(&self, status: [u8; STATUS_BYTES]) -> Fault {
        let word = u64::from_le_bytes(status);
        Fault { error: TransferError::BadStatus { peer: self.names.peer.clone(), word }, meaning: Meaning::Gone }
    }

    fn lost(&self, step: Step, source: io::Error, answered: bool) -> Fault {
        let error = TransferError::Lost { peer: self.names.peer.clone(), step, source: Arc::new(source) };
        Fault { error, meaning: if self.served && !answered { Meaning::Stale } else { Meaning::Gone } }
    }

    /// The caller is told that this is over, so what is left of a write must not arrive later, when the target's bytes may be
    /// another object's. (What has arrived there cannot be called back.)
    fn give_up(&self, end: GiveUp) -> Fault {
        if let Err(error) = socket::discard_on_close(&self.stream) {
            tracing::debug!(%error, "SO_LINGER refused");
        }
        let peer = self.names.peer.clone();
        match end {
            GiveUp::Still(step, limit) => {
                Fault { error: TransferError::Timeout { peer, step, limit }, meaning: Meaning::Hung }
            }
            GiveUp::Late(step, limit) => {
                Fault { error: TransferError::Timeout { peer, step, limit }, meaning: Meaning::Late }
            }
        }
    }
}
