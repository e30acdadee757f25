//! mcctl's metadata service and client against the real ones.

use std::path::Path;
use std::process::Command;

use mcctl::engine::metadata::{KeySpace, MetadataClient};

use super::cluster::{Make, Master, Metadata};
use super::process::{PATIENCE, Process, free_port, http, http_get, run, wait_until, wait_until_async};
use super::wheel::{mcctl, wheel};

fn service(dir: &Path) -> (Process, u16) {
    let port = free_port();
    (service_at(port, dir, &[]), port)
}

fn service_at(port: u16, dir: &Path, more: &[&str]) -> Process {
    let mut command = mcctl();
    command.args(["serve", "metadata", "--host", "127.0.0.1", "--port", &port.to_string()]).args(more);
    let mut service = Process::start("metadata", command, dir);
    service.wait_port(port);
    service
}

/// Transfers bytes between a real initiator and the target `target:1`.
fn move_bytes(operation: &str, url: &str, dir: &Path) {
    let flags =
        ["--segment_id=target:1", "--duration=1", "--threads=1", "--batch_size=2", "--block_size=65536", operation];
    let (status, log) = run("initiator", bench("initiator", "initiator", url, &flags), dir, PATIENCE);
    assert!(status.success() && log.contains("Test completed"), "{log}");
}

fn bench(mode: &str, name: &str, url: &str, more: &[&str]) -> Command {
    let mut command = wheel().program("transfer_engine_bench");
    command
        .env("MC_TCP_BIND_ADDRESS", "127.0.0.1")
        .arg(format!("--mode={mode}"))
        .arg(format!("--metadata_server={url}"))
        .arg(format!("--local_server_name={name}"))
        .args(["--protocol=tcp", "--buffer_size=16777216"])
        .args(more);
    command
}

/// Whether the service has a record of `key` that contains `text`.
fn has(port: u16, key: &str, text: &str) -> bool {
    http_get(port, &format!("/metadata?key={key}")).is_ok_and(|(status, body)| status == 200 && body.contains(text))
}

/// A fixed list of requests to a service, each with status and body.
fn key_answers(port: u16) -> Vec<(String, u16, String)> {
    let mut answers = Vec::new();
    let mut ask = |method: &str, query: &str, body: &str| {
        let (status, text) = http(port, method, &format!("/metadata{query}"), body).unwrap();
        answers.push((format!("{method} {query}"), status, text));
    };
    for query in
        ["", "?key", "?key=", "?key=%20", "?key=+", "?key=%09%0A", "?key=%C2%A0", "?key=%1C", "?KEY=a", "?key=&key=a"]
    {
        for method in ["GET", "PUT", "DELETE"] {
            ask(method, query, "v");
        }
    }
    ask("PUT", "?key=%20a%20", "spaces");
    for query in ["?key=a", "?key=+a+", "?key=%09a%0A", "?key=a+b", "?x=1&key=a", "?key=b&key=a"] {
        ask("GET", query, "");
    }
    ask("PUT", "?key=a+b", "plus");
    for query in ["?key=a%20b", "?key=a%2Bb", "?key=a%00"] {
        ask("GET", query, "");
    }
    ask("PUT", "?key=%20m/rpc_meta/x%20", "1");
    ask("PUT", "?key=m/rpc_meta/x", "2");
    ask("DELETE", "?key=%20a", "");
    ask("GET", "?key=a", "");
    answers
}

#[test]
#[cfg_attr(peers_off, ignore = "needs the Mooncake wheel")]
fn the_stand_alone_service_reads_keys_like_the_real_one() {
    let dir = tempfile::tempdir().unwrap();
    let (_ours, ours) = service(dir.path());
    let real = free_port();
    let mut command = wheel().python();
    command.args(["-m", "mooncake.http_metadata_server", "--host", "127.0.0.1", "--port", &real.to_string()]);
    let mut process = Process::start("real", command, dir.path());
    process.wait_port(real);
    for (ours, real) in key_answers(ours).into_iter().zip(key_answers(real)) {
        assert_eq!(ours, real);
    }
}

#[test]
#[cfg_attr(peers_off, ignore = "needs the Mooncake wheel")]
fn the_embedded_service_refuses_the_same_keys_as_the_real_one() {
    let dir = tempfile::tempdir().unwrap();
    let refused = |make| {
        let master = Master::start(make, dir.path(), &[]);
        ["", "?key", "?key=", "?key=%20", "?KEY=a", "?key=a"]
            .map(|query| http(master.metadata, "PUT", &format!("/metadata{query}"), "v").unwrap())
    };
    assert_eq!(refused(Make::Ours), refused(Make::Real));
}

