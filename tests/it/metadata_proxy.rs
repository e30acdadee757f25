//! `mcctl serve metadata --forward-to`: a proxy for several metadata services.

use std::io::{Read, Write};
use std::net::TcpListener;

use nix::sys::signal::Signal;

use crate::cli::service::{Service, get, put};
use crate::cli::{command, mcctl};
use crate::peer::process::{free_port, http};

/// `serve metadata` on a free port with `more` flags and variables, and its port.
fn serve(more: &[&str], variables: &[(&str, &str)]) -> (Service, u16) {
    let mut command = command(&[&["serve", "metadata", "--host=127.0.0.1", "--port=0"], more].concat());
    command.envs(variables.iter().copied());
    let mut service = Service::start(command);
    let port = service.port_after("ready: http://127.0.0.1:");
    (service, port)
}

fn list(ports: &[u16]) -> String {
    let targets: Vec<String> = ports.iter().map(|port| format!("127.0.0.1:{port}")).collect();
    format!("--forward-to={}", targets.join(","))
}

fn delete(port: u16, target: &str) -> u16 {
    http(port, "DELETE", target, "").expect("a response").0
}

/// A port that accepts connections and never responds.
fn silent() -> (TcpListener, u16) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = listener.local_addr().expect("bound").port();
    (listener, port)
}

/// A port that responds with `status` to each request. Its thread ends with the process.
fn responding_with(status: &'static str) -> u16 {
    let (listener, port) = silent();
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let _ = stream.read(&mut [0; 4096]);
            let _ = write!(stream, "HTTP/1.1 {status}\r\nContent-Length: 4\r\nConnection: close\r\n\r\nbusy");
        }
    });
    port
}

#[test]
fn requests_go_to_the_next_service_when_one_is_killed() {
    let (mut first, one) = serve(&[], &[]);
    let (mut second, other) = serve(&[], &[]);
    let (mut proxy, port) = serve(&[&list(&[one, other])], &[]);
    assert_eq!(put(port, "/metadata?key=a%2Fb", "1"), 200);
    assert_eq!(get(one, "/metadata?key=a/b"), (200, "1".to_owned()));
    assert_eq!(get(other, "/metadata?key=a/b").0, 404);
    assert_eq!(first.stop(Signal::SIGKILL), -1);
    assert_eq!(put(port, "/metadata?key=c", "2"), 200);
    assert_eq!(get(other, "/metadata?key=c"), (200, "2".to_owned()));
    assert_eq!(get(port, "/metadata?key=c"), (200, "2".to_owned()));
    assert_eq!(get(port, "/metadata"), (400, "metadata key is required".to_owned()));
    assert_eq!(delete(port, "/metadata?key=c"), 200);
    assert_eq!(delete(port, "/metadata?key=c"), 404);
    assert_eq!(get(port, "/health"), (200, "OK".to_owned()));
    assert_eq!(get(port, "/other").0, 404);
    assert_eq!(second.stop(Signal::SIGKILL), -1);
    let (status, text) = get(port, "/metadata?key=c");
    assert_eq!(status, 503);
    for target in [one, other] {
        assert!(text.contains(&format!("http://127.0.0.1:{target}: Connection refused")), "{text}");
    }
    let (status, text) = get(port, "/health");
    assert!(status == 503 && text.contains(&one.to_string()) && text.contains(&other.to_string()), "{text}");
    assert_eq!(proxy.stop(Signal::SIGTERM), 0);
}

