//! Responses of the REST API, as JSON.

use bytes::Bytes;
use serde::Serialize;

use mcctl_net::http::{Response, StatusCode, answer};

const JSON: &str = "application/json; charset=utf-8";
/// The message from upstream's JSON parser for a body that does not start with a value.
pub(crate) const NO_JSON: &str = "Expecting value: line 1 column 1 (char 0)";
pub(crate) const BROKEN: StatusCode = StatusCode::INTERNAL_SERVER_ERROR;

/// The response for a failed call.
pub(crate) fn failure(status: StatusCode, error: &str, reason: Option<&str>) -> Response {
    json(status, &FailureAnswer { error, reason })
}

/// Serializes JSON like Python, with a space after `:` and `,`. Scripts may depend on this.
pub(crate) fn json(status: StatusCode, body: &impl Serialize) -> Response {
    let mut text = Vec::new();
    body.serialize(&mut serde_json::Serializer::with_formatter(&mut text, PythonFormatter))
        .expect("structs and strings can always be serialized as JSON");
    answer(status, JSON, Bytes::from(text))
}

#[derive(Serialize)]
struct FailureAnswer<'a> {
    error: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<&'a str>,
}

struct PythonFormatter;

impl serde_json::ser::Formatter for PythonFormatter {
    fn begin_array_value<W: ?Sized + std::io::Write>(&mut self, writer: &mut W, first: bool) -> std::io::Result<()> {
        writer.write_all(if first { b"" } else { b", " })
    }

    fn begin_object_key<W: ?Sized + std::io::Write>(&mut self, writer: &mut W, first: bool) -> std::io::Result<()> {
        writer.write_all(if first { b"" } else { b", " })
    }

    fn begin_object_value<W: ?Sized + std::io::Write>(&mut self, writer: &mut W) -> std::io::Result<()> {
        writer.write_all(b": ")
    }
}
