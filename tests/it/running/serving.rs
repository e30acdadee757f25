//! Tests of the SGLang checks against servers that respond like 0.5.23.

use std::sync::Arc;
use std::sync::Mutex;

use mcctl::engine::base::HostPort;
use mcctl::engine::check::{CheckReport, CheckStatus, Severity};
use mcctl::engine::doctor::serving::{CHECKS, ServingQuery, run};
use mcctl::engine::env::RealEnv;
use mcctl::engine::http::{self, Handler, HttpLimits, HttpRequest, HttpServer, Response, StatusCode, answer};
use serde_json::{Value, json};

use super::{Recorded, found, is_readable, is_well, of, passed};
use crate::peer::process::PATIENCE;

fn query(urls: &[String]) -> ServingQuery {
    ServingQuery {
        urls: urls.to_vec(),
        api_key: None,
        probe: false,
        master: Some(HostPort::new("127.0.0.1", 50_051)),
        admin: None,
        credentials: mcctl::engine::http::HttpCredentials::default(),
        limit: PATIENCE,
    }
}

async fn examine(query: &ServingQuery) -> Vec<CheckReport> {
    let reports = run(&RealEnv::new(), query, &|_| true).await;
    assert_eq!(reports.len(), CHECKS.len());
    is_readable(&reports);
    reports
}

/// The relevant settings of a server.
fn settings(page_size: u64) -> Value {
    json!({
        "version": "0.5.23", "model_path": "/m", "served_model_name": "tiny", "page_size": page_size, "tp_size": 1, "pp_size": 1,
        "dtype": "auto", "kv_cache_dtype": "auto", "enable_hierarchical_cache": true, "hicache_storage_backend": "mooncake",
        "hicache_mem_layout": "page_first_direct", "hicache_write_policy": "write_through",
        "hicache_storage_prefetch_policy": "timeout", "enable_metrics": true, "disaggregation_mode": "null",
        "hicache_storage_backend_extra_config": "{\"master_server_address\": \"127.0.0.1:50051\", \"global_segment_size\": \"1gb\"}",
    })
}

/// A simulated server with its own or a shared store.
struct Sglang {
    settings: Value,
    /// Prompts whose pages are in the store.
    store: Arc<Mutex<Vec<Value>>>,
    /// Prompts in L1 and L2.
    above: Mutex<Vec<Value>>,
    /// Whether it reads from the store.
    reads: bool,
    /// Whether it writes to the store.
    writes: bool,
    flushes: Mutex<u32>,
}

impl Handler for Sglang {
    async fn handle(&self, request: HttpRequest) -> Response {
        let json = |value: Value| answer(StatusCode::OK, "application/json", value.to_string());
        match request.path() {
            "/server_info" => json(self.settings.clone()),
            "/metrics" => {
                let written = self.store.lock().unwrap().len() * 592;
                let page = format!(
                    "sglang:backuped_tokens_total{{tp_rank=\"0\"}} {written}\nsglang:prefetched_tokens_total 1\n"
                );
                answer(StatusCode::OK, "text/plain", page)
            }
            "/flush_cache" => {
                *self.flushes.lock().unwrap() += 1;
                self.above.lock().unwrap().clear();
                answer(StatusCode::OK, "text/plain", "Cache flushed.\n")
            }
            "/generate" => {
                let body: Value = serde_json::from_slice(&request.body).unwrap();
                let prompt = body["input_ids"].clone();
                let is_above = self.above.lock().unwrap().contains(&prompt);
                let is_stored = self.reads && self.store.lock().unwrap().contains(&prompt);
                if self.writes && !self.store.lock().unwrap().contains(&prompt) {
                    self.store.lock().unwrap().push(prompt.clone());
                }
                self.above.lock().unwrap().push(prompt);
                let details = match (is_above, is_stored) {
                    (true, _) => json!({"device": 592, "host": 0}),
                    (false, true) => {
                        json!({"device": 0, "host": 0, "storage": 592, "storage_backend": "MooncakeStore"})
                    }
                    (false, false) => Value::Null,
                };
                json(json!({"output_ids": [1, 2, 3], "meta_info": {"cached_tokens_details": details}}))
            }
            _ => answer(StatusCode::NOT_FOUND, "", "404"),
        }
    }
}

