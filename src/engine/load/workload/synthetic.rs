//! Generated conversations with specified lengths.

use std::fmt;
use std::sync::Arc;

use rand::Rng;
use rand_chacha::ChaCha8Rng;

use crate::workload::dataset::Corpus;
use crate::workload::{ChatMessage, ChatRole, LoadWorkload, TextGenerator, Tokenizer, TurnPrompt, TurnRequest};
use crate::{Distribution, ModelAnswer, Script, Seed, Turn};

/// Prompt form for synthetic conversations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SyntheticPrompt {
    /// Token IDs from 1 to `vocabulary` (exclusive). Lengths are exact.
    Ids {
        /// Size of the vocabulary.
        vocabulary: u32,
    },
    /// English-like words as a single text. A word is one to three tokens in most vocabularies, so
    /// lengths in tokens are approximate.
    Text,
    /// The same words, as chat messages.
    Chat,
}

/// Parameters for synthetic conversations. Lengths are in tokens, or in words if
/// [`SyntheticPrompt`] is text.
#[derive(Clone, Debug)]
pub struct Synthetic {
    pub conversations: u32,
    pub turns: Distribution,
    pub first: Distribution,
    pub next: Distribution,
    pub output: Distribution,
    /// Think time in seconds between a response and the next question.
    pub think: Distribution,
    /// Number of shared system prompts. Zero means no system prompts.
    pub groups: u32,
    /// Length of each system prompt.
    pub system: Distribution,
    pub words: SyntheticPrompt,
    /// Seed for all random choices.
    pub seed: Seed,
    /// If set, generated text has exactly the requested number of tokens.
    pub tokenizer: Option<Arc<Tokenizer>>,
    /// If set, questions are cut from the documents in this corpus.
    pub corpus: Option<Arc<Corpus>>,
    open: Vec<Option<OpenConversation>>,
}

/// A conversation that has started.
#[derive(Clone, Debug)]
struct OpenConversation {
    rng: ChaCha8Rng,
    history: TurnPrompt,
    /// Length of the system prompt.
    system: u32,
}

impl Synthetic {
    /// Creates `conversations` conversations of `turns` turns, with questions of length `length`
    /// and outputs of length `output`. Other fields can be set afterwards.
    pub fn new(
        conversations: u32,
        turns: Distribution,
        length: Distribution,
        output: Distribution,
        seed: Seed,
    ) -> Synthetic {
        Synthetic {
            conversations,
            turns,
            first: length,
            next: length,
            output,
            think: Distribution::Constant(0.0),
            groups: 0,
            system: Distribution::Constant(0.0),
            words: SyntheticPrompt::Ids { vocabulary: 32_000 },
            seed,
            tokenizer: None,
            corpus: None,
            open: Vec::new(),
        }
    }

    /// Appends a message from `role` with `length` tokens or words to `history`.
    fn append(&self, history: &mut TurnPrompt, role: ChatRole, length: u32, rng: &mut ChaCha8Rng) {
        let vocabulary = match self.words {
            SyntheticPrompt::Ids { vocabulary } => vocabulary.max(2),
            SyntheticPrompt::Text | SyntheticPrompt::Chat => 2,
        };
        let corpus = self.corpus.as_deref().map(|corpus| corpus.cut(length, rng));
        let text = |rng: &mut ChaCha8Rng| {
            let mut text = String::new();
            match (&corpus, &self.tokenizer) {
                (Some(ids), Some(tokenizer)) => text = tokenizer.text(ids).unwrap_or_default(),
                _ => {
                    let generator = TextGenerator { seed: self.seed, vocabulary, tokenizer: self.tokenizer.clone() };
                    generator.sentence(length, rng, &mut text);
                }
            }
            text
        };
        match history {
            TurnPrompt::Ids(ids) => match &corpus {
                Some(cut) => ids.extend_from_slice(cut),
                None => ids.extend((0..length).map(|_| rng.random_range(1..vocabulary))),
            },
            TurnPrompt::Text(prompt) => prompt.push_str(&text(rng)),
            TurnPrompt::Messages(messages) => messages.push(ChatMessage::new(role, &text(rng))),
        }
    }

