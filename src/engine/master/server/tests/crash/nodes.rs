//! The calls of nodes, and the actions of callers when a response arrives or is lost.

use super::memory::{AddressRange, SlowWriter};
use super::process::{CallOutcome, PendingResponse, Process};
use super::transfers::is_in;
use super::world::{NODES, Node, UnknownEnd, World, node_name};
use crate::unit_tests::segment;
use mcctl_base::{ClientId, SegmentId};
use mcctl_journal::SyncMode;
use mcctl_wire::MasterApi;
use mcctl_wire::types::{ClientStatus, Segment};

impl World {
    /// The node with this client id. Its process may have ended.
    fn node(&mut self, client: ClientId) -> Option<&mut Node> {
        self.nodes.iter_mut().find(|node| node.client == client)
    }

    pub(super) fn mount(&mut self, process: &mut Process<'_>, nth: usize) {
        let id = self.id();
        let size = 1_600 + self.rng.below(2_000) as u64;
        let base = (nth as u64 + 1) << 40 | id << 20;
        self.nodes[nth].segments.push(Segment { base, size, ..segment(id, &node_name(nth), 1) });
        let node = &mut self.nodes[nth];
        node.is_busy = true;
        let client = node.client;
        let new = node.segments.last().expect("it was added").clone();
        let segment = new.id;
        let mounted = self.call(process, |call| call.mount_segment(new, client));
        self.respond(process, CallOutcome::Mounted { client, segment }, mounted.is_ok());
    }

    pub(super) fn ping_some(&mut self, process: &mut Process<'_>) {
        let nth = self.rng.below(NODES);
        self.ping(process, nth);
    }

    pub(super) fn ping(&mut self, process: &mut Process<'_>, nth: usize) {
        let client = self.nodes[nth].client;
        if self.nodes[nth].is_busy {
            return;
        }
        self.nodes[nth].is_busy = true;
        let status = self.call(process, |call| call.ping(client)).expect("never fails").client_status;
        let must_remount = status == ClientStatus::NEED_REMOUNT;
        self.respond(process, CallOutcome::Pinged { client, must_remount }, false);
    }

    fn remount(&mut self, process: &mut Process<'_>, client: ClientId) {
        let Some(node) = self.node(client) else { return };
        node.is_busy = true;
        let segments = node.segments.clone();
        // The call is refused while a segment of the client's earlier life waits to be retired.
        if self.call(process, |call| call.remount_segment(segments, client)).is_ok() {
            self.counts.count("remounts");
        }
        self.respond(process, CallOutcome::Remounted { client }, false);
    }

    /// Unmounts a segment. `made`: the change of an earlier call that did so, or 0.
    pub(super) fn send_unmount(&mut self, process: &mut Process<'_>, client: ClientId, segment: SegmentId, made: u64) {
        assert_eq!(self.call(process, |call| call.unmount_segment(segment, client)), Ok(()));
        self.made = self.made.max(made);
        self.respond(process, CallOutcome::Unmounted { client, segment, gracefully: false }, true);
    }

    /// A node mounts, unmounts or restarts.
    pub(super) fn change_segments(&mut self, process: &mut Process<'_>) {
        let nth = self.rng.below(NODES);
        let client = self.nodes[nth].client;
        let segments = self.nodes[nth].segments.len();
        if self.nodes[nth].is_busy {
            return;
        }
        if let Some(segment) = self.nodes[nth].abandoned.pop() {
            self.nodes[nth].is_busy = true;
            return self.send_unmount(process, client, segment, 0);
        }
        match self.rng.below(4) {
            0 if segments < 3 => self.mount(process, nth),
            1 if segments > 1 => {
                let segment = self.nodes[nth].segments[self.rng.below(segments)].id;
                self.nodes[nth].is_busy = true;
                self.send_unmount(process, client, segment, 0);
            }
            2 if segments > 1 => {
                let segment = self.nodes[nth].segments[self.rng.below(segments)].id;
                let grace = self.rng.below(3_000) as u64;
                self.nodes[nth].is_busy = true;
                let closed = self.call(process, |call| call.graceful_unmount_segment(segment, client, grace));
                let outcome = CallOutcome::Unmounted { client, segment, gracefully: true };
                match closed {
                    Ok(()) => self.respond(process, outcome, true),
                    Err(_) => self.respond(process, CallOutcome::Remounted { client }, false),
                }
            }
            3 => {
                self.nodes[nth] = self.new_node(100);
                self.mount(process, nth);
            }
            _ => {}
        }
    }

