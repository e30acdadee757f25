//! The hosts of an object's copies.

use std::collections::BTreeSet;

use crate::admin::types::{MemoryReplica, SegmentDetail};
use mcctl_base::HostPort;
use mcctl_base::addr::host_is_loopback;

/// The host of a segment: the one that its node reports, or the host in its name. `None` if neither
/// identifies a host.
pub fn segment_host(host_id: &str, name: &str) -> Option<String> {
    if !host_id.is_empty() {
        return Some(host_id.to_owned());
    }
    let (host, _) = HostPort::split(name).ok()?;
    (!host_is_loopback(&host)).then_some(host)
}

/// The hosts of an object's copies, sorted. `None` if the host of a copy is not known.
pub fn copy_hosts(replicas: &[MemoryReplica], segments: &[SegmentDetail]) -> Option<BTreeSet<String>> {
    let host = |replica: &MemoryReplica| {
        let segment = segments.iter().find(|segment| segment.te_endpoint == replica.endpoint)?;
        segment_host(&segment.host_id, &segment.segment_name)
    };
    replicas.iter().map(host).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn replica(endpoint: &str) -> MemoryReplica {
        MemoryReplica { bytes: 1, address: 0, protocol: "tcp".to_owned(), endpoint: endpoint.to_owned() }
    }

    fn segment(endpoint: &str, host_id: &str) -> SegmentDetail {
        SegmentDetail {
            segment_name: endpoint.to_owned(),
            te_endpoint: endpoint.to_owned(),
            host_id: host_id.to_owned(),
            ..SegmentDetail::default()
        }
    }

    #[test]
    fn the_reported_host_comes_before_the_host_in_the_name() {
        let segments = [
            segment("127.0.0.1:1", "a"),
            segment("127.0.0.1:2", "a"),
            segment("10.1.2.3:1", ""),
            segment("10.1.2.3:2", ""),
        ];
        let hosts = |endpoints: &[&str]| {
            let replicas: Vec<_> = endpoints.iter().map(|endpoint| replica(endpoint)).collect();
            copy_hosts(&replicas, &segments).map(|hosts| hosts.into_iter().collect::<Vec<_>>())
        };
        assert_eq!(hosts(&["127.0.0.1:1", "127.0.0.1:2"]), Some(vec!["a".to_owned()]));
        assert_eq!(hosts(&["127.0.0.1:1", "10.1.2.3:2"]), Some(vec!["10.1.2.3".to_owned(), "a".to_owned()]));
        assert_eq!(hosts(&["10.1.2.3:1", "10.1.2.3:2"]), Some(vec!["10.1.2.3".to_owned()]));
        assert_eq!(hosts(&["127.0.0.1:9"]), None);
        assert_eq!(segment_host("", "localhost:1"), None);
    }
}
