//! Connecting endpoints: dialling peers, and answering those who dial us. What is said when is [`link`]'s to decide; here it is
//! done.

use std::sync::Arc;
use std::time::Duration;

use crate::engine::base::Mono;
use crate::engine::sys::verbs::{Caps, Mtu, Pair, VerbsError, Way};
use crate::engine::transfer::TransferError;
use crate::engine::transfer::rdma::batch::Trouble;
use crate::engine::transfer::rdma::endpoint::{Endpoint, Line, State};
use crate::engine::transfer::rdma::fault::{Blame, RdmaStep};
use crate::engine::transfer::rdma::link::{
    self, Accepted, DIAL_LIMIT, Far, Link, Near, Next, Over, Refusal, Unconnected, Want,
};
use crate::engine::transfer::rdma::nic::{self, Nic, Place};
use crate::engine::transfer::rdma::shared::Shared;
use crate::engine::transfer::rdma::view::{View, nic_path};
use crate::engine::transfer::transport::{Calls, Deadline};
use crate::engine::wire::json::Connection;

/// How many packets may be routed on.
const HOP_LIMIT: u8 = 16;
/// How long a peer's descriptor may take that does not tell its address itself.
const FIND_LIMIT: Duration = Duration::from_secs(5);
/// How often a request that belongs to a new life is handed to a new endpoint.
const ANEW_MAX: usize = 4;

impl Shared {
    /// The endpoint of `nic` to `path`; made if there is none, but not connected.
    ///
    /// # Errors
    /// There are too many, or the device makes no more queue pairs.
    pub(super) fn endpoint(&self, nic: &Arc<Nic>, path: &str, now: Mono) -> Result<Arc<Endpoint>, TransferError> {
        nic.endpoint(path, || self.make_endpoint(nic, path, now))
    }

    fn make_endpoint(&self, nic: &Nic, path: &str, now: Mono) -> Result<Endpoint, TransferError> {
        let caps = Caps { wr: nic.limits.requests as u32, sge: nic.limits.sge, inline: nic.limits.inline };
        let line = |_| {
            let pair = Pair::new(&nic.domain, &nic.queue, caps)?;
            pair.init(nic.port, self.settings.pkey_index)?;
            Ok(Line::new(pair, nic.stamp()))
        };
        let lines: Result<Vec<Line>, VerbsError> = (0..nic.limits.pairs).map(line).collect();
        let failed =
            |error: VerbsError| nic.fault_with(path, RdmaStep::Init, error.to_string(), Blame::Device, error.remedy());
        let lines = lines.map_err(failed)?;
        let (place, _) = nic.place_to(path);
        let link = Link::new(Near {
            path: nic_path(&self.server, &nic.name),
            peer: path.to_owned(),
            numbers: lines.iter().map(|line| line.pair.number()).collect(),
            gid: place.gid,
            lid: place.lid,
        });
        Ok(Endpoint::new(path.to_owned(), place, link, lines, now))
    }

    /// Have `endpoint`, which leads to device `device` of `view`, connected, or see it retired. Returns sooner when the batch's time
    /// is over.
    pub(super) fn connect(
        &self,
        nic: &Arc<Nic>,
        endpoint: &Arc<Endpoint>,
        (view, device): (&View, usize),
        calls: &dyn Calls,
        deadline: Deadline,
    ) {
        let mut state = endpoint.state();
        while state.gone.is_none() {
            let now = (self.clock)();
            if now >= deadline.until {
                return;
            }
            match state.link.want(now) {
                Want::Post => {
                    let mut over = nic::Over::default();
                    self.open(nic, endpoint, &mut state, &mut over);
                    drop(state);
                    over.deliver();
                    return;
                }
                Want::Wait(until) => {
                    let limit = until.since(now).min(deadline.left(now)).max(Duration::from_millis(1));
                    state = endpoint.await_change(state, limit);
                }
                Want::Over(why) => {
                    let (error, gid) = (self.unconnected(nic, endpoint.path(), &why), state.link.near().gid);
                    drop(state);
                    // A life that ended because another began says nothing against the peer.
                    let again = why.is_passing() || (why.is_address() && self.next_gid(nic, endpoint.path(), &gid));
                    let trouble = if again { Trouble::Dropped } else { Trouble::Link(error) };
                    endpoint.retire(nic, &trouble);
                    return;
                }
                Want::Dial(request) => {
                    drop(state);
                    self.dial(nic, endpoint, (view, device), calls, &request, deadline.left(now).min(DIAL_LIMIT));
                    state = endpoint.state();
                }
            }
        }
    }

