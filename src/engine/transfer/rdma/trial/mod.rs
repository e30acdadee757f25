//! Trying every way to a peer, for who wants to know which of them carry bytes and, of the others, at which step they fail.
//!
//! Each way gets queue pairs of its own, which nothing else uses, so that every step can be told from the others: the pairs are made,
//! the peer is asked for its own, they are connected, a write of no bytes goes there (which needs no key, and changes nothing), and a
//! read of several packets. Where a way fails for what may be the address, other rows of our port's GID table are tried, too.

mod attempt;

use std::net::Ipv6Addr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use crate::engine::sys::verbs::{LinkLayer, PortState, Status};
use crate::engine::topology::Host;
use crate::engine::topology::gid::{Gid, GidKind};
use crate::engine::transfer::TransferError;
use crate::engine::transfer::rdma::fault::RdmaStep;
use crate::engine::transfer::rdma::nic::Nic;
use crate::engine::transfer::rdma::shared::Shared;
use crate::engine::transfer::rdma::trial::attempt::Bench;
use crate::engine::transfer::rdma::view::View;
use crate::engine::transfer::rdma::{gid, open};
use crate::engine::transfer::transport::Calls;
use crate::engine::wire::json::{SegmentDescriptor, parse_gid};

/// Other rows of a GID table that are tried for each of our devices.
const OTHER_ROWS_MAX: usize = 3;
/// How long a request may be under way: longer than a device takes to give up (4.096 us << 14, at most four times that, eight times).
const MOVE_LIMIT: Duration = Duration::from_secs(5);
/// The same where another row is tried.
const OTHER_MOVE_LIMIT: Duration = Duration::from_secs(2);

/// What came of trying every way to a peer.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Trials {
    /// Our devices that were used.
    pub ends: Vec<End>,
    /// Those that could not be.
    pub unused: Vec<Unused>,
    /// From each of ours to each of the peer's.
    pub ways: Vec<Tried>,
}

/// A device that is not used, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unused {
    /// Its name.
    pub device: String,
    /// Why, in words that name it.
    pub why: String,
}

/// A port of ours.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct End {
    /// The device.
    pub device: String,
    /// From 1.
    pub port: u8,
    /// What carries it.
    pub layer: LinkLayer,
    /// The MTU that it has now, bytes.
    pub active_mtu: u32,
    /// The path MTU that connections ask for, bytes.
    pub mtu: u32,
    /// Local identifier; 0 on Ethernet.
    pub lid: u16,
    /// The row that is used.
    pub gid: Gid,
    /// Who asked for that row, if somebody did.
    pub asked: Option<&'static str>,
}

/// A way, and what came of it.
#[derive(Clone, Debug, PartialEq)]
pub struct Tried {
    /// Which of [`Trials::ends`].
    pub end: usize,
    /// The peer's device.
    pub theirs: String,
    /// Its address.
    pub their_gid: Ipv6Addr,
    /// How it went with the row that is used.
    pub attempt: Attempt,
    /// How it went with others: not tried where the address cannot be why it failed, nor twice for a device.
    pub others: Vec<Attempt>,
}

/// One try.
#[derive(Clone, Debug, PartialEq)]
pub struct Attempt {
    /// The row of our table.
    pub gid: Gid,
    /// Our port's state after it.
    pub port_state: Option<PortState>,
    /// What was measured, or what failed.
    pub result: Result<Figures, Failure>,
}

impl Attempt {
    /// Does it carry bytes, those of a read among them?
    pub fn works(&self) -> bool {
        self.result.as_ref().is_ok_and(|figures| figures.read.as_ref().is_none_or(|read| read.result.is_ok()))
    }
}

/// A way that carries bytes.
#[derive(Clone, Debug, PartialEq)]
pub struct Figures {
    /// There and back, of writes of no bytes: the shortest first.
    pub writes: Vec<Duration>,
    /// A read; `None` where the peer offers no memory.
    pub read: Option<Read>,
}

/// A read of the peer's memory.
#[derive(Clone, Debug, PartialEq)]
pub struct Read {
    /// How many bytes.
    pub bytes: u32,
    /// How long it took, or what failed.
    pub result: Result<Duration, Failure>,
}

/// What failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// At which step.
    pub step: RdmaStep,
    /// In which way.
    pub cause: Cause,
    /// In words: what verbs, the completion or the peer say.
    pub words: String,
}

/// In which way something failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// A verb was refused.
    Verb {
        /// Which.
        call: &'static str,
        /// The system's number.
        errno: i32,
    },
    /// A request ended so.
    Completion(Status),
    /// A request did not end within so long.
    Silence(Duration),
    /// The peer answered, and the answer is no.
    Refused,
    /// The peer's handshake port could not be asked.
    Unreachable,
    /// The peer's handshake port answers, and there is no RDMA behind it.
    NoRdma,
    /// The peer's answer is of no use.
    Answer,
}

impl Failure {
    /// May our address be why?
    fn is_of_address(&self) -> bool {
        match (self.step, self.cause) {
            (RdmaStep::Dial, Cause::Refused) => self.words.contains("RTR") || self.words.contains("GID"),
            (RdmaStep::Rtr | RdmaStep::Rts | RdmaStep::Ready, _) => true,
            (RdmaStep::Move, Cause::Completion(status)) => status.is_unanswered(),
            (RdmaStep::Move, _) => true,
            _ => false,
        }
    }
}

