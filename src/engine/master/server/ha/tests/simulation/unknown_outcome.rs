//! Calls of clients that end without a result: the response is lost, the call was not processed, or
//! the client's process ends.

use super::client::SentRequest;
use super::event::Event;
use super::model::KeyState;
use super::operation::{Operation, WriteEnd, WriteStart};
use super::world::World;

impl World {
    /// The call ended without a response. It may have been processed, or may still be.
    pub(super) fn fail_call(&mut self, nth: usize, call: u64) {
        let client = &mut self.clients[nth];
        if client.call != call {
            return;
        }
        let Some(sent) = client.sent.take() else { return };
        client.target = None;
        self.note_unknown_outcome(nth, sent);
        self.after(20_000, Event::Client(nth));
    }

    /// The outcome of a request is unknown. It may also arrive later.
    fn note_unknown_outcome(&mut self, nth: usize, sent: SentRequest) {
        let client = &mut self.clients[nth];
        match sent.operation {
            Operation::End(_) => client.write.iter_mut().for_each(|write| write.ends_lost += 1),
            Operation::Start(WriteStart { key, is_upsert, writer, .. }) => {
                if is_upsert {
                    self.model.end_change(&key, KeyState::Unknown);
                }
                client.lost_start = Some(WriteEnd { key, is_upsert, writer });
            }
            Operation::Remove(key) => self.model.end_change(&key, KeyState::Unknown),
            Operation::Unmount => self.mount_another(nth),
            Operation::Mount
            | Operation::Register
            | Operation::Ping
            | Operation::Read(_)
            | Operation::Exist(_)
            | Operation::Revoke(_) => {}
        }
    }

    /// The client mounts another segment from now on, and does not serve the memory of the one
    /// before, which a late request may mount again.
    pub(super) fn mount_another(&mut self, nth: usize) {
        self.last_number += 1;
        let client = &mut self.clients[nth];
        self.ended_segments.insert(client.segment);
        client.segment = self.last_number;
        client.is_mounted = false;
    }

    /// The client's process ends, with its memory, and another one starts.
    pub(super) fn restart_client(&mut self, nth: usize) {
        let segment = self.clients[nth].segment;
        self.lose_segment(segment);
        let client = &mut self.clients[nth];
        let sent = client.sent.take();
        let write = client.write.take();
        client.call += 1;
        client.target = None;
        client.must_register = false;
        if let Some(sent) = sent {
            self.note_unknown_outcome(nth, sent);
        }
        if let Some(write) = write.filter(|write| write.is_end_sent) {
            self.model.end_change(&write.end.key, KeyState::Unknown);
        }
        self.clients[nth].lost_start = None;
        self.last_number += 1;
        self.clients[nth].process = self.last_number;
        self.mount_another(nth);
        self.after(1_000_000, Event::Client(nth));
    }

    /// A request was not processed.
    pub(super) fn note_refusal(&mut self, nth: usize, sent: SentRequest) {
        match sent.operation {
            // The end is sent again.
            Operation::End(_) => {}
            Operation::Start(WriteStart { key, .. }) | Operation::Remove(key) => {
                if let Some(before) = sent.before {
                    self.model.end_change(&key, before);
                }
            }
            Operation::Unmount => self.mount_another(nth),
            Operation::Revoke(_)
            | Operation::Mount
            | Operation::Register
            | Operation::Ping
            | Operation::Read(_)
            | Operation::Exist(_) => {}
        }
    }
}
