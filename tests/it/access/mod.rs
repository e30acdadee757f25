//! Who may do what: every route that changes something, on every port, with every kind of
//! credentials.

mod certificates;
mod reload;

use std::fmt::Write as _;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use nix::sys::signal::Signal;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use tokio_rustls::TlsConnector;

use crate::access::certificates::{CertificateFiles, READ, WRITE};
use crate::cli::service::Service;
use crate::cli::{command, finish, mcctl};
use crate::peer::process::PATIENCE;

/// A master with an embedded metadata service, a separate metadata service, and a node.
struct ProtectedStore {
    files: CertificateFiles,
    master: Service,
    metadata: Service,
    node: Service,
    rpc: u16,
    admin: u16,
    embedded: u16,
    separate: u16,
    rest: u16,
    client_http: u16,
    handshake: u16,
    data: u16,
}

impl ProtectedStore {
    fn start() -> ProtectedStore {
        let files = CertificateFiles::new();
        let flags = files.server_flags();
        let run = |args: &[&str], variables: &[(&str, String)]| {
            let mut command = command(args);
            // Even the most detailed log contains no token.
            command
                .args(&flags)
                .args(["--bind=127.0.0.1", "--log-level=trace"])
                .envs(variables.iter().map(|(name, value)| (name, value)));
            Service::start(command)
        };
        let mut master = run(
            &[
                "serve",
                "master",
                "--rpc-port=0",
                "--port=0",
                "--metrics-port=0",
                "--enable-http-metadata-server",
                "--http-metadata-server-port=0",
            ],
            &[],
        );
        let rpc = master.port_after("Master service started on port ");
        let admin = master.port_after("admin https://127.0.0.1:");
        let embedded = master.port_after("metadata https://127.0.0.1:");
        let mut metadata = run(&["serve", "metadata", "--port=0"], &[]);
        let separate = metadata.port_after("metadata service ready: https://127.0.0.1:");
        let variables = [
            ("MCCTL_TOKEN", WRITE.to_owned()),
            ("MCCTL_CA", files.path("ca.pem")),
            ("MCCTL_CLIENT_CERT", files.path("client.pem")),
            ("MCCTL_CLIENT_KEY", files.path("client.key")),
        ];
        let (at, service) =
            (format!("--master=127.0.0.1:{rpc}"), format!("--metadata-server=https://127.0.0.1:{embedded}/metadata"));
        let node = [
            "serve",
            "store",
            &at,
            &service,
            "--port=0",
            "--segment-size=64mb",
            "--local-buffer-size=0",
            "--enable-client-http-server",
            "--client-http-port=0",
        ];
        let mut node = run(&node, &variables);
        let rest = node.port_after("REST API started on port ");
        let client_http = node.port_after("client HTTP server started on port ");
        let engine = node.line_with("transfer engine is listening");
        let handshake = number_after(&engine, "handshake=127.0.0.1:");
        let data = number_after(&engine, "data_port=");
        ProtectedStore {
            files,
            master,
            metadata,
            node,
            rpc,
            admin,
            embedded,
            separate,
            rest,
            client_http,
            handshake,
            data,
        }
    }
}

/// The number after `name` in a line of the log.
fn number_after(line: &str, name: &str) -> u16 {
    let (_, after) = line.split_once(name).unwrap_or_else(|| panic!("{name} in {line}"));
    after.split(|c: char| !c.is_ascii_digit()).next().and_then(|digits| digits.parse().ok()).expect("a port")
}

