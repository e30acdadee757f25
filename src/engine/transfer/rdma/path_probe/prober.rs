//! Probes one path. The probe's queue pairs are destroyed afterward.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::TransferError;
use crate::device_fault::DeviceStep;
use crate::path_probe::{PathProbeFailure, ProbeFailureCause, ProbeRead, ProbeTimings};
use crate::rdma::link::{
    self, CloseReason, DIAL_LIMIT, EndpointLink, LinkAction, LocalEnd, QpConnectError, RemoteEnd, ReplyAction,
};
use crate::rdma::nic::{Nic, PortAddress};
use crate::rdma::peer_view::{PeerView, nic_path};
use crate::rdma::shared::RdmaShared;
use crate::topology::gid::Gid;
use crate::transport::ControlPlane;
use mcctl_base::Mono;
use mcctl_sys::Memory;
use mcctl_sys::readiness::wait_readable;
use mcctl_sys::verbs::{
    AccessFlags, CompletionQueue, CompletionStatus, Direction, MemoryRegion, QpCaps, QueuePair, RdmaRequest,
    VerbsError, WorkCompletion, WorkRequestList,
};

/// Size of the read, in bytes: several packets at any MTU.
const READ_BYTES: u32 = 16 << 10;
/// Number of timed zero-byte writes.
const ROUNDS: usize = 9;
/// Completion queue entries. One request is outstanding at a time, plus any flushed requests from
/// failed queue pairs.
const ENTRIES: u32 = 64;
/// Work requests per queue pair.
const REQUESTS: u32 = 4;
/// How long to poll before sleeping, so that the measured time of a short round trip does not
/// include a wake-up.
const SPIN: Duration = Duration::from_micros(200);
/// Maximum duration of one sleep. A lost event must not stop the probe.
const SLEEP_MAX: Duration = Duration::from_millis(200);

/// Resources shared by the probes from one of our devices.
pub(super) struct DeviceProber<'a> {
    shared: &'a RdmaShared,
    nic: &'a Nic,
    queue: Arc<CompletionQueue>,
    region: MemoryRegion,
    ids: AtomicU64,
}

/// A probe's work request.
#[derive(Clone, Copy)]
struct ProbeRequest {
    direction: Direction,
    len: u32,
    remote: u64,
    rkey: u32,
}

const NOTHING: ProbeRequest = ProbeRequest { direction: Direction::Write, len: 0, remote: 0, rkey: 0 };

