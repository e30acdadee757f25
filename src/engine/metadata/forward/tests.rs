//! Requests to a metadata service, and to servers that fail in different ways.

use bytes::Bytes;
use hyper::header::HeaderMap;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::*;
use crate::{KeySpace, MetadataService};
use mcctl_base::HostPort;
use mcctl_net::http::{Method, SecretToken};
use mcctl_sys::env::{Env, Listener, Net, RealEnv};

fn request(method: Method, target: &str, body: &str) -> HttpRequest {
    let body = Bytes::from(body.to_owned());
    HttpRequest { method, target: target.parse().expect("a target"), headers: HeaderMap::new(), body }
}

fn forwarder() -> MetadataForwarder {
    MetadataForwarder::new(&HttpCredentials::default()).expect("a client")
}

fn shown(response: Response) -> (u16, Option<String>, String) {
    let kind = response.headers().get(CONTENT_TYPE).map(|kind| kind.to_str().expect("text").to_owned());
    let status = response.status().as_u16();
    let ResponseBody::Whole(body) = response.into_body() else { panic!("a complete body") };
    (status, kind, String::from_utf8(body.to_vec()).expect("text"))
}

/// A listener on a free port, with the base URL of its service.
async fn listener() -> (<<RealEnv as Env>::Net as Net>::Listener, String) {
    let listener = RealEnv::new().net().listen(&HostPort::new("127.0.0.1", 0)).await.expect("a port");
    let base = format!("http://127.0.0.1:{}", listener.port());
    (listener, base)
}

/// A server that reads one request, sends `response` and then closes the connection. Returns its
/// base URL, and the request.
async fn server(response: &'static str) -> (String, tokio::task::JoinHandle<String>) {
    let (mut listener, base) = listener().await;
    let task = tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.expect("a connection");
        let mut read = Vec::new();
        while !read.windows(4).any(|end| end == b"\r\n\r\n") {
            let read_now = stream.read_buf(&mut read).await.expect("a request");
            assert_ne!(read_now, 0, "the request is complete");
        }
        stream.write_all(response.as_bytes()).await.expect("a response is sent");
        String::from_utf8(read).expect("text")
    });
    (base, task)
}

const EMPTY: &str = "HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n";

#[tokio::test]
async fn requests_and_responses_pass_unchanged() {
    let service = MetadataService::new(RealEnv::new(), KeySpace::default());
    let running = service.start(&HostPort::new("127.0.0.1", 0)).await.expect("a port");
    let base = format!("http://{}", running.at());
    let forwarder = forwarder();
    let target = "/metadata?key=mooncake%2Fram%2Fa%252Fb+c";
    let json = Some("application/json".to_owned());
    for (method, body, expected) in [
        (Method::GET, "", (404, None, "metadata not found".to_owned())),
        (Method::PUT, "{\"a\": 1}", (200, None, "metadata updated".to_owned())),
        (Method::PUT, "{\"a\": 1}", (200, None, "metadata updated".to_owned())),
        (Method::GET, "", (200, json, "{\"a\": 1}".to_owned())),
        (Method::DELETE, "", (200, None, "metadata deleted".to_owned())),
        (Method::DELETE, "", (404, None, "metadata not found".to_owned())),
    ] {
        let response = forwarder.forward(&base, &request(method.clone(), target, body)).await.expect("a response");
        assert_eq!(shown(response), expected, "{method}");
    }
    let put = request(Method::PUT, target, "x");
    forwarder.forward(&base, &put).await.expect("a response");
    assert!(service.has_segment("a%2Fb+c"));
}

#[tokio::test]
async fn a_forwarded_request_is_marked_and_only_a_proxy_adds_its_token() {
    let token = SecretToken::new("own-token-0123456789abcdef").expect("a token");
    let credentials = HttpCredentials { token: Some(token), tls: None };
    let of_master = MetadataForwarder::new(&credentials).expect("a client");
    let of_proxy = MetadataForwarder::of_proxy(&credentials).expect("a client");
    let mut get = request(Method::GET, "/metadata?key=a%2fb", "");
    assert!(!is_forwarded(&get));
    let (base, task) = server(EMPTY).await;
    of_master.forward(&base, &get).await.expect("a response");
    let sent = task.await.expect("a request");
    assert!(sent.starts_with("GET /metadata?key=a%2fb HTTP/1.1\r\n"), "{sent}");
    assert!(sent.contains("x-mcctl-forwarded: 1\r\n") && !sent.contains("authorization"), "{sent}");
    let (base, task) = server(EMPTY).await;
    of_proxy.forward(&base, &get).await.expect("a response");
    let sent = task.await.expect("a request");
    assert!(sent.contains("authorization: Bearer own-token-0123456789abcdef\r\n"), "{sent}");
    get.headers.insert(AUTHORIZATION, HeaderValue::from_static("Bearer of-the-client"));
    get.headers.insert(FORWARDED, HeaderValue::from_static("1"));
    assert!(is_forwarded(&get));
    for forwarder in [of_master, of_proxy] {
        let (base, task) = server(EMPTY).await;
        forwarder.forward(&base, &get).await.expect("a response");
        let sent = task.await.expect("a request");
        assert!(sent.contains("authorization: Bearer of-the-client\r\n") && !sent.contains("own-token"), "{sent}");
        assert!(sent.contains("x-mcctl-forwarded: 1\r\n"), "{sent}");
    }
}

#[tokio::test]
async fn a_redirect_is_not_followed() {
    let (base, _task) =
        server("HTTP/1.1 307 Moved\r\nlocation: http://127.0.0.1:1/\r\ncontent-length: 0\r\n\r\n").await;
    let response = forwarder().forward(&base, &request(Method::GET, "/metadata?key=a", "")).await;
    assert_eq!(response.expect("a response").status().as_u16(), 307);
}

#[tokio::test]
async fn a_service_that_cannot_be_reached_has_not_received_the_request() {
    let (listener, base) = listener().await;
    drop(listener);
    for base in [&*base, "http://", "http://host.invalid:1", "https://127.0.0.1:1"] {
        let error = forwarder().forward(base, &request(Method::PUT, "/metadata?key=a", "x")).await;
        let error = error.map(shown).expect_err("not reachable");
        assert!(matches!(error, ForwardError::NotSent { .. }), "{base}: {error:?}");
    }
}

#[tokio::test]
async fn the_outcome_is_unknown_without_a_complete_response() {
    let (_silent, base) = listener().await;
    let mut bases = vec![base];
    let mut tasks = Vec::new();
    for response in ["", "HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nhalf", "SSH-2.0-OpenSSH_9.6\r\n"] {
        let (base, task) = server(response).await;
        bases.push(base);
        tasks.push(task);
    }
    let (base, task) = server("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n").await;
    bases.push(base);
    tasks.push(task);
    for base in bases {
        let error = forwarder().forward(&base, &request(Method::DELETE, "/metadata?key=a", "")).await;
        let error = error.map(shown).expect_err("no response");
        assert!(matches!(error, ForwardError::OutcomeUnknown { .. }), "{base}: {error:?}");
    }
}
