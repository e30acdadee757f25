//! Compares our master with the real one: the same random calls must return the same answers.
//!
//! The comparison ignores what may differ: addresses, replica ids, and the choice among several
//! segments. Time has no effect: leases are either endless or zero, and nothing is evicted. Other
//! tests compare the fraction of a store that objects of mixed sizes fill.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::time::Duration;

use mcctl::engine::base::{ClientId, ErrorCode, HostPort, SegmentId, TaskId};
use mcctl::engine::env::RealEnv;
use mcctl::engine::master::{MasterConfig, MasterServer};
use mcctl::engine::rpc::{CallError, RpcClient, Timeouts};
use mcctl::engine::wire::types::{ObjectMeta, ReplicaLocation, ReplicaType, ReplicateConfig, Segment, SoftPinAction};
use mcctl::engine::wire::{MasterCalls, Text};

use super::cluster::{Make, Master};
use super::payload::payload;
use mcctl::engine::wire::types::{SliceLength, Tenant};

type Calls = MasterCalls<RpcClient<RealEnv>>;
const DAY_MS: u64 = 86_400_000;

fn calls(master: &Master) -> Calls {
    calls_at(master.rpc)
}

fn calls_at(port: u16) -> Calls {
    let timeouts = Timeouts { connect: Duration::from_secs(5), call: Duration::from_secs(30) };
    MasterCalls(RpcClient::new(RealEnv::new(), HostPort::new("127.0.0.1", port), timeouts))
}

fn client(n: u64) -> ClientId {
    ClientId(1000 + n, 7)
}

fn segment(n: u64, size: u64) -> Segment {
    let name = format!("127.0.0.{}:2000{n}", n + 2);
    Segment {
        id: SegmentId(50 + n, 9),
        name: name.clone().into(),
        base: 0x7f00_0000_0000 + n * (1 << 40),
        size,
        te_endpoint: name.into(),
        protocol: "tcp".into(),
        host_id: "".into(),
    }
}

/// A source of pseudo-random numbers.
struct Dice(Vec<u8>, usize);

impl Dice {
    fn new(seed: u64) -> Self {
        Self(payload(seed.wrapping_mul(1 << 32), 1 << 20), 0)
    }

    fn below(&mut self, n: u64) -> u64 {
        let at = self.1;
        self.1 = (at + 8) % (self.0.len() - 8);
        u64::from_le_bytes(self.0[at..at + 8].try_into().unwrap()) % n
    }

    fn of<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len() as u64) as usize]
    }
}

/// Masks the values that may differ.
fn comparable(mut text: String, one_segment: bool) -> String {
    for name in ["buffer_address: ", " id: ", "{ id: "] {
        text = mask(&text, name, |c| c.is_ascii_digit());
    }
    if !one_segment {
        text = mask(&text, "transport_endpoint: \"", |c| c != '"');
    }
    text
}

fn mask(text: &str, name: &str, part: impl Fn(char) -> bool) -> String {
    let mut pieces = text.split(name);
    let mut out = pieces.next().unwrap().to_owned();
    for piece in pieces {
        out.push_str(name);
        out.push('*');
        out.push_str(piece.trim_start_matches(&part));
    }
    out
}

fn config(dice: &mut Dice) -> ReplicateConfig {
    let mut c = ReplicateConfig { replica_num: dice.of(&[1, 1, 1, 1, 2, 2, 3, 0]), ..ReplicateConfig::default() };
    c.with_hard_pin = dice.below(6) == 0;
    if dice.below(4) == 0 {
        c.soft_pin_action = dice.of(&[SoftPinAction::ENABLE, SoftPinAction::DISABLE, SoftPinAction::PRESERVE]);
        c.soft_pin_ttl_ms = dice.of(&[None, None, Some(60_000), Some(2 * DAY_MS)]);
    }
    if dice.below(8) == 0 {
        c.nof_replica_num = dice.of(&[0, 1]);
        c.prefer_alloc_in_same_node = true;
    }
    if dice.below(12) == 0 {
        c.group_ids = Some(vec!["group".into(); dice.below(3) as usize]);
    }
    if dice.below(12) == 0 {
        c.dfs_replica_num = dice.of(&[1, 2]);
    }
    c
}

