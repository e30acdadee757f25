//! An endpoint's connection state machine: which messages are exchanged with the peer, and when
//! requests may be posted. Pure.
//!
//! An endpoint is a fixed set of queue pairs between one of our devices and one of a peer's. An
//! [`EndpointLink`] is connected at most once. If it cannot continue, it is closed for good and
//! replaced by a new link with other queue pairs. (Upstream resets and reuses queue pairs. Without
//! reuse, a QP number always refers to the same link, and there are fewer cases to handle.)
//!
//! ```text
//! active:   request (qp_num)  ->        passive: connects, replies (qp_num)
//!           connects          <-
//!           ready ACK         ->        may post
//!           may post          <-  empty
//! ```
//! Releases before 0.3.12 have no ready ACK: both sides may post once connected. Both sides may
//! dial at the same time. Each side then connects when it receives the other's request, and
//! continues because the reply to its own request contains the same QP numbers. Late messages (a
//! reply or an ACK for an earlier link) are detected by their QP numbers.

use std::fmt;
use std::time::Duration;

use crate::device_fault::DeviceStep;
use mcctl_base::Mono;
use mcctl_wire::json::{ConnectionMessage, SegmentDescriptor, gid_text, parse_gid};

/// How long the passive side waits for the ready ACK before it closes the link (same value as
/// upstream).
pub const READY_LIMIT: Duration = Duration::from_secs(10);
/// How long a thread that needs the link waits while another thread dials (same value as upstream).
pub const DIAL_LIMIT: Duration = Duration::from_secs(10);

/// Our end of a link.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LocalEnd {
    /// `server@device`.
    pub path: String,
    /// The peer's end, `server@device`.
    pub peer: String,
    pub numbers: Vec<u32>,
    pub gid: [u8; 16],
    pub lid: u16,
}

impl LocalEnd {
    /// Returns the message that we send: a request, a reply, or (with `ready`) an ACK.
    fn message(&self, ready: bool) -> ConnectionMessage {
        ConnectionMessage {
            local_nic_path: self.path.clone(),
            peer_nic_path: self.peer.clone(),
            qp_num: self.numbers.clone(),
            local_gid: gid_text(&self.gid),
            local_lid: self.lid,
            payload: String::new(),
            ready_ack: Some(ready),
            reply_msg: String::new(),
        }
    }
}

/// The peer's end of a link, as given in its message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RemoteEnd {
    /// QP numbers. The peer's i-th queue pair is connected to our i-th queue pair.
    pub numbers: Vec<u32>,
    pub gid: [u8; 16],
    pub lid: u16,
    /// Whether the peer supports the ready ACK.
    pub acks: bool,
}

/// Why a message is refused. The messages match upstream's and are sent in `reply_msg`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HandshakeRefusal {
    /// The request does not name a device.
    #[error("Invalid peer_nic_path in handshake: {0}")]
    NoDevice(String),
    /// The request names a device that does not exist here or is not in use.
    #[error("Local RDMA context not found for handshake NIC: {0}")]
    UnknownDevice(String),
    /// The sender's own path is invalid.
    #[error("Parse peer nic path failed: {0}")]
    BadPath(String),
    /// The message is intended for another process.
    #[error("Invalid argument: peer nic path inconsistency, expect {expected}, while got {got}")]
    Inconsistent {
        /// Our path and the peer's.
        expected: String,
        /// The paths in the message.
        got: String,
    },
    /// The message does not include the sender's address, and its segment document is unavailable
    /// or does not list the device.
    #[error("Peer nic not found in that server: {0}")]
    UnknownPeer(String),
    /// The number of queue pairs differs from ours.
    #[error("QP count mismatch in peer and local endpoints, check MC_MAX_EP_PER_CTX")]
    Count { got: usize, wanted: usize },
    #[error("Invalid peer GID: {0}")]
    Gid(String),
    /// An ACK for an unconnected link arrived.
    #[error("Received RDMA ready ACK for unconnected endpoint")]
    Unconnected,
    /// An ACK for an earlier link arrived.
    #[error("Received stale RDMA ready ACK with mismatched peer QP numbers")]
    Stale,
    /// A queue pair cannot be connected using the data in the message.
    #[error("Failed to modify QP to RTR, check mtu, gid, peer lid, peer qp num: {0}")]
    Verbs(String),
}

