//! A streaming endpoint with known timing.
//!
//! Token k of a request is due at (end of the request's body) + ttft + k * itl. The mock records
//! how late each token left this process, so that a client's figures can be compared with what was
//! sent. Of requests with a name (`rid`), it records every send time.
//!
//!   mock --port 31900 --ttft-ms 20 --itl-ms 20 [--threads 1] GET /mock/stats requests, tokens,
//!   lateness of first tokens and of all tokens (microseconds), this process's CPU seconds GET
//!   /mock/stamps a line per named request: its name, when its last byte had come in, when each
//!   token was sent (CLOCK_MONOTONIC, ns) POST /mock/reset

use std::future::poll_fn;
use std::io::Write as _;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use mcctl::engine::env::{self, Env, RealEnv};
use tokio::io::{AsyncWriteExt, ReadBuf};
use tokio::net::{TcpListener, TcpStream};

use crate::number;

const STEP_US: u64 = 20;
const STEPS: usize = 10_000; // up to 200 ms, the rest in the last

struct Lateness {
    counts: Vec<AtomicU64>,
    max_us: AtomicU64,
}

impl Lateness {
    fn new() -> Self {
        Self { counts: (0..=STEPS).map(|_| AtomicU64::new(0)).collect(), max_us: AtomicU64::new(0) }
    }
    fn add(&self, late: Duration) {
        let us = late.as_micros() as u64;
        self.counts[((us / STEP_US) as usize).min(STEPS)].fetch_add(1, Relaxed);
        self.max_us.fetch_max(us, Relaxed);
    }
    fn clear(&self) {
        self.counts.iter().for_each(|c| c.store(0, Relaxed));
        self.max_us.store(0, Relaxed);
    }
    fn report(&self) -> serde_json::Value {
        let counts: Vec<u64> = self.counts.iter().map(|c| c.load(Relaxed)).collect();
        let n: u64 = counts.iter().sum();
        let at = |q: f64| {
            let mut left = (q * n as f64) as u64;
            for (i, c) in counts.iter().enumerate() {
                if left < *c {
                    return i as u64 * STEP_US;
                }
                left -= c;
            }
            0
        };
        let sum: u64 = counts.iter().enumerate().map(|(i, c)| i as u64 * STEP_US * c).sum();
        serde_json::json!({"n": n, "mean": sum.checked_div(n).unwrap_or(0), "p50": at(0.5), "p99": at(0.99), "max": self.max_us.load(Relaxed)})
    }
}

struct State {
    ttft: Duration,
    itl: Duration,
    requests: AtomicU64,
    tokens: AtomicU64,
    open: AtomicU64,
    most_open: AtomicU64,
    first: Lateness,
    all: Lateness,
    stamps: Mutex<Vec<(String, Vec<u64>)>>,
}

/// Reads CLOCK_MONOTONIC, in nanoseconds.
fn monotonic() -> u64 {
    let now = nix::time::clock_gettime(nix::time::ClockId::CLOCK_MONOTONIC).expect("there is one");
    Duration::from(now).as_nanos() as u64
}

#[derive(serde::Deserialize, Default)]
#[serde(default)]
struct Sampling {
    max_new_tokens: Option<usize>,
}

#[derive(serde::Deserialize, Default)]
#[serde(default)]
struct Options {
    include_usage: bool,
}

#[derive(serde::Deserialize, Default)]
#[serde(default)]
struct Body {
    input_ids: Vec<u32>,
    text: Option<String>,
    prompt: Option<serde_json::Value>,
    messages: Vec<serde_json::Value>,
    sampling_params: Sampling,
    max_tokens: Option<usize>,
    max_completion_tokens: Option<usize>,
    stream: bool,
    rid: Option<String>,
    stream_options: Option<Options>,
}

impl Body {
    fn prompt_tokens(&self) -> usize {
        if !self.input_ids.is_empty() {
            return self.input_ids.len();
        }
        let chars = match (&self.text, &self.prompt) {
            (Some(t), _) => t.len(),
            (_, Some(serde_json::Value::String(s))) => s.len(),
            (_, Some(serde_json::Value::Array(a))) => return a.len(),
            _ => self.messages.iter().map(|m| m["content"].as_str().map_or(0, str::len)).sum(),
        };
        (chars / 4).max(1)
    }
    fn wanted(&self) -> usize {
        self.sampling_params.max_new_tokens.or(self.max_completion_tokens).or(self.max_tokens).unwrap_or(16).max(1)
    }
}

