//! The HTTP metadata service: `GET`, `PUT` and `DELETE` on `/metadata?key=<key>`, and `/health`.
//!
//! Response bodies and status codes match the server embedded in mooncake_master 0.3.13 (captured;
//! `fixtures/http/metadata.txt`), with four fixes. Keys are decoded, so two spellings of a key
//! refer to the same key. The server binds to the configured host. A dead owner's name can be taken
//! over. A dead client's records are actually removed. A stand-alone service parses keys like the
//! Python server in the wheel ([`KeyParsing::Trimmed`]).
//!
//! A [`RecordBackend`] keeps the records: in memory, in a data directory, or in the state of a
//! master. A master that does not lead forwards requests to the leader (`forwarding`).

mod forwarding;

use std::borrow::Cow;
use std::fmt;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::Semaphore;

use crate::backend::{NotServed, RecordBackend};
use crate::forward::MetadataForwarder;
use crate::records::{KEY_BYTES_MAX, MetadataTable, PlannedWrite, RemovedRecords, SharedTable, WriteOutcome};
use crate::restore::{MetadataJournalError, MetadataRestoreReport};
use crate::store::{RecordStore, RecordThreads, StoredRecords, record_options};
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

struct MetadataShared<E> {
    env: E,
    parsing: KeyParsing,
    keys: KeySpace,
    /// The records. Not set while a master that keeps them is starting.
    backend: OnceLock<Arc<dyn RecordBackend>>,
    /// Passes requests on to the master that leads; `None` outside of a cluster.
    forwarder: Option<MetadataForwarder>,
    /// Limits concurrent owner probes. Above the limit, a conflicting write is refused without a
    /// probe.
    probes: Semaphore,
    requests: OnceLock<Arc<Requests>>,
    /// Why the last request could not be forwarded. It was logged.
    last_problem: Mutex<String>,
}

impl<E> fmt::Debug for MetadataShared<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MetadataShared").field("parsing", &self.parsing).finish_non_exhaustive()
    }
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
        let service = MetadataService::waiting(env, keys, parsing, None);
        service.set_backend(Arc::new(SharedTable::default()));
        service
    }

    /// Creates a service with the records in `dir`, which keeps all changes from now on. The
    /// directory must be one of its own. Waits for the disk. For use in a runtime. The sizes of log
    /// files are those for metadata records, whatever `options` states.
    ///
    /// Marks of [`MetadataService::mark_owner_expired`] are not kept.
    ///
    /// # Errors
    /// The directory is damaged or of an unknown version, or the disk reports an error.
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
        let service = MetadataService::waiting(env.clone(), keys, parsing, None);
        service.set_backend(Arc::new(StoredRecords { store, threads, env }));
        Ok((service, report))
    }

    /// Creates a service that answers 503 until [`set_backend`](Self::set_backend) is called.
    /// `forwarder` sends requests to the leader if this master does not lead.
    pub fn waiting(
        env: E,
        keys: KeySpace,
        parsing: KeyParsing,
        forwarder: Option<MetadataForwarder>,
    ) -> MetadataService<E> {
        let backend = OnceLock::new();
        let probes = Semaphore::new(PROBES_MAX);
        let requests = OnceLock::new();
        MetadataService {
            shared: Arc::new(MetadataShared {
                env,
                parsing,
                keys,
                backend,
                forwarder,
                probes,
                requests,
                last_problem: Mutex::default(),
            }),
        }
    }

    /// Serves these records. Only the first call has an effect.
    pub fn set_backend(&self, backend: Arc<dyn RecordBackend>) {
        let _ = self.shared.backend.set(backend);
    }

    /// Waits until the process must stop, because the data directory cannot be written. Writes are
    /// refused from then on. Never returns without a data directory.
    pub async fn failed(&self) -> JournalError {
        match self.shared.backend.get() {
            Some(backend) => backend.failed().await,
            None => std::future::pending().await,
        }
    }

    /// Makes all changes durable and writes a last snapshot. For use before the process ends, when
    /// servers no longer run. Does nothing without a data directory.
    ///
    /// # Errors
    /// The disk reports an error, now or before, and the service does not continue without it.
    pub async fn close(&self) -> Result<(), JournalError> {
        match self.shared.backend.get() {
            Some(backend) => backend.close().await,
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

    /// Removes both records of `name`, whose owner is permanently gone. If the removal cannot be
    /// stored, they may remain.
    pub async fn remove_segment(&self, name: &str) -> RemovedRecords {
        let mut removed = RemovedRecords::default();
        let plan = |table: &mut MetadataTable| {
            let (found, changes) = table.plan_remove_segment(&self.shared.keys, name);
            removed = found;
            changes
        };
        let changed = match self.shared.backend() {
            Ok(backend) => backend.change(Box::new(plan)).await,
            Err(error) => Err(error),
        };
        match changed {
            Ok(()) => removed,
            Err(error) => {
                tracing::warn!(%error, name, "cannot remove the metadata records of a segment");
                RemovedRecords::default()
            }
        }
    }

    /// Marks the owner of `name` as expired. The owner's records remain, but the next process that
    /// requests the name gets it.
    pub fn mark_owner_expired(&self, name: &str) {
        if let Ok(backend) = self.shared.backend() {
            backend.table().lock().mark_owner_expired(&self.shared.keys, name);
        }
    }

    /// Returns true if `name` has a segment descriptor.
    pub fn has_segment(&self, name: &str) -> bool {
        let key = self.shared.keys.ram_key(name);
        self.shared.backend().is_ok_and(|backend| backend.table().lock().get(key.as_bytes()).is_some())
    }

    /// Returns the number of records.
    pub fn records(&self) -> usize {
        self.shared.backend().map_or(0, |backend| backend.table().lock().len())
    }
}

impl<E: Env> Handler for MetadataShared<E> {
    fn requests(&self) -> Option<&Requests> {
        self.requests.get().map(|requests| &**requests)
    }

    fn route(&self, path: &str) -> &'static str {
        route(path)
    }

    async fn handle(&self, request: HttpRequest) -> Response {
        match (request.path(), &request.method) {
            ("/metadata", &(Method::GET | Method::PUT | Method::DELETE)) => {}
            ("/health", &(Method::GET | Method::HEAD)) => {
                return match self.backend() {
                    Ok(backend) if backend.is_ready() => answer(StatusCode::OK, "", "OK"),
                    Ok(_) => not_served(&NotServed::NotLeading { leader: None }),
                    Err(error) => not_served(&error),
                };
            }
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
        match self.answer(&request, &key).await {
            Err(error) if forwarding::may_retry(&request, &error) => self.forward(&request, &key, error).await,
            Err(error) => not_served(&error),
            Ok(response) => response,
        }
    }
}

/// The response to a read.
fn found(value: Option<Bytes>) -> Response {
    match value {
        Some(value) => answer(StatusCode::OK, "application/json", value),
        None => answer(StatusCode::NOT_FOUND, "", "metadata not found"),
    }
}

/// The route for `path`: see [`Handler::route`].
pub(crate) fn route(path: &str) -> &'static str {
    match path {
        "/metadata" => "/metadata",
        // Distinguishes this route from the admin API's `/health` in the request counts.
        "/health" => "metadata:/health",
        _ => OTHER_ROUTE,
    }
}

