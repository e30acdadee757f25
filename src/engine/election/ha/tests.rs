//! The decisions of one master, without other masters. The simulation of whole clusters is in
//! `master/server/ha/tests/simulation`.

use std::time::Duration;

use super::*;
use mcctl_base::{HostPort, Mono};

fn member(id: u64) -> MemberInfo {
    let at = |port| HostPort::new(format!("host-{id}"), port);
    MemberInfo { id: MemberId(id), rpc: at(1), replication: at(2) }
}

fn key(address: &str, lease: i64) -> Option<LeaderKey> {
    Some(LeaderKey { address: address.to_owned(), view: 5, lease })
}

fn at(ms: u64) -> Mono {
    Mono::from_ms(100_000 + ms)
}

/// A state without changes.
struct Unchanged;

impl ResponseGate for Unchanged {
    fn appended(&self) -> u64 {
        0
    }

    fn publish(&self, _: ResponseLimits) {}

    fn appended_before_publish(&self) -> u64 {
        0
    }
}

/// A core at a time, and its actions so far.
struct Master {
    core: HaCore,
    actions: Vec<HaAction>,
}

impl Master {
    fn handle(&mut self, now: Mono, event: HaEvent) {
        self.actions.extend(self.core.handle(now, event, &Unchanged));
    }

    /// The actions since the last call, in order.
    fn take_actions(&mut self) -> Vec<HaAction> {
        std::mem::take(&mut self.actions)
    }

    /// Takes the transactions with which it has stood for election since the last call. Other
    /// actions are dropped.
    fn take_elections(&mut self) -> Vec<ElectionTxn> {
        let txn = |action| if let HaAction::Elect(txn) = action { Some(txn) } else { None };
        self.take_actions().into_iter().filter_map(txn).collect()
    }

    /// Receives a message of another master.
    fn receive(&mut self, from: u64, message: HaMessage) {
        self.handle(at(470), HaEvent::Received { from: MemberId(from), message });
    }

    /// Whether it has deleted its key since the last actions were taken.
    fn deletes_key(&mut self) -> bool {
        self.take_actions().iter().any(|action| matches!(action, HaAction::DeleteKey { .. }))
    }

    /// Makes its copy ready, and is elected in `view`.
    fn win(&mut self, view: u64) {
        self.handle(at(410), HaEvent::Prepared { ready: true, id: MemberId(1), history: HistoryId(5) });
        let txn = self.take_elections().pop().expect("it stands for election");
        self.handle(at(420), HaEvent::Elected { txn, outcome: TxnOutcome::Done(view) });
    }
}

/// A master that has read etcd and has lease 1, requested at 0 ms.
fn started(config: HaConfig, sync: Option<SyncRecord>, leader: Option<LeaderKey>) -> Master {
    let mut master = Master { core: HaCore::new(config, member(1)), actions: Vec::new() };
    master.handle(at(0), HaEvent::Timeout);
    assert_eq!(master.take_actions(), [HaAction::GrantLease, HaAction::Observe]);
    master.handle(at(400), HaEvent::LeaseGranted { sent: at(0), lease: Some(1) });
    let seen = Observation { revision: 5, leader, sync: sync.map(|sync| (sync, 5)) };
    master.handle(at(400), HaEvent::Observed { sent: at(400), seen });
    master
}

/// A master whose earlier process led without a standby.
fn restarted(config: HaConfig) -> Master {
    started(config, Some(SyncRecord::alone(&member(1), 0)), None)
}

/// A master of a cluster without records, for long enough that it may stand for election.
fn first(config: HaConfig) -> Master {
    let mut master = started(config, None, None);
    assert_eq!(master.take_actions(), [], "a leader may be alive, whose records are lost");
    for ms in [900, 1400, 1900, 2400, 2900, 3399] {
        master.handle(at(ms), HaEvent::LeaseRenewed { sent: at(ms), lease: 1, renewed: Some(true) });
    }
    master.take_actions();
    master.handle(at(3400), HaEvent::Timeout);
    master
}

