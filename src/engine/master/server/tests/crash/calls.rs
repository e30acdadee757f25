//! The calls of clients and nodes.

use super::memory::{AddressRange, LeasedReader, SlowWriter, ranges};
use super::process::{CallOutcome, Process};
use super::trace::name;
use super::world::{FinishedWrite, NODES, RELEASE, UnknownEnd, World};
use crate::slots::ObjectSlot;
use crate::unit_tests::{EXISTS, T, grouped, hard_pinned, pinned};
use crate::{MasterState, StateAccess};
use mcctl_base::ClientId;
use mcctl_metadata::records::MetadataTable;
use mcctl_wire::MasterApi;
use mcctl_wire::types::SliceLength;
use mcctl_wire::types::{ObjectMeta, ReplicaType, ReplicateConfig, SoftPinAction};

/// The object of a key, if there is one.
fn find(state: &MasterState, key: u64) -> Option<ObjectSlot> {
    state.objects.find(state.objects.hash(name(key).as_bytes()))
}

/// The size and the ranges of the key's object, if it is complete.
fn complete_object(process: &Process<'_>, key: u64) -> Option<(u64, Vec<AddressRange>)> {
    let guarded = process.shared.guarded.lock().expect("no panic");
    let at = find(&guarded.state, key).filter(|at| !guarded.state.objects[*at].eviction.is_writing())?;
    Some((guarded.state.objects[at].size, ranges(&guarded.state.describe(at))))
}

impl World {
    fn options_of_a_put(&mut self) -> ReplicateConfig {
        let mut config = match self.rng.below(8) {
            0 => pinned(None),
            1 => grouped(["g", "h"][self.rng.below(2)]),
            2 if self.chance(3) => hard_pinned(),
            3 => ReplicateConfig { soft_pin_action: SoftPinAction::DISABLE, ..ReplicateConfig::default() },
            _ => ReplicateConfig::default(),
        };
        config.replica_num = 1 + self.rng.below(2) as u64;
        config
    }

    /// Writes or removes a record of the metadata service. The digest of the restored state shows
    /// whether it was kept.
    pub(super) fn write_record(&mut self, process: &mut Process<'_>) {
        let key = format!("record-{}", self.rng.below(4)).into_bytes();
        let value = vec![b'v'; self.rng.below(300)];
        let is_removal = self.chance(3);
        let plan = |table: &mut MetadataTable| match is_removal {
            true => table.plan_remove(&key).into_iter().collect(),
            false => table.plan_put(&key, &value).changes,
        };
        self.call(process, |call| call.0.with_state(|state, _, _| state.change_metadata(Box::new(plan))));
        self.counts.count("writes of records");
        self.respond(process, CallOutcome::Nothing, false);
    }

    pub(super) fn put(&mut self, process: &mut Process<'_>) {
        let client = 1 + self.rng.below(NODES + 1) as u64;
        let key = self.key();
        let upsert = self.chance(3);
        if self.busy.contains(&(client, key)) {
            return;
        }
        let bytes_max = if self.chance(3) { 1_500 } else { 300 };
        let bytes = 1 + self.rng.below(bytes_max) as u64;
        let config = self.options_of_a_put();
        let before = complete_object(process, key);
        // An upsert of the same size replaces the value in place.
        let bytes = match &before {
            Some((size, _)) if upsert && self.chance(2) => *size,
            _ => bytes,
        };
        let id = ClientId(client, 0);
        let key_text = name(key);
        let started = self.call(process, |call| {
            if upsert {
                call.upsert_start(id, key_text.as_str().into(), SliceLength(bytes), config, T)
            } else {
                call.put_start(id, key_text.as_str().into(), SliceLength(bytes), config, T)
            }
        });
        let Ok(replicas) = started else {
            if before.is_some() && started == Err(EXISTS) {
                // The client regards its value as stored.
                let write = self.finished.iter().rfind(|write| write.key == key);
                self.made = write.map_or(0, |write| write.sequence);
            }
            return self.respond(process, CallOutcome::Nothing, false);
        };
        // A client ends its earlier write of a key before it starts another. If it has sent the end
        // twice, one response is enough.
        process.unsent().for_each(|response| response.outcome.ignore_end(client, key));
        self.writers.retain(|writer| (writer.client, writer.key) != (client, key));
        self.unknown_ends.retain(|end| (end.client, end.key) != (client, key));
        let value = self.id();
        let ranges = ranges(&replicas);
        self.key_of.insert(value, key);
        if before.is_some() {
            self.counts.count("replacing upserts");
        }
        let is_in_place = before.is_some_and(|(_, old)| old == ranges);
        self.busy.insert((client, key));
        let writer = SlowWriter { key, client, value, until: self.ms() + RELEASE, ranges, is_written: false };
        self.respond(process, CallOutcome::Started(writer), is_in_place);
    }

    /// A random writer may write now. It may do so until the master releases its memory.
    pub(super) fn write_some(&mut self) {
        let now = self.ms();
        self.writers.retain(|writer| writer.until > now);
        if !self.writers.is_empty() {
            let nth = self.rng.below(self.writers.len());
            self.write(nth);
        }
    }

    pub(super) fn write(&mut self, nth: usize) {
        let beyond = if self.scribble { 64 } else { 0 };
        let writer = &mut self.writers[nth];
        writer.is_written = true;
        for (begin, end) in &writer.ranges {
            self.memory.write((begin.saturating_sub(beyond), end + beyond), writer.value);
        }
    }