#[derive(Clone, Copy, PartialEq)]
enum Wire {
    Generate,
    Completions,
    Chat,
}

/// One SSE event as one HTTP chunk.
fn event(out: &mut Vec<u8>, data: &[u8]) {
    let _ = write!(out, "{:x}\r\ndata: ", data.len() + 8);
    out.extend_from_slice(data);
    out.extend_from_slice(b"\n\n\r\n");
}

async fn stream(
    s: &State,
    sock: &mut TcpStream,
    wire: Wire,
    body: &Body,
    began: Instant,
    came: u64,
) -> std::io::Result<()> {
    let mut stamps = body.rid.as_ref().map(|_| vec![came]);
    let prompt = body.prompt_tokens();
    let want = body.wanted();
    let mut out = Vec::with_capacity(4096);
    out.extend_from_slice(
        b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n",
    );
    if wire == Wire::Chat {
        event(&mut out, br#"{"id":"m","object":"chat.completion.chunk","created":1,"model":"mock","choices":[{"index":0,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}]}"#);
    }
    sock.write_all(&out).await?;
    let mut text = String::new();
    let mut ids = String::new();
    let mut data = Vec::with_capacity(4096);
    for k in 0..want {
        let due = began + s.ttft + s.itl * k as u32;
        tokio::time::sleep_until(due.into()).await;
        out.clear();
        data.clear();
        let last = k + 1 == want;
        match wire {
            Wire::Generate => {
                text.push_str(" kalo");
                let _ = std::fmt::Write::write_fmt(
                    &mut ids,
                    format_args!("{}{}", if k == 0 { "" } else { "," }, 300 + k % 1000),
                );
                let finish = if last { format!(r#"{{"type":"length","length":{want}}}"#) } else { "null".into() };
                let _ = write!(
                    data,
                    r#"{{"text":"{text}","output_ids":[{ids}],"meta_info":{{"id":"m","finish_reason":{finish},"prompt_tokens":{prompt},"weight_version":"default","completion_tokens":{},"cached_tokens":0,"cached_tokens_details":null}}}}"#,
                    k + 1
                );
            }
            Wire::Completions => {
                let finish = if last { r#""length""# } else { "null" };
                let _ = write!(
                    data,
                    r#"{{"id":"m","object":"text_completion","created":1,"model":"mock","choices":[{{"index":0,"text":" kalo","logprobs":null,"finish_reason":{finish}}}],"usage":null}}"#
                );
            }
            Wire::Chat => {
                let finish = if last { r#""length""# } else { "null" };
                let _ = write!(
                    data,
                    r#"{{"id":"m","object":"chat.completion.chunk","created":1,"model":"mock","choices":[{{"index":0,"delta":{{"content":" kalo"}},"logprobs":null,"finish_reason":{finish}}}]}}"#
                );
            }
        }
        event(&mut out, &data);
        if let Some(stamps) = &mut stamps {
            stamps.push(monotonic());
        }
        sock.write_all(&out).await?;
        let late = due.elapsed();
        s.all.add(late);
        if k == 0 {
            s.first.add(late);
        }
        s.tokens.fetch_add(1, Relaxed);
    }
    if let (Some(name), Some(stamps)) = (&body.rid, stamps) {
        s.stamps.lock().expect("lock is not poisoned").push((name.clone(), stamps));
    }
    out.clear();
    if wire != Wire::Generate && body.stream_options.as_ref().is_some_and(|o| o.include_usage) {
        let object = if wire == Wire::Chat { "chat.completion.chunk" } else { "text_completion" };
        let usage = format!(
            r#"{{"id":"m","object":"{object}","created":1,"model":"mock","choices":[],"usage":{{"prompt_tokens":{prompt},"total_tokens":{},"completion_tokens":{want},"prompt_tokens_details":{{"cached_tokens":0}}}}}}"#,
            prompt + want
        );
        event(&mut out, usage.as_bytes());
    }
    event(&mut out, b"[DONE]");
    out.extend_from_slice(b"0\r\n\r\n");
    sock.write_all(&out).await
}

async fn whole(sock: &mut TcpStream, body: &serde_json::Value) -> std::io::Result<()> {
    let b = body.to_string();
    sock.write_all(
        format!("HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{b}", b.len())
            .as_bytes(),
    )
    .await
}

async fn plain(sock: &mut TcpStream, text: &str) -> std::io::Result<()> {
    sock.write_all(format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n", text.len()).as_bytes()).await?;
    sock.write_all(text.as_bytes()).await
}

type Net = <RealEnv as Env>::Net;

/// Read; when the last of the bytes had come in (CLOCK_MONOTONIC, ns), and how many there are.
async fn some(sock: &mut TcpStream, part: &mut [u8]) -> std::io::Result<(u64, usize)> {
    let mut buf = ReadBuf::new(part);
    let age = poll_fn(|cx| <Net as env::Net>::poll_read_aged(sock, cx, &mut buf)).await?;
    Ok((monotonic() - age.as_nanos() as u64, buf.filled().len()))
}

/// Head and body of one request, and when its last byte had come in; None when the peer closed.
async fn read(sock: &mut TcpStream, buf: &mut Vec<u8>) -> std::io::Result<Option<(String, Vec<u8>, u64)>> {
    let mut part = [0u8; 16384];
    let mut came = 0;
    loop {
        if let Some(end) = buf.windows(4).position(|w| w == b"\r\n\r\n") {
            let head = String::from_utf8_lossy(&buf[..end]).into_owned();
            let length = |(_, v): (&str, &str)| v.trim().parse::<usize>().ok();
            let lines = head.lines().skip(1).filter_map(|l| l.split_once(':'));
            let len =
                lines.clone().find(|(k, _)| k.eq_ignore_ascii_case("content-length")).and_then(length).unwrap_or(0);
            while buf.len() < end + 4 + len {
                let (at, n) = some(sock, &mut part).await?;
                if n == 0 {
                    return Ok(None);
                }
                came = at;
                buf.extend_from_slice(&part[..n]);
            }
            let body = buf[end + 4..end + 4 + len].to_vec();
            buf.drain(..end + 4 + len);
            return Ok(Some((head, body, came)));
        }
        let (at, n) = some(sock, &mut part).await?;
        if n == 0 {
            return Ok(None);
        }
        came = at;
        buf.extend_from_slice(&part[..n]);
    }
}

fn cpu_seconds() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let ticks: u64 = stat
        .rsplit(')')
        .next()
        .unwrap_or("")
        .split_whitespace()
        .skip(11)
        .take(2)
        .filter_map(|f| f.parse::<u64>().ok())
        .sum();
    ticks as f64 / 100.0
}

async fn serve(s: Arc<State>, mut sock: TcpStream) -> std::io::Result<()> {
    sock.set_nodelay(true)?;
    <Net as env::Net>::note_arrivals(&sock);
    let mut buf = Vec::new();
    while let Some((head, raw, came)) = read(&mut sock, &mut buf).await? {
        let began = Instant::now();
        let mut line = head.split_whitespace();
        let method = line.next().unwrap_or("");
        let target = line.next().unwrap_or("");
        let path = target.split('?').next().unwrap_or("");
        let wire = match path {
            "/generate" => Some(Wire::Generate),
            "/v1/completions" => Some(Wire::Completions),
            "/v1/chat/completions" => Some(Wire::Chat),
            _ => None,
        };
        if let (Some(wire), "POST") = (wire, method) {
            let body: Body = match serde_json::from_slice(&raw) {
                Ok(b) => b,
                Err(e) => {
                    let m = e.to_string();
                    sock.write_all(
                        format!("HTTP/1.1 400 Bad Request\r\ncontent-length: {}\r\n\r\n{m}", m.len()).as_bytes(),
                    )
                    .await?;
                    continue;
                }
            };
            s.requests.fetch_add(1, Relaxed);
            s.most_open.fetch_max(s.open.fetch_add(1, Relaxed) + 1, Relaxed);
            let done = if body.stream {
                stream(&s, &mut sock, wire, &body, began, came).await
            } else {
                let p = body.prompt_tokens();
                let w = body.wanted();
                tokio::time::sleep_until((began + s.ttft + s.itl * (w - 1) as u32).into()).await;
                s.tokens.fetch_add(w as u64, Relaxed);
                let text = " kalo".repeat(w);
                let usage = serde_json::json!({"prompt_tokens": p, "completion_tokens": w, "total_tokens": p + w});
                let v = match wire {
                    Wire::Generate => {
                        serde_json::json!({"text": text, "output_ids": (0..w).map(|k| 300 + k % 1000).collect::<Vec<_>>(), "meta_info": {"id": "m", "finish_reason": {"type": "length", "length": w}, "prompt_tokens": p, "completion_tokens": w, "cached_tokens": 0}})
                    }
                    Wire::Completions => {
                        serde_json::json!({"id": "m", "object": "text_completion", "choices": [{"index": 0, "text": text, "finish_reason": "length"}], "usage": usage})
                    }
                    Wire::Chat => {
                        serde_json::json!({"id": "m", "object": "chat.completion", "choices": [{"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "length"}], "usage": usage})
                    }
                };
                whole(&mut sock, &v).await
            };
            s.open.fetch_sub(1, Relaxed);
            done?;
            continue;
        }
        if path == "/mock/stamps" {
            let mut text = String::new();
            for (name, stamps) in s.stamps.lock().expect("lock is not poisoned").iter() {
                text.push_str(name);
                for stamp in stamps {
                    let _ = std::fmt::Write::write_fmt(&mut text, format_args!(" {stamp}"));
                }
                text.push('\n');
            }
            plain(&mut sock, &text).await?;
            continue;
        }
        let v = match path {
            "/v1/models" => {
                serde_json::json!({"object": "list", "data": [{"id": "mock", "object": "model", "created": 1, "owned_by": "mock", "root": "mock", "max_model_len": 1000000}]})
            }
            "/mock/stats" => {
                serde_json::json!({"requests": s.requests.load(Relaxed), "tokens": s.tokens.load(Relaxed), "most_open": s.most_open.load(Relaxed), "first_late_us": s.first.report(), "token_late_us": s.all.report(), "cpu_s": cpu_seconds()})
            }
            "/mock/reset" => {
                s.requests.store(0, Relaxed);
                s.tokens.store(0, Relaxed);
                s.most_open.store(0, Relaxed);
                s.first.clear();
                s.all.clear();
                s.stamps.lock().expect("lock is not poisoned").clear();
                serde_json::json!({})
            }
            "/model_info" | "/get_model_info" => serde_json::json!({"model_path": "mock", "is_generation": true}),
            "/server_info" | "/get_server_info" => {
                serde_json::json!({"internal_states": [{}], "version": "mock", "page_size": 1})
            }
            _ => serde_json::json!({}), // health, flush_cache and whatever else a client asks
        };
        whole(&mut sock, &v).await?;
    }
    Ok(())
}

pub fn main(args: &[String]) {
    let get = |name: &str, or: f64| number(args, name, or);
    let s = Arc::new(State {
        ttft: Duration::from_secs_f64(get("--ttft-ms", 20.0) / 1e3),
        itl: Duration::from_secs_f64(get("--itl-ms", 20.0) / 1e3),
        requests: AtomicU64::new(0),
        tokens: AtomicU64::new(0),
        open: AtomicU64::new(0),
        most_open: AtomicU64::new(0),
        first: Lateness::new(),
        all: Lateness::new(),
        stamps: Mutex::new(Vec::new()),
    });
    let rt = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(get("--threads", 1.0) as usize)
        .enable_all()
        .build()
        .expect("runtime");
    rt.block_on(async move {
        let listen = TcpListener::bind(("127.0.0.1", get("--port", 31900.0) as u16)).await.expect("bind");
        println!("READY http://{}", listen.local_addr().expect("address"));
        loop {
            let Ok((sock, _)) = listen.accept().await else { continue };
            let s = s.clone();
            tokio::spawn(async move {
                let _ = serve(s, sock).await;
            });
        }
    });
}