    fn empty(&self) -> TurnPrompt {
        match self.words {
            SyntheticPrompt::Ids { .. } => TurnPrompt::Ids(Vec::new()),
            SyntheticPrompt::Text => TurnPrompt::Text(String::new()),
            SyntheticPrompt::Chat => TurnPrompt::Messages(Vec::new()),
        }
    }

    fn begin(&self, conversation: u32) -> OpenConversation {
        let rng = self.seed.generator("words", u64::from(conversation));
        let mut history = self.empty();
        let mut system = 0;
        if self.groups > 0 {
            let mut shared = self.seed.generator("system", u64::from(conversation % self.groups));
            system = self.system.draw_count(&mut shared, 1);
            self.append(&mut history, ChatRole::System, system, &mut shared);
        }
        OpenConversation { rng, history, system }
    }
}

impl LoadWorkload for Synthetic {
    fn fingerprint(&self, to: &mut dyn fmt::Write) -> fmt::Result {
        if let Some(tokenizer) = &self.tokenizer {
            writeln!(to, "tokenizer {}", tokenizer.digest())?;
        }
        match &self.corpus {
            Some(corpus) => writeln!(to, "{corpus:?}"),
            None => Ok(()),
        }
    }

    fn scripts(&self) -> Vec<Script> {
        let script = |conversation| {
            let mut rng = self.seed.generator("scripts", u64::from(conversation));
            let turns = self.turns.draw_count(&mut rng, 1);
            let think = (1..turns).map(|_| std::time::Duration::from_secs_f64(self.think.draw(&mut rng).min(1e6)));
            Script { turns, think: think.collect(), ..Script::default() }
        };
        (0..self.conversations).map(script).collect()
    }

    fn request(&mut self, turn: Turn) -> TurnRequest {
        let at = turn.conversation as usize;
        if self.open.len() <= at {
            self.open.resize(at + 1, None);
        }
        let mut conversation = self.open[at].take().unwrap_or_else(|| self.begin(turn.conversation));
        let length = if turn.index == 0 { self.first } else { self.next };
        let length = length.draw_count(&mut conversation.rng, 1);
        let system = if turn.index == 0 { conversation.system } else { 0 };
        let OpenConversation { rng, history, .. } = &mut conversation;
        self.append(history, ChatRole::User, length, rng);
        let max_tokens = self.output.draw_count(&mut conversation.rng, 1);
        let prompt = conversation.history.clone();
        self.open[at] = Some(conversation);
        TurnRequest { own_tokens: Some(system.saturating_add(length)), ..TurnRequest::new(prompt, max_tokens) }
    }

    fn on_response(&mut self, turn: Turn, answer: &ModelAnswer) {
        let Some(Some(conversation)) = self.open.get_mut(turn.conversation as usize) else { return };
        match &mut conversation.history {
            TurnPrompt::Ids(ids) => ids.extend_from_slice(&answer.output_ids),
            TurnPrompt::Text(text) => text.push_str(&answer.text),
            TurnPrompt::Messages(messages) => {
                messages.push(ChatMessage::new(ChatRole::Assistant, &answer.text));
            }
        }
    }

    fn shared(&self) -> Vec<TurnPrompt> {
        let one = |group| {
            let mut shared = self.seed.generator("system", u64::from(group));
            let length = self.system.draw_count(&mut shared, 1);
            let mut prompt = self.empty();
            self.append(&mut prompt, ChatRole::System, length, &mut shared);
            prompt
        };
        (0..self.groups).map(one).collect()
    }

