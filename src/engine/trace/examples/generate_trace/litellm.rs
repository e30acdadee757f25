//! LiteLLM's spend logs.

use serde::Serialize;

use crate::args::{Kind, Options};
use crate::common::{Output, Result, START_MS, line, mix, timestamp};
use crate::conversations::{Conversations, conversations};

pub(crate) const LITELLM: Kind = Kind {
    name: "litellm",
    about: "spend logs of LiteLLM: chained hashes of blocks of 512 tokens",
    requests: 10_000,
    sessions: None,
    generate,
};

/// The fields of a LiteLLM spend log that describe a request's load.
///
/// Source: the documentation of the `prefix_block_hashes` callback (LiteLLM 1.111). Its nesting in
/// the row's metadata was not verified against the program.
#[derive(Serialize)]
struct SpendLog {
    request_id: String,
    call_type: &'static str,
    model: &'static str,
    #[serde(rename = "startTime")]
    start_time: String,
    #[serde(rename = "endTime")]
    end_time: String,
    prompt_tokens: u64,
    completion_tokens: u64,
    total_tokens: u64,
    session_id: String,
    status: &'static str,
    metadata: SpendMetadata,
}

#[derive(Serialize)]
struct SpendMetadata {
    prefix_block_hashes: Vec<String>,
}

fn generate(options: &Options, out: &mut Output) -> Result<()> {
    let shape = Conversations {
        requests: options.requests,
        seconds: 3600.0,
        turns: 3.0,
        mean_input: 6_000.0,
        mean_output: 350.0,
        later: 0.3,
        systems: 30,
        system_tokens: 1_200.0,
        block: 512,
    };
    let mut number = 0;
    conversations(&shape, options, |prompt| {
        number += 1;
        let start = START_MS + (prompt.at * 1000.0) as u64;
        line(
            out,
            &SpendLog {
                request_id: format!("chatcmpl-{:016x}", mix(options.seed.wrapping_add(number << 16))),
                call_type: "acompletion",
                model: "openai/example",
                start_time: timestamp(start),
                end_time: timestamp(start + 300 + prompt.output * 20),
                prompt_tokens: prompt.input,
                completion_tokens: prompt.output,
                total_tokens: prompt.input + prompt.output,
                session_id: format!("{:016x}", mix(!options.seed ^ prompt.conversation as u64)),
                status: "success",
                metadata: SpendMetadata {
                    prefix_block_hashes: prompt
                        .ids
                        .iter()
                        .map(|id| format!("{:016x}", mix(options.seed ^ id << 8)))
                        .collect(),
                },
            },
        )
    })
}
