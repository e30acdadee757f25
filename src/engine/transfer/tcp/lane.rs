//! A lane: one connection to a target, on which runs of requests go out one at a time.
//!
//! The protocol has no request numbers, and upstream's initiators send a header only when the request before is over. But its
//! targets read a header at a time from the stream, so that several requests may as well be in it: they are served in order. A run
//! of small requests costs the initiator two system calls where one at a time would take two for each. After a refusal the target
//! closes, and has not looked at the requests behind. Version 1 targets may serve one request a connection, and get no runs.

use std::io;
use std::net::{Shutdown, TcpStream};
use std::os::fd::{AsFd, AsRawFd};
use std::sync::Arc;
use std::time::Duration;

use nix::sys::socket::MsgFlags;

use crate::engine::sys::socket::{Incoming, Outgoing};
use crate::engine::sys::{Slice, socket};
use crate::engine::transfer::tcp::codec::{DONE, HEADER_BYTES, Header, STATUS_BYTES, Version, decode_status};
use crate::engine::transfer::tcp::watch::{GiveUp, Watch};
use crate::engine::transfer::transport::{Fault, Meaning, OpKind};
use crate::engine::transfer::{Step, TransferError};

/// Most requests of a run: with status and bytes each, as many parts as one system call takes.
pub(super) const RUN_MAX: usize = socket::PARTS_MAX / 2;

/// A request of one lane.
#[derive(Clone)]
pub(super) struct Request {
    /// The number of its operation in the batch.
    pub(super) op: usize,
    /// How an earlier try of it ended.
    pub(super) before: Option<Fault>,
    pub(super) kind: OpKind,
    pub(super) local: Slice,
    pub(super) remote: u64,
}

/// Which request of a run failed, and why.
pub(super) type Failed = (usize, Fault);

