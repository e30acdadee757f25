//! The calls of clients and nodes.

use super::memory::{LeasedReader, SlowWriter, ranges};
use super::world::{LEASE, NODES, Node, RELEASE, World, name, node_name};
use crate::engine::master::tests::*;
use crate::engine::wire::types::ClientStatus;

impl World {
    pub(super) fn put(&mut self) {
        let client = 1 + self.rng.below(NODES + 1) as u64;
        let (key, upsert) = (self.key(), self.chance(3));
        let bytes_max = if self.chance(3) { 1_500 } else { 300 };
        let bytes = 1 + self.rng.below(bytes_max) as u64;
        let mut config = match self.rng.below(8) {
            0 => pinned(None),
            1 => grouped(["g", "h"][self.rng.below(2)]),
            2 if self.chance(3) => hard_pinned(),
            3 => ReplicateConfig { soft_pin_action: SoftPinAction::DISABLE, ..ReplicateConfig::default() },
            _ => ReplicateConfig::default(),
        };
        config.replica_num = 1 + self.rng.below(2) as u64;
        let (id, key_text) = (ClientId(client, 0), name(key));
        // An upsert of the same size replaces the value in place.
        let known = self.master.state.objects.find(self.master.state.objects.hash(key_text.as_bytes()));
        let bytes = match known {
            Some(at) if upsert && self.chance(2) => self.master.state.objects[at].size,
            _ => bytes,
        };
        let started = if upsert {
            self.master.call().upsert_start(id, key_text.as_str().into(), bytes, config, T)
        } else {
            self.master.start_with(id, &key_text, bytes, config)
        };
        self.close();
        let Ok(replicas) = started else { return };
        // A client ends its earlier write of a key before it starts another.
        self.writers.retain(|writer| (writer.client, writer.key) != (client, key));
        let value = self.id();
        self.key_of.insert(value, key);
        let until = self.wall + RELEASE;
        self.writers.push(SlowWriter { key, client, value, until, ranges: ranges(&replicas) });
        self.write(self.writers.len() - 1);
        if known.is_some() && upsert {
            self.counts.count("replacing upserts");
        }
    }

    pub(super) fn write(&mut self, writer: usize) {
        let SlowWriter { ranges, value, .. } = &self.writers[writer];
        for (begin, end) in ranges {
            let beyond = if self.scribble { 64 } else { 0 };
            self.memory.write((begin.saturating_sub(beyond), end + beyond), *value);
        }
    }

    /// A random unfinished writer. It may write until the master releases its memory.
    pub(super) fn writer(&mut self) -> Option<usize> {
        self.writers.retain(|writer| writer.until > self.wall);
        let count = self.writers.len();
        (count > 0).then(|| self.rng.below(count))
    }

    pub(super) fn write_again(&mut self) {
        if let Some(writer) = self.writer() {
            self.write(writer);
        }
    }

    pub(super) fn end(&mut self) {
        let Some(nth) = self.writer() else { return };
        let (key, client) = (name(self.writers[nth].key), ClientId(self.writers[nth].client, 0));
        let object_checksum = self.chance(2).then_some(self.writers[nth].value);
        let meta = ObjectMeta { key: key.as_str().into(), object_checksum };
        if self.master.call().put_end(client, meta, ReplicaType::ALL, T).is_ok() {
            self.writers.swap_remove(nth);
            self.counts.count("completed writes");
        }
    }

    pub(super) fn revoke(&mut self) {
        let Some(nth) = self.writer() else { return };
        let (key, client) = (name(self.writers[nth].key), ClientId(self.writers[nth].client, 0));
        if self.master.revoke(client, &key).is_ok() {
            self.writers.swap_remove(nth);
            self.counts.count("revokes");
        }
    }

    pub(super) fn get(&mut self) {
        let key = self.key();
        let Ok(replicas) = self.master.get(&name(key)) else { return };
        self.readers.push(LeasedReader { key, until: self.wall + LEASE, ranges: ranges(&replicas) });
        self.counts.count("reads");
        if self.restarts > 0 {
            self.counts.count("reads after a restart");
        }
    }

    pub(super) fn remove(&mut self) {
        let (key, force) = (self.key(), self.chance(8));
        if self.chance(20) {
            self.master.call().remove_all(false, T);
        } else if self.master.remove(&name(key), force).is_ok() {
            self.counts.count("removals");
            if force {
                self.readers.retain(|reader| reader.key != key);
            }
        }
    }

    pub(super) fn clear(&mut self) {
        let (key, client) = (name(self.key()), ClientId(1 + self.rng.below(NODES) as u64, 0));
        let node = self.rng.below(NODES);
        let segment = if self.chance(2) { String::new() } else { node_name(node) };
        let cleared =
            self.master.call().batch_replica_clear(vec![key.as_str().into()], client, segment.as_str().into());
        cleared.expect("valid");
    }

    pub(super) fn mount(&mut self, node: usize) {
        let id = self.id();
        let new = Segment {
            base: (node as u64 + 1) << 40 | id << 20,
            size: 1_600 + self.rng.below(2_000) as u64,
            ..segment(id, &node_name(node), 1)
        };
        self.nodes[node].segments.push(new.clone());
        let client = self.nodes[node].client;
        self.master.mount(client, new);
        self.close();
    }

    pub(super) fn ping(&mut self, node: usize) {
        let client = self.nodes[node].client;
        if self.master.call().ping(client).expect("never fails").client_status == ClientStatus::NEED_REMOUNT {
            let segments = self.nodes[node].segments.clone();
            // The call is refused while a segment of the client's earlier life waits to be retired.
            if self.master.call().remount_segment(segments, client).is_ok() {
                self.counts.count("remounts");
            }
            self.close();
        }
    }

    /// A node mounts, unmounts or restarts.
    pub(super) fn change_segments(&mut self) {
        let node = self.rng.below(NODES);
        let segments = self.nodes[node].segments.len();
        match self.rng.below(4) {
            0 if segments < 3 => self.mount(node),
            1 if segments > 1 => {
                let gone = self.nodes[node].segments.swap_remove(self.rng.below(segments));
                assert_eq!(self.master.call().unmount_segment(gone.id, self.nodes[node].client), Ok(()));
                self.close();
                // The process uses the memory for something else.
                let value = self.id();
                self.key_of.insert(value, u64::MAX);
                self.memory.write((gone.base, gone.base + gone.size), value);
            }
            2 if segments > 1 => {
                let nth = self.rng.below(segments);
                let (id, grace) = (self.nodes[node].segments[nth].id, self.rng.below(3_000) as u64);
                if self.master.call().graceful_unmount_segment(id, self.nodes[node].client, grace).is_ok() {
                    self.nodes[node].segments.swap_remove(nth);
                }
            }
            3 => {
                self.nodes[node] = Node { client: ClientId(self.id() + 100, 0), segments: Vec::new() };
                self.mount(node);
            }
            _ => {}
        }
    }
}
