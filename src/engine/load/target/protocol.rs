//! TLS settings and HTTP version.

use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme};
use rustls_platform_verifier::Verifier;

/// TLS settings and HTTP version of a target. The default is plain HTTP/1.1.
#[derive(Clone, Debug)]
pub struct HttpProtocol {
    pub tls: Option<Tls>,
    /// Whether to use HTTP/2. Without TLS, prior knowledge is assumed; with TLS, ALPN negotiates
    /// the version.
    pub http2: bool,
    /// Maximum number of concurrent streams per HTTP/2 connection.
    pub streams: usize,
}

impl Default for HttpProtocol {
    fn default() -> HttpProtocol {
        HttpProtocol { tls: None, http2: false, streams: 100 }
    }
}

/// Which server certificates are trusted.
#[derive(Clone, Debug)]
pub enum Trust {
    /// Certificates trusted by the system.
    System,
    /// Only certificates signed by one of these (PEM).
    These(Vec<u8>),
    AnyCertificate,
}

/// TLS could not be set up.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// The PEM data contains no certificate.
    #[error("no certificate found")]
    NoCertificate,
    /// An error from the TLS library.
    #[error(transparent)]
    Library(#[from] rustls::Error),
}

/// TLS client configurations for HTTP/1.1 and HTTP/2.
#[derive(Clone, Debug)]
pub struct Tls {
    one: Arc<ClientConfig>,
    two: Arc<ClientConfig>,
}

impl Tls {
    /// Creates a configuration that trusts `trust`.
    ///
    /// # Errors
    /// The PEM data contains no certificate, or the TLS library rejects the configuration.
    pub fn new(trust: &Trust) -> Result<Tls, TlsError> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder =
            ClientConfig::builder_with_provider(Arc::clone(&provider)).with_safe_default_protocol_versions()?;
        let mut one = match trust {
            Trust::System => {
                let verifier = Arc::new(Verifier::new(provider)?);
                builder.dangerous().with_custom_certificate_verifier(verifier).with_no_client_auth()
            }
            Trust::AnyCertificate => {
                let verifier = Arc::new(AcceptAnyCertificate(provider));
                builder.dangerous().with_custom_certificate_verifier(verifier).with_no_client_auth()
            }
            Trust::These(pem) => {
                let mut roots = RootCertStore::empty();
                let found = CertificateDer::pem_slice_iter(pem).filter_map(Result::ok);
                roots.add_parsable_certificates(found);
                if roots.is_empty() {
                    return Err(TlsError::NoCertificate);
                }
                builder.with_root_certificates(roots).with_no_client_auth()
            }
        };
        let mut two = one.clone();
        one.alpn_protocols = vec![b"http/1.1".to_vec()];
        two.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        Ok(Tls { one: Arc::new(one), two: Arc::new(two) })
    }

    /// Returns the HTTP/1.1 configuration, for use by other clients.
    pub fn client(&self) -> ClientConfig {
        ClientConfig::clone(&self.one)
    }

    pub(super) fn config(&self, http2: bool) -> Arc<ClientConfig> {
        Arc::clone(if http2 { &self.two } else { &self.one })
    }
}

/// Accepts any certificate, for `--insecure`. Signatures are still verified, so the server is
/// proven to have the private key for its certificate.
#[derive(Debug)]
struct AcceptAnyCertificate(Arc<CryptoProvider>);

impl ServerCertVerifier for AcceptAnyCertificate {
    fn verify_server_cert(
        &self,
        _end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(message, cert, signature, &self.0.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, cert, signature, &self.0.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}
