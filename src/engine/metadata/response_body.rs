//! Reads the body of a metadata service's response.

use bytes::{Bytes, BytesMut};

/// Returns the rest of the body; `None` if it is longer than `bytes_max` bytes.
///
/// # Errors
/// The connection broke, or the time limit passed.
pub(crate) async fn read(response: &mut reqwest::Response, bytes_max: usize) -> Result<Option<Bytes>, reqwest::Error> {
    let mut body = BytesMut::new();
    while let Some(chunk) = response.chunk().await? {
        if body.len() + chunk.len() > bytes_max {
            return Ok(None);
        }
        body.extend_from_slice(&chunk);
    }
    Ok(Some(body.freeze()))
}
