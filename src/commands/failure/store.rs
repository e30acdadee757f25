//! Failures of operations on objects, as messages.

use std::collections::BTreeMap;

use crate::commands::cli::args::show_duration;
use crate::commands::cli::error::{Exit, Failure, chain};
use crate::commands::cli::origin::Origin;
use crate::commands::target::discovery;
use crate::commands::target::master_target::MasterTarget;
use crate::commands::target::transport;
use crate::engine::admin::types::SegmentDetail;
use crate::engine::base::text::counted;
use crate::engine::base::{ByteSize, ErrorCode};
use crate::engine::metadata::MetadataUri;
use crate::engine::store::StoreError;
use crate::engine::transfer::{TransferError, TransferStep};
use crate::engine::upstream::SERIES;

/// `failure`, with the use of the store's memory, if the master's admin HTTP endpoint reports it.
async fn with_memory(failure: Failure, master: &MasterTarget, what: &str) -> Failure {
    let Ok(admin) = master.admin() else { return failure };
    match admin.segments().await {
        Ok(segments) if segments.is_empty() => Failure::no(format!("cannot {what}: no node has mounted a segment"))
            .tried(failure.tried.unwrap_or_default())
            .next("start a node (mcctl serve store), or wait for it: mcctl status shows the segments"),
        Ok(segments) => failure.found(memory_text(&segments)),
        Err(_) => failure,
    }
}

/// `failure`, with the number of restored replicas that cannot be read until their nodes call.
async fn with_missing_nodes(failure: Failure, master: &MasterTarget) -> Failure {
    let Ok(admin) = master.admin() else { return failure };
    let Ok(segments) = admin.segments().await else { return failure };
    match segments.iter().filter_map(|segment| segment.unconfirmed_replicas).sum() {
        0 => failure,
        replicas => failure
            .found(format!(
                "or it is one of {} that wait for nodes, which have not called since the master restarted or was replaced",
                counted(replicas, "replica")
            ))
            .next("retry in a few seconds; mcctl status names the missing nodes, and mcctl store ls lists the keys"),
    }
}

/// The use of the segments' memory, and which of them accept no new objects.
fn memory_text(segments: &[SegmentDetail]) -> String {
    // Usage is reported by name, for all segments with the name together.
    let by_name: BTreeMap<&str, &SegmentDetail> =
        segments.iter().map(|segment| (segment.segment_name.as_str(), segment)).collect();
    let sum = |bytes: fn(&SegmentDetail) -> u64| by_name.values().map(|segment| bytes(segment)).sum();
    let (used, capacity) =
        (sum(|segment| segment.allocator_used_bytes), sum(|segment| segment.allocator_capacity_bytes));
    let is_closed = |segment: &&SegmentDetail| segment.held_ms.is_some() || segment.unconfirmed_ms.is_some();
    let closed = segments.iter().filter(is_closed).count();
    let mut text = format!(
        "{} of {} are used, in {}",
        ByteSize(used),
        ByteSize(capacity),
        counted(segments.len() as u64, "segment")
    );
    if closed > 0 {
        let longest = segments.iter().filter_map(|segment| segment.held_ms).max();
        let time = longest.map_or(String::new(), |ms| format!(" for up to {} s", ms.div_ceil(1000)));
        text.push_str(&format!(", {closed} of which accept no new objects{time}"));
    }
    text
}

/// The failure for `error`, which occurred while trying to `what`. If the metadata mode may be the
/// cause, the client's mode is compared with the nodes' mode.
pub async fn explained(
    master: &MasterTarget,
    metadata: &Origin<MetadataUri>,
    what: &str,
    error: &StoreError,
) -> Failure {
    let failure = failure(master, what, error);
    match error {
        StoreError::Transfer { source: TransferError::Device(_), .. } => failure,
        StoreError::Transfer { .. } => compared(failure, master, metadata).await,
        StoreError::Refused { code: ErrorCode::NO_AVAILABLE_HANDLE, .. } => with_memory(failure, master, what).await,
        StoreError::Refused { code: ErrorCode::OBJECT_NOT_FOUND, .. } => with_missing_nodes(failure, master).await,
        _ => failure,
    }
}

/// `failure`, with the nodes' metadata mode if it differs from `metadata`. A discovered mode is not
/// compared again.
pub async fn compared(failure: Failure, master: &MasterTarget, metadata: &Origin<MetadataUri>) -> Failure {
    match metadata.is_given() {
        true => discovery::explained(failure, master, &metadata.value, &metadata.origin.to_string()).await,
        false => failure,
    }
}

