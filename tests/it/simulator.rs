//! The simulated endpoint over its routes, alone and with a real store, and the `serve sim`
//! command.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use mcctl::engine::base::{ByteSize, HostPort};
use mcctl::engine::env::{Env, RealEnv};
use mcctl::engine::http::{FetchResponse, Fetcher, Samples};
use mcctl::engine::master::{MasterConfig, MasterServer};
use mcctl::engine::sim::{self, Config, Cost, RunningSimulator, Storage};
use mcctl::engine::store::{Node, NodeConfig, StoreClient};
use nix::sys::signal::Signal;
use serde_json::{Value, json};

use crate::cli::service::Service;
use crate::cli::{command, mcctl};
use crate::peer::cluster::{Cluster, Make, Metadata};
use crate::peer::process::{PATIENCE, wait_until, wait_until_async};

fn quick() -> Config {
    let cost = Cost { step: Duration::from_millis(2), prefill_tokens_per_s: 1e6, ..Config::small().cost };
    Config { page_size: 16, device_tokens: 4096, bytes_per_token: 64, cost, ..Config::small() }
}

/// A simulator and its client.
struct Sim {
    running: RunningSimulator,
    fetch: Fetcher,
    url: String,
}

impl Sim {
    async fn start(config: Config, storage: Option<Storage<RealEnv>>) -> Sim {
        let running = sim::start(RealEnv::new(), &HostPort::new("127.0.0.1", 0), config, storage).await.unwrap();
        let url = format!("http://{}", running.at());
        Sim { running, url, fetch: Fetcher::new(false, PATIENCE, 64 << 20).unwrap() }
    }

    async fn post(&self, path: &str, body: &Value) -> FetchResponse {
        self.fetch.post(&format!("{}{path}", self.url), body.to_string()).await.unwrap()
    }

    async fn get(&self, path: &str) -> FetchResponse {
        self.fetch.get(&format!("{}{path}", self.url)).await.unwrap()
    }

    async fn json(&self, path: &str, body: &Value) -> Value {
        let answer = self.post(path, body).await;
        assert_eq!(answer.status, 200, "{}", answer.body);
        serde_json::from_str(&answer.body).unwrap()
    }

    async fn generate(&self, ids: &[u32], output: u32) -> Value {
        self.json("/generate", &json!({"input_ids": ids, "sampling_params": {"max_new_tokens": output}})).await
    }

    async fn metrics(&self) -> Samples {
        Samples::parse(&self.get("/metrics").await.body)
    }

    /// Posts a streaming request and returns its frames.
    async fn stream(&self, path: &str, mut body: Value) -> Vec<Value> {
        body["stream"] = json!(true);
        let answer = self.post(path, &body).await;
        assert_eq!(answer.status, 200, "{}", answer.body);
        let mut frames: Vec<&str> = answer.body.split_terminator("\n\n").collect();
        assert_eq!(frames.pop(), Some("data: [DONE]"));
        frames.iter().map(|frame| serde_json::from_str(frame.strip_prefix("data: ").unwrap()).unwrap()).collect()
    }
}

fn ids(of: u32, count: u32) -> Vec<u32> {
    (0..count).map(|at| of * 1000 + at).collect()
}

