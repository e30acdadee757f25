//! The election's records in a coordination service. [`ElectionBackend`] is the interface, and
//! [`EtcdElection`] keeps them in etcd.
//!
//! The leader's key is `mooncake-store/<cluster>/master_view`, as upstream's clients expect it. The
//! sync record is `mcctl/<cluster>/sync`, in JSON.
#![forbid(unsafe_code)]

mod backend;
mod etcd;
mod follow;
pub mod ha;

pub use backend::{ElectionBackend, ElectionError, ElectionWatch};
pub use etcd::{EtcdElection, cluster_name};
pub use follow::{LeaderSubscription, follow};
