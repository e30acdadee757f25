//! Made-up conversations of given lengths.

use std::fmt;
use std::sync::Arc;

use rand::Rng;
use rand_chacha::ChaCha8Rng;

use crate::engine::load::workload::dataset::Corpus;
use crate::engine::load::workload::{Ask, Message, Prompt, Role, Speech, Tokenizer, Workload};
use crate::engine::load::{Answer, Distribution, Script, Seed, Turn};

/// What a synthetic conversation is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Words {
    /// Token ids from one to this, this one not included. Lengths are exact.
    Ids {
        /// The size of the vocabulary.
        vocabulary: u32,
    },
    /// English-like words as one text. A word is one to three tokens of most vocabularies, so lengths are what the server counts.
    Text,
    /// The same as a chat.
    Chat,
}

/// The lengths of made-up conversations, in tokens (in words where [`Words`] are words).
#[derive(Clone, Debug)]
pub struct Synthetic {
    /// How many conversations.
    pub conversations: u32,
    /// Turns of each.
    pub turns: Distribution,
    /// The first question.
    pub first: Distribution,
    /// Every further one.
    pub next: Distribution,
    /// An answer.
    pub output: Distribution,
    /// Seconds between the end of an answer and the next question.
    pub think: Distribution,
    /// System prompts that conversations share: how many there are. None: no system prompt.
    pub groups: u32,
    /// The length of each.
    pub system: Distribution,
    /// What they are made of.
    pub words: Words,
    /// All of it comes from this.
    pub seed: Seed,
    /// With it, texts are of exactly so many tokens.
    pub tokenizer: Option<Arc<Tokenizer>>,
    /// Questions are cut from these texts instead of being made up.
    pub corpus: Option<Arc<Corpus>>,
    open: Vec<Option<Conversation>>,
}

/// A conversation that has begun.
#[derive(Clone, Debug)]
struct Conversation {
    rng: ChaCha8Rng,
    history: Prompt,
}

impl Synthetic {
    /// `conversations` of `turns` turns, each with questions of `length` and answers of `output`; the rest can be set after.
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
            words: Words::Ids { vocabulary: 32_000 },
            seed,
            tokenizer: None,
            corpus: None,
            open: Vec::new(),
        }
    }

    /// `role` says something of `length` tokens, or words.
    fn say(&self, history: &mut Prompt, role: Role, length: u32, rng: &mut ChaCha8Rng) {
        let vocabulary = match self.words {
            Words::Ids { vocabulary } => vocabulary.max(2),
            Words::Text | Words::Chat => 2,
        };
        let corpus = self.corpus.as_deref().map(|corpus| corpus.cut(length, rng));
        let text = |rng: &mut ChaCha8Rng| {
            let mut text = String::new();
            match (&corpus, &self.tokenizer) {
                (Some(ids), Some(tokenizer)) => text = tokenizer.text(ids).unwrap_or_default(),
                _ => {
                    let speech = Speech { seed: self.seed, vocabulary, tokenizer: self.tokenizer.clone() };
                    speech.sentence(length, rng, &mut text);
                }
            }
            text
        };
        match history {
            Prompt::Ids(ids) => match &corpus {
                Some(cut) => ids.extend_from_slice(cut),
                None => ids.extend((0..length).map(|_| rng.random_range(1..vocabulary))),
            },
            Prompt::Text(said) => said.push_str(&text(rng)),
            Prompt::Messages(messages) => messages.push(Message::new(role, &text(rng))),
        }
    }

    fn empty(&self) -> Prompt {
        match self.words {
            Words::Ids { .. } => Prompt::Ids(Vec::new()),
            Words::Text => Prompt::Text(String::new()),
            Words::Chat => Prompt::Messages(Vec::new()),
        }
    }

    fn begin(&self, conversation: u32) -> Conversation {
        let rng = self.seed.generator("words", u64::from(conversation));
        let mut history = self.empty();
        if self.groups > 0 {
            let mut shared = self.seed.generator("system", u64::from(conversation % self.groups));
            let length = self.system.draw_count(&mut shared, 1);
            self.say(&mut history, Role::System, length, &mut shared);
        }
        Conversation { rng, history }
    }
}

