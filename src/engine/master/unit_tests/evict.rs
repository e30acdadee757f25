//! Eviction: when it starts, which objects it evicts, and how it is split into slices.

use std::collections::BTreeSet;

use super::*;
use crate::alloc::placement::Rng;
use crate::object::ObjectRecord;
use crate::slots::ObjectSlot;
use crate::{EvictionPolicyKind, MemoryShortage, ShortageCause};

/// A master with room for `count` objects of 1 MiB, `put` of which exist. No client ever expires.
fn pool(count: u64, put: u64, change: impl FnOnce(&mut StorePolicy)) -> Master {
    let mut m = Master::with(|p| {
        p.client_ttl = Duration::from_secs(1 << 30);
        change(p);
    });
    m.mount(A, segment(1, "a:1", count * MIB));
    for key in keys(0..put) {
        m.put(&key, MIB);
        m.now = m.now + Duration::from_millis(1);
    }
    m
}

#[test]
fn upstreams_measured_example_gives_the_same_result() {
    // 40 MiB, 37 objects of 1 MiB: usage 0.925, target 0.075. One hard pin leaves a base of 36, so
    // three are evicted.
    let mut m = pool(40, 0, |_| {});
    m.put_with("hard", MIB, hard_pinned());
    m.put_with("soft", MIB, pinned(None));
    m.put("leased", MIB);
    m.exists("leased");
    for key in keys(0..34) {
        m.now = m.now + Duration::from_millis(1);
        m.put(&key, MIB);
    }
    m.settle();
    assert_eq!(m.state.counters.evicted_keys, 3);
    assert_eq!(m.count_existing(keys(0..3)), 0, "the oldest unprotected objects");
    assert_eq!(m.count_existing(keys(3..34)), 31);
    assert!(["hard", "soft", "leased"].iter().all(|key| m.has_object(key)));
    assert_eq!(m.effects().last(), Some(&StateEffect::Evicted { objects: 3, bytes: 3 * MIB }));
}

#[test]
fn failed_puts_are_reported_with_figures_every_ten_seconds() {
    let mut m = pool(10, 0, |_| {});
    m.put_with("hard", 6 * MIB, hard_pinned());
    m.put("leased", 3 * MIB);
    m.exists("leased");
    let reports = |m: &mut Master| {
        let report = |effect: StateEffect| match effect {
            StateEffect::MemoryShortage(shortage) => Some(shortage),
            _ => None,
        };
        m.effects().into_iter().filter_map(report).collect::<Vec<_>>()
    };
    for _ in 0..3 {
        assert_eq!(m.start(A, "k", 2 * MIB), Err(NO_SPACE));
    }
    m.settle();
    let first = MemoryShortage {
        cause: ShortageCause::NothingEvictable,
        puts: 3,
        bytes: 2 * MIB,
        used_bytes: 9 * MIB,
        capacity_bytes: 10 * MIB,
        hard_pinned_bytes: 6 * MIB,
        soft_pinned_keys: 0,
    };
    assert_eq!(reports(&mut m), [first]);
    assert_eq!(m.start(A, "k", 2 * MIB), Err(NO_SPACE));
    m.pass_ms(1_000);
    assert_eq!(reports(&mut m), [], "the pause has not passed");
    m.pass_ms(9_000);
    assert_eq!(reports(&mut m), [MemoryShortage { puts: 1, ..first }], "with the figures of the failure");
    m.pass_ms(60_000);
    assert_eq!(reports(&mut m), []);
    let mut cause = |bytes| {
        assert_eq!(m.start(A, "k", bytes), Err(NO_SPACE));
        m.pass_ms(10_000);
        reports(&mut m)[0].cause
    };
    assert_eq!(cause(4 * MIB), ShortageCause::Evicting, "the lease has ended");
    assert_eq!(cause(5 * MIB), ShortageCause::HardPins);
}

#[test]
fn a_put_without_a_segment_names_the_cause() {
    let mut m = Master::new();
    let cause = |m: &mut Master| {
        assert_eq!(m.start(A, "k", MIB), Err(NO_SPACE));
        m.pass_ms(10_000);
        m.effects().into_iter().find_map(|effect| match effect {
            StateEffect::MemoryShortage(shortage) => Some(shortage.cause),
            _ => None,
        })
    };
    assert_eq!(cause(&mut m), Some(ShortageCause::NoSegment));
    assert_eq!(m.call().remount_segment(vec![segment(1, "a:1", 2 * MIB)], A), Ok(()));
    m.state.policy.client_ttl = Duration::from_secs(60);
    assert_eq!(m.call().ping(A).map(|_| ()), Ok(()));
    assert_eq!(cause(&mut m), Some(ShortageCause::NoOpenSegment));
}

