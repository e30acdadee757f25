//! Masters of a cluster with data directories.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::{MemoryElection, T, committed, hand_over, is_readable, mount, mount_and_put, put, start_at, wait};
use crate::DATA_FORMAT;
use crate::MasterServer;
use crate::server::MasterData;
use crate::server::ha::HaSecret;
use crate::view::{AdminView, HaView};
use mcctl_journal::{
    CommitLogOptions, Crash, DataDir, DataDirOptions, ExistingData, LogConfig, SimulatedStorage, SyncMode, Uuid,
};
use mcctl_net::rpc::{Admitted, RpcService};
use mcctl_sys::env::{Env, RealEnv};
use mcctl_wire::Method;

/// A master, its disk and its port, which the next process of this host uses as well.
struct Host {
    disk: SimulatedStorage,
    port: u16,
    options: CommitLogOptions,
    master: Option<MasterServer<RealEnv>>,
}

impl Host {
    async fn start(election: &MemoryElection) -> Host {
        Host::start_with(election, CommitLogOptions::default()).await
    }

    async fn start_with(election: &MemoryElection, options: CommitLogOptions) -> Host {
        let disk = SimulatedStorage::new(RealEnv::new().rng());
        let mut host = Host { disk, port: 0, options, master: None };
        host.run(election).await;
        host
    }

    async fn run(&mut self, election: &MemoryElection) {
        let boot_id = self.disk.boot_id();
        let existing = ExistingData::Keep;
        let open = DataDirOptions { cluster_id: "c", boot_id, new_uuid: Uuid(1), existing };
        let dir = DataDir::open(Arc::new(self.disk.clone()), &open).unwrap();
        let data = MasterData { dir, options: self.options, format: DATA_FORMAT };
        let master = start_at(election, HaSecret::none(), self.port, Some(data)).await;
        self.port = master.rpc_port();
        self.master = Some(master);
    }

    fn master(&self) -> &MasterServer<RealEnv> {
        self.master.as_ref().unwrap()
    }

    /// The process, or the host, ends at once.
    async fn ends(&mut self, crash: Crash) {
        self.disk = self.disk.crash(crash);
        self.master = None;
        // Its tasks end.
        RealEnv::new().sleep(Duration::from_millis(50)).await;
    }

    async fn puts(&self, keys: std::ops::Range<u32>) {
        let handle = self.master().handle();
        let mut receipt = mount(&handle);
        for nth in keys {
            receipt.merge(put(&handle, &format!("k{nth}")));
            assert!(committed(&handle, receipt).await);
        }
    }

    /// All these keys can be read.
    async fn has(&self, keys: std::ops::Range<u32>) {
        let handle = self.master().handle();
        let receipt = mount(&handle);
        assert!(committed(&handle, receipt).await);
        for nth in keys {
            assert_eq!(is_readable(&handle, &format!("k{nth}")), Ok(()), "{nth}");
        }
    }

