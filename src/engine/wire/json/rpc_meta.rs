//! `rpc_meta/<name>`: where a server's handshake port is.

use serde_json::json;

use crate::engine::base::HostPort;
use crate::engine::wire::json::{At, DocumentError, parse};

/// Where a server's handshake port is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RpcMeta(pub HostPort);

impl RpcMeta {
    /// As upstream writes it: `{"ip_or_host_name":"127.0.0.1","rpc_port":15658}`, an IPv6 address without brackets.
    pub fn to_json(&self) -> String {
        json!({ "ip_or_host_name": self.0.host, "rpc_port": self.0.port }).to_string()
    }

    /// Read one.
    ///
    /// # Errors
    /// No JSON object, or host or port is missing.
    pub fn from_json(text: &[u8]) -> Result<RpcMeta, DocumentError> {
        let value = parse("the rpc_meta record", text)?;
        let root = At::root("the rpc_meta record", &value)?;
        let port = root.member("rpc_port");
        let number = u16::try_from(port.some_number()?).map_err(|_| port.problem("is not a port"))?;
        Ok(RpcMeta(HostPort::new(root.member("ip_or_host_name").some_text()?, number)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_written_as_the_real_engine_writes_it_and_reads_back() {
        // What a 0.3.13 engine PUT.
        let captured = r#"{"ip_or_host_name":"127.0.0.1","rpc_port":15658}"#;
        let meta = RpcMeta(HostPort::new("127.0.0.1", 15658));
        assert_eq!(meta.to_json(), captured);
        assert_eq!(RpcMeta::from_json(captured.as_bytes()), Ok(meta));
    }

    #[test]
    fn a_record_without_host_or_port_is_refused_with_the_field() {
        for (bad, text) in [
            ("{}", "the rpc_meta record: rpc_port is missing or zero"),
            (r#"{"rpc_port":1}"#, "the rpc_meta record: ip_or_host_name is missing or empty"),
            (r#"{"rpc_port":70000,"ip_or_host_name":"a"}"#, "the rpc_meta record: rpc_port is not a port"),
            (r#"{"rpc_port":"1"}"#, "the rpc_meta record: rpc_port is not a number"),
            ("[]", "the rpc_meta record: the document is not an object"),
            ("x", "the rpc_meta record is not JSON (line 1, column 1)"),
        ] {
            assert_eq!(RpcMeta::from_json(bad.as_bytes()).unwrap_err().to_string(), text);
        }
    }
}