impl Shared {
    /// Try every way to the segment of `descriptor`: `limit` for each answer of the peer. Those that are left when `stop` is set are
    /// not tried.
    ///
    /// # Errors
    /// The descriptor has no device that can be used.
    pub(super) fn try_ways(
        &self,
        descriptor: &SegmentDescriptor,
        calls: &dyn Calls,
        limit: Duration,
        stop: &AtomicBool,
    ) -> Result<Trials, TransferError> {
        let view = View::of(descriptor, (self.clock)())?;
        let host = open::host()?;
        let tables: Vec<Vec<Gid>> = self.nics.iter().map(|nic| table(&host, nic)).collect();
        let ends: Vec<End> = self.nics.iter().zip(&tables).map(|(nic, table)| self.end(nic, table)).collect();
        // Devices do not wait for each other; the ways of one come one after the other.
        let ways = thread::scope(|scope| {
            let from = |(nic, table): (&Arc<Nic>, &Vec<Gid>)| {
                let (view, end, nic, table) = (&view, &ends[nic.index], Arc::clone(nic), table.clone());
                scope.spawn(move || self.ways_from(&nic, end, &table, view, calls, limit, stop))
            };
            let threads: Vec<_> = self.nics.iter().zip(&tables).map(from).collect();
            threads.into_iter().flat_map(|thread| thread.join().expect("a trial does not panic")).collect()
        });
        Ok(Trials { ends, unused: self.unused.clone(), ways })
    }

    /// Our end at `nic`, whose port has the rows of `table`.
    fn end(&self, nic: &Nic, table: &[Gid]) -> End {
        let place = nic.place();
        let port = nic.device.port(nic.port).ok();
        let gid = Ipv6Addr::from(place.gid);
        let unknown =
            || Gid { index: place.gid_index, gid, kind: GidKind::Unknown, netdev: None, ipv4: gid.to_ipv4_mapped() };
        End {
            device: nic.name.clone(),
            port: nic.port,
            layer: port.as_ref().map_or(LinkLayer::Unspecified, |port| port.link_layer),
            active_mtu: port.map_or(place.mtu, |port| port.active_mtu.bytes()),
            mtu: place.mtu,
            lid: place.lid,
            gid: table.iter().find(|row| row.index == place.gid_index).cloned().unwrap_or_else(unknown),
            asked: self.settings.choice.gid_index.map(|(variable, _)| variable),
        }
    }

    /// Every way from one of our devices.
    #[expect(clippy::too_many_arguments, reason = "the body of a thread")]
    fn ways_from(
        &self,
        nic: &Arc<Nic>,
        end: &End,
        table: &[Gid],
        view: &View,
        calls: &dyn Calls,
        limit: Duration,
        stop: &AtomicBool,
    ) -> Vec<Tried> {
        let bench = Bench::new(self, nic);
        let mut ways: Vec<Tried> = Vec::new();
        let mut others_tried = false;
        for (device, theirs) in view.descriptor.devices.iter().enumerate() {
            if stop.load(Ordering::Relaxed) {
                break;
            }
            let Some(their_gid) = parse_gid(&theirs.gid).filter(|_| view.has_device(device)) else { continue };
            let go = |row: &Gid, move_limit: Duration| -> Attempt {
                let result = bench.as_ref().map_err(Clone::clone);
                let result = result.and_then(|bench| bench.attempt(row, (view, device), calls, limit, move_limit));
                let port_state = nic.device.port(nic.port).ok().map(|port| port.state);
                Attempt { gid: row.clone(), port_state, result }
            };
            // All its devices have one handshake port.
            let deaf = ways.last().filter(|tried| tried.attempt.is_deaf()).map(|tried| tried.attempt.clone());
            let attempt = deaf.unwrap_or_else(|| go(&end.gid, MOVE_LIMIT));
            let may_help = attempt.result.as_ref().is_err_and(Failure::is_of_address);
            let mut others = Vec::new();
            if may_help && !std::mem::replace(&mut others_tried, true) {
                let rows = gid::rows(table, None).unwrap_or_default().into_iter();
                let rows = rows.filter(|row| row.index != end.gid.index).take(OTHER_ROWS_MAX);
                others.extend(rows.map(|row| go(row, OTHER_MOVE_LIMIT)));
            }
            let their_gid = Ipv6Addr::from(their_gid);
            ways.push(Tried { end: nic.index, theirs: theirs.name.clone(), their_gid, attempt, others });
        }
        ways
    }
}

impl Attempt {
    /// Did nobody answer at the peer's handshake port?
    fn is_deaf(&self) -> bool {
        self.result.as_ref().is_err_and(|failure| failure.cause == Cause::Unreachable)
    }
}

/// The rows of `nic`'s port that are in use.
fn table(host: &Host, nic: &Nic) -> Vec<Gid> {
    let device = host.devices.iter().find(|device| device.name == nic.name);
    device.and_then(|device| device.port(u32::from(nic.port))).map(|port| port.gids.clone()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_rows_are_tried_where_the_address_may_be_why() {
        let failure = |step, cause, words: &str| Failure { step, cause, words: words.to_owned() };
        let verb = |errno| Cause::Verb { call: "ibv_modify_qp to RTR", errno };
        for (step, cause, words, may) in [
            (RdmaStep::Rtr, verb(22), "", true),
            (RdmaStep::Init, verb(22), "", false),
            (RdmaStep::Dial, Cause::Refused, "Failed to modify QP to RTR, check mtu, gid", true),
            (RdmaStep::Dial, Cause::Refused, "QP count mismatch", false),
            (RdmaStep::Dial, Cause::Unreachable, "", false),
            (RdmaStep::Move, Cause::Silence(MOVE_LIMIT), "", true),
            (RdmaStep::Move, Cause::Completion(Status(12)), "", true),
            (RdmaStep::Move, Cause::Completion(Status(10)), "", false),
        ] {
            assert_eq!(failure(step, cause, words).is_of_address(), may, "{step:?} {cause:?}");
        }
    }
}