/// The limits of a run's steps.
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

    /// Send the requests of `run`, which are one way all and at most [`RUN_MAX`], and the bytes of writes.
    ///
    /// # Errors
    /// The first that failed, and why. Those behind a refused one were not looked at.
    pub(super) fn start(&mut self, run: &[Request], watch: &mut Watch<'_>) -> Result<(), Failed> {
        let mut headers = [[0; HEADER_BYTES]; RUN_MAX];
        let mut total = run.len() * HEADER_BYTES;
        for (header, request) in headers.iter_mut().zip(run) {
            *header = self.header(request).encode();
            total += if request.kind == OpKind::Write { request.local.len() } else { 0 };
        }
        let mut done = 0;
        while done < total {
            let sent = if run[0].kind == OpKind::Read {
                let bytes = &headers.as_flattened()[done..total];
                nix::sys::socket::send(self.stream.as_raw_fd(), bytes, MsgFlags::MSG_NOSIGNAL).map_err(io::Error::from)
            } else {
                let each = run.iter().zip(&headers);
                let parts = each.flat_map(|(one, header)| [Outgoing::Bytes(header), Outgoing::Memory(&one.local)]);
                socket::send(self.stream.as_fd(), parts, done)
            };
            match sent {
                Ok(n) => {
                    done += n;
                    if done < total {
                        watch.moved(Step::Body).map_err(|end| (0, self.give_up(end)))?;
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.early_answers(run, done)?;
                    let step = if done < HEADER_BYTES { Step::Request } else { Step::Body };
                    watch.still(step, self.limits.progress).map_err(|end| (0, self.give_up(end)))?;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => {
                    // A target that refuses a write says so and closes; the refusal is the better reason.
                    let answered = self.early_answers(run, done)?;
                    return Err((answered, self.lost(Step::Request, error, answered > 0)));
                }
            }
        }
        Ok(())
    }

    /// Receive the answers to `run`, and the bytes of reads.
    ///
    /// # Errors
    /// The first that failed, and why; those before it are done.
    pub(super) fn finish(&mut self, run: &[Request], watch: &mut Watch<'_>) -> Result<(), Failed> {
        match (run[0].kind, self.version) {
            (OpKind::Write, Version::V1) => self.wait_for_close(watch).map_err(|fault| (0, fault))?,
            _ => self.receive(run, watch)?,
        }
        self.served = true;
        Ok(())
    }

    fn header(&self, request: &Request) -> Header {
        Header { kind: request.kind, version: self.version, address: request.remote, size: request.local.len() as u64 }
    }

    /// Look, without waiting, for answers that came before all was sent: how many requests are done.
    fn early_answers(&self, run: &[Request], sent: usize) -> Result<usize, Failed> {
        if self.version == Version::V1 || run[0].kind == OpKind::Read {
            return Ok(0);
        }
        let mut statuses = [[0; STATUS_BYTES]; RUN_MAX];
        let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_PEEK;
        let waiting = statuses[..run.len()].as_flattened_mut();
        let came = nix::sys::socket::recv(self.stream.as_raw_fd(), waiting, flags).unwrap_or(0) / STATUS_BYTES;
        let mut end = 0;
        for (at, status) in statuses[..came].iter().enumerate() {
            end += HEADER_BYTES + run[at].local.len();
            self.check(&run[at], *status).map_err(|fault| (at, fault))?;
            if end > sent {
                // Done before all was sent: nobody can know that.
                return Err((at, self.bad_status(*status)));
            }
        }
        Ok(came)
    }

    /// Receive the statuses of `run`, if there are any, and the bytes of reads.
    fn receive(&self, run: &[Request], watch: &mut Watch<'_>) -> Result<(), Failed> {
        let mut statuses = [[0; STATUS_BYTES]; RUN_MAX];
        let head = if self.version == Version::V2 { STATUS_BYTES } else { 0 };
        let bytes = |request: &Request| if request.kind == OpKind::Read { request.local.len() } else { 0 };
        let total: usize = run.iter().map(|request| head + bytes(request)).sum();
        // All before this request is done, and its answer begins at this byte.
        let (mut at, mut begin, mut done) = (0, 0, 0);
        // Is the status of request `at` good?
        let mut good = head == 0;
        while done < total {
            let received = if run[0].kind == OpKind::Read {
                let each = run.iter().zip(&mut statuses);
                let parts =
                    each.flat_map(|(one, status)| [Incoming::Bytes(&mut status[..head]), Incoming::Memory(&one.local)]);
                socket::receive(self.stream.as_fd(), parts, done)
            } else {
                let parts = [Incoming::Bytes(statuses[..run.len()].as_flattened_mut())];
                socket::receive(self.stream.as_fd(), parts.into_iter(), done)
            };
            match received {
                Ok(0) if done == 0 && self.version == Version::V1 => return Err((0, self.refused(&run[0], 0))),
                Ok(0) => return Err((at, self.lost(Step::Status, io::ErrorKind::UnexpectedEof.into(), done > 0))),
                Ok(n) => {
                    done += n;
                    while at < run.len() && done >= begin + head {
                        if !good {
                            self.check(&run[at], statuses[at]).map_err(|fault| (at, fault))?;
                            good = true;
                        }
                        if done < begin + head + bytes(&run[at]) {
                            break;
                        }
                        begin += head + bytes(&run[at]);
                        (at, good) = (at + 1, head == 0);
                    }
                    if done < total {
                        watch.moved(Step::Body).map_err(|end| (at, self.give_up(end)))?;
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    let (step, limit) = match done > begin && good {
                        true => (Step::Body, self.limits.progress),
                        false => (Step::Status, self.limits.status),
                    };
                    watch.still(step, limit).map_err(|end| (at, self.give_up(end)))?;
                }
                Err(error) => {
                    let step = if run[0].kind == OpKind::Read { Step::Body } else { Step::Status };
                    return Err((at, self.lost(step, error, done > 0)));
                }
            }
        }
        Ok(())
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

    /// Close it after a failure. The caller is told that it is over, or tries again, so what is left of a write must not arrive later,
    /// when the target's bytes may be another object's. (What has arrived there cannot be called back.)
    pub(super) fn discard(self) {
        if let Err(error) = socket::discard_on_close(&self.stream) {
            tracing::debug!(%error, "SO_LINGER refused");
        }
    }

    fn give_up(&self, end: GiveUp) -> Fault {
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
