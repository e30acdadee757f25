//! HTTP routes for the [`Scheduler`], a task that advances its time, and tasks for its storage
//! operations.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use hyper::header::{CONTENT_TYPE, HeaderName, HeaderValue};
use serde_json::{Value, json};
use tokio::sync::{Notify, mpsc};
use tokio::task::JoinHandle;

use crate::answer::{self, AnswerFrames, WallClock};
use crate::ask::{self, ApiRoute, ParsedRequest};
use crate::config::{AdmissionError, Config};
use crate::scheduler::{Admission, FinishReason, HashedRequest, Scheduler, SchedulerEffect};
use crate::storage::Storage;
use crate::{HEADER, exposition, info};
use mcctl_base::HostPort;
use mcctl_net::http::{
    self, BindError, Handler, HttpLimits, HttpRequest, Method, Response, ResponseBody, StatusCode, answer,
};
use mcctl_sys::env::Env;

/// HTTP limits. A request with a million token IDs is about 8 MB of JSON.
const LIMITS: HttpLimits = HttpLimits {
    connections_max: 16_384,
    header_bytes_max: 64 << 10,
    body_bytes_max: 32 << 20,
    bodies_bytes_max: 256 << 20,
    header: Duration::from_secs(300),
    body: Duration::from_secs(60),
    // For a response that is not streamed, the head is sent when the response is complete.
    answer: Duration::from_secs(6 * 3600),
    stall: Duration::from_secs(60),
    least_rate: 0,
    drain: Duration::from_secs(1),
};
/// Maximum number of pages queued for writing to storage. Further pages are dropped.
const WRITE_PAGES_MAX: u64 = 1 << 16;
/// Interval at which a waiting flush checks whether the engine is idle.
const FLUSH_POLL: Duration = Duration::from_millis(20);
/// Maximum time that a flush may wait.
const FLUSH_MAX: Duration = Duration::from_secs(600);

/// A running simulator. Dropping it stops the simulator.
pub struct RunningSimulator {
    http: http::HttpServer,
    tasks: Vec<JoinHandle<()>>,
}

impl RunningSimulator {
    /// Returns the listen address.
    pub fn at(&self) -> &HostPort {
        self.http.at()
    }

    /// Stops the simulator. Open streams are cut off.
    pub async fn stop(self) {
        for task in &self.tasks {
            task.abort();
        }
        self.http.stop().await;
    }
}

/// HTTP handler for the simulated endpoint.
pub struct Simulator<E: Env> {
    inner: Arc<SimShared<E>>,
}

struct SimShared<E: Env> {
    env: E,
    config: Config,
    model: Arc<str>,
    clock: WallClock,
    storage: Option<Storage<E>>,
    state: Mutex<SimState>,
    /// Wakes the timer task when an event is due earlier than expected.
    sooner: Notify,
    writes: mpsc::UnboundedSender<Vec<u64>>,
    /// Number of pages in `writes`.
    writing: AtomicU64,
}

struct SimState {
    scheduler: Scheduler,
    listeners: HashMap<u64, mpsc::UnboundedSender<RequestEvent>>,
    names: HashMap<u64, String>,
}

/// An event for a request's connection.
enum RequestEvent {
    First(mcctl_base::Mono, Admission),
    Token(mcctl_base::Mono),
    Finished(mcctl_base::Mono, FinishReason),
}

/// Starts a simulator with `config` on the address `at`. `config.storage` is set according to
/// `storage`.
///
/// # Errors
/// The address cannot be bound.
pub async fn start<E: Env>(
    env: E,
    at: &HostPort,
    config: Config,
    storage: Option<Storage<E>>,
) -> Result<RunningSimulator, BindError> {
    let config = Config { storage: storage.is_some(), ..config };
    let (writes, written) = mpsc::unbounded_channel();
    let clock = WallClock { unix: env.unix().0 as f64 / 1e3, mono: env.now() };
    let inner = Arc::new(SimShared {
        model: config.model.as_str().into(),
        clock,
        storage,
        state: Mutex::new(SimState {
            scheduler: Scheduler::new(config.clone()),
            listeners: HashMap::new(),
            names: HashMap::new(),
        }),
        sooner: Notify::new(),
        writes,
        writing: AtomicU64::new(0),
        config,
        env: env.clone(),
    });
    let http = http::start(env, at, LIMITS, Arc::new(Simulator { inner: inner.clone() })).await?;
    let tasks = vec![tokio::spawn(drive(inner.clone())), tokio::spawn(write_back(inner, written))];
    Ok(RunningSimulator { http, tasks })
}