/// Method, target and body.
type HttpRequestParts = (&'static str, &'static str, &'static str);

/// What a client shows.
#[derive(Clone, Copy)]
struct Shown {
    token: Option<&'static str>,
    certificate: Option<&'static str>,
    /// The client's own address.
    from: [u8; 4],
}

const LOCAL: [u8; 4] = [127, 0, 0, 1];
/// An address of this host that is not in `--allow-cidr`.
const OTHER: [u8; 4] = [127, 0, 0, 2];

const COLUMNS: [(&str, Shown); 9] = [
    ("no credentials", Shown { token: None, certificate: None, from: LOCAL }),
    ("no certificate", Shown { token: Some(WRITE), certificate: None, from: LOCAL }),
    ("no token", Shown { token: None, certificate: Some("client"), from: LOCAL }),
    ("wrong token", Shown { token: Some("wrong-0123456789abcdef"), certificate: Some("client"), from: LOCAL }),
    ("read", Shown { token: Some(READ), certificate: Some("client"), from: LOCAL }),
    ("write", Shown { token: Some(WRITE), certificate: Some("client"), from: LOCAL }),
    ("expired certificate", Shown { token: Some(WRITE), certificate: Some("expired"), from: LOCAL }),
    ("other CA", Shown { token: Some(WRITE), certificate: Some("stranger"), from: LOCAL }),
    ("address not allowed", Shown { token: Some(WRITE), certificate: Some("client"), from: OTHER }),
];

async fn connect(port: u16, from: [u8; 4]) -> TcpStream {
    let socket = TcpSocket::new_v4().expect("a socket");
    socket.bind(SocketAddr::from((from, 0))).expect("an address of this host");
    socket.connect(SocketAddr::from((LOCAL, port))).await.expect("the port listens")
}

/// The status of the response, or what happened instead of one.
async fn outcome(
    files: &CertificateFiles,
    port: u16,
    shown: Shown,
    (method, target, body): HttpRequestParts,
) -> String {
    let stream = connect(port, shown.from).await;
    let tls = TlsConnector::from(Arc::new(files.client(shown.certificate)));
    // In TLS 1.3, the client is done before the server has verified the certificate.
    let Ok(stream) = tls.connect(ServerName::try_from("127.0.0.1").expect("a name"), stream).await else {
        return "closed".to_owned();
    };
    let token = shown.token.map(|token| format!("Authorization: Bearer {token}\r\n")).unwrap_or_default();
    match exchange(stream, &format!("{method} {target} HTTP/1.1\r\nHost: h\r\nConnection: close\r\n{token}"), body)
        .await
    {
        Some(answer) => answer.split(' ').nth(1).expect("a status").to_owned(),
        None => "TLS refused".to_owned(),
    }
}

/// The response to a request with this head; `None` if the server ends the connection without one.
async fn exchange(mut stream: impl AsyncRead + AsyncWrite + Unpin, head: &str, body: &str) -> Option<String> {
    let request = format!("{head}Content-Length: {}\r\n\r\n{body}", body.len());
    // The server may have closed; the read finds out.
    let _ = stream.write_all(request.as_bytes()).await;
    let mut answer = Vec::new();
    let _ = tokio::time::timeout(PATIENCE, stream.read_to_end(&mut answer)).await.expect("the server closes");
    (!answer.is_empty()).then(|| String::from_utf8_lossy(&answer).into_owned())
}

/// Whether a port without TLS accepts a connection from this address.
async fn raw_outcome(port: u16, from: [u8; 4]) -> &'static str {
    let mut stream = connect(port, from).await;
    // An open port says nothing, so waiting longer for it shows nothing.
    let limit = if from == LOCAL { Duration::from_millis(500) } else { PATIENCE };
    match tokio::time::timeout(limit, stream.read(&mut [0])).await {
        Err(_) => "open",
        Ok(Ok(0) | Err(_)) => "closed",
        Ok(Ok(_)) => "speaks first",
    }
}

