//! The etcd client against a real etcd. These tests need `/usr/bin/etcd` (Debian: `etcd-server`),
//! so `.ci/run` runs them by name.

use std::fs::File;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use mcctl::engine::base::HostPort;
use mcctl::engine::election::{self, ElectionBackend, ElectionWatch, EtcdElection};
use mcctl::engine::env::RealEnv;
use mcctl::engine::etcd::{
    EtcdClient, EtcdCompare, EtcdError, EtcdEvent, EtcdOp, EtcdOptions, EtcdTxn, EtcdTxnResult, EtcdUser,
};
use mcctl::engine::ha::{ElectionTxn, HandOverTxn, LeaderKey, MemberId, MemberInfo, SyncRecord, SyncTxn, TxnOutcome};
use mcctl::engine::http::Fetcher;
use mcctl::engine::http::tls::{PemIdentity, client_config};
use mcctl::engine::metadata::{CallLimits, MetadataClient};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tempfile::TempDir;

use crate::peer::process::{PATIENCE, free_port};

const LIMIT: Duration = Duration::from_secs(2);

/// An etcd server on loopback. Dropping it ends it.
pub struct EtcdProcess {
    child: Child,
    pub port: u16,
    data: TempDir,
}

impl EtcdProcess {
    pub async fn start(args: &[&str]) -> EtcdProcess {
        let port = free_port();
        let peer = free_port();
        let data = tempfile::tempdir().unwrap();
        let client_url = format!("http://127.0.0.1:{port}");
        let peer_url = format!("http://127.0.0.1:{peer}");
        let child = Command::new("/usr/bin/etcd")
            .args(["--name", "t", "--data-dir"])
            .arg(data.path())
            .args(["--listen-client-urls", &client_url, "--advertise-client-urls", &client_url])
            .args(["--listen-peer-urls", &peer_url, "--initial-advertise-peer-urls", &peer_url])
            .args(["--initial-cluster", &format!("t={peer_url}")])
            .args(args)
            .stdout(Stdio::null())
            .stderr(File::create(data.path().join("log")).unwrap())
            .spawn()
            .expect("/usr/bin/etcd is installed");
        let mut process = EtcdProcess { child, port, data };
        if !args.is_empty() {
            return process;
        }
        let end = Instant::now() + PATIENCE;
        while process.client().get("k").await.is_err() {
            let exited = process.child.try_wait().unwrap();
            if exited.is_some() || Instant::now() > end {
                let log = std::fs::read_to_string(process.data.path().join("log")).unwrap();
                panic!("etcd does not respond (exit {exited:?}): {log}");
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        process
    }

    pub fn client(&self) -> EtcdClient {
        EtcdClient::new(EtcdOptions::parse(&format!("127.0.0.1:{}", self.port), LIMIT).unwrap()).unwrap()
    }

    pub fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.child.id().cast_signed()), signal).unwrap();
    }
}

