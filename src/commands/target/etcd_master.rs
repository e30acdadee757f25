//! A master address of the form `etcd://HOST:PORT;HOST:PORT`: the leader is found in etcd, and
//! followed.

use std::time::Duration;

use crate::commands::cli::args::show_duration;
use crate::commands::cli::error::Failure;
use crate::commands::target::etcd_access;
use crate::engine::base::HostPort;
use crate::engine::election::{self, EtcdElection};
use crate::engine::env::{RealEnv, deadline, timed};
use crate::engine::rpc::ServerAddress;

/// The variable that names the cluster, for upstream's clients and for these.
const CLUSTER_ENV: &str = "MC_STORE_CLUSTER_ID";
const CLUSTER_DEFAULT: &str = "mooncake_cluster";
/// Maximum time for a request of the follower, which may run as long as the process.
const REQUEST_MAX: Duration = Duration::from_secs(2);

/// The leader of a cluster of masters.
#[derive(Debug)]
pub struct ClusterLeader {
    /// Its RPC address now.
    pub at: HostPort,
    /// Its RPC address as it changes.
    pub followed: ServerAddress,
}

/// Whether this address names etcd instead of a master.
pub fn is_etcd(text: &str) -> bool {
    text.starts_with("etcd://")
}

/// Finds the leader and follows it. Reading its key and waiting until a master leads take at most
/// `limit` together.
///
/// # Errors
/// The address is invalid, etcd does not answer, or no master leads.
pub async fn find(text: &str, origin: &str, limit: Duration) -> Result<ClusterLeader, Failure> {
    let env = RealEnv::new();
    let request_limit = limit.min(REQUEST_MAX);
    let client = etcd_access::client(etcd_access::servers(text, origin, request_limit)?)?;
    let cluster = std::env::var(CLUSTER_ENV).ok().filter(|text| !text.is_empty());
    let cluster = cluster.unwrap_or_else(|| CLUSTER_DEFAULT.to_owned());
    let election = EtcdElection::new(client, election::cluster_name(&cluster));
    let tried = format!("read {} ({origin})", election.leader_key());
    let (found, spent) = timed(&env, election::follow(env.clone(), election)).await;
    let found = found.map_err(|error| {
        Failure::unreachable("cannot find the leader in etcd")
            .tried(tried.clone())
            .found(error.to_string())
            .next("check the address of etcd, or pass the leader's HOST:PORT")
    })?;
    let followed = ServerAddress::Leader(found.leader);
    let waited = deadline(&env, limit.saturating_sub(spent), followed.leading()).await;
    let at = waited.map_err(|_| match found.first {
        None => Failure::unreachable(format!("no master leads the cluster {cluster}"))
            .tried(tried.clone())
            .found(format!("the key did not exist for {}", show_duration(limit)))
            .next(format!("start a master with --enable-ha, or set {CLUSTER_ENV} to the masters' --cluster-id")),
        Some(value) => Failure::unreachable(format!("the leader of the cluster {cluster} is not ready"))
            .tried(tried.clone())
            .found(format!("the key contained {value} and no address for {}", show_duration(limit)))
            .next("look at the masters' logs"),
    })?;
    Ok(ClusterLeader { at, followed })
}