impl HandshakeRefusal {
    /// Returns a reply that contains only the refusal.
    pub fn reply(&self) -> ConnectionMessage {
        ConnectionMessage::refusal(self.to_string())
    }
}

/// Splits a path into server and device.
pub fn split_path(path: &str) -> Option<(&str, &str)> {
    path.split_once('@').filter(|(server, device)| !server.is_empty() && !device.is_empty())
}

/// Returns the name of our device to which a request is addressed.
///
/// # Errors
/// Fails if the request does not name a device.
pub fn device_of(request: &ConnectionMessage) -> Result<&str, HandshakeRefusal> {
    let device = request.peer_nic_path.split_once('@').map_or("", |(_, device)| device);
    if device.is_empty() { Err(HandshakeRefusal::NoDevice(request.peer_nic_path.clone())) } else { Ok(device) }
}

/// Whether the message is a ready ACK.
pub fn is_ack(request: &ConnectionMessage) -> bool {
    request.ready_ack == Some(true)
}

/// Whether the message omits the sender's address, as messages from releases before 0.3.11 do. The
/// address is then in the sender's segment document, found under the server name in its path.
pub fn lacks_address(message: &ConnectionMessage) -> bool {
    message.local_gid.is_empty()
}

/// Returns the sender's endpoint of the connection. `described` is the sender's segment document,
/// used if the message does not include its address. `pairs` is the number of queue pairs per
/// endpoint on our side.
///
/// # Errors
/// Fails if the message must be refused.
pub fn remote_end(
    message: &ConnectionMessage,
    described: Option<&SegmentDescriptor>,
    pairs: usize,
) -> Result<RemoteEnd, HandshakeRefusal> {
    let path = &message.local_nic_path;
    let (_, name) = split_path(path).ok_or_else(|| HandshakeRefusal::BadPath(path.clone()))?;
    let (gid, lid) = if lacks_address(message) {
        let device = described.and_then(|segment| segment.devices.iter().find(|device| device.name == name));
        let device = device.ok_or_else(|| HandshakeRefusal::UnknownPeer(path.clone()))?;
        (device.gid.as_str(), device.lid)
    } else {
        (message.local_gid.as_str(), message.local_lid)
    };
    if message.qp_num.len() != pairs {
        return Err(HandshakeRefusal::Count { got: message.qp_num.len(), wanted: pairs });
    }
    // An all-zero GID indicates an unusable device.
    let read = parse_gid(gid).filter(|gid| *gid != [0; 16]).ok_or_else(|| HandshakeRefusal::Gid(gid.to_owned()))?;
    Ok(RemoteEnd { numbers: message.qp_num.clone(), gid: read, lid, acks: message.ready_ack.is_some() })
}

/// Why queue pairs could not be connected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QpConnectError {
    pub step: DeviceStep,
    /// The failed verb's error message.
    pub message: String,
    /// Whether the cause is an invalid argument. If so, another of our GIDs may work.
    pub invalid: bool,
    /// How to fix the problem, if known.
    pub remedy: Option<&'static str>,
}

/// Why a link is closed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CloseReason {
    /// The peer refused the request with this message.
    Refused(String),
    /// The peer's reply is empty: it does not use RDMA.
    NoRdma,
    /// The reply is for another endpoint or is invalid.
    Reply(HandshakeRefusal),
    /// The reply cannot be parsed. Contains the parser's message.
    Unreadable(String),
    /// Both sides dialed, and the peer's request and its reply contain different QP numbers: one of
    /// the two messages belongs to an earlier link.
    Crossed,
    /// The peer's handshake port did not respond. Contains the error message.
    Unreachable(String),
    Verbs(QpConnectError),
    /// The peer dialed, received our reply, and then sent no ready ACK.
    NotReady,
    /// The peer has restarted or has dialed again.
    Replaced,
    /// The link was retired: a transfer on it failed, it was idle, or the engine is shutting down.
    Retired(String),
}