    /// The caller receives the response.
    pub(super) fn deliver(&mut self, process: &mut Process<'_>, response: PendingResponse) {
        let PendingResponse { outcome, made, needs_sync, seen } = response;
        self.counts.count("responses");
        if process.log.memory_only() {
            self.is_memory_only = true;
        } else {
            self.promised.kill = self.promised.kill.max(seen);
            if needs_sync || self.options.sync == SyncMode::Always {
                self.promised.power_loss = self.promised.power_loss.max(made);
            }
        }
        match outcome {
            CallOutcome::Nothing => {}
            CallOutcome::Started(writer) => {
                self.busy.remove(&(writer.client, writer.key));
                if !self.serves(&writer.ranges) {
                    return;
                }
                self.writers.push(writer);
                if !self.chance(3) {
                    self.write(self.writers.len() - 1);
                }
            }
            CallOutcome::Ended { client, key, value } => {
                self.busy.remove(&(client, key));
                let is_kept = !self.is_memory_only;
                let is_synced = self.options.sync == SyncMode::Always;
                if let Some(write) = self.finished.iter_mut().rfind(|write| write.value == value) {
                    write.must_be_kept |= is_kept;
                    write.survives_power_loss |= is_kept && is_synced;
                }
            }
            CallOutcome::Revoked { client, key } => drop(self.busy.remove(&(client, key))),
            CallOutcome::Read(reader) => {
                if self.serves(&reader.ranges) {
                    self.readers.push(reader);
                }
                self.counts.count("reads");
                if self.starts > 1 {
                    self.counts.count("reads after a restart");
                }
            }
            CallOutcome::Pinged { client, must_remount } => {
                self.node(client).into_iter().for_each(|node| node.is_busy = false);
                if must_remount {
                    self.remount(process, client);
                }
            }
            CallOutcome::Remounted { client } | CallOutcome::Mounted { client, .. } => {
                self.node(client).into_iter().for_each(|node| node.is_busy = false);
            }
            CallOutcome::Unmounted { client, segment, gracefully } => self.unmounted(client, segment, gracefully),
        }
    }

    /// Whether processes accept transfers to all these ranges.
    fn serves(&self, ranges: &[AddressRange]) -> bool {
        !ranges.iter().any(|range| self.freed.iter().any(|segment| is_in(*segment)(range)))
    }

    fn unmounted(&mut self, client: ClientId, segment: SegmentId, gracefully: bool) {
        let Some(node) = self.node(client) else { return };
        node.is_busy = false;
        let Some(nth) = node.segments.iter().position(|mounted| mounted.id == segment) else { return };
        let gone = node.segments.swap_remove(nth);
        if !gracefully {
            // The process uses the memory for something else.
            self.freed.insert(segment);
            self.end_transfers(segment);
            let value = self.id();
            self.key_of.insert(value, u64::MAX);
            self.memory.write((gone.base, gone.base + gone.size), value);
        }
    }

    /// The response does not arrive, because the process ends.
    pub(super) fn lose(&mut self, response: PendingResponse) {
        self.counts.count("lost responses");
        match response.outcome {
            CallOutcome::Nothing | CallOutcome::Read(_) => {}
            CallOutcome::Started(SlowWriter { client, key, .. }) | CallOutcome::Revoked { client, key } => {
                self.busy.remove(&(client, key));
            }
            CallOutcome::Ended { client, key, value } => {
                self.busy.remove(&(client, key));
                self.unknown_ends.push(UnknownEnd { client, key, value });
            }
            CallOutcome::Mounted { client, segment } => {
                let Some(node) = self.node(client) else { return };
                node.is_busy = false;
                node.segments.retain(|mounted| mounted.id != segment);
                node.abandoned.push(segment);
                self.freed.insert(segment);
                self.end_transfers(segment);
            }
            CallOutcome::Pinged { client, .. }
            | CallOutcome::Remounted { client }
            | CallOutcome::Unmounted { client, .. } => {
                self.node(client).into_iter().for_each(|node| node.is_busy = false);
            }
        }
    }
}
