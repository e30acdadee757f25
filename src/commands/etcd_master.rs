//! A master address of the form `etcd://HOST:PORT;HOST:PORT`: the leader is found in etcd.

use std::time::Duration;

use crate::commands::error::Failure;
use crate::engine::base::HostPort;
use crate::engine::election::{ElectionBackend, EtcdElection};
use crate::engine::etcd::{EtcdClient, EtcdOptions};
use crate::engine::ha::LeaderKey;

/// The variable that names the cluster, for upstream's clients and for these.
const CLUSTER_ENV: &str = "MC_STORE_CLUSTER_ID";
const CLUSTER_DEFAULT: &str = "mooncake_cluster";

/// Whether this address names etcd instead of a master.
pub fn is_etcd(text: &str) -> bool {
    text.starts_with("etcd://")
}

/// The RPC address of the leader, which is read once.
///
/// # Errors
/// The address is invalid, etcd does not answer, or no master leads.
pub async fn leader(text: &str, origin: &str, limit: Duration) -> Result<HostPort, Failure> {
    let options = EtcdOptions::parse(text, limit)
        .map_err(|error| Failure::usage(format!("{origin} is not a valid address")).found(error.to_string()))?;
    let client = EtcdClient::new(options)
        .map_err(|error| Failure::host("cannot create a client of etcd").found(error.to_string()))?;
    let cluster = std::env::var(CLUSTER_ENV).ok().filter(|text| !text.is_empty());
    let cluster = cluster.unwrap_or_else(|| CLUSTER_DEFAULT.to_owned());
    let election = EtcdElection::new(client, &cluster);
    let tried = format!("read {} ({origin})", election.leader_key());
    let seen = election.observe().await.map_err(|error| {
        Failure::unreachable("cannot find the leader in etcd")
            .tried(tried.clone())
            .found(error.to_string())
            .next("check the address of etcd, or pass the leader's HOST:PORT")
    })?;
    let key = seen.leader.ok_or_else(|| {
        Failure::unreachable(format!("no master leads the cluster {cluster}"))
            .tried(tried.clone())
            .found("the key does not exist")
            .next(format!("start a master with --enable-ha, or set {CLUSTER_ENV} to the masters' --cluster-id"))
    })?;
    let starting = || {
        Failure::unreachable(format!("the leader of the cluster {cluster} is not ready"))
            .tried(tried.clone())
            .found(format!("the key contains {}", key.address))
            .next("try again")
    };
    if key.address.starts_with(LeaderKey::WARMING) {
        return Err(starting());
    }
    key.address.parse().map_err(|_| starting())
}