#[test]
fn the_first_master_leads_until_its_lease_counted_from_the_request_ends() {
    let mut master = first(HaConfig::default());
    assert!(master.take_actions().contains(&HaAction::Prepare { lossy: false }));
    master.handle(at(3410), HaEvent::Prepared { ready: true, id: MemberId(1), history: HistoryId(5) });
    let txn = master.take_elections().pop().expect("it stands for election");
    assert_eq!((txn.expected_sync, &txn.address[..], txn.lease), (0, "host-1:1", 1));
    assert_eq!(master.core.fence(), Mono::ZERO);
    master.handle(at(3420), HaEvent::Elected { txn, outcome: TxnOutcome::Done(6) });
    assert!(master.take_actions().contains(&HaAction::Serve { view: 6 }));
    let config = HaConfig::default();
    assert_eq!(master.core.fence(), at(3399) + config.lease_ttl - config.margin);
    master.handle(at(4000), HaEvent::LeaseRenewed { sent: at(3900), lease: 1, renewed: Some(true) });
    assert_eq!(master.core.fence(), at(3900) + config.lease_ttl - config.margin);
    master.handle(at(4500), HaEvent::LeaseRenewed { sent: at(4400), lease: 1, renewed: Some(false) });
    assert!(master.core.fence() <= at(4500));
}

/// The first transaction of a leader since its actions were last taken that writes the sync record.
fn sync_write(master: &mut Master) -> Option<SyncTxn> {
    master.take_actions().into_iter().find_map(|action| match action {
        HaAction::WriteSync(txn) => Some(txn),
        _ => None,
    })
}

/// A leader with the standbys 2 and 3 in sync, which have its last change, number 7.
fn with_standbys(ack: AckMode) -> Master {
    let mut master = restarted(HaConfig { ack, ..HaConfig::default() });
    master.win(5);
    for id in [2, 3] {
        master.handle(at(430), HaEvent::StandbyConnected { id: MemberId(id), applied: 0 });
        master.receive(id, HaMessage::Ack(StandbyAck::default()));
        let txn = sync_write(&mut master).expect("the standby is added");
        master.handle(at(440), HaEvent::SyncWritten { txn, outcome: TxnOutcome::Done(5 + id) });
    }
    master.take_actions();
    master
}

#[test]
fn a_copy_that_may_lack_changes_drops_its_objects() {
    let list = SyncRecord { in_sync: vec![MemberId(1)], ..SyncRecord::alone(&member(2), 9) };
    let of = |ack, handed_over| Some(SyncRecord { ack: Some(ack), handed_over, ..list.clone() });
    let cases = [
        (of(AckMode::Sync, false), false),
        (of(AckMode::Async, false), true),
        (of(AckMode::Async, true), false),
        (Some(SyncRecord::alone(&member(1), 9)), false),
    ];
    for (sync, lossy) in cases {
        let mut master = started(HaConfig::default(), sync.clone(), None);
        assert!(master.take_actions().contains(&HaAction::Prepare { lossy }), "{sync:?}");
    }
}

#[test]
fn without_a_record_only_a_copy_from_no_cluster_is_complete() {
    for (last, is_original, lossy) in [(9, false, true), (9, true, false), (0, false, false)] {
        let core = HaCore::with_copy(HaConfig::default(), member(1), at(0), last, is_original);
        let mut master = Master { core, actions: Vec::new() };
        master.handle(at(0), HaEvent::Observed { sent: at(0), seen: Observation::default() });
        master.take_actions();
        master.handle(at(3000), HaEvent::Timeout);
        assert!(master.take_actions().contains(&HaAction::Prepare { lossy }), "{last} {is_original}");
    }
}

#[test]
fn a_ready_copy_drops_its_objects_if_the_hand_over_was_not_completed() {
    let sync = SyncRecord { in_sync: vec![MemberId(1)], ack: Some(AckMode::Async), ..SyncRecord::alone(&member(2), 9) };
    for handed_over in [true, false] {
        let mut master = started(HaConfig::default(), Some(sync.clone()), key("host-2:1", 2));
        master.handle(at(400), HaEvent::StreamOpened { leader: MemberId(2), is_replacing: false });
        master.handle(at(410), HaEvent::Received { from: MemberId(2), message: HaMessage::TakeOver { last: 7 } });
        master.handle(at(420), HaEvent::Applied { last: 7 });
        assert!(master.take_actions().contains(&HaAction::Prepare { lossy: false }));
        master.handle(at(430), HaEvent::Prepared { ready: true, id: MemberId(1), history: HistoryId(5) });
        let sync = Some((SyncRecord { handed_over, ..sync.clone() }, 6));
        master.handle(
            at(440),
            HaEvent::Observed { sent: at(435), seen: Observation { revision: 6, leader: None, sync } },
        );
        let actions = master.take_actions();
        assert_eq!(actions.contains(&HaAction::Prepare { lossy: true }), !handed_over, "{actions:?}");
        assert_eq!(actions.iter().any(|action| matches!(action, HaAction::Elect(_))), handed_over, "{actions:?}");
    }
}

