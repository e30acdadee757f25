//! The life of an endpoint: what it says to its peer and when it may be used. Pure.
//!
//! An endpoint is a fixed set of queue pairs on one device of ours for one device of a peer. A [`Link`] is one life of it: it is
//! connected at most once, and what cannot go on is over for good and replaced by a new one with other queue pairs. (Upstream resets
//! and reuses; a number that never means two things leaves fewer cases.)
//!
//! ```text
//! active:   request (qp_num)  ->        passive: connects, replies (qp_num)
//!           connects          <-
//!           ready ACK         ->        may post
//!           may post          <-  empty
//! ```
//! Releases before 0.3.12 know no ready ACK: both may post once connected. Both sides may be active at once; each then connects on
//! the other's request, finds the same numbers in the reply to its own, and goes on. What arrives late (a reply, an ACK of a former
//! life) is recognised by its numbers.

use std::fmt;
use std::time::Duration;

use crate::engine::base::Mono;
use crate::engine::transfer::rdma::fault::RdmaStep;
use crate::engine::wire::json::{Connection, SegmentDescriptor, gid_text, parse_gid};

/// How long the passive side waits for the ready ACK before it gives the connection up (upstream's).
pub const READY_LIMIT: Duration = Duration::from_secs(10);
/// How long who wants to post waits for somebody else's dialling (upstream's).
pub const DIAL_LIMIT: Duration = Duration::from_secs(10);

/// Our end, in one life.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Near {
    /// `server@device`.
    pub path: String,
    /// The end it is for.
    pub peer: String,
    /// Our queue pairs.
    pub numbers: Vec<u32>,
    /// Our address.
    pub gid: [u8; 16],
    /// Our local identifier.
    pub lid: u16,
}