#[test]
fn nothing_is_evicted_below_the_watermark() {
    let mut m = pool(100, 90, |_| {});
    m.pass_ms(60_000);
    assert_eq!((m.ratio(), m.state.counters.evicted_keys), (0.9, 0));
}

#[test]
fn a_failed_allocation_triggers_eviction_at_low_usage() {
    let mut m = pool(100, 50, |_| {});
    assert_eq!(m.start(A, "big", 60 * MIB), Err(NO_SPACE));
    m.settle();
    assert_eq!(m.state.counters.evicted_keys, 3, "ceil(50 * 0.05)");
    m.pass_ms(1_000);
    assert_eq!(m.state.counters.evicted_keys, 3, "once per failure");
}

#[test]
fn a_failure_for_lack_of_segments_evicts_nothing() {
    let mut m = pool(100, 50, |_| {});
    assert_eq!(m.start_with(A, "big", 60 * MIB, copies(2)), Err(NO_SPACE));
    m.settle();
    assert_eq!(m.state.counters.evicted_keys, 0);
}

#[test]
fn victims_are_chosen_by_lease_end_oldest_first() {
    let mut m = pool(100, 80, |p| p.lease_ttl = Duration::from_millis(500));
    for key in ["key-0", "key-2", "key-1"] {
        m.exists(key);
        m.now = m.now + Duration::from_millis(1);
    }
    m.pass_ms(10_000);
    let mut order = Vec::new();
    while order.len() < 80 {
        let before: Vec<String> = keys(0..80).into_iter().filter(|key| m.has_object(key)).collect();
        let at = m.state.order.victim(&m.state.objects, m.now).expect("objects remain");
        m.state.erase(at);
        order.extend(before.into_iter().filter(|key| !m.has_object(key)));
    }
    let mut expected = keys(3..80);
    expected.extend(["key-0", "key-2", "key-1"].map(str::to_owned));
    assert_eq!(order, expected);
}

/// The objects that may be evicted: complete, not pinned, lease over.
fn evictable(m: &Master) -> BTreeSet<ObjectSlot> {
    let may = |object: &ObjectRecord| {
        let entry = &object.eviction;
        let pinned = entry.hard_pin() || object.soft_pin().is_some_and(|end| end > m.now);
        !entry.is_writing() && !pinned && entry.lease_until() <= m.now
    };
    let slots = (0..m.state.objects.slots()).map(ObjectSlot);
    slots.filter(|at| m.state.objects.get(*at).is_some_and(may)).collect()
}

#[test]
fn every_policy_finds_the_evictable_objects_and_no_others() {
    for &policy in EvictionPolicyKind::ALL {
        let mut m = pool(1_000, 0, |p| {
            p.eviction_policy = policy;
            p.watermark = 1.0;
            p.lease_ttl = Duration::from_millis(50);
        });
        let mut rng = Rng::new(9);
        for _ in 0..3_000 {
            let key = format!("key-{}", rng.below(60));
            let _ = match rng.below(9) {
                0 | 1 => m.start(A, &key, MIB).map(drop),
                2 => m.start_with(A, &key, MIB, pinned(Some(30))).map(drop),
                3 => m.start_with(A, &key, MIB, hard_pinned()).map(drop),
                4 => m.upsert(A, &key, MIB).map(drop),
                5 | 6 => m.end(A, &key),
                7 => m.remove(&key, true),
                _ => m.get(&key).map(drop),
            };
            m.pass_ms(rng.below(4) as u64);
            let expected = evictable(&m);
            match m.state.order.victim(&m.state.objects, m.now) {
                Some(victim) => assert!(expected.contains(&victim), "{policy:?}: protected"),
                None => assert!(expected.is_empty(), "{policy:?}: {} not found", expected.len()),
            }
        }
        m.pass_ms(1_000);
        let mut rest = evictable(&m);
        assert!(!rest.is_empty());
        while let Some(victim) = m.state.order.victim(&m.state.objects, m.now) {
            assert!(rest.remove(&victim), "{policy:?}: twice");
            m.state.erase(victim);
        }
        assert!(rest.is_empty(), "{policy:?}");
    }
}

#[test]
fn leased_objects_are_never_evicted_so_the_newest_unread_are() {
    let mut m = pool(100, 90, |_| {});
    for key in keys(0..90) {
        assert!(m.exists(&key));
    }
    for key in keys(90..95) {
        m.put(&key, MIB);
    }
    m.settle();
    assert_eq!(m.count_existing(keys(0..90)), 90);
    assert_eq!(m.count_existing(keys(90..95)), 0);
}