/// The two masters under comparison.
struct Pair {
    ours: Calls,
    real: Calls,
    one_segment: bool,
}

macro_rules! both {
    ($pair:expr, $text:expr, $call:ident($($arg:expr),*)) => {{
        let a = $pair.ours.$call($($arg.clone()),*).await;
        let b = $pair.real.$call($($arg.clone()),*).await;
        ($text, $pair.shown(a), $pair.shown(b))
    }};
}

impl Pair {
    fn shown<T: Debug>(&self, answer: Result<T, CallError>) -> String {
        match answer {
            Ok(value) => comparable(format!("{value:?}"), self.one_segment),
            Err(error) => format!("no answer: {error}"),
        }
    }

    async fn step(&self, dice: &mut Dice) -> (String, String, String) {
        let name = |n: u64| format!("key/{n}");
        let key_text = name(dice.below(10));
        let key = Text::from(key_text.as_str());
        let writer = client(dice.below(3));
        let tenant = Tenant::from(dice.of(&["default", "default", ""]));
        let size = SliceLength(dice.of(&[1, 100, 100, 4096, 4096, 65_537, 1 << 20, 0]));
        let kind =
            dice.of(&[ReplicaType::ALL, ReplicaType::ALL, ReplicaType::ALL, ReplicaType::MEMORY, ReplicaType::DISK]);
        let force = dice.below(2) == 0;
        let checksum = dice.of(&[None, Some(0x1234_5678_9abc_def0)]);
        let object = ObjectMeta { key, object_checksum: checksum };
        let names: Vec<String> = (0..dice.below(5)).map(|_| name(dice.below(12))).collect();
        let keys: Vec<Text<'_>> = names.iter().map(|n| Text::from(n.as_str())).collect();
        let objects: Vec<ObjectMeta<'_>> =
            keys.iter().map(|k| ObjectMeta { key: *k, object_checksum: checksum }).collect();
        let mut sizes: Vec<SliceLength> = keys.iter().map(|_| size).collect();
        if dice.below(10) == 0 {
            sizes.push(SliceLength(5));
        }
        let c = config(dice);
        let pattern = dice.of(&["key/1", "^key", "[0-4]$", "((", "nothing", "key/(2|3)", "KEY"]);
        let re = Text::from(pattern);
        match dice.below(48) {
            0..8 => {
                both!(
                    self,
                    format!("PutStart({key_text}, {size:?}, {writer}, {c:?})"),
                    put_start(writer, key, size, c, tenant)
                )
            }
            8..16 => {
                both!(self, format!("PutEnd({key_text}, {writer}, {kind:?})"), put_end(writer, object, kind, tenant))
            }
            16..18 => {
                both!(self, format!("PutRevoke({key_text}, {writer}, {kind:?})"), put_revoke(writer, key, kind, tenant))
            }
            18..20 => both!(self, format!("ExistKey({key_text})"), exist_key(key, tenant)),
            20..22 => both!(self, format!("GetReplicaList({key_text})"), get_replica_list(key, tenant)),
            22..26 => both!(self, format!("Remove({key_text}, {force})"), remove(key, force, tenant)),
            26..29 => both!(
                self,
                format!("UpsertStart({key_text}, {size:?}, {writer}, {c:?})"),
                upsert_start(writer, key, size, c, tenant)
            ),
            29..31 => {
                both!(
                    self,
                    format!("UpsertEnd({key_text}, {writer}, {kind:?})"),
                    upsert_end(writer, object, kind, tenant)
                )
            }
            31 => {
                both!(
                    self,
                    format!("UpsertRevoke({key_text}, {writer}, {kind:?})"),
                    upsert_revoke(writer, key, kind, tenant)
                )
            }
            32 => both!(self, format!("BatchExistKey({names:?})"), batch_exist_key(keys, tenant)),
            33 => both!(self, format!("BatchGetReplicaList({names:?})"), batch_get_replica_list(keys, tenant)),
            34 | 35 => both!(
                self,
                format!("BatchPutStart({names:?}, {sizes:?}, {writer}, {c:?})"),
                batch_put_start(writer, keys, sizes, c, tenant)
            ),
            36 | 37 => both!(
                self,
                format!("BatchPutEnd({names:?}, {writer}, {kind:?})"),
                batch_put_end(writer, objects, kind, tenant)
            ),
            38 => both!(
                self,
                format!("BatchPutRevoke({names:?}, {writer}, {kind:?})"),
                batch_put_revoke(writer, keys, kind, tenant)
            ),
            39 => both!(
                self,
                format!("BatchUpsertStart({names:?}, {sizes:?}, {writer}, {c:?})"),
                batch_upsert_start(writer, keys, sizes, c, tenant)
            ),
            40 => {
                both!(self, format!("BatchUpsertEnd({names:?}, {writer})"), batch_upsert_end(writer, objects, tenant))
            }
            41 => both!(
                self,
                format!("BatchUpsertRevoke({names:?}, {writer})"),
                batch_upsert_revoke(writer, keys, tenant)
            ),
            42 => both!(self, format!("RemoveByRegex({pattern}, {force})"), remove_by_regex(re, force, tenant)),
            43 => both!(self, format!("BatchRemove({names:?}, {force})"), batch_remove(keys, force, tenant)),
            44 => {
                let sorted = |answer: Result<Result<_, ErrorCode>, CallError>| {
                    self.shown(answer.map(|a| {
                        a.map(|m: mcctl::engine::wire::Map<_, _>| {
                            m.0.into_iter()
                                .map(|(k, v)| (format!("{k:?}"), comparable(format!("{v:?}"), self.one_segment)))
                                .collect::<BTreeMap<_, _>>()
                        })
                    }))
                };
                let (a, b) = (
                    self.ours.get_replica_list_by_regex(re, tenant).await,
                    self.real.get_replica_list_by_regex(re, tenant).await,
                );
                (format!("GetReplicaListByRegex({pattern})"), sorted(a), sorted(b))
            }
            45 if dice.below(4) == 0 => both!(self, format!("RemoveAll({force})"), remove_all(force, tenant)),
            45 => both!(self, format!("Ping({writer})"), ping(writer)),
            46 => {
                let segment = dice.of(&["127.0.0.2:20000", "127.0.0.3:20001", "", "nowhere"]);
                let segment = Text::from(segment);
                both!(self, format!("QuerySegmentStatus({segment:?})"), query_segment_status(segment))
            }
            _ => both!(self, "QueryTask".to_owned(), query_task(TaskId(3, 4))),
        }
    }
}

