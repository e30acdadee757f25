//! Tenants: the same key in two of them is two objects, in the state, on a standby and in a
//! snapshot.

use super::follow::Followed;
use super::*;
use crate::tenant::TenantUsage;

const TENANT: Tenant<'static> = Tenant(Text(b"a"));

fn put_in(m: &mut Master, tenant: Tenant<'_>, key: &str, bytes: u64) -> ReplicaDescriptor {
    let started = m.call().put_start(A, key.into(), SliceLength(bytes), ReplicateConfig::default(), tenant);
    let replicas = started.expect("the put starts");
    assert_eq!(m.call().put_end(A, meta(key), ReplicaType::ALL, tenant), Ok(()));
    replicas[0].clone()
}

fn size_in(m: &mut Master, tenant: Tenant<'_>, key: &str) -> Expected<u64> {
    m.call().get_replica_list(key.into(), tenant).map(|list| match &list.replicas[0].location {
        ReplicaLocation::Memory(buffer) => buffer.size,
        other => panic!("{other:?}"),
    })
}

#[test]
fn the_same_key_in_two_tenants_is_two_objects() {
    let mut m = Master::of(MIB);
    put_in(&mut m, T, "k", 100);
    put_in(&mut m, TENANT, "k", 200);
    assert_eq!((size_in(&mut m, T, "k"), size_in(&mut m, TENANT, "k")), (Ok(100), Ok(200)));
    assert_eq!(size_in(&mut m, Tenant::from(""), "k"), Ok(100), "an empty name is the default tenant");
    assert_eq!(m.call().batch_exist_key(vec!["k".into(), "l".into()], TENANT), [Ok(true), Ok(false)]);
    assert_eq!(m.call().exist_key("k".into(), Tenant::from("b")), Ok(false));
    assert_eq!(m.call().remove("k".into(), true, TENANT), Ok(()));
    assert_eq!((size_in(&mut m, T, "k"), size_in(&mut m, TENANT, "k")), (Ok(100), Err(NOT_FOUND)));
}

#[test]
fn batches_and_expressions_stay_within_their_tenant() {
    let mut m = Master::of(MIB);
    let keys: Vec<Text<'_>> = vec!["k1".into(), "k2".into()];
    for tenant in [T, TENANT] {
        let lengths = vec![SliceLength(100); 2];
        let started = m.call().batch_put_start(A, keys.clone(), lengths, ReplicateConfig::default(), tenant);
        assert!(started.iter().all(Result::is_ok), "{started:?}");
        assert_eq!(m.call().batch_put_end(A, vec![meta("k1"), meta("k2")], ReplicaType::ALL, tenant), [Ok(()), Ok(())]);
    }
    let found = m.call().get_replica_list_by_regex("k".into(), TENANT).expect("a valid expression");
    let mut found: Vec<String> = found.0.iter().map(|(key, _)| key.to_string()).collect();
    found.sort();
    assert_eq!(found, ["k1", "k2"]);
    assert_eq!(m.call().remove_by_regex("^k1$".into(), true, TENANT), Ok(1));
    let cleared = m.call().batch_replica_clear(keys.clone(), A, "".into(), TENANT);
    assert_eq!(cleared, Ok(vec![]), "it is leased");
    assert_eq!(m.call().remove_all(true, TENANT), 1);
    assert_eq!(m.call().batch_exist_key(keys, T), [Ok(true), Ok(true)]);
    assert_eq!(m.call().remove_all(true, T), 2);
}

#[test]
fn a_key_with_a_byte_00_and_an_invalid_tenant_are_refused() {
    let mut m = Master::of(MIB);
    put_in(&mut m, TENANT, "k", 100);
    let alias = Text(b"a\0k");
    for tenant in [T, TENANT] {
        let put = m.call().put_start(A, alias, SliceLength(1), ReplicateConfig::default(), tenant);
        assert_eq!(put, Err(ErrorCode::INVALID_PARAMS));
        assert_eq!(m.call().exist_key(alias, tenant), Ok(false));
        assert_eq!(m.call().remove(alias, true, tenant), Err(NOT_FOUND));
        assert_eq!(m.call().batch_get_replica_list(vec![alias], tenant)[0], Err(NOT_FOUND));
    }
    let bad = Tenant::from("_a");
    let put = m.call().put_start(A, "k".into(), SliceLength(1), ReplicateConfig::default(), bad);
    assert_eq!(put, Err(ErrorCode::TENANT_NOT_REGISTERED));
    assert_eq!(m.call().exist_key("k".into(), bad), Err(ErrorCode::INVALID_PARAMS));
    assert_eq!(m.call().remove_all(true, bad), 0);
    assert!(m.state.tenants().count() == 1);
}

#[test]
fn tenants_are_on_the_standby_and_in_the_snapshot() {
    let mut f = Followed::of(MIB);
    f.register(B, vec![segment(2, "b:1", MIB)]);
    put_in(&mut f.master, T, "k", 100);
    for key in ["k", "l"] {
        put_in(&mut f.master, TENANT, key, 200);
    }
    assert_eq!(f.master.call().remove("l".into(), true, TENANT), Ok(()));
    f.follow();
    let expected = [(&b"a"[..], TenantUsage { keys: 1, bytes: 200 })];
    assert_eq!(f.master.state.tenants().collect::<Vec<_>>(), expected);
    assert_eq!(f.standby.state.tenants().collect::<Vec<_>>(), expected);
}