impl Near {
    /// What we send: a request, a reply or (`ready`) an ACK.
    fn message(&self, ready: bool) -> Connection {
        Connection {
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

/// The peer's end, as its message tells.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Far {
    /// Its queue pairs; the i-th is for our i-th.
    pub numbers: Vec<u32>,
    /// Its address.
    pub gid: [u8; 16],
    /// Its local identifier.
    pub lid: u16,
    /// Does it know the ready ACK?
    pub acks: bool,
}

/// Why a message is refused. The texts are upstream's; they go into `reply_msg`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The request names no device of ours.
    #[error("Invalid peer_nic_path in handshake: {0}")]
    NoDevice(String),
    /// It names one that we do not have, or do not use.
    #[error("Local RDMA context not found for handshake NIC: {0}")]
    UnknownDevice(String),
    /// The sender's own path is none.
    #[error("Parse peer nic path failed: {0}")]
    BadPath(String),
    /// It is meant for somebody else.
    #[error("Invalid argument: peer nic path inconsistency, expect {expected}, while got {got}")]
    Inconsistent {
        /// Our path and the peer's.
        expected: String,
        /// Those of the message.
        got: String,
    },
    /// The sender does not tell its address, and its segment document cannot be had or has no such device.
    #[error("Peer nic not found in that server: {0}")]
    UnknownPeer(String),
    /// Queue pairs of another number than ours.
    #[error("QP count mismatch in peer and local endpoints, check MC_MAX_EP_PER_CTX")]
    Count {
        /// The message's.
        got: usize,
        /// Ours.
        wanted: usize,
    },
    /// No address.
    #[error("Invalid peer GID: {0}")]
    Gid(String),
    /// An ACK for nothing.
    #[error("Received RDMA ready ACK for unconnected endpoint")]
    Unconnected,
    /// An ACK for a former life.
    #[error("Received stale RDMA ready ACK with mismatched peer QP numbers")]
    Stale,
    /// Verbs do not take what the message says.
    #[error("Failed to modify QP to RTR, check mtu, gid, peer lid, peer qp num: {0}")]
    Verbs(String),
}

impl Refusal {
    /// The reply with nothing else in it.
    pub fn reply(&self) -> Connection {
        Connection::refusal(self.to_string())
    }
}

/// Server and device of a path.
pub fn split_path(path: &str) -> Option<(&str, &str)> {
    path.split_once('@').filter(|(server, device)| !server.is_empty() && !device.is_empty())
}

/// The device of ours that a request is for.
///
/// # Errors
/// It names none.
pub fn device_of(request: &Connection) -> Result<&str, Refusal> {
    let device = request.peer_nic_path.split_once('@').map_or("", |(_, device)| device);
    if device.is_empty() { Err(Refusal::NoDevice(request.peer_nic_path.clone())) } else { Ok(device) }
}

/// Is this a ready ACK?
pub fn is_ack(request: &Connection) -> bool {
    request.ready_ack == Some(true)
}

/// Does the sender not tell its address (before 0.3.11)? Then its segment document does, under the server name of its path.
pub fn lacks_address(message: &Connection) -> bool {
    message.local_gid.is_empty()
}

/// The sender's end. `described` is its segment document, for a message that lacks its address; `pairs` is how many queue pairs an
/// endpoint of ours has.
///
/// # Errors
/// The message is to be refused.
pub fn far(message: &Connection, described: Option<&SegmentDescriptor>, pairs: usize) -> Result<Far, Refusal> {
    let path = &message.local_nic_path;
    let (_, name) = split_path(path).ok_or_else(|| Refusal::BadPath(path.clone()))?;
    let (gid, lid) = if lacks_address(message) {
        let device = described.and_then(|segment| segment.devices.iter().find(|device| device.name == name));
        let device = device.ok_or_else(|| Refusal::UnknownPeer(path.clone()))?;
        (device.gid.as_str(), device.lid)
    } else {
        (message.local_gid.as_str(), message.local_lid)
    };
    if message.qp_num.len() != pairs {
        return Err(Refusal::Count { got: message.qp_num.len(), wanted: pairs });
    }
    // All zero is how a device that does not work is announced.
    let read = parse_gid(gid).filter(|gid| *gid != [0; 16]).ok_or_else(|| Refusal::Gid(gid.to_owned()))?;
    Ok(Far { numbers: message.qp_num.clone(), gid: read, lid, acks: message.ready_ack.is_some() })
}

/// Why queue pairs could not be connected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unconnected {
    /// Which transition failed.
    pub step: RdmaStep,
    /// The words of verbs.
    pub words: String,
    /// Is what it was given to blame, so that another address of ours may do?
    pub invalid: bool,
    /// What to do about it, where that is known.
    pub remedy: Option<&'static str>,
}

/// Why a link is over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Over {
    /// The peer refused, in these words.
    Refused(String),
    /// The peer answered with nothing: it has no RDMA.
    NoRdma,
    /// The reply is for another endpoint, or cannot be used.
    Reply(Refusal),
    /// What came as a reply cannot be read, in these words.
    Unreadable(String),
    /// Both dialled, and the peer's request and its reply tell of different queue pairs: one of them is of a former life.
    Crossed,
    /// The peer could not be asked, in these words.
    Unreachable(String),
    /// Verbs refused.
    Verbs(Unconnected),
    /// The peer dialled and was answered, and then was not heard of any more.
    NotReady,
    /// The peer has started anew, or connects anew.
    Replaced,
    /// It is not wanted any more: an error of a transfer, idleness, the end.
    Retired(String),
}

impl Over {
    /// May trying again at once, with new queue pairs, help?
    pub fn is_passing(&self) -> bool {
        matches!(self, Over::Crossed | Over::Replaced | Over::NotReady | Over::Retired(_))
    }

    /// May another address of ours do? The peer's verbs may be those that do not take it, too.
    pub fn is_address(&self) -> bool {
        match self {
            Over::Verbs(why) => why.invalid && why.step == RdmaStep::Rtr,
            Over::Refused(words) => is_rtr(words) && words.contains("Invalid argument"),
            _ => false,
        }
    }

