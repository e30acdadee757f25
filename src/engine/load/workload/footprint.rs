//! Estimates how many tokens a workload sends, from a sample of its conversations.

use crate::workload::{LoadWorkload, TurnPrompt};
use crate::{ModelAnswer, Turn};

/// Conversations in the sample.
const SAMPLE: usize = 32;
/// Bytes of text per token, for prompts that are not token IDs.
const BYTES_PER_TOKEN: f64 = 4.0;

/// The average conversation of a workload. Text is estimated at four bytes per token.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Footprint {
    pub conversations: u32,
    /// Number of requests in a conversation.
    pub turns: f64,
    /// Tokens of a prompt, over all turns.
    pub prompt: f64,
    /// Maximum output tokens of a request, over all turns.
    pub output: f64,
    /// Tokens of a conversation after its last response, including a shared prompt.
    pub context: f64,
    /// Tokens of all shared prompts together, and their number.
    pub shared: (f64, u32),
}

fn tokens(prompt: &TurnPrompt) -> f64 {
    match prompt {
        TurnPrompt::Ids(ids) => ids.len() as f64,
        TurnPrompt::Text(text) => text.len() as f64 / BYTES_PER_TOKEN,
        TurnPrompt::Messages(messages) => {
            messages.iter().map(|message| message.text().len() as f64).sum::<f64>() / BYTES_PER_TOKEN
        }
    }
}

impl Footprint {
    /// Builds some conversations of `workload` with responses of the maximum length. Afterwards,
    /// they start from the beginning again.
    pub fn of(workload: &mut dyn LoadWorkload) -> Footprint {
        let scripts = workload.scripts();
        let step = scripts.len().div_ceil(SAMPLE).max(1);
        let mut sampled = 0.0;
        let mut requests = 0.0;
        let mut prompts = 0.0;
        let mut outputs = 0.0;
        let mut contexts = 0.0;
        for (conversation, script) in scripts.iter().enumerate().step_by(step) {
            let mut context = 0.0;
            let mut last = None;
            for index in 0..script.turns {
                let turn = Turn { conversation: conversation as u32, index };
                let request = workload.request(turn);
                let prompt = tokens(&request.prompt);
                context = prompt + f64::from(request.max_tokens);
                requests += 1.0;
                prompts += prompt;
                outputs += f64::from(request.max_tokens);
                let answer = ModelAnswer {
                    text: "word".repeat(request.max_tokens as usize),
                    output_ids: vec![1; request.max_tokens as usize],
                    ..ModelAnswer::default()
                };
                workload.on_response(turn, &answer);
                last = Some(turn);
            }
            if let Some(turn) = last {
                workload.on_conversation_end(turn);
            }
            sampled += 1.0;
            contexts += context;
        }
        let shared = workload.shared();
        let mean = |sum: f64, count: f64| if count > 0.0 { sum / count } else { 0.0 };
        Footprint {
            conversations: scripts.len() as u32,
            turns: scripts.iter().map(|script| f64::from(script.turns)).sum::<f64>() / (scripts.len().max(1) as f64),
            prompt: mean(prompts, requests),
            output: mean(outputs, requests),
            context: mean(contexts, sampled),
            shared: (shared.iter().map(tokens).sum(), shared.len() as u32),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::{Synthetic, SyntheticPrompt};
    use crate::{Distribution, Seed};

    fn constant(value: f64) -> Distribution {
        Distribution::Constant(value)
    }

    #[test]
    fn lengths_of_token_ids_are_exact_and_conversations_start_again() {
        let mut made = Synthetic::new(100, constant(5.0), constant(512.0), constant(64.0), Seed(1));
        let before = made.clone().request(Turn { conversation: 0, index: 0 });
        let found = Footprint::of(&mut made);
        assert_eq!((found.conversations, found.turns, found.context), (100, 5.0, 2880.0));
        assert_eq!((found.prompt, found.output, found.shared), (1664.0, 64.0, (0.0, 0)));
        assert_eq!(made.request(Turn { conversation: 0, index: 0 }), before);
        made.on_conversation_end(Turn { conversation: 0, index: 0 });
        made.groups = 2;
        made.system = constant(100.0);
        let found = Footprint::of(&mut made);
        assert_eq!((found.context, found.shared), (2980.0, (200.0, 2)));
    }

    #[test]
    fn text_is_estimated() {
        for words in [SyntheticPrompt::Text, SyntheticPrompt::Chat] {
            let mut made = Synthetic::new(3, constant(2.0), constant(100.0), constant(10.0), Seed(1));
            made.words = words;
            let found = Footprint::of(&mut made);
            assert!((150.0..500.0).contains(&found.context), "{found:?}");
        }
        let mut none = Synthetic::new(0, constant(2.0), constant(100.0), constant(10.0), Seed(1));
        assert_eq!(Footprint::of(&mut none), Footprint::default());
    }
}
