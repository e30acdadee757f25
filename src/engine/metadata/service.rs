//! The HTTP metadata service: `GET`, `PUT` and `DELETE` on `/metadata?key=<key>`, and `/health`.
//!
//! Response bodies and status codes match the server embedded in mooncake_master 0.3.13 (captured; `fixtures/http/metadata.txt`), with four
//! fixes. Keys are decoded, so two spellings of a key refer to the same key. The server binds to the configured host. A dead owner's name
//! can be taken over. A dead client's records are actually removed. A stand-alone service parses keys like the Python server in the wheel
//! ([`KeyParsing::Trimmed`]). Records are kept only in memory.

use std::borrow::Cow;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use tokio::sync::Semaphore;

use crate::engine::base::HostPort;
use crate::engine::env::Env;
use crate::engine::http::{
    self, BindError, Handler, HttpLimits, HttpRequest, HttpServer, Method, OTHER_ROUTE, Requests, Response, StatusCode,
    answer, decode, no_such_route,
};
use crate::engine::metadata::records::{MetadataTable, RemovedRecords, WriteOutcome};
use crate::engine::metadata::{KeySpace, VALUE_BYTES_MAX, probe};

/// The records, and the operations on them within this process. Cheap to clone; clones share the records.
#[derive(Debug)]
pub struct MetadataService<E> {
    shared: Arc<MetadataShared<E>>,
}

/// How a request's key is parsed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum KeyParsing {
    /// Like the server embedded in `mooncake_master`: only a missing or empty key is rejected.
    #[default]
    Plain,
    /// Like the stand-alone Python server: `+` means a space, surrounding whitespace is removed, and a blank key is rejected.
    Trimmed,
}

#[derive(Debug)]
struct MetadataShared<E> {
    env: E,
    parsing: KeyParsing,
    keys: KeySpace,
    table: Mutex<MetadataTable>,
    /// Limits concurrent owner probes. Above the limit, a conflicting write is refused without a probe.
    probes: Semaphore,
    requests: OnceLock<Arc<Requests>>,
}

impl<E> Clone for MetadataService<E> {
    fn clone(&self) -> Self {
        MetadataService { shared: self.shared.clone() }
    }
}

impl<E: Env> MetadataService<E> {
    /// Creates an empty service. `keys` is the key space for [`MetadataService::remove_segment`].
    pub fn new(env: E, keys: KeySpace) -> MetadataService<E> {
        MetadataService::with_parsing(env, keys, KeyParsing::Plain)
    }

    /// Creates an empty service that parses keys according to `parsing`.
    pub fn with_parsing(env: E, keys: KeySpace, parsing: KeyParsing) -> MetadataService<E> {
        let probes = Semaphore::new(PROBES_MAX);
        MetadataService {
            shared: Arc::new(MetadataShared {
                env,
                parsing,
                keys,
                table: Mutex::default(),
                probes,
                requests: OnceLock::new(),
            }),
        }
    }

    /// Counts the service's requests in `requests`, which the caller exports. Only the first call has an effect.
    pub fn share_request_counts(&self, requests: Arc<Requests>) {
        let _ = self.shared.requests.set(requests);
    }

    /// Starts listening on `at`. Port 0 selects a free port. The service can listen on several addresses.
    ///
    /// # Errors
    /// [`BindError`] if the address is not available.
    pub async fn start(&self, at: &HostPort) -> Result<HttpServer, BindError> {
        http::start(self.shared.env.clone(), at, LIMITS, self.shared.clone()).await
    }

    /// Removes both records of `name`, whose owner is permanently gone.
    pub fn remove_segment(&self, name: &str) -> RemovedRecords {
        self.shared.table().remove_segment(&self.shared.keys, name)
    }

    /// Marks the owner of `name` as expired. The owner's records remain, but the next process that requests the name gets it.
    pub fn mark_owner_expired(&self, name: &str) {
        self.shared.table().mark_owner_expired(&self.shared.keys, name);
    }

