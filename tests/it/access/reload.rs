//! Renewed certificates and tokens are used without a restart.

use std::sync::Arc;

use mcctl::engine::base::HostPort;
use mcctl::engine::env::RealEnv;
use mcctl::engine::http::tls::{PemIdentity, server_config};
use mcctl::engine::http::{AccessPolicy, AccessRules, HttpAccess};
use mcctl::engine::metadata::{KeySpace, MetadataService};

use crate::cli::command;
use crate::cli::service::Service;
use crate::peer::process::{PATIENCE, wait_until};

use super::certificates::{CertificateFiles, READ, WRITE};
use super::{LOCAL, Shown, connect, exchange, outcome};

fn rules(files: &CertificateFiles, certificate: &str, tokens: &str) -> AccessRules {
    let pem = files.text(&format!("{certificate}.pem"));
    let key = files.text(&format!("{certificate}.key"));
    let identity = PemIdentity { certificates: pem.as_bytes(), key: key.as_bytes() };
    let policy = AccessPolicy { tokens: tokens.parse().unwrap(), ..AccessPolicy::default() };
    AccessRules { policy, tls: Some(Arc::new(server_config(identity, None, false).unwrap())) }
}

#[tokio::test]
async fn replaced_rules_apply_to_later_requests() {
    let files = CertificateFiles::new();
    let access = HttpAccess::new(rules(&files, "expired", &format!("write {READ}")));
    let service = MetadataService::new(RealEnv::new(), KeySpace::default());
    let running = service.start_with(&HostPort::new("127.0.0.1", 0), access.clone()).await.unwrap();
    let port = running.at().port;
    let put = async |token| {
        let shown = Shown { token: Some(token), certificate: None, from: LOCAL };
        outcome(&files, port, shown, ("PUT", "/metadata?key=a", "{}")).await
    };
    // The client refuses the server's expired certificate.
    assert_eq!(put(WRITE).await, "closed");
    access.replace(rules(&files, "server", &format!("read {READ}\nwrite {WRITE}")));
    assert_eq!((put(READ).await.as_str(), put(WRITE).await.as_str()), ("403", "200"));
    running.stop().await;
}

#[test]
fn a_changed_token_file_is_used_without_a_restart() {
    let files = CertificateFiles::new();
    let path = files.path("tokens");
    let mut service =
        Service::start(command(&["serve", "metadata", "--port=0", "--bind=127.0.0.1", "--token-file", &path]));
    let port = service.port_after("metadata service ready: http://127.0.0.1:");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let status = |token: &str| {
        let head = format!(
            "PUT /metadata?key=a HTTP/1.1\r\nHost: h\r\nConnection: close\r\nAuthorization: Bearer {token}\r\n"
        );
        runtime.block_on(async {
            let answer = exchange(connect(port, LOCAL).await, &head, "{}").await.expect("a response");
            answer.split(' ').nth(1).expect("a status").to_owned()
        })
    };
    let renewed = "renewed-0123456789abcdef";
    assert_eq!((status(WRITE).as_str(), status(renewed).as_str()), ("200", "401"));
    std::fs::write(&path, "write short\n").unwrap();
    service.line_with("the former tokens and certificates remain in use");
    assert_eq!(status(WRITE), "200");
    std::fs::write(&path, format!("write {renewed}\n")).unwrap();
    wait_until("the new token is accepted", PATIENCE, || status(renewed) == "200");
    assert_eq!(status(WRITE), "401");
}
