//! Masters of a cluster in one process, with real sockets and a simulated etcd.

mod data;
mod simulation;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use simulation::etcd::SimEtcd;

use crate::server::MasterData;
use crate::server::ha::{HaHub, HaSecret, HaSettings};
use crate::unit_tests::{T, hard_pinned, meta, segment};
use crate::view::{AdminView, HaView};
use crate::{DATA_FORMAT, MasterConfig, MasterHandle, MasterServer};
use mcctl_base::{ClientId, ErrorCode, HostPort};
use mcctl_election::ha::stage::HaStage;
use mcctl_election::ha::{
    CandidateOffer, ElectionTxn, HaConfig, HaCore, HaRole, HandOverProblem, HandOverTxn, MemberId, NotInSyncPolicy,
    Observation, OfferTxn, SyncTxn, TxnOutcome,
};
use mcctl_election::{ElectionBackend, ElectionError, ElectionWatch};
use mcctl_net::rpc::{Receipt, RpcClient, Timeouts, master_calls};
use mcctl_sys::env::{Env, Net, RealEnv};
use mcctl_wire::types::ReplicaType;
use mcctl_wire::types::SliceLength;

const CLIENT: ClientId = ClientId(1, 1);
/// Longer than a leader may answer without etcd.
const CLIENT_TTL: Duration = Duration::from_secs(4);

/// The state of a core after its last event.
#[derive(Clone, Debug, Default)]
pub(in crate::server::ha) struct HaProbe {
    pub member: MemberId,
    /// It is a candidate whose copy may lack changes. Its objects are dropped before it leads.
    pub is_dropping: bool,
    pub role: HaRole,
    pub stage: HaStage,
    /// The last change that this copy has acknowledged, over any stream.
    pub acknowledged: u64,
    /// The stages since they were last taken.
    stages: Vec<HaStage>,
}

impl HaHub {
    /// Stores the state of the core.
    pub(in crate::server::ha) fn note_core(&self, core: &HaCore) {
        let mut probe = self.probe.lock().unwrap();
        if std::mem::replace(&mut probe.member, core.me().id) != core.me().id {
            probe.acknowledged = 0;
        }
        probe.acknowledged = probe.acknowledged.max(core.acknowledged());
        probe.is_dropping = core.is_dropping();
        probe.role = core.role();
        let stage = core.stage();
        if std::mem::replace(&mut probe.stage, stage) != stage {
            probe.stages.push(stage);
        }
    }

    fn probe(&self) -> HaProbe {
        self.probe.lock().unwrap().clone()
    }

    fn take_stages(&self) -> Vec<HaStage> {
        std::mem::take(&mut self.probe.lock().unwrap().stages)
    }
}

/// Size of the node's memory: more than the puts of a test need while a standby joins on a busy
/// machine.
const SEGMENT_BYTES: u64 = 16 << 20;

/// An etcd in this process.
#[derive(Clone, Default)]
struct MemoryElection {
    etcd: Arc<Mutex<SimEtcd>>,
    changed: Arc<tokio::sync::Notify>,
    /// No request is answered.
    is_away: Arc<AtomicBool>,
    /// Leases last 600 s.
    are_leases_long: Arc<AtomicBool>,
}

impl MemoryElection {
    /// The end of a lease of `ttl` that is granted or renewed at `now`, in microseconds.
    fn lease_end(&self, now: u64, ttl: Duration) -> u64 {
        let ttl = if self.are_leases_long.load(Ordering::Relaxed) { Duration::from_secs(600) } else { ttl };
        now + u64::try_from(ttl.as_micros()).unwrap()
    }

    fn check(&self) -> Result<(), ElectionError> {
        let is_away = self.is_away.load(Ordering::Relaxed);
        if is_away { Err(ElectionError::Unavailable("away".to_owned())) } else { Ok(()) }
    }

    fn with<R>(&self, work: impl FnOnce(&mut SimEtcd, u64) -> R) -> R {
        let mut etcd = self.etcd.lock().unwrap();
        let now = RealEnv::new().now().0 / 1000;
        let before = etcd.observation();
        etcd.expire(now);
        let result = work(&mut etcd, now);
        if etcd.observation() != before {
            self.changed.notify_waiters();
        }
        result
    }
}

struct MemoryWatch(MemoryElection);

impl ElectionWatch for MemoryWatch {
    async fn changed(&mut self) -> Result<(), ElectionError> {
        self.0.changed.notified().await;
        Ok(())
    }
}

