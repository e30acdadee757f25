//! Eviction: when memory runs low, objects are evicted to make room.
//!
//! [`index`] records which objects are being written, soft-pinned or evictable. It owns the parts
//! of the records that this depends on. An [`EvictionPolicy`] chooses among the evictable objects;
//! each policy is a file in this directory and a line in `eviction_policies!` below. [`round`]
//! decides when to evict and how many objects.

use crate::object::ObjectTable;
use crate::slots::ObjectSlot;
use mcctl_base::Mono;

pub(super) mod index;
pub(super) mod round;

mod lease_order;
mod list;

/// Chooses the next object to evict.
///
/// A policy contains the evictable objects, which are complete and have no pin.
/// [`index::EvictionIndex`] makes all calls. Between `insert` and `remove`, an object's lease
/// changes only immediately before `touch` or `postpone`. A policy may use `prev`, `next` and `tag`
/// of the objects that it contains, for example for a linked list ([`list::RecordList`]).
///
/// Calls run with the state locked, so the time that they take must not grow with the number of
/// objects.
trait EvictionPolicy {
    /// Adds an object: its write has ended, or its soft pin. Its lease may be over or not. `now` is
    /// the end of the write, or the time at which the expired pin was processed. An object that is
    /// written again is removed first.
    fn insert(&mut self, objects: &mut ObjectTable, at: ObjectSlot, now: Mono);
    /// Records a read. The object's lease, which ended at `before`, has been extended.
    fn touch(&mut self, objects: &mut ObjectTable, at: ObjectSlot, before: Mono);
    /// Records that the object is protected because another member of its group was read. The
    /// object's lease, which ended at `before`, has been set to the group's.
    fn postpone(&mut self, objects: &mut ObjectTable, at: ObjectSlot, before: Mono);
    /// Removes an object, because it is removed from the store or is no longer evictable.
    fn remove(&mut self, objects: &mut ObjectTable, at: ObjectSlot);
    /// Returns the next object to evict, or `None` if there is none. Its lease must have ended at
    /// or before `now`. A lease that ends at a recorded use ends at `restored_until`. The object
    /// remains in the policy until the index removes or postpones it.
    fn victim(&mut self, objects: &ObjectTable, now: Mono, restored_until: Mono) -> Option<ObjectSlot>;
}

/// Defines the list of policies: their names, and the enum that calls the policy in use. With an
/// enum, calls need no virtual dispatch.
macro_rules! eviction_policies {
    ($($(#[$meta:meta])* $name:ident => $policy:ty;)*) => {
        /// How the next object to evict is chosen.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub enum EvictionPolicyKind { $($(#[$meta])* $name),* }

        impl EvictionPolicyKind {
            /// All policies, in the order of the list.
            pub const ALL: &'static [EvictionPolicyKind] = &[$(EvictionPolicyKind::$name),*];
        }

        /// The policy in use.
        #[derive(Debug)]
        enum ActivePolicy { $($name($policy)),* }

        impl ActivePolicy {
            fn new(kind: EvictionPolicyKind) -> ActivePolicy {
                match kind { $(EvictionPolicyKind::$name => ActivePolicy::$name(<$policy>::default())),* }
            }
        }

        impl EvictionPolicy for ActivePolicy {
            #[inline]
            fn insert(&mut self, objects: &mut ObjectTable, at: ObjectSlot, now: Mono) {
                match self { $(ActivePolicy::$name(policy) => policy.insert(objects, at, now)),* }
            }

            #[inline]
            fn touch(&mut self, objects: &mut ObjectTable, at: ObjectSlot, before: Mono) {
                match self { $(ActivePolicy::$name(policy) => policy.touch(objects, at, before)),* }
            }

            #[inline]
            fn postpone(&mut self, objects: &mut ObjectTable, at: ObjectSlot, before: Mono) {
                match self { $(ActivePolicy::$name(policy) => policy.postpone(objects, at, before)),* }
            }

            #[inline]
            fn remove(&mut self, objects: &mut ObjectTable, at: ObjectSlot) {
                match self { $(ActivePolicy::$name(policy) => policy.remove(objects, at)),* }
            }

            #[inline]
            fn victim(&mut self, objects: &ObjectTable, now: Mono, restored_until: Mono) -> Option<ObjectSlot> {
                match self { $(ActivePolicy::$name(policy) => policy.victim(objects, now, restored_until)),* }
            }
        }
    };
}

eviction_policies! {
    /// The object whose lease ended first. Close to least recently used, because every read extends
    /// the lease by the same time. Upstream's order.
    #[default]
    LeaseOrder => lease_order::LeaseOrder;
}