/// Advances the scheduler's time.
async fn drive<E: Env>(inner: Arc<SimShared<E>>) {
    loop {
        let now = inner.env.now();
        let wake = inner.with(|scheduler| {
            scheduler.advance(now);
            scheduler.wake()
        });
        match wake {
            None => inner.sooner.notified().await,
            Some(at) => tokio::select! {
                () = inner.sooner.notified() => {}
                () = inner.env.sleep(at.since(inner.env.now())) => {}
            },
        }
    }
}

/// Writes to storage the pages that were copied to the host, one batch after another.
async fn write_back<E: Env>(inner: Arc<SimShared<E>>, mut writes: mpsc::UnboundedReceiver<Vec<u64>>) {
    let Some(storage) = &inner.storage else { return };
    while let Some(pages) = writes.recv().await {
        let moved = storage.write(&pages).await;
        let count = pages.len() as u64;
        inner.writing.fetch_sub(count, Ordering::Relaxed);
        let taken = moved.pages as u64;
        inner.with(|scheduler| scheduler.written(taken, count - taken, moved.took));
    }
}

impl<E: Env> SimShared<E> {
    fn state(&self) -> MutexGuard<'_, SimState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Calls `work` with the scheduler, then executes the resulting effects.
    fn with<T>(self: &Arc<Self>, work: impl FnOnce(&mut Scheduler) -> T) -> T {
        let mut state = self.state();
        let done = work(&mut state.scheduler);
        self.carry_out(&mut state);
        done
    }

    fn carry_out(self: &Arc<Self>, state: &mut SimState) {
        for effect in state.scheduler.effects() {
            match effect {
                SchedulerEffect::First { id, at, admission } => notify(state, id, RequestEvent::First(at, admission)),
                SchedulerEffect::Token { id, at } => notify(state, id, RequestEvent::Token(at)),
                SchedulerEffect::Finished { id, at, end } => {
                    notify(state, id, RequestEvent::Finished(at, end));
                    state.listeners.remove(&id);
                    state.names.remove(&id);
                }
                SchedulerEffect::Lookup { id, pages } => self.storage_task(move |inner, storage| async move {
                    let hit = storage.lookup(&pages).await;
                    let now = inner.env.now();
                    inner.with(|scheduler| scheduler.lookup_done(now, id, hit));
                    inner.sooner.notify_one();
                }),
                SchedulerEffect::Read { id, pages } => self.storage_task(move |inner, storage| async move {
                    let moved = storage.read(&pages).await;
                    let now = inner.env.now();
                    inner.with(|scheduler| scheduler.read(now, id, moved.pages, moved.took));
                    inner.sooner.notify_one();
                }),
                SchedulerEffect::Write { pages } => {
                    let count = pages.len() as u64;
                    let is_full = self.writing.load(Ordering::Relaxed) + count > WRITE_PAGES_MAX;
                    if is_full || self.writes.send(pages).is_err() {
                        state.scheduler.written(0, count, Duration::ZERO);
                    } else {
                        self.writing.fetch_add(count, Ordering::Relaxed);
                    }
                }
            }
        }
    }

    /// Runs `work` on the storage in a separate task. There is at most one such task per waiting
    /// request.
    fn storage_task<F: Future<Output = ()> + Send + 'static>(
        self: &Arc<Self>,
        work: impl FnOnce(Arc<SimShared<E>>, Storage<E>) -> F,
    ) {
        // Without storage, the scheduler requests none of these operations.
        if let Some(storage) = self.storage.clone() {
            tokio::spawn(work(self.clone(), storage));
        }
    }
}

fn notify(state: &SimState, id: u64, event: RequestEvent) {
    if let Some(listener) = state.listeners.get(&id) {
        // The receiver is gone if the client has disconnected. In that case, its request is about
        // to be aborted.
        let _ = listener.send(event);
    }
}

/// A request with a connected client. Dropping it aborts the request.
struct PendingRequest<E: Env> {
    inner: Arc<SimShared<E>>,
    id: u64,
    events: mpsc::UnboundedReceiver<RequestEvent>,
}

impl<E: Env> Drop for PendingRequest<E> {
    fn drop(&mut self) {
        let now = self.inner.env.now();
        let mut state = self.inner.state();
        if state.listeners.remove(&self.id).is_some() {
            state.scheduler.abort(now, self.id);
            self.inner.carry_out(&mut state);
            drop(state);
            self.inner.sooner.notify_one();
        }
    }
}

