//! The HTTP server under all HTTP APIs: its limits and deadlines with misbehaving clients.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use mcctl::engine::base::HostPort;
use mcctl::engine::env::RealEnv;
use mcctl::engine::http::{
    self, Handler, HttpLimits, HttpRequest, HttpServer, Response, ResponseBody, StatusCode, answer,
};
use tokio::sync::Semaphore;

use crate::http::Connection;
use crate::peer::process::{PATIENCE, in_time, wait_until_async};

const LARGE: usize = 64 << 20;

/// `/echo` returns the body, `/gate` waits until the test opens it, `/endless` never ends, `/large`
/// has [`LARGE`] bytes, `/panic` panics.
struct Routes {
    gate: Semaphore,
    /// Requests to `/gate` so far.
    gated: AtomicUsize,
    /// `/endless` answers whose sending has ended.
    aborted: Arc<AtomicUsize>,
}

struct Counted(Arc<AtomicUsize>);

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

impl Handler for Routes {
    async fn handle(&self, request: HttpRequest) -> Response {
        match request.path() {
            "/gate" => {
                self.gated.fetch_add(1, Ordering::Relaxed);
                let _pass = self.gate.acquire().await.unwrap();
                answer(StatusCode::OK, "text/plain", "through")
            }
            "/endless" => {
                let end = Counted(self.aborted.clone());
                let page = move || {
                    let _owned = &end;
                    Some(Bytes::from(vec![b'x'; 64 << 10]))
                };
                answer(StatusCode::OK, "text/plain", ResponseBody::paged(page))
            }
            "/large" => answer(StatusCode::OK, "text/plain", Bytes::from(vec![b'x'; LARGE])),
            "/panic" => panic!("a buggy handler"),
            _ => answer(StatusCode::OK, "text/plain", request.body),
        }
    }
}

const HOUR: Duration = Duration::from_secs(3600);

/// Limits that no test reaches, apart from the one it is about.
const LONG: HttpLimits =
    HttpLimits { header: HOUR, body: HOUR, answer: HOUR, stall: HOUR, drain: HOUR, ..HttpLimits::SMALL };

/// The limit that a test is about.
const SHORT: Duration = Duration::from_millis(300);

async fn serve(limits: HttpLimits) -> (HttpServer, Arc<Routes>) {
    let routes = Arc::new(Routes { gate: Semaphore::new(0), gated: AtomicUsize::new(0), aborted: Arc::default() });
    let at = HostPort::new("127.0.0.1", 0);
    (http::start(RealEnv::new(), &at, limits, routes.clone()).await.unwrap(), routes)
}

