//! The HTTP metadata service: `GET`, `PUT` and `DELETE` of `/metadata?key=<key>`, and `/health`.
//!
//! Answers, texts and status codes are those of the server that is embedded in mooncake_master 0.3.13 (captured; see
//! `fixtures/http/metadata.txt`), with four fixes: keys are decoded, so that both spellings of one key are one key; the host that
//! was asked for is the one that is bound; a dead owner's name can be taken over; and removing a dead client's records removes
//! them. A service that runs alone reads keys as the Python server of the wheel does ([`Keys::Trimmed`]). Nothing is kept on disk.

use std::borrow::Cow;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use tokio::sync::Semaphore;

use crate::engine::base::HostPort;
use crate::engine::env::Env;
use crate::engine::http::{
    self, BindError, Handler, Limits, Method, OTHER_ROUTE, Request, Requests, Response, Running, StatusCode, answer,
    decode, no_such_route,
};
use crate::engine::metadata::table::{Forgotten, Put, Table};
use crate::engine::metadata::{KeySpace, VALUE_BYTES_MAX, probe};

/// The service: the records, and what may be asked of them from this process. Cheap to clone; clones are the same service.
#[derive(Debug)]
pub struct MetadataService<E> {
    shared: Arc<Shared<E>>,
}

/// How the key of a request is read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Keys {
    /// As the server embedded in `mooncake_master` reads it: only a missing or empty key is refused.
    #[default]
    Plain,
    /// As the stand-alone Python server reads it: `+` is a blank, blanks around the key are cut off, and a key of blanks is refused.
    Trimmed,
}

#[derive(Debug)]
struct Shared<E> {
    env: E,
    reading: Keys,
    keys: KeySpace,
    table: Mutex<Table>,
    /// Owners that are being asked at once; beyond that a conflict is refused without a question.
    probes: Semaphore,
    requests: OnceLock<Arc<Requests>>,
}

impl<E> Clone for MetadataService<E> {
    fn clone(&self) -> Self {
        MetadataService { shared: self.shared.clone() }
    }
}

impl<E: Env> MetadataService<E> {
    /// An empty service. `keys` is the key space whose names [`MetadataService::forget_segment`] means.
    pub fn new(env: E, keys: KeySpace) -> MetadataService<E> {
        MetadataService::reading(env, keys, Keys::Plain)
    }

    /// An empty service that reads keys as `reading` says.
    pub fn reading(env: E, keys: KeySpace, reading: Keys) -> MetadataService<E> {
        let probes = Semaphore::new(PROBES_MAX);
        MetadataService {
            shared: Arc::new(Shared { env, reading, keys, table: Mutex::default(), probes, requests: OnceLock::new() }),
        }
    }

    /// Count its requests among `requests`, whose owner reports them. The first call counts.
    pub fn count_in(&self, requests: Arc<Requests>) {
        let _ = self.shared.requests.set(requests);
    }

    /// Serve it at `at` (port 0 takes a free one). It can be served at several addresses.
    ///
    /// # Errors
    /// [`BindError`] when the address cannot be taken.
    pub async fn start(&self, at: &HostPort) -> Result<Running, BindError> {
        http::start(self.shared.env.clone(), at, LIMITS, self.shared.clone()).await
    }

    /// Remove both records of `name`, whose owner is gone for good.
    pub fn forget_segment(&self, name: &str) -> Forgotten {
        self.shared.table().forget_segment(&self.shared.keys, name)
    }

    /// The owner of `name` has expired: leave its records, and give the name to whoever asks next.
    pub fn owner_expired(&self, name: &str) {
        self.shared.table().owner_expired(&self.shared.keys, name);
    }

    /// Is there a segment descriptor of `name`?
    pub fn has_segment(&self, name: &str) -> bool {
        self.shared.table().get(self.shared.keys.ram_key(name).as_bytes()).is_some()
    }

    /// How many records there are.
    pub fn records(&self) -> usize {
        self.shared.table().len()
    }
}

impl<E: Env> Handler for Shared<E> {
    fn requests(&self) -> Option<&Requests> {
        self.requests.get().map(|requests| &**requests)
    }

    fn route(&self, path: &str) -> &'static str {
        match path {
            "/metadata" => "/metadata",
            // Counted beside the admin HTTP's own.
            "/health" => "metadata:/health",
            _ => OTHER_ROUTE,
        }
    }

    async fn handle(&self, request: Request) -> Response {
        match (request.path(), &request.method) {
            ("/metadata", &(Method::GET | Method::PUT | Method::DELETE)) => {}
            ("/health", &(Method::GET | Method::HEAD)) => return answer(StatusCode::OK, "", "OK"),
            _ => return no_such_route(),
        }
        let given = request.param("key").unwrap_or_default();
        let key = match self.reading {
            Keys::Plain => decode(given),
            Keys::Trimmed => trimmed(given),
        };
        if key.is_empty() {
            return match self.reading {
                Keys::Plain => answer(StatusCode::BAD_REQUEST, "", "Missing key parameter"),
                Keys::Trimmed => {
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
                Put::Updated => answer(StatusCode::OK, "", "metadata updated"),
                Put::Unchanged => answer(StatusCode::OK, "", "metadata unchanged"),
                Put::Conflict { .. } => answer(StatusCode::BAD_REQUEST, "", "Duplicate rpc_meta key not allowed"),
                Put::Full => answer(StatusCode::INSUFFICIENT_STORAGE, "", "metadata table is full"),
            },
            _ if self.table().remove(&key) => answer(StatusCode::OK, "", "metadata deleted"),
            _ => answer(StatusCode::NOT_FOUND, "", "metadata not found"),
        }
    }
}

/// The key as a form field: `+` for a blank, and without the blanks around it, in Python's sense of a blank.
fn trimmed(given: &str) -> Cow<'_, [u8]> {
    let blank = |c: char| c.is_whitespace() || ('\x1c'..='\x1f').contains(&c);
    let plain = given.replace('+', " ");
    let key = decode(&plain).into_owned();
    Cow::Owned(match String::from_utf8(key) {
        Ok(text) => text.trim_matches(blank).as_bytes().to_vec(),
        Err(bytes) => bytes.into_bytes().trim_ascii().to_vec(),
    })
}

impl<E: Env> Shared<E> {
    fn table(&self) -> MutexGuard<'_, Table> {
        // A panic while it was held cannot leave it half changed in a way that matters: each record is written in one step.
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn put(&self, key: &[u8], value: &[u8]) -> Put {
        let put = self.table().put(key, value);
        let Put::Conflict { owner: Some(owner), standing } = &put else { return put };
        let Ok(_turn) = self.probes.try_acquire() else { return put };
        if probe::is_alive(&self.env, owner).await {
            return put;
        }
        self.table().take_over(key, standing, value)
    }
}

/// Owners that are asked at once.
const PROBES_MAX: usize = 64;

const LIMITS: Limits = Limits {
    body_bytes_max: VALUE_BYTES_MAX,
    bodies_bytes_max: 8 * VALUE_BYTES_MAX,
    answer: Duration::from_secs(2),
    ..Limits::SMALL
};
