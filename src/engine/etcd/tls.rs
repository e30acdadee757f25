//! The TLS configuration of a client of etcd, from PEM files.

use std::sync::Arc;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore};

/// A certificate or key is invalid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EtcdTlsError {
    #[error("no CA certificate found")]
    NoAuthority,
    #[error("no client certificate")]
    NoCertificate,
    #[error("no valid private key: {0}")]
    Key(String),
    #[error("{0}")]
    Config(String),
}

/// Trusts the authorities in `authorities`, and shows the client certificate and key in `identity`. All are in PEM.
///
/// # Errors
/// See [`EtcdTlsError`].
pub fn tls_config(authorities: &[u8], identity: Option<(&[u8], &[u8])>) -> Result<ClientConfig, EtcdTlsError> {
    let invalid = |error: rustls::Error| EtcdTlsError::Config(error.to_string());
    let mut roots = RootCertStore::empty();
    let (added, _) =
        roots.add_parsable_certificates(CertificateDer::pem_slice_iter(authorities).filter_map(Result::ok));
    if added == 0 {
        return Err(EtcdTlsError::NoAuthority);
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder =
        ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions().map_err(invalid)?;
    let builder = builder.with_root_certificates(roots);
    let Some((certificate, key)) = identity else { return Ok(builder.with_no_client_auth()) };
    let chain: Vec<_> = CertificateDer::pem_slice_iter(certificate).filter_map(Result::ok).collect();
    if chain.is_empty() {
        return Err(EtcdTlsError::NoCertificate);
    }
    let key = PrivateKeyDer::from_pem_slice(key).map_err(|error| EtcdTlsError::Key(error.to_string()))?;
    builder.with_client_auth_cert(chain, key).map_err(invalid)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_without_a_certificate_or_key_are_refused() {
        assert_eq!(tls_config(b"text", None).unwrap_err(), EtcdTlsError::NoAuthority);
        let made = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
        let (certificate, key) = (made.cert.pem(), made.signing_key.serialize_pem());
        let (certificate, key) = (certificate.as_bytes(), key.as_bytes());
        assert!(tls_config(certificate, None).is_ok() && tls_config(certificate, Some((certificate, key))).is_ok());
        assert_eq!(tls_config(certificate, Some((b"", key))).unwrap_err(), EtcdTlsError::NoCertificate);
        assert!(matches!(tls_config(certificate, Some((certificate, b""))), Err(EtcdTlsError::Key(_))));
    }
}