#[test]
fn a_copy_whose_hand_over_is_cancelled_follows_again() {
    // The last one has not begun to get ready: it lacks a change.
    for (last, is_ready) in [(0, true), (0, false), (1, false)] {
        let list = SyncRecord { in_sync: vec![MemberId(1)], ..SyncRecord::alone(&member(2), 9) };
        let mut master = started(HaConfig::default(), Some(list), key("host-2:1", 2));
        master.handle(at(400), HaEvent::StreamOpened { leader: MemberId(2), is_replacing: false });
        master.handle(at(410), HaEvent::Received { from: MemberId(2), message: HaMessage::TakeOver { last } });
        master.handle(at(415), HaEvent::Timeout);
        if is_ready {
            master.handle(at(420), HaEvent::Prepared { ready: true, id: MemberId(1), history: HistoryId(5) });
        }
        master.take_actions();
        master.handle(at(430), HaEvent::Received { from: MemberId(2), message: HaMessage::Cancel });
        assert!(master.take_actions().contains(&HaAction::Resume));
        assert_eq!((master.core.role(), master.core.me().id), (HaRole::Standby, MemberId(1)));
    }
}

#[test]
fn a_candidate_whose_hand_over_is_cancelled_too_late_leads() {
    let list = SyncRecord { in_sync: vec![MemberId(1)], ..SyncRecord::alone(&member(2), 9) };
    let mut master = started(HaConfig::default(), Some(list.clone()), key("host-2:1", 2));
    master.handle(at(400), HaEvent::StreamOpened { leader: MemberId(2), is_replacing: false });
    master.handle(at(410), HaEvent::Received { from: MemberId(2), message: HaMessage::TakeOver { last: 0 } });
    master.handle(at(415), HaEvent::Timeout);
    master.handle(at(420), HaEvent::Prepared { ready: true, id: MemberId(1), history: HistoryId(5) });
    let gone = Observation { revision: 6, leader: None, sync: Some((list, 5)) };
    master.handle(at(430), HaEvent::Observed { sent: at(425), seen: gone });
    let txn = master.take_elections().pop().expect("it stands for election");
    master.handle(at(440), HaEvent::Received { from: MemberId(2), message: HaMessage::Cancel });
    master.handle(at(450), HaEvent::Elected { txn, outcome: TxnOutcome::Done(7) });
    assert!(master.take_actions().contains(&HaAction::Serve { view: 7 }));
}

#[test]
fn a_key_of_this_master_is_given_back_if_it_does_not_lead() {
    let list = SyncRecord { in_sync: vec![], ..SyncRecord::alone(&member(1), 9) };
    let mut master = started(HaConfig::default(), Some(list), key("host-1:1", 1));
    let actions = master.take_actions();
    assert!(
        actions.contains(&HaAction::RevokeLease(1, RevokeReason::Own)) && actions.contains(&HaAction::GrantLease),
        "{actions:?}"
    );
}

#[test]
fn a_hand_over_lasts_as_long_as_the_standby_makes_progress() {
    for is_ending in [false, true] {
        let mut master = with_standbys(AckMode::Sync);
        master.handle(at(450), HaEvent::StepDown { is_ending });
        master.handle(at(460), HaEvent::ChangesHeld { last: 7 });
        for ms in (500..60_000).step_by(250) {
            let ack = StandbyAck { applied: 7, is_preparing: true, ..StandbyAck::default() };
            master.handle(at(ms), HaEvent::Received { from: MemberId(3), message: HaMessage::Ack(ack) });
            master.handle(at(ms), HaEvent::Timeout);
        }
        let report = HaAction::ReportHandOver(HandOverProblem::NoProgress(Duration::from_millis(1500)));
        let actions = master.take_actions();
        assert!(!actions.contains(&HaAction::HoldChanges(false)) && !actions.contains(&report), "{actions:?}");
        // The leader runs on, and receives nothing.
        (60_000..61_500).step_by(250).for_each(|ms| master.handle(at(ms), HaEvent::Timeout));
        let actions = master.take_actions();
        assert!(actions.contains(&report), "{actions:?}");
        assert_eq!(actions.contains(&HaAction::HoldChanges(false)), !is_ending, "{actions:?}");
        let is_left_out = sync_write(&mut master).is_some_and(|txn| !txn.sync.in_sync.contains(&MemberId(3)));
        assert!(!(is_ending && is_left_out), "a standby that has everything stays in the record");
    }
}