/// Keeps the two masters running.
struct Masters {
    _dir: tempfile::TempDir,
    _ours: MasterServer<RealEnv>,
    _real: Master,
}

/// Our master runs in this process, because the command line refuses a lease TTL of 0, with which
/// no client can read.
async fn start(lease_ms: u64, segments: u64) -> (Masters, Pair) {
    let dir = tempfile::tempdir().unwrap();
    let lease = format!("--default_kv_lease_ttl={lease_ms}");
    let flags = [lease.as_str(), "--client_ttl=600", "--eviction_high_watermark_ratio=1.0"];
    let real = Master::start(Make::Real, dir.path(), &flags);
    let mut config = MasterConfig::new(HostPort::new("127.0.0.1", 0));
    config.threads = 1;
    config.policy.lease_ttl = Duration::from_millis(lease_ms);
    config.policy.client_ttl = Duration::from_secs(600);
    config.policy.watermark = 1.0;
    let ours = MasterServer::start(config, RealEnv::new()).await.unwrap();
    let pair = Pair { ours: calls_at(ours.rpc_port()), real: calls(&real), one_segment: segments == 1 };
    for n in 0..segments {
        let s = segment(n, 1 << 30);
        for c in [&pair.ours, &pair.real] {
            assert_eq!(c.mount_segment(s.clone(), client(n)).await.unwrap(), Ok(()));
            assert_eq!(c.remount_segment(vec![s.clone()], client(n)).await.unwrap(), Ok(()));
        }
    }
    (Masters { _dir: dir, _ours: ours, _real: real }, pair)
}

