//! RPC client and server over loopback sockets and a simulated network.

mod leader;
mod long_calls;
mod loopback;
mod sim;

use mcctl::engine::rpc::{Receipt, RpcService};
use mcctl::engine::wire::pack::{self, DecodeError, Text, TextBuf, Wire};
use mcctl::engine::wire::{Expected, Method};

/// Answers `ServiceReady` with a fixed text and fails to decode all other requests.
pub struct Ready(pub &'static str);

impl RpcService for Ready {
    fn answer(&self, _peer: &str, method: Method, body: &[u8], out: &mut Vec<u8>) -> Result<Receipt, DecodeError> {
        if method != Method::ServiceReady {
            return pack::decode::<Text<'_>>(body, &pack::TypeInfo::of::<TextBuf>()).map(|_| Receipt::default());
        }
        let answer: Expected<TextBuf> = Ok(TextBuf::from(self.0));
        pack::encode(out, method.response_type(), false, answer.longest(), |packer| answer.put(packer));
        Ok(Receipt::default())
    }
}
