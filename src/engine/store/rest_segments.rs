//! REST routes that change a node's memory at runtime.
//!
//! Responses match `mooncake_store_service` 0.3.13 without the SSD tier, but error responses also
//! include a `reason`. `/api/mount` and `/api/unmount` mount and unmount memory that the node
//! allocates. This node maps no shared memory and has no SSD tier. `/api/mount_shm` and the decode
//! mode of `/api/reconfigure` therefore fail in the same way as they do upstream when a file cannot
//! be mapped. `/api/unmount_local_disk` has nothing to unmount, which upstream also reports as
//! success.

use std::time::Duration;

use serde::Serialize;
use serde_json::{Map, Value};

use crate::object_store::{ObjectStore, StoreRefusal};
use crate::rest_response::{BROKEN, NO_JSON, failure, json};
use mcctl_base::{ErrorCode, SegmentId};
use mcctl_net::http::{Response, StatusCode};

/// Maximum grace period for `/api/unmount_local_disk`, in seconds.
const LOCAL_DISK_GRACE_MAX: u64 = 3600;
/// Maximum grace period for a segment, in seconds: one day.
const GRACE_MAX: u64 = 24 * 3600;
/// Maximum body size in bytes. A parsed body can require many times as much memory.
const BODY_BYTES_MAX: usize = 64 << 10;
const NO_SHARED_MEMORY: &str = "this node does not map shared memory; use /api/mount, which allocates memory";

/// Returns true if `path` is one of the routes in this module.
pub(crate) fn is_route(path: &str) -> bool {
    ["/api/mount", "/api/unmount", "/api/mount_shm", "/api/unmount_shm", "/api/reconfigure", "/api/unmount_local_disk"]
        .contains(&path)
}

/// Handles a POST of `body` to `path`.
pub(crate) async fn answer<S: ObjectStore>(store: &S, path: &str, body: &[u8]) -> Response {
    if body.len() > BODY_BYTES_MAX {
        let reason = format!("the body has {} bytes; the limit is {BODY_BYTES_MAX}", body.len());
        return failure(StatusCode::PAYLOAD_TOO_LARGE, "Request body too large", Some(&reason));
    }
    if path == "/api/unmount_local_disk" {
        return unmount_local_disk(body);
    }
    let body = match object(body) {
        Ok(body) => body,
        Err(bad) => return bad.answer(),
    };
    match path {
        "/api/mount" => mount(store, &body).await,
        "/api/unmount" => unmount(store, &body).await,
        "/api/mount_shm" => mount_shm(&body),
        "/api/unmount_shm" => unmount_shm(&body),
        _ => reconfigure(&body),
    }
}

async fn mount<S: ObjectStore>(store: &S, body: &Map<String, Value>) -> Response {
    let Some(bytes) = body.get("size").and_then(Value::as_u64).filter(|bytes| *bytes > 0) else {
        return failure(StatusCode::BAD_REQUEST, "Invalid size, must be a positive integer", None);
    };
    for ignored in ["protocol", "location"].into_iter().filter(|name| body.contains_key(*name)) {
        tracing::warn!("/api/mount: ignoring '{ignored}' in the request; the node uses its own value");
    }
    match store.mount(bytes).await {
        Ok((id, allocated_size)) => {
            let mounted = MountAnswer { status: "success", segment_ids: vec![id.to_string()], allocated_size };
            json(StatusCode::OK, &mounted)
        }
        Err(refusal) => refused("Allocate and mount", &refusal),
    }
}

/// Attempts to unmount all segments. The first error determines the response.
async fn unmount<S: ObjectStore>(store: &S, body: &Map<String, Value>) -> Response {
    let (ids, grace) = match (segment_ids(body), grace(body)) {
        (Ok(ids), Ok(grace)) => (ids, grace),
        (Err(bad), _) | (_, Err(bad)) => return bad.answer(),
    };
    let mut first = None;
    for id in ids {
        let done = match id.parse::<SegmentId>() {
            Ok(id) => store.unmount(id, grace).await,
            Err(error) => Err(StoreRefusal { code: ErrorCode::INTERNAL_ERROR, reason: format!("'{id}': {error}") }),
        };
        first = first.or(done.err());
    }
    match first {
        None => success(),
        Some(refusal) => refused("Unmount and free", &refusal),
    }
}

fn mount_shm(body: &Map<String, Value>) -> Response {
    let name = body.get("name").and_then(Value::as_str).unwrap_or_default();
    let name = name.strip_prefix('/').unwrap_or(name);
    let is_name = !name.is_empty() && !name.contains('/') && name != "." && name != "..";
    if !is_name || body.get("size").is_none_or(Value::is_null) {
        return failure(StatusCode::BAD_REQUEST, "Missing or invalid name or size", None);
    }
    failure(BROKEN, "Mount failed, ret=-1", Some(NO_SHARED_MEMORY))
}