#[test]
#[cfg_attr(peers_off, ignore = "needs the Mooncake wheel")]
fn real_engines_use_our_service_and_a_restarted_one_keeps_its_name() {
    let dir = tempfile::tempdir().unwrap();
    let (_service, port) = service(dir.path());
    let url = format!("http://127.0.0.1:{port}/metadata");
    let start = || {
        let target = Process::start("target", bench("target", "target:1", &url, &[]), dir.path());
        wait_until("the target to publish its memory", PATIENCE, || has(port, "mooncake%2Fram%2Ftarget%3A1", "addr"));
        target
    };
    let mut target = start();
    move_bytes("--operation=write", &url, dir.path());
    // While it is alive it keeps its name: the service checks with a handshake.
    let other = "{\"ip_or_host_name\":\"127.0.0.1\",\"rpc_port\":1}";
    let refused = http(port, "PUT", "/metadata?key=mooncake%2Frpc_meta%2Ftarget%3A1", other).unwrap();
    assert_eq!(refused, (400, "Duplicate rpc_meta key not allowed".to_owned()));
    target.kill();
    let stale = http_get(port, "/metadata?key=mooncake%2Frpc_meta%2Ftarget%3A1").unwrap();
    assert_eq!(stale.0, 200);

    // The descriptor of the killed engine is removed with its name, so the new descriptor has only
    // the new engine's buffers.
    let mut target = Process::start("target", bench("target", "target:1", &url, &[]), dir.path());
    wait_until("the name to change hands", PATIENCE, || {
        let now = http_get(port, "/metadata?key=mooncake%2Frpc_meta%2Ftarget%3A1").unwrap();
        now.0 == 200 && now.1 != stale.1 && has(port, "mooncake%2Fram%2Ftarget%3A1", "addr")
    });
    let (_, descriptor) = http_get(port, "/metadata?key=mooncake/ram/target:1").unwrap();
    let descriptor: serde_json::Value = serde_json::from_str(&descriptor).unwrap();
    assert_eq!(descriptor["buffers"].as_array().unwrap().len(), 1, "{descriptor}");
    move_bytes("--operation=read", &url, dir.path());
    assert!(!target.log().contains("Duplicate"), "{}", target.log());
    target.stop();
}

/// The records outlive the first service in its data directory, as they do in a standby.
#[test]
#[cfg_attr(peers_off, ignore = "needs the Mooncake wheel")]
fn real_engines_use_the_next_service_through_a_proxy() {
    let dir = tempfile::tempdir().unwrap();
    let data = format!("--data-dir={}", dir.path().join("data").display());
    let (first, second, proxy) = (free_port(), free_port(), free_port());
    let targets = format!("--forward-to=127.0.0.1:{first},127.0.0.1:{second}");
    let mut service = service_at(first, dir.path(), &[&data]);
    let _proxy = service_at(proxy, dir.path(), &[&targets]);
    let url = format!("http://127.0.0.1:{proxy}/metadata");
    let mut target = Process::start("target", bench("target", "target:1", &url, &[]), dir.path());
    wait_until("the target's record", PATIENCE, || has(first, "mooncake%2Fram%2Ftarget%3A1", "addr"));
    move_bytes("--operation=write", &url, dir.path());
    service.kill();
    let _service = service_at(second, dir.path(), &[&data]);
    move_bytes("--operation=read", &url, dir.path());
    assert!(has(second, "mooncake%2Fram%2Ftarget%3A1", "addr"));
    assert!(target.runs());
    target.stop();
}

#[tokio::test]
#[cfg_attr(peers_off, ignore = "needs the Mooncake wheel")]
async fn real_engines_send_the_token_in_the_url() {
    let dir = tempfile::tempdir().unwrap();
    let token = "writer-0123456789abcdef";
    let tokens = dir.path().join("tokens");
    std::fs::write(&tokens, format!("write {token}\n")).unwrap();
    let port = free_port();
    let mut command = mcctl();
    command.args(["serve", "metadata", "--bind=127.0.0.1", "--port", &port.to_string()]);
    command.arg("--token-file").arg(tokens);
    let mut service = Process::start("metadata", command, dir.path());
    service.wait_port(port);
    let url = format!("http://any:{token}@127.0.0.1:{port}/metadata");
    assert_eq!(http_get(port, "/metadata?key=a").unwrap().0, 401);
    let client = MetadataClient::http(&url).unwrap();
    let _target = Process::start("target", bench("target", "real:1", &url, &[]), dir.path());
    wait_until_async("the engine's record", PATIENCE, async || {
        client.get(&KeySpace::new(None).ram_key("real:1")).await.unwrap().is_some()
    })
    .await;
    assert!(!service.log().contains(token), "{}", service.log());
}

#[test]
#[cfg_attr(peers_off, ignore = "needs the Mooncake wheel")]
fn our_client_and_the_real_server_use_the_same_keys() {
    let dir = tempfile::tempdir().unwrap();
    let master = Master::start(Make::Real, dir.path(), &[]);
    let url = master.metadata(Metadata::Http);
    let keys = KeySpace::new(None);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let client = MetadataClient::http(&url).unwrap();
        for name in ["plain", "host:1", "[fe80::1%eth0]:5", "a b+c/d&e=f?", "\u{e9}"] {
            let key = keys.ram_key(name);
            client.put(&key, name.as_bytes().to_vec().into()).await.unwrap();
            assert_eq!(client.get(&key).await.unwrap().as_deref(), Some(name.as_bytes()), "{name}");
            assert!(client.remove(&key).await.unwrap(), "{name}");
            assert_eq!(client.get(&key).await.unwrap(), None, "{name}");
        }
        let name = keys.rpc_meta_key("host:1");
        client.put(&name, "{\"a\":1}".into()).await.unwrap();
        client.put(&name, "{\"a\":1}".into()).await.unwrap();
        assert!(client.put(&name, "{\"a\":2}".into()).await.unwrap_err().is_duplicate());

        // A real engine's record is found under the key that mcctl uses.
        let _target = Process::start("target", bench("target", "real:1", &url, &[]), dir.path());
        let mut found = None;
        wait_until_async("the engine's record", PATIENCE, async || {
            found = client.get(&keys.ram_key("real:1")).await.unwrap();
            found.as_ref().is_some_and(|text| text.windows(4).any(|w| w == b"addr"))
        })
        .await;
        assert!(client.get(&keys.rpc_meta_key("real:1")).await.unwrap().is_some());
    });
}