    /// What to do about it, where that is known.
    pub fn remedy(&self) -> Option<&'static str> {
        match self {
            Over::Refused(words) if is_rtr(words) => Some(
                "choose rows of both ends' GID tables that are of one kind and network (MC_GID_INDEX), and an MTU that both ports have \
                 (MC_MTU)",
            ),
            Over::Refused(_) => Some("see the peer's log for why it refuses"),
            Over::NoRdma => Some("start the peer with --protocol rdma"),
            Over::Reply(Refusal::Count { .. }) => Some("give both ends the same MC_NUM_QP_PER_EP"),
            Over::Reply(Refusal::Gid(_) | Refusal::UnknownPeer(_)) => {
                Some("see with mcctl devices (or ibv_devinfo -v) at the peer whether its device has an address")
            }
            Over::Reply(_) | Over::Unreadable(_) => {
                Some("see what answers at the segment's handshake port: it does not answer as a transfer engine does")
            }
            Over::Verbs(why) => why.remedy,
            _ => None,
        }
    }
}

/// Is it for the peer's verbs that it refuses? The words are [`Refusal::Verbs`]'s, and upstream's.
fn is_rtr(words: &str) -> bool {
    words.starts_with("Failed to modify QP to RTR")
}

/// A refusal's reason as what is wrong with a reply: its own words are for whoever sent a request.
struct InReply<'a>(&'a Refusal);

impl fmt::Display for InReply<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Refusal::Count { got, wanted } => write!(f, "it tells of {got} queue pairs, and {wanted} were wanted"),
            Refusal::Gid(gid) => write!(f, "the GID that it tells, '{gid}', is none"),
            Refusal::BadPath(path) => write!(f, "'{path}' is no end of a connection (server@device)"),
            Refusal::UnknownPeer(path) => {
                write!(f, "it tells no GID, and the segment's descriptor has none for {path}")
            }
            Refusal::Inconsistent { expected, got } => {
                write!(f, "it is for the connection {got}, and {expected} was asked for")
            }
            other => other.fmt(f),
        }
    }
}

impl fmt::Display for Over {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Over::Refused(words) => write!(f, "the peer refuses: {words}"),
            Over::NoRdma => f.write_str("the peer answers, but has no RDMA"),
            Over::Reply(refusal) => write!(f, "the peer's reply cannot be used: {}", InReply(refusal)),
            Over::Unreadable(words) => write!(f, "the peer's reply cannot be read: {words}"),
            Over::Crossed => f.write_str("the peer's request and its reply tell of different queue pairs"),
            Over::Unreachable(words) | Over::Retired(words) => f.write_str(words),
            Over::Verbs(why) => f.write_str(&why.words),
            Over::NotReady => write!(f, "the peer connected and did not say within {READY_LIMIT:?} that it is ready"),
            Over::Replaced => f.write_str("the peer connects anew"),
        }
    }
}

/// What to do for somebody who wants to post.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Want {
    /// Post.
    Post,
    /// Send this request, and tell the link what came of it ([`Link::answered`] or [`Link::unanswered`]). Whoever is told so is
    /// the only one.
    Dial(Connection),
    /// Wait for a change, no longer than until then, and ask again.
    Wait(Mono),
    /// Make a new link, or give up.
    Over(Over),
}

/// What is next for who dialled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Next {
    /// Send this ready ACK, and tell the link what came of it ([`Link::ack_answered`] or [`Link::ack_unanswered`]).
    Ack(Connection),
    /// Ask again what to do ([`Link::want`]).
    Ask,
}

/// The answer to a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Accepted {
    /// Send this. It may be a refusal.
    Reply(Connection),
    /// The request belongs to another life: end this link, make a new one and hand it the request.
    Anew,
}

/// One life of an endpoint.
#[derive(Clone, Debug)]
pub struct Link {
    near: Near,
    state: State,
}

#[derive(Clone, Debug)]
enum State {
    Idle,
    /// Our request is on its way, since.
    Dialling(Mono),
    Connected(Connected),
    Over(Over),
}

