//! Removes an object whose only replica a client has found damaged.

use crate::state::MasterState;
use mcctl_base::Mono;
use mcctl_wire::withdrawal::ReplicaWithdrawal;

impl MasterState {
    /// Removes the object if it still has this replica, no other one, and this checksum. Unlike a
    /// forced removal, its memory is not reused while a reader has a lease. Returns false and
    /// changes nothing otherwise: the object was rewritten, is being written, or has another
    /// replica, which readers use.
    pub fn withdraw(&mut self, now: Mono, key: &[u8], damaged: ReplicaWithdrawal) -> bool {
        let Some(at) = self.find(key) else { return false };
        let object = &self.objects[at];
        let is_same = !object.eviction.is_writing()
            && object.more_replicas().is_empty()
            && object.replica.id == damaged.replica_id
            && object.eviction.checksum() == Some(damaged.checksum);
        if !is_same {
            return false;
        }
        let lease = self.lease_until(at);
        if now < lease {
            self.discard(at, now, lease)
        } else {
            self.erase(at)
        }
        true
    }
}