impl<E: Env> Handler for Simulator<E> {
    async fn handle(&self, request: HttpRequest) -> Response {
        let mut response = self.route(request).await;
        response.headers_mut().insert(HeaderName::from_static(HEADER), HeaderValue::from_static("1"));
        response
    }
}

impl<E: Env> Simulator<E> {
    async fn route(&self, request: HttpRequest) -> Response {
        let inner = &self.inner;
        let path = request.path().trim_end_matches('/').to_owned();
        let get = request.method == Method::GET;
        let post = request.method == Method::POST;
        match (path.as_str(), get, post) {
            ("/generate", _, true) => self.ask(ApiRoute::Generate, &request).await,
            ("/v1/completions", _, true) => self.ask(ApiRoute::Completions, &request).await,
            ("/v1/chat/completions", _, true) => self.ask(ApiRoute::Chat, &request).await,
            ("/health" | "/health_generate" | "/ready", true, _) => answer(StatusCode::OK, "", ""),
            ("/v1/models", true, _) => {
                json_answer(StatusCode::OK, &info::models(&inner.config, inner.clock.unix as u64))
            }
            ("/model_info" | "/get_model_info", true, _) => json_answer(StatusCode::OK, &info::model(&inner.config)),
            ("/server_info" | "/get_server_info", true, _) => {
                let now = inner.env.now();
                let up = now.since(inner.clock.mono).as_secs_f64();
                let value = inner.with(|scheduler| {
                    scheduler.advance(now);
                    info::server(scheduler.config(), &scheduler.gauges(), scheduler.counters(), up)
                });
                json_answer(StatusCode::OK, &value)
            }
            ("/metrics", true, _) => {
                let now = inner.env.now();
                let page = inner.with(|scheduler| {
                    scheduler.advance(now);
                    exposition::page(scheduler.config(), scheduler.counters(), &scheduler.gauges())
                });
                answer(StatusCode::OK, "text/plain; version=0.0.4; charset=utf-8", page)
            }
            ("/flush_cache", ..) if get || post => self.flush(request.param("timeout")).await,
            ("/hicache/storage-backend", true, _) => json_answer(StatusCode::OK, &info::backend(&inner.config)),
            ("/hicache/storage-backend/clear", _, true) => self.clear().await,
            ("/abort_request", _, true) => self.abort(&request.body),
            _ => json_answer(StatusCode::NOT_FOUND, &json!({"detail": "Not Found"})),
        }
    }

    async fn ask(&self, route: ApiRoute, request: &HttpRequest) -> Response {
        let refuse =
            |status: StatusCode, message: &str| json_answer(status, &answer::error(route, status.as_u16(), message));
        let ParsedRequest { ask, id: name, usage, details } = match ask::read(route, &request.body) {
            Ok(wanted) => wanted,
            Err(error) => return refuse(StatusCode::BAD_REQUEST, &error.to_string()),
        };
        let inner = &self.inner;
        let stream = ask.stream;
        let prompt = ask.prompt.len() as u64;
        let name = name.unwrap_or_else(|| format!("{:016x}{:016x}", inner.env.rng(), inner.env.rng()));
        let prepared = match HashedRequest::new(ask, &inner.config) {
            Ok(prepared) => prepared,
            Err(refused) => return refuse(StatusCode::BAD_REQUEST, &refused.to_string()),
        };
        let now = inner.env.now();
        let (sender, events) = mpsc::unbounded_channel();
        let arrived = {
            let mut state = inner.state();
            let arrived = state.scheduler.arrive(now, prepared);
            if let Ok(id) = arrived {
                state.listeners.insert(id, sender);
                state.names.insert(id, name.clone());
            }
            inner.carry_out(&mut state);
            arrived
        };
        let id = match arrived {
            Ok(id) => id,
            Err(refused @ AdmissionError::QueueFull) => {
                return refuse(StatusCode::SERVICE_UNAVAILABLE, &refused.to_string());
            }
            Err(refused) => return refuse(StatusCode::BAD_REQUEST, &refused.to_string()),
        };
        inner.sooner.notify_one();
        let mut frames = AnswerFrames::new(route, name, inner.model.clone(), inner.clock);
        frames.incremental = inner.config.incremental;
        frames.storage = inner.config.storage;
        frames.usage = usage;
        frames.details = details;
        frames.prompt = prompt;
        frames.arrived = now;
        let ticket = PendingRequest { inner: inner.clone(), id, events };
        match stream {
            true => streamed(frames, ticket),
            false => whole(frames, ticket).await,
        }
    }

