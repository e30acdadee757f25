//! Connects endpoints: dials peers, and replies to peers that dial us. The state machine in
//! [`link`] decides which message is due, and this module sends it.

use std::sync::Arc;
use std::time::Duration;

use crate::TransferError;
use crate::device_fault::{Blame, DeviceStep};
use crate::rdma::batch::WorkError;
use crate::rdma::endpoint::{Endpoint, EndpointQp, EndpointState};
use crate::rdma::link::{
    self, CloseReason, DIAL_LIMIT, EndpointLink, HandshakeRefusal, LinkAction, LocalEnd, QpConnectError, RemoteEnd,
    ReplyAction, RequestOutcome,
};
use crate::rdma::nic::{self, Nic, PortAddress};
use crate::rdma::peer_view::{PeerView, nic_path};
use crate::rdma::shared::RdmaShared;
use crate::transport::ControlPlane;
use crate::types::Deadline;
use mcctl_base::Mono;
use mcctl_sys::verbs::{Mtu, PathAttributes, QpCaps, QueuePair, VerbsError};
use mcctl_wire::json::ConnectionMessage;

/// Hop limit for RoCE packets.
const HOP_LIMIT: u8 = 16;
/// Timeout for fetching the descriptor of a peer whose request does not include its address.
const FIND_LIMIT: Duration = Duration::from_secs(5);
/// Maximum number of endpoints to try for one request.
const ANEW_MAX: usize = 4;

impl RdmaShared {
    /// Returns `nic`'s endpoint for `path`. Creates it if missing. A new endpoint is not connected
    /// yet.
    ///
    /// # Errors
    /// Fails if the endpoint limit has been reached or the device cannot create queue pairs.
    pub(super) fn endpoint(&self, nic: &Arc<Nic>, path: &str, now: Mono) -> Result<Arc<Endpoint>, TransferError> {
        nic.endpoint(path, || self.make_endpoint(nic, path, now))
    }

    fn make_endpoint(&self, nic: &Nic, path: &str, now: Mono) -> Result<Endpoint, TransferError> {
        let caps = QpCaps { wr: nic.limits.requests as u32, sge: nic.limits.sge, inline: nic.limits.inline };
        let qp = |_| {
            let qp = QueuePair::new(&nic.domain, &nic.queue, caps)?;
            qp.init(nic.port, self.settings.pkey_index)?;
            Ok(EndpointQp::new(qp, nic.generation()))
        };
        let qps: Result<Vec<EndpointQp>, VerbsError> = (0..nic.limits.qps).map(qp).collect();
        let failed = |error: VerbsError| {
            nic.fault_with(path, DeviceStep::Init, error.to_string(), Blame::Device, error.remedy())
        };
        let qps = qps.map_err(failed)?;
        let (address, _) = nic.address_to(path);
        let link = EndpointLink::new(LocalEnd {
            path: nic_path(&self.server, &nic.name),
            peer: path.to_owned(),
            numbers: qps.iter().map(|qp| qp.qp.number()).collect(),
            gid: address.gid,
            lid: address.lid,
        });
        Ok(Endpoint::new(path.to_owned(), address, link, qps, now))
    }

    /// Connects `endpoint`, which leads to the peer's device `device` in `view`. Returns when the
    /// endpoint is connected or retired, or when the batch's deadline has passed.
    pub(super) fn connect(
        &self,
        nic: &Arc<Nic>,
        endpoint: &Arc<Endpoint>,
        (view, device): (&PeerView, usize),
        control: &dyn ControlPlane,
        deadline: Deadline,
    ) {
        let mut state = endpoint.state();
        while state.retired.is_none() {
            let now = (self.clock)();
            if now >= deadline.until {
                return;
            }
            match state.link.next_action(now) {
                LinkAction::Post => {
                    let mut over = nic::FinishedWork::default();
                    self.open(nic, endpoint, &mut state, &mut over);
                    drop(state);
                    over.deliver();
                    return;
                }
                LinkAction::Wait(until) => {
                    let limit = until.since(now).min(deadline.left(now)).max(Duration::from_millis(1));
                    state = endpoint.await_change(state, limit);
                }
                LinkAction::Over(why) => {
                    let error = self.unconnected(nic, endpoint.path(), &why);
                    let gid = state.link.local_end().gid;
                    drop(state);
                    // A link that ended because a newer one replaced it does not indicate a fault
                    // at the peer.
                    let again =
                        why.is_transient() || (why.is_gid_problem() && self.next_gid(nic, endpoint.path(), &gid));
                    let error = if again { WorkError::Dropped } else { WorkError::Link(error) };
                    endpoint.retire(nic, &error);
                    return;
                }
                LinkAction::Dial(request) => {
                    drop(state);
                    self.dial(nic, endpoint, (view, device), control, &request, deadline.left(now).min(DIAL_LIMIT));
                    state = endpoint.state();
                }
            }
        }
    }