/// The queue pairs are connected.
#[derive(Clone, Debug)]
struct Connected {
    far: Far,
    since: Mono,
    /// What became of our own request.
    dial: Dial,
    /// The peer told that it is connected too.
    told: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Dial {
    /// There is none.
    No,
    /// It is on its way, since.
    Asked(Mono),
    /// It was answered; our ACK is on its way, since.
    Acking(Mono),
    /// The peer knows.
    Done,
}

impl Connected {
    fn is_ready(&self) -> bool {
        self.told || self.dial == Dial::Done
    }
}

impl Link {
    /// Not connected yet.
    pub fn new(near: Near) -> Link {
        Link { near, state: State::Idle }
    }

    /// Our end.
    pub fn near(&self) -> &Near {
        &self.near
    }

    /// The peer's end, if our queue pairs are connected with it.
    pub fn far(&self) -> Option<&Far> {
        match &self.state {
            State::Connected(connected) => Some(&connected.far),
            _ => None,
        }
    }

    /// May it be used for posting?
    pub fn is_ready(&self) -> bool {
        matches!(&self.state, State::Connected(connected) if connected.is_ready())
    }

    /// Why it is over, if it is.
    pub fn over(&self) -> Option<&Over> {
        match &self.state {
            State::Over(over) => Some(over),
            _ => None,
        }
    }

    /// End it. The first reason stays.
    pub fn end(&mut self, why: Over) {
        if self.over().is_none() {
            self.state = State::Over(why);
        }
    }

    /// Somebody wants to post.
    pub fn want(&mut self, now: Mono) -> Want {
        match &mut self.state {
            State::Idle => {
                self.state = State::Dialling(now);
                Want::Dial(self.near.message(false))
            }
            State::Dialling(since) => Want::Wait(*since + DIAL_LIMIT),
            State::Connected(connected) if connected.is_ready() => Want::Post,
            State::Connected(Connected { dial: Dial::Asked(since) | Dial::Acking(since), .. }) => {
                Want::Wait(*since + DIAL_LIMIT)
            }
            State::Connected(connected) => {
                let until = connected.since + READY_LIMIT;
                if now < until {
                    return Want::Wait(until);
                }
                self.end(Over::NotReady);
                Want::Over(Over::NotReady)
            }
            State::Over(over) => Want::Over(over.clone()),
        }
    }

    /// The reply to our request. `far` is what [`far()`] made of it; `connect` brings our queue pairs to RTS, or says why it cannot.
    pub fn answered(
        &mut self,
        reply: &Connection,
        far: Result<Far, Refusal>,
        now: Mono,
        connect: impl FnOnce(&Far) -> Result<(), Unconnected>,
    ) -> Next {
        if !self.is_dialling() {
            return Next::Ask;
        }
        let far = match self.read(reply, far) {
            Ok(far) => far,
            Err(over) => return self.not_dialled(over),
        };
        match &self.state {
            State::Connected(connected) if connected.far.numbers != far.numbers => {
                self.end(Over::Crossed);
                return Next::Ask;
            }
            State::Connected(_) => {}
            _ => {
                if let Err(why) = connect(&far) {
                    self.end(Over::Verbs(why));
                    return Next::Ask;
                }
                self.state = State::Connected(Connected { far, since: now, dial: Dial::No, told: false });
            }
        }
        let ack = self.near.message(true);
        let State::Connected(connected) = &mut self.state else { return Next::Ask };
        if reply.ready_ack.is_none() {
            connected.dial = Dial::Done;
            return Next::Ask;
        }
        connected.dial = Dial::Acking(now);
        Next::Ack(ack)
    }

    /// Our request got no reply, or none that can be read.
    pub fn unanswered(&mut self, why: Over) -> Next {
        if self.is_dialling() { self.not_dialled(why) } else { Next::Ask }
    }

    /// The answer to our ready ACK.
    pub fn ack_answered(&mut self, reply: &Connection) {
        if let State::Connected(connected) = &mut self.state
            && matches!(connected.dial, Dial::Acking(_))
        {
            connected.dial = Dial::Done;
            if !reply.reply_msg.is_empty() {
                self.end(Over::Refused(reply.reply_msg.clone()));
            }
        }
    }