    async fn flush(&self, timeout: Option<&str>) -> Response {
        let inner = &self.inner;
        let timeout = timeout.map_or(Ok(0.0), str::parse::<f64>).ok().filter(|seconds| *seconds >= 0.0);
        let Some(timeout) = timeout else {
            return json_answer(
                StatusCode::BAD_REQUEST,
                &json!({"detail": "timeout must be a number of seconds, 0 or more"}),
            );
        };
        let until = inner.env.now() + Duration::try_from_secs_f64(timeout).unwrap_or(FLUSH_MAX).min(FLUSH_MAX);
        loop {
            let now = inner.env.now();
            if inner.with(|scheduler| scheduler.flush(now)) {
                return answer(
                    StatusCode::OK,
                    TEXT,
                    "Cache flushed. (Simulator: device and host only; storage is unchanged.)\n",
                );
            }
            if now >= until {
                let message = "Flush cache failed: there are running or waiting requests.\n";
                return answer(StatusCode::BAD_REQUEST, TEXT, message);
            }
            inner.env.sleep(FLUSH_POLL).await;
        }
    }

    async fn clear(&self) -> Response {
        let Some(storage) = &self.inner.storage else {
            return answer(StatusCode::BAD_REQUEST, TEXT, "no storage backend is configured\n");
        };
        match storage.clear().await {
            Ok(gone) => {
                let message = format!(
                    "Hierarchical cache storage backend cleared. ({gone} objects removed; leased objects remain.)\n"
                );
                answer(StatusCode::OK, TEXT, message)
            }
            Err(error) => answer(StatusCode::BAD_REQUEST, TEXT, format!("cannot clear storage: {error}\n")),
        }
    }

    fn abort(&self, body: &Bytes) -> Response {
        let asked: Value = serde_json::from_slice(body).unwrap_or_default();
        let all = asked.get("abort_all").and_then(Value::as_bool).unwrap_or(false);
        let begins = asked.get("rid").and_then(Value::as_str).filter(|rid| !rid.is_empty());
        if !all && begins.is_none() {
            return json_answer(
                StatusCode::BAD_REQUEST,
                &json!({"error": {"message": "rid or abort_all is required"}}),
            );
        }
        let now = self.inner.env.now();
        let mut state = self.inner.state();
        for id in state.scheduler.ids() {
            let matches = all || state.names.get(&id).zip(begins).is_some_and(|(name, rid)| name.starts_with(rid));
            if matches {
                state.scheduler.abort(now, id);
            }
        }
        self.inner.carry_out(&mut state);
        drop(state);
        self.inner.sooner.notify_one();
        answer(StatusCode::OK, "", "")
    }
}

/// Builds a streamed response with one frame per token.
fn streamed<E: Env>(mut frames: AnswerFrames, mut ticket: PendingRequest<E>) -> Response {
    let mut over = false;
    let pieces = move |cx: &mut Context<'_>| {
        while !over {
            let bytes = match ready!(ticket.events.poll_recv(cx)) {
                None => break,
                Some(RequestEvent::First(at, admission)) => frames.first(admission, at),
                Some(RequestEvent::Token(at)) => frames.next(at),
                Some(RequestEvent::Finished(at, end)) => {
                    over = true;
                    frames.end(end, at)
                }
            };
            // The last `/generate` token is sent with the final frame.
            if !bytes.is_empty() {
                return Poll::Ready(Some(bytes));
            }
        }
        Poll::Ready(None)
    };
    let mut response = Response::new(ResponseBody::Streamed(Box::new(pieces)));
    let kind = HeaderValue::from_static("text/event-stream; charset=utf-8");
    response.headers_mut().insert(CONTENT_TYPE, kind);
    response
}

/// Builds a response that is not streamed.
async fn whole<E: Env>(mut frames: AnswerFrames, mut ticket: PendingRequest<E>) -> Response {
    while let Some(event) = ticket.events.recv().await {
        match event {
            RequestEvent::First(_, admission) => frames.count(Some(admission)),
            RequestEvent::Token(_) => frames.count(None),
            RequestEvent::Finished(at, end) => return json_answer(StatusCode::OK, &frames.whole(end, at)),
        }
    }
    json_answer(StatusCode::SERVICE_UNAVAILABLE, &json!({"error": {"message": "the simulator is shutting down"}}))
}

const TEXT: &str = "text/plain; charset=utf-8";

fn json_answer(status: StatusCode, value: &Value) -> Response {
    answer(status, "application/json", value.to_string())
}
