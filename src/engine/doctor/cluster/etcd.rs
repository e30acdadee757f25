//! Reads the record of the leading master from etcd.
//!
//! The key is `mooncake-store/<cluster id>/master_view`, and the value is `host:port`.

use std::time::Duration;

use crate::cluster::facts::LeaderRecord;
use crate::{Fact, Unavailable};
use mcctl_base::text::escaped;
use mcctl_net::etcd::{EtcdClient, EtcdOptions};

/// The common prefix of all clusters' keys.
const PREFIX: &str = "mooncake-store/";
/// Maximum number of keys to read.
const KEYS_MAX: u32 = 64;

/// The etcd servers and the Mooncake cluster to look up.
#[derive(Clone, Debug)]
pub struct Etcd {
    pub servers: EtcdOptions,
    /// `MC_STORE_CLUSTER_ID`; the default is `mooncake_cluster`.
    pub cluster: String,
}

impl Etcd {
    /// Parses `h:p;h:p`, the part after `etcd://`. Upstream's clients do not accept a slash at the
    /// end, so this does not either. A request takes at most `limit`.
    ///
    /// # Errors
    /// An entry in the list is not an address, or the list is empty.
    pub fn parse(list: &str, cluster: &str, limit: Duration) -> Fact<Etcd> {
        if list.ends_with('/') && !list.ends_with("//") {
            return Err("there is a slash at the end".into());
        }
        let servers = EtcdOptions::parse(list, limit).map_err(Unavailable::new)?;
        Ok(Etcd { servers, cluster: cluster.to_owned() })
    }
}

/// Beginning of the value that masters store before their address, while they get ready.
const WARMING: &str = "__mooncake_service_warming__:";

/// Whether the value of a leader's record states that the leader is getting ready.
pub fn is_warming(value: &str) -> bool {
    value.starts_with(WARMING)
}

/// Reads the leader's record.
pub async fn leader(etcd: &Etcd) -> LeaderRecord {
    let key = format!("{PREFIX}{}/master_view", etcd.cluster);
    let read = async { EtcdClient::new(etcd.servers.clone())?.get_prefix(PREFIX, KEYS_MAX).await };
    let pairs = match read.await {
        Err(why) => return LeaderRecord { key, found: Err(Unavailable::new(why)), others: Vec::new() },
        Ok(range) => range.pairs,
    };
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let found = pairs.iter().find(|pair| pair.key == key.as_bytes()).map(|pair| escaped(&text(&pair.value)));
    let others = pairs.iter().map(|pair| escaped(&text(&pair.key)));
    let others = others.filter(|other| *other != key && other.ends_with("/master_view")).collect();
    LeaderRecord { key, found: Ok(found), others }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_are_separated_by_semicolons() {
        let parse = |list: &str| Etcd::parse(list, "blue", Duration::from_secs(1));
        assert_eq!(parse("10.0.0.1:2379;10.0.0.2:2379").expect("addresses").servers.endpoints.len(), 2);
        assert!(parse("").is_err() && parse("10.0.0.1:2379/").is_err());
    }
}