    /// Sends `request` and handles the reply, including the ready ACK.
    fn dial(
        &self,
        nic: &Arc<Nic>,
        endpoint: &Arc<Endpoint>,
        (view, device): (&PeerView, usize),
        control: &dyn ControlPlane,
        request: &ConnectionMessage,
        limit: Duration,
    ) {
        let started = (self.clock)();
        let reply = if self.may_dial(nic.index, endpoint.path(), started) {
            control
                .connect(&view.segment, request, limit)
                .map_err(|error| self.classify_dial_error(&error, started, limit))
        } else {
            Err(CloseReason::Unreachable(
                "not dialed because a previous attempt failed less than MC_CONN_PAUSE_TTL_MS ago".to_owned(),
            ))
        };
        let now = (self.clock)();
        let mut state = endpoint.state();
        let next = match reply {
            Ok(reply) => {
                let remote_end = link::remote_end(&reply, Some(&view.descriptor), nic.limits.qps);
                let EndpointState { link, qps, .. } = &mut *state;
                link.on_reply(&reply, remote_end, now, |remote_end| {
                    self.connect_qps(nic, endpoint.address(), qps, remote_end)
                })
            }
            Err(why) => state.link.on_no_reply(why),
        };
        endpoint.notify_waiters();
        if state.link.close_reason().is_some_and(|over| !over.is_transient()) {
            self.dial_failed(nic.index, endpoint.path(), now);
        }
        if let ReplyAction::Ack(ack) = next {
            drop(state);
            let answer = control.connect(
                &view.segment,
                &ack,
                limit.saturating_sub(now.since(started)).max(Duration::from_millis(100)),
            );
            let mut state = endpoint.state();
            match answer {
                Ok(answer) => state.link.on_ack_reply(&answer),
                Err(error) => state.link.on_ack_failure(self.classify_dial_error(&error, started, limit)),
            }
            endpoint.notify_waiters();
            if state.link.is_ready() {
                let local = endpoint.address().gid_text();
                let peer = view.descriptor.devices[device].gid.as_str();
                tracing::info!(device = %nic.name, gid = %local, peer = %endpoint.path(), peer_gid = peer, "connected over rdma");
            }
        }
    }

    /// Classifies a failed dial. A dial cut short by its batch's deadline indicates nothing about
    /// the peer, so another waiting thread dials again.
    fn classify_dial_error(&self, error: &TransferError, started: Mono, limit: Duration) -> CloseReason {
        if limit < DIAL_LIMIT && (self.clock)().since(started) >= limit {
            return CloseReason::Retired("the deadline of the batch that needed the connection has passed".to_owned());
        }
        on_no_reply(error)
    }

    /// Brings an endpoint's queue pairs to RTS, connecting our address `address` (which the peer
    /// received) to `remote_end`.
    fn connect_qps(
        &self,
        nic: &Nic,
        address: &PortAddress,
        qps: &[EndpointQp],
        remote_end: &RemoteEnd,
    ) -> Result<(), QpConnectError> {
        for (qp, number) in qps.iter().zip(&remote_end.numbers) {
            qp.qp.connect(&self.path_attributes(nic, address, remote_end, *number)).map_err(|error| {
                QpConnectError {
                    step: if error.what.ends_with("RTS") { DeviceStep::Rts } else { DeviceStep::Rtr },
                    message: error.to_string(),
                    invalid: error.is_invalid(),
                    remedy: error.remedy(),
                }
            })?;
        }
        Ok(())
    }

