//! Micro-benchmarks of the hot paths: the allocator, the master's state, and whole RPC bodies
//! through it. No sockets.
#![allow(missing_docs)]

use std::time::Duration;

use divan::Bencher;
use divan::counter::ItemsCount;
use mcctl::engine::alloc::{Allocator, OffsetAllocator};
use mcctl::engine::base::{ClientId, Mono, SegmentId};
use mcctl::engine::master::{
    Caller, ConnectionId, DATA_FORMAT, DirectAccess, Effects, MasterCall, MasterState, PutOptions, PutSpec,
    RecordBuffer, SnapshotStep, StandbyState, StorePolicy,
};
use mcctl::engine::wire::method::dispatch;
use mcctl::engine::wire::pack::{PayloadWriter, encode};
use mcctl::engine::wire::types::SliceLength;
use mcctl::engine::wire::types::Tenant;
use mcctl::engine::wire::types::{ObjectMeta, ReplicaType, ReplicateConfig, Segment};
use mcctl::engine::wire::{MasterApi, Method, Text, Wire};
use mcctl::engine::wire::{MethodLayout, Release};

fn main() {
    divan::main();
}

const ME: ClientId = ClientId(1, 1);
const T: Tenant<'static> = Tenant::DEFAULT;
const BATCH: usize = 128;
const MIB: u64 = 1 << 20;

fn key(i: u64) -> String {
    format!("{:064x}_0_k", u128::from(i).wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835))
}

/// A master with eight segments and `keys` objects of 1 MiB.
struct SegmentPool {
    state: MasterState,
    effects: Effects,
    now: Mono,
    keys: Vec<String>,
    rng: u64,
}

impl SegmentPool {
    fn new(keys: u64) -> SegmentPool {
        let policy = StorePolicy { seed: 5, client_ttl: Duration::from_secs(1 << 30), ..StorePolicy::default() };
        let mut pool = SegmentPool {
            state: MasterState::new(policy),
            effects: Effects::default(),
            now: Mono::from_ms(1_000),
            keys: (0..keys).map(key).collect(),
            rng: 88_172_645_463_325_252,
        };
        for id in 1..=8u64 {
            let name = format!("127.0.0.1:{}", 5_000 + id);
            let segment = Segment {
                id: SegmentId(id, id),
                name: name.as_str().into(),
                base: id << 44,
                size: 4 << 40,
                te_endpoint: name.as_str().into(),
                protocol: "tcp".into(),
                host_id: "".into(),
            };
            pool.call().mount_segment(segment, ME).expect("mounted");
        }
        for i in 0..pool.keys.len() {
            let name = pool.keys[i].clone();
            pool.put(&name);
        }
        pool
    }

    fn call(&mut self) -> MasterCall<DirectAccess<'_>> {
        self.now.0 += 1_000;
        MasterCall(DirectAccess { state: &mut self.state, now: self.now, effects: &mut self.effects })
    }

    fn put(&mut self, name: &str) {
        self.call().put_start(ME, name.into(), SliceLength(MIB), ReplicateConfig::default(), T).expect("room");
        let object = ObjectMeta { key: name.into(), object_checksum: None };
        self.call().put_end(ME, object, ReplicaType::ALL, T).expect("ends");
    }

    fn random(&mut self) -> usize {
        self.rng ^= self.rng << 13;
        self.rng ^= self.rng >> 7;
        self.rng ^= self.rng << 17;
        (self.rng % self.keys.len() as u64) as usize
    }
}

fn layout(method: Method) -> &'static MethodLayout {
    method.layout(Release::LATEST).expect("it has all methods")
}