    fn on_conversation_end(&mut self, turn: Turn) {
        if let Some(conversation) = self.open.get_mut(turn.conversation as usize) {
            *conversation = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::tokenizer::tests::small;

    fn constant(value: f64) -> Distribution {
        Distribution::Constant(value)
    }

    fn two_turns(words: SyntheticPrompt, seed: u64) -> Synthetic {
        let mut made = Synthetic::new(3, constant(2.0), constant(8.0), constant(4.0), Seed(seed));
        made.words = words;
        made.groups = 2;
        made.system = constant(5.0);
        made.next = constant(3.0);
        made
    }

    fn turn(conversation: u32, index: u32) -> Turn {
        Turn { conversation, index }
    }

    fn ids(ask: TurnRequest) -> Vec<u32> {
        match ask.prompt {
            TurnPrompt::Ids(ids) => ids,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn lengths_are_exact_and_turns_begin_with_their_history() {
        let mut made = two_turns(SyntheticPrompt::Ids { vocabulary: 100 }, 1);
        let first = ids(made.request(turn(0, 0)));
        assert_eq!(first.len(), 5 + 8);
        made.on_response(turn(0, 0), &ModelAnswer { output_ids: vec![7, 7, 7, 7], ..ModelAnswer::default() });
        let second = made.request(turn(0, 1));
        assert_eq!(second.max_tokens, 4);
        let second = ids(second);
        assert_eq!(second.len(), 13 + 4 + 3);
        assert_eq!((&second[..13], &second[13..17]), (&first[..], &[7; 4][..]));
        assert!(second.iter().all(|id| (1..100).contains(id)));
    }

    #[test]
    fn conversations_of_a_group_share_only_their_system_prompt() {
        let mut made = two_turns(SyntheticPrompt::Ids { vocabulary: 30_000 }, 1);
        let prompts: Vec<Vec<u32>> = (0..3).map(|c| ids(made.request(turn(c, 0)))).collect();
        assert_eq!(prompts[0][..5], prompts[2][..5]);
        assert_ne!(prompts[0][..5], prompts[1][..5]);
        assert_ne!(prompts[0][5..], prompts[2][5..]);
    }

    #[test]
    fn conversation_does_not_depend_on_others() {
        let mut one = two_turns(SyntheticPrompt::Chat, 9);
        let mut other = two_turns(SyntheticPrompt::Chat, 9);
        let early = one.request(turn(2, 0));
        other.request(turn(0, 0));
        other.request(turn(1, 0));
        assert_eq!(other.request(turn(2, 0)), early);
        assert_ne!(two_turns(SyntheticPrompt::Chat, 10).request(turn(2, 0)), early);
    }

    #[test]
    fn ended_conversation_restarts_with_the_same_content() {
        let mut made = two_turns(SyntheticPrompt::Chat, 1);
        let first = made.request(turn(1, 0));
        made.on_response(turn(1, 0), &ModelAnswer { text: "well".to_owned(), ..ModelAnswer::default() });
        made.on_conversation_end(turn(1, 0));
        assert_eq!(made.request(turn(1, 0)), first);
    }

    #[test]
    fn chat_alternates_questions_and_answers() {
        let mut made = two_turns(SyntheticPrompt::Chat, 1);
        made.request(turn(0, 0));
        made.on_response(turn(0, 0), &ModelAnswer { text: "well".to_owned(), ..ModelAnswer::default() });
        let TurnPrompt::Messages(messages) = made.request(turn(0, 1)).prompt else { panic!("a chat") };
        let roles: Vec<String> = messages.iter().map(ChatMessage::role).collect();
        assert_eq!(roles, ["system", "user", "assistant", "user"]);
        assert_eq!(messages[2].text(), "well");
        assert_eq!(messages[3].text().split_whitespace().count(), 3);
    }

    #[test]
    fn corpus_questions_are_cut_and_tokenizer_lengths_are_exact() {
        let tokenizer = Arc::new(small());
        let mut made = two_turns(SyntheticPrompt::Ids { vocabulary: 100 }, 1);
        made.corpus = Some(Arc::new(Corpus::new(vec![vec![90, 91, 92]])));
        assert_eq!(ids(made.request(turn(0, 0)))[5..], [90, 91, 92, 90, 91, 92, 90, 91]);
        let mut made = two_turns(SyntheticPrompt::Text, 1);
        made.tokenizer = Some(Arc::clone(&tokenizer));
        let TurnPrompt::Text(text) = made.request(turn(0, 0)).prompt else { panic!("a text") };
        assert_eq!(tokenizer.count(&text, false), Ok(5 + 8));
    }
}
