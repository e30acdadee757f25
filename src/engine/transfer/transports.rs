//! The table of transports. To add one, write a directory with a type that implements
//! `StartTransport`, and add a line to the table.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use crate::TransferError;
use crate::rdma::RdmaTransport;
use crate::tcp::TcpTransport;
use crate::transport::{DataTransport, StartTransport, TransportStart};
use crate::variables::VariableReader;

/// Defines [`TransferProtocol`] and [`TransportSettings`] from lines of the form
/// `Variant, field: Type;`.
macro_rules! transports {
    ($($(#[$doc:meta])* $variant:ident, $field:ident: $transport:ty;)+) => {
        /// The transport that moves the bytes.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum TransferProtocol {
            $($(#[$doc])* $variant,)+
        }

        impl TransferProtocol {
            /// Every protocol, in the order of the table.
            pub const ALL: &[TransferProtocol] = &[$(TransferProtocol::$variant),+];

            /// Returns upstream's name for the protocol.
            pub fn name(self) -> &'static str {
                match self {
                    $(TransferProtocol::$variant => <$transport>::PROTOCOL,)+
                }
            }

            /// Starts this protocol's transport.
            ///
            /// # Errors
            /// See [`StartTransport::start`].
            pub(in crate) fn start(
                self,
                start: &TransportStart<'_>,
                settings: &TransportSettings,
            ) -> Result<Arc<dyn DataTransport>, TransferError> {
                Ok(match self {
                    $(TransferProtocol::$variant => Arc::new(<$transport>::start(start, &settings.$field)?),)+
                })
            }
        }

        /// The settings of each transport, read from the environment.
        #[derive(Clone, Debug, Default, PartialEq, Eq)]
        pub struct TransportSettings {
            $(pub $field: <$transport as StartTransport>::Settings,)+
        }

        impl TransportSettings {
            pub(in crate) fn read(read: &mut VariableReader<'_>) -> TransportSettings {
                TransportSettings { $($field: <$transport>::read_settings(read),)+ }
            }
        }
    };
}

transports! {
    /// Upstream's TCP transport. Available on every host.
    Tcp, tcp: TcpTransport;
    /// RDMA verbs. Never falls back to TCP unless
    /// [`TransportOptions::allow_tcp_fallback`](crate::TransportOptions) allows it.
    Rdma, rdma: RdmaTransport;
}

impl TransferProtocol {
    /// Returns the names of all protocols, for error messages: `tcp or rdma`.
    pub fn names() -> String {
        let names: Vec<&str> = TransferProtocol::ALL.iter().map(|protocol| protocol.name()).collect();
        match names.split_last() {
            Some((last, [])) => (*last).to_owned(),
            Some((last, others)) => format!("{} or {last}", others.join(", ")),
            None => String::new(),
        }
    }
}

impl FromStr for TransferProtocol {
    type Err = TransferError;
    fn from_str(text: &str) -> Result<TransferProtocol, TransferError> {
        let found = TransferProtocol::ALL.iter().find(|protocol| protocol.name() == text);
        let unknown = || TransferError::Protocol { protocol: text.to_owned(), known: TransferProtocol::names() };
        found.copied().ok_or_else(unknown)
    }
}

impl fmt::Display for TransferProtocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_protocol_is_parsed_from_its_name() {
        for protocol in TransferProtocol::ALL {
            assert_eq!(protocol.name().parse::<TransferProtocol>().unwrap(), *protocol);
        }
        let unknown = "efa".parse::<TransferProtocol>().unwrap_err();
        assert_eq!(unknown.to_string(), "protocol 'efa' is not supported; use tcp or rdma");
    }
}