fn body(method: Method, longest: usize, put: impl FnOnce(&mut PayloadWriter<'_>)) -> Vec<u8> {
    let mut out = Vec::new();
    encode(&mut out, layout(method).request().expect("has arguments"), true, longest, put);
    out
}

#[divan::bench(args = [4_096, 1_000_003])]
fn allocate_and_free_in_a_full_pool(bencher: Bencher, bytes: u64) {
    let mut pool = OffsetAllocator::new(bytes.next_multiple_of(8) * 100_000);
    let mut blocks: Vec<u32> = std::iter::from_fn(|| pool.allocate(bytes)).map(|block| block.ticket).collect();
    let mut at = 0;
    bencher.bench_local(|| {
        at = (at + 7_919) % blocks.len();
        pool.free(blocks[at]);
        blocks[at] = pool.allocate(bytes).expect("just freed").ticket;
    });
}

#[divan::bench(args = [20_000, 1_000_000])]
fn exist_key(bencher: Bencher, keys: u64) {
    let mut pool = SegmentPool::new(keys);
    bencher.bench_local(|| {
        let at = pool.random();
        pool.now.0 += 1_000;
        assert!(pool.state.exist(pool.now, pool.keys[at].as_bytes()));
    });
}

#[divan::bench(args = [20_000, 1_000_000])]
fn replica_list(bencher: Bencher, keys: u64) {
    let mut pool = SegmentPool::new(keys);
    bencher.bench_local(|| {
        let at = pool.random();
        pool.now.0 += 1_000;
        pool.state.replica_list(pool.now, pool.keys[at].as_bytes())
    });
}

#[divan::bench(args = [20_000, 1_000_000])]
fn put_and_remove(bencher: Bencher, keys: u64) {
    measure_put_and_remove(bencher, SegmentPool::new(keys), keys);
}

/// The same with records, each change closed and durable at once. The bytes are not written
/// anywhere.
#[divan::bench(args = [20_000, 1_000_000])]
fn put_and_remove_with_records(bencher: Bencher, keys: u64) {
    let mut pool = SegmentPool::new(keys);
    pool.state.start_recording(pool.now, RecordBuffer::new(DATA_FORMAT, 1), false);
    measure_put_and_remove(bencher, pool, keys);
}

fn measure_put_and_remove(bencher: Bencher, mut pool: SegmentPool, keys: u64) {
    let config = ReplicateConfig::default();
    let mut i = 0;
    let mut bytes = 0;
    bencher.bench_local(|| {
        i += 1;
        let name = key(keys + i);
        pool.now.0 += 1_000;
        let options = PutOptions::new(&config, 1, pool.state.policy());
        let by = Caller { client: ME, connection: ConnectionId::default() };
        let spec = PutSpec::new(name.as_bytes(), MIB, options.as_ref(), 0).expect("plain");
        let mut close = |state: &mut MasterState| {
            let sequence = state.close_change(|change| {
                bytes += change.payload.len();
                change.sequence
            });
            // `None` without records.
            if let Some(sequence) = sequence {
                state.durable(sequence);
            }
        };
        pool.state.put_start(pool.now, by, &spec).expect("room");
        close(&mut pool.state);
        pool.state.put_end(pool.now, by, name.as_bytes(), None, ReplicaType::ALL).expect("ends");
        close(&mut pool.state);
        pool.state.remove(pool.now, name.as_bytes(), false).expect("not read");
        close(&mut pool.state);
    });
}

/// Reading a million objects from records, and building allocators and eviction order.
#[divan::bench(args = [20_000, 1_000_000], sample_count = 5)]
fn restore_from_a_snapshot(bencher: Bencher, keys: u64) {
    let mut pool = SegmentPool::new(keys);
    pool.state.begin_snapshot(pool.now, DATA_FORMAT).expect("begins");
    let mut chunks = Vec::new();
    loop {
        match pool.state.snapshot_slice().expect("in progress") {
            SnapshotStep::More => {}
            SnapshotStep::Chunk(chunk) => chunks.push(chunk),
            SnapshotStep::Done(_) => break,
        }
    }
    let policy = pool.state.policy().clone();
    bencher.counter(ItemsCount::new(keys)).bench_local(|| {
        let mut standby = StandbyState::new(policy.clone());
        for chunk in &chunks {
            standby.apply_payload(pool.now, Duration::ZERO, chunk).expect("applies");
        }
        standby.activate(pool.now, Duration::ZERO).expect("valid")
    });
}

/// A request of 128 keys, decoded, answered, encoded.
fn batch(bencher: Bencher, keys: u64, method: Method) {
    let mut pool = SegmentPool::new(keys);
    let bodies: Vec<Vec<u8>> = (0..64)
        .map(|_| {
            let names: Vec<usize> = (0..BATCH).map(|_| pool.random()).collect();
            let texts: Vec<Text<'_>> = names.iter().map(|at| pool.keys[*at].as_str().into()).collect();
            body(method, texts.longest(), |out| {
                texts.put(out);
                T.put(out);
            })
        })
        .collect();
    let mut out = Vec::new();
    let mut nth = 0;
    bencher.counter(ItemsCount::new(BATCH)).bench_local(|| {
        nth = (nth + 1) % bodies.len();
        out.clear();
        dispatch(&mut pool.call(), method, layout(method), &bodies[nth], &mut out).expect("well formed");
    });
}

#[divan::bench(args = [20_000, 1_000_000])]
fn batch_exist_key_body(bencher: Bencher, keys: u64) {
    batch(bencher, keys, Method::BatchExistKey);
}

#[divan::bench(args = [20_000, 1_000_000])]
fn batch_get_replica_list_body(bencher: Bencher, keys: u64) {
    batch(bencher, keys, Method::BatchGetReplicaList);
}

/// BatchPutStart and BatchPutEnd of 128 keys (and their removal, which is not part of the bodies).
#[divan::bench(args = [20_000, 1_000_000])]
fn batch_put_bodies(bencher: Bencher, keys: u64) {
    let mut pool = SegmentPool::new(keys);
    let names: Vec<String> = (0..BATCH as u64).map(|i| key(keys + i)).collect();
    let texts: Vec<Text<'_>> = names.iter().map(|name| name.as_str().into()).collect();
    let start = body(Method::BatchPutStart, BATCH, |out| {
        ME.put(out);
        texts.put(out);
        vec![SliceLength(MIB); BATCH].put(out);
        ReplicateConfig::default().put(out);
        T.put(out);
    });
    let objects: Vec<ObjectMeta<'_>> =
        texts.iter().map(|key| ObjectMeta { key: *key, object_checksum: None }).collect();
    let end = body(Method::BatchPutEnd, BATCH, |out| {
        ME.put(out);
        objects.put(out);
        ReplicaType::ALL.put(out);
        T.put(out);
    });
    let mut out = Vec::new();
    bencher.counter(ItemsCount::new(BATCH)).bench_local(|| {
        out.clear();
        dispatch(&mut pool.call(), Method::BatchPutStart, layout(Method::BatchPutStart), &start, &mut out)
            .expect("well formed");
        dispatch(&mut pool.call(), Method::BatchPutEnd, layout(Method::BatchPutEnd), &end, &mut out)
            .expect("well formed");
        assert!(pool.call().batch_remove(texts.clone(), true, T).iter().all(Result::is_ok));
    });
}