impl CloseReason {
    /// Whether an immediate retry with new queue pairs may succeed.
    pub fn is_transient(&self) -> bool {
        matches!(self, CloseReason::Crossed | CloseReason::Replaced | CloseReason::NotReady | CloseReason::Retired(_))
    }

    /// Whether another of our GIDs may work. This includes the case in which the peer refused the
    /// current one.
    pub fn is_gid_problem(&self) -> bool {
        match self {
            CloseReason::Verbs(why) => why.invalid && why.step == DeviceStep::Rtr,
            CloseReason::Refused(message) => is_rtr(message) && message.contains("Invalid argument"),
            _ => false,
        }
    }

    /// How to fix the problem, if known.
    pub fn remedy(&self) -> Option<&'static str> {
        match self {
            CloseReason::Refused(message) if is_rtr(message) => Some(
                "select GIDs of the same type and network on both ends (MC_GID_INDEX), and an MTU that both ports support (MC_MTU)",
            ),
            CloseReason::Refused(_) => Some("check the peer's log for the reason"),
            CloseReason::NoRdma => Some("start the peer with --protocol rdma"),
            CloseReason::Reply(HandshakeRefusal::Count { .. }) => {
                Some("set MC_NUM_QP_PER_EP to the same value on both ends")
            }
            CloseReason::Reply(HandshakeRefusal::Gid(_) | HandshakeRefusal::UnknownPeer(_)) => {
                Some("run mcctl devices (or ibv_devinfo -v) on the peer's host to check that its device has an address")
            }
            CloseReason::Reply(_) | CloseReason::Unreadable(_) => Some(
                "check which process is listening on the segment's handshake port; it does not respond like a transfer engine",
            ),
            CloseReason::Verbs(why) => why.remedy,
            _ => None,
        }
    }
}

/// Whether the peer refused the request because its queue pair could not be connected. Matches
/// [`HandshakeRefusal::Verbs`], whose message is the same as upstream's.
fn is_rtr(message: &str) -> bool {
    message.starts_with("Failed to modify QP to RTR")
}

/// Formats a refusal as a problem with a reply. The refusal's own message addresses the sender of a
/// request.
struct ReplyProblem<'a>(&'a HandshakeRefusal);

impl fmt::Display for ReplyProblem<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            HandshakeRefusal::Count { got, wanted } => {
                write!(f, "the reply contains {got} queue pairs instead of {wanted}")
            }
            HandshakeRefusal::Gid(gid) => write!(f, "invalid GID '{gid}'"),
            HandshakeRefusal::BadPath(path) => write!(f, "'{path}' is not of the form server@device"),
            HandshakeRefusal::UnknownPeer(path) => {
                write!(f, "the reply contains no GID, and the segment's descriptor has none for {path}")
            }
            HandshakeRefusal::Inconsistent { expected, got } => {
                write!(f, "the reply is for connection {got} instead of {expected}")
            }
            other => other.fmt(f),
        }
    }
}

impl fmt::Display for CloseReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CloseReason::Refused(message) => write!(f, "the peer refused the connection: {message}"),
            CloseReason::NoRdma => f.write_str("the peer does not use RDMA"),
            CloseReason::Reply(refusal) => write!(f, "invalid reply from the peer: {}", ReplyProblem(refusal)),
            CloseReason::Unreadable(message) => write!(f, "unreadable reply from the peer: {message}"),
            CloseReason::Crossed => {
                f.write_str("the peer's request and its reply contain different queue pair numbers")
            }
            CloseReason::Unreachable(message) | CloseReason::Retired(message) => f.write_str(message),
            CloseReason::Verbs(why) => f.write_str(&why.message),
            CloseReason::NotReady => write!(f, "the peer connected but sent no ready ACK within {READY_LIMIT:?}"),
            CloseReason::Replaced => f.write_str("the peer started a new connection"),
        }
    }
}

