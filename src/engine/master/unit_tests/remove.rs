//! Removal, and the results of unsupported methods.

use super::*;
use crate::StateAccess;
use mcctl_wire::types::ServiceVersion;

/// Advances the clock by `step` at each lock acquisition.
struct Slow<'a> {
    master: &'a mut Master,
    step: Duration,
}

impl StateAccess for Slow<'_> {
    fn with_state<R>(&mut self, work: impl FnOnce(&mut MasterState, Mono, &mut Effects) -> R) -> R {
        self.master.now = self.master.now + self.step;
        work(&mut self.master.state, self.master.now, &mut self.master.effects)
    }
}

#[test]
fn a_search_over_its_budget_returns_an_error() {
    let mut m = Master::of(MIB);
    for i in 0..2_000 {
        m.put(&format!("k{i}"), 1);
    }
    let mut search = |step: u64| {
        let slow = Slow { master: &mut m, step: Duration::from_millis(step) };
        let mut call = MasterCall(slow);
        let listed = call.get_replica_list_by_regex("nothing".into(), T).map(|found| found.0.len());
        (call.remove_by_regex("nothing".into(), false, T), listed)
    };
    assert_eq!(search(1), (Ok(0), Ok(0)));
    assert_eq!(search(1_000), (Err(BAD), Err(BAD)));
}

#[test]
fn a_lease_blocks_a_removal_unless_forced() {
    let mut m = Master::of(MIB);
    assert_eq!(m.remove("k", false), Err(NOT_FOUND));
    assert_eq!(m.remove("k", true), Err(NOT_FOUND));
    m.put("k", 10);
    assert!(m.exists("k"));
    assert_eq!(m.remove("k", false), Err(LEASED));
    assert_eq!(m.remove("k", true), Ok(()));
    assert_eq!(m.state.gauges().allocated_bytes, 0);
    m.put("k", 10);
}

#[test]
fn hard_pinned_objects_can_be_removed() {
    let mut m = Master::of(MIB);
    m.put_with("k", 10, hard_pinned());
    assert_eq!(m.remove("k", false), Ok(()));
}

#[test]
fn batch_remove_returns_one_independent_result_per_key() {
    let mut m = Master::of(MIB);
    m.put("free", 10);
    m.put("leased", 10);
    m.exists("leased");
    m.start(A, "writing", 10).expect("room");
    let keys = || ["free", "leased", "writing", "none"].map(Text::from).to_vec();
    let answers = m.call().batch_remove(keys(), false, T);
    assert_eq!(answers, [Ok(()), Err(LEASED), Err(NOT_READY), Err(NOT_FOUND)]);
    let answers = m.call().batch_remove(keys(), true, T);
    assert_eq!(answers, [Err(NOT_FOUND), Ok(()), Err(NOT_READY), Err(NOT_FOUND)]);
}

#[test]
fn remove_by_regex_skips_leased_and_unfinished_objects() {
    let mut m = Master::of(MIB);
    for key in ["x1", "x2", "ax3", "y1"] {
        m.put(key, 10);
    }
    m.exists("x2");
    m.start(A, "x9", 10).expect("room");
    let mut remove = |regex: &str, force| m.call().remove_by_regex(regex.into(), force, T);
    assert_eq!(remove("[", false), Err(BAD));
    assert_eq!(remove("zz", false), Ok(0));
    assert_eq!(remove("x[0-9]", false), Ok(2));
    assert_eq!(remove("^x", true), Ok(1));
    assert!(m.has_object("y1"));
    assert_eq!(m.end(A, "x9"), Ok(()));
}

#[test]
fn remove_all_skips_unfinished_objects_and_leased_ones_unless_forced() {
    let mut m = Master::of(MIB);
    for key in keys(0..500) {
        m.put(&key, 10);
    }
    m.exists("key-7");
    m.start(A, "writing", 10).expect("room");
    assert_eq!(m.call().remove_all(false, T), 499);
    assert_eq!(m.call().remove_all(false, T), 0);
    assert_eq!(m.call().remove_all(true, T), 1);
    assert_eq!(m.state.gauges().keys, 1);
    assert_eq!(m.end(A, "writing"), Ok(()));
}

