//! Mooncake's FAST'25 conversation trace, and vLLM's timed traces.

use std::io::Write;

use serde::Serialize;

use crate::args::Options;
use crate::common::{Result, line};
use crate::conversations::{Conversations, Prompt, conversations};

/// A row of Mooncake's format, which vLLM's timed traces use too.
///
/// Source: `FAST25-release/traces` in kvcache-ai/Mooncake, and vllm#39795.
#[derive(Serialize)]
struct MooncakeRow<'a, T> {
    /// Milliseconds; seconds in vLLM's default.
    timestamp: T,
    input_length: u64,
    output_length: u64,
    hash_ids: &'a [u64],
}

pub(crate) fn mooncake(options: &Options, out: &mut impl Write) -> Result<()> {
    let shape = Conversations {
        requests: options.requests.unwrap_or(12_031),
        seconds: 3600.0,
        turns: 1.7,
        mean_input: 12_035.0,
        mean_output: 343.0,
        later: 0.15,
        systems: 40,
        system_tokens: 1_500.0,
        block: if options.kind == "vllm" { 16 } else { 512 },
    };
    conversations(&shape, options, |prompt| {
        let Prompt { at, input, output, ids, .. } = prompt;
        let ms = (at * 1000.0).round();
        if options.kind == "vllm" {
            let timestamp = ms / 1000.0;
            line(out, &MooncakeRow { timestamp, input_length: input, output_length: output, hash_ids: ids })
        } else {
            let timestamp = ms as u64;
            line(out, &MooncakeRow { timestamp, input_length: input, output_length: output, hash_ids: ids })
        }
    })
}
