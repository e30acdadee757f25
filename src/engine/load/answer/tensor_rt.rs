//! TensorRT-LLM's `/v2/models/ensemble/generate_stream`: a text a frame, and no counts.

use serde::Deserialize;
use serde_json::Value;

use crate::engine::load::answer::{Answer, openai};

#[derive(Deserialize)]
struct Frame {
    text_output: Option<String>,
    error: Option<Value>,
}

/// Read a frame: a token came with it if it has a text; `None` for what is not a frame.
pub(super) fn read(data: &[u8], answer: &mut Answer) -> Option<u32> {
    let frame: Frame = serde_json::from_slice(data).ok()?;
    if let Some(error) = frame.error {
        answer.error = Some(openai::message(&error));
        return Some(0);
    }
    let text = frame.text_output?;
    answer.text.push_str(&text);
    Some(1)
}
