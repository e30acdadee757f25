//! One master's decisions, without others. The simulation of whole clusters is in `master/tests/ha`.

use std::time::Duration;

use super::*;
use crate::engine::base::{HostPort, Mono};

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

/// A master that has read an empty etcd and has lease 1, requested at 0 ms.
fn started(config: HaConfig, sync: Option<SyncRecord>, leader: Option<LeaderKey>) -> HaCore {
    let mut core = HaCore::new(config, member(1));
    core.tick(at(0));
    assert_eq!(core.take_actions(), [HaAction::GrantLease, HaAction::Observe]);
    core.lease_granted(at(400), at(0), Some(1));
    core.observe(at(400), at(400), Observation { revision: 5, leader, sync: sync.map(|sync| (sync, 5)) });
    core
}

#[test]
fn the_first_master_leads_until_its_lease_counted_from_the_request_ends() {
    let mut core = started(HaConfig::default(), None, None);
    assert_eq!(core.take_actions(), [HaAction::Prepare { lossy: false }]);
    core.prepared(at(410), true);
    let [HaAction::Elect(txn)] = &core.take_actions()[..] else { panic!("it stands for election") };
    assert_eq!((txn.expected_sync, &txn.address[..], txn.lease), (0, "host-1:1", 1));
    assert_eq!(core.fence(), Mono::ZERO);
    let txn = txn.clone();
    core.elected(at(420), &txn, &TxnOutcome::Done(6));
    assert!(core.take_actions().contains(&HaAction::Serve { view: 6 }));
    let config = HaConfig::default();
    assert_eq!(core.fence(), at(0) + config.lease_ttl - config.margin);
    core.lease_renewed(at(1000), at(900), 1, Some(true));
    assert_eq!(core.fence(), at(900) + config.lease_ttl - config.margin);
    core.lease_renewed(at(1500), at(1400), 1, Some(false));
    assert!(core.fence() <= at(1500));
}

#[test]
fn a_master_that_is_not_in_sync_waits_or_is_promoted_after_a_time() {
    let sync = || Some(SyncRecord::alone(&member(2), 9));
    let mut waiting = started(HaConfig::default(), sync(), None);
    let not_in_sync = NotInSyncPolicy::PromoteAfter(Duration::from_secs(10));
    let mut promoted = started(HaConfig { not_in_sync, ..HaConfig::default() }, sync(), None);
    let lossy = HaAction::Prepare { lossy: true };
    for (ms, is_promoted) in [(10_300, false), (10_400, true)] {
        waiting.tick(at(ms));
        promoted.tick(at(ms));
        assert_eq!(promoted.take_actions().contains(&lossy), is_promoted, "{ms}");
    }
    assert!(waiting.not_promoted(at(10_400)).is_some_and(|why| why.contains("waits")));
    assert_eq!(waiting.not_promoted(at(1_000)), None);
    assert!(!waiting.take_actions().iter().any(|action| matches!(action, HaAction::Prepare { .. })));
}

#[test]
fn a_copy_is_discarded_once_a_master_leads_that_does_not_know_the_sync_record() {
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
    let mut core = started(HaConfig::default(), Some(sync), key("host-3:1", 3));
    let discard = HaAction::Discard(DiscardReason::SameId);
    for (ms, is_discarded) in [(5_300, false), (5_400, true)] {
        core.tick(at(ms));
        assert_eq!(core.take_actions().contains(&discard), is_discarded, "{ms}");
    }
}

#[test]
fn a_leader_creates_its_records_again_after_etcd_has_lost_its_data() {
    let mut core = started(HaConfig::default(), None, None);
    core.prepared(at(410), true);
    let txn = elections(&mut core).pop().expect("it stands for election");
    core.elected(at(420), &txn, &TxnOutcome::Done(400));
    core.take_actions();
    let empty = Observation { revision: 2, leader: None, sync: None };
    core.observe(at(430), at(415), empty.clone());
    assert!(elections(&mut core).is_empty(), "the read was sent before the election ended");
    core.observe(at(600), at(590), empty);
    let again = elections(&mut core).pop().expect("it creates the key again");
    assert_eq!((again.expected_sync, again.sync.leader), (0, MemberId(1)));
    assert_eq!(core.role(), HaRole::Leader);
}

#[test]
fn a_leader_keeps_its_state_while_the_key_has_a_foreign_value() {
    let mut core = started(HaConfig::default(), None, None);
    core.prepared(at(410), true);
    let txn = elections(&mut core).pop().expect("it stands for election");
    core.elected(at(420), &txn, &TxnOutcome::Done(5));
    let sync = Some((SyncRecord::alone(&member(1), 0), 5));
    core.observe(at(600), at(590), Observation { revision: 6, leader: key("hello world", 0), sync });
    assert_eq!(core.role(), HaRole::Leader);
    assert!(core.fence() <= at(600), "the key does not belong to its lease any more");
}

