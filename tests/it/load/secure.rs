//! TLS, HTTP/2 and headers, through the built binary.

use std::sync::{Arc, Mutex};

use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use mcctl::engine::http::ResponseBody;
use serde_json::Value;
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::pki_types::PrivatePkcs8KeyDer;
use tokio_rustls::rustls::{ServerConfig, crypto};

use crate::cli::{Run, command, finish};

const ANSWER: &str = concat!(
    "data: {\"text\":\"a\",\"output_ids\":[1],\"meta_info\":{\"finish_reason\":null,\"prompt_tokens\":9,\"completion_tokens\":1}}\n\n",
    "data: {\"text\":\"ab\",\"output_ids\":[1,2],\"meta_info\":{\"finish_reason\":{\"type\":\"length\"},\"completion_tokens\":2}}\n\n",
    "data: [DONE]\n\n"
);

/// What the server saw: the version of each request, its headers and its path.
type Seen = Arc<Mutex<Vec<(hyper::Version, hyper::HeaderMap, String)>>>;

/// A server on a free port, with TLS that offers `protocols` if there are any; its port, and its
/// certificate (PEM).
async fn serve(protocols: &[&str], http2: bool, seen: Seen) -> (u16, String) {
    let made = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).expect("a certificate");
    let key = PrivatePkcs8KeyDer::from(made.signing_key.serialize_der());
    let mut config = ServerConfig::builder_with_provider(Arc::new(crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .expect("versions")
        .with_no_client_auth()
        .with_single_cert(vec![made.cert.der().clone()], key.into())
        .expect("they belong together");
    config.alpn_protocols = protocols.iter().map(|name| name.as_bytes().to_vec()).collect();
    let acceptor = (!protocols.is_empty()).then(|| TlsAcceptor::from(Arc::new(config)));
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let port = listener.local_addr().expect("bound").port();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let acceptor = acceptor.clone();
            let seen = Arc::clone(&seen);
            let service = service_fn(move |request: hyper::Request<hyper::body::Incoming>| {
                let path = request.uri().path().to_owned();
                seen.lock().expect("lock is not poisoned").push((request.version(), request.headers().clone(), path));
                async { Ok::<_, std::convert::Infallible>(hyper::Response::new(ResponseBody::Whole(ANSWER.into()))) }
            });
            tokio::spawn(async move {
                match acceptor {
                    None if http2 => {
                        let builder = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
                        drop(builder.serve_connection(TokioIo::new(stream), service).await);
                    }
                    None => {
                        let builder = hyper::server::conn::http1::Builder::new();
                        drop(builder.serve_connection(TokioIo::new(stream), service).await);
                    }
                    Some(acceptor) => {
                        let Ok(stream) = acceptor.accept(stream).await else { return };
                        if stream.get_ref().1.alpn_protocol() == Some(b"h2") {
                            let builder = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
                            drop(builder.serve_connection(TokioIo::new(stream), service).await);
                        } else {
                            let builder = hyper::server::conn::http1::Builder::new();
                            drop(builder.serve_connection(TokioIo::new(stream), service).await);
                        }
                    }
                }
            });
        }
    });
    (port, made.cert.pem())
}

struct Tried {
    run: Run,
    seen: Vec<(hyper::Version, hyper::HeaderMap, String)>,
}

/// Six requests; `args` may say CACERT for the file of the server's certificate.
fn bench(scheme: &str, protocols: &[&str], http2: bool, args: &[&str]) -> Tried {
    bench_and_ask(scheme, protocols, http2, &[&["--no-server-calls"], args].concat())
}

/// The same with the server's other routes; `args` may say PORT.
fn bench_and_ask(scheme: &str, protocols: &[&str], http2: bool, args: &[&str]) -> Tried {
    let runtime = tokio::runtime::Runtime::new().expect("threads");
    let seen = Seen::default();
    let (port, pem) = runtime.block_on(serve(protocols, http2, Arc::clone(&seen)));
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("ca.pem");
    std::fs::write(&file, pem).expect("room");
    let url = format!("--url={scheme}://localhost:{port}");
    let fixed = ["bench", "multi-turn", &url, "--num-clients=3", "--num-rounds=2", "--request-rate=inf", "--json"];
    let named: Vec<String> = args
        .iter()
        .map(|arg| arg.replace("CACERT", file.to_str().expect("text")).replace("PORT", &port.to_string()))
        .collect();
    let named: Vec<&str> = named.iter().map(String::as_str).collect();
    let mut command = command(&[&fixed[..], &named].concat());
    command.env("OPENAI_API_KEY", "sk-very-secret").env_remove("API_KEY");
    let run = finish(command.output().expect("the program starts"));
    let seen = std::mem::take(&mut *seen.lock().expect("lock is not poisoned"));
    Tried { run, seen }
}

