//! The Qwen (Bailian) usage traces.

use std::collections::HashMap;

use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde::Serialize;

use crate::args::{Kind, Options};
use crate::common::{Output, Result, line};
use crate::conversations::{Conversations, conversations};

pub(crate) const BAILIAN: Kind = Kind {
    name: "bailian",
    about: "usage traces of Qwen (Bailian): blocks of 16 tokens, hashes not chained",
    requests: 20_000,
    sessions: None,
    generate,
};

/// A row of the Qwen (Bailian) usage traces.
///
/// Source: alibaba-edu/qwen-bailian-usagetraces-anon. The hash of a block depends on its content
/// only: the same id can follow different prefixes.
#[derive(Serialize)]
struct BailianRow<'a> {
    chat_id: u64,
    parent_chat_id: i64,
    timestamp: f64,
    input_length: u64,
    output_length: u64,
    r#type: &'static str,
    turn: u32,
    hash_ids: &'a [u64],
}

/// Ids of content that several conversations contain after different prefixes.
const COMMON_CONTENT: u64 = 1 << 40;

fn generate(options: &Options, out: &mut Output) -> Result<()> {
    let shape = Conversations {
        requests: options.requests,
        seconds: 7200.0,
        turns: 2.2,
        mean_input: 2_300.0,
        mean_output: 400.0,
        later: 0.4,
        systems: 200,
        system_tokens: 300.0,
        block: 16,
    };
    let rng = &mut ChaCha8Rng::seed_from_u64(!options.seed);
    let mut chats = 0;
    // By conversation: the chat id of its last turn, its type and its common content.
    let mut open: HashMap<usize, (u64, &'static str, Option<u64>)> = HashMap::new();
    conversations(&shape, options, |prompt| {
        let chat_id = chats;
        chats += 1;
        let (parent, kind, common) = match open.get(&prompt.conversation) {
            Some(&(parent, kind, common)) => (parent as i64, kind, common),
            None => {
                let kind = *["text", "text", "text", "text", "search", "image", "file"].choose(rng).unwrap_or(&"text");
                (-1, kind, rng.random_bool(0.06).then(|| rng.random_range(0..20)))
            }
        };
        open.insert(prompt.conversation, (chat_id, kind, common));
        let mut ids = prompt.ids.to_vec();
        // Eight blocks in the middle of the first turn, for all turns of the conversation.
        let shared = options.tokens(shape.system_tokens).div_ceil(shape.block) as usize + 4;
        if let Some(common) = common {
            for (index, id) in ids.iter_mut().enumerate().skip(shared).take(8) {
                *id = COMMON_CONTENT + common * 8 + (index - shared) as u64;
            }
        }
        line(
            out,
            &BailianRow {
                chat_id,
                parent_chat_id: parent,
                timestamp: (prompt.at * 1000.0).round() / 1000.0,
                input_length: prompt.input,
                output_length: prompt.output,
                r#type: kind,
                turn: prompt.turn + 1,
                hash_ids: &ids,
            },
        )
    })
}