    /// Our ready ACK got no answer, or none that can be read. If the peer has told that it is ready itself, it does not matter.
    pub fn ack_unanswered(&mut self, why: Over) {
        if let State::Connected(connected) = &mut self.state
            && matches!(connected.dial, Dial::Acking(_))
        {
            connected.dial = Dial::No;
            if !connected.told {
                self.end(why);
            }
        }
    }

    /// Answer a request that is no ACK. `far` is what [`far()`] made of it; `connect` brings our queue pairs to RTS, or says why it
    /// cannot.
    pub fn accept(
        &mut self,
        request: &Connection,
        far: Result<Far, Refusal>,
        now: Mono,
        connect: impl FnOnce(&Far) -> Result<(), Unconnected>,
    ) -> Accepted {
        if let Err(refusal) = self.is_for_us(request) {
            return Accepted::Reply(refusal.reply());
        }
        let far = match far {
            Ok(far) => far,
            // These two come with our own numbers, as upstream's do.
            Err(refusal @ (Refusal::Count { .. } | Refusal::Gid(_))) => {
                return Accepted::Reply(Connection { reply_msg: refusal.to_string(), ..self.near.message(false) });
            }
            Err(refusal) => return Accepted::Reply(refusal.reply()),
        };
        let dial = match &self.state {
            // After its ACK a peer asks only in another life, whose queue pairs may have the same numbers.
            State::Connected(connected) if connected.far.numbers == far.numbers && !(connected.told && far.acks) => {
                return Accepted::Reply(self.near.message(false));
            }
            State::Connected(_) | State::Over(_) => return Accepted::Anew,
            State::Idle => Dial::No,
            State::Dialling(since) => Dial::Asked(*since),
        };
        if let Err(why) = connect(&far) {
            let refusal = Refusal::Verbs(why.words.clone());
            self.end(Over::Verbs(why));
            return Accepted::Reply(Connection { reply_msg: refusal.to_string(), ..self.near.message(false) });
        }
        // A peer that knows no ACK will tell us nothing more.
        let told = !far.acks;
        self.state = State::Connected(Connected { far, since: now, dial, told });
        Accepted::Reply(self.near.message(false))
    }

    /// Answer a ready ACK.
    pub fn acknowledged(&mut self, ack: &Connection) -> Connection {
        if let Err(refusal) = self.is_for_us(ack) {
            return refusal.reply();
        }
        match &mut self.state {
            State::Connected(connected) if connected.far.numbers == ack.qp_num => {
                connected.told = true;
                Connection::default()
            }
            State::Connected(_) => Refusal::Stale.reply(),
            _ => Refusal::Unconnected.reply(),
        }
    }

    fn is_dialling(&self) -> bool {
        matches!(&self.state, State::Dialling(_) | State::Connected(Connected { dial: Dial::Asked(_), .. }))
    }

    /// The peer's end from its reply.
    fn read(&self, reply: &Connection, far: Result<Far, Refusal>) -> Result<Far, Over> {
        if !reply.reply_msg.is_empty() {
            return Err(Over::Refused(reply.reply_msg.clone()));
        }
        if reply.local_nic_path.is_empty() && reply.qp_num.is_empty() {
            return Err(Over::NoRdma);
        }
        self.is_for_us(reply).and(far).map_err(Over::Reply)
    }

    /// Our request came to nothing. What the peer's own request has connected meanwhile is as good as before.
    fn not_dialled(&mut self, over: Over) -> Next {
        match &mut self.state {
            State::Connected(connected) => connected.dial = Dial::No,
            _ => self.end(over),
        }
        Next::Ask
    }

    fn is_for_us(&self, message: &Connection) -> Result<(), Refusal> {
        let Near { path, peer, .. } = &self.near;
        let (ours, theirs) = (&message.peer_nic_path, &message.local_nic_path);
        if ours == path && theirs == peer {
            return Ok(());
        }
        Err(Refusal::Inconsistent { expected: format!("{path} + {peer}"), got: format!("{ours} + {theirs}") })
    }
}

#[cfg(test)]
mod tests;
