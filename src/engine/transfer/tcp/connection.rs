//! A connection to a target, over which runs of requests are sent one after another.
//!
//! The protocol has no request numbers, and upstream's initiators send a header only after the
//! previous request has ended. But upstream's targets read one header at a time from the stream, so
//! several requests can be in flight, and are served in order. A run of small requests costs the
//! initiator two system calls in total, instead of two per request. After rejecting a request, the
//! target closes the connection without reading the requests that follow. Version 1 targets may
//! serve only one request per connection, so no runs are sent to them.

use std::io;
use std::net::{Shutdown, TcpStream};
use std::os::fd::{AsFd, AsRawFd};
use std::sync::Arc;
use std::time::Duration;

use nix::sys::socket::MsgFlags;

use crate::tcp::codec::{DONE, FramingVersion, HEADER_BYTES, RequestFrame, STATUS_BYTES, decode_status};
use crate::tcp::progress::{ProgressMonitor, StepTimeout};
use crate::transport::{FaultClass, TransferFault};
use crate::types::OpKind;
use crate::{TransferError, TransferStep};
use mcctl_sys::socket::{ReceivePart, SendPart};
use mcctl_sys::{Slice, socket};

/// Maximum number of requests in a run. With a status and a body each, they use as many buffers as
/// one system call accepts.
pub(super) const RUN_MAX: usize = socket::PARTS_MAX / 2;

/// A request on one connection.
#[derive(Clone)]
pub(super) struct RangeRequest {
    /// Index of the request's operation in the batch.
    pub(super) op: usize,
    /// The fault of an earlier attempt.
    pub(super) before: Option<TransferFault>,
    pub(super) kind: OpKind,
    pub(super) local: Slice,
    pub(super) remote: u64,
}

/// The index of the failed request in its run, and the fault.
pub(super) type RunFailure = (usize, TransferFault);

/// Time limits for a run's steps.
#[derive(Clone, Copy)]
pub(super) struct StepLimits {
    pub(super) status: Duration,
    pub(super) progress: Duration,
}

/// A connection to a target.
pub(super) struct DataConnection {
    stream: TcpStream,
    version: FramingVersion,
    limits: StepLimits,
    names: Arc<PeerNames>,
    /// Whether the connection has served a request. If so, the peer may have closed it in the
    /// meantime.
    served: bool,
}

/// The peer's names, for error messages.
pub(super) struct PeerNames {
    pub(super) segment: String,
    pub(super) peer: String,
}

impl DataConnection {
    pub(super) fn new(
        stream: TcpStream,
        version: FramingVersion,
        limits: StepLimits,
        names: Arc<PeerNames>,
    ) -> DataConnection {
        DataConnection { stream, version, limits, names, served: false }
    }

    /// Whether the peer has closed the connection since the last request.
    pub(super) fn is_closed_by_peer(&self) -> bool {
        self.served && socket::is_closed_by_peer(&self.stream)
    }

    /// Sends the requests in `run`, with the bytes of writes. All must have the same direction, and
    /// there may be at most [`RUN_MAX`].
    ///
    /// # Errors
    /// Fails with the first failed request. The target has not read the requests after a rejected
    /// one.
    pub(super) fn start(&mut self, run: &[RangeRequest], monitor: &mut ProgressMonitor<'_>) -> Result<(), RunFailure> {
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
                let parts = each.flat_map(|(one, header)| [SendPart::Bytes(header), SendPart::Memory(&one.local)]);
                socket::send(self.stream.as_fd(), parts, done)
            };
            match sent {
                Ok(n) => {
                    done += n;
                    if done < total {
                        monitor.moved(TransferStep::Body).map_err(|end| (0, self.give_up(end)))?;
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.early_responses(run, done)?;
                    let step = if done < HEADER_BYTES { TransferStep::Request } else { TransferStep::Body };
                    monitor.still(step, self.limits.progress).map_err(|end| (0, self.give_up(end)))?;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => {
                    // A target that rejects a write sends a status and closes the connection. That
                    // status explains the failure better than this error.
                    let answered = self.early_responses(run, done)?;
                    return Err((answered, self.lost(TransferStep::Request, error, answered > 0)));
                }
            }
        }
        Ok(())
    }

    /// Receives the responses to `run`, and the bytes of reads.
    ///
    /// # Errors
    /// Fails with the first failed request. The requests before it have succeeded.
    pub(super) fn finish(&mut self, run: &[RangeRequest], monitor: &mut ProgressMonitor<'_>) -> Result<(), RunFailure> {
        match (run[0].kind, self.version) {
            (OpKind::Write, FramingVersion::V1) => self.wait_for_close(monitor).map_err(|fault| (0, fault))?,
            _ => self.receive(run, monitor)?,
        }
        self.served = true;
        Ok(())
    }

    fn header(&self, request: &RangeRequest) -> RequestFrame {
        RequestFrame {
            kind: request.kind,
            version: self.version,
            address: request.remote,
            size: request.local.len() as u64,
        }
    }