    /// Send `request`, and what follows from its reply.
    fn dial(
        &self,
        nic: &Arc<Nic>,
        endpoint: &Arc<Endpoint>,
        (view, device): (&View, usize),
        calls: &dyn Calls,
        request: &Connection,
        limit: Duration,
    ) {
        let started = (self.clock)();
        let reply = if self.may_dial(nic.index, endpoint.path(), started) {
            calls.connect(&view.segment, request, limit).map_err(|error| self.undialled(&error, started, limit))
        } else {
            Err(Over::Unreachable("it could not be connected a moment ago (MC_CONN_PAUSE_TTL_MS)".to_owned()))
        };
        let now = (self.clock)();
        let mut state = endpoint.state();
        let next = match reply {
            Ok(reply) => {
                let far = link::far(&reply, Some(&view.descriptor), nic.limits.pairs);
                let State { link, lines, .. } = &mut *state;
                link.answered(&reply, far, now, |far| self.bring_up(nic, endpoint.place(), lines, far))
            }
            Err(why) => state.link.unanswered(why),
        };
        endpoint.settle();
        if state.link.over().is_some_and(|over| !over.is_passing()) {
            self.dial_failed(nic.index, endpoint.path(), now);
        }
        if let Next::Ack(ack) = next {
            drop(state);
            let answer = calls.connect(
                &view.segment,
                &ack,
                limit.saturating_sub(now.since(started)).max(Duration::from_millis(100)),
            );
            let mut state = endpoint.state();
            match answer {
                Ok(answer) => state.link.ack_answered(&answer),
                Err(error) => state.link.ack_unanswered(self.undialled(&error, started, limit)),
            }
            endpoint.settle();
            if state.link.is_ready() {
                let (local, peer) = (endpoint.place().gid_text(), view.descriptor.devices[device].gid.as_str());
                tracing::info!(device = %nic.name, gid = %local, peer = %endpoint.path(), peer_gid = peer, "connected over rdma");
            }
        }
    }

    /// Why a dial came to nothing. One that was cut short by its batch's time says nothing of the peer: who else waits dials anew.
    fn undialled(&self, error: &TransferError, started: Mono, limit: Duration) -> Over {
        if limit < DIAL_LIMIT && (self.clock)().since(started) >= limit {
            return Over::Retired("the time of whoever dialled was over".to_owned());
        }
        unanswered(error)
    }

    /// Bring the queue pairs of an endpoint to RTS, from `place`, of which the peer is told, towards `far`.
    fn bring_up(&self, nic: &Nic, place: &Place, lines: &[Line], far: &Far) -> Result<(), Unconnected> {
        for (line, number) in lines.iter().zip(&far.numbers) {
            line.pair.connect(&self.way(nic, place, far, *number)).map_err(|error| Unconnected {
                step: if error.what.ends_with("RTS") { RdmaStep::Rts } else { RdmaStep::Rtr },
                words: error.to_string(),
                invalid: error.is_invalid(),
                remedy: error.remedy(),
            })?;
        }
        Ok(())
    }

    /// How a queue pair of `nic`, whose address is `place`, gets to the peer's pair `number`.
    pub(super) fn way(&self, nic: &Nic, place: &Place, far: &Far, number: u32) -> Way {
        Way {
            port: nic.port,
            sgid_index: u8::try_from(place.gid_index).unwrap_or(u8::MAX),
            mtu: Mtu::from_bytes(place.mtu).unwrap_or(Mtu::MAX),
            remote_gid: far.gid,
            remote_lid: far.lid,
            remote_number: number,
            hop_limit: HOP_LIMIT,
            traffic_class: self.settings.traffic_class,
            service_level: self.settings.service_level,
        }
    }

    /// If the link is ready, so is the endpoint: post what waited.
    fn open(&self, nic: &Nic, endpoint: &Arc<Endpoint>, state: &mut State, over: &mut nic::Over) {
        if state.gone.is_none() && !state.open && state.link.is_ready() {
            state.open = true;
            nic.figures.connected.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            self.connected(nic.index, endpoint.path());
            endpoint.post(nic, state, over);
        }
    }

    /// Is what `endpoint` is connected with still there? A device may send to a process that is gone for very long, or for ever. Asked by
    /// the ready ACK once more, which a peer refuses that does not know the connection; one that knows no ACK is asked for its descriptor.
    ///
    /// # Errors
    /// It is not, or says so.
    pub(super) fn is_alive(
        &self,
        nic: &Nic,
        endpoint: &Endpoint,
        view: &View,
        calls: &dyn Calls,
        limit: Duration,
    ) -> Result<(), TransferError> {
        let Some((ack, acks)) = endpoint.ack() else { return Ok(()) };
        if !acks {
            let descriptor = calls.find(&view.segment, limit)?;
            return if view.is(&descriptor) {
                Ok(())
            } else {
                let words = "the peer has started anew".to_owned();
                Err(nic.fault(endpoint.path(), RdmaStep::Move, words, Blame::Peer))
            };
        }
        let answer = calls.connect(&view.segment, &ack, limit)?;
        if answer.reply_msg.is_empty() {
            return Ok(());
        }
        let words = format!("the peer does not know the connection any more: {}", answer.reply_msg);
        Err(nic.fault(endpoint.path(), RdmaStep::Move, words, Blame::Peer))
    }

