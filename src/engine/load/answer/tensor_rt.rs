//! TensorRT-LLM's `/v2/models/ensemble/generate_stream`: one piece of text per frame, without token
//! counts.

use serde::Deserialize;
use serde_json::Value;

use crate::answer::ModelAnswer;
use crate::answer::details::error_message;

#[derive(Deserialize)]
struct TensorRtFrame {
    text_output: Option<String>,
    error: Option<Value>,
}

/// Reads a frame, which counts as one token if it contains text. Returns `None` if it is malformed.
pub(super) fn read(data: &[u8], answer: &mut ModelAnswer) -> Option<u32> {
    let frame: TensorRtFrame = serde_json::from_slice(data).ok()?;
    if let Some(error) = frame.error {
        answer.error = Some(error_message(&error));
        return Some(0);
    }
    let text = frame.text_output?;
    answer.text.push_str(&text);
    Some(1)
}