#[test]
fn a_standby_joins_although_the_creation_of_the_key_overtook_a_write() {
    let mut master = restarted(HaConfig::default());
    master.win(5);
    master.handle(at(430), HaEvent::StandbyConnected { id: MemberId(2), applied: 0 });
    master.receive(2, HaMessage::Ack(StandbyAck::default()));
    let overtaken = sync_write(&mut master).expect("the standby is added");
    let gone = Observation { revision: 6, leader: None, sync: Some((SyncRecord::alone(&member(1), 0), 5)) };
    master.handle(at(480), HaEvent::Observed { sent: at(475), seen: gone });
    let txn = master.take_elections().pop().expect("it creates the key again");
    master.handle(at(490), HaEvent::Elected { txn, outcome: TxnOutcome::Done(7) });
    master.take_actions();
    master.handle(at(500), HaEvent::SyncWritten { txn: overtaken, outcome: TxnOutcome::Unknown });
    master.handle(at(510), HaEvent::Timeout);
    let again = sync_write(&mut master).expect("the standby is added");
    assert_eq!((again.expected_sync, again.sync.in_sync), (7, vec![MemberId(2)]));
}

#[test]
fn an_ending_process_hands_over_to_another_standby_if_the_first_ends() {
    let mut master = with_standbys(AckMode::Sync);
    master.handle(at(450), HaEvent::StepDown { is_ending: true });
    master.handle(at(460), HaEvent::ChangesHeld { last: 7 });
    master.take_actions();
    master.handle(at(470), HaEvent::StandbyDisconnected { id: MemberId(3) });
    assert!(master.take_actions().contains(&HaAction::Send(MemberId(2), HaMessage::TakeOver { last: 7 })));
}

#[test]
fn time_in_which_the_leader_did_not_run_does_not_count_against_a_standby() {
    for is_stalled in [true, false] {
        let mut master = with_standbys(AckMode::Sync);
        // Both standbys lack change 7, whose response waits.
        master.handle(at(500), HaEvent::ChangesHeld { last: 7 });
        let times: &[u64] = if is_stalled { &[600, 1_900] } else { &[600, 850, 1_100, 1_350, 1_600, 1_900] };
        for ms in times {
            master.handle(at(*ms), HaEvent::Timeout);
        }
        assert_eq!(sync_write(&mut master).is_some(), !is_stalled);
    }
}

#[test]
fn a_copy_that_is_replaced_can_be_elected_until_the_new_one_is_complete() {
    let list = SyncRecord { in_sync: vec![MemberId(1)], ..SyncRecord::alone(&member(2), 9) };
    let acknowledged = |master: &mut Master| {
        let message = HaMessage::Ping { stamp: 0, promise: Duration::ZERO, last: 9 };
        master.receive(2, message);
        master.take_actions().into_iter().find_map(|action| match action {
            HaAction::Send(_, HaMessage::Ack(ack)) => Some(ack.applied),
            _ => None,
        })
    };
    for is_complete in [false, true] {
        let mut master = started(HaConfig::default(), Some(list.clone()), key("host-2:1", 2));
        master.handle(at(405), HaEvent::Applied { last: 5 });
        master.handle(at(410), HaEvent::StreamOpened { leader: MemberId(2), is_replacing: true });
        assert_eq!(acknowledged(&mut master), Some(0), "change 5 belongs to the copy that is replaced");
        if is_complete {
            master.handle(at(420), HaEvent::Replaced { id: MemberId(7) });
            master.handle(at(430), HaEvent::Applied { last: 9 });
            assert_eq!(acknowledged(&mut master), Some(9));
        }
        let seen = Observation { revision: 6, leader: None, sync: Some((list.clone(), 5)) };
        master.handle(at(2_500), HaEvent::Observed { sent: at(2_500), seen });
        assert_eq!(master.take_actions().contains(&HaAction::Prepare { lossy: false }), !is_complete);
    }
}

#[test]
fn the_time_without_a_leader_begins_again_when_the_record_has_changed() {
    let not_in_sync = NotInSyncPolicy::PromoteAfter(Duration::from_secs(10));
    for revision in [5, 6] {
        let sync = SyncRecord::alone(&member(2), 9);
        let mut master = started(HaConfig { not_in_sync, ..HaConfig::default() }, Some(sync.clone()), None);
        let seen = Observation { revision: 6, leader: None, sync: Some((sync, revision)) };
        master.handle(at(9_000), HaEvent::Observed { sent: at(9_000), seen: seen.clone() });
        master.take_actions();
        master.handle(at(10_400), HaEvent::Observed { sent: at(10_400), seen });
        let is_promoted = master.take_actions().contains(&HaAction::Prepare { lossy: true });
        assert_eq!(is_promoted, revision == 5, "a master may have led until the record was changed");
    }
}