fn tiers(answer: &Value) -> [u64; 3] {
    let details = &answer["meta_info"]["cached_tokens_details"];
    ["device", "host", "storage"].map(|tier| details[tier].as_u64().unwrap_or(0))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn generate_stream_grows_and_reports_cached_tokens() {
    let sim = Sim::start(quick(), None).await;
    let body = json!({"input_ids": ids(1, 100), "sampling_params": {"max_new_tokens": 5}});
    let frames = sim.stream("/generate", body.clone()).await;
    assert_eq!(frames.len(), 5);
    for (at, frame) in frames.iter().enumerate() {
        assert_eq!(frame["output_ids"].as_array().unwrap().len(), at + 1);
        assert_eq!(frame["meta_info"]["completion_tokens"], at + 1);
        assert!(frame["text"].as_str().unwrap().starts_with(frames[0]["text"].as_str().unwrap()));
    }
    let meta = &frames[4]["meta_info"];
    assert_eq!((&meta["prompt_tokens"], &meta["cached_tokens_details"]), (&json!(100), &Value::Null));
    assert_eq!(meta["finish_reason"], json!({"type": "length", "length": 5}));
    for time in ["queue_time", "first_token_latency", "e2e_latency", "storage_prefetch_wait", "request_received_ts"] {
        assert!(meta[time].as_f64().is_some_and(|seconds| seconds >= 0.0), "{time}: {meta}");
    }
    let again = sim.stream("/generate", body).await;
    assert_eq!(again[4]["output_ids"], frames[4]["output_ids"], "equal prompts have equal answers");
    assert_eq!(tiers(&again[4]), [96, 0, 0]);
    assert_eq!(again[4]["meta_info"]["cached_tokens"], 96);
    sim.running.stop().await;
    let sim = Sim::start(Config { incremental: true, ..quick() }, None).await;
    let deltas = sim.stream("/generate", json!({"text": "some words", "sampling_params": {"max_new_tokens": 4}})).await;
    assert_eq!(deltas.len(), 4);
    assert!(deltas.iter().all(|frame| frame["output_ids"].as_array().unwrap().len() == 1));
    sim.running.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn continued_chat_finds_its_answers_in_the_cache() {
    let sim = Sim::start(quick(), None).await;
    let mut messages = vec![json!({"role": "user", "content": "tell me something of a certain length, please"})];
    let mut before = 0;
    for turn in 0..4 {
        let body = json!({"messages": messages, "max_completion_tokens": 30, "return_cached_tokens_details": true,
            "stream_options": {"include_usage": true}});
        let frames = sim.stream("/v1/chat/completions", body).await;
        // A role, 30 tokens, an end, the tiers and the usage.
        assert_eq!(frames.len(), 34, "{frames:?}");
        assert!(frames.iter().all(|frame| frame["system_fingerprint"].as_str().unwrap().contains("simulator")));
        let usage = &frames[33]["usage"];
        let (prompt, cached) =
            (usage["prompt_tokens"].as_u64().unwrap(), &usage["prompt_tokens_details"]["cached_tokens"]);
        let expected: u64 = if turn == 0 { 0 } else { (before - 1) / 16 * 16 };
        assert_eq!(cached, expected, "turn {turn} of {prompt} tokens");
        if turn > 0 {
            assert_eq!(frames[32]["sglext"]["cached_tokens_details"], json!({"device": expected, "host": 0}));
        }
        assert_eq!(
            (&frames[31]["choices"][0]["finish_reason"], &usage["completion_tokens"]),
            (&json!("length"), &json!(30))
        );
        before = prompt + 30;
        let said: String =
            frames[1..31].iter().map(|frame| frame["choices"][0]["delta"]["content"].as_str().unwrap()).collect();
        messages.push(json!({"role": "assistant", "content": said}));
        messages.push(json!({"role": "user", "content": "and what else?"}));
    }
    let whole = sim.json("/v1/chat/completions", &json!({"messages": messages, "max_tokens": 3})).await;
    assert!(whole["choices"][0]["message"]["content"].as_str().unwrap().len() == 15, "{whole}");
    let text = sim.json("/v1/completions", &json!({"prompt": "a b c", "max_tokens": 2})).await;
    assert_eq!((&text["object"], &text["usage"]["prompt_tokens"]), (&json!("text_completion"), &json!(3)));
    let frames = sim.stream("/v1/completions", json!({"prompt": [5, 6, 7], "max_tokens": 2})).await;
    assert_eq!(frames.len(), 3);
    sim.running.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_response_identifies_the_simulator() {
    let sim = Sim::start(Config { model: "m".to_owned(), ..quick() }, None).await;
    for path in ["/server_info", "/get_server_info", "/model_info", "/get_model_info"] {
        let answer: Value = serde_json::from_str(&sim.get(path).await.body).unwrap();
        assert_eq!(answer["simulator"], true, "{path}");
        assert!(answer["version"].as_str().unwrap().starts_with("mcctl-sim "), "{path}");
    }
    let info: Value = serde_json::from_str(&sim.get("/server_info").await.body).unwrap();
    assert_eq!((&info["page_size"], &info["max_total_num_tokens"]), (&json!(16), &json!(4096)));
    assert_eq!(info["internal_states"][0]["max_total_num_tokens"], 4096);
    let models: Value = serde_json::from_str(&sim.get("/v1/models").await.body).unwrap();
    assert_eq!(models["data"][0]["id"], "m");
    assert_eq!(sim.metrics().await.sum("mcctl_sim_info"), Some(1.0));
    for path in ["/health", "/health_generate", "/server_info", "/nothing"] {
        let (head, _) = raw(&sim, &format!("GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"));
        assert!(head.contains("x-mcctl-simulator: 1"), "{path}: {head}");
    }
    sim.running.stop().await;
}

/// Sends raw bytes and reads to the end. Returns the head and the body.
fn raw(sim: &Sim, request: &str) -> (String, String) {
    let mut stream = TcpStream::connect(sim.url.trim_start_matches("http://")).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.write_all(request.as_bytes()).unwrap();
    let mut text = String::new();
    let _ = stream.read_to_string(&mut text);
    let (head, rest) = text.split_once("\r\n\r\n").unwrap_or((&text, ""));
    (head.to_owned(), rest.to_owned())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn counters_are_the_sums_over_the_responses() {
    let sim = Sim::start(Config { host_tokens: 8208, ..quick() }, None).await;
    let asked = (0..24u32).map(|n| (ids(n % 7, 300 + 60 * (n % 5)), 3 + n % 4));
    let answers = futures_util::future::join_all(asked.map(|(prompt, output)| {
        let sim = &sim;
        async move { sim.generate(&prompt, output).await }
    }))
    .await;
    let sum = |name: &str| answers.iter().map(|answer| answer["meta_info"][name].as_u64().unwrap()).sum::<u64>() as f64;
    let by_tier =
        answers.iter().map(tiers).fold([0; 3], |sum, one| [sum[0] + one[0], sum[1] + one[1], sum[2] + one[2]]);
    let metrics = sim.metrics().await;
    assert_eq!(metrics.sum("sglang:num_requests_total"), Some(24.0));
    assert_eq!(metrics.sum("sglang:prompt_tokens_total"), Some(sum("prompt_tokens")));
    assert_eq!(metrics.sum("sglang:generation_tokens_total"), Some(sum("completion_tokens")));
    assert_eq!(metrics.sum("sglang:cached_tokens_total").unwrap_or(0.0), sum("cached_tokens"));
    for (tier, mode, tokens) in [("device", "device_hit", by_tier[0]), ("host", "host_hit", by_tier[1])] {
        let of = |name: &str, label: &str, value: &str| metrics.sum_where(name, label, value).unwrap_or(0.0);
        assert_eq!(of("sglang:cached_tokens_total", "cache_source", tier), tokens as f64);
        assert_eq!(of("sglang:prefill_effective_tokens_total", "mode", mode), tokens as f64);
    }
    let computed = metrics.sum_where("sglang:prefill_effective_tokens_total", "mode", "input");
    assert_eq!(computed, Some(sum("prompt_tokens") - sum("cached_tokens")));
    assert!(by_tier[0] > 0, "{by_tier:?}");
    sim.running.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unsupported_requests_are_refused_in_sglangs_format() {
    let sim = Sim::start(quick(), None).await;
    let post = async |path: &str, body: &str| {
        let answer = sim.fetch.post(&format!("{}{path}", sim.url), body.to_owned()).await.unwrap();
        let value: Value = serde_json::from_str(&answer.body).unwrap_or_else(|_| panic!("{answer:?}"));
        (answer.status, value)
    };
    let long = json!({"input_ids": ids(1, 4096)}).to_string();
    for (body, says) in [
        ("{", "EOF"),
        (&*long, "longer than"),
        (r#"{"input_ids":[]}"#, "no tokens"),
        (r#"{"text":7}"#, "text (a string)"),
    ] {
        let (status, value) = post("/generate", body).await;
        let message = value["error"]["message"].as_str().unwrap();
        assert!(status == 400 && message.contains(says), "{body:.40}: {status} {value}");
    }
    let (status, value) = post("/v1/chat/completions", r#"{"messages":[]}"#).await;
    assert_eq!((status, &value["object"], &value["code"]), (400, &json!("error"), &json!(400)));
    assert_eq!(post("/nowhere", "{}").await.0, 404);
    let huge = "POST /generate HTTP/1.1\r\nhost: x\r\ncontent-length: 99999999999\r\n\r\n";
    assert!(raw(&sim, huge).0.starts_with("HTTP/1.1 413"));
    // The server keeps working.
    assert_eq!(sim.generate(&ids(1, 10), 2).await["meta_info"]["completion_tokens"], 2);
    // A prompt that leaves less space than requested gets a shorter answer.
    assert_eq!(sim.generate(&ids(1, 4090), 100).await["meta_info"]["completion_tokens"], 5);
    sim.running.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn disconnected_client_is_aborted_and_flush_waits_until_idle() {
    let sim = Sim::start(Config { running_max: 1, ..quick() }, None).await;
    let body =
        json!({"input_ids": ids(1, 50), "sampling_params": {"max_new_tokens": 3000}, "stream": true}).to_string();
    let request = format!("POST /generate HTTP/1.1\r\nhost: x\r\ncontent-length: {}\r\n\r\n{body}", body.len());
    let mut stream = TcpStream::connect(sim.url.trim_start_matches("http://")).unwrap();
    stream.write_all(request.as_bytes()).unwrap();
    stream.read_exact(&mut [0; 300]).unwrap();
    assert_eq!(sim.get("/flush_cache").await.status, 400);
    assert_eq!(sim.metrics().await.sum("sglang:num_running_reqs"), Some(1.0));
    drop(stream);
    assert_eq!(sim.post("/flush_cache?timeout=20", &Value::Null).await.status, 200);
    let metrics = sim.metrics().await;
    assert_eq!(
        (metrics.sum("sglang:num_running_reqs"), metrics.sum("sglang:num_aborted_requests_total")),
        (Some(0.0), Some(1.0))
    );
    assert_eq!(metrics.sum("sglang:kv_used_tokens"), Some(0.0));
    assert_eq!(sim.get("/flush_cache?timeout=x").await.status, 400);
    // Abort by request id.
    let mine = json!({"rid": "mine-1", "text": "a", "sampling_params": {"max_new_tokens": 3000}});
    let waits = sim.post("/generate", &mine);
    let abort = async {
        let runs = async || sim.metrics().await.sum("sglang:num_running_reqs") != Some(0.0);
        wait_until_async("the request to run", PATIENCE, runs).await;
        assert_eq!(sim.post("/abort_request", &json!({"rid": "mine"})).await.status, 200);
        assert_eq!(sim.post("/abort_request", &json!({})).await.status, 400);
    };
    let (answer, ()) = tokio::join!(waits, abort);
    let answer: Value = serde_json::from_str(&answer.body).unwrap();
    assert_eq!(answer["meta_info"]["finish_reason"]["type"], "abort");
    sim.running.stop().await;
}

async fn node(master: &MasterServer<RealEnv>, segment_mib: u64) -> Node<RealEnv> {
    let client = StoreClient::builder(HostPort::new("127.0.0.1", master.rpc_port()))
        .local_hostname("127.0.0.1")
        .max_wait(PATIENCE)
        .config();
    let config = NodeConfig { client, segment_bytes: ByteSize(segment_mib * ByteSize::MIB) };
    Node::start(config, RealEnv::new()).await.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pages_return_from_a_real_store_also_to_another_simulator() {
    let env = RealEnv::new();
    let mut config = MasterConfig::new(HostPort::new("127.0.0.1", 0));
    config.policy.lease_ttl = Duration::from_millis(50);
    let master = MasterServer::start(config, env.clone()).await.unwrap();
    let lender = node(&master, 64).await;
    let client = node(&master, 0).await;
    let config = Config { host_tokens: 8208, ..quick() };
    let storage = || Some(Storage::new(env.clone(), client.client().clone(), &config));
    let sim = Sim::start(config.clone(), storage()).await;
    let first = sim.generate(&ids(1, 800), 2).await;
    assert_eq!(tiers(&first), [0, 0, 0]);
    let written = async |sim: &Sim, tokens: f64| {
        let is_written = async || sim.metrics().await.sum("sglang:backuped_tokens_total") == Some(tokens);
        wait_until_async("the pages to be written", PATIENCE, is_written).await;
    };
    written(&sim, 800.0).await;
    assert_eq!(sim.post("/flush_cache", &Value::Null).await.status, 200);
    let again = sim.generate(&ids(1, 800), 2).await;
    assert_eq!((tiers(&again), &again["output_ids"]), ([0, 0, 784], &first["output_ids"]));
    assert_eq!(again["meta_info"]["cached_tokens_details"]["storage_backend"], "MooncakeStore");
    // It is on the device now. Other requests push it to the host.
    for other in 2..8 {
        sim.generate(&ids(other, 800), 2).await;
    }
    assert_eq!(tiers(&sim.generate(&ids(1, 800), 2).await), [0, 784, 0]);
    let metrics = sim.metrics().await;
    assert_eq!(metrics.sum("sglang:prefetched_tokens_total"), Some(784.0));
    assert_eq!(metrics.sum_where("sglang:cached_tokens_total", "cache_source", "storage"), Some(784.0));
    assert_eq!(metrics.sum("sglang:load_back_tokens_total"), Some(784.0 * 2.0));
    // A simulator of the same model shares the pages; one with another page size in bytes does not.
    let other = Sim::start(config.clone(), storage()).await;
    assert_eq!(tiers(&other.generate(&ids(1, 800), 2).await), [0, 0, 784]);
    other.running.stop().await;
    let strange = Config { bytes_per_token: 128, ..config.clone() };
    let other = Sim::start(strange.clone(), Some(Storage::new(env.clone(), client.client().clone(), &strange))).await;
    assert_eq!(tiers(&other.generate(&ids(1, 800), 2).await), [0, 0, 0]);
    other.running.stop().await;
    // Leases are short here. The last page was computed and written again after the flush.
    written(&sim, 7.0 * 800.0 + 16.0).await;
    env.sleep(Duration::from_millis(100)).await;
    assert_eq!(sim.post("/hicache/storage-backend/clear", &Value::Null).await.status, 200);
    assert_eq!(sim.post("/flush_cache", &Value::Null).await.status, 200);
    assert_eq!(tiers(&sim.generate(&ids(1, 800), 2).await), [0, 0, 0]);
    sim.running.stop().await;
    for node in [lender, client] {
        node.stop().await;
    }
    master.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn missing_store_does_not_affect_requests() {
    let env = RealEnv::new();
    let master = MasterServer::start(MasterConfig::new(HostPort::new("127.0.0.1", 0)), env.clone()).await.unwrap();
    let client = node(&master, 0).await;
    let config = Config { host_tokens: 8208, ..quick() };
    let storage = Storage::new(env.clone(), client.client().clone(), &config);
    let sim = Sim::start(config, Some(storage)).await;
    // A store without a node has no space.
    sim.generate(&ids(1, 800), 2).await;
    sim.post("/flush_cache", &Value::Null).await;
    assert_eq!(tiers(&sim.generate(&ids(1, 800), 2).await), [0, 0, 0]);
    client.stop().await;
    master.stop().await.unwrap();
    sim.post("/flush_cache", &Value::Null).await;
    assert_eq!(tiers(&sim.generate(&ids(1, 800), 2).await), [0, 0, 0]);
    assert_eq!(sim.post("/hicache/storage-backend/clear", &Value::Null).await.status, 400);
    sim.running.stop().await;
}

#[test]
fn serve_sim_runs_until_a_signal() {
    let mut service = Service::start(command(&["serve", "sim", "--port=0", "--page-size=16", "--enable-metrics"]));
    service.line_with("SIMULATOR");
    let port = service.port_after("http://127.0.0.1:");
    let (status, body) = crate::cli::service::get(port, "/model_info");
    assert!(status == 200 && body.contains("\"simulator\":true"), "{body}");
    let url = format!("--url=http://127.0.0.1:{port}");
    let run = mcctl(&[
        "bench",
        "multi-turn",
        &url,
        "--num-clients=3",
        "--num-rounds=3",
        "--request-length=100",
        "--output-length=8",
        "--request-rate=inf",
        "--json",
    ]);
    let told: Value = serde_json::from_str(run.succeeds()).unwrap();
    let pass = &told["passes"][0];
    assert_eq!((&pass["sent"], &pass["completed"]), (&json!(9), &json!(9)), "{told}");
    assert!(pass["tokens"]["device"].as_u64().is_some_and(|tokens| tokens > 0), "{told}");
    assert_eq!(service.stop(Signal::SIGTERM), 0);
}

#[test]
fn serve_sim_exit_codes_for_usage_port_and_master() {
    for bad in ["--page-size=0", "--max-total-tokens=20", "--prefill-tokens-per-s=0", "--hicache-storage-backend=file"]
    {
        let run = mcctl(&["serve", "sim", bad]);
        assert_eq!((run.code, run.stdout.as_str()), (2, ""), "{bad}: {run:?}");
    }
    let big = mcctl(&["serve", "sim", "--page-size=4096", "--bytes-per-token=1000000"]);
    assert!(big.fails(2).contains("a page does not fit"), "{big:?}");
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = format!("--port={}", taken.local_addr().unwrap().port());
    assert!(mcctl(&["serve", "sim", &port]).fails(4).contains("for the simulator is in use"));
    assert_eq!(mcctl(&["serve", "sim", "--port=0", "--master=127.0.0.1:1"]).code, 3);
}

#[test]
#[cfg_attr(peers_off, ignore = "needs the Mooncake wheel")]
fn pages_are_stored_in_a_real_mooncake_cluster() {
    let cluster = Cluster::start(Make::Real, Make::Real, Metadata::P2p, 1, 64 << 20);
    let master = format!("--master={}", cluster.master.address());
    let mut service =
        Service::start(command(&["serve", "sim", "--port=0", "--page-size=16", "--bytes-per-token=64", &master]));
    let port = service.port_after("http://127.0.0.1:");
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let asked = json!({"input_ids": ids(1, 800), "sampling_params": {"max_new_tokens": 2}}).to_string();
    let fetch = Fetcher::new(false, PATIENCE, 1 << 20).unwrap();
    let post = |path: &str, body: &str| -> FetchResponse {
        runtime.block_on(fetch.post(&format!("http://127.0.0.1:{port}{path}"), body.to_owned())).unwrap()
    };
    let generate = || -> Value { serde_json::from_str(&post("/generate", &asked).body).unwrap() };
    let first = generate();
    let written =
        || crate::cli::service::get(port, "/metrics").1.contains("storage_backend=\"mooncake\",tp_rank=\"0\"} 800.0");
    wait_until("the pages to be written", PATIENCE, written);
    assert_eq!(post("/flush_cache", "").status, 200);
    let again = generate();
    assert_eq!((tiers(&again), &again["output_ids"]), ([0, 0, 784], &first["output_ids"]));
    assert_eq!(service.stop(Signal::SIGTERM), 0);
    let run =
        mcctl(&["bench", "store", "--object-size=100kb", "--objects=32", "--batch=4", "--verify", "--json", &master]);
    let told: Value = serde_json::from_str(run.succeeds()).unwrap();
    assert_eq!((&told["passes"][1]["get"]["verified"], &told["removed"]), (&json!(32), &json!(32)), "{told}");
}