impl ElectionBackend for MemoryElection {
    type Watch = MemoryWatch;

    async fn observe(&self) -> Result<Observation, ElectionError> {
        self.check()?;
        Ok(self.with(|etcd, _| etcd.observation()))
    }

    async fn grant_lease(&self, ttl: Duration) -> Result<i64, ElectionError> {
        self.check()?;
        Ok(self.with(|etcd, now| etcd.grant(self.lease_end(now, ttl))))
    }

    async fn renew_lease(&self, lease: i64) -> Result<bool, ElectionError> {
        self.check()?;
        Ok(self.with(|etcd, now| etcd.renew(lease, self.lease_end(now, HaConfig::default().lease_ttl))))
    }

    async fn revoke_lease(&self, lease: i64) -> Result<(), ElectionError> {
        self.with(|etcd, _| etcd.revoke(lease));
        Ok(())
    }

    async fn elect(&self, txn: &ElectionTxn) -> TxnOutcome {
        if self.check().is_err() {
            return TxnOutcome::Unknown;
        }
        self.with(|etcd, _| etcd.elect(txn))
    }

    async fn offer(&self, txn: &OfferTxn) -> Result<Vec<(MemberId, CandidateOffer)>, ElectionError> {
        self.check()?;
        Ok(self.with(|etcd, _| etcd.offer(txn)))
    }

    async fn write_sync(&self, txn: &SyncTxn) -> TxnOutcome {
        self.with(|etcd, _| etcd.write_sync(txn))
    }

    async fn delete_key(&self, txn: &HandOverTxn) -> TxnOutcome {
        self.with(|etcd, _| etcd.delete_key(txn))
    }

    async fn watch(&self) -> Result<MemoryWatch, ElectionError> {
        Ok(MemoryWatch(self.clone()))
    }
}

async fn start(election: &MemoryElection, secret: HaSecret) -> MasterServer<RealEnv> {
    start_at(election, secret, 0, None).await
}

/// Starts a master whose RPC port is `port`.
async fn start_at(
    election: &MemoryElection,
    secret: HaSecret,
    port: u16,
    data: Option<MasterData>,
) -> MasterServer<RealEnv> {
    let at = HostPort::new("127.0.0.1", 0);
    let not_in_sync = NotInSyncPolicy::Wait;
    let settings = HaSettings {
        metadata: None,
        config: HaConfig { not_in_sync, ..HaConfig::default() },
        cluster: "c".to_owned(),
        host: "127.0.0.1".to_owned(),
        listen: at.clone(),
        secret,
        format: DATA_FORMAT,
    };
    let mut config = MasterConfig::new(HostPort::new("127.0.0.1", port));
    config.threads = 1;
    // Tests with a data directory take longer, and send no heartbeats.
    config.policy.client_ttl = if data.is_some() { Duration::from_secs(120) } else { CLIENT_TTL };
    MasterServer::start_in_cluster(config, settings, election.clone(), data, RealEnv::new()).await.unwrap()
}

/// Waits until the view of a master meets the condition.
async fn wait(master: &MasterServer<RealEnv>, what: &str, is_so: impl Fn(&HaView) -> bool) -> HaView {
    for _ in 0..1000 {
        let view = master.handle().ha().unwrap();
        if is_so(&view) {
            return view;
        }
        RealEnv::new().sleep(Duration::from_millis(10)).await;
    }
    panic!("{what}: {:?}", master.handle().ha());
}

/// Makes the leader hand over, once it has a standby in sync. The view of the standby may still
/// show that it is in sync after the leader has removed it.
async fn hand_over(leader: &MasterServer<RealEnv>) {
    let is_ready = |view: &HaView| view.standbys.iter().any(|standby| standby.in_sync && standby.connected);
    wait(leader, "a standby that can take over", is_ready).await;
    assert_eq!(leader.handle().hand_over(false).await, Ok(()));
}

/// A leader and a standby in sync.
async fn pair(election: &MemoryElection) -> (MasterServer<RealEnv>, MasterServer<RealEnv>) {
    let leader = start(election, HaSecret::new(b"secret")).await;
    wait(&leader, "a leader", |view| view.serving).await;
    let standby = start(election, HaSecret::new(b"secret")).await;
    wait(&standby, "a standby in sync", |view| view.in_sync).await;
    (leader, standby)
}

