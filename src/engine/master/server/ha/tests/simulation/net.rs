//! Connections between simulated processes: ordered, delayed, and held while their hosts are cut
//! off from each other.

use std::collections::VecDeque;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::event::Event;
use super::fabric::{Answer, Fabric, FabricState};
use mcctl_base::HostPort;
use mcctl_base::rng::Rng;
use mcctl_sys::env::{Listener, Net};

/// The RPC port of each host, and its port for standbys.
pub(super) const RPC_PORT: u16 = 50051;
pub(super) const REPLICATION_PORT: u16 = 50052;

/// A connection. Side 0 has connected, side 1 has accepted.
pub(super) struct Connection {
    /// The host of each side, and the number of its process.
    pub sides: [(usize, u64); 2],
    /// The bytes towards each side.
    pub towards: [Direction; 2],
    /// Additional delay of each packet, up to this many microseconds.
    slow: usize,
    rng: Rng,
}

/// One direction of a connection.
#[derive(Default)]
pub(super) struct Direction {
    /// Packets on their way. An empty one is the end.
    packets: VecDeque<Vec<u8>>,
    /// Number of packets whose arrival is an event already. A cut holds the others.
    scheduled: usize,
    /// Arrival time of the last packet.
    last: u64,
    inbox: VecDeque<u8>,
    has_ended: bool,
    reader: Option<Waker>,
    is_closed: bool,
    /// Number of times at which the packets on their way were lost.
    losses: u64,
}

impl Direction {
    /// Drops the packets that have not arrived.
    fn lose(&mut self) {
        self.packets.clear();
        self.scheduled = 0;
        self.losses += 1;
    }
}

impl Connection {
    /// A connection without bytes.
    pub(super) fn new(sides: [(usize, u64); 2], slow: usize, rng: Rng) -> Connection {
        Connection { sides, towards: Default::default(), slow, rng }
    }

    /// The delay of a packet: usually short.
    fn delay(&mut self) -> u64 {
        let usual = match self.rng.below(50) {
            0 => self.rng.below(100_000),
            _ => 50 + self.rng.below(1_500),
        };
        (usual + self.rng.below(self.slow)) as u64
    }

    /// The pair of hosts, the lower number first.
    pub(super) fn pair(&self) -> (usize, usize) {
        let [(a, _), (b, _)] = self.sides;
        (a.min(b), a.max(b))
    }
}

impl FabricState {
    /// Whether nothing arrives in one of the directions between two hosts.
    pub(super) fn is_cut(&self, a: usize, b: usize) -> bool {
        self.cuts.contains(&(a, b)) || self.cuts.contains(&(b, a))
    }

    /// Adds the arrival of packets that no cut holds.
    pub(super) fn schedule(&mut self, now: u64, number: u64, side: usize) {
        let Some(connection) = self.connections.get_mut(&number) else { return };
        let from = connection.sides[1 - side].0;
        let to = connection.sides[side].0;
        if self.cuts.contains(&(from, to)) {
            return;
        }
        while connection.towards[side].scheduled < connection.towards[side].packets.len() {
            let delay = connection.delay();
            let direction = &mut connection.towards[side];
            direction.scheduled += 1;
            direction.last = (now + delay).max(direction.last + 1);
            let losses = direction.losses;
            self.posted.push((direction.last, Event::Packet { connection: number, side, losses }));
        }
    }

    /// The next packet towards `side` arrives, unless it was lost since.
    pub(super) fn arrive(&mut self, number: u64, side: usize, losses: u64) {
        let Some(connection) = self.connections.get_mut(&number) else { return };
        let direction = &mut connection.towards[side];
        if direction.losses != losses {
            return;
        }
        let Some(packet) = direction.packets.pop_front() else { return };
        direction.scheduled -= 1;
        direction.has_ended |= packet.is_empty();
        direction.inbox.extend(packet);
        direction.reader.take().into_iter().for_each(Waker::wake);
        if connection.towards.iter().all(|direction| direction.has_ended && direction.packets.is_empty()) {
            self.connections.remove(&number);
        }
    }

    /// The host loses power: packets from it that have not arrived are lost. `is_silent`: the other
    /// sides receive no reset.
    pub(super) fn lose_packets(&mut self, host: usize, is_silent: bool) {
        for connection in self.connections.values_mut() {
            for side in 0..2 {
                if connection.sides[1 - side].0 == host {
                    let direction = &mut connection.towards[side];
                    direction.lose();
                    direction.is_closed |= is_silent;
                }
            }
        }
    }

    /// Resets all connections between two hosts: packets that have not arrived are lost.
    pub(super) fn reset(&mut self, now: u64, a: usize, b: usize) {
        let pair = (a.min(b), a.max(b));
        let between = self.connections.iter().filter(|(_, connection)| connection.pair() == pair);
        let numbers: Vec<u64> = between.map(|(number, _)| *number).collect();
        for number in numbers {
            for side in 0..2 {
                let Some(connection) = self.connections.get_mut(&number) else { continue };
                let direction = &mut connection.towards[side];
                direction.lose();
                direction.is_closed = false;
                self.send(now, number, 1 - side, Vec::new());
            }
        }
    }

