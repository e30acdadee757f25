//! Replays planned conversations: either fixed user messages interleaved with the server's own
//! responses, or complete requests.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::sync::Arc;

use crate::workload::conversation::{Conversation, PlannedTurn, TurnContent};
use crate::workload::midway::{MidwaySessions, start_midway};
use crate::workload::{
    ChatMessage, ChatRole, LoadWorkload, PromptForm, SpanList, TextGenerator, TextSpan, TurnPrompt, TurnRequest,
};
use crate::{ModelAnswer, Script, Turn};

/// A prefix of every prompt of a session, which no other session has. It keeps a session from using
/// what an earlier one has left in the caches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SessionPrefix {
    /// Distinguishes runs.
    pub run: u64,
}

impl SessionPrefix {
    const TOKENS: u32 = 8;

    fn span(self, session: u64) -> TextSpan {
        // SplitMix64, so that the numbers of two runs differ for all sessions.
        let mut number = self.run.wrapping_add(session.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
        number = (number ^ (number >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        number = (number ^ (number >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        TextSpan::Drawn { purpose: "session-prefix", number: number ^ (number >> 31), tokens: Self::TOKENS }
    }
}

/// A workload that replays planned conversations.
///
/// A conversation number beyond the last one starts again with the first conversation, as in a
/// repeated list of sessions.
#[derive(Clone, Debug)]
pub struct Replay {
    conversations: Arc<[Conversation]>,
    form: PromptForm,
    generator: TextGenerator,
    prefix: Option<SessionPrefix>,
    /// The session of each conversation, if prompts have a prefix.
    sessions: Vec<u64>,
    /// Requests that rebuild prefixes, each with the index of its conversation.
    warmups: Vec<(u32, PlannedTurn)>,
    open: HashMap<u32, TurnPrompt>,
}

impl Replay {
    /// Creates a workload that sends `conversations` as prompts in the form `form`.
    pub fn new(conversations: Vec<Conversation>, form: PromptForm, generator: TextGenerator) -> Replay {
        Replay {
            conversations: conversations.into(),
            form,
            generator,
            prefix: None,
            sessions: Vec::new(),
            warmups: Vec::new(),
            open: HashMap::new(),
        }
    }

    /// Starts the first `live` sessions at a random point of their life, which the generator's seed
    /// determines. All sessions from their beginning follow.
    #[must_use]
    pub fn midway(self, live: usize) -> Replay {
        let MidwaySessions { conversations, warmups } =
            start_midway(self.conversations.to_vec(), live, self.generator.seed);
        Replay { warmups, ..Replay::new(conversations, self.form, self.generator) }
    }

    /// Adds a prefix to every prompt. Use it after [`Replay::midway`].
    #[must_use]
    pub fn prefixed(mut self, prefix: SessionPrefix) -> Replay {
        let mut session = 0;
        self.sessions = (0..)
            .zip(self.conversations.iter())
            .map(|(at, conversation)| {
                session += u64::from(at > 0 && !conversation.continues_session());
                session
            })
            .collect();
        self.prefix = Some(prefix);
        self
    }

    /// Returns a prompt that begins with `content`, after the prefix of the conversation's session.
    fn begin(&self, conversation: u32, content: &TurnContent) -> TurnPrompt {
        let mut prompt = self.empty();
        let Some(span) = self.prefix_span(conversation) else {
            self.append(&mut prompt, content);
            return prompt;
        };
        match content {
            // One message, or one text without a line break.
            TurnContent::Made(spans) => {
                let spans = std::iter::once(span).chain(spans.iter()).collect();
                self.append(&mut prompt, &TurnContent::made(spans));
            }
            // The first message may have to be the system's.
            TurnContent::Messages(messages) if self.form == PromptForm::Chat => {
                let mut text = String::new();
                self.generator.text(span, &mut text);
                let mut messages = messages.clone();
                match messages.first_mut().and_then(|first| Some((first.starting_with(&text)?, first))) {
                    Some((prefixed, first)) => *first = prefixed,
                    None => messages.insert(0, ChatMessage::new(ChatRole::User, &text)),
                }
                self.append(&mut prompt, &TurnContent::Messages(messages));
            }
            other => {
                self.append(&mut prompt, &TurnContent::made(vec![span]));
                self.append(&mut prompt, other);
            }
        }
        prompt
    }

    /// Returns IDs in place of the tokens of an entire prompt of generated text
    /// ([`TurnRequest::stand_ins`]).
    fn stand_ins(&self, conversation: u32, turn: &PlannedTurn) -> Option<Vec<u32>> {
        match &turn.content {
            TurnContent::Made(spans) if turn.whole && self.form != PromptForm::Ids => {
                let mut ids = Vec::with_capacity(spans.tokens() as usize);
                let spans = self.prefix_span(conversation).into_iter().chain(spans.iter());
                spans.for_each(|span| self.generator.ids(span, &mut ids));
                Some(ids)
            }
            _ => None,
        }
    }

    /// The prefix of a conversation's session, if sessions have one.
    fn prefix_span(&self, conversation: u32) -> Option<TextSpan> {
        let (prefix, session) = self.prefix.zip(self.sessions.get(self.script(conversation)))?;
        let rounds = u64::from(conversation) / self.conversations.len() as u64;
        let sessions = self.sessions.last().map_or(0, |last| last + 1);
        Some(prefix.span(session + rounds * sessions))
    }

    /// The index of a conversation in the list.
    fn script(&self, conversation: u32) -> usize {
        conversation as usize % self.conversations.len().max(1)
    }

    /// Whether each turn is an entire prompt, which does not depend on responses.
    pub fn is_whole(&self) -> bool {
        self.conversations.iter().flat_map(|conversation| &conversation.turns).all(|turn| turn.whole)
    }

    /// Returns the planned conversations in order.
    pub fn conversations(&self) -> &[Conversation] {
        &self.conversations
    }

    fn empty(&self) -> TurnPrompt {
        match self.form {
            PromptForm::Ids => TurnPrompt::Ids(Vec::new()),
            PromptForm::Text => TurnPrompt::Text(String::new()),
            PromptForm::Chat => TurnPrompt::Messages(Vec::new()),
        }
    }

    /// Appends `content` to `history`.
    fn append(&self, history: &mut TurnPrompt, content: &TurnContent) {
        match history {
            TurnPrompt::Ids(ids) => match content {
                TurnContent::Made(passages) => passages.iter().for_each(|passage| self.generator.ids(passage, ids)),
                TurnContent::Text(text) => self.encode(&apart(text, ids.is_empty()), ids),
                TurnContent::Messages(messages) => {
                    for message in messages {
                        self.encode(&apart(&message.text(), ids.is_empty()), ids);
                    }
                }
            },
            TurnPrompt::Text(text) => match content {
                TurnContent::Made(passages) => passages.iter().for_each(|passage| self.generator.text(passage, text)),
                TurnContent::Text(more) => text.push_str(&apart(more, text.is_empty())),
                TurnContent::Messages(messages) => {
                    for message in messages {
                        let first = text.is_empty();
                        text.push_str(&apart(&message.text(), first));
                    }
                }
            },
            TurnPrompt::Messages(prompt) => match content {
                TurnContent::Made(passages) => {
                    let mut text = String::new();
                    passages.iter().for_each(|passage| self.generator.text(passage, &mut text));
                    prompt.push(ChatMessage::new(ChatRole::User, &text));
                }
                TurnContent::Text(text) => prompt.push(ChatMessage::new(ChatRole::User, text)),
                TurnContent::Messages(messages) => prompt.extend_from_slice(messages),
            },
        }
    }

    /// Appends the IDs of `text` to `ids`. Text that cannot be encoded adds nothing; dataset
    /// readers have already rejected such text.
    fn encode(&self, text: &str, ids: &mut Vec<u32>) {
        if let Some(tokenizer) = &self.generator.tokenizer {
            ids.extend(tokenizer.ids(text).unwrap_or_default());
        }
    }
}

/// Starts a new line for text that follows other text.
fn apart(text: &str, first: bool) -> std::borrow::Cow<'_, str> {
    if first { text.into() } else { format!("\n{text}").into() }
}

impl LoadWorkload for Replay {
    fn scripts(&self) -> Vec<Script> {
        let script = |conversation: &Conversation| {
            let timed = conversation.turns.iter().any(|turn| turn.at.is_some());
            Script {
                turns: u32::try_from(conversation.turns.len()).unwrap_or(u32::MAX),
                think: conversation.turns.iter().skip(1).map(|turn| turn.delay).collect(),
                // A turn without a recorded time is due after its delay. The zero that represents
                // its missing time has no effect.
                at: if timed {
                    conversation.turns.iter().map(|turn| turn.at.unwrap_or_default()).collect()
                } else {
                    Vec::new()
                },
                node: conversation.node.clone(),
                whole: conversation.turns.iter().all(|turn| turn.whole),
            }
        };
        self.conversations.iter().map(script).collect()
    }

    fn request(&mut self, turn: Turn) -> TurnRequest {
        let at = self.script(turn.conversation);
        let conversations = Arc::clone(&self.conversations);
        let turns = &conversations[at].turns;
        let planned = &turns[turn.index as usize];
        let history = self.open.remove(&turn.conversation).filter(|_| !planned.whole && turn.index > 0);
        let prompt = match history {
            Some(mut prompt) => {
                self.append(&mut prompt, &planned.content);
                prompt
            }
            None => self.begin(turn.conversation, &planned.content),
        };
        // Keep the history only if a later turn continues it.
        if turns.get(turn.index as usize + 1).is_some_and(|next| !next.whole) {
            self.open.insert(turn.conversation, prompt.clone());
        }
        let mut ask = TurnRequest::new(prompt, planned.max_tokens);
        ask.own_tokens = planned.tokens;
        ask.stand_ins = self.stand_ins(turn.conversation, planned);
        ask.extra = planned.extra.clone();
        ask.routing_key = conversations[at].routing_key.clone();
        ask
    }

    fn fingerprint(&self, to: &mut dyn fmt::Write) -> fmt::Result {
        if let Some(tokenizer) = &self.generator.tokenizer {
            writeln!(to, "tokenizer {}", tokenizer.digest())?;
        }
        if let Some(prefix) = self.prefix {
            writeln!(to, "{prefix:?}")?;
        }
        for conversation in self.conversations.iter() {
            writeln!(to, "conversation {:?}", conversation.routing_key)?;
            if let Some(node) = &conversation.node {
                writeln!(to, "{node:?}")?;
            }
            let mut before: Option<&SpanList> = None;
            for PlannedTurn { content, whole, max_tokens, extra, at, delay, since_start: _, tokens: _ } in
                &conversation.turns
            {
                write!(to, "turn {whole} {max_tokens} {extra:?} {at:?} {delay:?} ")?;
                match content {
                    // Write the length before the raw text, so that the text cannot be confused
                    // with what follows.
                    TurnContent::Text(text) => {
                        write!(to, "{} ", text.len())?;
                        to.write_str(text)?;
                    }
                    // Prompts of a session repeat each other, so only what is new is written.
                    TurnContent::Made(spans) => {
                        let common = before.map_or(0, |before| spans.common(before));
                        write!(to, "{common} ")?;
                        for span in spans.iter().skip(common) {
                            write!(to, "{span:?}")?;
                        }
                        writeln!(to)?;
                        before = Some(spans);
                    }
                    other => writeln!(to, "{other:?}")?,
                }
            }
        }
        Ok(())
    }

    fn on_response(&mut self, turn: Turn, answer: &ModelAnswer) {
        let Some(mut prompt) = self.open.remove(&turn.conversation) else { return };
        match &mut prompt {
            TurnPrompt::Ids(ids) if answer.output_ids.is_empty() => self.encode(&answer.text, ids),
            TurnPrompt::Ids(ids) => ids.extend_from_slice(&answer.output_ids),
            TurnPrompt::Text(text) => text.push_str(&answer.text),
            TurnPrompt::Messages(messages) => messages.push(ChatMessage::new(ChatRole::Assistant, &answer.text)),
        }
        self.open.insert(turn.conversation, prompt);
    }

    fn shared(&self) -> Vec<TurnPrompt> {
        let system = |conversation: &Conversation| match &conversation.turns.first()?.content {
            TurnContent::Made(passages) => passages.iter().next().filter(|passage| passage.is_shared()),
            _ => None,
        };
        let mut known = HashSet::new();
        let mut found = Vec::new();
        for passage in self.conversations.iter().filter_map(system) {
            if known.insert(passage) {
                let mut prompt = self.empty();
                self.append(&mut prompt, &TurnContent::made(vec![passage]));
                found.push(prompt);
            }
        }
        found
    }

    fn warmups(&self) -> u32 {
        u32::try_from(self.warmups.len()).unwrap_or(u32::MAX)
    }

    fn warmup(&mut self, index: u32) -> Option<TurnRequest> {
        let (conversation, turn) = self.warmups.get(index as usize)?;
        let prompt = self.begin(*conversation, &turn.content);
        let stand_ins = self.stand_ins(*conversation, turn);
        Some(TurnRequest { extra: turn.extra.clone(), stand_ins, ..TurnRequest::new(prompt, 1) })
    }

    fn on_conversation_end(&mut self, turn: Turn) {
        self.open.remove(&turn.conversation);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::Seed;
    use crate::workload::textgen::SHARED;
    use crate::workload::tokenizer::tests::small;

    fn played(turns: Vec<PlannedTurn>, form: PromptForm) -> Replay {
        let tokenizer = small();
        let generator =
            TextGenerator { seed: Seed(1), vocabulary: tokenizer.vocabulary(), tokenizer: Some(Arc::new(tokenizer)) };
        Replay::new(vec![Conversation { routing_key: Some("g1".into()), ..Conversation::new(turns) }], form, generator)
    }

    fn text(text: &str) -> PlannedTurn {
        PlannedTurn::new(TurnContent::Text(text.into()), 9)
    }

    fn turn(index: u32) -> Turn {
        Turn { conversation: 0, index }
    }

    fn answer() -> ModelAnswer {
        ModelAnswer { text: " cd".to_owned(), output_ids: vec![7], ..ModelAnswer::default() }
    }

    #[test]
    fn user_turns_come_from_the_plan_and_answers_are_live() {
        let mut chat = played(vec![text("one"), text("two")], PromptForm::Chat);
        let first = chat.request(turn(0));
        assert_eq!((first.max_tokens, first.routing_key.as_deref()), (9, Some("g1")));
        chat.on_response(turn(0), &answer());
        let expected = [(ChatRole::User, "one"), (ChatRole::Assistant, " cd"), (ChatRole::User, "two")];
        let expected: Vec<ChatMessage> = expected.iter().map(|(role, text)| ChatMessage::new(*role, text)).collect();
        assert_eq!(chat.request(turn(1)).prompt, TurnPrompt::Messages(expected));

        let mut plain = played(vec![text("one"), text("two")], PromptForm::Text);
        plain.request(turn(0));
        plain.on_response(turn(0), &answer());
        assert_eq!(plain.request(turn(1)).prompt, TurnPrompt::Text("one cd\ntwo".to_owned()));
    }

    #[test]
    fn id_history_continues_with_output_ids_or_encoded_text() {
        let ids = |answer: ModelAnswer| {
            let mut played = played(vec![text(" ab"), text(" ab")], PromptForm::Ids);
            let TurnPrompt::Ids(first) = played.request(turn(0)).prompt else { panic!("ids") };
            played.on_response(turn(0), &answer);
            let TurnPrompt::Ids(second) = played.request(turn(1)).prompt else { panic!("ids") };
            assert_eq!(second[..first.len()], first);
            second[first.len()]
        };
        assert_eq!(ids(answer()), 7);
        let cd = small().ids(" cd").expect("ids")[0];
        assert_eq!(ids(ModelAnswer { output_ids: Vec::new(), ..answer() }), cd);
    }

    #[test]
    fn whole_request_discards_the_history() {
        let whole = PlannedTurn::whole(TurnContent::Messages(vec![ChatMessage::new(ChatRole::System, "s")]), 3);
        let mut chat = played(vec![text("one"), whole, text("two")], PromptForm::Chat);
        chat.request(turn(0));
        chat.on_response(turn(0), &answer());
        assert_eq!(chat.request(turn(1)).prompt, TurnPrompt::Messages(vec![ChatMessage::new(ChatRole::System, "s")]));
        chat.on_response(turn(1), &answer());
        let TurnPrompt::Messages(messages) = chat.request(turn(2)).prompt else { panic!("a chat") };
        assert_eq!(messages.len(), 3);
    }

    #[test]
    fn restarted_conversation_repeats_the_same_content() {
        for form in [PromptForm::Chat, PromptForm::Text, PromptForm::Ids] {
            let block = TextSpan::Drawn { purpose: "block", number: 3, tokens: 5 };
            let mut played =
                played(vec![PlannedTurn::new(TurnContent::made(vec![block, block]), 1), text(" ab")], form);
            let run = |played: &mut Replay| {
                let first = played.request(turn(0));
                played.on_response(turn(0), &answer());
                let second = played.request(turn(1));
                played.on_response(turn(1), &answer());
                played.on_conversation_end(turn(1));
                (first, second)
            };
            let first = run(&mut played);
            assert_eq!(run(&mut played), first);
            // The same applies after the first turn has failed.
            played.request(turn(0));
            played.on_conversation_end(turn(0));
            assert_eq!(run(&mut played), first);
        }
    }

    #[test]
    fn shared_system_prompts_are_listed_once() {
        let system = TextSpan::Drawn { purpose: SHARED, number: 3, tokens: 5 };
        let own = TextSpan::Drawn { purpose: "own", number: 1, tokens: 2 };
        let planned = || PlannedTurn::new(TurnContent::made(vec![system, own]), 1);
        let mut played = played(vec![planned()], PromptForm::Ids);
        played.conversations = vec![played.conversations[0].clone(); 2].into();
        let [TurnPrompt::Ids(shared)] = &played.shared()[..] else { panic!("one of ids") };
        let TurnPrompt::Ids(asked) = played.clone().request(turn(0)).prompt else { panic!("ids") };
        assert_eq!((shared.len(), &shared[..]), (5, &asked[..5]));
    }

    #[test]
    fn fingerprint_depends_on_the_content() {
        let print = |turns: Vec<PlannedTurn>| {
            let mut text = String::new();
            played(turns, PromptForm::Text).fingerprint(&mut text).expect("writing to a string succeeds");
            text
        };
        let message =
            |word: &str| PlannedTurn::new(TurnContent::Messages(vec![ChatMessage::new(ChatRole::User, word)]), 1);
        assert_eq!(print(vec![text("one"), text("two")]), print(vec![text("one"), text("two")]));
        for other in [vec![text("one"), text("tow")], vec![text("one")], vec![message("one"), message("two")]] {
            assert_ne!(print(vec![text("one"), text("two")]), print(other));
        }
        assert_ne!(print(vec![message("a")]), print(vec![message("b")]));
    }

    #[test]
    fn scripts_have_delays_and_times() {
        let mut turns = vec![text("one"), text("two")];
        turns[1].delay = Duration::from_secs(2);
        let script = |turns: &[PlannedTurn]| played(turns.to_vec(), PromptForm::Text).scripts().remove(0);
        assert_eq!(script(&turns), Script { turns: 2, think: vec![Duration::from_secs(2)], ..Script::default() });
        turns[0].at = Some(Duration::from_secs(5));
        assert_eq!(script(&turns).at, [Duration::from_secs(5), Duration::ZERO]);
    }

    fn blocks(numbers: &[u64]) -> PlannedTurn {
        let span = |number: &u64| TextSpan::Drawn { purpose: "block", number: *number, tokens: 4 };
        PlannedTurn::whole(TurnContent::made(numbers.iter().map(span).collect()), 5)
    }

    #[test]
    fn sessions_have_a_prefix_of_their_own_also_when_the_list_is_repeated() {
        let generator = TextGenerator { seed: Seed(1), vocabulary: 30_000, tokenizer: None };
        let conversations = vec![Conversation::new(vec![blocks(&[1])]), Conversation::new(vec![blocks(&[1])])];
        let mut plain = Replay::new(conversations.clone(), PromptForm::Ids, generator.clone());
        let ids = |replay: &mut Replay, conversation| match replay.request(Turn { conversation, index: 0 }).prompt {
            TurnPrompt::Ids(ids) => ids,
            other => panic!("{other:?}"),
        };
        let content = ids(&mut plain, 0);
        assert_eq!((content.len(), ids(&mut plain, 1), ids(&mut plain, 2)), (4, content.clone(), content.clone()));
        let mut prefixed = plain.clone().prefixed(SessionPrefix { run: 7 });
        let all: Vec<Vec<u32>> = (0..4).map(|conversation| ids(&mut prefixed, conversation)).collect();
        assert!(all.iter().all(|one| one.len() == 12 && one[8..] == content[..]));
        let distinct: HashSet<&[u32]> = all.iter().map(|one| &one[..8]).collect();
        assert_eq!(distinct.len(), 4);
        assert_ne!(ids(&mut plain.prefixed(SessionPrefix { run: 8 }), 0), all[0]);
        let mut chat = Replay::new(conversations, PromptForm::Chat, generator).prefixed(SessionPrefix { run: 7 });
        let TurnPrompt::Messages(messages) = chat.request(Turn { conversation: 0, index: 0 }).prompt else {
            panic!("a chat")
        };
        assert_eq!((messages.len(), messages[0].text().split_whitespace().count()), (1, 12));
    }

    #[test]
    fn warmups_are_the_last_requests_before_the_start_of_a_session() {
        let generator = TextGenerator { seed: Seed(1), vocabulary: 30_000, tokenizer: None };
        let session = Conversation::new((1..9).map(|last| blocks(&(1..=last).collect::<Vec<u64>>())).collect());
        let mut replay =
            Replay::new(vec![session], PromptForm::Ids, generator).midway(3).prefixed(SessionPrefix { run: 1 });
        let scripts = replay.scripts();
        assert_eq!((scripts.len(), scripts[3].turns), (4, 8));
        for index in 0..replay.warmups() {
            let (conversation, _) = replay.warmups[index as usize].clone();
            let warmup = replay.warmup(index).expect("a warm-up");
            let next = replay.request(Turn { conversation, index: 0 });
            let (TurnPrompt::Ids(before), TurnPrompt::Ids(after)) = (warmup.prompt, next.prompt) else { panic!("IDs") };
            assert_eq!((warmup.max_tokens, &after[..before.len()]), (1, &before[..]));
            assert_eq!(after.len(), before.len() + 4);
        }
        assert!(replay.warmups() > 0 && replay.warmup(99).is_none());
    }
}