#[test]
fn a_master_that_is_not_in_sync_waits_or_is_promoted_after_a_time() {
    let sync = || Some(SyncRecord::alone(&member(2), 9));
    let mut waiting = started(HaConfig::default(), sync(), None);
    let not_in_sync = NotInSyncPolicy::PromoteAfter(Duration::from_secs(10));
    let mut promoted = started(HaConfig { not_in_sync, ..HaConfig::default() }, sync(), None);
    let lossy = HaAction::Prepare { lossy: true };
    let seen = |ms| HaEvent::Observed {
        sent: at(ms),
        seen: Observation { revision: 5, leader: None, sync: Some((SyncRecord::alone(&member(2), 9), 5)) },
    };
    promoted.handle(at(20_000), HaEvent::Timeout);
    assert!(!promoted.take_actions().contains(&lossy), "it is cut off from etcd, where a master may lead");
    for (ms, is_promoted) in [(10_300, false), (10_400, true)] {
        waiting.handle(at(ms), seen(ms));
        promoted.handle(at(ms), seen(ms));
        assert_eq!(promoted.take_actions().contains(&lossy), is_promoted, "{ms}");
    }
    assert!(waiting.core.not_promoted(at(10_400), false).is_some_and(|why| why.contains("waits")));
    assert_eq!(waiting.core.not_promoted(at(1_000), false), None);
    assert!(!waiting.take_actions().iter().any(|action| matches!(action, HaAction::Prepare { .. })));
}

#[test]
fn a_copy_is_discarded_if_the_leader_does_not_support_the_sync_record() {
    let mut sync = SyncRecord::alone(&member(2), 9);
    sync.in_sync = vec![MemberId(1)];
    let discards = |leader: Option<LeaderKey>| {
        started(HaConfig::default(), Some(sync.clone()), leader)
            .take_actions()
            .contains(&HaAction::Discard(DiscardReason::UnknownLeader))
    };
    assert!(!discards(key("host-2:1", 3)));
    assert!(!discards(key(&format!("{}77", LeaderKey::WARMING), 3)));
    assert!(!discards(key("no address", 3)));
    assert!(discards(key("host-3:1", 3)));
}

#[test]
fn a_copy_whose_id_leads_elsewhere_is_discarded_after_a_while() {
    let sync = SyncRecord { rpc: "host-3:1".to_owned(), ..SyncRecord::alone(&member(1), 9) };
    let mut master = started(HaConfig::default(), Some(sync), key("host-3:1", 3));
    let discard = HaAction::Discard(DiscardReason::SameId);
    for (ms, is_discarded) in [(5_300, false), (5_400, true)] {
        master.handle(at(ms), HaEvent::Timeout);
        assert_eq!(master.take_actions().contains(&discard), is_discarded, "{ms}");
    }
}

#[test]
fn a_leader_creates_its_records_again_after_etcd_has_lost_its_data() {
    let mut master = restarted(HaConfig::default());
    master.win(400);
    master.take_actions();
    let empty = Observation { revision: 2, leader: None, sync: None };
    master.handle(at(430), HaEvent::Observed { sent: at(415), seen: empty.clone() });
    assert!(master.take_elections().is_empty(), "the read was sent before the election ended");
    master.handle(at(600), HaEvent::Observed { sent: at(590), seen: empty });
    let again = master.take_elections().pop().expect("it creates the key again");
    assert_eq!((again.expected_sync, again.sync.leader), (0, MemberId(1)));
    assert_eq!(master.core.role(), HaRole::Leader);
}

#[test]
fn a_leader_keeps_its_state_while_the_key_has_a_foreign_value() {
    let mut master = restarted(HaConfig::default());
    master.win(5);
    let sync = Some((SyncRecord::alone(&member(1), 0), 5));
    master.handle(
        at(600),
        HaEvent::Observed { sent: at(590), seen: Observation { revision: 6, leader: key("hello world", 0), sync } },
    );
    assert_eq!(master.core.role(), HaRole::Leader);
    assert!(master.core.fence() <= at(600), "the key no longer belongs to its lease");
}

#[test]
fn a_standby_deletes_the_key_that_it_keeps_when_its_leader_has_ended() {
    let list = SyncRecord { in_sync: vec![MemberId(1)], ..SyncRecord::alone(&member(2), 9) };
    let mut master = started(HaConfig::default(), Some(list.clone()), key("host-2:1", 2));
    master.handle(at(400), HaEvent::StreamOpened { leader: MemberId(2), is_replacing: false });
    let promise = Duration::from_secs(2);
    let message = HaMessage::Ping { stamp: 0, promise, last: 0 };
    master.handle(at(5_000), HaEvent::Received { from: MemberId(2), message });
    let seen = Observation { revision: 6, leader: key("host-2:1", 1), sync: Some((list, 6)) };
    master.handle(at(5_010), HaEvent::Observed { sent: at(5_000), seen });
    master.take_actions();
    let delete = HaAction::RevokeLease(1, RevokeReason::KeptKey);
    master.handle(at(5_100), HaEvent::Timeout);
    assert!(!master.take_actions().contains(&delete), "it has promised to wait");
    master.handle(at(5_200), HaEvent::StreamClosed { process_gone: true });
    let actions = master.take_actions();
    assert_eq!(actions.iter().filter(|action| **action == delete).count(), 1, "{actions:?}");
    assert!(actions.contains(&HaAction::GrantLease), "it needs another lease to be elected: {actions:?}");
}

