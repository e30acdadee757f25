//! coro_rpc headers: 20 bytes before each request, 16 before each response. All integers are
//! little-endian.
//!
//! Upstream: yalantinglibs `coro_rpc/impl/protocol/coro_rpc_protocol.hpp`, unchanged from 0.5.1 to
//! 0.6.x.

use crate::pack::{self, DecodeError, Text, TypeInfo, Wire};
use mcctl_base::upstream::Release;

/// Size of a request header in bytes.
pub const REQUEST_HEADER_BYTES: usize = 20;
/// Size of a response header in bytes.
pub const RESPONSE_HEADER_BYTES: usize = 16;
/// Maximum size of a request body that a server accepts, in bytes. A batch of 70,000 keys takes
/// 0.7 MB.
pub const REQUEST_BODY_BYTES_MAX: u32 = 64 << 20;
/// Maximum size of a response body that a client accepts, in bytes. This is enough for several
/// million replicas.
pub const RESPONSE_BODY_BYTES_MAX: u32 = 1 << 30;

/// The first byte of every header.
pub const MAGIC: u8 = 21;

/// The header of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestHeader {
    /// Sequence number of the request on its connection. The response contains the same number.
    pub seq: u32,
    /// The method id; see [`crate::method::Method::id`].
    pub function_id: u32,
    /// Size of the body in bytes.
    pub length: u32,
    /// Number of bytes after the body. No Mooncake method uses such bytes; they are read and
    /// discarded.
    pub attachment: u32,
}

/// The header of a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ResponseHeader {
    /// 0 if the body is the method's result.
    pub error: RpcErrc,
    pub seq: u32,
    /// Size of the body in bytes.
    pub length: u32,
    /// Number of bytes after the body.
    pub attachment: u32,
}

pack::wire_number! {
    /// coro_rpc's own error code, in a response header.
    pub struct RpcErrc(u8) {
        OK = 0,
        /// The arguments have the wrong type or are malformed.
        INVALID_RPC_ARGUMENTS = 4,
        RPC_THROW_EXCEPTION = 10,
        FUNCTION_NOT_REGISTERED = 11,
        /// The body exceeds the frame limit.
        MESSAGE_TOO_LARGE = 14,
    }
}

/// A header that the server cannot respond to. Like upstream, this server closes the connection
/// without sending a byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// The peer uses another protocol.
    #[error("byte 0 is {found:#04x}, not coro_rpc's {MAGIC:#04x}: {}", protocol_of(*found))]
    Magic { found: u8 },
    #[error("unsupported coro_rpc version {found}: only 0 is supported")]
    Version { found: u8 },
    #[error("unsupported serialization type {found}: only 0 (struct_pack) is supported")]
    Serialization { found: u8 },
    /// The message exceeds the size limit.
    #[error("a message of {length} bytes exceeds the limit of {limit}")]
    TooLong {
        /// Size of body and attachment in bytes.
        length: u64,
        /// The limit in bytes.
        limit: u32,
    },
}

/// What the first byte of another protocol suggests.
fn protocol_of(first: u8) -> &'static str {
    if first.is_ascii_graphic() {
        "the peer uses a text protocol, such as HTTP"
    } else {
        "the peer does not use this protocol"
    }
}

impl RequestHeader {
    /// Encodes the header in wire format.
    pub fn encode(self) -> [u8; REQUEST_HEADER_BYTES] {
        let mut bytes = [0; REQUEST_HEADER_BYTES];
        bytes[0] = MAGIC;
        bytes[4..8].copy_from_slice(&self.seq.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.function_id.to_le_bytes());
        bytes[12..16].copy_from_slice(&self.length.to_le_bytes());
        bytes[16..20].copy_from_slice(&self.attachment.to_le_bytes());
        bytes
    }

    /// Decodes a header. The message type (byte 3) is ignored, as in upstream.
    ///
    /// # Errors
    /// The header is invalid; the connection must be closed.
    pub fn decode(bytes: &[u8; REQUEST_HEADER_BYTES]) -> Result<RequestHeader, FrameError> {
        if bytes[0] != MAGIC {
            return Err(FrameError::Magic { found: bytes[0] });
        }
        if bytes[1] != 0 {
            return Err(FrameError::Version { found: bytes[1] });
        }
        if bytes[2] != 0 {
            return Err(FrameError::Serialization { found: bytes[2] });
        }
        let header = RequestHeader {
            seq: u32_at(bytes, 4),
            function_id: u32_at(bytes, 8),
            length: u32_at(bytes, 12),
            attachment: u32_at(bytes, 16),
        };
        let length = u64::from(header.length) + u64::from(header.attachment);
        if length > u64::from(REQUEST_BODY_BYTES_MAX) {
            return Err(FrameError::TooLong { length, limit: REQUEST_BODY_BYTES_MAX });
        }
        Ok(header)
    }
}

impl ResponseHeader {
    /// Encodes the header in wire format.
    pub fn encode(self) -> [u8; RESPONSE_HEADER_BYTES] {
        let mut bytes = [0; RESPONSE_HEADER_BYTES];
        bytes[0] = MAGIC;
        bytes[2] = self.error.0;
        bytes[4..8].copy_from_slice(&self.seq.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.length.to_le_bytes());
        bytes[12..16].copy_from_slice(&self.attachment.to_le_bytes());
        bytes
    }

