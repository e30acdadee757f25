//! RPC client and server over loopback sockets and a simulated network.

mod leader;
mod long_calls;
mod loopback;
mod sim;

use mcctl::engine::rpc::{Receipt, RpcCall, RpcService};
use mcctl::engine::wire::pack::{self, DecodeError, Text, TextBuf, Wire};
use mcctl::engine::wire::{Expected, Method};

/// Answers `ServiceReady` with a fixed text and fails to decode all other requests.
pub struct Ready(pub &'static str);

impl RpcService for Ready {
    fn answer(&self, call: RpcCall<'_>, out: &mut Vec<u8>) -> Result<Receipt, DecodeError> {
        let RpcCall { method, layout, body, .. } = call;
        if method != Method::ServiceReady {
            let text = pack::TypeInfo::of::<TextBuf>(layout.release());
            return pack::decode::<Text<'_>>(body, &text).map(|_| Receipt::default());
        }
        let answer: Expected<TextBuf> = Ok(TextBuf::from(self.0));
        pack::encode(out, layout.response(), false, answer.longest(), |packer| answer.put(packer));
        Ok(Receipt::default())
    }
}