#[test]
fn unfinished_and_hard_pinned_objects_are_never_evicted() {
    let mut m = pool(100, 0, |_| {});
    for key in keys(0..50) {
        m.put_with(&key, MIB, hard_pinned());
    }
    for key in keys(50..95) {
        m.start(A, &key, MIB).expect("room");
    }
    m.pass_ms(30_000);
    assert_eq!((m.state.counters.evicted_keys, m.state.gauges().keys), (0, 95));
}

#[test]
fn soft_pinned_objects_are_evicted_last_and_only_if_allowed() {
    for allowed in [true, false] {
        let mut m = pool(100, 0, |p| p.evict_soft_pinned = allowed);
        for key in keys(0..94) {
            m.put_with(&key, MIB, pinned(None));
            m.now = m.now + Duration::from_millis(1);
        }
        m.put("plain", MIB);
        m.settle();
        assert!(!m.has_object("plain"));
        // The target is 10% of 95 and the lower bound 5%: the one unpinned object, then four in the
        // second pass.
        assert_eq!(m.state.counters.evicted_keys, if allowed { 5 } else { 1 });
        assert_eq!(m.count_existing(keys(0..4)), if allowed { 0 } else { 4 });
    }
}

#[test]
fn an_expired_soft_pin_no_longer_protects() {
    let mut m = pool(100, 0, |p| p.evict_soft_pinned = false);
    m.put_with("pinned", MIB, pinned(Some(1_000)));
    for key in keys(0..80) {
        m.now = m.now + Duration::from_millis(1);
        m.put(&key, MIB);
    }
    m.pass_ms(1_000);
    assert_eq!(m.state.order.victim(&m.state.objects, m.now).map(|at| m.state.objects.key(at)), Some(&b"pinned"[..]));
}

#[test]
fn a_group_is_evicted_whole_and_only_if_no_member_is_leased() {
    let mut m = pool(100, 0, |_| {});
    for key in keys(0..10) {
        m.put_with(&key, MIB, grouped("g"));
    }
    for key in keys(10..20) {
        m.put_with(&key, MIB, grouped("h"));
    }
    m.now = m.now + Duration::from_millis(1);
    for key in keys(20..92) {
        m.put(&key, MIB);
    }
    m.exists("key-9");
    m.settle();
    assert_eq!(m.count_existing(keys(0..10)), 10, "a member was read");
    assert_eq!(m.count_existing(keys(10..20)), 0, "evicting one member evicts the whole group");
    m.pass_ms(10_000);
    for key in keys(100..250) {
        m.put(&key, MIB);
        m.pass_ms(10);
    }
    assert_eq!(m.count_existing(keys(0..10)), 0);
}

#[test]
fn the_memory_of_an_evicted_object_is_reused() {
    let mut m = pool(100, 0, |p| (p.watermark, p.eviction_ratio) = (1.0, 0.01));
    for (i, key) in keys(0..1_000).into_iter().enumerate() {
        if m.start(A, &key, MIB).is_err() {
            m.pass_ms(10);
            m.start(A, &key, MIB).unwrap_or_else(|error| panic!("object {i}: {error}"));
        }
        m.end(A, &key).expect("the put ends");
        m.now = m.now + Duration::from_millis(1);
    }
    assert_eq!(m.count_existing(keys(0..1_000)), 100);
    assert_eq!(m.count_existing(keys(900..1_000)), 100);
}

#[test]
fn an_eviction_round_is_done_in_bounded_slices() {
    let mut m = pool(10_000, 9_100, |_| {});
    let before = m.state.gauges().keys;
    let mut slices = 0;
    while m.state.tick(m.now, m.now, &mut m.effects) {
        slices += 1;
    }
    let evicted = before - m.state.gauges().keys;
    assert_eq!(evicted, (9_100.0f64 * (0.91 - 0.90 + 0.05)).ceil() as u64);
    assert!(slices >= evicted / 128, "{slices} slices for {evicted}");
    assert_eq!((m.state.counters.evictions, m.state.counters.eviction_attempts), (1, 1));
}

#[test]
fn released_writes_count_as_evicted() {
    let mut m = pool(100, 0, |p| {
        p.put_release_after = Duration::from_secs(60);
        p.evict_soft_pinned = true;
    });
    for key in keys(0..80) {
        m.put_with(&key, MIB, pinned(None));
    }
    for key in keys(80..95) {
        m.start(A, &key, MIB).expect("room");
    }
    m.pass_ms(60_000);
    // The fifteen unfinished writes are released in the same tick, before pinned objects would be
    // evicted.
    assert_eq!((m.state.counters.put_start_releases, m.state.counters.evicted_keys), (15, 0));
}