async fn compare(lease_ms: u64, segments: u64, seed: u64, steps: usize) {
    let (_masters, pair) = start(lease_ms, segments).await;
    let mut dice = Dice::new(seed);
    let mut log: Vec<String> = Vec::new();
    for step in 0..steps {
        let (what, ours, real) = pair.step(&mut dice).await;
        let shown = log[log.len().saturating_sub(30)..].join("\n");
        assert!(ours == real, "seed {seed}, step {step}: {what}\n  ours {ours}\n  real {real}\nbefore it:\n{shown}");
        log.push(format!("{step}: {what} -> {ours}"));
    }
}

#[tokio::test]
#[cfg_attr(peers_off, ignore = "needs the Mooncake wheel")]
async fn both_masters_answer_alike_with_endless_leases() {
    for seed in 1..5 {
        compare(600_000, 1, seed, 1500).await;
    }
}

#[tokio::test]
#[cfg_attr(peers_off, ignore = "needs the Mooncake wheel")]
async fn both_masters_answer_alike_without_leases() {
    for seed in 5..9 {
        compare(0, 1, seed, 1500).await;
    }
}

#[tokio::test]
#[cfg_attr(peers_off, ignore = "needs the Mooncake wheel")]
async fn both_masters_answer_alike_with_two_segments() {
    for seed in 9..12 {
        compare(600_000, 2, seed, 1500).await;
    }
}

/// Puts objects of these sizes until the first refusal. Returns the filled fraction of the store.
async fn filled(calls: &Calls, sizes: impl Iterator<Item = u64>) -> f64 {
    let mut total = 0;
    for (i, size) in sizes.enumerate() {
        let key = format!("fill/{i}");
        let key = Text::from(key.as_str());
        let hard = ReplicateConfig { with_hard_pin: true, ..ReplicateConfig::default() };
        match calls.put_start(client(0), key, SliceLength(size), hard, "default".into()).await.unwrap() {
            Ok(_) => total += size,
            Err(code) => {
                assert_eq!(code, ErrorCode(-200));
                return total as f64 / (1u64 << 30) as f64;
            }
        }
        let object = ObjectMeta { key, object_checksum: None };
        assert_eq!(calls.put_end(client(0), object, ReplicaType::ALL, "default".into()).await.unwrap(), Ok(()));
    }
    panic!("never refused");
}

#[tokio::test]
#[cfg_attr(peers_off, ignore = "needs the Mooncake wheel")]
async fn objects_of_one_size_fill_the_store() {
    for size in [100_000u64, 65_537, 524_288, 1 << 20, 1_310_720, 2_949_120] {
        let (_masters, pair) = start(0, 1).await;
        let (ours, real) =
            (filled(&pair.ours, std::iter::repeat(size)).await, filled(&pair.real, std::iter::repeat(size)).await);
        eprintln!("{size} B: ours {:.2} %, real {:.2} %", ours * 100.0, real * 100.0);
        assert!(ours >= 0.98, "{size} B: {ours}");
    }
}

#[tokio::test]
#[cfg_attr(peers_off, ignore = "needs the Mooncake wheel")]
async fn mixed_sizes_fill_at_least_as_much_as_the_real_allocator() {
    for (seed, spread) in [(1, 20), (2, 20), (3, 12), (4, 8)] {
        let (_masters, pair) = start(0, 1).await;
        let sizes = |seed| {
            let mut dice = Dice::new(seed);
            // Sizes over several powers of two, mostly not round numbers.
            std::iter::repeat_with(move || {
                let power = 21 - dice.below(spread) / 2;
                (1 << power) + dice.below(1 << power)
            })
        };
        let ours = filled(&pair.ours, sizes(seed)).await;
        let real = filled(&pair.real, sizes(seed)).await;
        eprintln!("mixed {seed}: ours {:.2} %, real {:.2} %", ours * 100.0, real * 100.0);
        assert!(ours >= real - 0.001, "mixed {seed}: ours {ours}, real {real}");
    }
}

