//! Locating segments: the client of the HTTP metadata service, and that service.
//!
//! Values are opaque: nothing in this folder parses a segment descriptor (`wire::json` does). With `P2PHANDSHAKE` no metadata service
//! exists, and no code of this folder runs.
//!
//! Start with [`MetadataClient`] or with the service in `service.rs`. Upstream: `transfer_metadata_plugin.cpp` and the HTTP metadata servers.

mod client;
pub mod discovery;
mod key;
pub mod probe;
pub mod records;
mod service;
mod uri;

pub use client::{CallLimits, MetadataClient};
pub use key::{KeySpace, escape};
pub use service::{KeyParsing, MetadataService};
pub use uri::{MetadataUri, ParseMetadataUriError};

use std::time::Duration;

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
    /// No connection to the service, or the connection broke.
    #[error("cannot reach the metadata service {url} for key {key}")]
    Unreachable {
        url: String,
        /// The key of the record.
        key: String,
        /// The HTTP library's error.
        #[source]
        source: reqwest::Error,
    },
    /// No complete answer within the limit.
    #[error("no answer from the metadata service {url} for key {key} within {limit:?}")]
    Timeout {
        url: String,
        /// The key of the record.
        key: String,
        /// Time limit of the call.
        limit: Duration,
    },
    /// The service returned a status other than 200.
    #[error("the metadata service {url} returned status {status} for key {key}: {text}")]
    Refused {
        url: String,
        /// The key of the record.
        key: String,
        status: u16,
        /// The start of the answer's body.
        text: String,
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
    /// Returns true if another process owns this name (`rpc_meta` exists with other content).
    pub fn is_duplicate(&self) -> bool {
        matches!(self, MetadataError::Refused { status: 400, text, .. } if text.contains("Duplicate rpc_meta"))
    }

    /// Returns true if the same call may succeed later without a change of configuration.
    pub fn is_retryable(&self) -> bool {
        match self {
            MetadataError::Unreachable { .. } | MetadataError::Timeout { .. } => true,
            MetadataError::Refused { status, .. } => *status >= 500,
            MetadataError::BadUrl { .. } | MetadataError::Setup { .. } | MetadataError::TooLarge { .. } => false,
        }
    }
}

/// The longest record in bytes. A descriptor of 10,000 RDMA buffers on 16 devices has about 5 MiB.
pub const VALUE_BYTES_MAX: usize = 16 << 20;