    /// Returns the path attributes for connecting a queue pair on `nic` with address `address` to
    /// the peer's queue pair `number`.
    pub(super) fn path_attributes(
        &self,
        nic: &Nic,
        address: &PortAddress,
        remote_end: &RemoteEnd,
        number: u32,
    ) -> PathAttributes {
        PathAttributes {
            port: nic.port,
            sgid_index: u8::try_from(address.gid_index).unwrap_or(u8::MAX),
            mtu: Mtu::from_bytes(address.mtu).unwrap_or(Mtu::MAX),
            remote_gid: remote_end.gid,
            remote_lid: remote_end.lid,
            remote_number: number,
            hop_limit: HOP_LIMIT,
            traffic_class: self.settings.traffic_class,
            service_level: self.settings.service_level,
        }
    }

    /// If the link is ready, marks the endpoint as open and posts pending requests.
    fn open(&self, nic: &Nic, endpoint: &Arc<Endpoint>, state: &mut EndpointState, over: &mut nic::FinishedWork) {
        if state.retired.is_none() && !state.open && state.link.is_ready() {
            state.open = true;
            nic.counters.connected.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            self.connected(nic.index, endpoint.path());
            endpoint.post(nic, state, over);
        }
    }

    /// Checks that the peer's end of `endpoint` still exists. A device may retry for a very long
    /// time, or forever, after the peer's process has ended. The check repeats the ready ACK, which
    /// a peer refuses if it has no such connection. If the peer's release does not support ACKs,
    /// the check fetches the descriptor instead.
    ///
    /// # Errors
    /// Fails if the peer does not respond or has no such connection.
    pub(super) fn is_alive(
        &self,
        nic: &Nic,
        endpoint: &Endpoint,
        view: &PeerView,
        control: &dyn ControlPlane,
        limit: Duration,
    ) -> Result<(), TransferError> {
        let Some((ack, acks)) = endpoint.ack() else { return Ok(()) };
        if !acks {
            let descriptor = control.find(&view.segment, limit)?;
            return if view.is(&descriptor) {
                Ok(())
            } else {
                let message = "the peer has restarted".to_owned();
                Err(nic.fault(endpoint.path(), DeviceStep::Move, message, Blame::Peer))
            };
        }
        let answer = control.connect(&view.segment, &ack, limit)?;
        if answer.reply_msg.is_empty() {
            return Ok(());
        }
        let message = format!("the connection no longer exists at the peer: {}", answer.reply_msg);
        Err(nic.fault(endpoint.path(), DeviceStep::Move, message, Blame::Peer))
    }

    /// Handles a connection request or a ready ACK, and returns the reply.
    pub(super) fn answer(&self, request: &ConnectionMessage, control: &dyn ControlPlane) -> ConnectionMessage {
        let reply = self.on_reply(request, control).unwrap_or_else(|refusal| {
            tracing::warn!(
                from = %request.local_nic_path, to = %request.peer_nic_path, qps = ?request.qp_num, gid = %request.local_gid,
                %refusal, "refused connection request"
            );
            refusal.reply()
        });
        tracing::debug!(?request, ?reply, "connection request");
        reply
    }