/// What a thread must do before it may post.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LinkAction {
    Post,
    /// Send this request and report the result ([`EndpointLink::on_reply`] or
    /// [`EndpointLink::on_no_reply`]). Returned to one caller at a time.
    Dial(ConnectionMessage),
    /// Wait for a change, at most until this time, then call [`EndpointLink::next_action`] again.
    Wait(Mono),
    /// The link is closed. Create a new link, or fail.
    Over(CloseReason),
}

/// What the dialing thread does next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReplyAction {
    /// Send this ready ACK and report the result ([`EndpointLink::on_ack_reply`] or
    /// [`EndpointLink::on_ack_failure`]).
    Ack(ConnectionMessage),
    /// No ACK is needed: call [`EndpointLink::next_action`] again.
    Ask,
}

/// The outcome of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RequestOutcome {
    /// Send this reply, which may be a refusal.
    Reply(ConnectionMessage),
    /// The request starts a new link: close this one, create another, and pass the request to it.
    NewLink,
}

/// One of an endpoint's connections, from its first message to its end.
#[derive(Clone, Debug)]
pub struct EndpointLink {
    local_end: LocalEnd,
    state: LinkState,
}

#[derive(Clone, Debug)]
enum LinkState {
    Idle,
    /// Our request was sent at this time.
    Dialling(Mono),
    Connected(ConnectedState),
    Over(CloseReason),
}

/// The queue pairs are connected.
#[derive(Clone, Debug)]
struct ConnectedState {
    remote_end: RemoteEnd,
    since: Mono,
    /// State of our own request.
    dial: DialState,
    /// Whether the peer has reported that it is ready.
    peer_ready: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum DialState {
    /// We have no open request.
    No,
    /// Our request was sent at this time, and the peer's request has arrived since.
    Asked(Mono),
    /// The peer has replied. Our ACK was sent at this time.
    Acking(Mono),
    Done,
}

impl ConnectedState {
    fn is_ready(&self) -> bool {
        self.peer_ready || self.dial == DialState::Done
    }
}

impl EndpointLink {
    /// Creates a link that is not connected yet.
    pub fn new(local_end: LocalEnd) -> EndpointLink {
        EndpointLink { local_end, state: LinkState::Idle }
    }

    /// Our end of the link.
    pub fn local_end(&self) -> &LocalEnd {
        &self.local_end
    }

    /// Returns the peer's end, if our queue pairs are connected to it.
    pub fn remote_end(&self) -> Option<&RemoteEnd> {
        match &self.state {
            LinkState::Connected(connected) => Some(&connected.remote_end),
            _ => None,
        }
    }

    /// Whether requests may be posted.
    pub fn is_ready(&self) -> bool {
        matches!(&self.state, LinkState::Connected(connected) if connected.is_ready())
    }

    /// Returns why the link is closed, if it is.
    pub fn close_reason(&self) -> Option<&CloseReason> {
        match &self.state {
            LinkState::Over(close_reason) => Some(close_reason),
            _ => None,
        }
    }

    /// Closes the link. If it is already closed, the earlier reason is kept.
    pub fn close(&mut self, why: CloseReason) {
        if self.close_reason().is_none() {
            self.state = LinkState::Over(why);
        }
    }