    /// Answer a connection request or a ready ACK.
    pub(super) fn answer(&self, request: &Connection, calls: &dyn Calls) -> Connection {
        let reply = self.answered(request, calls).unwrap_or_else(|refusal| {
            tracing::warn!(
                from = %request.local_nic_path, to = %request.peer_nic_path, pairs = ?request.qp_num, gid = %request.local_gid,
                %refusal, "connection request is refused"
            );
            refusal.reply()
        });
        tracing::debug!(?request, ?reply, "connection request");
        reply
    }

    fn answered(&self, request: &Connection, calls: &dyn Calls) -> Result<Connection, Refusal> {
        let name = link::device_of(request)?;
        let nic = self.nics.iter().find(|nic| nic.name == name && !nic.is_out());
        let nic = nic.ok_or_else(|| Refusal::UnknownDevice(name.to_owned()))?;
        let path = &request.local_nic_path;
        let (server, _) = link::split_path(path).ok_or_else(|| Refusal::BadPath(path.clone()))?;
        let own = nic_path(&self.server, &nic.name);
        if own != request.peer_nic_path {
            let (expected, got) = (format!("{own} + {path}"), format!("{} + {path}", request.peer_nic_path));
            return Err(Refusal::Inconsistent { expected, got });
        }
        if link::is_ack(request) {
            let endpoint = nic.known(path).ok_or(Refusal::Unconnected)?;
            return Ok(self.acknowledged(nic, &endpoint, request));
        }
        // Before 0.3.11 the address is in the segment document only; its owner waits for us meanwhile, and answers.
        let described = link::lacks_address(request).then(|| calls.find(server, FIND_LIMIT));
        let described = described.map(|found| found.map_err(|_| Refusal::UnknownPeer(path.clone()))).transpose()?;
        // What would be refused anyhow is not worth queue pairs.
        let far = link::far(request, described.as_ref(), nic.limits.pairs)?;
        for _ in 0..ANEW_MAX {
            let now = (self.clock)();
            let endpoint = self.endpoint(nic, path, now).map_err(|error| Refusal::Verbs(error.to_string()))?;
            let mut over = nic::Over::default();
            let mut state = endpoint.state();
            let State { link, lines, .. } = &mut *state;
            let accepted =
                link.accept(request, Ok(far.clone()), now, |far| self.bring_up(nic, endpoint.place(), lines, far));
            let (accepted, anew) = match (accepted, state.link.over()) {
                (Accepted::Anew, _) => (Accepted::Anew, Some(Trouble::Dropped)),
                (_, Some(why)) if why.is_address() && self.next_gid(nic, path, &state.link.near().gid) => {
                    (Accepted::Anew, Some(Trouble::Dropped))
                }
                (reply, over) => (reply, over.map(|why| Trouble::Link(self.unconnected(nic, path, why)))),
            };
            match anew {
                Some(trouble) => endpoint.retire_with(nic, &mut state, &trouble, &mut over),
                None => {
                    state.touch(now);
                    self.open(nic, &endpoint, &mut state, &mut over);
                }
            }
            endpoint.settle();
            drop(state);
            over.deliver();
            if let Accepted::Reply(reply) = accepted {
                if reply.reply_msg.is_empty() {
                    tracing::info!(device = %nic.name, peer = %path, gid = %request.local_gid, "peer connected over rdma");
                }
                return Ok(reply);
            }
        }
        Err(Refusal::Verbs("the endpoint is being replaced; try again".to_owned()))
    }

    fn acknowledged(&self, nic: &Nic, endpoint: &Arc<Endpoint>, ack: &Connection) -> Connection {
        let mut over = nic::Over::default();
        let mut state = endpoint.state();
        let reply = state.link.acknowledged(ack);
        self.open(nic, endpoint, &mut state, &mut over);
        endpoint.settle();
        drop(state);
        over.deliver();
        reply
    }

    /// Why there is no connection, as an error.
    fn unconnected(&self, nic: &Nic, path: &str, why: &Over) -> TransferError {
        let words = why.to_string();
        let (step, blame) = match why {
            Over::Refused(_) | Over::NoRdma | Over::Reply(_) | Over::Unreadable(_) => (RdmaStep::Dial, Blame::Refusal),
            Over::Unreachable(_) | Over::Crossed => (RdmaStep::Dial, Blame::Peer),
            Over::Verbs(unconnected) => (unconnected.step, Blame::Device),
            Over::NotReady | Over::Replaced => (RdmaStep::Ready, Blame::Peer),
            Over::Retired(_) => (RdmaStep::Ready, Blame::Peer),
        };
        nic.fault_with(path, step, words, blame, why.remedy())
    }
}

/// Why a peer's handshake port gave no reply that can be used.
fn unanswered(error: &TransferError) -> Over {
    let words = error.chain().to_string();
    if error.is_unreadable() { Over::Unreadable(words) } else { Over::Unreachable(words) }
}
