//! The methods that change nothing. They are processed while changes wait.

use mcctl_wire::Method;

/// Whether a method changes nothing that is recorded. In a cluster, the same ones are processed
/// during a hand-over.
pub(super) fn is_read(method: Method) -> bool {
    matches!(
        method,
        Method::ServiceReady
            | Method::Ping
            | Method::GetFsdir
            | Method::GetStorageConfig
            | Method::ExistKey
            | Method::BatchExistKey
            | Method::ProbeKey
            | Method::BatchProbeKey
            | Method::GetReplicaList
            | Method::BatchGetReplicaList
            | Method::GetReplicaListByRegex
    )
}