    /// Returns true if `name` has a segment descriptor.
    pub fn has_segment(&self, name: &str) -> bool {
        self.shared.table().get(self.shared.keys.ram_key(name).as_bytes()).is_some()
    }

    /// Returns the number of records.
    pub fn records(&self) -> usize {
        self.shared.table().len()
    }
}

impl<E: Env> Handler for MetadataShared<E> {
    fn requests(&self) -> Option<&Requests> {
        self.requests.get().map(|requests| &**requests)
    }

    fn route(&self, path: &str) -> &'static str {
        match path {
            "/metadata" => "/metadata",
            // Distinguishes this route from the admin API's `/health` in the request counts.
            "/health" => "metadata:/health",
            _ => OTHER_ROUTE,
        }
    }

    async fn handle(&self, request: HttpRequest) -> Response {
        match (request.path(), &request.method) {
            ("/metadata", &(Method::GET | Method::PUT | Method::DELETE)) => {}
            ("/health", &(Method::GET | Method::HEAD)) => return answer(StatusCode::OK, "", "OK"),
            _ => return no_such_route(),
        }
        let given = request.param("key").unwrap_or_default();
        let key = match self.parsing {
            KeyParsing::Plain => decode(given),
            KeyParsing::Trimmed => trimmed(given),
        };
        if key.is_empty() {
            return match self.parsing {
                KeyParsing::Plain => answer(StatusCode::BAD_REQUEST, "", "Missing key parameter"),
                KeyParsing::Trimmed => {
                    answer(StatusCode::BAD_REQUEST, "application/json; charset=utf-8", "metadata key is required")
                }
            };
        }
        match request.method {
            Method::GET => match self.table().get(&key) {
                Some(value) => answer(StatusCode::OK, "application/json", value),
                None => answer(StatusCode::NOT_FOUND, "", "metadata not found"),
            },
            Method::PUT => match self.put(&key, &request.body).await {
                WriteOutcome::Updated => answer(StatusCode::OK, "", "metadata updated"),
                WriteOutcome::Unchanged => answer(StatusCode::OK, "", "metadata unchanged"),
                WriteOutcome::Conflict { .. } => {
                    answer(StatusCode::BAD_REQUEST, "", "Duplicate rpc_meta key not allowed")
                }
                WriteOutcome::Full => answer(StatusCode::INSUFFICIENT_STORAGE, "", "metadata table is full"),
            },
            _ if self.table().remove(&key) => answer(StatusCode::OK, "", "metadata deleted"),
            _ => answer(StatusCode::NOT_FOUND, "", "metadata not found"),
        }
    }
}

/// Decodes a key like a form field: `+` means a space, and surrounding whitespace (by Python's definition) is removed.
fn trimmed(given: &str) -> Cow<'_, [u8]> {
    let blank = |c: char| c.is_whitespace() || ('\x1c'..='\x1f').contains(&c);
    let plain = given.replace('+', " ");
    let key = decode(&plain).into_owned();
    Cow::Owned(match String::from_utf8(key) {
        Ok(text) => text.trim_matches(blank).as_bytes().to_vec(),
        Err(bytes) => bytes.into_bytes().trim_ascii().to_vec(),
    })
}

impl<E: Env> MetadataShared<E> {
    fn table(&self) -> MutexGuard<'_, MetadataTable> {
        // A panic while the table is locked leaves no partial change that matters: each record is written in one step.
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn put(&self, key: &[u8], value: &[u8]) -> WriteOutcome {
        let put = self.table().put(key, value);
        let WriteOutcome::Conflict { owner: Some(owner), current } = &put else { return put };
        let Ok(_turn) = self.probes.try_acquire() else { return put };
        if probe::is_alive(&self.env, owner).await {
            return put;
        }
        self.table().take_over(key, current, value)
    }
}

/// Maximum number of concurrent probes.
const PROBES_MAX: usize = 64;

const LIMITS: HttpLimits = HttpLimits {
    body_bytes_max: VALUE_BYTES_MAX,
    bodies_bytes_max: 8 * VALUE_BYTES_MAX,
    answer: Duration::from_secs(2),
    ..HttpLimits::SMALL
};