async fn committed(handle: &MasterHandle<RealEnv>, receipt: Receipt) -> bool {
    match handle.commit(receipt) {
        Some(stored) => stored.await,
        None => true,
    }
}

fn mount(handle: &MasterHandle<RealEnv>) -> Receipt {
    let mounted = handle.call(|call| {
        call.mount_segment(segment(1, "node:1", SEGMENT_BYTES), CLIENT).unwrap();
        call.remount_segment(vec![segment(1, "node:1", SEGMENT_BYTES)], CLIENT).unwrap();
    });
    mounted.1
}

fn put(handle: &MasterHandle<RealEnv>, key: &str) -> Receipt {
    let put = handle.call(|call| {
        call.put_start(CLIENT, key.into(), SliceLength(100), hard_pinned(), T).unwrap();
        call.put_end(CLIENT, meta(key), ReplicaType::ALL, T).unwrap();
    });
    put.1
}

/// Mounts a segment and puts an object.
fn mount_and_put(handle: &MasterHandle<RealEnv>, key: &str) -> Receipt {
    let mut receipt = mount(handle);
    receipt.merge(put(handle, key));
    receipt
}

fn is_readable(handle: &MasterHandle<RealEnv>, key: &str) -> Result<(), ErrorCode> {
    handle.call(|call| call.get_replica_list(key.into(), T).map(drop)).0
}

#[tokio::test]
async fn a_standby_serves_all_keys_when_the_leader_ends() {
    let election = MemoryElection::default();
    let (leader, standby) = pair(&election).await;
    let handle = leader.handle();
    let mut receipt = mount(&handle);
    for nth in 0..100 {
        receipt.merge(put(&handle, &format!("k{nth}")));
        assert!(committed(&handle, receipt).await);
    }
    let before = wait(&standby, "a client that has called", |view| view.digests > 1).await;
    assert_eq!((before.objects, before.not_promotable), (100, None));
    drop((leader, handle));
    let view = wait(&standby, "a leader", |view| view.serving).await;
    assert!(view.view > before.view && view.promotions == 1, "{view:?}");
    let handle = standby.handle();
    for nth in 0..100 {
        // The client counts as confirmed, so its objects can be read at once.
        assert_eq!(is_readable(&handle, &format!("k{nth}")), Ok(()), "{nth}");
    }
    let receipt = put(&handle, "after");
    assert!(committed(&handle, receipt).await);
    standby.stop().await.unwrap();
}

#[tokio::test]
async fn a_change_waits_for_the_standby_for_a_limited_time() {
    let election = MemoryElection::default();
    let (leader, standby) = pair(&election).await;
    let handle = leader.handle();
    let receipt = mount(&handle);
    assert!(committed(&handle, receipt).await);
    drop(standby);
    let env = RealEnv::new();
    let began = env.now();
    let receipt = put(&handle, "k");
    assert!(committed(&handle, receipt).await);
    let waited = env.now().since(began);
    let view = handle.ha().unwrap();
    assert!(view.serving && view.standbys.iter().all(|standby| !standby.in_sync), "{view:?}");
    assert!(
        waited >= Duration::from_millis(300),
        "{waited:?}: the response must wait for a record without the standby"
    );
    leader.stop().await.unwrap();
}

#[tokio::test]
async fn a_leader_hands_over_and_forwards_open_connections() {
    let election = MemoryElection::default();
    let (leader, standby) = pair(&election).await;
    let receipt = mount_and_put(&leader.handle(), "k");
    assert!(committed(&leader.handle(), receipt).await);
    assert_eq!(is_readable(&leader.handle(), "k"), Ok(()));
    let at = HostPort::new("127.0.0.1", leader.rpc_port());
    let client = RpcClient::new(RealEnv::new(), at.clone(), Timeouts::within(Duration::from_secs(5)));
    let calls = mcctl_wire::MasterCalls(client.clone());
    assert_eq!(calls.exist_key("k".into(), T).await.unwrap(), Ok(true));
    hand_over(&leader).await;
    let view = wait(&standby, "a leader", |view| view.serving).await;
    assert_eq!(calls.exist_key("k".into(), T).await.unwrap(), Ok(true));
    assert_eq!(client.losses(), 0, "the connection was not closed");
    assert_eq!(calls.ping(CLIENT).await.unwrap().unwrap().view_version_id, view.view.cast_signed());
    // A new connection is forwarded, too.
    let later = master_calls(RealEnv::new(), at, Duration::from_secs(5));
    assert_eq!(later.exist_key("k".into(), T).await.unwrap(), Ok(true));
    // The former leader follows, and can take over again.
    let former = wait(&leader, "a standby in sync", |view| view.in_sync && view.role == HaRole::Standby).await;
    assert_eq!(former.objects, 1);
    hand_over(&standby).await;
    wait(&leader, "a leader", |view| view.serving).await;
    assert_eq!(is_readable(&leader.handle(), "k"), Ok(()));
}