    /// Checks, without waiting, for responses that arrived before everything was sent. Returns the
    /// number of finished requests.
    fn early_responses(&self, run: &[RangeRequest], sent: usize) -> Result<usize, RunFailure> {
        if self.version == FramingVersion::V1 || run[0].kind == OpKind::Read {
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
                // A success status is invalid before all bytes have been sent.
                return Err((at, self.bad_status(*status)));
            }
        }
        Ok(came)
    }

    /// Receives the statuses for `run`, if the version has them, and the bytes of reads.
    fn receive(&self, run: &[RangeRequest], monitor: &mut ProgressMonitor<'_>) -> Result<(), RunFailure> {
        let mut statuses = [[0; STATUS_BYTES]; RUN_MAX];
        let head = if self.version == FramingVersion::V2 { STATUS_BYTES } else { 0 };
        let bytes = |request: &RangeRequest| if request.kind == OpKind::Read { request.local.len() } else { 0 };
        let total: usize = run.iter().map(|request| head + bytes(request)).sum();
        // The index of the current request (all earlier ones are done), the byte at which its
        // response begins, and the bytes received so far.
        let mut at = 0;
        let mut begin = 0;
        let mut done = 0;
        // Whether request `at` has returned a success status, or needs none.
        let mut good = head == 0;
        monitor.poll(|| self.has_response());
        while done < total {
            let received = if run[0].kind == OpKind::Read {
                let each = run.iter().zip(&mut statuses);
                let parts = each.flat_map(|(one, status)| {
                    [ReceivePart::Bytes(&mut status[..head]), ReceivePart::Memory(&one.local)]
                });
                socket::receive(self.stream.as_fd(), parts, done)
            } else {
                let parts = [ReceivePart::Bytes(statuses[..run.len()].as_flattened_mut())];
                socket::receive(self.stream.as_fd(), parts.into_iter(), done)
            };
            match received {
                Ok(0) if done == 0 && self.version == FramingVersion::V1 => return Err((0, self.refused(&run[0], 0))),
                Ok(0) => {
                    return Err((at, self.lost(TransferStep::Status, io::ErrorKind::UnexpectedEof.into(), done > 0)));
                }
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
                        at += 1;
                        good = head == 0;
                    }
                    if done < total {
                        monitor.moved(TransferStep::Body).map_err(|end| (at, self.give_up(end)))?;
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    let (step, limit) = match done > begin && good {
                        true => (TransferStep::Body, self.limits.progress),
                        false => (TransferStep::Status, self.limits.status),
                    };
                    monitor.still(step, limit).map_err(|end| (at, self.give_up(end)))?;
                }
                Err(error) => {
                    let step = if run[0].kind == OpKind::Read { TransferStep::Body } else { TransferStep::Status };
                    return Err((at, self.lost(step, error, done > 0)));
                }
            }
        }
        Ok(())
    }

    /// Whether a response, or the end of the connection, has arrived.
    fn has_response(&self) -> bool {
        let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_PEEK;
        nix::sys::socket::recv(self.stream.as_raw_fd(), &mut [0], flags) != Err(nix::errno::Errno::EAGAIN)
    }

    /// Waits for the target to close the connection, because version 1 does not acknowledge writes.
    /// After we shut down our half of the connection, a target that has read every byte closes the
    /// connection normally, and one that left bytes unread resets it. The connection cannot be used
    /// afterward.
    fn wait_for_close(&self, monitor: &mut ProgressMonitor<'_>) -> Result<(), TransferFault> {
        self.stream.shutdown(Shutdown::Write).map_err(|e| self.lost(TransferStep::Status, e, false))?;
        let mut byte = [0; 1];
        loop {
            match nix::sys::socket::recv(self.stream.as_raw_fd(), &mut byte, MsgFlags::empty()).map_err(io::Error::from)
            {
                Ok(0) => return Ok(()),
                Ok(_) => return Err(self.bad_status([byte[0], 0, 0, 0, 0, 0, 0, 0])),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    monitor.still(TransferStep::Status, self.limits.status).map_err(|end| self.give_up(end))?;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(self.lost(TransferStep::Status, error, false)),
            }
        }
    }

    fn check(&self, request: &RangeRequest, status: [u8; STATUS_BYTES]) -> Result<(), TransferFault> {
        match decode_status(status) {
            Ok(DONE) => Ok(()),
            Ok(code) => Err(self.refused(request, code)),
            Err(_) => Err(self.bad_status(status)),
        }
    }

    fn refused(&self, request: &RangeRequest, code: u32) -> TransferFault {
        let error = TransferError::Rejected {
            segment: self.names.segment.clone(),
            address: request.remote,
            length: request.local.len() as u64,
            code,
        };
        TransferFault { error, class: FaultClass::Refused }
    }

    fn bad_status(&self, status: [u8; STATUS_BYTES]) -> TransferFault {
        let word = u64::from_le_bytes(status);
        TransferFault {
            error: TransferError::BadStatus { peer: self.names.peer.clone(), word },
            class: FaultClass::Gone,
        }
    }

    fn lost(&self, step: TransferStep, source: io::Error, answered: bool) -> TransferFault {
        let error = TransferError::Lost { peer: self.names.peer.clone(), step, source: Arc::new(source) };
        TransferFault { error, class: if self.served && !answered { FaultClass::Stale } else { FaultClass::Gone } }
    }

    /// Closes the connection after a failure. The caller reports the failure or retries, so the
    /// rest of a write must not arrive later, when another object may occupy the target range.
    /// (Bytes that have already arrived cannot be recalled.)
    pub(super) fn discard(self) {
        if let Err(error) = socket::discard_on_close(&self.stream) {
            tracing::debug!(%error, "cannot set SO_LINGER");
        }
    }

    fn give_up(&self, end: StepTimeout) -> TransferFault {
        let peer = self.names.peer.clone();
        match end {
            StepTimeout::Still(step, limit) => {
                TransferFault { error: TransferError::Timeout { peer, step, limit }, class: FaultClass::Hung }
            }
            StepTimeout::Late(step, limit) => {
                TransferFault { error: TransferError::Timeout { peer, step, limit }, class: FaultClass::Late }
            }
        }
    }
}
