//! The HTTP metadata service: `GET`, `PUT` and `DELETE` of `/metadata?key=<key>`, and `/health`.
//!
//! Answers, texts and status codes are those of the server that is embedded in mooncake_master 0.3.13 (captured; see
//! `fixtures/http/metadata.txt`), with four mends: keys are decoded, so that both spellings of one key are one key; the host that
//! was asked for is the one that is bound; a dead owner's name can be taken over; and removing a dead client's records removes
//! them. Nothing is kept on disk.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Semaphore;

use crate::engine::base::HostPort;
use crate::engine::env::Env;
use crate::engine::http::{
    self, BindError, Handler, Limits, Method, Request, Response, Running, StatusCode, answer, decode, no_such_route,
};
use crate::engine::metadata::table::{Forgotten, Put, Table};
use crate::engine::metadata::{KeySpace, VALUE_BYTES_MAX, probe};

/// The service: the records, and what may be asked of them from this process. Cheap to clone; clones are the same service.
#[derive(Debug)]
pub struct MetadataService<E> {
    shared: Arc<Shared<E>>,
}

#[derive(Debug)]
struct Shared<E> {
    env: E,
    keys: KeySpace,
    table: Mutex<Table>,
    /// Owners that are being asked at once; beyond that a conflict is refused without a question.
    probes: Semaphore,
}

impl<E> Clone for MetadataService<E> {
    fn clone(&self) -> Self {
        MetadataService { shared: self.shared.clone() }
    }
}

impl<E: Env> MetadataService<E> {
    /// An empty service. `keys` is the key space whose names [`MetadataService::forget_segment`] means.
    pub fn new(env: E, keys: KeySpace) -> MetadataService<E> {
        let probes = Semaphore::new(PROBES_MAX);
        MetadataService { shared: Arc::new(Shared { env, keys, table: Mutex::default(), probes }) }
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
    async fn handle(&self, request: Request) -> Response {
        match (request.path(), &request.method) {
            ("/metadata", &(Method::GET | Method::PUT | Method::DELETE)) => {}
            ("/health", &Method::GET) => return answer(StatusCode::OK, "", "OK"),
            _ => return no_such_route(),
        }
        let key = match request.param("key") {
            None | Some("") => return answer(StatusCode::BAD_REQUEST, "", "Missing key parameter"),
            Some(key) => decode(key),
        };
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