    /// Returns what a thread must do before it may post.
    pub fn next_action(&mut self, now: Mono) -> LinkAction {
        match &mut self.state {
            LinkState::Idle => {
                self.state = LinkState::Dialling(now);
                LinkAction::Dial(self.local_end.message(false))
            }
            LinkState::Dialling(since) => LinkAction::Wait(*since + DIAL_LIMIT),
            LinkState::Connected(connected) if connected.is_ready() => LinkAction::Post,
            LinkState::Connected(ConnectedState {
                dial: DialState::Asked(since) | DialState::Acking(since), ..
            }) => LinkAction::Wait(*since + DIAL_LIMIT),
            LinkState::Connected(connected) => {
                let until = connected.since + READY_LIMIT;
                if now < until {
                    return LinkAction::Wait(until);
                }
                self.close(CloseReason::NotReady);
                LinkAction::Over(CloseReason::NotReady)
            }
            LinkState::Over(close_reason) => LinkAction::Over(close_reason.clone()),
        }
    }

    /// Handles the reply to our request. `remote_end` is the result of [`remote_end()`]. `connect`
    /// brings our queue pairs to RTS.
    pub fn on_reply(
        &mut self,
        reply: &ConnectionMessage,
        remote_end: Result<RemoteEnd, HandshakeRefusal>,
        now: Mono,
        connect: impl FnOnce(&RemoteEnd) -> Result<(), QpConnectError>,
    ) -> ReplyAction {
        if !self.is_dialling() {
            return ReplyAction::Ask;
        }
        let remote_end = match self.read(reply, remote_end) {
            Ok(remote_end) => remote_end,
            Err(close_reason) => return self.dial_failed(close_reason),
        };
        match &self.state {
            LinkState::Connected(connected) if connected.remote_end.numbers != remote_end.numbers => {
                self.close(CloseReason::Crossed);
                return ReplyAction::Ask;
            }
            LinkState::Connected(_) => {}
            _ => {
                if let Err(why) = connect(&remote_end) {
                    self.close(CloseReason::Verbs(why));
                    return ReplyAction::Ask;
                }
                self.state = LinkState::Connected(ConnectedState {
                    remote_end,
                    since: now,
                    dial: DialState::No,
                    peer_ready: false,
                });
            }
        }
        let ack = self.local_end.message(true);
        let LinkState::Connected(connected) = &mut self.state else { return ReplyAction::Ask };
        if reply.ready_ack.is_none() {
            connected.dial = DialState::Done;
            return ReplyAction::Ask;
        }
        connected.dial = DialState::Acking(now);
        ReplyAction::Ack(ack)
    }

    /// Handles a request of ours that got no reply or an unreadable one.
    pub fn on_no_reply(&mut self, why: CloseReason) -> ReplyAction {
        if self.is_dialling() { self.dial_failed(why) } else { ReplyAction::Ask }
    }

    /// Handles the reply to our ready ACK.
    pub fn on_ack_reply(&mut self, reply: &ConnectionMessage) {
        if let LinkState::Connected(connected) = &mut self.state
            && matches!(connected.dial, DialState::Acking(_))
        {
            connected.dial = DialState::Done;
            if !reply.reply_msg.is_empty() {
                self.close(CloseReason::Refused(reply.reply_msg.clone()));
            }
        }
    }

    /// Handles a ready ACK of ours that got no reply or an unreadable one. This does not matter if
    /// the peer has reported that it is ready.
    pub fn on_ack_failure(&mut self, why: CloseReason) {
        if let LinkState::Connected(connected) = &mut self.state
            && matches!(connected.dial, DialState::Acking(_))
        {
            connected.dial = DialState::No;
            if !connected.peer_ready {
                self.close(why);
            }
        }
    }