#[test]
fn a_leader_binds_the_key_that_a_standby_created_again_to_its_own_lease() {
    let mut master = restarted(HaConfig::default());
    master.win(5);
    master.take_actions();
    let seen = |lease| Observation {
        revision: 6,
        leader: key("host-1:1", lease),
        sync: Some((SyncRecord::alone(&member(1), 0), 6)),
    };
    master.handle(at(500), HaEvent::Observed { sent: at(499), seen: seen(77) });
    let txn = sync_write(&mut master).expect("a write of the sync record");
    assert_eq!(txn.lease, Some(1));
    assert!(master.core.fence() <= at(500), "the standby's lease proves nothing");
    master.handle(at(501), HaEvent::SyncWritten { txn, outcome: TxnOutcome::Done(7) });
    assert!(master.core.fence() > at(501));
}

#[test]
fn a_standby_that_left_the_sync_record_does_not_take_over() {
    for is_listed in [true, false] {
        let in_sync = if is_listed { vec![MemberId(1)] } else { vec![MemberId(3)] };
        let list = SyncRecord { in_sync, ..SyncRecord::alone(&member(2), 9) };
        let mut master = started(HaConfig::default(), Some(list), key("host-2:1", 2));
        master.handle(at(400), HaEvent::StreamOpened { leader: MemberId(2), is_replacing: false });
        master.take_actions();
        let message = HaMessage::TakeOver { last: 7 };
        master.handle(at(500), HaEvent::Received { from: MemberId(2), message });
        master.handle(at(510), HaEvent::Applied { last: 6 });
        assert!(!master.take_actions().contains(&HaAction::Prepare { lossy: false }), "change 7 is missing");
        master.handle(at(520), HaEvent::Applied { last: 7 });
        assert_eq!(master.take_actions().contains(&HaAction::Prepare { lossy: false }), is_listed);
    }
}

#[test]
fn a_hand_over_ends_with_its_stream() {
    let list = SyncRecord { in_sync: vec![MemberId(1)], ..SyncRecord::alone(&member(2), 9) };
    let mut master = started(HaConfig::default(), Some(list), key("host-2:1", 2));
    master.handle(at(400), HaEvent::StreamOpened { leader: MemberId(2), is_replacing: false });
    master.handle(at(500), HaEvent::Received { from: MemberId(2), message: HaMessage::TakeOver { last: 7 } });
    master.handle(at(510), HaEvent::StreamClosed { process_gone: false });
    master.handle(at(600), HaEvent::StreamOpened { leader: MemberId(2), is_replacing: false });
    master.take_actions();
    master.handle(at(610), HaEvent::Applied { last: 8 });
    master.handle(at(620), HaEvent::Timeout);
    assert!(!master.take_actions().contains(&HaAction::Prepare { lossy: false }), "the leader has cancelled it");
}

#[test]
fn a_successor_needs_all_changes_and_with_async_all_that_can_be_elected() {
    for ack in [AckMode::Sync, AckMode::Async] {
        let mut master = with_standbys(ack);
        master.handle(at(450), HaEvent::StepDown { is_ending: false });
        master.handle(at(460), HaEvent::ChangesHeld { last: 7 });
        let take_over = HaAction::Send(MemberId(3), HaMessage::TakeOver { last: 7 });
        assert!(master.take_actions().contains(&take_over));
        // The answer to an earlier hand-over, which was cancelled.
        master.receive(3, HaMessage::Ready);
        assert!(!master.deletes_key());
        master.receive(3, HaMessage::Ack(StandbyAck { applied: 7, ..StandbyAck::default() }));
        master.receive(3, HaMessage::Ready);
        assert_eq!(master.deletes_key(), ack == AckMode::Sync, "a response may have left for what standby 2 lacks");
        master.receive(2, HaMessage::Ack(StandbyAck { applied: 7, ..StandbyAck::default() }));
        assert_eq!(master.deletes_key(), ack == AckMode::Async);
    }
}

