//! Reads a master's admin HTTP endpoint. A route that an older release lacks is not an error.

use crate::cluster::facts::{ListedSegment, SegmentListing};
use crate::{Fact, Unavailable};
use mcctl_base::text::escaped;
use mcctl_metadata::admin::types::{MasterHealth, MemoryUsage, SegmentDetail};
use mcctl_metadata::admin::{AdminClient, AdminError, AdminErrorKind};
use mcctl_net::http::Samples;
use mcctl_sys::env::Env;

/// Maximum number of segments inspected. Any further segments are not judged.
const SEGMENTS_MAX: usize = 4096;

/// Reads the master's health. Its texts are escaped, because they are shown in reports.
pub(super) async fn health(admin: &AdminClient) -> Fact<MasterHealth> {
    let health = admin.health().await.map_err(|error| match error.kind {
        AdminErrorKind::Unexpected { status, body, .. } => {
            let kind = AdminErrorKind::Status { status, body };
            Unavailable::from(format!("{kind}: not a master health document"))
        }
        kind => Unavailable::new(kind),
    })?;
    Ok(MasterHealth {
        role: escaped(&health.role),
        ha_state: escaped(&health.ha_state),
        leader_address: health.leader_address.filter(|leader| !leader.is_empty()).map(|leader| escaped(&leader)),
        ..health
    })
}

/// Reads the metrics of a master; `None` if there are none.
pub(super) async fn metrics(admin: &AdminClient) -> Option<Samples> {
    admin.metrics().await.ok().filter(|samples| !samples.is_empty())
}

/// Lists the mounted segments: with details, or only their names if the master is older than
/// 0.3.12.
pub(super) async fn segments<E: Env>(env: &E, admin: &AdminClient) -> Fact<SegmentListing> {
    const NOT_FOUND: u16 = 404;
    let asked = env.now();
    let (is_detailed, segments) = match admin.segments().await {
        Ok(segments) => (true, segments.into_iter().take(SEGMENTS_MAX).map(listed).collect()),
        Err(AdminError { kind: AdminErrorKind::Status { status: NOT_FOUND, .. }, .. }) => {
            let names = admin.segment_names().await.map_err(unavailable)?;
            (false, names.into_iter().take(SEGMENTS_MAX).map(named).collect())
        }
        Err(error) => return Err(unavailable(error)),
    };
    Ok(SegmentListing { is_detailed, segments, took: env.now().since(asked) })
}

fn unavailable(error: AdminError) -> Unavailable {
    match error.kind {
        AdminErrorKind::Unexpected { reason, .. } => Unavailable::from(format!("{}: {reason}", error.route)),
        kind => Unavailable::new(kind),
    }
}

fn listed(segment: SegmentDetail) -> ListedSegment {
    let usage = MemoryUsage { used: segment.allocator_used_bytes, capacity: segment.allocator_capacity_bytes };
    ListedSegment {
        endpoint: match segment.te_endpoint.is_empty() {
            true => segment.segment_name.clone(),
            false => segment.te_endpoint,
        },
        name: segment.segment_name,
        client: segment.client_id,
        bytes: segment.size_bytes,
        protocol: segment.protocol,
        host: segment.host_id,
        status: segment.status,
        usage: (usage.capacity > 0).then_some(usage),
    }
}

fn named(name: String) -> ListedSegment {
    ListedSegment { endpoint: name.clone(), name, ..ListedSegment::default() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use mcctl_metadata::admin::types::SegmentsDetail;

    #[test]
    fn segments_are_read_from_both_lists() {
        let detail = r#"{"total_segments":1,"segments":[{"segment_name":"localhost:12805","segment_id":"1-2","client_id":"3-4",
            "base_address":"0x7f","size_bytes":67108864,"size_human":"0.0625 GiB","te_endpoint":"10.77.0.1:15825","protocol":"tcp",
            "status":"OK","allocator_used_bytes":10,"allocator_capacity_bytes":67108864,"allocator_usage_percent":0.0}]}"#;
        let detail: SegmentsDetail = serde_json::from_str(detail).expect("segments");
        let segments: Vec<ListedSegment> = detail.segments.into_iter().map(listed).collect();
        assert_eq!(
            (&*segments[0].endpoint, segments[0].bytes, &*segments[0].client),
            ("10.77.0.1:15825", 64 << 20, "3-4")
        );
        assert_eq!(segments[0].usage, Some(MemoryUsage { used: 10, capacity: 64 << 20 }));
        assert_eq!(named("a:1".to_owned()).endpoint, "a:1");
    }
}
