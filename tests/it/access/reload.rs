//! Renewed certificates and tokens are used without a restart.

use std::sync::Arc;

use mcctl::engine::base::HostPort;
use mcctl::engine::env::RealEnv;
use mcctl::engine::http::tls::{PemIdentity, server_config};
use mcctl::engine::http::{AccessPolicy, AccessRules, HttpAccess};
use mcctl::engine::metadata::{KeySpace, MetadataService};

use super::certificates::{CertificateFiles, READ, WRITE};
use super::{LOCAL, Shown, outcome};

fn rules(files: &CertificateFiles, certificate: &str, tokens: &str) -> AccessRules {
    let (pem, key) = (files.text(&format!("{certificate}.pem")), files.text(&format!("{certificate}.key")));
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
