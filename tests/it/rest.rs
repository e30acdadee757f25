//! The store node's REST API over a map: the captured answers of the real service, and the
//! additional ones.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use mcctl::engine::base::{ErrorCode, HostPort, ObjectKey, SegmentId};
use mcctl::engine::env::RealEnv;
use mcctl::engine::http::{HttpAccess, HttpServer};
use mcctl::engine::store::object_store::{
    NodeHealth, NodeMetrics, ObjectStore, READING_BYTES_MAX, ReadBudget, ReadPermit, StoreRefusal,
};
use mcctl::engine::store::rest;

use crate::http::{Connection, replay};
use crate::peer::process::in_time;

/// Objects in a map. Reading `hang` never ends, `leased` cannot be removed, and all calls for
/// `away` fail.
#[derive(Default)]
struct InMap(Mutex<BTreeMap<ObjectKey, Bytes>>);

fn refuse<T>(code: ErrorCode) -> Result<T, StoreRefusal> {
    Err(StoreRefusal { code, reason: format!("refused with {code}") })
}

impl ObjectStore for InMap {
    async fn put(&self, key: ObjectKey, value: Bytes) -> Result<(), StoreRefusal> {
        match key.as_bytes() {
            b"away" => refuse(ErrorCode::RPC_FAIL),
            b"full" => refuse(ErrorCode::NO_AVAILABLE_HANDLE),
            _ => {
                self.0.lock().unwrap().entry(key).or_insert(value);
                Ok(())
            }
        }
    }

    async fn get(&self, key: ObjectKey, room: ReadBudget) -> Result<(Bytes, ReadPermit), StoreRefusal> {
        let value = match key.as_bytes() {
            b"hang" => std::future::pending().await,
            b"away" => return refuse(ErrorCode::RPC_FAIL),
            _ => self.0.lock().unwrap().get(&key).cloned(),
        };
        let Some(value) = value else { return refuse(ErrorCode::OBJECT_NOT_FOUND) };
        let held = room.acquire(value.len() as u64).await;
        Ok((value, held))
    }

    async fn exists(&self, key: ObjectKey) -> Result<bool, StoreRefusal> {
        match key.as_bytes() {
            b"away" => refuse(ErrorCode::RPC_FAIL),
            _ => Ok(self.0.lock().unwrap().contains_key(&key)),
        }
    }

    async fn remove(&self, key: ObjectKey) -> Result<(), StoreRefusal> {
        match key.as_bytes() {
            b"leased" => refuse(ErrorCode::OBJECT_HAS_LEASE),
            _ => self.0.lock().unwrap().remove(&key).map_or_else(|| refuse(ErrorCode::OBJECT_NOT_FOUND), |_| Ok(())),
        }
    }

    async fn remove_all(&self) -> Result<u64, StoreRefusal> {
        let objects = std::mem::take(&mut *self.0.lock().unwrap());
        Ok(objects.len() as u64)
    }

    async fn mount(&self, bytes: u64) -> Result<(SegmentId, u64), StoreRefusal> {
        if bytes > 1 << 40 {
            refuse(ErrorCode::INTERNAL_ERROR)
        } else {
            Ok((SegmentId(3, 4), bytes.next_multiple_of(16)))
        }
    }

    async fn unmount(&self, segment: SegmentId, grace: Duration) -> Result<(), StoreRefusal> {
        match (segment, grace.as_secs()) {
            (SegmentId(3, 4), 0 | 5) => Ok(()),
            _ => refuse(ErrorCode::INTERNAL_ERROR),
        }
    }

    fn health(&self) -> NodeHealth {
        if self.0.lock().unwrap().contains_key(&ObjectKey::from("no master")) {
            NodeHealth::MasterUnreachable
        } else {
            NodeHealth::Healthy
        }
    }

    fn metrics(&self) -> NodeMetrics {
        NodeMetrics { served_read_bytes: 7, segment_bytes: 1 << 30, ..NodeMetrics::default() }
    }
}

async fn serve() -> (HttpServer, Connection) {
    let at = HostPort::new("127.0.0.1", 0);
    let running = rest::start(RealEnv::new(), &at, HttpAccess::default(), Arc::new(InMap::default())).await.unwrap();
    let connection = Connection::to(running.at().port).await;
    (running, connection)
}

