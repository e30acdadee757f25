//! The RPC shell: real sockets on loopback, and a simulated network.

mod apart;
mod shell;
mod sim;

use mcctl::engine::rpc::Service;
use mcctl::engine::wire::pack::{self, DecodeError, Text, TextBuf, Wire};
use mcctl::engine::wire::{Expected, Method};

/// Answers `ServiceReady` with a fixed text, and refuses the arguments of everything else.
pub struct Ready(pub &'static str);

impl Service for Ready {
    fn answer(&self, _peer: &str, method: Method, body: &[u8], out: &mut Vec<u8>) -> Result<(), DecodeError> {
        if method != Method::ServiceReady {
            return pack::decode::<Text<'_>>(body, &pack::TypeInfo::of::<TextBuf>()).map(drop);
        }
        let answer: Expected<TextBuf> = Ok(TextBuf::from(self.0));
        pack::encode(out, method.response_type(), false, answer.longest(), |packer| answer.put(packer));
        Ok(())
    }
}