#[tokio::test]
async fn every_port_and_credential_has_the_documented_outcome() {
    let mut store = ProtectedStore::start();
    let object = r#"{"key": "k", "value": "v"}"#;
    let record = "/metadata?key=mooncake%2Fram%2Fa";
    let routes: &[(&str, u16, &[HttpRequestParts])] = &[
        (
            "admin",
            store.admin,
            &[
                ("GET", "/health", ""),
                ("GET", "/metrics", ""),
                ("GET", "/get_all_keys", ""),
                ("GET", "/unknown", ""),
                ("POST", "/api/v1/mcctl/step_down", ""),
                ("POST", "/api/v1/remove_all", ""),
            ],
        ),
        (
            "embedded metadata",
            store.embedded,
            &[("GET", "/health", ""), ("PUT", record, "{}"), ("GET", record, ""), ("DELETE", record, "")],
        ),
        (
            "serve metadata",
            store.separate,
            &[("GET", "/health", ""), ("PUT", record, "{}"), ("GET", record, ""), ("DELETE", record, "")],
        ),
        (
            "REST",
            store.rest,
            &[
                ("GET", "/metrics", ""),
                ("PUT", "/api/put", object),
                ("DELETE", "/api/remove/k", ""),
                ("GET", "/api/get/k", ""),
                ("DELETE", "/api/remove_all", ""),
                ("POST", "/api/mount", r#"{"size": 16777216}"#),
                ("POST", "/api/unmount", r#"{"segment_ids": ["1-2"]}"#),
                ("POST", "/api/mount_shm", "{}"),
                ("POST", "/api/unmount_shm", "{}"),
                ("POST", "/api/reconfigure", "{}"),
                ("POST", "/api/unmount_local_disk", "{}"),
            ],
        ),
        ("client HTTP", store.client_http, &[("GET", "/health", ""), ("GET", "/metrics/summary", "")]),
    ];
    let mut table = format!("port | request | {}\n", COLUMNS.map(|(name, _)| name).join(" | "));
    for (name, port, requests) in routes {
        for request in *requests {
            let _ = write!(table, "{name} | {} {}", request.0, request.1);
            for (_, shown) in COLUMNS {
                let _ = write!(table, " | {}", outcome(&store.files, *port, shown, *request).await);
            }
            table.push('\n');
        }
    }
    for (name, port) in [("RPC", store.rpc), ("handshake", store.handshake), ("data", store.data)] {
        let open = raw_outcome(port, LOCAL).await;
        let closed = raw_outcome(port, OTHER).await;
        let _ = writeln!(table, "{name} | any | {} | {closed}", [open; 8].join(" | "));
    }
    insta::assert_snapshot!(table);
    for service in [&mut store.node, &mut store.metadata, &mut store.master] {
        let lines = service.all_lines_so_far();
        let logged: Vec<_> = lines.iter().filter(|line| line.contains("not in --allow-cidr")).collect();
        assert!(!logged.is_empty(), "{lines:?}");
        assert!(!lines.iter().any(|line| line.contains("0123456789abcdef")), "{lines:?}");
        assert!(!lines.iter().any(|line| line.contains("no access control")), "{lines:?}");
        assert_eq!(service.stop(Signal::SIGTERM), 0);
    }
}

#[test]
fn our_commands_send_tokens_and_certificates() {
    let mut store = ProtectedStore::start();
    let rpc = format!("--master=127.0.0.1:{}", store.rpc);
    let admin = format!("--admin=127.0.0.1:{}", store.admin);
    let all = |args: &[&str], credentials: &[String]| -> Vec<String> {
        args.iter()
            .map(|arg| (*arg).to_owned())
            .chain([rpc.clone(), admin.clone()])
            .chain(credentials.to_vec())
            .collect()
    };
    let run = |args: &[&str], credentials: &[String]| {
        let args = all(args, credentials);
        mcctl(&args.iter().map(String::as_str).collect::<Vec<_>>())
    };
    let credentials = store.files.client_flags(&store.files.path("tokens"));
    let node = format!("--node=127.0.0.1:{}", store.rest);
    assert!(run(&["status", &node], &credentials).succeeds().contains("127.0.0.1"));
    // The metadata mode is discovered through the admin port, and the metadata service is used.
    run(&["store", "put", "k", "--value=hello"], &credentials).succeeds();
    assert_eq!(run(&["store", "get", "k"], &credentials).succeeds(), "hello");
    assert!(run(&["store", "ls"], &credentials).succeeds().contains('k'));
    let doctor = run(&["doctor", "--only=admin-http"], &credentials);
    assert_ne!(doctor.code, 3, "{doctor:?}");
    let without_token = &credentials[..3];
    let refused = run(&["store", "ls"], without_token);
    assert!(refused.fails(2).contains("--token-file"), "{refused:?}");
    // The token in the variable has the role read.
    let mut command =
        command(&all(&["master", "step-down"], without_token).iter().map(String::as_str).collect::<Vec<_>>());
    let refused = finish(command.env("MCCTL_TOKEN", READ).output().expect("the program starts"));
    assert!(refused.fails(2).contains("role write") && !refused.stderr.contains(READ), "{refused:?}");
    // No process shows a token in its arguments.
    for service in [&store.master, &store.metadata, &store.node] {
        let arguments = std::fs::read_to_string(format!("/proc/{}/cmdline", service.pid())).expect("a process");
        assert!(!arguments.contains("0123456789abcdef"), "{arguments}");
    }
    for service in [&mut store.node, &mut store.metadata, &mut store.master] {
        assert_eq!(service.stop(Signal::SIGTERM), 0);
    }
}

#[tokio::test]
async fn tokens_without_tls_are_enforced() {
    let files = CertificateFiles::new();
    let mut command =
        command(&["serve", "metadata", "--port=0", "--bind=0.0.0.0", "--writes-from=loopback", "--protect-metrics"]);
    command.arg(format!("--token-file={}", files.path("tokens")));
    let mut service = Service::start(command);
    let port = service.port_after("metadata service ready: http://0.0.0.0:");
    let ask = async |method: &str, target: &str, authorization: &str| {
        let stream = connect(port, LOCAL).await;
        let head = format!("{method} {target} HTTP/1.1\r\nHost: h\r\nConnection: close\r\n{authorization}");
        exchange(stream, &head, "").await.expect("a response")
    };
    let refused = ask("GET", "/health", "").await;
    assert!(refused.starts_with("HTTP/1.1 401 ") && refused.contains("www-authenticate: Bearer"), "{refused}");
    assert!(refused.contains("MCCTL_TOKEN"), "{refused}");
    let read = format!("Authorization: Bearer {READ}\r\n");
    let write = format!("Authorization: Bearer {WRITE}\r\n");
    assert!(ask("GET", "/health", &read).await.starts_with("HTTP/1.1 200 "));
    assert!(ask("PUT", "/metadata?key=a", &read).await.starts_with("HTTP/1.1 403 "));
    assert!(ask("PUT", "/metadata?key=a", &write).await.starts_with("HTTP/1.1 200 "));
    assert_eq!(service.stop(Signal::SIGTERM), 0);
}

#[test]
fn a_service_beyond_the_loopback_warns_once() {
    let start = |args: &[&str]| {
        let mut service = Service::start(command(&[&["serve", "metadata", "--port=0"], args].concat()));
        service.line_with("metadata service ready");
        assert_eq!(service.stop(Signal::SIGTERM), 0);
        service.all_lines_so_far().iter().filter(|line| line.contains("no access control")).count()
    };
    assert_eq!(start(&[]), 1);
    assert_eq!(start(&["--bind=127.0.0.1"]), 0);
    assert_eq!(start(&["--allow-cidr=10.0.0.0/8"]), 0);
}

#[tokio::test]
async fn only_the_socket_accepts_changes_with_writes_from_socket() {
    let files = CertificateFiles::new();
    let path = files.path("admin.sock");
    let socket = format!("--http-socket={path}");
    let tokens = format!("--token-file={}", files.path("tokens"));
    let flags = ["--rpc-port=0", "--port=0", "--metrics-port=0", "--bind=127.0.0.1", "--writes-from=socket"];
    let mut master = Service::start(command(&[&["serve", "master"], &flags[..], &[&socket, &tokens]].concat()));
    let port = master.port_after("admin http://127.0.0.1:");
    let post = "POST /api/v1/remove_all HTTP/1.1\r\nHost: h\r\nConnection: close\r\n";
    let write = format!("{post}Authorization: Bearer {WRITE}\r\n");
    let refused = exchange(connect(port, LOCAL).await, &write, "").await.expect("a response");
    assert!(refused.starts_with("HTTP/1.1 403 ") && refused.contains("--writes-from"), "{refused}");
    let stream = tokio::net::UnixStream::connect(&path).await.expect("the socket exists");
    assert!(exchange(stream, post, "").await.expect("a response").starts_with("HTTP/1.1 200 "));
    assert_eq!(master.stop(Signal::SIGTERM), 0);
    assert!(!std::path::Path::new(&path).exists());
}

#[test]
fn bind_applies_to_handshake_and_data_ports() {
    let flags = ["--rpc-port=0", "--port=0", "--metrics-port=0", "--bind=127.0.0.1"];
    let mut master = Service::start(command(&[&["serve", "master"], &flags[..]].concat()));
    let rpc = format!("--master=127.0.0.1:{}", master.port_after("Master service started on port "));
    let flags = [&rpc, "--metadata-server=P2PHANDSHAKE", "--port=0", "--segment-size=64mb", "--local-buffer-size=0"];
    let mut node = Service::start(command(&[&["serve", "store", "--bind=127.0.0.2"], &flags[..]].concat()));
    let rest = node.port_after("REST API started on port ");
    let engine = node.line_with("transfer engine is listening");
    for port in [rest, number_after(&engine, "handshake=127.0.0.2:"), number_after(&engine, "data_port=")] {
        assert!(std::net::TcpStream::connect(("127.0.0.2", port)).is_ok(), "{port}");
        assert!(std::net::TcpStream::connect(("127.0.0.1", port)).is_err(), "{port}");
    }
    // A client reaches the node at the address that it announces.
    mcctl(&["store", "put", "k", "--value=hello", &rpc, "--metadata-server=P2PHANDSHAKE"]).succeeds();
    assert_eq!(node.stop(Signal::SIGTERM), 0);
    assert_eq!(master.stop(Signal::SIGTERM), 0);
}