/// 503, a status that clients retry, or 504 if the request may have taken effect.
fn not_served(error: &NotServed) -> Response {
    let status = match error {
        NotServed::Unknown { .. } => StatusCode::GATEWAY_TIMEOUT,
        _ => StatusCode::SERVICE_UNAVAILABLE,
    };
    answer(status, "", error.to_string())
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
    fn backend(&self) -> Result<&Arc<dyn RecordBackend>, NotServed> {
        self.backend.get().ok_or(NotServed::Starting)
    }

    /// The response of this process.
    async fn answer(&self, request: &HttpRequest, key: &[u8]) -> Result<Response, NotServed> {
        Ok(match request.method {
            Method::GET => found(self.backend()?.get(key).await?),
            Method::PUT => match self.put(key, &request.body).await? {
                WriteOutcome::Updated => answer(StatusCode::OK, "", "metadata updated"),
                WriteOutcome::Unchanged => answer(StatusCode::OK, "", "metadata unchanged"),
                WriteOutcome::Conflict { .. } => {
                    answer(StatusCode::BAD_REQUEST, "", "Duplicate rpc_meta key not allowed")
                }
                WriteOutcome::Full if key.len() > KEY_BYTES_MAX => answer(
                    StatusCode::INSUFFICIENT_STORAGE,
                    "",
                    format!("the key is longer than {KEY_BYTES_MAX} bytes"),
                ),
                WriteOutcome::Full => answer(StatusCode::INSUFFICIENT_STORAGE, "", "metadata table is full"),
            },
            _ => match self.remove(key).await? {
                true => answer(StatusCode::OK, "", "metadata deleted"),
                false => answer(StatusCode::NOT_FOUND, "", "metadata not found"),
            },
        })
    }

    async fn put(&self, key: &[u8], value: &[u8]) -> Result<WriteOutcome, NotServed> {
        let put = self.write(|table| table.plan_put(key, value)).await?;
        match &put {
            WriteOutcome::Conflict { owner: Some(owner), current } => {
                let Ok(_turn) = self.probes.try_acquire() else { return Ok(put) };
                if probe::is_alive(&self.env, owner).await {
                    return Ok(put);
                }
                self.write(|table| table.plan_take_over(key, current, value)).await
            }
            _ => Ok(put),
        }
    }

    async fn write<'a>(
        &self,
        plan: impl FnOnce(&mut MetadataTable) -> PlannedWrite<'a> + Send,
    ) -> Result<WriteOutcome, NotServed> {
        let mut outcome = None;
        let plan = |table: &mut MetadataTable| {
            let planned = plan(table);
            outcome = Some(planned.outcome);
            planned.changes
        };
        self.backend()?.change(Box::new(plan)).await?;
        outcome.ok_or_else(|| NotServed::Unknown { cause: "it was not processed".to_owned() })
    }

    async fn remove(&self, key: &[u8]) -> Result<bool, NotServed> {
        let mut is_found = false;
        let plan = |table: &mut MetadataTable| {
            let change = table.plan_remove(key);
            is_found = change.is_some();
            change.into_iter().collect()
        };
        self.backend()?.change(Box::new(plan)).await?;
        Ok(is_found)
    }
}

/// Maximum number of concurrent probes.
const PROBES_MAX: usize = 64;

const LIMITS: HttpLimits = HttpLimits {
    body_bytes_max: VALUE_BYTES_MAX,
    bodies_bytes_max: 8 * VALUE_BYTES_MAX,
    answer: Duration::from_secs(5),
    ..HttpLimits::SMALL
};