impl Workload for Synthetic {
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
            Script { turns, think: think.collect(), at: Vec::new() }
        };
        (0..self.conversations).map(script).collect()
    }

    fn ask(&mut self, turn: Turn) -> Ask {
        let at = turn.conversation as usize;
        if self.open.len() <= at {
            self.open.resize(at + 1, None);
        }
        let mut conversation = self.open[at].take().unwrap_or_else(|| self.begin(turn.conversation));
        let length = if turn.index == 0 { self.first } else { self.next };
        let length = length.draw_count(&mut conversation.rng, 1);
        let Conversation { rng, history } = &mut conversation;
        self.say(history, Role::User, length, rng);
        let max_tokens = self.output.draw_count(&mut conversation.rng, 1);
        let prompt = conversation.history.clone();
        self.open[at] = Some(conversation);
        Ask::new(prompt, max_tokens)
    }

    fn heard(&mut self, turn: Turn, answer: &Answer) {
        let Some(Some(conversation)) = self.open.get_mut(turn.conversation as usize) else { return };
        match &mut conversation.history {
            Prompt::Ids(ids) => ids.extend_from_slice(&answer.output_ids),
            Prompt::Text(text) => text.push_str(&answer.text),
            Prompt::Messages(messages) => {
                messages.push(Message::new(Role::Assistant, &answer.text));
            }
        }
    }

    fn shared(&self) -> Vec<Prompt> {
        let one = |group| {
            let mut shared = self.seed.generator("system", u64::from(group));
            let length = self.system.draw_count(&mut shared, 1);
            let mut prompt = self.empty();
            self.say(&mut prompt, Role::System, length, &mut shared);
            prompt
        };
        (0..self.groups).map(one).collect()
    }

    fn over(&mut self, turn: Turn) {
        if let Some(conversation) = self.open.get_mut(turn.conversation as usize) {
            *conversation = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::load::workload::tokenizer::tests::small;

    fn constant(value: f64) -> Distribution {
        Distribution::Constant(value)
    }

    fn two_turns(words: Words, seed: u64) -> Synthetic {
        let mut made = Synthetic::new(3, constant(2.0), constant(8.0), constant(4.0), Seed(seed));
        (made.words, made.groups, made.system, made.next) = (words, 2, constant(5.0), constant(3.0));
        made
    }

    fn turn(conversation: u32, index: u32) -> Turn {
        Turn { conversation, index }
    }

    fn ids(ask: Ask) -> Vec<u32> {
        match ask.prompt {
            Prompt::Ids(ids) => ids,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn lengths_are_exact_and_every_turn_begins_with_all_that_was_said() {
        let mut made = two_turns(Words::Ids { vocabulary: 100 }, 1);
        let first = ids(made.ask(turn(0, 0)));
        assert_eq!(first.len(), 5 + 8);
        made.heard(turn(0, 0), &Answer { output_ids: vec![7, 7, 7, 7], ..Answer::default() });
        let second = made.ask(turn(0, 1));
        assert_eq!(second.max_tokens, 4);
        let second = ids(second);
        assert_eq!(second.len(), 13 + 4 + 3);
        assert_eq!((&second[..13], &second[13..17]), (&first[..], &[7; 4][..]));
        assert!(second.iter().all(|id| (1..100).contains(id)));
    }

    #[test]
    fn conversations_of_a_group_share_its_system_prompt_and_nothing_else() {
        let mut made = two_turns(Words::Ids { vocabulary: 30_000 }, 1);
        let prompts: Vec<Vec<u32>> = (0..3).map(|c| ids(made.ask(turn(c, 0)))).collect();
        assert_eq!(prompts[0][..5], prompts[2][..5]);
        assert_ne!(prompts[0][..5], prompts[1][..5]);
        assert_ne!(prompts[0][5..], prompts[2][5..]);
    }

    #[test]
    fn a_conversation_is_the_same_whenever_it_is_asked() {
        let (mut one, mut other) = (two_turns(Words::Chat, 9), two_turns(Words::Chat, 9));
        let early = one.ask(turn(2, 0));
        other.ask(turn(0, 0));
        other.ask(turn(1, 0));
        assert_eq!(other.ask(turn(2, 0)), early);
        assert_ne!(two_turns(Words::Chat, 10).ask(turn(2, 0)), early);
    }

    #[test]
    fn a_conversation_that_is_over_can_be_asked_again_from_its_start() {
        let mut made = two_turns(Words::Chat, 1);
        let first = made.ask(turn(1, 0));
        made.heard(turn(1, 0), &Answer { text: "well".to_owned(), ..Answer::default() });
        made.over(turn(1, 0));
        assert_eq!(made.ask(turn(1, 0)), first);
    }

    #[test]
    fn a_chat_has_its_answers_between_its_questions() {
        let mut made = two_turns(Words::Chat, 1);
        made.ask(turn(0, 0));
        made.heard(turn(0, 0), &Answer { text: "well".to_owned(), ..Answer::default() });
        let Prompt::Messages(messages) = made.ask(turn(0, 1)).prompt else { panic!("a chat") };
        let roles: Vec<String> = messages.iter().map(Message::role).collect();
        assert_eq!(roles, ["system", "user", "assistant", "user"]);
        assert_eq!(messages[2].text(), "well");
        assert_eq!(messages[3].text().split_whitespace().count(), 3);
    }

    #[test]
    fn questions_of_a_corpus_are_cut_to_length_and_a_tokenizer_counts_made_up_ones() {
        let tokenizer = Arc::new(small());
        let mut made = two_turns(Words::Ids { vocabulary: 100 }, 1);
        made.corpus = Some(Arc::new(Corpus::new(vec![vec![90, 91, 92]])));
        assert_eq!(ids(made.ask(turn(0, 0)))[5..], [90, 91, 92, 90, 91, 92, 90, 91]);
        let mut made = two_turns(Words::Text, 1);
        made.tokenizer = Some(Arc::clone(&tokenizer));
        let Prompt::Text(text) = made.ask(turn(0, 0)).prompt else { panic!("a text") };
        assert_eq!(tokenizer.count(&text, false), Ok(5 + 8));
    }
}
