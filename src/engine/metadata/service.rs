//! The HTTP metadata service: `GET`, `PUT` and `DELETE` on `/metadata?key=<key>`, and `/health`.
//!
//! Response bodies and status codes match the server embedded in mooncake_master 0.3.13 (captured;
//! `fixtures/http/metadata.txt`), with four fixes. Keys are decoded, so two spellings of a key
//! refer to the same key. The server binds to the configured host. A dead owner's name can be taken
//! over. A dead client's records are actually removed. A stand-alone service parses keys like the
//! Python server in the wheel ([`KeyParsing::Trimmed`]).
//!
//! Records are kept in memory, and with [`MetadataService::restored`] also in a data directory.
//! Then a write is in the kernel before its response leaves, so a crash of the process loses no
//! acknowledged write. See `store.rs`.

use std::borrow::Cow;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tokio::sync::Semaphore;

use crate::records::{RemovedRecords, WriteOutcome};
use crate::restore::{MetadataJournalError, MetadataRestoreReport};
use crate::store::{RecordStore, RecordThreads, record_options};
use crate::{KeySpace, VALUE_BYTES_MAX, probe};
use mcctl_base::HostPort;
use mcctl_journal::{CommitLogOptions, DataDir, JournalError};
use mcctl_net::http::{
    self, BindError, Handler, HttpAccess, HttpLimits, HttpRequest, HttpServer, Method, OTHER_ROUTE, Requests, Response,
    StatusCode, answer, decode, no_such_route,
};
use mcctl_sys::env::Env;

/// The records, and the operations on them within this process. Cheap to clone; clones share the
/// records.
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
    /// Like the stand-alone Python server: `+` means a space, surrounding whitespace is removed,
    /// and a blank key is rejected.
    Trimmed,
}