fn pass(run: &Run) -> Value {
    let document: Value = serde_json::from_str(&run.stdout).unwrap_or_else(|error| panic!("{error}: {run:?}"));
    document["passes"][0].clone()
}

#[test]
fn a_certificate_is_trusted_only_with_cacert_or_insecure() {
    for args in [&["--cacert", "CACERT"][..], &["--insecure"]] {
        let tried = bench("https", &["http/1.1"], false, args);
        assert_eq!((tried.run.code, tried.seen.len()), (0, 6), "{:?}", tried.run);
        assert!(tried.seen.iter().all(|(version, ..)| *version == hyper::Version::HTTP_11));
    }
    let tried = bench("https", &["http/1.1"], false, &[]);
    assert_eq!(tried.seen.len(), 0, "{:?}", tried.run);
    let told = tried.run.fails(3);
    assert!(told.contains("found: TLS: ") && told.contains("--cacert"), "{told}");
}

#[test]
fn trust_applies_to_all_calls_and_headers_only_to_the_server() {
    let master = "--master-metrics=https://localhost:PORT/of-the-master";
    for trust in [&["--cacert", "CACERT"][..], &["--insecure"]] {
        let args = [trust, &["--header=X-One: 1", "--flush-cache", master]].concat();
        let tried = bench_and_ask("https", &["http/1.1"], false, &args);
        assert_eq!(tried.run.code, 0, "{:?}", tried.run);
        for path in ["/generate", "/flush_cache", "/server_info", "/metrics", "/of-the-master"] {
            let mut asked = tried.seen.iter().filter(|(.., seen)| seen == path).peekable();
            assert!(asked.peek().is_some(), "{path} was not asked: {:?}", tried.run);
            for (_, headers, _) in asked {
                let carried = ["x-one", "authorization"].map(|name| headers.contains_key(name));
                assert_eq!(carried, [path != "/of-the-master"; 2], "{path}");
            }
        }
    }
}

#[test]
fn http2_is_spoken_at_once_without_tls_and_by_agreement_with_it() {
    let with_tls = ["--insecure", "--http2"];
    for (scheme, protocols, http2, args, version) in [
        ("http", &[][..], true, &["--http2"][..], hyper::Version::HTTP_2),
        ("https", &["h2", "http/1.1"], false, &with_tls, hyper::Version::HTTP_2),
        ("https", &["http/1.1"], false, &with_tls, hyper::Version::HTTP_11),
        ("https", &["h2", "http/1.1"], false, &["--insecure"], hyper::Version::HTTP_11),
    ] {
        let tried = bench(scheme, protocols, http2, args);
        assert_eq!((tried.run.code, tried.seen.len()), (0, 6), "{scheme} {protocols:?} {args:?}: {:?}", tried.run);
        assert!(tried.seen.iter().all(|(seen, ..)| *seen == version), "{scheme} {protocols:?} {args:?}");
        let pass = pass(&tried.run);
        assert_eq!((&pass["completed"], &pass["tokens"]["completion"]), (&6.into(), &12.into()));
    }
}

#[test]
fn keys_and_headers_are_sent_and_never_told() {
    let said = |tried: &Tried, name: &str| {
        let asked = tried.seen.iter().find(|(.., path)| path == "/generate").expect("it was asked");
        let value = asked.1.get(name).expect("it was sent");
        value.to_str().expect("text").to_owned()
    };
    let tried = bench("http", &[], false, &["--header", "X-One=1=2", "x-two: thr33"]);
    assert_eq!(tried.run.code, 0, "{:?}", tried.run);
    assert_eq!((said(&tried, "x-one"), said(&tried, "x-two")), ("1=2".to_owned(), "thr33".to_owned()));
    assert_eq!(said(&tried, "authorization"), "Bearer sk-very-secret");
    let own = bench("http", &[], false, &["--header=Authorization: m1ne"]);
    assert_eq!(said(&own, "authorization"), "m1ne");
    let wrong = bench("http", &[], false, &["--header", "bad name=sk-other-secret"]);
    assert_eq!(wrong.run.code, 2);
    for run in [&tried.run, &own.run, &wrong.run] {
        let all = format!("{}{}", run.stdout, run.stderr);
        assert!(["secret", "m1ne", "thr33", "1=2"].iter().all(|said| !all.contains(said)), "{all}");
    }
}
