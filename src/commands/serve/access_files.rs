//! The files with a service's tokens and certificates: reading them, and reading them again when they change.

use std::convert::Infallible;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use crate::commands::cli::error::Failure;
use crate::commands::cli::settings::{Settings, read_text};
use crate::commands::target::credentials::ACCESS_FILE_BYTES_MAX;
use crate::engine::base::time::RoundedDuration;
use crate::engine::env::{Env, RealEnv, wall_clock};
use crate::engine::http::access::{TokenError, TokenTable, WriteOrigin};
use crate::engine::http::tls::{CertificateDate, PemIdentity, server_config};
use crate::engine::http::{AccessPolicy, AccessRules, HttpAccess};

/// How often the files are read to find out whether they have changed.
const CHECK_EVERY: Duration = Duration::from_secs(5);
/// After this many failed attempts to read the files, a warning is logged.
const READ_FAILURES: u32 = 2;

/// The files, and the rules that do not come from files.
#[derive(Clone, Debug)]
pub struct AccessFiles {
    tokens: Option<PathBuf>,
    /// The certificate and its key.
    tls: Option<(PathBuf, PathBuf)>,
    client_ca: Option<PathBuf>,
    writes_from: WriteOrigin,
    protect_metrics: bool,
}

/// The contents of the files.
#[derive(Clone, PartialEq, Eq)]
pub struct AccessTexts {
    tokens: Option<String>,
    tls: Option<(String, String)>,
    client_ca: Option<String>,
}

impl fmt::Debug for AccessTexts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("AccessTexts(***)")
    }
}

impl AccessFiles {
    /// The files that the access flags name.
    ///
    /// # Errors
    /// A flag needs another one that is not set.
    pub fn of(settings: &Settings) -> Result<AccessFiles, Failure> {
        let path = |name: &str| Some(settings.text(name)).filter(|text| !text.is_empty()).map(PathBuf::from);
        let tls = match (path("tls_cert"), path("tls_key")) {
            (Some(certificate), Some(key)) => Some((certificate, key)),
            (None, None) => None,
            (Some(_), None) => return Err(needs(settings, "tls_cert", "--tls-key")),
            (None, Some(_)) => return Err(needs(settings, "tls_key", "--tls-cert")),
        };
        let writes_from = match settings.text("writes_from") {
            "socket" if path("http_socket").is_none() => return Err(needs(settings, "writes_from", "--http-socket")),
            "socket" => WriteOrigin::Socket,
            "loopback" => WriteOrigin::Loopback,
            _ => WriteOrigin::Any,
        };
        let files = AccessFiles {
            tokens: path("token_file"),
            client_ca: path("client_ca"),
            writes_from,
            protect_metrics: settings.bool("protect_metrics"),
            tls,
        };
        if files.client_ca.is_some() && files.tls.is_none() {
            return Err(needs(settings, "client_ca", "--tls-cert and --tls-key"));
        }
        if files.protect_metrics && !files.restrict() {
            return Err(needs(settings, "protect_metrics", "--token-file or --client-ca"));
        }
        Ok(files)
    }

    /// Whether a client of the HTTP ports needs a token or a certificate.
    pub fn restrict(&self) -> bool {
        self.tokens.is_some() || self.client_ca.is_some()
    }

    /// The access by the files as they are now, and their contents.
    ///
    /// # Errors
    /// A file cannot be read, or is invalid.
    pub fn access(&self) -> Result<(HttpAccess, AccessTexts), Failure> {
        let texts = self.read()?;
        Ok((HttpAccess::new(self.rules(&texts)?), texts))
    }

    /// Applies changes of the files to `access`, as long as the future is polled. `last` is what `access` was made of. Files that cannot be
    /// used leave the rules unchanged.
    pub async fn keep_current(self, access: HttpAccess, mut last: AccessTexts) -> Infallible {
        if self.tokens.is_none() && self.tls.is_none() {
            return std::future::pending().await;
        }
        let mut failures = 0u32;
        loop {
            RealEnv::new().sleep(CHECK_EVERY).await;
            let files = self.clone();
            let Ok(read) = tokio::task::spawn_blocking(move || files.read()).await else { continue };
            let texts = match read {
                Ok(texts) => texts,
                Err(failure) => {
                    failures += 1;
                    // While a file is replaced, it may be missing for a moment.
                    if failures == READ_FAILURES {
                        tracing::warn!("{}; the former tokens and certificates remain in use", failure.line());
                    }
                    continue;
                }
            };
            failures = 0;
            if texts == last {
                continue;
            }
            match self.rules(&texts) {
                Ok(rules) => {
                    access.replace(rules);
                    tracing::info!("the changed access files are in use");
                }
                Err(failure) => tracing::warn!(
                    found = failure.found,
                    "{}; the former tokens and certificates remain in use",
                    failure.what
                ),
            }
            last = texts;
        }
    }

