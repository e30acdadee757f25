//! Mooncake's FAST'25 conversation trace, and vLLM's timed traces.

use serde::Serialize;

use crate::args::{Kind, Options};
use crate::common::{Output, Result, line};
use crate::conversations::{Conversations, Prompt, conversations};

pub(crate) const MOONCAKE: Kind = Kind {
    name: "mooncake",
    about: "Mooncake's FAST'25 conversation trace: blocks of 512 tokens, milliseconds",
    requests: 12_031,
    sessions: None,
    generate: mooncake,
};

pub(crate) const VLLM: Kind = Kind {
    name: "vllm",
    about: "timed traces of vllm bench serve: blocks of 16 tokens, seconds",
    requests: 12_031,
    sessions: None,
    generate: vllm,
};

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

fn mooncake(options: &Options, out: &mut Output) -> Result<()> {
    conversations(&shape(options, 512), options, |prompt| {
        let Prompt { at, input, output, ids, .. } = prompt;
        let timestamp = milliseconds(at) as u64;
        line(out, &MooncakeRow { timestamp, input_length: input, output_length: output, hash_ids: ids })
    })
}

fn vllm(options: &Options, out: &mut Output) -> Result<()> {
    conversations(&shape(options, 16), options, |prompt| {
        let Prompt { at, input, output, ids, .. } = prompt;
        let timestamp = milliseconds(at) / 1000.0;
        line(out, &MooncakeRow { timestamp, input_length: input, output_length: output, hash_ids: ids })
    })
}

fn milliseconds(seconds: f64) -> f64 {
    (seconds * 1000.0).round()
}

fn shape(options: &Options, block: u64) -> Conversations {
    Conversations {
        requests: options.requests,
        seconds: 3600.0,
        turns: 1.7,
        mean_input: 12_035.0,
        mean_output: 343.0,
        later: 0.15,
        systems: 40,
        system_tokens: 1_500.0,
        block,
    }
}
