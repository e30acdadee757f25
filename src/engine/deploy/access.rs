//! The section `[access]`: which hosts may connect to masters and store nodes, and what HTTP
//! requests must present.

use serde::{Deserialize, Serialize};

/// Where HTTP requests that may change something are accepted from, as in `--writes-from`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum WriteOrigin {
    #[default]
    Any,
    Loopback,
}

/// Access control of mcctl's masters and store nodes. Each key is a flag of `mcctl serve master`
/// and `mcctl serve store`. The files are paths on plain hosts. In Kubernetes, Secrets contain them
/// ([`crate::KubernetesSection`]).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct AccessSection {
    /// `--allow-cidr`: networks whose hosts may connect to any port. Empty allows all hosts.
    pub allow_cidr: Vec<String>,
    /// `--token-file`: the tokens for HTTP requests.
    pub token_file: String,
    /// `--tls-cert`: the certificate of the HTTP ports, as PEM.
    pub tls_cert: String,
    /// `--tls-key`: the key of the certificate, as PEM.
    pub tls_key: String,
    /// `--client-ca`: the CAs of client certificates, as PEM.
    pub client_ca: String,
    /// `--writes-from`: where such requests may come from.
    pub writes_from: WriteOrigin,
    /// `--protect-metrics`: health, readiness and metrics need a token or a client certificate,
    /// too.
    pub protect_metrics: bool,
    /// The CAs that Prometheus trusts, as PEM: a path on its host. Empty uses the CAs of that host.
    pub monitoring_ca: String,
    /// The token that Prometheus sends: the path of a file on its host that contains a token only.
    pub monitoring_token_file: String,
    /// The client certificate of Prometheus, as PEM: a path on its host.
    pub monitoring_cert: String,
    /// The key of this certificate.
    pub monitoring_key: String,
}

impl AccessSection {
    /// The paths on plain hosts, with their keys.
    pub fn paths(&self) -> [(&'static str, &String); 8] {
        [
            ("access.token_file", &self.token_file),
            ("access.tls_cert", &self.tls_cert),
            ("access.tls_key", &self.tls_key),
            ("access.client_ca", &self.client_ca),
            ("access.monitoring_ca", &self.monitoring_ca),
            ("access.monitoring_token_file", &self.monitoring_token_file),
            ("access.monitoring_cert", &self.monitoring_cert),
            ("access.monitoring_key", &self.monitoring_key),
        ]
    }

    /// The keys of the files that the services read, and whether each one is set.
    pub fn files(&self) -> [(&'static str, bool); 3] {
        [
            ("access.token_file", !self.token_file.is_empty()),
            ("access.tls_cert", !self.tls_cert.is_empty()),
            ("access.client_ca", !self.client_ca.is_empty()),
        ]
    }
}