#[tokio::test]
async fn a_master_with_another_secret_cannot_follow() {
    let election = MemoryElection::default();
    let leader = start(&election, HaSecret::new(b"secret")).await;
    wait(&leader, "a leader", |view| view.serving).await;
    let other = start(&election, HaSecret::none()).await;
    RealEnv::new().sleep(Duration::from_millis(300)).await;
    assert_eq!(leader.handle().ha().unwrap().standbys, []);
    let view = other.handle().ha().unwrap();
    assert!(!view.in_sync && view.not_promotable.is_some(), "{view:?}");
    assert_eq!(leader.handle().hand_over(false).await, Err(HandOverProblem::NoStandby));
}

#[tokio::test]
async fn a_third_master_continues_with_the_changes_that_it_lacks() {
    let election = MemoryElection::default();
    let (first, second) = pair(&election).await;
    let third = start(&election, HaSecret::new(b"secret")).await;
    let before = wait(&third, "a standby in sync", |view| view.in_sync).await;
    let receipt = mount_and_put(&first.handle(), "k");
    assert!(committed(&first.handle(), receipt).await);
    drop(first);
    let leads = |view: &HaView| view.serving;
    let (leader, other) = tokio::select! {
        _ = wait(&second, "a leader", leads) => (second.handle(), &third),
        _ = wait(&third, "a leader", leads) => (third.handle(), &second),
    };
    let follows = wait(other, "a standby in sync", |view| view.in_sync && view.acked == view.last).await;
    if other.rpc_port() == third.rpc_port() {
        assert_eq!(follows.member, before.member, "its copy was not replaced");
    }
    leader.call(|call| call.ping(CLIENT)).0.unwrap();
    let receipt = put(&leader, "later");
    assert!(committed(&leader, receipt).await);
    assert_eq!(is_readable(&leader, "k"), Ok(()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_from_others_do_not_stop_the_leader() {
    let election = MemoryElection::default();
    let (leader, standby) = pair(&election).await;
    let before = leader.handle().ha().unwrap();
    let (sync, _) = election.observe().await.unwrap().sync.unwrap();
    let env = RealEnv::new();
    let began = env.now();
    let replication = sync.replication.parse().unwrap();
    let mut held = Vec::new();
    // Longer than the lease.
    while env.now().since(began) < Duration::from_millis(3500) {
        held.push(env.net().connect(&replication).await.unwrap());
        if held.len() > 200 {
            held.remove(0);
        }
        env.sleep(Duration::from_millis(2)).await;
    }
    let after = leader.handle().ha().unwrap();
    assert!(after.serving && after.view == before.view, "{after:?}");
    let receipt = mount(&leader.handle());
    assert!(committed(&leader.handle(), receipt).await);
    assert!(standby.handle().ha().unwrap().in_sync);
}

#[tokio::test]
async fn an_outage_of_etcd_expires_no_client() {
    let election = MemoryElection::default();
    let env = RealEnv::new();
    let leader = start(&election, HaSecret::none()).await;
    wait(&leader, "a leader", |view| view.serving).await;
    let handle = leader.handle();
    let receipt = mount_and_put(&handle, "k");
    assert!(committed(&handle, receipt).await);
    election.is_away.store(true, Ordering::Relaxed);
    wait(&leader, "a leader that cannot prove that it leads", |view| !view.serving).await;
    env.sleep(CLIENT_TTL).await;
    election.is_away.store(false, Ordering::Relaxed);
    wait(&leader, "a leader", |view| view.serving).await;
    // The ticker would expire the client now.
    env.sleep(Duration::from_secs(1)).await;
    let (read, receipt) = handle.call(|call| call.get_replica_list("k".into(), T).map(drop));
    assert_eq!(read, Ok(()));
    assert!(committed(&handle, receipt).await);
}