/// Shared memory is never mounted, so all IDs are unknown.
fn unmount_shm(body: &Map<String, Value>) -> Response {
    match segment_ids(body) {
        Ok(failed_segment_ids) => {
            json(BROKEN, &UnmountFailure { error: "Unmount failed for one or more segments", failed_segment_ids })
        }
        Err(bad) => bad.answer(),
    }
}

fn reconfigure(body: &Map<String, Value>) -> Response {
    let mode = match body.get("mode") {
        None => String::new(),
        Some(Value::String(mode)) => mode.to_lowercase(),
        Some(_) => return failure(BROKEN, "mode must be a string", None),
    };
    match mode.as_str() {
        "prefill" => json(
            StatusCode::OK,
            &ReconfigureAnswer { status: Some("success"), error: None, mode: "prefill", reason: None },
        ),
        "decode" if body.get("path").is_none_or(is_empty) || body.get("size").is_none_or(Value::is_null) => {
            failure(StatusCode::BAD_REQUEST, "Missing path or size for decode mode", None)
        }
        "decode" => {
            let error = Some("Mount failed, ret=-1; rolled back to prefill");
            json(BROKEN, &ReconfigureAnswer { status: None, error, mode: "prefill", reason: Some(NO_SHARED_MEMORY) })
        }
        _ => failure(StatusCode::BAD_REQUEST, "Invalid mode. Use 'decode' or 'prefill'", None),
    }
}

fn unmount_local_disk(body: &[u8]) -> Response {
    let bad = |error| failure(StatusCode::BAD_REQUEST, error, None);
    let body = match serde_json::from_slice(body) {
        Ok(Value::Object(body)) => body,
        Ok(_) => return bad("Request body must be a JSON object"),
        Err(_) => return bad("Malformed JSON body"),
    };
    match body.get("grace_period_seconds").map_or(Some(0), Value::as_u64) {
        Some(0..=LOCAL_DISK_GRACE_MAX) => success(),
        _ => bad("Invalid grace_period_seconds, must be a non-negative integer no greater than 3600"),
    }
}

/// Parses the body, which must be an object.
fn object(body: &[u8]) -> Result<Map<String, Value>, InvalidBody> {
    match serde_json::from_slice(body) {
        Ok(Value::Object(body)) => Ok(body),
        Ok(_) => Err(InvalidBody(BROKEN, "the body must be a JSON object")),
        Err(_) if !body.starts_with(b"{") => Err(InvalidBody(BROKEN, NO_JSON)),
        Err(_) => Err(InvalidBody(BROKEN, "invalid JSON body")),
    }
}

/// The response to an invalid body.
struct InvalidBody(StatusCode, &'static str);

impl InvalidBody {
    fn answer(self) -> Response {
        failure(self.0, self.1, None)
    }
}

/// Returns the requested segment IDs: one ID or a list.
fn segment_ids(body: &Map<String, Value>) -> Result<Vec<String>, InvalidBody> {
    let id = |value: &Value| value.as_str().map(str::to_owned);
    let ids = match body.get("segment_ids") {
        Some(Value::Array(ids)) => ids.iter().map(id).collect(),
        Some(one @ Value::String(_)) if !is_empty(one) => id(one).map(|id| vec![id]),
        None | Some(Value::Null | Value::String(_)) => Some(Vec::new()),
        Some(_) => None,
    };
    match ids {
        Some(ids) if ids.is_empty() => Err(InvalidBody(StatusCode::BAD_REQUEST, "Missing segment_ids")),
        Some(ids) => Ok(ids),
        None => Err(InvalidBody(BROKEN, "segment_ids must be a string or a list of strings")),
    }
}

fn grace(body: &Map<String, Value>) -> Result<Duration, InvalidBody> {
    match body.get("grace_period_seconds").map_or(Some(0), Value::as_u64) {
        Some(seconds @ 0..=GRACE_MAX) => Ok(Duration::from_secs(seconds)),
        _ => Err(InvalidBody(BROKEN, "grace_period_seconds must be an integer from 0 to 86400")),
    }
}

fn is_empty(value: &Value) -> bool {
    value.is_null() || value.as_str() == Some("")
}

fn success() -> Response {
    json(StatusCode::OK, &SuccessAnswer { status: "success" })
}

fn refused(what: &str, refusal: &StoreRefusal) -> Response {
    failure(BROKEN, &format!("{what} failed, ret={}", refusal.code.0), Some(&refusal.reason))
}

#[derive(Serialize)]
struct SuccessAnswer {
    status: &'static str,
}

#[derive(Serialize)]
struct MountAnswer {
    status: &'static str,
    segment_ids: Vec<String>,
    allocated_size: u64,
}

#[derive(Serialize)]
struct UnmountFailure {
    error: &'static str,
    failed_segment_ids: Vec<String>,
}

#[derive(Serialize)]
struct ReconfigureAnswer {
    #[serde(skip_serializing_if = "Option::is_none")]
    status: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<&'static str>,
    mode: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<&'static str>,
}