#[test]
fn a_leader_with_wait_is_not_replaced_by_a_copy_that_is_not_in_sync() {
    let when_not_in_sync = Some(NotInSyncPolicy::Wait);
    let sync = SyncRecord { when_not_in_sync, ..SyncRecord::alone(&member(2), 9) };
    let not_in_sync = NotInSyncPolicy::PromoteAfter(Duration::from_secs(10));
    let mut master = started(HaConfig { not_in_sync, ..HaConfig::default() }, Some(sync), None);
    master.handle(at(60_000), HaEvent::Timeout);
    assert!(!master.take_actions().contains(&HaAction::Prepare { lossy: true }));
}

#[test]
fn a_key_that_was_created_for_another_leader_elects_no_master() {
    let list = SyncRecord { in_sync: vec![MemberId(1)], ..SyncRecord::alone(&member(2), 9) };
    let mut master = started(HaConfig::default(), Some(list.clone()), None);
    master.handle(at(410), HaEvent::Prepared { ready: true, id: MemberId(1), history: HistoryId(5) });
    assert!(master.take_actions().iter().any(|action| matches!(action, HaAction::Elect(_))));
    let created = ElectionTxn { address: "host-2:1".to_owned(), lease: 1, expected_sync: 5, sync: list };
    master.handle(at(420), HaEvent::Elected { txn: created, outcome: TxnOutcome::Done(6) });
    assert_eq!(master.core.role(), HaRole::Candidate);
    assert!(master.take_actions().contains(&HaAction::Observe));
}