#[test]
fn a_service_that_never_responds_is_replaced_except_for_a_delete() {
    let (_listener, silent) = silent();
    let (_service, port) = serve(&[], &[]);
    for method in ["GET", "PUT", "DELETE"] {
        let (_proxy, proxy) = serve(&[&list(&[silent, port])], &[]);
        // The health of one service is enough, and does not depend on the order.
        assert_eq!(get(proxy, "/health").0, 200);
        let (status, text) = http(proxy, method, "/metadata?key=a", "1").expect("a response");
        match method {
            "GET" => assert_eq!(status, 404),
            "PUT" => assert_eq!(status, 200),
            _ => assert!(status == 503 && text.contains("may have been removed"), "{text}"),
        }
        // From now on, requests go to the other service first.
        assert_eq!(delete(proxy, "/metadata?key=a"), if method == "GET" { 404 } else { 200 });
        assert_eq!(put(proxy, "/metadata?key=a", "1"), 200);
    }
}

#[test]
fn a_service_without_a_leader_is_replaced() {
    let (_service, port) = serve(&[], &[]);
    let busy = responding_with("503 Service Unavailable");
    let (_proxy, proxy) = serve(&[&list(&[busy, port])], &[]);
    assert_eq!(put(proxy, "/metadata?key=a", "1"), 200);
    assert_eq!(delete(proxy, "/metadata?key=a"), 200);
    let (_proxy, proxy) = serve(&[&list(&[busy])], &[]);
    let (status, text) = get(proxy, "/metadata?key=a");
    assert!(status == 503 && text.contains(&format!("127.0.0.1:{busy} returned HTTP 503: busy")), "{text}");
    // Other responses are for the client.
    let (_proxy, proxy) = serve(&[&list(&[responding_with("507 Insufficient Storage"), port])], &[]);
    assert_eq!(get(proxy, "/metadata?key=a"), (507, "busy".to_owned()));
}

#[test]
fn proxies_in_a_loop_respond_with_an_error() {
    let port = free_port().to_string();
    let (_proxy, inner) = serve(&[&format!("--forward-to=127.0.0.1:{port}")], &[]);
    let outer = command(&["serve", "metadata", "--host=127.0.0.1", "--port", &port, &list(&[inner])]);
    let mut outer = Service::start(outer);
    let outer = outer.port_after("ready: http://127.0.0.1:");
    let (status, text) = get(outer, "/metadata?key=a");
    assert!(status == 503 && text.contains("already passed a proxy"), "{status} {text}");
}

#[test]
fn a_proxy_has_the_token_of_its_clients_or_its_own() {
    let token = "token-0123456789abcdef";
    let dir = tempfile::tempdir().expect("a folder");
    let path = dir.path().join("tokens");
    std::fs::write(&path, format!("write {token}\n")).expect("written");
    let tokens = format!("--token-file={}", path.display());
    let (_service, service) = serve(&[&tokens], &[]);
    let (_proxy, without) = serve(&[&list(&[service])], &[]);
    assert_eq!(put(without, "/metadata?key=a", "1"), 401);
    let (_proxy, with) = serve(&[&list(&[service])], &[("MCCTL_TOKEN", token)]);
    assert_eq!(put(with, "/metadata?key=a", "1"), 200);
    let (_proxy, protected) = serve(&[&list(&[service]), &tokens], &[("MCCTL_TOKEN", token)]);
    assert_eq!(put(protected, "/metadata?key=a", "1"), 401);
    assert_eq!(get(protected, "/health").0, 200);
}

#[test]
fn contradictory_or_invalid_flags_of_a_proxy_are_refused() {
    for (args, part) in [
        (&["--forward-to="][..], "the list is empty"),
        (&["--forward-to=a"], "the port is missing"),
        (&["--forward-to=http://a:1/metadata"], "remove the path"),
        (&["--forward-to=a:1,a:1"], "twice"),
        (&["--forward-to=127.0.0.1:8080", "--host=0.0.0.0"], "contains the address of this proxy"),
        (&["--forward-to=a:1", "--data-dir=/d"], "cannot be combined with --data-dir"),
        (&["--forward-to=a:1", "--fsync=always"], "cannot be combined with --fsync"),
    ] {
        let run = mcctl(&[&["serve", "metadata"], args].concat());
        let error = run.fails(2);
        assert!(error.contains(part), "{args:?}: {error}");
    }
}
