//! Mistakes in the use of TLS, found in the errors of connections.

use std::error::Error;
use std::io;

use rustls::{AlertDescription, CertificateError, InvalidMessage};

/// Why two programs with different settings for TLS cannot connect.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TlsMistake {
    /// The client sent plain HTTP, and the response is not HTTP: most likely a TLS record.
    #[error("the response is not plain HTTP: the port needs HTTPS, or belongs to another service")]
    ServerNeedsTls,
    /// The client used TLS, and the server responded with something else.
    #[error("the port speaks plain HTTP, and the client used HTTPS")]
    ServerIsPlain,
    /// The client used plain HTTP at this server's TLS port.
    #[error("the client used plain HTTP, and this port needs HTTPS")]
    ClientIsPlain,
    /// The client sent bytes that are not HTTP to this server's plain HTTP port.
    #[error("the client used HTTPS, and this port speaks plain HTTP")]
    ClientUsesTls,
    /// The server's certificate is not signed by a CA that the client trusts.
    #[error("the server's certificate is not signed by a trusted CA")]
    UnknownServerCa,
    #[error("the server's certificate is not valid for this host name or address")]
    WrongServerName,
    #[error("the server's certificate has expired, or is not valid yet")]
    ServerCertificateDate,
    #[error("the server requires a client certificate")]
    NeedsClientCertificate,
    #[error(
        "the server rejects the client's certificate: it has expired, or its CA is not in --client-ca of the server"
    )]
    ClientRejected,
    /// The peer does not trust this process's certificate.
    #[error("the client does not trust this server's certificate")]
    ServerDistrusted,
    #[error("the client sent no certificate")]
    NoClientCertificate,
    #[error("the client's certificate is not signed by a CA in --client-ca, or is not valid")]
    ClientCertificate,
}

impl TlsMistake {
    /// The mistake behind an error of a client.
    pub fn of_client(error: &(dyn Error + 'static)) -> Option<TlsMistake> {
        causes(error).find_map(|cause| match cause.downcast_ref::<rustls::Error>() {
            Some(error) => TlsMistake::of_client_tls(error),
            None => cause.downcast_ref().and_then(TlsMistake::of_client_http),
        })
    }

    fn of_client_tls(error: &rustls::Error) -> Option<TlsMistake> {
        match error {
            rustls::Error::InvalidMessage(_) => Some(TlsMistake::ServerIsPlain),
            rustls::Error::InvalidCertificate(why) => match why {
                CertificateError::UnknownIssuer => Some(TlsMistake::UnknownServerCa),
                CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
                    Some(TlsMistake::WrongServerName)
                }
                CertificateError::Expired
                | CertificateError::ExpiredContext { .. }
                | CertificateError::NotValidYet
                | CertificateError::NotValidYetContext { .. } => Some(TlsMistake::ServerCertificateDate),
                _ => None,
            },
            rustls::Error::AlertReceived(AlertDescription::CertificateRequired) => {
                Some(TlsMistake::NeedsClientCertificate)
            }
            rustls::Error::AlertReceived(
                AlertDescription::BadCertificate
                | AlertDescription::UnknownCA
                | AlertDescription::CertificateExpired
                | AlertDescription::CertificateUnknown,
            ) => Some(TlsMistake::ClientRejected),
            _ => None,
        }
    }

    /// The first byte of a TLS alert is not a character of an HTTP version. Nor is the banner of an
    /// SSH server.
    fn of_client_http(error: &hyper::Error) -> Option<TlsMistake> {
        let is_binary = error.is_parse() && error.to_string().contains("HTTP version");
        is_binary.then_some(TlsMistake::ServerNeedsTls)
    }

    /// The mistake behind an error of a server's handshake.
    pub fn of_server(error: &io::Error) -> Option<TlsMistake> {
        match error.get_ref()?.downcast_ref::<rustls::Error>()? {
            rustls::Error::InvalidMessage(InvalidMessage::InvalidContentType) => Some(TlsMistake::ClientIsPlain),
            rustls::Error::NoCertificatesPresented => Some(TlsMistake::NoClientCertificate),
            rustls::Error::InvalidCertificate(_) => Some(TlsMistake::ClientCertificate),
            rustls::Error::AlertReceived(
                AlertDescription::UnknownCA | AlertDescription::BadCertificate | AlertDescription::CertificateUnknown,
            ) => Some(TlsMistake::ServerDistrusted),
            rustls::Error::AlertReceived(AlertDescription::CertificateExpired) => {
                Some(TlsMistake::ServerCertificateDate)
            }
            _ => None,
        }
    }

    /// What a client must change. Names the flags of this program's clients.
    pub fn remedy(&self) -> &'static str {
        match self {
            TlsMistake::ServerNeedsTls => {
                "for HTTPS, pass the CA of the server's certificate with --ca FILE or MCCTL_CA; otherwise correct the port"
            }
            TlsMistake::UnknownServerCa => "pass the CA of the server's certificate with --ca FILE or MCCTL_CA",
            TlsMistake::ServerIsPlain => {
                "omit --ca and MCCTL_CA, and write http://, or start the server with --tls-cert"
            }
            TlsMistake::WrongServerName => {
                "use a name or an address that the certificate lists, or issue another certificate"
            }
            TlsMistake::ServerCertificateDate => {
                "renew the server's certificate; the server reads the file again by itself"
            }
            TlsMistake::NeedsClientCertificate | TlsMistake::ClientRejected => {
                "pass a certificate that the server accepts with --client-cert and --client-key"
            }
            TlsMistake::ClientUsesTls => "use http:// in the client, or start this process with --tls-cert",
            TlsMistake::ClientIsPlain => "use https:// and the CA of this server in the client",
            TlsMistake::ServerDistrusted => "give the client the CA that signed --tls-cert",
            TlsMistake::NoClientCertificate | TlsMistake::ClientCertificate => {
                "give the client a certificate that a CA in --client-ca has signed"
            }
        }
    }
}

/// The causes of an error, beginning with itself, with those inside of I/O errors.
pub fn causes<'a>(error: &'a (dyn Error + 'static)) -> impl Iterator<Item = &'a (dyn Error + 'static)> {
    std::iter::successors(Some(error), |&cause| match cause.downcast_ref().and_then(io::Error::get_ref) {
        Some(inner) => Some(inner),
        None => cause.source(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn in_io(error: rustls::Error) -> io::Error {
        io::Error::new(io::ErrorKind::InvalidData, error)
    }

    #[test]
    fn the_mistake_is_found_inside_of_io_errors() {
        let issuer = in_io(rustls::Error::InvalidCertificate(CertificateError::UnknownIssuer));
        assert_eq!(TlsMistake::of_client(&issuer), Some(TlsMistake::UnknownServerCa));
        let plain = in_io(rustls::Error::InvalidMessage(InvalidMessage::InvalidContentType));
        assert_eq!(TlsMistake::of_client(&plain), Some(TlsMistake::ServerIsPlain));
        assert_eq!(TlsMistake::of_server(&plain), Some(TlsMistake::ClientIsPlain));
        let unknown = in_io(rustls::Error::AlertReceived(AlertDescription::UnknownCA));
        assert_eq!(TlsMistake::of_server(&unknown), Some(TlsMistake::ServerDistrusted));
        assert_eq!(TlsMistake::of_server(&io::Error::from(io::ErrorKind::TimedOut)), None);
    }
}
