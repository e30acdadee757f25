//! Certificates and tokens for the tests, as files.

use std::path::Path;

use mcctl::engine::http::tls::{PemIdentity, client_config};
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair, date_time_ymd};
use tempfile::TempDir;

pub const READ: &str = "reader-0123456789abcdef";
pub const WRITE: &str = "writer-0123456789abcdef";

/// A CA with certificates for a server and for clients.
pub struct CertificateFiles {
    dir: TempDir,
}

/// An authority: its certificate in PEM, and what signs.
struct Authority {
    pem: String,
    issuer: Issuer<'static, KeyPair>,
}

impl Authority {
    fn new() -> Authority {
        let mut params = CertificateParams::new(Vec::new()).expect("no names");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().expect("a key");
        let pem = params.self_signed(&key).expect("a certificate").pem();
        Authority { pem, issuer: Issuer::new(params, key) }
    }

    /// Writes `NAME.pem` and `NAME.key`.
    fn sign(&self, dir: &Path, name: &str, last_year: i32) {
        let names = vec!["localhost".to_owned(), "127.0.0.1".to_owned()];
        let mut params = CertificateParams::new(names).expect("names");
        params.not_before = date_time_ymd(2020, 1, 1);
        params.not_after = date_time_ymd(last_year, 1, 1);
        let key = KeyPair::generate().expect("a key");
        let pem = params.signed_by(&key, &self.issuer).expect("a certificate").pem();
        std::fs::write(dir.join(format!("{name}.pem")), pem).expect("written");
        std::fs::write(dir.join(format!("{name}.key")), key.serialize_pem()).expect("written");
    }
}

impl CertificateFiles {
    pub fn new() -> CertificateFiles {
        let dir = tempfile::tempdir().expect("a folder");
        let authority = Authority::new();
        let other = Authority::new();
        std::fs::write(dir.path().join("ca.pem"), &authority.pem).expect("written");
        std::fs::write(dir.path().join("tokens"), format!("read {READ}\nwrite {WRITE}\n")).expect("written");
        authority.sign(dir.path(), "server", 2100);
        authority.sign(dir.path(), "client", 2100);
        authority.sign(dir.path(), "expired", 2021);
        other.sign(dir.path(), "stranger", 2100);
        CertificateFiles { dir }
    }

    pub fn path(&self, name: &str) -> String {
        self.dir.path().join(name).to_str().expect("text").to_owned()
    }

    pub fn text(&self, name: &str) -> String {
        std::fs::read_to_string(self.path(name)).expect("a file")
    }

    /// A client that trusts the server, with the certificate `name`.
    pub fn client(&self, name: Option<&str>) -> rustls::ClientConfig {
        let pems = name.map(|name| (self.text(&format!("{name}.pem")), self.text(&format!("{name}.key"))));
        let identity =
            pems.as_ref().map(|(pem, key)| PemIdentity { certificates: pem.as_bytes(), key: key.as_bytes() });
        client_config(self.text("ca.pem").as_bytes(), identity).expect("valid")
    }

    /// The flags of a service with TLS, mTLS, tokens, and connections only from 127.0.0.1.
    pub fn server_flags(&self) -> Vec<String> {
        vec![
            format!("--tls-cert={}", self.path("server.pem")),
            format!("--tls-key={}", self.path("server.key")),
            format!("--client-ca={}", self.path("ca.pem")),
            format!("--token-file={}", self.path("tokens")),
            "--allow-cidr=127.0.0.1,10.0.0.0/8".to_owned(),
        ]
    }

    /// The flags of a command with a valid certificate and the token in `token_file`.
    pub fn client_flags(&self, token_file: &str) -> Vec<String> {
        vec![
            format!("--ca={}", self.path("ca.pem")),
            format!("--client-cert={}", self.path("client.pem")),
            format!("--client-key={}", self.path("client.key")),
            format!("--token-file={token_file}"),
        ]
    }
}
