//! The files with a server's tokens and certificates: reading them, and reading them again when
//! they change.

use std::convert::Infallible;
use std::fmt;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use mcctl_base::ByteSize;
use mcctl_base::time::RoundedDuration;
use mcctl_sys::env::{Env, wall_clock};

use crate::http::access::{AccessPolicy, AccessRules, HttpAccess, TokenError, TokenTable, WriteOrigin};
use crate::http::tls::{CertificateDate, PemIdentity, TlsFileError, server_config};

/// Maximum size of a file with tokens, certificates or a key, in bytes.
pub const ACCESS_FILE_BYTES_MAX: u64 = 1 << 20;
/// How often the files are read to find out whether they have changed.
const CHECK_EVERY: Duration = Duration::from_secs(5);
/// After this many failed attempts to read the files, a warning is logged.
const READ_FAILURES: u32 = 2;

/// The files, and the rules that do not come from files.
#[derive(Clone, Debug, Default)]
pub struct AccessFiles {
    /// Lines `read TOKEN` and `write TOKEN`.
    pub tokens: Option<PathBuf>,
    /// The certificate and its key, in PEM.
    pub tls: Option<(PathBuf, PathBuf)>,
    /// The authorities whose certificates clients must have, in PEM. Has an effect only with `tls`.
    pub client_ca: Option<PathBuf>,
    pub writes_from: WriteOrigin,
    /// `/health`, `/ready` and `/metrics` need the same as other requests that only read.
    pub protect_metrics: bool,
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

/// A kind of file, shown as the flag that names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AccessFileKind {
    Tokens,
    Certificate,
    Key,
    ClientAuthorities,
}

impl fmt::Display for AccessFileKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            AccessFileKind::Tokens => "--token-file",
            AccessFileKind::Certificate => "--tls-cert",
            AccessFileKind::Key => "--tls-key",
            AccessFileKind::ClientAuthorities => "--client-ca",
        })
    }
}

/// A file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum AccessFileError {
    /// A file that is opened again must not be a pipe: opening it would wait for a writer.
    #[error("{kind} {} is not a file", path.display())]
    NotAFile { kind: AccessFileKind, path: PathBuf },
    #[error("cannot read {kind} {}: {source}", path.display())]
    Read { kind: AccessFileKind, path: PathBuf, source: io::Error },
    #[error("{kind} {} is larger than {}", path.display(), ByteSize(ACCESS_FILE_BYTES_MAX))]
    TooLarge { kind: AccessFileKind, path: PathBuf },
    #[error("--token-file {} is not valid: {source}", path.display())]
    Tokens { path: PathBuf, source: TokenError },
    #[error("--tls-cert, --tls-key or --client-ca is not valid: {source}")]
    Tls { paths: Vec<PathBuf>, source: TlsFileError },
}

impl AccessFiles {
    /// Whether a client of the HTTP ports needs a token or a certificate.
    pub fn restrict(&self) -> bool {
        self.tokens.is_some() || self.client_ca.is_some()
    }

    /// The access by the files as they are now, and their contents. Logs a warning if the
    /// certificate is not valid at the time of `env`.
    ///
    /// # Errors
    /// A file cannot be read, or is invalid.
    pub fn access<E: Env>(&self, env: &E) -> Result<(HttpAccess, AccessTexts), AccessFileError> {
        let texts = self.read()?;
        Ok((HttpAccess::new(self.rules(env, &texts)?), texts))
    }

    /// Applies changes of the files to `access`, as long as the future is polled. `last` is what
    /// `access` was made of. Files that cannot be used leave the rules unchanged.
    pub async fn keep_current<E: Env>(self, env: E, access: HttpAccess, mut last: AccessTexts) -> Infallible {
        if self.tokens.is_none() && self.tls.is_none() {
            return std::future::pending().await;
        }
        let mut failures = 0u32;
        loop {
            env.sleep(CHECK_EVERY).await;
            let files = self.clone();
            let Ok(read) = tokio::task::spawn_blocking(move || files.read()).await else { continue };
            let texts = match read {
                Ok(texts) => texts,
                Err(error) => {
                    failures += 1;
                    // While a file is replaced, it may be missing for a moment.
                    if failures == READ_FAILURES {
                        tracing::warn!("{error}; the former tokens and certificates remain in use");
                    }
                    continue;
                }
            };
            failures = 0;
            if texts == last {
                continue;
            }
            match self.rules(&env, &texts) {
                Ok(rules) => {
                    access.replace(rules);
                    tracing::info!("the changed access files are in use");
                }
                Err(error) => tracing::warn!("{error}; the former tokens and certificates remain in use"),
            }
            last = texts;
        }
    }

    fn read(&self) -> Result<AccessTexts, AccessFileError> {
        let optional = |path: &Option<PathBuf>, kind| path.as_deref().map(|path| read_text(path, kind)).transpose();
        Ok(AccessTexts {
            tokens: optional(&self.tokens, AccessFileKind::Tokens)?,
            tls: match &self.tls {
                Some((certificate, key)) => {
                    Some((read_text(certificate, AccessFileKind::Certificate)?, read_text(key, AccessFileKind::Key)?))
                }
                None => None,
            },
            client_ca: optional(&self.client_ca, AccessFileKind::ClientAuthorities)?,
        })
    }

    fn rules<E: Env>(&self, env: &E, texts: &AccessTexts) -> Result<AccessRules, AccessFileError> {
        let tokens = match &texts.tokens {
            None => TokenTable::default(),
            Some(text) => text
                .parse()
                .map_err(|source| AccessFileError::Tokens { path: self.tokens.clone().unwrap_or_default(), source })?,
        };
        let tls = match &texts.tls {
            None => None,
            Some((certificate, key)) => {
                let pem = PemIdentity { certificates: certificate.as_bytes(), key: key.as_bytes() };
                let ca = texts.client_ca.as_deref().map(str::as_bytes);
                let config = server_config(pem, ca, self.protect_metrics).map_err(|source| {
                    let pair = self.tls.iter().flat_map(|(certificate, key)| [certificate, key]);
                    AccessFileError::Tls { paths: pair.chain(&self.client_ca).cloned().collect(), source }
                })?;
                self.warn_of_dates(env, certificate);
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

    /// Logs a warning if no client can accept `certificate` now. The service starts: a renewed file
    /// is read again.
    fn warn_of_dates<E: Env>(&self, env: &E, certificate: &str) {
        let now = Duration::from_millis(wall_clock(env).0.max(0).unsigned_abs());
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

fn read_text(path: &Path, kind: AccessFileKind) -> Result<String, AccessFileError> {
    let failed = |source| AccessFileError::Read { kind, path: path.to_owned(), source };
    if !std::fs::metadata(path).map_err(failed)?.is_file() {
        return Err(AccessFileError::NotAFile { kind, path: path.to_owned() });
    }
    let file = std::fs::File::open(path).map_err(failed)?;
    let mut text = String::new();
    let bytes = file.take(ACCESS_FILE_BYTES_MAX + 1).read_to_string(&mut text).map_err(failed)?;
    if bytes as u64 > ACCESS_FILE_BYTES_MAX {
        return Err(AccessFileError::TooLarge { kind, path: path.to_owned() });
    }
    Ok(text)
}