    /// Handles a request other than an ACK. `remote_end` is the result of [`remote_end()`].
    /// `connect` brings our queue pairs to RTS.
    pub fn accept(
        &mut self,
        request: &ConnectionMessage,
        remote_end: Result<RemoteEnd, HandshakeRefusal>,
        now: Mono,
        connect: impl FnOnce(&RemoteEnd) -> Result<(), QpConnectError>,
    ) -> RequestOutcome {
        if let Err(refusal) = self.check_paths(request) {
            return RequestOutcome::Reply(refusal.reply());
        }
        let remote_end = match remote_end {
            Ok(remote_end) => remote_end,
            // As with upstream, these two refusals contain our own QP numbers.
            Err(refusal @ (HandshakeRefusal::Count { .. } | HandshakeRefusal::Gid(_))) => {
                return RequestOutcome::Reply(ConnectionMessage {
                    reply_msg: refusal.to_string(),
                    ..self.local_end.message(false)
                });
            }
            Err(refusal) => return RequestOutcome::Reply(refusal.reply()),
        };
        let dial = match &self.state {
            // After its ACK, a peer sends a request only for a new link, whose QP numbers may be
            // the same.
            LinkState::Connected(connected)
                if connected.remote_end.numbers == remote_end.numbers && !(connected.peer_ready && remote_end.acks) =>
            {
                return RequestOutcome::Reply(self.local_end.message(false));
            }
            LinkState::Connected(_) | LinkState::Over(_) => return RequestOutcome::NewLink,
            LinkState::Idle => DialState::No,
            LinkState::Dialling(since) => DialState::Asked(*since),
        };
        if let Err(why) = connect(&remote_end) {
            let refusal = HandshakeRefusal::Verbs(why.message.clone());
            self.close(CloseReason::Verbs(why));
            return RequestOutcome::Reply(ConnectionMessage {
                reply_msg: refusal.to_string(),
                ..self.local_end.message(false)
            });
        }
        // A peer without ACK support sends no further message.
        let peer_ready = !remote_end.acks;
        self.state = LinkState::Connected(ConnectedState { remote_end, since: now, dial, peer_ready });
        RequestOutcome::Reply(self.local_end.message(false))
    }

    /// Handles a ready ACK and returns the reply.
    pub fn on_ready_ack(&mut self, ack: &ConnectionMessage) -> ConnectionMessage {
        if let Err(refusal) = self.check_paths(ack) {
            return refusal.reply();
        }
        match &mut self.state {
            LinkState::Connected(connected) if connected.remote_end.numbers == ack.qp_num => {
                connected.peer_ready = true;
                ConnectionMessage::default()
            }
            LinkState::Connected(_) => HandshakeRefusal::Stale.reply(),
            _ => HandshakeRefusal::Unconnected.reply(),
        }
    }

    fn is_dialling(&self) -> bool {
        matches!(
            &self.state,
            LinkState::Dialling(_) | LinkState::Connected(ConnectedState { dial: DialState::Asked(_), .. })
        )
    }

    /// Extracts the peer's end from its reply.
    fn read(
        &self,
        reply: &ConnectionMessage,
        remote_end: Result<RemoteEnd, HandshakeRefusal>,
    ) -> Result<RemoteEnd, CloseReason> {
        if !reply.reply_msg.is_empty() {
            return Err(CloseReason::Refused(reply.reply_msg.clone()));
        }
        if reply.local_nic_path.is_empty() && reply.qp_num.is_empty() {
            return Err(CloseReason::NoRdma);
        }
        self.check_paths(reply).and(remote_end).map_err(CloseReason::Reply)
    }

    /// Handles a failed request. If the peer's own request has established a connection in the
    /// meantime, that connection remains valid.
    fn dial_failed(&mut self, close_reason: CloseReason) -> ReplyAction {
        match &mut self.state {
            LinkState::Connected(connected) => connected.dial = DialState::No,
            _ => self.close(close_reason),
        }
        ReplyAction::Ask
    }

    fn check_paths(&self, message: &ConnectionMessage) -> Result<(), HandshakeRefusal> {
        let LocalEnd { path, peer, .. } = &self.local_end;
        let ours = &message.peer_nic_path;
        let theirs = &message.local_nic_path;
        if ours == path && theirs == peer {
            return Ok(());
        }
        Err(HandshakeRefusal::Inconsistent { expected: format!("{path} + {peer}"), got: format!("{ours} + {theirs}") })
    }
}

#[cfg(test)]
mod tests;