/// Notes in which order its methods are called.
#[derive(Default)]
struct NotingGate(std::cell::RefCell<Vec<&'static str>>);

impl ResponseGate for NotingGate {
    fn appended(&self) -> u64 {
        9
    }

    fn publish(&self, limits: ResponseLimits) {
        self.0.borrow_mut().push(if limits.acked.is_some() { "responses wait" } else { "responses do not wait" });
    }

    fn appended_before_publish(&self) -> u64 {
        self.0.borrow_mut().push("read");
        7
    }
}

#[test]
fn a_joining_standby_needs_what_was_appended_before_responses_wait_for_it() {
    let mut master = restarted(HaConfig::default());
    master.win(5);
    let gate = NotingGate::default();
    let mut handle = |event: HaEvent| {
        let actions: Vec<HaAction> = master.core.handle(at(500), event, &gate).collect();
        (actions, gate.0.take())
    };
    handle(HaEvent::StandbyConnected { id: MemberId(2), applied: 0 });
    let mut ack = |applied: u64| {
        let message = HaMessage::Ack(StandbyAck { applied, ..StandbyAck::default() });
        let (actions, calls) = handle(HaEvent::Received { from: MemberId(2), message });
        (actions.iter().any(|action| matches!(action, HaAction::WriteSync(_))), calls)
    };
    assert_eq!(ack(5), (false, vec!["responses wait", "read"]));
    assert_eq!(ack(6), (false, vec!["responses wait"]), "change 7 may have been answered before");
    assert_eq!(ack(7), (true, vec!["responses wait"]));
}

#[test]
fn a_timer_that_was_handled_is_not_due_again() {
    let mut master = started(HaConfig::default(), Some(SyncRecord::alone(&member(2), 9)), None);
    let mut timers = Vec::new();
    while !timers.contains(&HaTimer::NoRecord) {
        assert!(timers.len() < 100, "{timers:?}");
        let (timer, due) = master.core.next_timer().expect("the lease is renewed");
        timers.push(timer);
        master.handle(due, HaEvent::Timeout);
        assert!(master.core.next_timeout() > due);
    }
}

/// A leader whose successor is ready and has everything, after it has deleted its key at 480 ms.
/// Its process ends, or not.
fn released(is_ending: bool) -> Master {
    let mut master = with_standbys(AckMode::Sync);
    master.handle(at(450), HaEvent::StepDown { is_ending });
    master.handle(at(460), HaEvent::ChangesHeld { last: 7 });
    master.receive(3, HaMessage::Ack(StandbyAck { applied: 7, ..StandbyAck::default() }));
    master.receive(3, HaMessage::Ready);
    assert!(master.deletes_key());
    master.handle(at(480), HaEvent::KeyDeleted { outcome: TxnOutcome::Done(8) });
    master
}

#[test]
fn a_leader_whose_successor_is_not_elected_creates_its_key_again() {
    for (is_connected, is_ending, expected) in
        [(true, false, Some(2_980)), (false, false, Some(1_980)), (false, true, None), (true, true, None)]
    {
        let mut master = released(is_ending);
        if !is_connected {
            master.handle(at(481), HaEvent::StandbyDisconnected { id: MemberId(3) });
        }
        let created = (490..10_000).step_by(10).find(|ms| {
            master.handle(at(*ms), HaEvent::Timeout);
            !master.take_elections().is_empty()
        });
        let late = created.zip(expected).map(|(created, expected)| created - expected);
        assert!(
            created.is_some() == expected.is_some() && late.unwrap_or(0) <= 10,
            "{is_connected} {is_ending}: {created:?}"
        );
    }
}

#[test]
fn of_two_copies_in_sync_the_one_with_more_changes_is_elected() {
    let list = SyncRecord { in_sync: vec![MemberId(1), MemberId(3)], ..SyncRecord::alone(&member(2), 9) };
    for (applied, sync_revision, expected) in [(12, 5, 910), (11, 5, 430), (10, 5, 430), (12, 4, 510)] {
        let mut master = started(HaConfig::default(), Some(list.clone()), None);
        master.handle(at(405), HaEvent::Applied { last: 11 });
        master.handle(at(410), HaEvent::Prepared { ready: true, id: MemberId(1), history: HistoryId(5) });
        let elected = (410..2_000).step_by(5).find(|ms| {
            master.handle(at(*ms), HaEvent::Timeout);
            let actions = master.take_actions();
            if actions.iter().any(|action| matches!(action, HaAction::Offer(_))) {
                let offer = CandidateOffer { applied, sync_revision };
                master.handle(at(*ms + 2), HaEvent::Offered { offers: Some(vec![(MemberId(3), offer)]) });
            }
            let actions = master.take_actions().into_iter().chain(actions);
            actions.into_iter().any(|action| matches!(action, HaAction::Elect(_)))
        });
        let elected = elected.expect("it stands for election");
        assert!(elected <= expected && elected + 25 > expected, "{applied} {sync_revision}: {elected}");
    }
}

#[test]
fn a_barrier_is_recorded_when_the_last_standby_leaves_and_removed_before_memory_is_used_again() {
    let mut master = with_standbys(AckMode::Sync);
    let write = |master: &mut Master, revision| {
        let txn = sync_write(master).expect("the record changes");
        let barrier = (txn.sync.not_reused_since, master.core.barrier());
        master.handle(at(480), HaEvent::SyncWritten { txn, outcome: TxnOutcome::Done(revision) });
        barrier
    };
    master.receive(3, HaMessage::Leave);
    assert_eq!(write(&mut master, 8), (None, None), "another standby is in sync");
    master.receive(2, HaMessage::Leave);
    assert_eq!(write(&mut master, 9), (Some(0), Some(0)), "also while the write has no result");
    assert!(sync_write(&mut master).is_none(), "nothing needs the memory");
    master.handle(at(490), HaEvent::BarrierRemovalNeeded);
    assert_eq!(write(&mut master, 10), (None, Some(0)));
    assert_eq!(master.core.barrier(), None);
}

#[test]
fn only_a_copy_of_the_same_history_that_is_not_older_than_the_barrier_is_proven() {
    let own = Some(HistoryId(5));
    let record = SyncRecord { history: own, not_reused_since: Some(7), ..SyncRecord::alone(&member(2), 9) };
    let proven = |record: &SyncRecord, history, applied| record.is_proven(MemberId(1), history, applied);
    assert!(proven(&record, own, 7) && !proven(&record, own, 6));
    assert!(!proven(&record, Some(HistoryId(4)), 9) && !proven(&record, None, 9));
    assert!(!proven(&SyncRecord { not_reused_since: None, ..record.clone() }, own, 9));
    let listed = SyncRecord { in_sync: vec![MemberId(1)], not_reused_since: None, ..record };
    assert!(proven(&listed, None, 0), "a leader waits for it before it uses memory again");
    assert!(!proven(&SyncRecord { history: None, ..listed }, own, 9), "an earlier release may not");
}

#[test]
fn a_standby_whose_leader_has_ended_is_not_bound_although_another_one_has_revoked_the_lease() {
    let list = SyncRecord { in_sync: vec![MemberId(1)], ..SyncRecord::alone(&member(2), 9) };
    let mut master = started(HaConfig::default(), Some(list.clone()), key("host-2:1", 2));
    master.handle(at(405), HaEvent::StreamOpened { leader: MemberId(2), is_replacing: false });
    master.handle(at(406), HaEvent::Applied { last: 9 });
    let promise = Duration::from_millis(1500);
    master.receive(2, HaMessage::Ping { stamp: 0, promise, last: 9 });
    let seen = Observation { revision: 6, leader: None, sync: Some((list, 5)) };
    master.handle(at(480), HaEvent::Observed { sent: at(475), seen });
    master.take_actions();
    master.handle(at(490), HaEvent::StreamClosed { process_gone: true });
    assert!(master.take_actions().contains(&HaAction::Prepare { lossy: false }));
}
