//! The HTTP server under all HTTP APIs: its limits and deadlines with misbehaving clients.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use mcctl::engine::base::HostPort;
use mcctl::engine::env::RealEnv;
use mcctl::engine::http::{
    self, Handler, HttpLimits, HttpRequest, HttpServer, Response, ResponseBody, StatusCode, answer,
};
use tokio::sync::Semaphore;

use crate::http::Connection;

const LARGE: usize = 64 << 20;

/// `/echo` returns the body, `/gate` waits until the test opens it, `/endless` never ends, `/large` has [`LARGE`] bytes, `/panic` panics.
struct Routes {
    gate: Semaphore,
    /// Has a permit for each `/endless` answer that the server dropped.
    dropped: Arc<Semaphore>,
}

/// Adds a permit when it is dropped.
struct DropSignal(Arc<Semaphore>);

impl Drop for DropSignal {
    fn drop(&mut self) {
        self.0.add_permits(1);
    }
}

impl Handler for Routes {
    async fn handle(&self, request: HttpRequest) -> Response {
        match request.path() {
            "/gate" => {
                let _pass = self.gate.acquire().await.unwrap();
                answer(StatusCode::OK, "text/plain", "through")
            }
            "/endless" => {
                let signal = DropSignal(Arc::clone(&self.dropped));
                let page = move || {
                    let _owned = &signal;
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

const SHORT: HttpLimits = HttpLimits {
    header: Duration::from_millis(300),
    body: Duration::from_millis(300),
    answer: Duration::from_millis(300),
    stall: Duration::from_millis(300),
    drain: Duration::from_millis(300),
    ..HttpLimits::SMALL
};

async fn serve(limits: HttpLimits) -> (HttpServer, Arc<Routes>) {
    let routes = Arc::new(Routes { gate: Semaphore::new(0), dropped: Arc::new(Semaphore::new(0)) });
    let at = HostPort::new("127.0.0.1", 0);
    (http::start(RealEnv::new(), &at, limits, routes.clone()).await.unwrap(), routes)
}

/// Awaits `work` within a time far above every limit of [`SHORT`].
async fn soon<T>(work: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(10), work).await.expect("timed out")
}

#[tokio::test]
async fn an_idle_connection_or_a_slow_head_is_closed() {
    let (server, _) = serve(SHORT).await;
    let mut silent = Connection::to(server.at().port).await;
    assert!(soon(silent.is_closed()).await);
    let mut used = Connection::to(server.at().port).await;
    assert_eq!(used.ask("GET", "/", b"").await.status, 200);
    assert!(soon(used.is_closed()).await);
    let mut slow = Connection::to(server.at().port).await;
    let started = Instant::now();
    for byte in b"GET / HTTP/1.1\r\nHost: t\r\nX-Slow: aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa".chunks(1) {
        if started.elapsed() > Duration::from_secs(2) || slow.try_send(byte).await.is_err() {
            break;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    // Single bytes do not extend the deadline.
    assert!(started.elapsed() < Duration::from_secs(2), "{:?}", started.elapsed());
}

#[tokio::test]
async fn a_missing_body_gets_408_and_a_late_answer_504() {
    let (server, _) = serve(SHORT).await;
    let mut half = Connection::to(server.at().port).await;
    half.send(b"PUT /echo HTTP/1.1\r\nHost: t\r\nContent-Length: 10\r\n\r\nhalf").await;
    assert_eq!(soon(half.answer(false)).await.status, 408);
    let mut late = Connection::to(server.at().port).await;
    assert_eq!(soon(late.ask("GET", "/gate", b"")).await.status, 504);
}

#[tokio::test]
async fn a_client_that_stops_reading_is_disconnected() {
    // Only the limit on stalls is short, and one byte per period would do.
    let long = Duration::from_secs(60);
    let stalls = HttpLimits { stall: Duration::from_millis(300), least_rate: 0, body: long, answer: long, ..SHORT };
    let (server, routes) = serve(HttpLimits { header: long, ..stalls }).await;
    let mut client = Connection::to(server.at().port).await;
    client.send(b"GET /endless HTTP/1.1\r\nHost: t\r\n\r\n").await;
    // The answer fills the sockets' buffers and stalls. Then the server drops it, although the client has read nothing.
    soon(routes.dropped.acquire()).await.unwrap().forget();
    soon(client.read_to_the_end()).await;
}

#[tokio::test]
async fn a_chunked_body_has_the_same_limit_as_one_with_a_length() {
    let (server, _) = serve(HttpLimits { body_bytes_max: 1000, ..SHORT }).await;
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
    let limits = HttpLimits {
        body_bytes_max: 1 << 20,
        bodies_bytes_max: 1 << 20,
        body: Duration::from_secs(5),
        answer: Duration::from_secs(5),
        ..SHORT
    };
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
    assert_eq!(soon(first.answer(false)).await.text(), "through");
    assert_eq!(soon(second).await.body.len(), large.len());
}

#[tokio::test]
async fn a_client_that_reads_below_the_least_rate_is_disconnected() {
    let (server, _) = serve(HttpLimits { least_rate: 1 << 30, ..SHORT }).await;
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
    let (server, _) = serve(HttpLimits { stall: Duration::from_secs(60), ..SHORT }).await;
    assert_eq!(Connection::to(server.at().port).await.ask("GET", "/large", b"").await.body.len(), LARGE);
}

#[tokio::test]
async fn a_connection_above_the_limit_displaces_the_one_idle_longest() {
    let (server, _) = serve(HttpLimits { connections_max: 2, header: Duration::from_secs(60), ..SHORT }).await;
    let mut first = Connection::to(server.at().port).await;
    first.ask("GET", "/", b"").await;
    let mut second = Connection::to(server.at().port).await;
    second.ask("GET", "/", b"").await;
    first.ask("GET", "/", b"").await;
    let mut third = Connection::to(server.at().port).await;
    assert_eq!(soon(third.ask("GET", "/", b"")).await.status, 200);
    assert!(soon(second.is_closed()).await);
    assert_eq!(soon(first.ask("GET", "/", b"")).await.status, 200);
}

#[tokio::test]
async fn a_connection_with_a_request_in_progress_is_not_displaced() {
    let long = Duration::from_secs(60);
    let (server, routes) = serve(HttpLimits { connections_max: 2, header: long, answer: long, ..SHORT }).await;
    let mut busy = Vec::new();
    for _ in 0..2 {
        let mut connection = Connection::to(server.at().port).await;
        connection.ask("GET", "/", b"").await;
        connection.send(b"GET /gate HTTP/1.1\r\nHost: t\r\n\r\n").await;
        busy.push(connection);
    }
    // Both requests are in progress when a third client connects, because a request is read as soon as it arrives.
    tokio::time::sleep(Duration::from_millis(300)).await;
    let mut third = Connection::to(server.at().port).await;
    third.send(b"GET / HTTP/1.1\r\nHost: t\r\n\r\n").await;
    assert!(tokio::time::timeout(Duration::from_millis(300), third.answer(false)).await.is_err());
    routes.gate.add_permits(2);
    for connection in &mut busy {
        assert_eq!(soon(connection.answer(false)).await.text(), "through");
    }
    assert_eq!(soon(third.answer(false)).await.status, 200);
}

#[tokio::test]
async fn a_panicking_handler_closes_only_its_connection() {
    // The other connection must stay open while the panic is printed.
    let (server, _) = serve(HttpLimits { header: Duration::from_secs(10), ..SHORT }).await;
    let mut good = Connection::to(server.at().port).await;
    let mut bad = Connection::to(server.at().port).await;
    bad.send(b"GET /panic HTTP/1.1\r\nHost: t\r\n\r\n").await;
    assert!(soon(bad.is_closed()).await);
    assert_eq!(good.ask("GET", "/", b"").await.status, 200);
}

#[tokio::test]
async fn a_stop_completes_started_answers_and_aborts_endless_ones() {
    let (server, routes) = serve(HttpLimits { answer: Duration::from_secs(5), ..SHORT }).await;
    let port = server.at().port;
    let mut waiting = Connection::to(port).await;
    waiting.send(b"GET /gate HTTP/1.1\r\nHost: t\r\n\r\n").await;
    let mut endless = Connection::to(port).await;
    endless.send(b"GET /endless HTTP/1.1\r\nHost: t\r\n\r\n").await;
    // Both requests have been read when a later third one is answered.
    Connection::to(port).await.ask("GET", "/", b"").await;
    let started = Instant::now();
    let (_, answer) = tokio::join!(server.stop(), async {
        routes.gate.add_permits(1);
        waiting.answer(false).await
    });
    assert_eq!(answer.text(), "through");
    assert!(started.elapsed() < Duration::from_secs(3), "{:?}", started.elapsed());
    assert!(tokio::net::TcpStream::connect(("127.0.0.1", port)).await.is_err());
}