async fn sglang(
    page_size: u64,
    store: &Arc<Mutex<Vec<Value>>>,
    writes: bool,
    reads: bool,
) -> (HttpServer, String, Arc<Sglang>) {
    let server = Arc::new(Sglang {
        settings: settings(page_size),
        store: Arc::clone(store),
        above: Mutex::default(),
        reads,
        writes,
        flushes: Mutex::default(),
    });
    let at = HostPort::new("127.0.0.1", 0);
    let running = http::start(RealEnv::new(), &at, HttpLimits::SMALL, Arc::clone(&server)).await.unwrap();
    let url = format!("http://{}", running.at());
    (running, url, server)
}

#[tokio::test]
async fn a_healthy_server_passes_and_is_not_flushed() {
    let store = Arc::default();
    let (_running, url, server) = sglang(16, &store, true, true).await;
    let reports = examine(&query(&[url])).await;
    is_well(&reports);
    for id in
        ["sglang-reached", "hicache-on", "l3-attached", "l3-master", "prefetch-policy", "serving-metrics", "l3-read"]
    {
        passed(&reports, id);
    }
    assert!(matches!(of(&reports, "l3-probe"), CheckStatus::Skipped(why) if why.contains("--probe-serving")));
    assert_eq!(*server.flushes.lock().unwrap(), 0);
    assert!(store.lock().unwrap().is_empty(), "no prompt was sent");
}

#[tokio::test]
async fn the_probe_detects_that_two_servers_share_pages() {
    let store = Arc::default();
    let (_a, first, server) = sglang(16, &store, true, true).await;
    let (_b, second, other) = sglang(16, &store, true, true).await;
    let query_one = ServingQuery { probe: true, ..query(&[first, second]) };
    let reports = examine(&query_one).await;
    is_well(&reports);
    let text = passed(&reports, "l3-probe");
    assert_eq!(text.matches("592 of 600 tokens from the store").count(), 2, "{text}");
    passed(&reports, "same-fingerprint");
    assert_eq!((*server.flushes.lock().unwrap(), *other.flushes.lock().unwrap()), (1, 0));
}

#[tokio::test]
async fn the_probe_detects_unread_and_unshared_pages() {
    let store = Arc::default();
    let (_a, url, _) = sglang(16, &store, true, false).await;
    let reports = examine(&ServingQuery { probe: true, ..query(&[url]) }).await;
    found(&reports, "l3-probe", Severity::Error, "not read back");
    let (_a, first, _) = sglang(16, &Arc::default(), true, true).await;
    let (_b, second, _) = sglang(32, &Arc::default(), true, true).await;
    let reports = examine(&ServingQuery { probe: true, ..query(&[first, second]) }).await;
    found(&reports, "l3-probe", Severity::Error, "one server cannot read");
    found(&reports, "same-fingerprint", Severity::Error, "page_size");
}

#[tokio::test]
async fn unreachable_and_foreign_servers_are_found() {
    let reports = examine(&query(&["http://127.0.0.1:1".to_owned()])).await;
    found(&reports, "sglang-reached", Severity::Error, "did not report its settings");
    let (other, _) = Recorded::start(&[("/server_info", "hello".to_owned())]).await;
    let reports = examine(&query(&[format!("http://{}/", other.at())])).await;
    found(&reports, "sglang-reached", Severity::Error, "did not report its settings");
    let reports = examine(&query(&[])).await;
    assert!(reports.iter().all(|report| matches!(report.status, CheckStatus::Skipped(_))));
}

#[tokio::test]
async fn older_servers_report_settings_under_the_old_path() {
    let mut off = settings(64);
    off["enable_hierarchical_cache"] = json!(false);
    let (old, query_one) = Recorded::start(&[("/get_server_info", off.to_string())]).await;
    let reports = examine(&query(&[format!("http://{}", old.at())])).await;
    found(&reports, "hicache-on", Severity::Error, "is disabled");
    found(&reports, "serving-metrics", Severity::Info, "does not export metrics");
    assert!(query_one.queried("/server_info"));
}