    fn on_reply(
        &self,
        request: &ConnectionMessage,
        control: &dyn ControlPlane,
    ) -> Result<ConnectionMessage, HandshakeRefusal> {
        let name = link::device_of(request)?;
        let nic = self.nics.iter().find(|nic| nic.name == name && !nic.is_disabled());
        let nic = nic.ok_or_else(|| HandshakeRefusal::UnknownDevice(name.to_owned()))?;
        let path = &request.local_nic_path;
        let (server, _) = link::split_path(path).ok_or_else(|| HandshakeRefusal::BadPath(path.clone()))?;
        let own = nic_path(&self.server, &nic.name);
        if own != request.peer_nic_path {
            let expected = format!("{own} + {path}");
            let got = format!("{} + {path}", request.peer_nic_path);
            return Err(HandshakeRefusal::Inconsistent { expected, got });
        }
        if link::is_ack(request) {
            let endpoint = nic.find_endpoint(path).ok_or(HandshakeRefusal::Unconnected)?;
            return Ok(self.on_ready_ack(nic, &endpoint, request));
        }
        // Before 0.3.11, only the segment document contains the address. The requester still serves
        // its document while it waits for our reply.
        let described = link::lacks_address(request).then(|| control.find(server, FIND_LIMIT));
        let described =
            described.map(|found| found.map_err(|_| HandshakeRefusal::UnknownPeer(path.clone()))).transpose()?;
        // Do not create queue pairs for a request that would be refused anyway.
        let remote_end = link::remote_end(request, described.as_ref(), nic.limits.qps)?;
        for _ in 0..ANEW_MAX {
            let now = (self.clock)();
            let endpoint = self.endpoint(nic, path, now).map_err(|error| HandshakeRefusal::Verbs(error.to_string()))?;
            let mut over = nic::FinishedWork::default();
            let mut state = endpoint.state();
            let EndpointState { link, qps, .. } = &mut *state;
            let accepted = link.accept(request, Ok(remote_end.clone()), now, |remote_end| {
                self.connect_qps(nic, endpoint.address(), qps, remote_end)
            });
            let (accepted, retire_error) = match (accepted, state.link.close_reason()) {
                (RequestOutcome::NewLink, _) => (RequestOutcome::NewLink, Some(WorkError::Dropped)),
                (_, Some(why)) if why.is_gid_problem() && self.next_gid(nic, path, &state.link.local_end().gid) => {
                    (RequestOutcome::NewLink, Some(WorkError::Dropped))
                }
                (reply, over) => (reply, over.map(|why| WorkError::Link(self.unconnected(nic, path, why)))),
            };
            match retire_error {
                Some(error) => endpoint.retire_with(nic, &mut state, &error, &mut over),
                None => {
                    state.touch(now);
                    self.open(nic, &endpoint, &mut state, &mut over);
                }
            }
            endpoint.notify_waiters();
            drop(state);
            over.deliver();
            if let RequestOutcome::Reply(reply) = accepted {
                if reply.reply_msg.is_empty() {
                    tracing::info!(device = %nic.name, peer = %path, gid = %request.local_gid, "peer connected over rdma");
                }
                return Ok(reply);
            }
        }
        Err(HandshakeRefusal::Verbs("the endpoint is being replaced; retry".to_owned()))
    }

    fn on_ready_ack(&self, nic: &Nic, endpoint: &Arc<Endpoint>, ack: &ConnectionMessage) -> ConnectionMessage {
        let mut over = nic::FinishedWork::default();
        let mut state = endpoint.state();
        let reply = state.link.on_ready_ack(ack);
        self.open(nic, endpoint, &mut state, &mut over);
        endpoint.notify_waiters();
        drop(state);
        over.deliver();
        reply
    }

    /// Converts the reason why a connection failed into an error.
    fn unconnected(&self, nic: &Nic, path: &str, why: &CloseReason) -> TransferError {
        let message = why.to_string();
        let (step, blame) = match why {
            CloseReason::Refused(_) | CloseReason::NoRdma | CloseReason::Reply(_) | CloseReason::Unreadable(_) => {
                (DeviceStep::Dial, Blame::Refusal)
            }
            CloseReason::Unreachable(_) | CloseReason::Crossed => (DeviceStep::Dial, Blame::Peer),
            CloseReason::Verbs(unconnected) => (unconnected.step, Blame::Device),
            CloseReason::NotReady | CloseReason::Replaced => (DeviceStep::Ready, Blame::Peer),
            CloseReason::Retired(_) => (DeviceStep::Ready, Blame::Peer),
        };
        nic.fault_with(path, step, message, blame, why.remedy())
    }
}

/// Classifies an error from a call to a peer's handshake port.
fn on_no_reply(error: &TransferError) -> CloseReason {
    let message = error.chain().to_string();
    if error.is_unreadable() { CloseReason::Unreadable(message) } else { CloseReason::Unreachable(message) }
}