#[derive(Debug)]
struct MetadataShared<E> {
    env: E,
    parsing: KeyParsing,
    keys: KeySpace,
    store: Arc<RecordStore>,
    /// The threads of the data directory, if there is one.
    threads: Option<RecordThreads>,
    /// Limits concurrent owner probes. Above the limit, a conflicting write is refused without a
    /// probe.
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
        MetadataService::of(env, keys, parsing, Arc::new(RecordStore::in_memory()), None)
    }

    /// Creates a service with the records in `dir`, which keeps all changes from now on. The
    /// directory must be one of its own ([`METADATA_DIRECTORY`]). Waits for the disk. For use in a
    /// runtime. The sizes of log files are those for metadata records, whatever `options` states.
    ///
    /// Marks of [`MetadataService::mark_owner_expired`] are not kept.
    ///
    /// # Errors
    /// The directory is damaged or of an unknown version, or the disk reports an error.
    ///
    /// [`METADATA_DIRECTORY`]: crate::METADATA_DIRECTORY
    pub fn restored(
        env: E,
        keys: KeySpace,
        parsing: KeyParsing,
        dir: DataDir,
        options: CommitLogOptions,
    ) -> Result<(MetadataService<E>, MetadataRestoreReport), MetadataJournalError> {
        let (store, report) = RecordStore::restored(dir, record_options(options), env.now())?;
        let store = Arc::new(store);
        let threads = RecordThreads::start(store.clone(), &env);
        report.log();
        Ok((MetadataService::of(env, keys, parsing, store, Some(threads)), report))
    }

    fn of(
        env: E,
        keys: KeySpace,
        parsing: KeyParsing,
        store: Arc<RecordStore>,
        threads: Option<RecordThreads>,
    ) -> MetadataService<E> {
        let probes = Semaphore::new(PROBES_MAX);
        let requests = OnceLock::new();
        MetadataService { shared: Arc::new(MetadataShared { env, parsing, keys, store, threads, probes, requests }) }
    }

    /// Waits until the process must stop, because the data directory cannot be written. Writes are
    /// refused from then on. Never returns without a data directory.
    pub async fn failed(&self) -> JournalError {
        match self.shared.store.log() {
            Some(log) => log.failure().await,
            None => std::future::pending().await,
        }
    }

    /// Makes all changes durable and writes a last snapshot. For use before the process ends, when
    /// servers no longer run. Does nothing without a data directory.
    ///
    /// # Errors
    /// The disk reports an error, now or before, and the service does not continue without it.
    pub async fn close(&self) -> Result<(), JournalError> {
        match &self.shared.threads {
            Some(threads) => threads.close(&self.shared.env).await,
            None => Ok(()),
        }
    }

    /// Counts the service's requests in `requests`, which the caller exports. Only the first call
    /// has an effect.
    pub fn share_request_counts(&self, requests: Arc<Requests>) {
        let _ = self.shared.requests.set(requests);
    }

    /// Starts listening on `at`. Port 0 selects a free port. The service can listen on several
    /// addresses.
    ///
    /// # Errors
    /// [`BindError`] if the address is not available.
    pub async fn start(&self, at: &HostPort) -> Result<HttpServer, BindError> {
        self.start_with(at, HttpAccess::default()).await
    }

    /// Like [`start`](MetadataService::start), for the requests that `access` allows.
    ///
    /// # Errors
    /// [`BindError`] if the address is not available.
    pub async fn start_with(&self, at: &HostPort, access: HttpAccess) -> Result<HttpServer, BindError> {
        http::start_with(self.shared.env.clone(), at, LIMITS, access, self.shared.clone()).await
    }

    /// Removes both records of `name`, whose owner is permanently gone. If the data directory does
    /// not accept the removal, they remain.
    pub fn remove_segment(&self, name: &str) -> RemovedRecords {
        let removed = self.shared.store.remove_segment(&self.shared.keys, name, self.shared.env.unix());
        removed.unwrap_or_else(|error| {
            tracing::warn!(%error, name, "cannot remove the metadata records of a segment");
            RemovedRecords::default()
        })
    }

    /// Marks the owner of `name` as expired. The owner's records remain, but the next process that
    /// requests the name gets it.
    pub fn mark_owner_expired(&self, name: &str) {
        self.shared.store.mark_owner_expired(&self.shared.keys, name);
    }

    /// Returns true if `name` has a segment descriptor.
    pub fn has_segment(&self, name: &str) -> bool {
        self.shared.store.get(self.shared.keys.ram_key(name).as_bytes()).is_some()
    }

    /// Returns the number of records.
    pub fn records(&self) -> usize {
        self.shared.store.len()
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
            Method::GET => match self.store.get(&key) {
                Some(value) => answer(StatusCode::OK, "application/json", value),
                None => answer(StatusCode::NOT_FOUND, "", "metadata not found"),
            },
            Method::PUT => match self.put(&key, &request.body).await {
                Ok(WriteOutcome::Updated) => answer(StatusCode::OK, "", "metadata updated"),
                Ok(WriteOutcome::Unchanged) => answer(StatusCode::OK, "", "metadata unchanged"),
                Ok(WriteOutcome::Conflict { .. }) => {
                    answer(StatusCode::BAD_REQUEST, "", "Duplicate rpc_meta key not allowed")
                }
                Ok(WriteOutcome::Full) => answer(StatusCode::INSUFFICIENT_STORAGE, "", "metadata table is full"),
                Err(error) => not_stored(&error),
            },
            _ => match self.remove(&key).await {
                Ok(true) => answer(StatusCode::OK, "", "metadata deleted"),
                Ok(false) => answer(StatusCode::NOT_FOUND, "", "metadata not found"),
                Err(error) => not_stored(&error),
            },
        }
    }
}

/// Why a write was not stored.
#[derive(Debug, thiserror::Error)]
enum NotStored {
    #[error(transparent)]
    Journal(#[from] JournalError),
}

/// A status that clients retry.
fn not_stored(error: &NotStored) -> Response {
    answer(StatusCode::SERVICE_UNAVAILABLE, "", format!("metadata not stored: {error}"))
}

/// Decodes a key like a form field: `+` means a space, and surrounding whitespace (by Python's
/// definition) is removed.
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
    async fn put(&self, key: &[u8], value: &[u8]) -> Result<WriteOutcome, NotStored> {
        let put = self.store.put(key, value, self.env.unix())?;
        let put = match &put {
            WriteOutcome::Conflict { owner: Some(owner), current } => {
                let Ok(_turn) = self.probes.try_acquire() else { return Ok(put) };
                if probe::is_alive(&self.env, owner).await {
                    return Ok(put);
                }
                self.store.take_over(key, current, value, self.env.unix())?
            }
            _ => put,
        };
        self.commit().await?;
        Ok(put)
    }

    async fn remove(&self, key: &[u8]) -> Result<bool, NotStored> {
        let removed = self.store.remove(key, self.env.unix())?;
        self.commit().await?;
        Ok(removed)
    }

    /// Waits until all writes are stored.
    async fn commit(&self) -> Result<(), NotStored> {
        self.store.commit().await.map_err(NotStored::Journal)
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