impl<'a> DeviceProber<'a> {
    pub(super) fn new(shared: &'a RdmaShared, nic: &'a Nic) -> Result<DeviceProber<'a>, PathProbeFailure> {
        let failed = |error| PathProbeFailure::verb(DeviceStep::Register, &error);
        let memory = Arc::new(Memory::from_vec(vec![0; READ_BYTES as usize]));
        let slice = memory.slice(0, memory.len()).expect("the whole buffer");
        let region = MemoryRegion::register(&nic.domain, &slice, AccessFlags::default()).map_err(failed)?;
        let queue = CompletionQueue::new(&nic.device, ENTRIES, 0).map_err(failed)?;
        Ok(DeviceProber { shared, nic, queue, region, ids: AtomicU64::new(1) })
    }

    /// Probes the path to the peer's device `device` in `view`, with `gid` as our address. `limit`
    /// applies to each response from the handshake port, `move_limit` to each request.
    pub(super) fn attempt(
        &self,
        gid: &Gid,
        (view, device): (&PeerView, usize),
        control: &dyn ControlPlane,
        limit: Duration,
        move_limit: Duration,
    ) -> Result<ProbeTimings, PathProbeFailure> {
        let address = PortAddress { gid_index: gid.index, gid: gid.gid.octets(), ..self.nic.address() };
        let qps: Vec<QueuePair> = (0..self.nic.limits.qps).map(|_| self.qp()).collect::<Result<_, _>>()?;
        self.connect(&address, &qps, (view, device), control, limit.min(DIAL_LIMIT))?;
        for qp in &qps {
            self.go(qp, NOTHING, move_limit)?;
        }
        let rounds = (0..ROUNDS).map(|_| self.go(&qps[0], NOTHING, move_limit));
        let mut writes = rounds.collect::<Result<Vec<Duration>, PathProbeFailure>>()?;
        writes.sort_unstable();
        let read = readable(view, device)
            .map(|request| ProbeRead { bytes: request.len, result: self.go(&qps[0], request, move_limit) });
        Ok(ProbeTimings { writes, read })
    }

    fn qp(&self) -> Result<QueuePair, PathProbeFailure> {
        let failed = |error: VerbsError| PathProbeFailure::verb(DeviceStep::Init, &error);
        let limits = self.nic.limits;
        let settings = &self.shared.settings;
        let wr = REQUESTS.min(limits.requests as u32);
        let caps = QpCaps { wr, sge: limits.sge, inline: limits.inline };
        let qp = QueuePair::new(&self.nic.domain, &self.queue, caps).map_err(failed)?;
        qp.init(self.nic.port, settings.pkey_index).map_err(failed)?;
        Ok(qp)
    }

    /// Exchanges queue pair numbers with the peer and connects the queue pairs.
    fn connect(
        &self,
        address: &PortAddress,
        qps: &[QueuePair],
        (view, device): (&PeerView, usize),
        control: &dyn ControlPlane,
        limit: Duration,
    ) -> Result<(), PathProbeFailure> {
        let now = (self.shared.clock)();
        let mut link = EndpointLink::new(LocalEnd {
            path: nic_path(&self.shared.server, &self.nic.name),
            peer: view.path(device).to_owned(),
            numbers: qps.iter().map(QueuePair::number).collect(),
            gid: address.gid,
            lid: address.lid,
        });
        let LinkAction::Dial(request) = link.next_action(now) else { unreachable!("a new link dials") };
        let reply = control.connect(&view.segment, &request, limit);
        let reply = reply.map_err(|error| PathProbeFailure::unreachable(DeviceStep::Dial, &error))?;
        let mut broken = None;
        let remote_end = link::remote_end(&reply, Some(&view.descriptor), qps.len());
        let next = link.on_reply(&reply, remote_end, now, |remote_end| {
            self.connect_qps(address, qps, remote_end).map_err(|failure| {
                let step = failure.step;
                let message = failure.message.clone();
                broken = Some(failure);
                QpConnectError { step, message, invalid: false, remedy: None }
            })
        });
        if let Some(failure) = broken {
            return Err(failure);
        }
        let mut step = DeviceStep::Dial;
        if let ReplyAction::Ack(ack) = next {
            step = DeviceStep::Ready;
            match control.connect(&view.segment, &ack, limit) {
                Ok(answer) => link.on_ack_reply(&answer),
                Err(error) => return Err(PathProbeFailure::unreachable(step, &error)),
            }
        }
        match link.close_reason() {
            None => Ok(()),
            Some(over) => Err(PathProbeFailure::over(step, over)),
        }
    }

    fn connect_qps(
        &self,
        address: &PortAddress,
        qps: &[QueuePair],
        remote_end: &RemoteEnd,
    ) -> Result<(), PathProbeFailure> {
        qps.iter().zip(&remote_end.numbers).try_for_each(|(qp, number)| {
            let path_attributes = self.shared.path_attributes(self.nic, address, remote_end, *number);
            qp.connect(&path_attributes).map_err(|error| {
                let step = if error.what.ends_with("RTS") { DeviceStep::Rts } else { DeviceStep::Rtr };
                PathProbeFailure::verb(step, &error)
            })
        })
    }

    /// Runs `request` and returns its duration.
    fn go(&self, qp: &QueuePair, request: ProbeRequest, limit: Duration) -> Result<Duration, PathProbeFailure> {
        let id = self.ids.fetch_add(1, Ordering::Relaxed);
        let mut chain = WorkRequestList::new();
        let ProbeRequest { direction, len, remote, rkey } = request;
        let work = RdmaRequest { direction, offset: 0, len, remote_address: remote, rkey, id, signaled: true };
        chain.push(&self.region, work).expect("the request fits in the region");
        let start = (self.shared.clock)();
        qp.post(&mut chain).map_err(|refused| PathProbeFailure {
            step: DeviceStep::Post,
            cause: ProbeFailureCause::Verb { call: "ibv_post_send", errno: refused.source.raw_os_error().unwrap_or(0) },
            message: refused.to_string(),
        })?;
        let completion = self.completion(id, start, limit)?;
        if completion.status.is_ok() {
            return Ok((self.shared.clock)().since(start));
        }
        Err(PathProbeFailure::completion(completion.status, completion.vendor_error))
    }

    /// Waits for the completion of request `id`, posted at `start`.
    fn completion(&self, id: u64, start: Mono, limit: Duration) -> Result<WorkCompletion, PathProbeFailure> {
        let broken = |error: VerbsError| PathProbeFailure::verb(DeviceStep::Move, &error);
        let mut list = [WorkCompletion::EMPTY; 8];
        let mut armed = false;
        loop {
            let fetched = self.queue.poll(&mut list).map_err(broken)?;
            // Other completions are from earlier probes.
            if let Some(found) = list[..fetched].iter().find(|completion| completion.id == id) {
                return Ok(*found);
            }
            let waited = (self.shared.clock)().since(start);
            if waited >= limit {
                let message = format!("no completion within {limit:?}");
                return Err(PathProbeFailure {
                    step: DeviceStep::Move,
                    cause: ProbeFailureCause::Silence(limit),
                    message,
                });
            }
            if waited < SPIN {
                std::hint::spin_loop();
            } else if !armed {
                // A completion that arrived before the completion queue was armed generates no
                // event, so poll once more.
                self.queue.arm().map_err(broken)?;
                armed = true;
            } else {
                let _ = wait_readable(&[self.queue.fd()], limit.saturating_sub(waited).min(SLEEP_MAX));
                self.queue.clear();
                armed = false;
            }
        }
    }
}

