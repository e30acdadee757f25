//! Leases and soft pins.

use super::*;
use mcctl_wire::types::SliceLength;

#[test]
fn a_read_protects_the_object_for_the_ttl() {
    type Read = fn(&mut Master);
    let reads: [(&str, Read); 5] = [
        ("ExistKey", |m| assert!(m.exists("k"))),
        ("BatchExistKey", |m| assert_eq!(m.call().batch_exist_key(vec!["k".into()], T), [Ok(true)])),
        ("GetReplicaList", |m| assert!(m.get("k").is_ok())),
        ("BatchGetReplicaList", |m| assert!(m.call().batch_get_replica_list(vec!["k".into()], T)[0].is_ok())),
        ("GetReplicaListByRegex", |m| {
            assert_eq!(m.call().get_replica_list_by_regex("^k$".into(), T).expect("valid").0.len(), 1);
        }),
    ];
    for (name, read) in reads {
        let mut m = Master::of(MIB);
        m.put("k", 10);
        m.put("other", 10);
        read(&mut m);
        m.pass_ms(9_999);
        assert_eq!(m.remove("k", false), Err(LEASED), "{name}");
        assert_eq!(m.remove("other", false), Ok(()), "{name}");
        m.state.ping(m.now, A);
        m.pass_ms(1);
        assert_eq!(m.remove("k", false), Ok(()), "{name}");
    }
}

#[test]
fn a_put_alone_grants_no_lease() {
    let mut m = Master::of(MIB);
    m.put("k", 10);
    assert_eq!(m.remove("k", false), Ok(()));
}

#[test]
fn the_response_contains_the_lease_ttl() {
    let mut m = Master::with(|p| p.lease_ttl = Duration::from_millis(1_234));
    m.mount(A, segment(1, "a:1", MIB));
    m.put("k", 10);
    assert_eq!(m.call().get_replica_list("k".into(), T).expect("exists").lease_ttl_ms, 1_234);
}

#[test]
fn a_lookup_by_an_operator_grants_no_lease() {
    let mut m = Master::of(MIB);
    m.put("k", 10);
    assert!(m.has_object("k"));
    let mut visited = 0;
    m.state.keys(0, 100, &mut |_| visited += 1);
    assert_eq!((visited, m.remove("k", false)), (1, Ok(())));
}

#[test]
fn a_failed_lookup_grants_no_lease_and_is_counted() {
    let mut m = Master::of(MIB);
    m.start(A, "k", 10).expect("room");
    assert!(!m.exists("k"));
    assert_eq!(m.get("none"), Err(NOT_FOUND));
    assert_eq!(m.get("k"), Err(NOT_READY));
    m.end(A, "k").expect("the put ends");
    assert_eq!(m.remove("k", false), Ok(()));
    let c = &m.state.counters;
    assert_eq!((c.total_gets, c.valid_gets, c.mem_hits, c.exist_key.requests), (2, 0, 0, 1));
}

#[test]
fn an_existence_check_counts_as_a_hit_only_if_it_finds_the_key() {
    let mut m = Master::of(MIB);
    m.put("k", 10);
    assert!(m.exists("k") && !m.exists("none"));
    assert_eq!((m.state.counters.exist_hits, m.state.counters.total_gets), (1, 0));
}

#[test]
fn a_lease_outlives_an_upsert() {
    let mut m = Master::of(MIB);
    m.put("k", 10);
    assert!(m.exists("k"));
    m.upsert(A, "k", 10).expect("in place");
    m.end(A, "k").expect("the put ends");
    assert_eq!(m.remove("k", false), Err(LEASED));
}

#[test]
fn reading_a_member_protects_its_group() {
    let mut m = Master::of(MIB);
    m.put_with("a", 10, grouped("g"));
    m.put_with("b", 10, grouped("g"));
    m.put_with("c", 10, grouped("h"));
    assert!(m.exists("a"));
    assert_eq!(m.remove("b", false), Err(LEASED));
    assert_eq!(m.remove("c", false), Ok(()));
    m.pass_ms(10_000);
    m.mount(B, segment(2, "b:1", MIB));
    assert!(!m.exists("b"), "its client has expired");
}

#[test]
fn a_soft_pin_starts_at_the_end_of_the_put_and_expires() {
    let mut m = Master::of(MIB);
    m.start_with(A, "k", 10, pinned(Some(5_000))).expect("room");
    assert_eq!(m.state.gauges().soft_pinned_keys, 0);
    m.pass_ms(3_000);
    m.end(A, "k").expect("the put ends");
    assert_eq!(m.state.gauges().soft_pinned_keys, 1);
    m.pass_ms(4_999);
    assert_eq!(m.state.gauges().soft_pinned_keys, 1);
    // Reading does not extend the pin.
    assert!(m.exists("k"));
    m.pass_ms(1);
    assert_eq!(m.state.gauges().soft_pinned_keys, 0);
}

#[test]
fn an_upsert_can_set_clear_and_keep_the_soft_pin() {
    let mut m = Master::of(MIB);
    m.put("k", 10);
    let mut upsert = |action| {
        let config = ReplicateConfig { soft_pin_action: action, ..ReplicateConfig::default() };
        m.call().upsert_start(A, "k".into(), SliceLength(10), config, T).expect("in place");
        m.end(A, "k").expect("the put ends");
        m.state.gauges().soft_pinned_keys
    };
    assert_eq!(upsert(SoftPinAction::ENABLE), 1);
    assert_eq!(upsert(SoftPinAction::PRESERVE), 1);
    assert_eq!(upsert(SoftPinAction::DISABLE), 0);
    assert_eq!(upsert(SoftPinAction::PRESERVE), 0);
}