async fn put(connection: &mut Connection, key: &str, value: &str) -> u16 {
    let body = serde_json::json!({ "key": key, "value": value }).to_string();
    connection.ask("PUT", "/api/put", body.as_bytes()).await.status
}

#[tokio::test]
async fn captured_requests_get_the_real_services_answers() {
    let (running, _) = serve().await;
    replay("rest.txt", running.at().port).await;
    replay("rest-segments.txt", running.at().port).await;
}

#[tokio::test]
async fn memory_is_mounted_and_unmounted_by_id() {
    let (_running, mut connection) = serve().await;
    let mut post = async |path: &str, body: &str| {
        let answer = connection.ask("POST", path, body.as_bytes()).await;
        (answer.status, answer.text().to_owned())
    };
    let mounted = r#"{"status": "success", "segment_ids": ["3-4"], "allocated_size": 32}"#;
    assert_eq!(post("/api/mount", r#"{"size": 17, "location": "cpu:0"}"#).await, (200, mounted.to_owned()));
    let (status, text) = post("/api/mount", r#"{"size": 99999999999999}"#).await;
    assert_eq!(status, 500);
    assert!(text.contains("ret=-1") && text.contains("reason"), "{text}");
    for body in [r#"{"segment_ids": "3-4"}"#, r#"{"segment_ids": ["3-4"], "grace_period_seconds": 5}"#] {
        assert_eq!(post("/api/unmount", body).await, (200, r#"{"status": "success"}"#.to_owned()), "{body}");
    }
    for body in [r#"{"segment_ids": ["1-2", "3-4"]}"#, r#"{"segment_ids": "mars"}"#] {
        let (status, text) = post("/api/unmount", body).await;
        assert_eq!(status, 500, "{body}");
        assert!(text.starts_with(r#"{"error": "Unmount and free failed, ret=-1""#), "{text}");
    }
    for body in
        [r#"{"segment_ids": 5}"#, r#"{"segment_ids": [5]}"#, r#"{"segment_ids": "3-4", "grace_period_seconds": -1}"#]
    {
        assert_eq!(post("/api/unmount", body).await.0, 500, "{body}");
    }
    let large = format!("{}{}", " ".repeat(64 << 10), r#"{"size": 17}"#);
    assert_eq!(post("/api/mount", &large).await.0, 413);
    for (path, body) in [
        ("/api/mount_shm", r#"{"name": "x", "size": 16777216}"#),
        ("/api/reconfigure", r#"{"mode": "decode", "path": "/dev/shm/x", "size": 16777216}"#),
    ] {
        let (status, text) = post(path, body).await;
        assert!(status == 500 && text.contains("Mount failed, ret=-1") && text.contains("reason"), "{text}");
    }
}

#[tokio::test]
async fn json_bodies_have_pythons_spaces() {
    let (_running, mut connection) = serve().await;
    assert_eq!(connection.ask("GET", "/api/exist/a", b"").await.text(), "{\"exists\": false}");
    put(&mut connection, "a", "1").await;
    put(&mut connection, "b", "1").await;
    let answer = connection.ask("DELETE", "/api/remove_all", b"").await;
    assert_eq!((answer.status, answer.text()), (200, "{\"status\": \"success removed 2 keys\"}"));
}

#[tokio::test]
async fn a_key_may_contain_anything_encoded_or_plain() {
    let (_running, mut connection) = serve().await;
    assert_eq!(put(&mut connection, "model/layer 0/é?", "value").await, 200);
    for path in ["/api/get/model/layer%200/%C3%A9%3F", "/api/get/model%2Flayer%200%2F%c3%a9%3f"] {
        let answer = connection.ask("GET", path, b"").await;
        assert_eq!((answer.status, answer.text()), (200, "value"), "{path}");
    }
    let head = connection.ask("HEAD", "/api/get/model%2Flayer%200%2F%c3%a9%3f", b"").await;
    assert_eq!((head.status, head.body.len()), (200, 0));
    assert_eq!(connection.ask("DELETE", "/api/remove/model/layer%200/%C3%A9%3F", b"").await.status, 200);
    assert_eq!(connection.ask("GET", "/api/get/", b"").await.status, 404);
}

#[tokio::test]
async fn a_waiting_call_delays_no_other() {
    let (running, mut connection) = serve().await;
    let mut waiting = Vec::new();
    for _ in 0..8 {
        let mut hanging = Connection::to(running.at().port).await;
        hanging.send(b"GET /api/get/hang HTTP/1.1\r\nHost: t\r\n\r\n").await;
        waiting.push(hanging);
    }
    assert_eq!(put(&mut connection, "k", "v").await, 200);
    assert_eq!(connection.ask("GET", "/api/get/k", b"").await.text(), "v");
    assert_eq!(connection.ask("GET", "/health", b"").await.status, 200);
}

#[tokio::test]
async fn a_refusal_has_a_reason() {
    let (_running, mut connection) = serve().await;
    let cases = [
        ("GET", "/api/get/away", "Exist check failed", "RPC_FAIL"),
        ("GET", "/api/exist/away", "Exist check failed", "RPC_FAIL"),
        ("DELETE", "/api/remove/leased", "Remove operation failed", "OBJECT_HAS_LEASE"),
    ];
    for (method, path, error, reason) in cases {
        let answer = connection.ask(method, path, b"").await;
        let body: serde_json::Value = serde_json::from_str(answer.text()).unwrap();
        assert_eq!((answer.status, &body["error"]), (500, &error.into()), "{path}");
        assert!(body["reason"].as_str().unwrap().contains(reason), "{path}: {body}");
    }
    assert_eq!(put(&mut connection, "full", "v").await, 500);
    let number = connection.ask("PUT", "/api/put", br#"{"key":"k","value":7}"#).await;
    assert!(number.status == 400 && number.text().contains("must be strings"), "{}", number.text());
}

#[tokio::test]
async fn a_large_value_round_trips_and_a_larger_one_is_refused() {
    let (running, mut connection) = serve().await;
    let value = "x".repeat(20 << 20);
    assert_eq!(put(&mut connection, "large", &value).await, 200);
    assert!(connection.ask("GET", "/api/get/large", b"").await.body == value.as_bytes());
    let mut other = Connection::to(running.at().port).await;
    other.send(b"PUT /api/put HTTP/1.1\r\nHost: t\r\nContent-Length: 104857601\r\n\r\n").await;
    assert_eq!(other.answer(false).await.status, 413);
}

#[tokio::test]
async fn unread_answers_share_a_budget_and_others_wait() {
    let (running, mut connection) = serve().await;
    let size = 32 << 20;
    assert_eq!(put(&mut connection, "large", &"x".repeat(size)).await, 200);
    assert_eq!(put(&mut connection, "small", "v").await, 200);
    let mut unread = Vec::new();
    for _ in 0..READING_BYTES_MAX / size {
        let mut reader = Connection::to(running.at().port).await;
        reader.send(b"GET /api/get/large HTTP/1.1\r\nHost: t\r\n\r\n").await;
        // The head has arrived: the object is held until its bytes are read.
        reader.read_some(1).await;
        unread.push(reader);
    }
    connection.send(b"GET /api/get/small HTTP/1.1\r\nHost: t\r\n\r\n").await;
    let waiting = tokio::time::timeout(Duration::from_millis(300), connection.read_some(1)).await;
    assert!(waiting.is_err(), "the budget is used up");
    unread.pop();
    let answered = in_time("the answer", connection.read_some(1)).await;
    assert_eq!(answered, 1);
}

/// The metrics of a node.
pub async fn metrics_of_a_node() -> String {
    let (_running, mut connection) = serve().await;
    connection.ask("GET", "/metrics", b"").await.text().to_owned()
}

#[tokio::test]
async fn health_and_metrics_report_the_node() {
    let (_running, mut connection) = serve().await;
    let healthy = connection.ask("GET", "/health", b"").await;
    assert_eq!((healthy.status, healthy.text()), (200, "{\"status\": \"healthy\", \"code\": 0}"));
    put(&mut connection, "no master", "v").await;
    let sick = connection.ask("GET", "/health", b"").await;
    assert_eq!((sick.status, sick.text()), (503, "{\"status\": \"master_unreachable\", \"code\": 2}"));
    let transport: serde_json::Value =
        serde_json::from_str(connection.ask("GET", "/transport", b"").await.text()).unwrap();
    assert_eq!(
        (&transport["schema"], &transport["peers"][0]),
        (&"mcctl.node.transport/1".into(), &serde_json::Value::Null)
    );
    let metrics = connection.ask("GET", "/metrics", b"").await;
    for line in ["mcctl_node_served_read_bytes_total 7", "mcctl_node_segment_bytes 1073741824"] {
        assert!(metrics.text().lines().any(|l| l == line), "{line}");
    }
}