impl Drop for EtcdProcess {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn create(key: &str, value: &str, lease: i64) -> EtcdTxn {
    EtcdTxn {
        compare: vec![EtcdCompare::CreateRevision(key.to_owned(), 0)],
        success: vec![EtcdOp::Put { key: key.to_owned(), value: value.as_bytes().to_vec(), lease }],
        failure: vec![EtcdOp::Get(key.to_owned())],
    }
}

#[tokio::test]
#[ignore = "needs etcd: .ci/run etcd"]
async fn a_key_is_created_once_and_ends_with_its_lease() {
    let etcd = EtcdProcess::start(&[]).await;
    let client = etcd.client();
    let (lease, ttl) = client.grant_lease(Duration::from_secs(2)).await.unwrap();
    assert_eq!(ttl, Duration::from_secs(2));
    let mut watch = client.watch("mooncake-store/", 0).await.unwrap();
    assert_eq!(watch.next().await.unwrap(), []);
    let EtcdTxnResult { succeeded, revision, .. } =
        client.txn(&create("mooncake-store/c/master_view", "a:1", lease)).await.unwrap();
    assert!(succeeded);
    let second = client.txn(&create("mooncake-store/c/master_view", "b:1", 0)).await.unwrap();
    assert!(!second.succeeded);
    assert_eq!((&second.reads[0][0].value[..], second.reads[0][0].create_revision), (&b"a:1"[..], revision));
    assert!(client.keep_alive(lease).await.unwrap());
    let events = watch.next().await.unwrap();
    assert!(matches!(&events[..], [EtcdEvent::Put(pair)] if pair.create_revision == revision && pair.lease == lease));
    client.revoke_lease(lease).await.unwrap();
    client.revoke_lease(lease).await.unwrap();
    let events = watch.next().await.unwrap();
    assert!(matches!(&events[..], [EtcdEvent::Delete(pair)] if pair.mod_revision > revision));
    assert!(!client.keep_alive(lease).await.unwrap());
    assert!(client.get_prefix("mooncake-store/", 10).await.unwrap().pairs.is_empty());
}

#[tokio::test]
#[ignore = "needs etcd: .ci/run etcd"]
async fn a_comparison_with_the_mod_revision_and_the_value_protects_a_key() {
    let etcd = EtcdProcess::start(&[]).await;
    let client = etcd.client();
    let revision = client.txn(&create("k", "1", 0)).await.unwrap().revision;
    let put = |value: &str| EtcdOp::Put { key: "k".to_owned(), value: value.as_bytes().to_vec(), lease: 0 };
    let update =
        |compare: Vec<EtcdCompare>, value: &str| EtcdTxn { compare, success: vec![put(value)], failure: Vec::new() };
    let at = |revision| EtcdCompare::ModRevision("k".to_owned(), revision);
    let is = |value: &str| EtcdCompare::Value("k".to_owned(), value.as_bytes().to_vec());
    assert!(!client.txn(&update(vec![at(revision), is("2")], "3")).await.unwrap().succeeded);
    assert!(client.txn(&update(vec![at(revision), is("1")], "3")).await.unwrap().succeeded);
    assert!(!client.txn(&update(vec![at(revision)], "4")).await.unwrap().succeeded);
    assert_eq!(client.get("k").await.unwrap().pairs[0].value, b"3");
}

#[tokio::test]
#[ignore = "needs etcd: .ci/run etcd"]
async fn a_server_that_does_not_respond_leaves_the_outcome_unknown() {
    let etcd = EtcdProcess::start(&[]).await;
    let client = etcd.client();
    etcd.signal(Signal::SIGSTOP);
    let error = client.txn(&create("k", "1", 0)).await.unwrap_err();
    assert!(matches!(error, EtcdError::Timeout(_)) && error.outcome_is_unknown(), "{error:?}");
    etcd.signal(Signal::SIGCONT);
    // The transaction may still be performed, so the watch is of another key.
    let mut watch = client.watch("other", 0).await.unwrap();
    watch.next().await.unwrap();
    drop(etcd);
    assert!(matches!(watch.next().await, Err(EtcdError::WatchEnded(_))));
    let error = client.get("k").await.unwrap_err();
    assert!(matches!(error, EtcdError::Unreachable(_)) && !error.outcome_is_unknown(), "{error:?}");
}

#[tokio::test]
#[ignore = "needs etcd: .ci/run etcd"]
async fn another_server_is_used_if_the_first_is_away() {
    let etcd = EtcdProcess::start(&[]).await;
    let closed = free_port();
    let list = format!("etcd://127.0.0.1:{closed};127.0.0.1:{}", etcd.port);
    let client = EtcdClient::new(EtcdOptions::parse(&list, LIMIT).unwrap()).unwrap();
    assert!(client.txn(&create("k", "1", 0)).await.unwrap().succeeded);
    assert_eq!(client.get("k").await.unwrap().pairs.len(), 1);
    assert!(client.watch("k", 0).await.is_ok());
}

#[tokio::test]
#[ignore = "needs etcd: .ci/run etcd"]
async fn a_user_logs_in_and_a_wrong_password_is_refused() {
    let etcd = EtcdProcess::start(&[]).await;
    let at = format!("http://127.0.0.1:{}/v3/auth", etcd.port);
    let http = Fetcher::new(false, LIMIT, 1 << 20).unwrap();
    for (path, body) in [
        ("user/add", r#"{"name":"root","password":"right"}"#),
        ("role/add", r#"{"name":"root"}"#),
        ("user/grant", r#"{"user":"root","role":"root"}"#),
        ("enable", "{}"),
    ] {
        assert!(http.post(&format!("{at}/{path}"), body.to_owned()).await.unwrap().is_ok(), "{path}");
    }
    let with = |password: &str| {
        let mut options = EtcdOptions::parse(&format!("127.0.0.1:{}", etcd.port), LIMIT).unwrap();
        options.user = Some(EtcdUser { name: "root".to_owned(), password: password.to_owned() });
        EtcdClient::new(options).unwrap()
    };
    assert!(matches!(etcd.client().get("k").await, Err(EtcdError::Refused { .. })));
    assert!(matches!(with("wrong").get("k").await, Err(EtcdError::Refused { .. })));
    let client = with("right");
    assert!(client.txn(&create("k", "1", 0)).await.unwrap().succeeded);
    let mut watch = client.watch("k", 1).await.unwrap();
    watch.next().await.unwrap();
}

#[tokio::test]
#[ignore = "needs etcd: .ci/run etcd"]
async fn a_server_without_the_gateway_is_named() {
    let etcd = EtcdProcess::start(&["--enable-grpc-gateway=false"]).await;
    for _ in 0..300 {
        match etcd.client().get("k").await {
            Err(EtcdError::Unreachable(_)) => tokio::time::sleep(Duration::from_millis(50)).await,
            other => {
                assert!(matches!(other, Err(EtcdError::NoGateway(_))), "{other:?}");
                return;
            }
        }
    }
    panic!("etcd does not respond");
}

fn member(id: u64) -> MemberInfo {
    MemberInfo { id: MemberId(id), rpc: HostPort::new("host", 1), replication: HostPort::new("host", 2) }
}

#[tokio::test]
#[ignore = "needs etcd: .ci/run etcd"]
async fn an_election_is_decided_by_both_records() {
    let etcd = EtcdProcess::start(&[]).await;
    let election = EtcdElection::new(etcd.client(), election::cluster_name("c/"));
    assert_eq!(election.leader_key(), "mooncake-store/c/master_view");
    let before = election.observe().await.unwrap();
    assert!(before.leader.is_none() && before.sync_revision() == 0);
    let mut watch = election.watch().await.unwrap();
    watch.changed().await.unwrap();

    let lease = election.grant_lease(LIMIT).await.unwrap();
    let stand = |id: u64, expected_sync: u64| ElectionTxn {
        address: format!("host:{id}"),
        lease,
        expected_sync,
        sync: SyncRecord::alone(&member(id), 7),
    };
    assert_eq!(election.elect(&stand(1, 3)).await, TxnOutcome::Refused);
    let TxnOutcome::Done(view) = election.elect(&stand(1, 0)).await else { panic!("the first one is elected") };
    watch.changed().await.unwrap();
    assert_eq!(election.elect(&stand(2, view)).await, TxnOutcome::Refused);
    let seen = election.observe().await.unwrap();
    assert_eq!(seen.leader, Some(LeaderKey { address: "host:1".to_owned(), view, lease }));
    assert_eq!(seen.sync, Some((SyncRecord::alone(&member(1), 7), view)));

    let mut sync = SyncRecord::alone(&member(1), 7);
    sync.in_sync = vec![MemberId(2)];
    sync.alone_since = None;
    let write = |view, expected_sync| SyncTxn {
        view,
        address: "host:1".to_owned(),
        expected_sync,
        sync: sync.clone(),
        lease: None,
    };
    assert_eq!(election.write_sync(&write(view + 1, view)).await, TxnOutcome::Refused);
    let TxnOutcome::Done(written) = election.write_sync(&write(view, view)).await else { panic!("written") };
    assert_eq!(election.write_sync(&write(view, view)).await, TxnOutcome::Refused);

    let handed_over = SyncRecord { handed_over: true, ..sync.clone() };
    let delete = |view, nth, expected_sync| HandOverTxn {
        view,
        address: format!("host:{nth}"),
        expected_sync,
        sync: handed_over.clone(),
    };
    assert_eq!(election.delete_key(&delete(view, 2, written)).await, TxnOutcome::Refused);
    assert_eq!(election.delete_key(&delete(view, 1, view)).await, TxnOutcome::Refused, "the record was changed");
    assert!(election.renew_lease(lease).await.unwrap());
    election.revoke_lease(lease).await.unwrap();
    assert!(!election.renew_lease(lease).await.unwrap());
    let seen = election.observe().await.unwrap();
    assert!(seen.leader.is_none() && seen.sync_revision() == written);
    let lease = election.grant_lease(LIMIT).await.unwrap();
    assert!(matches!(election.elect(&ElectionTxn { lease, ..stand(2, written) }).await, TxnOutcome::Done(_)));
    let view = election.observe().await.unwrap().leader.unwrap().view;
    let TxnOutcome::Done(deleted) = election.delete_key(&delete(view, 2, view)).await else { panic!("deleted") };
    let seen = election.observe().await.unwrap();
    assert_eq!((seen.leader, seen.sync), (None, Some((handed_over, deleted))));
}

/// Prints how long it takes until a watch reports a put. Asserts no time.
#[tokio::test]
#[ignore = "needs etcd: .ci/run etcd"]
async fn a_watch_reports_each_put() {
    let etcd = EtcdProcess::start(&[]).await;
    let client = etcd.client();
    let writer = etcd.client();
    let mut watch = client.watch("k", 0).await.unwrap();
    watch.next().await.unwrap();
    let mut reported = Vec::new();
    let mut written = Vec::new();
    for _ in 0..200 {
        let put = EtcdTxn {
            success: vec![EtcdOp::Put { key: "k".to_owned(), value: b"v".to_vec(), lease: 0 }],
            ..EtcdTxn::default()
        };
        let began = std::time::Instant::now();
        let (done, events) = tokio::join!(
            async {
                let done = writer.txn(&put).await.unwrap();
                (done, began.elapsed())
            },
            async { (watch.next().await.unwrap(), began.elapsed()) }
        );
        assert_eq!(events.0.len(), 1);
        assert!(done.0.succeeded);
        written.push(done.1);
        reported.push(events.1);
    }
    reported.sort_unstable();
    written.sort_unstable();
    println!(
        "put: p50 {:?}, p99 {:?}; until the watch reports it: p50 {:?}, p99 {:?}",
        written[100], written[198], reported[100], reported[198]
    );
}

/// Number of transactions that etcd has received. A client reads both records of the election in
/// one.
async fn transactions(etcd: &EtcdProcess) -> u64 {
    let metrics = Fetcher::new(false, LIMIT, 1 << 20).unwrap();
    let metrics = metrics.get(&format!("http://127.0.0.1:{}/metrics", etcd.port)).await.unwrap();
    let is_count = |line: &&str| line.starts_with("grpc_server_started_total{") && line.contains("grpc_method=\"Txn\"");
    let line = metrics.body.lines().find(is_count).expect("the metric").to_owned();
    line.rsplit(' ').next().unwrap().parse::<f64>().unwrap() as u64
}

#[tokio::test]
#[ignore = "needs etcd: .ci/run etcd"]
async fn a_followed_leader_is_reported_by_the_watch_and_hardly_read() {
    let etcd = EtcdProcess::start(&[]).await;
    let election = EtcdElection::new(etcd.client(), "c");
    let key = election.leader_key().to_owned();
    let mut followed = election::follow(RealEnv::new(), election).await.unwrap();
    assert_eq!((followed.first, followed.leader.borrow().clone()), (None, None));
    let before = transactions(&etcd).await;
    tokio::time::sleep(Duration::from_secs(3)).await;
    let reads = transactions(&etcd).await - before;
    assert!(reads <= 3, "{reads} reads in 3 s while no master leads");
    for (value, leader) in [
        ("10.0.0.1:1", Some(HostPort::new("10.0.0.1", 1))),
        ("__mooncake_service_warming__:7", None),
        ("10.0.0.2:1", Some(HostPort::new("10.0.0.2", 1))),
    ] {
        let put = EtcdOp::Put { key: key.clone(), value: value.as_bytes().to_vec(), lease: 0 };
        etcd.client().txn(&EtcdTxn { success: vec![put], ..EtcdTxn::default() }).await.unwrap();
        let seen = tokio::time::timeout(LIMIT, followed.leader.wait_for(|now| *now == leader)).await;
        assert!(seen.is_ok(), "{value} is not reported");
    }
    // A watch reports all keys that begin with this one.
    let other = EtcdOp::Put { key: format!("{key}s"), value: b"10.0.0.4:1".to_vec(), lease: 0 };
    etcd.client().txn(&EtcdTxn { success: vec![other], ..EtcdTxn::default() }).await.unwrap();
    let delete = EtcdOp::Delete(key.clone());
    etcd.client().txn(&EtcdTxn { success: vec![delete], ..EtcdTxn::default() }).await.unwrap();
    let next = tokio::time::timeout(LIMIT, followed.leader.changed()).await;
    assert!(next.is_ok() && followed.leader.borrow().is_none(), "{:?}", followed.leader.borrow());
    // The watch ends with etcd. The key is then read again.
    etcd.signal(Signal::SIGSTOP);
    tokio::time::sleep(Duration::from_millis(200)).await;
    etcd.signal(Signal::SIGCONT);
    let put = EtcdOp::Put { key, value: b"10.0.0.3:1".to_vec(), lease: 0 };
    etcd.client().txn(&EtcdTxn { success: vec![put], ..EtcdTxn::default() }).await.unwrap();
    let third = Some(HostPort::new("10.0.0.3", 1));
    assert!(tokio::time::timeout(5 * LIMIT, followed.leader.wait_for(|now| *now == third)).await.is_ok());
}

#[tokio::test]
#[ignore = "needs etcd: .ci/run etcd"]
async fn a_server_with_certificates_accepts_only_a_client_with_one() {
    let folder = tempfile::tempdir().unwrap();
    // One self-signed certificate for both sides, which each trusts.
    let made = rcgen::generate_simple_self_signed(vec!["localhost".to_owned(), "127.0.0.1".to_owned()]).unwrap();
    let certificate = made.cert.pem();
    let key = made.signing_key.serialize_pem();
    let path = |name: &str, text: &str| {
        let path = folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let certificate_file = path("cert.pem", &certificate);
    let key_file = path("key.pem", &key);
    let port = free_port();
    let url = format!("https://127.0.0.1:{port}");
    let _etcd = EtcdProcess::start(&[
        "--listen-client-urls",
        &url,
        "--advertise-client-urls",
        &url,
        "--cert-file",
        &certificate_file,
        "--key-file",
        &key_file,
        "--trusted-ca-file",
        &certificate_file,
        "--client-cert-auth",
    ])
    .await;
    let with = |identity: bool| {
        let mut options = EtcdOptions::parse(&url, LIMIT).unwrap();
        let pem = PemIdentity { certificates: certificate.as_bytes(), key: key.as_bytes() };
        options.tls = Some(Box::new(client_config(certificate.as_bytes(), identity.then_some(pem)).unwrap()));
        EtcdClient::new(options).unwrap()
    };
    let client = with(true);
    let mut last = String::new();
    for _ in 0..200 {
        match client.txn(&create("k", "1", 0)).await {
            Ok(_) => break,
            Err(error) => last = error.to_string(),
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert_eq!(client.get("k").await.map(|found| found.pairs.len()).unwrap_or_default(), 1, "{last}");
    assert!(with(false).get("k").await.is_err(), "a client certificate is required");
}

#[tokio::test]
#[ignore = "needs etcd: .ci/run etcd"]
async fn records_of_segments_are_written_read_and_removed() {
    let etcd = EtcdProcess::start(&[]).await;
    let client = MetadataClient::within(&format!("etcd://127.0.0.1:{}", etcd.port), CallLimits::default()).unwrap();
    let key = "mooncake/ram/node-1:12345";
    assert_eq!(client.get(key).await.unwrap(), None);
    client.put(key, "{\"name\":1}\n".into()).await.unwrap();
    assert_eq!(client.get(key).await.unwrap().unwrap(), "{\"name\":1}\n");
    assert_eq!(etcd.client().get(key).await.unwrap().pairs[0].value, b"{\"name\":1}\n");
    assert!(client.remove(key).await.unwrap() && !client.remove(key).await.unwrap());
    etcd.signal(Signal::SIGKILL);
    let error = client.get(key).await.unwrap_err();
    assert!(error.is_retryable() && error.to_string().contains(key), "{error}");
}