    /// Decodes a header.
    ///
    /// # Errors
    /// The header is invalid; the connection must be closed.
    pub fn decode(bytes: &[u8; RESPONSE_HEADER_BYTES]) -> Result<ResponseHeader, FrameError> {
        if bytes[0] != MAGIC {
            return Err(FrameError::Magic { found: bytes[0] });
        }
        if bytes[1] != 0 {
            return Err(FrameError::Version { found: bytes[1] });
        }
        let header = ResponseHeader {
            error: RpcErrc(bytes[2]),
            seq: u32_at(bytes, 4),
            length: u32_at(bytes, 8),
            attachment: u32_at(bytes, 12),
        };
        let length = u64::from(header.length) + u64::from(header.attachment);
        if length > u64::from(RESPONSE_BODY_BYTES_MAX) {
            return Err(FrameError::TooLong { length, limit: RESPONSE_BODY_BYTES_MAX });
        }
        Ok(header)
    }
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    let mut word = [0; 4];
    word.copy_from_slice(&bytes[at..at + 4]);
    u32::from_le_bytes(word)
}

/// Appends a complete response frame whose body is written by `body`, and returns what `body`
/// returns.
///
/// # Errors
/// The error from `body`. In this case, nothing is appended.
pub fn put_response<T, E>(
    out: &mut Vec<u8>,
    seq: u32,
    body: impl FnOnce(&mut Vec<u8>) -> Result<T, E>,
) -> Result<T, E> {
    let start = out.len();
    out.extend_from_slice(&[0; RESPONSE_HEADER_BYTES]);
    let written = body(out);
    let length = match u32::try_from(out.len() - start - RESPONSE_HEADER_BYTES) {
        Ok(length) if written.is_ok() && length <= RESPONSE_BODY_BYTES_MAX => length,
        _ => {
            out.truncate(start);
            if written.is_ok() {
                put_error(out, seq, RpcErrc::MESSAGE_TOO_LARGE, "the response exceeds the frame limit");
            }
            return written;
        }
    };
    let header = ResponseHeader { error: RpcErrc::OK, seq, length, attachment: 0 };
    out[start..start + RESPONSE_HEADER_BYTES].copy_from_slice(&header.encode());
    written
}

/// Appends a complete response frame for a failed call. The message includes its type literal, so
/// it is byte-for-byte identical to the message that upstream's release builds send.
pub fn put_error(out: &mut Vec<u8>, seq: u32, error: RpcErrc, message: &str) {
    let mut body = Vec::with_capacity(message.len() + 16);
    let text = Text::from(message);
    pack::encode(&mut body, message_type(), true, text.longest(), |packer| text.put(packer));
    let length = u32::try_from(body.len()).expect("an error message is short");
    out.extend_from_slice(&ResponseHeader { error, seq, length, attachment: 0 }.encode());
    out.extend_from_slice(&body);
}

/// Decodes the message in an error response.
///
/// # Errors
/// The body is not a string.
pub fn error_message(body: &[u8]) -> Result<Text<'_>, DecodeError> {
    pack::decode(body, message_type())
}

fn message_type() -> &'static TypeInfo {
    static TYPE: std::sync::OnceLock<TypeInfo> = std::sync::OnceLock::new();
    TYPE.get_or_init(|| TypeInfo::from_parts(Release::LATEST, &[<Text<'_> as Wire>::literal]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_function_gets_upstreams_response_bytes() {
        let mut out = Vec::new();
        put_error(&mut out, 7, RpcErrc::FUNCTION_NOT_REGISTERED, "the rpc function not registered");
        let hex: String = out.iter().map(|b| format!("{b:02x}")).collect();
        let header = "15000b00070000002800000000000000";
        let body = "77facf9d04800c001f746865207270632066756e6374696f6e206e6f742072656769737465726564";
        assert_eq!(hex, [header, body].concat());
        assert_eq!(error_message(&out[16..]), Ok(Text::from("the rpc function not registered")));
    }

    #[test]
    fn headers_round_trip() {
        let request = RequestHeader { seq: 0xdead_beef, function_id: 0x7b81_bb56, length: 3, attachment: 9 };
        assert_eq!(RequestHeader::decode(&request.encode()), Ok(request));
        let response = ResponseHeader { error: RpcErrc(200), seq: 1, length: 2, attachment: 0 };
        assert_eq!(ResponseHeader::decode(&response.encode()), Ok(response));
    }

    #[test]
    fn a_request_over_the_limit_is_refused_before_its_body_is_read() {
        let header = RequestHeader { seq: 0, function_id: 0, length: REQUEST_BODY_BYTES_MAX, attachment: 1 };
        assert!(matches!(RequestHeader::decode(&header.encode()), Err(FrameError::TooLong { .. })));
    }

    #[test]
    fn http_on_the_rpc_port_is_reported_as_such() {
        let mut bytes = [0; REQUEST_HEADER_BYTES];
        bytes[..4].copy_from_slice(b"GET ");
        let error = RequestHeader::decode(&bytes).expect_err("not a frame").to_string();
        assert!(error.contains("HTTP"), "{error}");
    }
}
