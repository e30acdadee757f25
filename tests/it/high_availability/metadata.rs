//! The embedded metadata service of several masters: the records survive the leader, and each
//! master answers.

use nix::sys::signal::Signal;

use super::ClusterMaster;
use crate::cli::command;
use crate::cli::service::{Service, get, put};
use crate::etcd::EtcdProcess;
use crate::peer::process::{PATIENCE, free_port, wait_until};

/// A master, and the port of its metadata service.
struct Member {
    master: ClusterMaster,
    metadata: u16,
}

impl Member {
    fn start(etcd: &EtcdProcess, more: &[&str]) -> Member {
        let metadata = free_port();
        let port = metadata.to_string();
        let flags = ["--enable_http_metadata_server", "--http_metadata_server_host=127.0.0.1"];
        let flags = [&flags, &["--http_metadata_server_port", &port], more].concat();
        let master = ClusterMaster::start_at(etcd, free_port(), free_port(), &flags);
        Member { master, metadata }
    }

    fn put(&self, key: &str, value: &str) -> u16 {
        put(self.metadata, &format!("/metadata?key={key}"), value)
    }

    fn get(&self, key: &str) -> (u16, String) {
        get(self.metadata, &format!("/metadata?key={key}"))
    }

    fn has(&self, records: &[(String, String)]) {
        for (key, value) in records {
            assert_eq!(self.get(key), (200, value.clone()), "{key}");
        }
    }
}

async fn survive(signal: Signal, flags: [&[&str]; 2]) {
    let etcd = EtcdProcess::start(&[]).await;
    let mut leader = Member::start(&etcd, flags[0]);
    leader.master.wait("a leader", |status| status["serving"] == true);
    let standby = Member::start(&etcd, flags[1]);
    standby.master.wait("a standby in sync", |status| status["in_sync"] == true);
    let mut records = Vec::new();
    for nth in 0..20 {
        let (key, value) = (format!("mooncake/ram/node-{nth}"), format!("{{\"n\":{nth}}}"));
        let at = if nth % 2 == 0 { &leader } else { &standby };
        assert_eq!(at.put(&key, &value), 200, "{key}");
        records.push((key, value));
    }
    // A record that was written at one master is found at the other one at once.
    leader.has(&records);
    standby.has(&records);
    assert_eq!(standby.get("missing").0, 404);
    leader.master.service.stop(signal);
    assert_eq!(get(standby.metadata, "/health").0, 200);
    // Nothing waits for the election: the copy is read meanwhile.
    standby.has(&records);
    assert_eq!(standby.get("missing").0, 404);
    wait_until("a write", PATIENCE, || standby.put("after", "1") == 200);
    standby.master.wait("the standby to lead", |status| status["serving"] == true);
    records.push(("after".to_owned(), "1".to_owned()));
    standby.has(&records);
    let third = Member::start(&etcd, &[]);
    third.master.wait("a new standby in sync", |status| status["in_sync"] == true);
    third.has(&records);
    assert_eq!(third.put("after", "2"), 200);
    assert_eq!(standby.get("after"), (200, "2".to_owned()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs etcd: .ci/run etcd"]
async fn records_survive_a_leader_that_is_killed() {
    survive(Signal::SIGKILL, [&[], &[]]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs etcd: .ci/run etcd"]
async fn records_survive_a_leader_that_is_stopped() {
    let root = tempfile::tempdir().unwrap();
    let dirs = ["a", "b"].map(|name| format!("--data-dir={}", root.path().join(name).display()));
    survive(Signal::SIGTERM, [&[&dirs[0]], &[&dirs[1]]]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs etcd: .ci/run etcd"]
async fn records_survive_a_restart_of_all_masters() {
    let etcd = EtcdProcess::start(&[]).await;
    let root = tempfile::tempdir().unwrap();
    let dir = format!("--data-dir={}", root.path().join("a").display());
    let mut only = Member::start(&etcd, &[&dir]);
    only.master.wait("a leader", |status| status["serving"] == true);
    assert_eq!(only.put("key", "value"), 200);
    only.master.service.stop(Signal::SIGKILL);
    let again = Member::start(&etcd, &[&dir]);
    again.master.wait("a leader", |status| status["serving"] == true);
    assert_eq!(again.get("key"), (200, "value".to_owned()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs etcd: .ci/run etcd"]
async fn a_proxy_finds_the_master_that_answers() {
    let etcd = EtcdProcess::start(&[]).await;
    let mut leader = Member::start(&etcd, &[]);
    leader.master.wait("a leader", |status| status["serving"] == true);
    let standby = Member::start(&etcd, &[]);
    standby.master.wait("a standby in sync", |status| status["in_sync"] == true);
    let targets = format!("--forward-to=127.0.0.1:{},127.0.0.1:{}", standby.metadata, leader.metadata);
    let mut proxy = Service::start(command(&["serve", "metadata", "--host=127.0.0.1", "--port=0", &targets]));
    let port = proxy.port_after("http://127.0.0.1:");
    assert_eq!(put(port, "/metadata?key=key", "value"), 200);
    leader.master.service.signal(Signal::SIGSTOP);
    // The standby is asked first. It answers from its copy before the proxy's time is over.
    assert_eq!(get(port, "/metadata?key=key"), (200, "value".to_owned()));
    leader.master.service.signal(Signal::SIGCONT);
    wait_until("a write", PATIENCE, || put(port, "/metadata?key=key", "later") == 200);
    leader.master.service.stop(Signal::SIGKILL);
    assert_eq!(get(port, "/metadata?key=key"), (200, "later".to_owned()));
    wait_until("a write", PATIENCE, || put(port, "/metadata?key=key", "last") == 200);
    assert_eq!(get(port, "/metadata?key=key"), (200, "last".to_owned()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs etcd: .ci/run etcd"]
async fn a_paused_leader_does_not_block_reads() {
    let etcd = EtcdProcess::start(&[]).await;
    let leader = Member::start(&etcd, &[]);
    leader.master.wait("a leader", |status| status["serving"] == true);
    let standby = Member::start(&etcd, &[]);
    standby.master.wait("a standby in sync", |status| status["in_sync"] == true);
    assert_eq!(standby.put("key", "value"), 200);
    leader.master.service.signal(Signal::SIGSTOP);
    assert_eq!(standby.get("key"), (200, "value".to_owned()));
    wait_until("a write", PATIENCE, || standby.put("key", "later") == 200);
    leader.master.service.signal(Signal::SIGCONT);
    // The former leader forwards: its own record is old.
    wait_until("the former leader to answer", PATIENCE, || leader.get("key").0 == 200);
    assert_eq!(leader.get("key"), (200, "later".to_owned()));
}