/// Returns a read of memory that the peer exposes through its device `device`, if any.
fn readable(view: &PeerView, device: usize) -> Option<ProbeRequest> {
    let buffers = view.descriptor.buffers.iter().filter(|buffer| buffer.length > 0);
    let keyed = buffers.filter_map(|buffer| Some((buffer.length, buffer.address, *buffer.rkey.get(device)?)));
    let (length, remote, rkey) = keyed.max_by_key(|(length, ..)| *length)?;
    let len = u32::try_from(length).unwrap_or(u32::MAX).min(READ_BYTES);
    Some(ProbeRequest { direction: Direction::Read, len, remote, rkey })
}

impl PathProbeFailure {
    fn verb(step: DeviceStep, error: &VerbsError) -> PathProbeFailure {
        PathProbeFailure {
            step,
            cause: ProbeFailureCause::Verb { call: error.what, errno: error.errno() },
            message: error.to_string(),
        }
    }

    fn unreachable(step: DeviceStep, error: &TransferError) -> PathProbeFailure {
        PathProbeFailure { step, cause: ProbeFailureCause::Unreachable, message: error.chain().to_string() }
    }

    fn completion(status: CompletionStatus, vendor: u32) -> PathProbeFailure {
        let message = format!("work completion {status}, vendor error {vendor:#x}");
        PathProbeFailure { step: DeviceStep::Move, cause: ProbeFailureCause::Completion(status), message }
    }

    /// Converts the reason why the link was closed into a probe failure.
    fn over(step: DeviceStep, over: &CloseReason) -> PathProbeFailure {
        let cause = match over {
            CloseReason::Refused(_) => ProbeFailureCause::Refused,
            CloseReason::NoRdma => ProbeFailureCause::OtherProtocol,
            _ => ProbeFailureCause::Answer,
        };
        PathProbeFailure { step, cause, message: over.to_string() }
    }
}