/// The failure for `error`, which occurred while trying to `what`.
pub fn failure(master: &MasterTarget, what: &str, error: &StoreError) -> Failure {
    let cannot = format!("cannot {what}");
    let failure = match error {
        StoreError::Call(call) => return master.failure(call),
        StoreError::Version { .. } => {
            Failure::unreachable(format!("{} is not a Mooncake {SERIES} master", master.at))
                .found(error.to_string())
                .next("pass the address of a different master with --master HOST:PORT")
        }
        StoreError::Refused { code: ErrorCode::OBJECT_NOT_FOUND, .. } => {
            Failure::not_found(format!("{cannot}: the object does not exist")).next("mcctl store ls lists the keys")
        }
        StoreError::Refused { code: ErrorCode::REPLICA_IS_NOT_READY, .. } => Failure::no(format!(
            "{cannot}: the put has not finished"
        ))
        .next("retry; the master drops an unfinished put after --put-start-release-timeout-sec, 600 s by default, and accepts another put of the key after 30 s"),
        StoreError::Refused { code: ErrorCode::NO_AVAILABLE_HANDLE, .. } => {
            Failure::no(format!("{cannot}: no segment has enough free memory"))
                .next("run mcctl status to see which nodes have mounted segments, and their usage. Objects that are hard-pinned or under a read lease are not evicted, and a node that has come back accepts new \
                     objects after 30 s")
        }
        StoreError::Empty { .. } => {
            Failure::usage(format!("{cannot}: the object is empty, but the minimum object size is 1 byte"))
        }
        StoreError::Transfer { source: TransferError::Metadata(error), .. } => {
            Failure::unreachable(format!("{cannot}: invalid response from the metadata service"))
                .found(chain(error.as_ref()))
                .next("restart the metadata service (mcctl serve metadata, or the master that embeds it); the nodes may be healthy")
        }
        StoreError::Transfer { source: TransferError::Device(fault), endpoint, .. } => {
            let (exit, cause) = match transport::exit(fault) {
                Exit::Host => (Exit::Host, "an RDMA device on this host failed".to_owned()),
                exit => (exit, format!("the RDMA transfer with node {endpoint} failed")),
            };
            Failure::new(exit, format!("{cannot}: {cause}"))
                .found(chain(error))
                .next(transport::next(fault, "the node"))
        }
        StoreError::Transfer { endpoint, source, .. } => {
            let why = match source {
                TransferError::Lost {
                    step: TransferStep::Resolve | TransferStep::Connect | TransferStep::Handshake,
                    source,
                    ..
                } => {
                    format!("cannot connect to node {endpoint}: {source}")
                }
                TransferError::Timeout {
                    step: TransferStep::Resolve | TransferStep::Connect | TransferStep::Handshake,
                    limit,
                    ..
                } => format!(
                    "cannot connect to node {endpoint}: no response within {}",
                    show_duration(*limit)
                ),
                TransferError::UnknownSegment { .. } => {
                    format!(
                        "the metadata service has no record for node {endpoint}: does the node use the same --metadata-server?"
                    )
                }
                _ => format!("{cannot}: the transfer with node {endpoint} failed"),
            };
            Failure::unreachable(why)
                .found(format!("{cannot}: {}", chain(error)))
                .next("run mcctl status to list the nodes; check that the node is running and reachable from this host")
        }
        StoreError::NoMemory { .. } => {
            Failure::host(format!("{cannot}: this host does not have enough free memory for the object")).found(error.to_string())
        }
        StoreError::OutcomeUnknown { source, .. } => {
            let mut failure = failure(master, what, source);
            failure.next = Some("run mcctl store exists KEY: it is unknown whether the object is stored".to_owned());
            return failure;
        }
        StoreError::Damaged { .. } => Failure::no(cannot)
            .found(chain(error))
            .next("run mcctl store verify KEY to check each replica, and see docs/TROUBLESHOOTING.md"),
        other => Failure::no(cannot).found(chain(other)),
    };
    match failure.tried {
        Some(_) => failure,
        None => failure.tried(format!("master {} ({})", master.at, master.origin)),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use super::*;
    use crate::commands::target::master_target::MasterArgs;
    use crate::engine::metadata::MetadataError;

    #[test]
    fn a_full_store_is_described_with_numbers() {
        let segment = |name: &str, used: u64, held_ms| SegmentDetail {
            segment_name: name.to_owned(),
            allocator_used_bytes: used << 20,
            allocator_capacity_bytes: 64 << 20,
            held_ms,
            ..SegmentDetail::default()
        };
        let full = segment("a:1", 60, None);
        let held = segment("b:1", 0, Some(22_500));
        assert_eq!(memory_text(&[full.clone(), full.clone()]), "60 MiB of 64 MiB are used, in 2 segments");
        let text = memory_text(&[full, held]);
        assert_eq!(text, "60 MiB of 128 MiB are used, in 2 segments, 1 of which accept no new objects for up to 23 s");
    }

    #[test]
    fn a_stuck_metadata_service_is_named_instead_of_the_node() {
        let args = MasterArgs {
            master: Some("m:1".to_owned()),
            admin: None,
            timeout: Duration::from_secs(1),
            ..MasterArgs::default()
        };
        let stuck = MetadataError::Timeout {
            url: "http://m:2/metadata".to_owned(),
            key: "mooncake/ram/n".to_owned(),
            limit: Duration::from_secs(1),
        };
        let error = StoreError::Transfer {
            key: "k".into(),
            endpoint: "n:3".to_owned(),
            writing: false,
            source: TransferError::Metadata(Arc::new(stuck)),
        };
        let failure = failure(&args.resolve().expect("an address"), "get 'k'", &error);
        assert_eq!(failure.exit, Exit::Unreachable);
        assert!(failure.what.contains("metadata service") && !failure.what.contains("n:3"), "{failure}");
        assert!(failure.found.is_some_and(|found| found.contains("http://m:2/metadata")));
    }
}
