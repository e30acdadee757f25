//! Why a request to etcd failed.

use std::time::Duration;

use mcctl_base::time::RoundedDuration;

/// gRPC codes with which etcd refuses a request before it changes anything: invalid argument, not
/// found, already exists, permission denied, failed precondition, out of range, unimplemented and
/// unauthenticated. After any other code, the request may have been processed.
const REFUSALS: [u32; 8] = [3, 5, 6, 7, 9, 11, 12, 16];

/// A request to etcd failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EtcdError {
    /// No server accepted a connection. Nothing was changed.
    #[error("cannot connect to etcd: {0}")]
    Unreachable(String),
    /// The request was sent, and no complete response came. It may have been processed.
    #[error("no response from etcd: {0}")]
    Unanswered(String),
    /// No response came within this time. The request may have been processed.
    #[error("no response from etcd within {}", RoundedDuration(*.0))]
    Timeout(Duration),
    /// etcd refused the request. Nothing was changed.
    #[error("etcd refused the request: {message} (code {code})")]
    Refused { code: u32, message: String },
    /// A user is given, and etcd does not use authentication. Nothing was changed.
    #[error("etcd refused the login: its authentication is not enabled; unset ETCDCTL_USER")]
    NoAuthentication,
    /// etcd reported a failure. The request may have been processed.
    #[error("etcd failed to process the request: {message} (code {code})")]
    Failed { code: u32, message: String },
    /// The server does not serve the JSON gateway.
    #[error("{0} does not serve etcd's JSON gateway; start etcd without --enable-grpc-gateway=false")]
    NoGateway(String),
    /// The response is not what etcd sends.
    #[error("unexpected response from etcd: {0}")]
    Unexpected(String),
    /// The watch ended. Read the keys again, and start another one.
    #[error("the watch ended: {0}")]
    WatchEnded(String),
    /// The client cannot be set up on this host.
    #[error("{0}")]
    Unusable(String),
}

impl EtcdError {
    /// The error with this gRPC code.
    pub(super) fn of_code(code: u32, message: String) -> EtcdError {
        if REFUSALS.contains(&code) {
            EtcdError::Refused { code, message }
        } else {
            EtcdError::Failed { code, message }
        }
    }

    /// Whether the request may have been processed, or may still be.
    pub fn outcome_is_unknown(&self) -> bool {
        matches!(
            self,
            EtcdError::Unanswered(_) | EtcdError::Timeout(_) | EtcdError::Failed { .. } | EtcdError::Unexpected(_)
        )
    }
}
