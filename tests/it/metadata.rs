//! The metadata service over real HTTP: the captured answers of the real service, and the
//! documented differences.

use std::time::Duration;

use bytes::Bytes;
use mcctl::engine::base::HostPort;
use mcctl::engine::env::{Env, RealEnv};
use mcctl::engine::http::HttpServer;
use mcctl::engine::metadata::probe::PROBE_LIMIT;
use mcctl::engine::metadata::records::RemovedRecords;
use mcctl::engine::metadata::{CallLimits, KeySpace, MetadataClient, MetadataError, MetadataService};
use proptest::prelude::*;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

use crate::http::{Connection, replay};
use crate::peer::process::in_time;
use crate::sim::{PatientEnv, SimEnv};

async fn serve() -> (MetadataService<RealEnv>, HttpServer, MetadataClient) {
    serve_in(RealEnv::new()).await
}

async fn serve_in<E: Env>(env: E) -> (MetadataService<E>, HttpServer, MetadataClient) {
    let service = MetadataService::new(env, KeySpace::default());
    let running = service.start(&HostPort::new("127.0.0.1", 0)).await.unwrap();
    let client = MetadataClient::http(&format!("http://{}/metadata", running.at())).unwrap();
    (service, running, client)
}

fn rpc_meta(port: u16) -> Bytes {
    format!("{{\"ip_or_host_name\":\"127.0.0.1\",\"rpc_port\":{port}}}").into()
}

/// How an owner's handshake port treats a connection.
#[derive(Clone, Copy)]
enum OwnerBehavior {
    Answers,
    Closes,
    Hangs,
    OtherProtocol,
    Dead,
}

/// The handshake port of an owner, and the task that serves it.
async fn owner(owner: OwnerBehavior) -> (u16, Option<tokio::task::JoinHandle<()>>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    if let OwnerBehavior::Dead = owner {
        return (port, None);
    }
    let task = tokio::spawn(async move {
        let mut open = Vec::new();
        while let Ok((mut stream, _)) = listener.accept().await {
            match owner {
                OwnerBehavior::Answers => {
                    let mut probe = [0; 12];
                    stream.read_exact(&mut probe).await.unwrap();
                    assert_eq!(&probe, b"\x04\0\0\0\0\0\0\0\x03{}\n");
                    stream.write_all(b"\x15\0\0\0\0\0\0\0\x03{\"status\":\"success\"}\n").await.unwrap();
                }
                OwnerBehavior::Closes => {
                    let _ = stream.read(&mut [0; 64]).await;
                }
                OwnerBehavior::OtherProtocol => stream.write_all(b"SSH-2.0-OpenSSH_9.6\r\n").await.unwrap(),
                OwnerBehavior::Hangs | OwnerBehavior::Dead => open.push(stream),
            }
        }
    });
    (port, Some(task))
}

#[tokio::test]
async fn captured_requests_get_the_real_servers_answers() {
    let (_service, running, _) = serve().await;
    replay("metadata.txt", running.at().port).await;
}

#[tokio::test]
async fn a_name_is_taken_over_only_from_a_dead_owner() {
    // A live owner gets all the time it needs. A hung one loses its name after the real limit.
    let (_service, _running, patient) = serve_in(PatientEnv::default()).await;
    let (_service, _running, strict) = serve().await;
    let cases = [
        (OwnerBehavior::Answers, false),
        (OwnerBehavior::Closes, false),
        (OwnerBehavior::Hangs, true),
        (OwnerBehavior::OtherProtocol, true),
        (OwnerBehavior::Dead, true),
    ];
    for (n, (kind, taken)) in cases.into_iter().enumerate() {
        let (port, task) = owner(kind).await;
        let client = if taken { &strict } else { &patient };
        let rpc = format!("mooncake/rpc_meta/node-{n}");
        let ram = format!("mooncake/ram/node-{n}");
        client.put(&rpc, rpc_meta(port)).await.unwrap();
        client.put(&ram, "old".into()).await.unwrap();
        let answer = client.put(&rpc, rpc_meta(1)).await;
        if taken {
            answer.unwrap();
            assert_eq!(client.get(&rpc).await.unwrap(), Some(rpc_meta(1)), "case {n}");
            assert_eq!(client.get(&ram).await.unwrap(), None, "case {n}");
        } else {
            let error = answer.unwrap_err();
            assert!(error.is_duplicate(), "case {n}: {error}");
            assert_eq!(client.get(&ram).await.unwrap(), Some("old".into()), "case {n}");
        }
        if let Some(task) = task {
            task.abort();
        }
    }
}

