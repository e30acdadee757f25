//! Each write has an id of its own, so that late and lost messages of one write do not affect
//! another one.

use mcctl::engine::base::ClientId;

use super::remount::{memory_of, put_start};
use super::*;

/// An end of a put of `name` by `client`, for [`StoreClient::complete`].
async fn end(client: &StoreClient<RealEnv>, writer: ClientId, name: &str) -> Result<(), ErrorCode> {
    let key = key(name);
    let end = WriteEnd { key: &key, replicas: &[], checksum: None };
    client.complete(WriteMethod::Put, writer, &[end]).await.pop().unwrap().map_err(|error| error.code())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_late_end_of_a_put_does_not_complete_a_later_put_of_the_same_client() {
    let master = master(0).await;
    let node = node(master.rpc_port(), 32).await;
    let client = node.client();
    let keys = [key("k")];
    let config = ReplicateConfig::default();
    let allocate = async || client.allocate(WriteMethod::Put, &keys, vec![100], &config, KeyHold::Call).await.unwrap();
    let first = allocate().await;
    client.revoke(WriteMethod::Put, first.writer, &keys).await;
    let late = first.writer;
    drop(first);
    let second = allocate().await;
    assert_ne!(late, second.writer);
    assert_eq!(end(client, late, "k").await, Err(ErrorCode::ILLEGAL_CLIENT));
    assert!(!client.exists(&keys[0]).await.unwrap(), "the second put has not ended");
    assert_eq!(end(client, second.writer, "k").await, Ok(()));
    assert_eq!(end(client, second.writer, "k").await, Ok(()), "an end may be repeated");
    assert!(client.exists(&keys[0]).await.unwrap());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_put_fails_until_another_write_of_its_key_has_ended() {
    let master = master(0).await;
    let one = node(master.rpc_port(), 32).await;
    let other = node(master.rpc_port(), 32).await;
    let config = ReplicateConfig::default();
    put_start(other.client(), "k", 100).await;
    let put = async || {
        let objects = [(key("k"), ObjectPart::consecutive([slice(bytes(100, 1))]))];
        one.client().store(WriteMethod::Put, &objects, &config).await.unwrap().pop().unwrap()
    };
    assert!(matches!(put().await, Err(StoreError::OtherWrite { .. })));
    let ending = async {
        tokio::time::sleep(Duration::from_millis(20)).await;
        end(other.client(), other.client().id(), "k").await
    };
    let (put, ended) = tokio::join!(put(), ending);
    assert_eq!((put.unwrap(), ended), (PutOutcome::AlreadyExists, Ok(())));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_end_of_an_unknown_write_succeeds_only_if_the_object_has_its_memory() {
    let master = master(0).await;
    let node = node(master.rpc_port(), 32).await;
    let client = node.client();
    let keys = [key("k")];
    client.put(&keys[0], slice(bytes(100, 1)), &ReplicateConfig::default()).await.unwrap();
    let stat = client.stat(&keys[0]).await.unwrap();
    let own = [memory_of(&stat.found.replicas)];
    let mut moved = own.clone();
    moved[0].buffer_address += 100;
    let unknown = ClientId(1, 2);
    let checksum = stat.found.object_checksum;
    let complete = async |replicas: &[_], checksum| {
        let end = WriteEnd { key: &keys[0], replicas, checksum };
        client.complete(WriteMethod::Put, unknown, &[end]).await.pop().unwrap()
    };
    assert!(complete(&own, checksum).await.is_ok(), "the master has forgotten who wrote it");
    assert!(complete(&moved, checksum).await.is_err(), "another write has completed it");
    assert!(complete(&own, Some(1)).await.is_err(), "an upsert has rewritten it in place");
}
