//! The flags for access control of mcctl's masters and store nodes, and the files that they name.

use crate::plans::PlanContext;
use crate::{AccessFile, ProbeAction, SecretVolume, WriteOrigin};

/// What access control adds to a process.
pub(crate) struct AccessArguments {
    pub argv: Vec<String>,
    pub files: Vec<AccessFile>,
}

impl PlanContext<'_> {
    /// Whether HTTP requests to masters and nodes need a token, a client certificate or TLS.
    pub(crate) fn protects_http(&self) -> bool {
        let access = &self.spec.access;
        let kubernetes = &self.spec.kubernetes;
        let secrets = [&kubernetes.token_secret, &kubernetes.tls_secret, &kubernetes.client_ca_secret];
        match self.on_hosts() {
            true => access.files().iter().any(|(_, is_set)| *is_set),
            false => secrets.iter().any(|name| !name.is_empty()),
        }
    }

    /// Whether the HTTP ports of masters and nodes accept only HTTPS.
    pub(crate) fn uses_tls(&self) -> bool {
        match self.on_hosts() {
            true => !self.spec.access.tls_cert.is_empty(),
            false => !self.spec.kubernetes.tls_secret.is_empty(),
        }
    }

    /// A probe by HTTP of a master or node. If it would need a token, a probe of the port instead.
    pub(crate) fn http_probe(&self, port: u16, path: &'static str) -> ProbeAction {
        match self.is_mcctl() && self.spec.access.protect_metrics {
            true => ProbeAction::Tcp { port },
            false => ProbeAction::Http { port, path, tls: self.is_mcctl() && self.uses_tls() },
        }
    }

    /// The flags and files of access control. Empty for upstream's programs, which have none.
    pub(crate) fn access_arguments(&self) -> AccessArguments {
        let access = &self.spec.access;
        let kubernetes = &self.spec.kubernetes;
        let mut found = AccessArguments { argv: Vec::new(), files: Vec::new() };
        if !self.is_mcctl() {
            return found;
        }
        if !access.allow_cidr.is_empty() {
            found.argv.push(format!("--allow-cidr={}", access.allow_cidr.join(",")));
        }
        for (flag, path, secret, volume, key) in [
            ("token-file", &access.token_file, &kubernetes.token_secret, "access-tokens", "tokens"),
            ("tls-cert", &access.tls_cert, &kubernetes.tls_secret, "access-tls", "tls.crt"),
            ("tls-key", &access.tls_key, &kubernetes.tls_secret, "access-tls", "tls.key"),
            ("client-ca", &access.client_ca, &kubernetes.client_ca_secret, "access-ca", "ca.crt"),
        ] {
            let file = if self.on_hosts() {
                AccessFile { path: path.clone(), secret: None }
            } else {
                let path = format!("{}/{volume}/{key}", AccessFile::DIRECTORY);
                AccessFile { path, secret: Some(SecretVolume { volume, secret: secret.clone() }) }
            };
            let is_set = if self.on_hosts() { !path.is_empty() } else { !secret.is_empty() };
            if is_set {
                found.argv.push(format!("--{flag}={}", file.path));
                found.files.push(file);
            }
        }
        if access.writes_from == WriteOrigin::Loopback {
            found.argv.push("--writes-from=loopback".to_owned());
        }
        if access.protect_metrics {
            found.argv.push("--protect-metrics=true".to_owned());
        }
        found
    }
}