    fn read(&self) -> Result<AccessTexts, Failure> {
        let read = |path: &Path, flag: &'static str| {
            // Opening a FIFO would wait for a writer.
            match std::fs::metadata(path) {
                Ok(found) if !found.is_file() => {
                    Err(Failure::usage(format!("{flag} {} is not a file", path.display()))
                        .next("use a regular file, which the service can read again"))
                }
                _ => read_text(path, flag, ACCESS_FILE_BYTES_MAX),
            }
        };
        Ok(AccessTexts {
            tokens: self.tokens.as_deref().map(|path| read(path, "--token-file")).transpose()?,
            tls: match &self.tls {
                Some((certificate, key)) => Some((read(certificate, "--tls-cert")?, read(key, "--tls-key")?)),
                None => None,
            },
            client_ca: self.client_ca.as_deref().map(|path| read(path, "--client-ca")).transpose()?,
        })
    }

    fn rules(&self, texts: &AccessTexts) -> Result<AccessRules, Failure> {
        let tokens = match &texts.tokens {
            None => TokenTable::default(),
            Some(text) => text.parse().map_err(|error: TokenError| {
                Failure::usage("--token-file is not valid")
                    .tried(self.tokens.as_deref().map(|path| path.display().to_string()).unwrap_or_default())
                    .found(error.to_string())
                    .next("write one 'read TOKEN' or 'write TOKEN' per line; openssl rand -hex 32 makes a token")
            })?,
        };
        let tls = match &texts.tls {
            None => None,
            Some((certificate, key)) => {
                let pem = PemIdentity { certificates: certificate.as_bytes(), key: key.as_bytes() };
                let ca = texts.client_ca.as_deref().map(str::as_bytes);
                let config = server_config(pem, ca, self.protect_metrics).map_err(|error| {
                    let mut failure =
                        Failure::usage("--tls-cert, --tls-key or --client-ca is not valid").found(error.to_string());
                    let pair = self.tls.iter().flat_map(|(certificate, key)| [certificate, key]);
                    let files: Vec<_> = pair.chain(&self.client_ca).map(|path| path.display().to_string()).collect();
                    failure = failure.tried(files.join(", "));
                    failure.next("use PEM files: a certificate with its key, and the CAs of the clients")
                })?;
                self.warn_of_dates(certificate);
                Some(Arc::new(config))
            }
        };
        let policy = AccessPolicy {
            tokens,
            certificate_required: self.client_ca.is_some(),
            writes_from: self.writes_from,
            protect_metrics: self.protect_metrics,
        };
        Ok(AccessRules { policy, tls })
    }
}

impl AccessFiles {
    /// Logs a warning if no client can accept `certificate` now. The service starts: a renewed file is read again.
    fn warn_of_dates(&self, certificate: &str) {
        let now = Duration::from_millis(wall_clock(&RealEnv::new()).0.max(0).unsigned_abs());
        let Some((path, _)) = &self.tls else { return };
        let problem = match CertificateDate::problem(certificate.as_bytes(), now) {
            None => return,
            Some(CertificateDate::Expired(since)) => format!("expired {} ago", RoundedDuration(since)),
            Some(CertificateDate::NotYetValid(until)) => format!("becomes valid in {}", RoundedDuration(until)),
        };
        tracing::warn!(
            "the certificate in --tls-cert {} {problem}: clients refuse it. Renew the file; this process reads it again",
            path.display()
        );
    }
}

fn needs(settings: &Settings, flag: &str, missing: &str) -> Failure {
    Failure::usage(format!("{} needs {missing}", settings.describe(flag))).next(format!("set {missing}"))
}
