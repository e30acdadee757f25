//! High availability: which master of a cluster leads, which standbys have all changes that it
//! acknowledged, and until when it may answer.
//!
//! [`HaCore`] has the rules. It has neither sockets nor a clock. Its caller passes it [`HaEvent`]s
//! and performs the [`HaAction`]s that it returns. Two records decide who leads:
//!
//! * The key `mooncake-store/<cluster>/master_view` ([`LeaderKey`]), which upstream's clients read.
//!   It is created, never overwritten, and belongs to a lease. Its create revision is the *view*.
//! * The sync record ([`SyncRecord`]), which lists the masters that have everything that was
//!   acknowledged. It is written only in a transaction that compares its last revision. A master is
//!   elected by a transaction that creates the key *and* writes this record. So while a leader's
//!   sync record is unchanged, no other master leads.
//!
//! A leader answers only before its *fence*: no other master can have been elected before that
//! time. There are two proofs. Its lease: the key cannot expire earlier than one TTL after the last
//! renewal was *sent*. The promises of all standbys in sync: only they can be elected, and each has
//! promised not to stand for election for a while after it received a ping. With the second proof,
//! the leader can answer while etcd is unreachable. Both are measured from the time of sending, on
//! a clock that counts suspended time.
//!
//! In sync mode, a response waits until every required standby has acknowledged its changes. A
//! standby becomes required before the sync record lists it, and stays required until a record
//! without it is written. So each listed standby has everything that was acknowledged.
//!
//! When the last standby leaves the record, the leader writes a barrier to it. A copy that is not
//! older than the barrier keeps its objects if it is promoted without being in sync: see `reuse`.
//! Before an election, the candidates in sync compare their last changes: see `offers`.
//!
//! The fast path revokes the lease of a leader whose stream was closed and whose port refuses
//! connections. A firewall that rejects connections has the same effect. The leader is then alive,
//! and may answer reads until it finds its key deleted. It cannot acknowledge changes, because they
//! wait for the standby that has revoked the lease.

mod action;
mod candidate;
mod config;
mod core;
mod event;
mod follower;
mod followership;
pub mod frame;
mod hand_over;
mod leader;
mod leadership;
mod limits;
mod member;
pub mod message;
mod offers;
pub mod planted;
mod queries;
mod record;
mod replica_set;
mod reuse;
pub mod stage;
mod state;
mod sync_record;
mod timers;

pub use action::{DiscardReason, HaAction, HaMessage, HandOverProblem, RevokeReason, StandbyAck, StopReason};
pub use config::{AckMode, HaConfig, NotInSyncPolicy};
pub use event::HaEvent;
pub use limits::{ResponseGate, ResponseLimits};
pub use member::{HistoryId, MemberId, MemberInfo, ParseMemberIdError};
pub use offers::{CandidateOffer, OfferTxn};
pub use queries::OutageLimit;
pub use record::{ElectionTxn, HandOverTxn, LeaderKey, Observation, SyncRecord, SyncTxn, TxnOutcome};
pub use replica_set::{Replica, ReplicaPhase};
pub use state::{HaCore, HaRole, HaStatus};
pub use timers::HaTimer;

#[cfg(test)]
mod tests;
