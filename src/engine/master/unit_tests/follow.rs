//! A master whose changes are recorded, and a standby that applies the records.

use super::*;
use crate::{DATA_FORMAT, RecordBuffer, StandbyState};

/// A change as it is in the log.
#[derive(Clone, Debug)]
pub(super) struct LoggedChange {
    pub written: Mono,
    pub payload: Vec<u8>,
}

/// A recording master and its standby.
pub(super) struct Followed {
    pub master: Master,
    pub standby: StandbyState,
    pub log: Vec<LoggedChange>,
}

impl Followed {
    /// An empty master that records its changes.
    pub(super) fn new() -> Followed {
        Followed::with(|_| {})
    }

    pub(super) fn with(change: impl FnOnce(&mut StorePolicy)) -> Followed {
        let mut master = Master::with(change);
        master.state.start_recording(master.now, RecordBuffer::new(DATA_FORMAT, 1), false);
        let standby = StandbyState::following(master.state.policy().clone());
        Followed { master, standby, log: Vec::new() }
    }

    /// A master with one segment of `bytes` bytes, which `A` has mounted and registered.
    pub(super) fn of(bytes: u64) -> Followed {
        let mut this = Followed::new();
        this.register(A, vec![segment(1, "a:1", bytes)]);
        this
    }

    /// Mounts and registers a client's segments.
    #[track_caller]
    pub(super) fn register(&mut self, client: ClientId, segments: Vec<Segment>) {
        for segment in &segments {
            self.master.mount(client, segment.clone());
        }
        assert_eq!(self.master.call().remount_segment(segments, client), Ok(()));
        self.follow();
    }

    /// Logs the change, applies it to the standby, compares both, and makes the change durable.
    #[track_caller]
    pub(super) fn follow(&mut self) {
        let written = self.master.now;
        let state = &mut self.master.state;
        let change = state.close_change(|change| (change.sequence, change.payload.to_vec()));
        let Some((sequence, payload)) = change else { return };
        assert!(self.standby.apply_payload(written, Duration::ZERO, &payload).expect("applies") > 0);
        assert_eq!(self.standby.digest(), self.master.state.digest());
        self.log.push(LoggedChange { written, payload });
        assert_eq!(sequence, self.log.len() as u64);
        self.master.state.durable(sequence);
    }

    /// Ends the master's process and starts another one `away` later, with a clock that has just
    /// started. `hold` is the time for which restored segments accept no new objects.
    #[track_caller]
    pub(super) fn restart_after(self, away: Duration, hold: Duration) -> Master {
        let policy = self.master.state.policy().clone();
        self.restart_as(policy, away, hold)
    }

    /// Starts another process with other settings.
    #[track_caller]
    pub(super) fn restart_with(self, change: impl FnOnce(&mut StorePolicy)) -> Master {
        let mut policy = self.master.state.policy().clone();
        change(&mut policy);
        self.restart_as(policy, Duration::from_secs(1), Duration::ZERO)
    }

    #[track_caller]
    fn restart_as(mut self, policy: StorePolicy, away: Duration, hold: Duration) -> Master {
        self.follow();
        let mut standby = StandbyState::new(policy);
        let now = Mono::from_ms(50);
        for change in &self.log {
            let age = (self.master.now + away).since(change.written);
            standby.apply_payload(now, age, &change.payload).expect("applies");
        }
        assert_eq!(standby.digest(), self.master.state.digest());
        let (state, report) = standby.activate(now, hold).expect("the ranges are valid");
        assert_eq!(report.objects, state.gauges().keys);
        Master { state, now, effects: Effects::default() }
    }

    #[track_caller]
    pub(super) fn restart(self) -> Master {
        self.restart_after(Duration::from_secs(1), Duration::ZERO)
    }
}

#[test]
fn a_copy_that_was_ready_to_serve_applies_the_loss_of_replicas() {
    let mut this = Followed::new();
    this.register(A, vec![segment(1, "a:1", 8 * MIB)]);
    this.register(B, vec![segment(2, "b:1", 8 * MIB)]);
    // The second object's ranges have other tickets than 0.
    for key in ["one", "two"] {
        this.master.put_with(key, MIB, copies(2));
        this.follow();
    }
    let standby = std::mem::replace(&mut this.standby, StandbyState::following(this.master.state.policy().clone()));
    let (ready, _) = standby.activate(this.master.now, Duration::ZERO).expect("the copy is valid");
    this.standby = StandbyState::of(ready);
    let unmounted = this.master.call().unmount_segment(SegmentId(1, 1), A);
    assert_eq!(unmounted, Ok(()));
    this.master.settle();
    this.follow();
    assert!(this.master.has_object("two"));
}

/// A standby that serves at once evicts in the order of a leader that has had no reads.
#[test]
fn a_standby_evicts_in_the_order_of_the_writes() {
    let mut this = Followed::of(16 * MIB);
    let keys: Vec<String> = (0..8).map(|nth| format!("key-{}", (nth * 5) % 8)).collect();
    for key in &keys {
        this.master.put(key, MIB);
        this.follow();
        this.master.pass(Duration::from_millis(20));
    }
    // An upsert makes an object the newest one.
    this.master.remove(&keys[0], true).expect("removed");
    this.follow();
    this.master.put(&keys[0], MIB);
    this.follow();
    let standby = std::mem::replace(&mut this.standby, StandbyState::following(this.master.state.policy().clone()));
    let now = this.master.now;
    let (mut ready, report) = standby.activate(now, Duration::ZERO).expect("the copy is valid");
    assert_eq!(report.objects, 8);
    let leases_end = now + ready.earlier_lease();
    assert_eq!(ready.order.victim(&ready.objects, leases_end - Duration::from_nanos(1)), None);
    let mut evicted = Vec::new();
    while let Some(at) = ready.order.victim(&ready.objects, leases_end) {
        evicted.push(String::from_utf8_lossy(ready.objects.key(at)).into_owned());
        ready.order.remove(&mut ready.objects, at);
    }
    let order: Vec<&String> = keys[1..].iter().chain(&keys[..1]).collect();
    assert_eq!(evicted.iter().collect::<Vec<_>>(), order);
}