    /// A random writer that has not timed out and waits for no response.
    fn writer(&mut self, is_written: bool) -> Option<usize> {
        let now = self.ms();
        self.writers.retain(|writer| writer.until > now);
        let may_call = |writer: &SlowWriter| {
            (writer.is_written || !is_written) && !self.busy.contains(&(writer.client, writer.key))
        };
        let all: Vec<usize> = (0..self.writers.len()).filter(|nth| may_call(&self.writers[*nth])).collect();
        (!all.is_empty()).then(|| all[self.rng.below(all.len())])
    }

    /// A client ends a write, or repeats a call whose response was lost.
    pub(super) fn end(&mut self, process: &mut Process<'_>) {
        let end = if !self.unknown_ends.is_empty() && self.chance(3) {
            let nth = self.rng.below(self.unknown_ends.len());
            self.counts.count("resent calls");
            self.unknown_ends.swap_remove(nth)
        } else {
            let Some(nth) = self.writer(true) else { return };
            let SlowWriter { client, key, value, .. } = self.writers[nth];
            UnknownEnd { client, key, value }
        };
        if !self.busy.contains(&(end.client, end.key)) {
            self.send_end(process, end);
        }
    }

    fn send_end(&mut self, process: &mut Process<'_>, end: UnknownEnd) {
        let UnknownEnd { client, key, value } = end;
        let object_checksum = self.chance(2).then_some(value);
        let key_text = name(key);
        let was_complete = complete_object(process, key).is_some();
        let meta = ObjectMeta { key: key_text.as_str().into(), object_checksum };
        if self.call(process, |call| call.put_end(ClientId(client, 0), meta, ReplicaType::ALL, T)).is_err() {
            return self.respond(process, CallOutcome::Nothing, false);
        }
        self.writers.retain(|writer| (writer.client, writer.key) != (client, key));
        if !was_complete {
            self.counts.count("completed writes");
            let sequence = self.trace.count();
            self.finished.push(FinishedWrite { sequence, key, value, must_be_kept: false, survives_power_loss: false });
        }
        self.made = self.finished.iter().rfind(|write| write.value == value).map_or(0, |write| write.sequence);
        self.busy.insert((client, key));
        self.respond(process, CallOutcome::Ended { client, key, value }, false);
    }

    pub(super) fn revoke(&mut self, process: &mut Process<'_>) {
        let Some(nth) = self.writer(false) else { return };
        let client = self.writers[nth].client;
        let key = self.writers[nth].key;
        let key_text = name(key);
        let revoke = self
            .call(process, |call| call.put_revoke(ClientId(client, 0), key_text.as_str().into(), ReplicaType::ALL, T));
        if revoke.is_err() {
            return self.respond(process, CallOutcome::Nothing, false);
        }
        self.writers.swap_remove(nth);
        self.counts.count("revokes");
        self.busy.insert((client, key));
        self.respond(process, CallOutcome::Revoked { client, key }, false);
    }

    pub(super) fn get(&mut self, process: &mut Process<'_>) {
        let key = self.key();
        let key_text = name(key);
        let list = self.call(process, |call| call.get_replica_list(key_text.as_str().into(), T));
        let outcome = match list {
            Ok(list) => {
                let until = self.ms() + self.lease;
                CallOutcome::Read(LeasedReader { key, until, ranges: ranges(&list.replicas) })
            }
            Err(_) => CallOutcome::Nothing,
        };
        self.respond(process, outcome, false);
    }

    pub(super) fn remove(&mut self, process: &mut Process<'_>) {
        let key = self.key();
        let force = self.chance(8);
        let key_text = name(key);
        if self.chance(20) {
            self.call(process, |call| call.remove_all(false, T));
        } else if self.call(process, |call| call.remove(key_text.as_str().into(), force, T)).is_ok() {
            self.counts.count("removals");
            if force {
                // It does not wait for leases, not even for those whose responses have not been
                // sent.
                self.readers.retain(|reader| reader.key != key);
                process.unsent().for_each(|response| response.outcome.end_read(key));
            }
        }
        self.respond(process, CallOutcome::Nothing, false);
    }

    pub(super) fn clear(&mut self, process: &mut Process<'_>) {
        let key = name(self.key());
        let client = ClientId(1 + self.rng.below(NODES) as u64, 0);
        let node = self.rng.below(NODES);
        let segment = if self.chance(2) { String::new() } else { super::world::node_name(node) };
        let keys = vec![key.as_str().into()];
        let cleared = self.call(process, |call| call.batch_replica_clear(keys, client, segment.as_str().into(), T));
        cleared.expect("valid");
        self.respond(process, CallOutcome::Nothing, false);
    }

    /// A caller that waits for a response sends its call again, over another connection.
    pub(super) fn resend(&mut self, process: &mut Process<'_>) {
        match process.resendable() {
            Some((CallOutcome::Ended { client, key, value }, _)) => {
                self.counts.count("resent calls");
                self.send_end(process, UnknownEnd { client, key, value });
            }
            Some((CallOutcome::Unmounted { client, segment, .. }, made)) => {
                self.counts.count("resent calls");
                self.send_unmount(process, client, segment, made);
            }
            _ => {}
        }
    }
}
