//! Failures of operations on objects, as messages.

use crate::commands::args::show_duration;
use crate::commands::discovery;
use crate::commands::error::{Exit, Failure, chain};
use crate::commands::master_target::MasterTarget;
use crate::commands::origin::Origin;
use crate::commands::transport;
use crate::engine::base::ErrorCode;
use crate::engine::metadata::MetadataUri;
use crate::engine::store::StoreError;
use crate::engine::transfer::{TransferError, TransferStep};
use crate::engine::upstream::SERIES;

/// The failure for `error`, which occurred while trying to `what`. If the metadata mode may be the cause, the client's mode is compared
/// with the nodes' mode.
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
        _ => failure,
    }
}

/// `failure`, with the nodes' metadata mode if it differs from `metadata`. A discovered mode is not compared again.
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
    use crate::commands::master_target::MasterArgs;
    use crate::engine::metadata::MetadataError;

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
