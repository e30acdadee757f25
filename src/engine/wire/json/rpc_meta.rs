//! The `rpc_meta/<name>` record: the address of a server's handshake port.

use serde_json::json;

use crate::json::{DocumentError, JsonCursor, parse};
use mcctl_base::HostPort;

/// The address of a server's handshake port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RpcMeta(pub HostPort);

impl RpcMeta {
    /// Encodes the record as upstream does: `{"ip_or_host_name":"127.0.0.1","rpc_port":15658}`,
    /// with IPv6 addresses without brackets.
    pub fn to_json(&self) -> String {
        json!({ "ip_or_host_name": self.0.host, "rpc_port": self.0.port }).to_string()
    }

    /// Decodes a record.
    ///
    /// # Errors
    /// The input is not a JSON object, or the host or port is missing.
    pub fn from_json(text: &[u8]) -> Result<RpcMeta, DocumentError> {
        let value = parse("the rpc_meta record", text)?;
        let root = JsonCursor::root("the rpc_meta record", &value)?;
        let port = root.member("rpc_port");
        let number = u16::try_from(port.some_number()?).map_err(|_| port.problem("is not a valid port"))?;
        Ok(RpcMeta(HostPort::new(root.member("ip_or_host_name").some_text()?, number)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_matches_a_captured_one_and_round_trips() {
        // Captured from a PUT request of a 0.3.13 engine.
        let captured = r#"{"ip_or_host_name":"127.0.0.1","rpc_port":15658}"#;
        let meta = RpcMeta(HostPort::new("127.0.0.1", 15658));
        assert_eq!(meta.to_json(), captured);
        assert_eq!(RpcMeta::from_json(captured.as_bytes()), Ok(meta));
    }

    #[test]
    fn a_record_without_host_or_port_is_refused_with_the_field() {
        for (bad, field) in [
            ("{}", "rpc_port"),
            (r#"{"rpc_port":1}"#, "ip_or_host_name"),
            (r#"{"rpc_port":70000,"ip_or_host_name":"a"}"#, "rpc_port"),
            (r#"{"rpc_port":"1"}"#, "rpc_port"),
            ("[]", "the document"),
        ] {
            let error = RpcMeta::from_json(bad.as_bytes()).unwrap_err();
            assert!(matches!(&error, DocumentError::Field { path, .. } if path == field), "{field}: {error}");
        }
        assert!(matches!(RpcMeta::from_json(b"x"), Err(DocumentError::NotJson { line: 1, column: 1, .. })));
    }
}
