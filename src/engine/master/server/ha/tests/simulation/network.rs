//! The connections of masters, and their requests to etcd, in the world.

use std::io;

use super::event::{EtcdReply, EtcdRequest, Event};
use super::net::{Connection, RPC_PORT};
use super::world::World;
use mcctl_election::ha::TxnOutcome;

/// Time after which a request to etcd ends without a response, in microseconds.
const ETCD_LIMIT: u64 = 1_000_000;

impl World {
    /// Continues an attempt of a process to connect.
    pub(super) fn connect(&mut self, event: Event) {
        match event {
            Event::Connect { node, incarnation, attempt, to, port } => {
                let delay = self.delay();
                self.after(delay, Event::Connecting { node, incarnation, attempt, to, port });
            }
            Event::Connecting { node, incarnation, attempt, to, port } => {
                if self.fabric.state().is_cut(node, to) {
                    // The attempt ends with its time limit.
                    return;
                }
                let connection = self.nodes[to].is_up().then(|| self.open((node, incarnation), to, port));
                if connection.is_some() {
                    self.run_node(to);
                }
                let delay = self.delay();
                self.after(delay, Event::Connected { node, attempt, connection });
            }
            Event::Connected { node, attempt, connection } => {
                let is_awaited = {
                    let mut state = self.fabric.state();
                    let refused = || io::Error::from(io::ErrorKind::ConnectionRefused);
                    let attempt = state.attempts.get_mut(&attempt).filter(|answer| answer.value.is_none());
                    attempt.map(|answer| answer.set(connection.ok_or_else(refused))).is_some()
                };
                if let Some(number) = connection.filter(|_| !is_awaited) {
                    let now = self.now;
                    self.fabric.state().abandon(now, number);
                    self.take_posted();
                }
                self.run_node(node);
            }
            _ => {}
        }
    }

    /// Opens a connection to a process. Returns its number.
    fn open(&mut self, from: (usize, u64), to: usize, port: u16) -> u64 {
        let sides = [from, (to, self.nodes[to].incarnation)];
        let mut state = self.fabric.state();
        let number = state.connection_number();
        let connection = Connection::new(sides, self.plan.slow_link, state.rng(number));
        state.connections.insert(number, connection);
        // A connection to the RPC port is not used: it only shows that the port is open.
        if port != RPC_PORT {
            let queue = &mut state.accepting[to];
            queue.waiting.push_back(number);
            queue.waker.take().into_iter().for_each(std::task::Waker::wake);
        }
        number
    }

    /// The packets that a cut has held are on their way.
    pub(super) fn release_held(&mut self, a: usize, b: usize) {
        let now = self.now;
        {
            let mut state = self.fabric.state();
            let is_between = |connection: &Connection| connection.pair() == (a.min(b), a.max(b));
            let numbers = state.connections.iter().filter(|(_, connection)| is_between(connection));
            let numbers: Vec<u64> = numbers.map(|(number, _)| *number).collect();
            for number in numbers {
                state.schedule(now, number, 0);
                state.schedule(now, number, 1);
            }
        }
        self.take_posted();
    }

    /// A process sends a request to etcd.
    pub(super) fn send_to_etcd(&mut self, node: usize, number: u64, request: EtcdRequest) {
        let delay = 200 + self.delay() + self.rng.below(self.plan.slow_etcd) as u64;
        // Some requests arrive late, and of some the response is lost.
        let (delay, is_answered) = match self.rng.below(200) {
            0 => (delay + 1_500_000, false),
            1 | 2 => (delay, false),
            _ => (delay, true),
        };
        // The event of a response that comes earlier ends the wait.
        let reply = Box::new(EtcdReply::unknown());
        self.after(ETCD_LIMIT, Event::EtcdReply { node, number, reply });
        if self.nodes[node].is_dropping() && matches!(request, EtcdRequest::Elect(_)) {
            self.lossy_elections.insert(number);
        }
        match &request {
            EtcdRequest::Revoke(_) => self.totals.fast_paths += 1,
            EtcdRequest::Elect(_) | EtcdRequest::WriteSync(_) => self.sync_writes += 1,
            _ => {}
        }
        if !matches!(request, EtcdRequest::Observe | EtcdRequest::Renew(_)) {
            self.trace(|| format!("node {node} {:?}: {request:?}", self.nodes[node].probe()));
        }
        self.after(delay, Event::Etcd { node, number, request, is_answered });
    }

    /// A request arrives at etcd.
    pub(super) fn serve_etcd(&mut self, node: usize, number: u64, request: EtcdRequest, is_answered: bool) {
        if let EtcdRequest::Elect(_) | EtcdRequest::WriteSync(_) = &request {
            self.sync_writes -= 1;
        }
        if !self.is_etcd_up || self.cut_etcd.contains(&node) {
            return;
        }
        // A lease lasts longer than its TTL by up to 0.6 s.
        let expires = self.now + 2_000_000 + self.rng.below(600_000) as u64;
        let before = self.etcd.revision();
        let mut outcome = TxnOutcome::Done(0);
        let mut lease = None;
        let mut offers = Vec::new();
        match &request {
            EtcdRequest::Grant => lease = Some(self.etcd.grant(expires)),
            EtcdRequest::Renew(id) => lease = self.etcd.renew(*id, expires).then_some(*id),
            EtcdRequest::Revoke(id) => {
                self.etcd.revoke(*id);
            }
            EtcdRequest::Observe => {}
            EtcdRequest::Elect(txn) => {
                outcome = self.etcd.elect(txn);
                // It may end before it receives the result of its election. Its next process then
                // leads.
                if matches!(outcome, TxnOutcome::Done(_)) && self.lossy_elections.contains(&number) {
                    self.note_lossy_promotion(node);
                }
                let is_other = txn.address != format!("node-{node}:{RPC_PORT}");
                self.totals.recreations += u64::from(is_other && matches!(outcome, TxnOutcome::Done(_)));
            }
            EtcdRequest::Offer(txn) => offers = self.etcd.offer(txn),
            EtcdRequest::WriteSync(txn) => outcome = self.etcd.write_sync(txn),
            EtcdRequest::DeleteKey(txn) => {
                outcome = self.etcd.delete_key(txn);
                self.totals.hand_overs += u64::from(matches!(outcome, TxnOutcome::Done(_)));
            }
        }
        let seen = self.etcd.observation();
        if seen.revision != before {
            self.trace(|| format!("etcd: {seen:?}"));
            self.notify_watches();
        }
        if is_answered {
            let reply = Box::new(EtcdReply { outcome, lease, seen: Some(seen), offers });
            let delay = self.delay() + self.rng.below(self.plan.slow_etcd) as u64;
            self.after(delay, Event::EtcdReply { node, number, reply });
        }
    }

    /// The watches that reach etcd report a change.
    pub(super) fn notify_watches(&mut self) {
        for node in 0..self.nodes.len() {
            if !self.cut_etcd.contains(&node) {
                // A member of etcd that lags reports changes late. Requests are linearizable.
                let late = if self.rng.below(20) == 0 { self.rng.below(3_000_000) as u64 } else { 0 };
                let delay = self.delay() + late;
                self.after(delay, Event::Watch { node });
            }
        }
    }
}