/// The transactions with which a master stands for election, and no other actions.
fn elections(core: &mut HaCore) -> Vec<ElectionTxn> {
    let txn = |action| if let HaAction::Elect(txn) = action { Some(txn) } else { None };
    core.take_actions().into_iter().filter_map(txn).collect()
}

#[test]
fn a_standby_that_keeps_the_key_for_a_leader_deletes_it_as_soon_as_the_process_has_ended() {
    let list = SyncRecord { in_sync: vec![MemberId(1)], ..SyncRecord::alone(&member(2), 9) };
    let mut core = started(HaConfig::default(), Some(list.clone()), key("host-2:1", 2));
    core.stream_opened(MemberId(2));
    let promise = Duration::from_secs(2);
    core.receive(at(5_000), MemberId(2), HaMessage::Ping { stamp: 0, promise, last: 0 });
    let seen = Observation { revision: 6, leader: key("host-2:1", 1), sync: Some((list, 6)) };
    core.observe(at(5_010), at(5_000), seen);
    core.take_actions();
    let delete = HaAction::RevokeLease(1);
    core.tick(at(5_100));
    assert!(!core.take_actions().contains(&delete), "it has promised to wait");
    core.stream_closed(at(5_200), true);
    let actions = core.take_actions();
    assert_eq!(actions.iter().filter(|action| **action == delete).count(), 1, "{actions:?}");
    assert!(actions.contains(&HaAction::GrantLease), "it needs another lease to be elected: {actions:?}");
}

#[test]
fn a_leader_binds_the_key_that_a_standby_created_again_to_its_own_lease() {
    let mut core = started(HaConfig::default(), None, None);
    core.prepared(at(410), true);
    let txn = elections(&mut core).pop().expect("it stands for election");
    core.elected(at(420), &txn, &TxnOutcome::Done(5));
    core.take_actions();
    let seen = |lease| Observation {
        revision: 6,
        leader: key("host-1:1", lease),
        sync: Some((SyncRecord::alone(&member(1), 0), 6)),
    };
    core.observe(at(500), at(499), seen(77));
    let bound = core.take_actions().into_iter().find_map(|action| match action {
        HaAction::WriteSync(txn) => Some(txn),
        _ => None,
    });
    let txn = bound.expect("a write of the sync record");
    assert_eq!(txn.lease, Some(1));
    assert!(core.fence() <= at(500), "the standby's lease proves nothing");
    core.sync_written(at(501), &txn, &TxnOutcome::Done(7));
    assert!(core.fence() > at(501));
}

#[test]
fn a_standby_that_left_the_sync_record_does_not_take_over() {
    for is_listed in [true, false] {
        let in_sync = if is_listed { vec![MemberId(1)] } else { vec![MemberId(3)] };
        let list = SyncRecord { in_sync, ..SyncRecord::alone(&member(2), 9) };
        let mut core = started(HaConfig::default(), Some(list), key("host-2:1", 2));
        core.stream_opened(MemberId(2));
        core.take_actions();
        core.receive(at(500), MemberId(2), HaMessage::TakeOver { last: 7 });
        core.applied(at(510), 6);
        assert!(!core.take_actions().contains(&HaAction::Prepare { lossy: false }), "change 7 is missing");
        core.applied(at(520), 7);
        assert_eq!(core.take_actions().contains(&HaAction::Prepare { lossy: false }), is_listed);
    }
}

#[test]
fn a_leader_with_wait_is_not_replaced_by_a_copy_that_is_not_in_sync() {
    let when_not_in_sync = Some(NotInSyncPolicy::Wait);
    let sync = SyncRecord { when_not_in_sync, ..SyncRecord::alone(&member(2), 9) };
    let not_in_sync = NotInSyncPolicy::PromoteAfter(Duration::from_secs(10));
    let mut core = started(HaConfig { not_in_sync, ..HaConfig::default() }, Some(sync), None);
    core.tick(at(60_000));
    assert!(!core.take_actions().contains(&HaAction::Prepare { lossy: true }));
}

#[test]
fn a_key_that_was_created_for_another_leader_elects_nobody() {
    let list = SyncRecord { in_sync: vec![MemberId(1)], ..SyncRecord::alone(&member(2), 9) };
    let mut core = started(HaConfig::default(), Some(list.clone()), None);
    core.prepared(at(410), true);
    assert!(core.take_actions().iter().any(|action| matches!(action, HaAction::Elect(_))));
    let created = ElectionTxn { address: "host-2:1".to_owned(), lease: 1, expected_sync: 5, sync: list };
    core.elected(at(420), &created, &TxnOutcome::Done(6));
    assert_eq!(core.role(), HaRole::Candidate);
    assert!(core.take_actions().contains(&HaAction::Observe));
}
