//! The TLS configurations of clients and servers, from PEM files.

use std::sync::Arc;
use std::time::Duration;

use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::ServerCertVerifier;
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::server::WebPkiClientVerifier;
use rustls::{CertificateError, RootCertStore};

/// The configurations, for the owners of clients and servers.
pub use rustls::{ClientConfig, ServerConfig};

/// A certificate or key is invalid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TlsFileError {
    #[error("no CA certificate found")]
    NoAuthority,
    #[error("no certificate found")]
    NoCertificate,
    #[error("a certificate is damaged: {0}")]
    Pem(String),
    #[error("no valid private key: {0}")]
    Key(String),
    #[error("the private key does not belong to the certificate")]
    OtherKey,
    #[error("{0}")]
    Config(String),
}

/// Certificates and their key, in PEM.
#[derive(Clone, Copy)]
pub struct PemIdentity<'a> {
    /// The certificate, and those of intermediate authorities after it.
    pub certificates: &'a [u8],
    pub key: &'a [u8],
}

/// A client that trusts the authorities in `authorities`, in PEM, and shows `identity` to servers
/// that request a certificate.
///
/// # Errors
/// See [`TlsFileError`].
pub fn client_config(authorities: &[u8], identity: Option<PemIdentity<'_>>) -> Result<ClientConfig, TlsFileError> {
    let builder = ClientConfig::builder_with_provider(provider()).with_safe_default_protocol_versions();
    let builder = builder.map_err(invalid)?.with_root_certificates(roots(authorities)?);
    let Some(identity) = identity else { return Ok(builder.with_no_client_auth()) };
    let (chain, key) = parse(identity)?;
    builder.with_client_auth_cert(chain, key).map_err(invalid)
}

/// A server with the certificate in `identity`. With `client_authorities`, in PEM, it accepts only
/// client certificates that one of these authorities has signed; a client without a certificate is
/// accepted unless `certificate_required` is set.
///
/// # Errors
/// See [`TlsFileError`].
pub fn server_config(
    identity: PemIdentity<'_>,
    client_authorities: Option<&[u8]>,
    certificate_required: bool,
) -> Result<ServerConfig, TlsFileError> {
    let builder = ServerConfig::builder_with_provider(provider()).with_safe_default_protocol_versions();
    let builder = builder.map_err(invalid)?;
    let builder = match client_authorities {
        None => builder.with_no_client_auth(),
        Some(authorities) => {
            let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots(authorities)?), provider());
            let verifier = if certificate_required { verifier } else { verifier.allow_unauthenticated() };
            let verifier = verifier.build().map_err(|error| TlsFileError::Config(error.to_string()))?;
            builder.with_client_cert_verifier(verifier)
        }
    };
    let (chain, key) = parse(identity)?;
    let mut config = builder.with_single_cert(chain, key).map_err(invalid)?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(config)
}

/// Why a certificate is not valid at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CertificateDate {
    /// It expired this long before.
    Expired(Duration),
    /// It becomes valid after this long.
    NotYetValid(Duration),
}

impl CertificateDate {
    /// The problem of the first certificate in `pem` at `now`, the time since 1970; `None` if it is
    /// valid then, or is not a certificate.
    pub fn problem(pem: &[u8], now: Duration) -> Option<CertificateDate> {
        let certificate = certificates(pem).ok()?.into_iter().next()?;
        let mut roots = RootCertStore::empty();
        roots.add(certificate.clone()).ok()?;
        let verifier = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider()).build().ok()?;
        let name = ServerName::try_from("localhost").ok()?;
        let now = UnixTime::since_unix_epoch(now);
        // The dates are checked before the name and the signature, which do not matter here.
        match verifier.verify_server_cert(&certificate, &[], &name, &[], now) {
            Err(rustls::Error::InvalidCertificate(CertificateError::ExpiredContext { time, not_after })) => {
                Some(CertificateDate::Expired(between(not_after, time)))
            }
            Err(rustls::Error::InvalidCertificate(CertificateError::NotValidYetContext { time, not_before })) => {
                Some(CertificateDate::NotYetValid(between(time, not_before)))
            }
            _ => None,
        }
    }
}