    async fn leads(&self) -> u64 {
        wait(self.master(), "a leader", |view| view.serving).await.view
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_without_a_standby_serves_again_with_its_data() {
    let election = MemoryElection::default();
    // Its former lease is revoked. The test does not wait until the key expires.
    election.are_leases_long.store(true, Ordering::Relaxed);
    let mut host = Host::start(&election).await;
    host.leads().await;
    host.puts(0..100).await;
    let before = host.master().handle().ha().unwrap();
    host.ends(Crash::Kill).await;
    host.run(&election).await;
    assert!(host.leads().await > before.view);
    let after = host.master().handle().ha().unwrap();
    assert_eq!((after.member, after.may_lack), (before.member, None));
    host.has(0..100).await;
    host.puts(100..110).await;
    // Once more, and now the process ends in order.
    host.master.take().unwrap().stop().await.unwrap();
    host.disk = host.disk.crash(Crash::Power);
    host.run(&election).await;
    host.leads().await;
    assert_eq!(host.master().handle().ha().unwrap().member, before.member, "it had synced everything");
    host.has(0..110).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restarted_standby_continues_after_its_last_change() {
    let election = MemoryElection::default();
    let leader = Host::start(&election).await;
    leader.leads().await;
    leader.puts(0..50).await;
    let mut standby = Host::start(&election).await;
    let before = wait(standby.master(), "a standby in sync", |view| view.in_sync).await;
    leader.puts(50..60).await;
    for round in 0..2 {
        standby.ends(Crash::Kill).await;
        leader.puts(60 + round * 10..70 + round * 10).await;
        standby.run(&election).await;
        let after = wait(standby.master(), "a standby in sync", |view| view.in_sync && view.acked == view.last).await;
        assert_eq!(
            (after.member, after.objects),
            (before.member, 70 + u64::from(round) * 10),
            "its copy was not replaced"
        );
    }
    hand_over(leader.master()).await;
    standby.leads().await;
    standby.has(0..80).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn changes_during_a_snapshot_are_stored_after_it() {
    let election = MemoryElection::default();
    let leader = Host::start(&election).await;
    leader.leads().await;
    leader.puts(0..3000).await;
    let mut standby = Host::start(&election).await;
    let mut keys = 3000;
    while !standby.master().handle().ha().unwrap().in_sync {
        leader.puts(keys..keys + 1).await;
        keys += 1;
    }
    let is_complete = |view: &HaView| view.in_sync && view.objects == u64::from(keys);
    let before = wait(standby.master(), "a standby in sync", is_complete).await;
    standby.ends(Crash::Kill).await;
    standby.run(&election).await;
    let after = wait(standby.master(), "a standby in sync", is_complete).await;
    assert_eq!(after.member, before.member, "its copy was not replaced");
    hand_over(leader.master()).await;
    standby.leads().await;
    standby.has(0..keys).await;
}

/// The connection to the former leader ends while a slow disk stores changes. The next leader
/// counts the changes in the standby's hello as acknowledged.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_standby_announces_only_what_it_has_stored() {
    let election = MemoryElection::default();
    let options = CommitLogOptions { sync: SyncMode::Always, ..CommitLogOptions::default() };
    let leader = Host::start_with(&election, options).await;
    leader.leads().await;
    let successor = Host::start_with(&election, options).await;
    let slow = Host::start_with(&election, options).await;
    leader.puts(0..10).await;
    let count = |view: &HaView| view.standbys.iter().filter(|standby| standby.in_sync).count();
    wait(leader.master(), "two standbys in sync", |view| count(view) == 2).await;
    slow.disk.hold_syncs(true);
    // The response to this put would wait for both standbys.
    let _ = put(&leader.master().handle(), "last");
    let last = wait(leader.master(), "the object", |view| view.objects == 11).await.last;
    let member = slow.master().handle().ha().unwrap().member.unwrap();
    wait(slow.master(), "the change", |view| view.acked >= last).await;
    let has_acked =
        |view: &HaView| view.standbys.iter().any(|standby| standby.member != member && standby.acked >= last);
    wait(leader.master(), "an acknowledgement", has_acked).await;
    hand_over(leader.master()).await;
    successor.leads().await;
    let of_slow =
        |view: &HaView| view.standbys.iter().find(|standby| standby.member == member && standby.connected).cloned();
    for _ in 0..30 {
        let view = successor.master().handle().ha().unwrap();
        assert_eq!(of_slow(&view), None, "it has not stored the change");
        RealEnv::new().sleep(Duration::from_millis(10)).await;
    }
    slow.disk.hold_syncs(false);
    let has_it = |view: &HaView| of_slow(view).is_some_and(|standby| standby.acked >= last && standby.in_sync);
    wait(successor.master(), "the standby with its change", has_it).await;
    assert_eq!(slow.master().handle().ha().unwrap().objects, 11);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_whose_disk_stalls_hands_over() {
    let election = MemoryElection::default();
    let options = CommitLogOptions { sync: SyncMode::Always, ..CommitLogOptions::default() };
    let leader = Host::start_with(&election, options).await;
    leader.leads().await;
    let standby = Host::start_with(&election, options).await;
    leader.puts(0..5).await;
    wait(leader.master(), "a standby in sync", |view| view.standbys.iter().any(|standby| standby.in_sync)).await;
    leader.disk.hold_syncs(true);
    let handle = leader.master().handle();
    let receipt = put(&handle, "k5");
    let response = tokio::spawn(async move { committed(&handle, receipt).await });
    standby.leads().await;
    standby.has(0..6).await;
    leader.disk.hold_syncs(false);
    // The former leader may send it, because the successor has the change.
    response.await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_masters_may_end_at_once() {
    let election = MemoryElection::default();
    let mut hosts = [Host::start(&election).await, Host::start(&election).await];
    for round in 0..3 {
        let leads = |host: &Host| host.master().handle().ha().is_some_and(|view| view.serving);
        let leader = loop {
            if let Some(nth) = hosts.iter().position(leads) {
                break nth;
            }
            RealEnv::new().sleep(Duration::from_millis(10)).await;
        };
        let view = wait(hosts[1 - leader].master(), "a standby in sync", |view| view.in_sync).await;
        hosts[leader].has(0..round * 20).await;
        assert_eq!(view.objects, u64::from(round) * 20);
        hosts[leader].puts(round * 20..(round + 1) * 20).await;
        for host in &mut hosts {
            host.ends(Crash::Kill).await;
        }
        for host in &mut hosts {
            host.run(&election).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_former_leader_follows_with_its_own_copy() {
    let election = MemoryElection::default();
    let mut first = Host::start(&election).await;
    first.leads().await;
    first.puts(0..20).await;
    let second = Host::start(&election).await;
    wait(second.master(), "a standby in sync", |view| view.in_sync).await;
    let before = first.master().handle().ha().unwrap();
    first.ends(Crash::Kill).await;
    second.leads().await;
    second.puts(20..30).await;
    first.run(&election).await;
    let after = wait(first.master(), "a standby in sync", |view| view.in_sync && view.objects == 30).await;
    assert_eq!(after.member, before.member);
    hand_over(second.master()).await;
    first.leads().await;
    first.has(0..30).await;
    // The second one has handed over, so its copy was replaced, and its directory with it.
    let replaced = wait(second.master(), "a copy in sync", |view| view.in_sync && view.objects > 0).await;
    assert_eq!(replaced.objects, 30);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_copy_may_lack_changes_after_a_loss_of_power() {
    let election = MemoryElection::default();
    let mut leader = Host::start(&election).await;
    leader.leads().await;
    leader.puts(0..20).await;
    let mut standby = Host::start(&election).await;
    let before = wait(standby.master(), "a standby in sync", |view| view.in_sync).await;
    leader.puts(20..40).await;
    standby.ends(Crash::Power).await;
    leader.puts(40..45).await;
    standby.run(&election).await;
    // A copy is in sync when it has received all changes. It may apply them a little later.
    let after = wait(standby.master(), "a standby in sync", |view| view.in_sync && view.objects == 45).await;
    assert_ne!(after.member, before.member, "the record must not list it as the complete copy");
    // The last copy is not promoted without the operator's permission (`NotInSyncPolicy::Wait`),
    // but it is kept.
    standby.ends(Crash::Kill).await;
    leader.puts(45..46).await;
    leader.ends(Crash::Power).await;
    leader.run(&election).await;
    let view =
        wait(leader.master(), "a reason", |view| view.not_promotable.is_some() && view.backend_error.is_none()).await;
    RealEnv::new().sleep(Duration::from_secs(3)).await;
    assert!(!leader.master().handle().ha().unwrap().serving, "{view:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_power_loss_that_loses_all_changes_is_detected() {
    // Which writes a simulated disk keeps depends on its seed.
    for _ in 0..4 {
        let election = MemoryElection::default();
        let leader = Host::start(&election).await;
        leader.leads().await;
        let mut standby = Host::start(&election).await;
        let before = wait(standby.master(), "a standby in sync", |view| view.in_sync).await;
        let handle = leader.master().handle();
        let receipt = mount_and_put(&handle, "k");
        assert!(committed(&handle, receipt).await);
        standby.ends(Crash::Power).await;
        standby.run(&election).await;
        let after = wait(standby.master(), "a standby in sync", |view| view.in_sync && view.objects == 1).await;
        assert_ne!(after.member, before.member);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_master_without_a_cluster_and_one_with_it_take_over_the_directory() {
    let election = MemoryElection::default();
    let mut host = Host::start(&election).await;
    host.leads().await;
    host.puts(0..10).await;
    host.master.take().unwrap().stop().await.unwrap();
    assert!(host.disk.contents("note").is_some());
    let open = DataDirOptions {
        cluster_id: "c",
        boot_id: host.disk.boot_id(),
        new_uuid: Uuid(2),
        existing: ExistingData::Keep,
    };
    host.disk = host.disk.crash(Crash::Kill);
    let dir = DataDir::open(Arc::new(host.disk.clone()), &open).unwrap();
    let data = MasterData { dir, options: CommitLogOptions::default(), format: DATA_FORMAT };
    let mut config = crate::MasterConfig::new("127.0.0.1:0".parse().unwrap());
    config.threads = 1;
    let alone = MasterServer::start_with(config, Some(data), RealEnv::new()).await.unwrap();
    let handle = alone.handle();
    let receipt = mount_and_put(&handle, "k10");
    assert!(committed(&handle, receipt).await);
    alone.stop().await.unwrap();
    assert!(host.disk.contents("note").is_none(), "its changes belong to no history of the cluster");
    host.disk = host.disk.crash(Crash::Kill);
    // Its ID is new, and not in the former sync record.
    host.run(&MemoryElection::default()).await;
    host.leads().await;
    host.has(0..11).await;
}

/// A leader whose disk completes no sync delays changes before they are processed, and answers
/// reads.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_on_a_stalled_disk_delays_changes_and_loses_none() {
    let election = MemoryElection::default();
    let log = LogConfig { file_bytes: 16 << 10, buffer_bytes: 1 << 20 };
    let mut host =
        Host::start_with(&election, CommitLogOptions { sync: SyncMode::Never, log, ..CommitLogOptions::default() })
            .await;
    host.leads().await;
    host.puts(0..10).await;
    host.disk.hold_syncs(true);
    let handle = host.master().handle();
    let shared = handle.shared.clone();
    let mut count = 10;
    while shared.admits(Method::PutEnd) {
        let receipt = put(&handle, &format!("k{count}"));
        assert!(committed(&handle, receipt).await);
        count += 1;
    }
    assert!(shared.admits(Method::ExistKey));
    let waiting = tokio::spawn(async move { shared.admission(Method::PutEnd).await });
    while !handle.shared.current_log().is_some_and(|log| log.room.has_waiting()) {
        tokio::task::yield_now().await;
    }
    let (found, receipt) = handle.call(|call| call.exist_key("k0".into(), T));
    assert!(found == Ok(true) && committed(&handle, receipt).await);
    assert!(!waiting.is_finished());
    host.disk.hold_syncs(false);
    assert_eq!(waiting.await.unwrap(), Admitted::Proceed);
    election.are_leases_long.store(true, Ordering::Relaxed);
    host.ends(Crash::Kill).await;
    host.run(&election).await;
    host.leads().await;
    host.has(0..count).await;
}
