//! Locating segments: a client for the metadata service (over HTTP, or etcd), and the HTTP service
//! itself.
//!
//! Values are opaque: nothing in this directory parses a segment descriptor (`wire::json` does).
//! With `P2PHANDSHAKE`, there is no metadata service, and no code in this directory runs.
//!
//! Start with [`MetadataClient`], or with the service in `service.rs`. Upstream:
//! `transfer_metadata_plugin.cpp` and the HTTP metadata servers.
#![forbid(unsafe_code)]

pub mod admin;
mod attempts;
pub mod backend;
pub mod change;
mod client;
mod data_dir;
pub mod discovery;
mod forward;
mod key;
pub mod probe;
mod proxy;
pub mod records;
mod response_body;
mod restore;
mod service;
mod store;
mod uri;

pub use client::{CallLimits, MetadataClient};
pub use data_dir::open_data_dir;
pub use forward::{ForwardError, MetadataForwarder, is_forwarded};
pub use key::KeySpace;
pub use proxy::{ForwardTargets, MetadataProxy, ParseForwardTargetsError};
pub use restore::{MetadataJournalError, MetadataRestoreReport, read_records};
pub use service::{KeyParsing, MetadataService};
pub use uri::{MetadataUri, ParseMetadataUriError};

/// What a client shows to a service over HTTP. Re-exported for the owners of clients.
pub use mcctl_net::http::HttpCredentials;

use std::time::Duration;

use mcctl_base::time::RoundedDuration;
use mcctl_net::etcd::EtcdError;
use mcctl_net::http::TlsMistake;

/// Why a call to the metadata service failed.
#[derive(Debug, thiserror::Error)]
pub enum MetadataError {
    /// The URL is invalid.
    #[error("'{url}' is not a metadata service URL: {reason}")]
    BadUrl {
        url: String,
        /// The problem with the URL.
        reason: String,
    },
    /// TLS could not be set up on this host.
    #[error("cannot set up an HTTP client for {url}")]
    Setup {
        url: String,
        /// The HTTP library's error.
        #[source]
        source: reqwest::Error,
    },
    /// The service could not be reached, or the connection broke.
    #[error("cannot reach the metadata service {url} for key {key}{}", tls_hint(source))]
    Unreachable {
        url: String,
        /// The key of the record.
        key: String,
        /// The HTTP library's error.
        #[source]
        source: reqwest::Error,
    },
    /// The response was not complete within the timeout.
    #[error("no response from the metadata service {url} for key {key} within {}", RoundedDuration(*limit))]
    Timeout {
        url: String,
        /// The key of the record.
        key: String,
        /// Timeout for the call.
        limit: Duration,
    },
    /// The service returned a status other than 200.
    #[error("the metadata service {url} returned status {status} for key {key}: {text}")]
    Refused {
        url: String,
        /// The key of the record.
        key: String,
        status: u16,
        /// The start of the response body.
        text: String,
    },
    /// A request to etcd as the metadata service failed.
    #[error("the metadata service {url} failed for key {key}")]
    Etcd {
        url: String,
        /// The key of the record.
        key: String,
        #[source]
        source: EtcdError,
    },
    /// The record is larger than any descriptor can be.
    #[error("the metadata service {url} returned more than {limit} bytes for key {key}")]
    TooLarge {
        url: String,
        /// The key of the record.
        key: String,
        limit: usize,
    },
}

impl MetadataError {
    /// Returns true if another process owns this name (`rpc_meta` exists with different content).
    pub fn is_duplicate(&self) -> bool {
        matches!(self, MetadataError::Refused { status: 400, text, .. } if text.contains("Duplicate rpc_meta"))
    }

    /// The same error for the service or the services at `shown`.
    fn at(self, shown: &str) -> MetadataError {
        let url = shown.to_owned();
        match self {
            MetadataError::Unreachable { key, source, .. } => MetadataError::Unreachable { url, key, source },
            MetadataError::Timeout { key, limit, .. } => MetadataError::Timeout { url, key, limit },
            MetadataError::Refused { key, status, text, .. } => MetadataError::Refused { url, key, status, text },
            other => other,
        }
    }

    /// Returns true if the same call may succeed later without a configuration change.
    pub fn is_retryable(&self) -> bool {
        match self {
            MetadataError::Unreachable { .. } | MetadataError::Timeout { .. } => true,
            MetadataError::Refused { status, .. } => *status >= 500,
            MetadataError::Etcd { source, .. } => {
                matches!(source, EtcdError::Unreachable(_)) || source.outcome_is_unknown()
            }
            MetadataError::BadUrl { .. } | MetadataError::Setup { .. } | MetadataError::TooLarge { .. } => false,
        }
    }
}

/// The directory of the metadata records in the data directory of a master with an embedded
/// metadata service.
pub const METADATA_DIRECTORY: &str = "metadata";

/// Maximum size of a record in bytes. A descriptor with 10,000 RDMA buffers on 16 devices takes
/// about 5 MiB. A log file of a master, of 16 MiB, contains each change as a whole.
pub const VALUE_BYTES_MAX: usize = 15 << 20;

/// The mistake in the use of TLS behind an error, and what to do. Empty if the error has another
/// cause.
fn tls_hint(error: &reqwest::Error) -> String {
    TlsMistake::of_client(error).map_or_else(String::new, |mistake| format!(": {mistake}; {}", mistake.remedy()))
}