#[test]
fn get_by_regex_returns_complete_objects_only() {
    let mut m = Master::of(MIB);
    m.put("a1", 10);
    m.put("a2", 10);
    m.start(A, "a3", 10).expect("room");
    assert_eq!(m.call().get_replica_list_by_regex("[".into(), T).err(), Some(BAD));
    let found = m.call().get_replica_list_by_regex("^a".into(), T).expect("valid");
    let mut names: Vec<String> = found.0.iter().map(|(key, _)| key.to_string()).collect();
    names.sort();
    assert_eq!(names, ["a1", "a2"]);
}

#[test]
fn any_client_clears_idle_replicas_by_segment_or_all() {
    let mut m = Master::of(MIB);
    m.mount(B, segment(2, "b:1", MIB));
    m.put_with("two", 10, copies(2));
    m.put("own", 10);
    m.put("leased", 10);
    m.exists("leased");
    m.start(A, "writing", 10).expect("room");
    let mut clear = |keys: &[&'static str], client: ClientId, name: &'static str| {
        let keys = keys.iter().map(|key| Text::from(*key)).collect();
        let cleared = m.call().batch_replica_clear(keys, client, name.into(), T).expect("never fails");
        cleared.iter().map(ToString::to_string).collect::<Vec<_>>()
    };
    assert_eq!(clear(&["two", "none", ""], A, "nowhere:1"), [] as [&str; 0]);
    assert_eq!(clear(&["two"], B, "b:1"), ["two"]);
    assert_eq!(clear(&["own", "leased", "writing"], A, ""), ["own"]);
    assert_eq!(clear(&["leased", "writing"], B, ""), [] as [&str; 0]);
    let left = m.get("two").expect("one replica remains");
    assert_eq!(left.iter().map(endpoint).collect::<Vec<_>>(), ["a:1"]);
    assert_eq!(m.state.gauges().mem_replicas, 2);
}

#[test]
fn unsupported_features_answer_as_if_disabled() {
    let mut m = Master::of(MIB);
    m.put("k", 10);
    let k = Text::from("k");
    let none = Text::from("none");
    assert_eq!(m.call().fetch_tasks(A, 16), Ok(vec![]));
    assert_eq!(m.call().query_task(mcctl_base::TaskId(1, 1)).err(), Some(ErrorCode(-1400)));
    assert_eq!(m.call().mount_local_disk_segment(A, true), Err(ErrorCode(-1300)));
    assert_eq!(m.call().offload_object_heartbeat(A, true), Err(ErrorCode(-101)));
    assert_eq!(m.call().report_ssd_capacity(A, 5), Err(ErrorCode(-101)));
    assert_eq!(m.call().poll_remove_all(A), Err(ErrorCode(-101)));
    assert_eq!(m.call().promotion_object_heartbeat(A), Err(ErrorCode(-101)));
    assert_eq!(m.call().get_all_nof_segments(), Ok(vec![]));
    assert_eq!(m.call().remount_nof_segment(vec![], A), Err(ErrorCode(-1011)));
    assert_eq!(m.call().copy_end(A, k, T), Err(ErrorCode(-709)));
    assert_eq!(m.call().copy_end(A, none, T), Err(NOT_FOUND));
    assert_eq!(m.call().copy_start(A, k, T, none, vec![none]).err(), Some(ErrorCode(-101)));
    assert_eq!(m.call().evict_disk_replica(A, k, T, ReplicaType::LOCAL_DISK), Ok(()));
    assert_eq!(m.call().evict_disk_replica(A, k, T, ReplicaType::MEMORY), Err(BAD));
    assert_eq!(m.call().evict_disk_replica(A, none, T, ReplicaType::DISK), Err(NOT_FOUND));
    assert_eq!(m.call().notify_promotion_failure(A, k, T), Ok(()));
    assert_eq!(m.call().service_ready(), Ok(ServiceVersion("2.0.0".into())));
    let storage = m.call().get_storage_config().expect("never fails");
    assert_eq!(
        (storage.fsdir.to_string(), storage.enable_disk_eviction, storage.quota_bytes),
        (String::new(), true, 0)
    );
}