#[tokio::test]
async fn an_idle_connection_or_a_slow_head_is_closed() {
    let (server, _) = serve(HttpLimits { header: Duration::from_secs(1), ..LONG }).await;
    let mut silent = Connection::to(server.at().port).await;
    assert!(in_time("the server", silent.is_closed()).await);
    let mut used = Connection::to(server.at().port).await;
    assert_eq!(used.ask("GET", "/", b"").await.status, 200);
    assert!(in_time("the server", used.is_closed()).await);
    let mut slow = Connection::to(server.at().port).await;
    // Single bytes do not extend the deadline: the connection is closed before the last one.
    let mut is_closed = false;
    for byte in b"GET / HTTP/1.1\r\nHost: t\r\nX-Slow: aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa".chunks(1) {
        is_closed = slow.try_send(byte).await.is_err();
        if is_closed {
            break;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert!(is_closed);
}

#[tokio::test]
async fn a_missing_body_gets_408_and_a_late_answer_504() {
    let (server, _) = serve(HttpLimits { body: SHORT, answer: SHORT, ..LONG }).await;
    let mut half = Connection::to(server.at().port).await;
    half.send(b"PUT /echo HTTP/1.1\r\nHost: t\r\nContent-Length: 10\r\n\r\nhalf").await;
    assert_eq!(in_time("the server", half.answer(false)).await.status, 408);
    let mut late = Connection::to(server.at().port).await;
    assert_eq!(in_time("the server", late.ask("GET", "/gate", b"")).await.status, 504);
}

#[tokio::test]
async fn a_client_that_stops_reading_is_disconnected() {
    let (server, routes) = serve(HttpLimits { stall: SHORT, least_rate: 0, ..LONG }).await;
    let mut client = Connection::to(server.at().port).await;
    client.send(b"GET /endless HTTP/1.1\r\nHost: t\r\n\r\n").await;
    // The answer fills the sockets' buffers and stalls. After the limit the connection is closed.
    let is_aborted = async || routes.aborted.load(Ordering::Relaxed) == 1;
    wait_until_async("the end of the answer", PATIENCE, is_aborted).await;
    assert!(in_time("the server", client.read_to_the_end()).await < 64 << 20);
}

#[tokio::test]
async fn a_chunked_body_has_the_same_limit_as_one_with_a_length() {
    let (server, _) = serve(HttpLimits { body_bytes_max: 1000, ..LONG }).await;
    let mut connection = Connection::to(server.at().port).await;
    connection
        .send(b"PUT /echo HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n")
        .await;
    assert_eq!(connection.answer(false).await.text(), "abcde");
    connection.send(b"PUT /echo HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: chunked\r\n\r\n").await;
    connection.send(format!("7d0\r\n{}\r\n0\r\n\r\n", "x".repeat(2000)).as_bytes()).await;
    assert_eq!(connection.answer(false).await.status, 413);
}

#[tokio::test]
async fn concurrent_bodies_share_a_budget_and_wait() {
    let limits = HttpLimits { body_bytes_max: 1 << 20, bodies_bytes_max: 1 << 20, ..LONG };
    let (server, routes) = serve(limits).await;
    let large = vec![b'x'; 1 << 20];
    let mut first = Connection::to(server.at().port).await;
    first.send(b"PUT /gate HTTP/1.1\r\nHost: t\r\nContent-Length: 1048576\r\n\r\n").await;
    first.send(&large).await;
    // The second body must wait until the first request is answered; a small one needs no budget.
    let mut second = Connection::to(server.at().port).await;
    let mut small = Connection::to(server.at().port).await;
    let second = second.ask("PUT", "/echo", &large);
    let mut second = std::pin::pin!(second);
    tokio::select! {
        _ = &mut second => panic!("the second body was read before the first request was answered"),
        answer = small.ask("PUT", "/echo", b"small") => assert_eq!(answer.text(), "small"),
    }
    routes.gate.add_permits(1);
    assert_eq!(in_time("the server", first.answer(false)).await.text(), "through");
    assert_eq!(in_time("the server", second).await.body.len(), large.len());
}

#[tokio::test]
async fn a_client_that_reads_below_the_least_rate_is_disconnected() {
    let (server, _) = serve(HttpLimits { least_rate: 1 << 30, stall: SHORT, ..LONG }).await;
    let mut slow = Connection::to(server.at().port).await;
    slow.send(b"GET /large HTTP/1.1\r\nHost: t\r\n\r\n").await;
    let mut read = 0;
    loop {
        let bytes = slow.read_some(256 << 10).await;
        read += bytes;
        if bytes == 0 {
            break;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert!(read < LARGE, "{read}");
    // A fast client gets the whole answer.
    let (server, _) = serve(LONG).await;
    assert_eq!(Connection::to(server.at().port).await.ask("GET", "/large", b"").await.body.len(), LARGE);
}

#[tokio::test]
async fn a_connection_above_the_limit_displaces_the_one_idle_longest() {
    let (server, _) = serve(HttpLimits { connections_max: 2, ..LONG }).await;
    let mut first = Connection::to(server.at().port).await;
    first.ask("GET", "/", b"").await;
    let mut second = Connection::to(server.at().port).await;
    second.ask("GET", "/", b"").await;
    first.ask("GET", "/", b"").await;
    let mut third = Connection::to(server.at().port).await;
    assert_eq!(in_time("the server", third.ask("GET", "/", b"")).await.status, 200);
    assert!(in_time("the server", second.is_closed()).await);
    assert_eq!(in_time("the server", first.ask("GET", "/", b"")).await.status, 200);
}

#[tokio::test]
async fn a_connection_with_a_request_in_progress_is_not_displaced() {
    let (server, routes) = serve(HttpLimits { connections_max: 2, ..LONG }).await;
    let mut busy = Vec::new();
    for _ in 0..2 {
        let mut connection = Connection::to(server.at().port).await;
        connection.ask("GET", "/", b"").await;
        connection.send(b"GET /gate HTTP/1.1\r\nHost: t\r\n\r\n").await;
        busy.push(connection);
    }
    let both = async || routes.gated.load(Ordering::Relaxed) == 2;
    wait_until_async("both requests to be in progress", PATIENCE, both).await;
    let mut third = Connection::to(server.at().port).await;
    third.send(b"GET / HTTP/1.1\r\nHost: t\r\n\r\n").await;
    assert!(tokio::time::timeout(Duration::from_millis(300), third.answer(false)).await.is_err());
    routes.gate.add_permits(2);
    for connection in &mut busy {
        assert_eq!(in_time("the server", connection.answer(false)).await.text(), "through");
    }
    assert_eq!(in_time("the server", third.answer(false)).await.status, 200);
}

#[tokio::test]
async fn a_panicking_handler_closes_only_its_connection() {
    let (server, _) = serve(LONG).await;
    let mut good = Connection::to(server.at().port).await;
    let mut bad = Connection::to(server.at().port).await;
    bad.send(b"GET /panic HTTP/1.1\r\nHost: t\r\n\r\n").await;
    assert!(in_time("the server", bad.is_closed()).await);
    assert_eq!(good.ask("GET", "/", b"").await.status, 200);
}

#[tokio::test]
async fn a_stop_completes_started_answers_and_aborts_endless_ones() {
    let (server, routes) = serve(HttpLimits { drain: Duration::from_secs(2), ..LONG }).await;
    let port = server.at().port;
    let mut waiting = Connection::to(port).await;
    waiting.send(b"GET /gate HTTP/1.1\r\nHost: t\r\n\r\n").await;
    let mut endless = Connection::to(port).await;
    endless.send(b"GET /endless HTTP/1.1\r\nHost: t\r\n\r\n").await;
    // Both requests have been read when a later third one is answered.
    Connection::to(port).await.ask("GET", "/", b"").await;
    let completed = async {
        routes.gate.add_permits(1);
        waiting.answer(false).await
    };
    // The endless answer would end after an hour.
    let (_, answer) = in_time("the stop", async { tokio::join!(server.stop(), completed) }).await;
    assert_eq!(answer.text(), "through");
    assert_eq!(routes.aborted.load(Ordering::Relaxed), 1);
    assert!(tokio::net::TcpStream::connect(("127.0.0.1", port)).await.is_err());
}