    /// Closes side 0 of a connection whose process has aborted its attempt to connect.
    pub(super) fn abandon(&mut self, now: u64, number: u64) {
        self.send(now, number, 0, Vec::new());
    }

    /// Sends a packet from `side` to the other side.
    fn send(&mut self, now: u64, number: u64, side: usize, packet: Vec<u8>) {
        let other = 1 - side;
        let Some(connection) = self.connections.get_mut(&number) else { return };
        let direction = &mut connection.towards[other];
        if direction.is_closed {
            return;
        }
        direction.is_closed = packet.is_empty();
        let is_held = direction.scheduled < direction.packets.len();
        direction.packets.push_back(packet);
        if !is_held {
            self.schedule(now, number, other);
        }
    }
}

/// The network of one process.
#[derive(Clone)]
pub(super) struct SimNet {
    pub fabric: Arc<Fabric>,
    pub node: usize,
    pub incarnation: u64,
}

/// One side of a connection.
pub(super) struct SimStream {
    fabric: Arc<Fabric>,
    number: u64,
    side: usize,
}

/// The port for standbys of one process.
pub(super) struct SimListener(SimNet);

impl SimNet {
    /// The listener of the process.
    pub(super) fn listener(&self) -> SimListener {
        SimListener(self.clone())
    }

    fn stream(&self, number: u64, side: usize) -> SimStream {
        SimStream { fabric: self.fabric.clone(), number, side }
    }
}

impl Net for SimNet {
    type Stream = SimStream;
    type Listener = SimListener;
    type Detached = SimStream;

    async fn connect(&self, to: &HostPort) -> io::Result<SimStream> {
        let host = to.host.strip_prefix("node-").and_then(|nth| nth.parse().ok());
        let host = host.ok_or_else(|| io::Error::from(io::ErrorKind::NotFound))?;
        let attempt = {
            let mut state = self.fabric.state();
            let attempt = state.number();
            state.attempts.insert(attempt, Answer::default());
            let node = self.node;
            let incarnation = self.incarnation;
            let event = Event::Connect { node, incarnation, attempt, to: host, port: to.port };
            let now = self.fabric.now();
            state.posted.push((now, event));
            attempt
        };
        let _attempt = Attempt { fabric: &self.fabric, number: attempt };
        let number = std::future::poll_fn(|context| match self.fabric.state().attempts.get_mut(&attempt) {
            Some(answer) => answer.poll(context),
            None => Poll::Pending,
        });
        Ok(self.stream(number.await?, 0))
    }

    async fn listen(&self, _: &HostPort) -> io::Result<SimListener> {
        Ok(self.listener())
    }

    fn detach(stream: SimStream) -> io::Result<SimStream> {
        Ok(stream)
    }

    fn attach(stream: SimStream) -> io::Result<SimStream> {
        Ok(stream)
    }
}

/// An attempt to connect, which may be aborted.
struct Attempt<'a> {
    fabric: &'a Fabric,
    number: u64,
}

impl Drop for Attempt<'_> {
    fn drop(&mut self) {
        self.fabric.state().attempts.remove(&self.number);
    }
}

impl Listener for SimListener {
    type Stream = SimStream;

    async fn accept(&mut self) -> io::Result<(SimStream, String)> {
        let net = &self.0;
        let number = std::future::poll_fn(|context| {
            let queue = &mut net.fabric.state().accepting[net.node];
            match queue.waiting.pop_front() {
                Some(number) => Poll::Ready(number),
                None => {
                    queue.waker = Some(context.waker().clone());
                    Poll::Pending
                }
            }
        });
        let number = number.await;
        Ok((net.stream(number, 1), format!("connection-{number}:1")))
    }

    fn port(&self) -> u16 {
        REPLICATION_PORT
    }
}

impl SimStream {
    /// Sends a packet to the other side.
    fn send(&self, packet: Vec<u8>) {
        self.fabric.state().send(self.fabric.now(), self.number, self.side, packet);
    }
}

impl AsyncRead for SimStream {
    fn poll_read(self: Pin<&mut Self>, context: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let mut state = self.fabric.state();
        let Some(connection) = state.connections.get_mut(&self.number) else { return Poll::Ready(Ok(())) };
        let direction = &mut connection.towards[self.side];
        if direction.inbox.is_empty() && !direction.has_ended {
            direction.reader = Some(context.waker().clone());
            return Poll::Pending;
        }
        let count = buf.remaining().min(direction.inbox.len());
        let bytes: Vec<u8> = direction.inbox.drain(..count).collect();
        buf.put_slice(&bytes);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for SimStream {
    fn poll_write(self: Pin<&mut Self>, _: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        if !buf.is_empty() {
            self.send(buf.to_vec());
        }
        Poll::Ready(Ok(buf.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.send(Vec::new());
        Poll::Ready(Ok(()))
    }
}

impl Drop for SimStream {
    /// The kernel resets the connection.
    fn drop(&mut self) {
        self.send(Vec::new());
    }
}