/// The hosts on which a list of puts is placed. The segment within a host depends on a hash of the
/// key, which differs between masters.
async fn placements(make: Make, strategy: &str, only_together: bool) -> Vec<(String, Option<String>)> {
    let dir = tempfile::tempdir().unwrap();
    let strategy = format!("--allocation_strategy={strategy}");
    // Nothing sends heartbeats here.
    let flags = [strategy.as_str(), "--eviction_high_watermark_ratio=1.0", "--client_ttl=600"];
    let master = Master::start(make, dir.path(), &flags);
    let calls = calls(&master);
    // Small ones, so that they fill up.
    const HOSTS: [(u64, &str); 5] = [(0, "host-b"), (1, "host-d"), (2, "host-b"), (3, ""), (4, "host-e")];
    for (n, host) in HOSTS {
        let name = format!("segment-{}", 9 - n);
        let segment = Segment {
            name: name.clone().into(),
            te_endpoint: name.into(),
            host_id: host.into(),
            ..segment(n, 16 << 20)
        };
        assert_eq!(calls.mount_segment(segment, client(n)).await.unwrap(), Ok(()));
    }
    let mut placed = Vec::new();
    for (n, (who, host, preferred, together)) in [
        (7, "host-b", "", false),
        (7, "host-a", "", false),
        (7, "host-c", "", false),
        (7, "host-d", "", false),
        (7, "host-z", "", false),
        (7, "host-b", "segment-5", false),
        (7, "host-b", "nowhere", false),
        (7, "host-b", "", true),
        // The writer's own segment is on host-d.
        (1, "", "", false),
    ]
    .into_iter()
    .enumerate()
    .filter(|(_, put)| put.3 || !only_together)
    {
        for part in 0..5 {
            let key = format!("{n}/{part}");
            let config = ReplicateConfig {
                host_id: host.into(),
                preferred_segment: preferred.into(),
                prefer_alloc_in_same_node: together,
                with_hard_pin: true,
                ..ReplicateConfig::default()
            };
            let put = calls
                .put_start(client(who), key.as_str().into(), SliceLength(1 << 20), config, "default".into())
                .await
                .unwrap();
            let placed_on = put.ok().map(|replicas| match &replicas[0].location {
                ReplicaLocation::Memory(buffer) => {
                    let segment = buffer.transport_endpoint.to_string();
                    let (_, host) = HOSTS.iter().find(|(n, _)| segment == format!("segment-{}", 9 - n)).unwrap();
                    (*host).to_owned()
                }
                other => panic!("{other:?}"),
            });
            placed.push((format!("writer {who} on '{host}' preferring '{preferred}' {together}, {part}"), placed_on));
        }
    }
    placed
}

#[tokio::test]
#[cfg_attr(peers_off, ignore = "needs the Mooncake wheel")]
async fn local_first_chooses_the_real_masters_segments() {
    let (ours, real) =
        (placements(Make::Ours, "local_first", false).await, placements(Make::Real, "local_first", false).await);
    for (ours, real) in ours.into_iter().zip(real) {
        assert_eq!(ours, real);
    }
}

#[tokio::test]
#[cfg_attr(peers_off, ignore = "needs the Mooncake wheel")]
async fn prefer_alloc_in_same_node_chooses_the_writers_host_under_any_strategy() {
    for strategy in ["random", "free_ratio_first"] {
        let ours = placements(Make::Ours, strategy, true).await;
        let real = placements(Make::Real, strategy, true).await;
        assert_eq!(ours, real, "{strategy}");
    }
}