fn between(from: UnixTime, to: UnixTime) -> Duration {
    Duration::from_secs(to.as_secs().saturating_sub(from.as_secs()))
}

fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

fn invalid(error: rustls::Error) -> TlsFileError {
    match error {
        rustls::Error::InconsistentKeys(rustls::InconsistentKeys::KeyMismatch) => TlsFileError::OtherKey,
        error => TlsFileError::Config(error.to_string()),
    }
}

fn roots(authorities: &[u8]) -> Result<RootCertStore, TlsFileError> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(authorities)? {
        roots.add(certificate).map_err(invalid)?;
    }
    if roots.is_empty() { Err(TlsFileError::NoAuthority) } else { Ok(roots) }
}

/// All certificates in `pem`. A damaged one is an error, because a connection would fail later
/// without it.
fn certificates(pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, TlsFileError> {
    CertificateDer::pem_slice_iter(pem).collect::<Result<_, _>>().map_err(|error| TlsFileError::Pem(error.to_string()))
}

fn parse(identity: PemIdentity<'_>) -> Result<(Vec<CertificateDer<'static>>, PrivateKeyDer<'static>), TlsFileError> {
    let chain = certificates(identity.certificates)?;
    if chain.is_empty() {
        return Err(TlsFileError::NoCertificate);
    }
    let key = PrivateKeyDer::from_pem_slice(identity.key).map_err(|error| TlsFileError::Key(error.to_string()))?;
    Ok((chain, key))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_certificate_outside_of_its_dates_is_found() {
        let day = Duration::from_secs(86_400);
        let mut params = rcgen::CertificateParams::new(vec!["store.example".to_owned()]).unwrap();
        params.not_before = rcgen::date_time_ymd(2026, 1, 1);
        params.not_after = rcgen::date_time_ymd(2026, 1, 11);
        let key = rcgen::KeyPair::generate().unwrap();
        let pem = params.self_signed(&key).unwrap().pem();
        let start = Duration::from_secs(1_767_225_600);
        let problem = |at| CertificateDate::problem(pem.as_bytes(), at);
        assert_eq!(problem(start + day), None);
        assert_eq!(problem(start - day), Some(CertificateDate::NotYetValid(day)));
        assert_eq!(problem(start + 13 * day), Some(CertificateDate::Expired(3 * day)));
        assert_eq!(CertificateDate::problem(b"text", start), None);
    }

    #[test]
    fn files_without_a_certificate_or_key_are_refused() {
        assert_eq!(client_config(b"text", None).unwrap_err(), TlsFileError::NoAuthority);
        let made = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
        let certificate = made.cert.pem();
        let key = made.signing_key.serialize_pem();
        let certificates = certificate.as_bytes();
        let key = key.as_bytes();
        let valid = PemIdentity { certificates, key };
        assert!(client_config(certificates, None).is_ok() && client_config(certificates, Some(valid)).is_ok());
        assert!(server_config(valid, None, false).is_ok() && server_config(valid, Some(certificates), true).is_ok());
        assert_eq!(server_config(valid, Some(b""), false).unwrap_err(), TlsFileError::NoAuthority);
        let no_certificate = PemIdentity { certificates: b"", key };
        let no_key = PemIdentity { certificates, key: b"" };
        for error in [
            client_config(certificates, Some(no_certificate)).unwrap_err(),
            server_config(no_certificate, None, false).unwrap_err(),
        ] {
            assert_eq!(error, TlsFileError::NoCertificate);
        }
        assert!(matches!(client_config(certificates, Some(no_key)), Err(TlsFileError::Key(_))));
        assert!(matches!(server_config(no_key, None, false), Err(TlsFileError::Key(_))));
        let other =
            rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap().signing_key.serialize_pem();
        let damaged = format!("{certificate}{}", certificate.replace("MII", "!!!"));
        assert!(matches!(client_config(damaged.as_bytes(), None), Err(TlsFileError::Pem(_))));
        let mixed = PemIdentity { certificates, key: other.as_bytes() };
        assert_eq!(server_config(mixed, None, false).unwrap_err(), TlsFileError::OtherKey);
    }
}
