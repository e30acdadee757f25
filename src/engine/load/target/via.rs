//! What lies between TCP and the requests: TLS and the version of HTTP.

use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme};
use rustls_platform_verifier::Verifier;

/// See the module. By default neither: plain HTTP/1.1.
#[derive(Clone, Debug)]
pub struct Via {
    /// With TLS.
    pub tls: Option<Tls>,
    /// HTTP/2: without TLS because both sides know, with TLS if the server agrees to it.
    pub http2: bool,
    /// Streams that share a connection of HTTP/2, at most.
    pub streams: usize,
}

impl Default for Via {
    fn default() -> Via {
        Via { tls: None, http2: false, streams: 100 }
    }
}

/// Whose certificates are believed.
#[derive(Clone, Debug)]
pub enum Trust {
    /// Those that the system believes.
    System,
    /// Those signed by one of these certificates (PEM), and no others.
    These(Vec<u8>),
    /// Any at all.
    Anybody,
}

/// TLS cannot be set up.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// No certificate in the PEM text.
    #[error("no certificate is in it")]
    NoCertificate,
    /// What the TLS library says.
    #[error(transparent)]
    Library(#[from] rustls::Error),
}

/// TLS as the client does it.
#[derive(Clone, Debug)]
pub struct Tls {
    one: Arc<ClientConfig>,
    two: Arc<ClientConfig>,
}

impl Tls {
    /// A set-up that believes `trust`.
    ///
    /// # Errors
    /// See [`TlsError`].
    pub fn new(trust: &Trust) -> Result<Tls, TlsError> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder =
            ClientConfig::builder_with_provider(Arc::clone(&provider)).with_safe_default_protocol_versions()?;
        let mut one = match trust {
            Trust::System => {
                let verifier = Arc::new(Verifier::new(provider)?);
                builder.dangerous().with_custom_certificate_verifier(verifier).with_no_client_auth()
            }
            Trust::Anybody => {
                let verifier = Arc::new(Believer(provider));
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

    /// The same trust for questions over HTTP/1.1 that other clients ask.
    pub fn client(&self) -> ClientConfig {
        ClientConfig::clone(&self.one)
    }

    pub(super) fn config(&self, http2: bool) -> Arc<ClientConfig> {
        Arc::clone(if http2 { &self.two } else { &self.one })
    }
}

/// Believes every certificate, for `--insecure`. Signatures are checked all the same: the other side has the key of what it shows.
#[derive(Debug)]
struct Believer(Arc<CryptoProvider>);

impl ServerCertVerifier for Believer {
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