#[tokio::test]
async fn a_dead_clients_records_are_removed_under_the_engines_spelling() {
    let (service, _running, client) = serve().await;
    client.put("mooncake/rpc_meta/localhost:12805", rpc_meta(1)).await.unwrap();
    client.put("mooncake/ram/localhost:12805", "d".into()).await.unwrap();
    assert_eq!(service.remove_segment("localhost:12805").await, RemovedRecords { ram: true, rpc_meta: true });
    assert_eq!(client.get("mooncake/ram/localhost:12805").await.unwrap(), None);
    assert!(!client.remove("mooncake/rpc_meta/localhost:12805").await.unwrap());
    assert_eq!(service.records(), 0);
}

#[tokio::test]
async fn an_expired_owner_is_not_probed_even_if_it_would_answer() {
    let (service, _running, client) = serve().await;
    let (port, _task) = owner(OwnerBehavior::Answers).await;
    client.put("mooncake/rpc_meta/n", rpc_meta(port)).await.unwrap();
    service.mark_owner_expired("n");
    client.put("mooncake/rpc_meta/n", rpc_meta(1)).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_of_many_concurrent_take_overs_wins() {
    let (_service, _running, client) = serve_in(PatientEnv::default()).await;
    let (port, _) = owner(OwnerBehavior::Dead).await;
    client.put("mooncake/rpc_meta/n", rpc_meta(port)).await.unwrap();
    // Each contender is alive, so the later ones find a live owner.
    let mut tries = tokio::task::JoinSet::new();
    for _ in 0..8 {
        let client = client.clone();
        tries.spawn(async move {
            let (port, _task) = owner(OwnerBehavior::Answers).await;
            client.put("mooncake/rpc_meta/n", rpc_meta(port)).await.map(|()| port)
        });
    }
    let results = tries.join_all().await;
    let winners: Vec<_> = results.iter().filter_map(|r| r.as_ref().ok()).collect();
    assert_eq!(winners.len(), 1, "{results:?}");
    assert!(results.iter().all(|r| r.as_ref().err().is_none_or(MetadataError::is_duplicate)));
    assert_eq!(client.get("mooncake/rpc_meta/n").await.unwrap(), Some(rpc_meta(*winners[0])));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn concurrent_writes_of_many_engines_are_all_kept() {
    let (service, _running, client) = serve().await;
    let mut writes = tokio::task::JoinSet::new();
    for n in 0..64 {
        let client = client.clone();
        writes.spawn(async move {
            for (folder, body) in [("rpc_meta", rpc_meta(1000 + n)), ("ram", format!("{n}").into())] {
                client.put(&format!("mooncake/{folder}/engine:{n}"), body).await.unwrap();
            }
        });
    }
    writes.join_all().await;
    assert_eq!(service.records(), 128);
    for n in 0..64 {
        let found = client.get(&format!("mooncake/ram/engine:{n}")).await.unwrap();
        assert_eq!(found, Some(format!("{n}").into()));
    }
}

#[tokio::test]
async fn a_large_record_round_trips_and_a_larger_one_is_refused() {
    let (_service, running, client) = serve().await;
    let large = Bytes::from(vec![b'x'; 5 << 20]);
    client.put("mooncake/ram/large", large.clone()).await.unwrap();
    assert_eq!(client.get("mooncake/ram/large").await.unwrap(), Some(large));
    let mut connection = Connection::to(running.at().port).await;
    connection.send(b"PUT /metadata?key=k HTTP/1.1\r\nHost: t\r\nContent-Length: 99999999999\r\n\r\n").await;
    assert_eq!(connection.answer(false).await.status, 413);
}

#[tokio::test]
async fn a_port_in_use_is_an_error_with_the_address() {
    let (service, running, _) = serve().await;
    let error = service.start(running.at()).await.unwrap_err();
    assert!(error.source.kind() == std::io::ErrorKind::AddrInUse);
    assert_eq!(error.to_string(), format!("cannot listen on {}", running.at()));
}

#[tokio::test]
async fn stopping_frees_the_port_despite_open_connections() {
    let (service, running, _) = serve().await;
    let at = running.at().clone();
    let mut idle = Connection::to(at.port).await;
    assert_eq!(idle.ask("GET", "/health", b"").await.status, 200);
    let mut half = Connection::to(at.port).await;
    half.send(b"PUT /metadata?key=k HTTP/1.1\r\nHost: t\r\nContent-Length: 5\r\n\r\nab").await;
    in_time("the stop", running.stop()).await;
    assert!(idle.is_closed().await);
    // It is not answered, so the stop did not wait until the limit for its body was reached.
    assert!(half.is_closed().await);
    let again = service.start(&at).await.unwrap();
    assert_eq!(again.at(), &at);
}

#[tokio::test]
async fn invalid_http_is_refused_and_the_service_continues() {
    let (_service, running, client) = serve().await;
    for bad in [&b"\x00\x01\x02\x03\x04\x05\x06\x07\x08\r\n\r\n"[..], b"GET /metadata?key=\xff\xfe HTTP/9\r\n\r\n"] {
        let mut connection = Connection::to(running.at().port).await;
        connection.send(bad).await;
        assert_eq!(connection.answer(true).await.status, 400);
    }
    let mut long = Connection::to(running.at().port).await;
    let mut head = b"GET /metadata?key=".to_vec();
    head.resize(200 << 10, b'a');
    // The server may close before it has read everything.
    let _ = in_time("the server to read or close", long.try_send(&head)).await;
    assert_eq!(client.get("k").await.unwrap(), None);
}

#[tokio::test]
async fn an_unavailable_service_is_an_error_within_the_limits() {
    let (port, _) = owner(OwnerBehavior::Dead).await;
    let client = MetadataClient::http(&format!("http://127.0.0.1:{port}/metadata")).unwrap();
    let error = client.get("mooncake/ram/x").await.unwrap_err();
    assert!(matches!(&error, MetadataError::Unreachable { key, .. } if key == "mooncake/ram/x"), "{error}");
    let (port, _task) = owner(OwnerBehavior::Hangs).await;
    let client = MetadataClient::http(&format!("http://127.0.0.1:{port}/metadata")).unwrap();
    let error = in_time("the limit of the call", client.get("k")).await.unwrap_err();
    let reached = CallLimits::default().call;
    assert!(matches!(error, MetadataError::Timeout { limit, .. } if limit == reached), "{error}");
    assert!(error.is_retryable());
}

#[tokio::test]
async fn a_client_with_several_urls_uses_one_that_responds() {
    let (_first, stopping, _) = serve().await;
    let (second, running, _) = serve().await;
    let (dead, _) = owner(OwnerBehavior::Dead).await;
    let url = |port: u16| format!("http://127.0.0.1:{port}/metadata");
    let list = [url(dead), url(stopping.at().port), url(running.at().port)].join(",");
    let client = MetadataClient::http(&list).unwrap();
    assert_eq!(client.url(), list);
    client.put("mooncake/ram/a", "1".into()).await.unwrap();
    assert!(!second.has_segment("a"), "the first service that responds is used");
    in_time("the first service to stop", stopping.stop()).await;
    assert_eq!(client.get("mooncake/ram/a").await.unwrap(), None);
    client.put("mooncake/ram/a", "2".into()).await.unwrap();
    assert!(second.has_segment("a"));
    assert!(client.remove("mooncake/ram/a").await.unwrap());
    in_time("the second service to stop", running.stop()).await;
    let error = client.get("mooncake/ram/a").await.unwrap_err();
    assert!(matches!(&error, MetadataError::Unreachable { url, .. } if *url == list), "{error}");
}

#[tokio::test]
async fn a_client_repeats_only_what_is_safe_at_the_next_url() {
    let (service, running, _) = serve().await;
    let limits = CallLimits { call: Duration::from_millis(200), ..CallLimits::default() };
    let (hung, _task) = owner(OwnerBehavior::Hangs).await;
    let list = format!("http://127.0.0.1:{hung}/metadata,http://{}/metadata", running.at());
    for method in ["put", "get", "remove"] {
        let client = MetadataClient::within(&list, limits).unwrap();
        match method {
            "put" => client.put("mooncake/ram/a", "1".into()).await.unwrap(),
            "get" => assert_eq!(client.get("mooncake/ram/a").await.unwrap(), Some("1".into())),
            _ => {
                let error = client.remove("mooncake/ram/a").await.unwrap_err();
                assert!(matches!(&error, MetadataError::Timeout { url, .. } if *url == list), "{error}");
                assert!(service.has_segment("a"));
                // The next call begins with the other service.
                assert!(client.remove("mooncake/ram/a").await.unwrap());
            }
        }
    }
}

/// The service on a simulated network: an owner behind a partition loses its name after the probe's
/// limit in virtual time, and a reachable one keeps it.
#[test]
fn an_owner_behind_a_partition_loses_its_name() {
    let mut sim = turmoil::Builder::new()
        .rng_seed(11)
        .simulation_duration(Duration::from_secs(60))
        .min_message_latency(Duration::from_millis(1))
        .max_message_latency(Duration::from_millis(10))
        .build();
    sim.host("service", || async {
        let service = MetadataService::new(SimEnv::new(1), KeySpace::default());
        let _running = service.start(&HostPort::new("0.0.0.0", 8080)).await?;
        std::future::pending().await
    });
    sim.host("owner", || async {
        let listener = turmoil::net::TcpListener::bind("0.0.0.0:15000").await?;
        loop {
            let (mut stream, _) = listener.accept().await?;
            stream.read_exact(&mut [0; 12]).await?;
            stream.write_all(b"\x05\0\0\0\0\0\0\0\x03{}\n\n").await?;
        }
    });
    sim.client("next", async {
        let mut http = Connection::over(turmoil::net::TcpStream::connect("service:8080").await?);
        let target = "/metadata?key=mooncake%2Frpc_meta%2Fn";
        let owner = br#"{"ip_or_host_name":"owner","rpc_port":15000}"#;
        let next = br#"{"ip_or_host_name":"next","rpc_port":15000}"#;
        assert_eq!(http.ask("PUT", target, owner).await.status, 200);
        assert_eq!(http.ask("PUT", target, next).await.status, 400);
        turmoil::partition("service", "owner");
        let cut_off = turmoil::elapsed();
        assert_eq!(http.ask("PUT", target, next).await.text(), "metadata updated");
        let waited = turmoil::elapsed() - cut_off;
        assert!(waited < 2 * PROBE_LIMIT, "{waited:?}");
        turmoil::repair("service", "owner");
        assert_eq!(http.ask("GET", target, b"").await.body, next);
        Ok(())
    });
    sim.run().unwrap();
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(16))]

    #[test]
    fn any_key_round_trips(keys in proptest::collection::vec("\\PC{1,40}", 1..8), value in proptest::collection::vec(any::<u8>(), 0..100)) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let (_service, _running, client) = serve().await;
            for (n, key) in keys.iter().enumerate() {
                // Each write must be visible under exactly its own key, for any characters in the
                // key.
                let key = format!("{n}{key}");
                let value = Bytes::from([value.as_slice(), n.to_string().as_bytes()].concat());
                client.put(&key, value.clone()).await.unwrap();
                assert_eq!(client.get(&key).await.unwrap(), Some(value));
                assert!(client.remove(&key).await.unwrap());
                assert_eq!(client.get(&key).await.unwrap(), None);
            }
        });
    }
}
