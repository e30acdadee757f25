//! Plays conversations that were planned beforehand: fixed words of the user with the server's own replies between them, or whole
//! requests that stand alone.

use std::collections::HashSet;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::engine::load::workload::{Ask, Form, Members, Message, Passage, Prompt, Role, Speech, Workload};
use crate::engine::load::{Answer, Script, Turn};

/// A conversation: at least one turn.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Conversation {
    /// What is asked, in order.
    pub turns: Vec<Planned>,
    /// A word by which routers keep what belongs together in one place.
    pub routing_key: Option<Arc<str>>,
}

/// One turn.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Planned {
    /// What is said.
    pub says: Says,
    /// Does it stand alone? Then what was said before it is forgotten.
    pub whole: bool,
    /// Tokens of the answer.
    pub max_tokens: u32,
    /// Members of this request only.
    pub extra: Members,
    /// When it was recorded, since the first of all.
    pub at: Option<Duration>,
    /// The wait after the answer before it.
    pub delay: Duration,
}

impl Planned {
    /// A turn that goes on with what was said before it.
    pub fn new(says: Says, max_tokens: u32) -> Planned {
        Planned { says, whole: false, max_tokens, extra: Members::default(), at: None, delay: Duration::ZERO }
    }

    /// A request that stands alone.
    pub fn whole(says: Says, max_tokens: u32) -> Planned {
        Planned { whole: true, ..Planned::new(says, max_tokens) }
    }
}

/// What is said in a turn.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Says {
    /// A text of the user.
    Text(Arc<str>),
    /// Messages of a chat.
    Messages(Vec<Message>),
    /// Made-up words of the user, one passage behind the other.
    Made(Vec<Passage>),
}

/// See the module.
#[derive(Clone, Debug)]
pub struct Played {
    conversations: Arc<[Conversation]>,
    form: Form,
    speech: Speech,
    open: Vec<Option<Prompt>>,
}

impl Played {
    /// `conversations` as prompts of `form`.
    pub fn new(conversations: Vec<Conversation>, form: Form, speech: Speech) -> Played {
        Played { conversations: conversations.into(), form, speech, open: Vec::new() }
    }

    /// What is played.
    pub fn conversations(&self) -> &[Conversation] {
        &self.conversations
    }

    fn empty(&self) -> Prompt {
        match self.form {
            Form::Ids => Prompt::Ids(Vec::new()),
            Form::Text => Prompt::Text(String::new()),
            Form::Chat => Prompt::Messages(Vec::new()),
        }
    }

    /// Put `says` behind `history`.
    fn say(&self, history: &mut Prompt, says: &Says) {
        match history {
            Prompt::Ids(ids) => match says {
                Says::Made(passages) => passages.iter().for_each(|passage| self.speech.ids(*passage, ids)),
                Says::Text(text) => self.encode(&apart(text, ids.is_empty()), ids),
                Says::Messages(messages) => {
                    for message in messages {
                        self.encode(&apart(&message.text(), ids.is_empty()), ids);
                    }
                }
            },
            Prompt::Text(text) => match says {
                Says::Made(passages) => passages.iter().for_each(|passage| self.speech.text(*passage, text)),
                Says::Text(more) => text.push_str(&apart(more, text.is_empty())),
                Says::Messages(messages) => {
                    for message in messages {
                        let first = text.is_empty();
                        text.push_str(&apart(&message.text(), first));
                    }
                }
            },
            Prompt::Messages(said) => match says {
                Says::Made(passages) => {
                    let mut text = String::new();
                    passages.iter().for_each(|passage| self.speech.text(*passage, &mut text));
                    said.push(Message::new(Role::User, &text));
                }
                Says::Text(text) => said.push(Message::new(Role::User, text)),
                Says::Messages(messages) => said.extend_from_slice(messages),
            },
        }
    }

    /// The ids of `text`, put behind `ids`. A text that the tokenizer cannot say adds nothing; readers have tried them all.
    fn encode(&self, text: &str, ids: &mut Vec<u32>) {
        if let Some(tokenizer) = &self.speech.tokenizer {
            ids.extend(tokenizer.ids(text).unwrap_or_default());
        }
    }
}

/// What follows something stands on a line of its own.
fn apart(text: &str, first: bool) -> std::borrow::Cow<'_, str> {
    if first { text.into() } else { format!("\n{text}").into() }
}

impl Workload for Played {
    fn scripts(&self) -> Vec<Script> {
        let script = |conversation: &Conversation| {
            let timed = conversation.turns.iter().any(|turn| turn.at.is_some());
            Script {
                turns: u32::try_from(conversation.turns.len()).unwrap_or(u32::MAX),
                think: conversation.turns.iter().skip(1).map(|turn| turn.delay).collect(),
                // A turn without a time of its own is due after its delay; none of them is due before zero.
                at: if timed {
                    conversation.turns.iter().map(|turn| turn.at.unwrap_or_default()).collect()
                } else {
                    Vec::new()
                },
            }
        };
        self.conversations.iter().map(script).collect()
    }

    fn ask(&mut self, turn: Turn) -> Ask {
        let at = turn.conversation as usize;
        if self.open.len() <= at {
            self.open.resize(at + 1, None);
        }
        let conversations = Arc::clone(&self.conversations);
        let turns = &conversations[at].turns;
        let planned = &turns[turn.index as usize];
        let history = self.open[at].take().filter(|_| !planned.whole && turn.index > 0);
        let mut prompt = history.unwrap_or_else(|| self.empty());
        self.say(&mut prompt, &planned.says);
        // Kept only where somebody goes on with it.
        if turns.get(turn.index as usize + 1).is_some_and(|next| !next.whole) {
            self.open[at] = Some(prompt.clone());
        }
        let mut ask = Ask::new(prompt, planned.max_tokens);
        ask.extra = planned.extra.clone();
        ask.routing_key = conversations[at].routing_key.clone();
        ask
    }

    fn fingerprint(&self, to: &mut dyn fmt::Write) -> fmt::Result {
        if let Some(tokenizer) = &self.speech.tokenizer {
            writeln!(to, "tokenizer {}", tokenizer.digest())?;
        }
        for conversation in self.conversations.iter() {
            writeln!(to, "conversation {:?}", conversation.routing_key)?;
            for Planned { says, whole, max_tokens, extra, at, delay } in &conversation.turns {
                write!(to, "turn {whole} {max_tokens} {extra:?} {at:?} {delay:?} ")?;
                match says {
                    // Long, and as it is: what is behind the length cannot be taken for anything else.
                    Says::Text(text) => {
                        write!(to, "{} ", text.len())?;
                        to.write_str(text)?;
                    }
                    other => writeln!(to, "{other:?}")?,
                }
            }
        }
        Ok(())
    }

    fn heard(&mut self, turn: Turn, answer: &Answer) {
        let Some(history) = self.open.get_mut(turn.conversation as usize) else { return };
        let Some(mut prompt) = history.take() else { return };
        match &mut prompt {
            Prompt::Ids(ids) if answer.output_ids.is_empty() => self.encode(&answer.text, ids),
            Prompt::Ids(ids) => ids.extend_from_slice(&answer.output_ids),
            Prompt::Text(text) => text.push_str(&answer.text),
            Prompt::Messages(messages) => messages.push(Message::new(Role::Assistant, &answer.text)),
        }
        self.open[turn.conversation as usize] = Some(prompt);
    }

    fn shared(&self) -> Vec<Prompt> {
        let system = |conversation: &Conversation| match &conversation.turns.first()?.says {
            Says::Made(passages) => passages.first().filter(|passage| passage.is_shared()).copied(),
            _ => None,
        };
        let mut known = HashSet::new();
        let mut found = Vec::new();
        for passage in self.conversations.iter().filter_map(system) {
            if known.insert(passage) {
                let mut prompt = self.empty();
                self.say(&mut prompt, &Says::Made(vec![passage]));
                found.push(prompt);
            }
        }
        found
    }

    fn over(&mut self, turn: Turn) {
        if let Some(history) = self.open.get_mut(turn.conversation as usize) {
            *history = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::load::Seed;
    use crate::engine::load::workload::speech::SHARED;
    use crate::engine::load::workload::tokenizer::tests::small;

    fn played(turns: Vec<Planned>, form: Form) -> Played {
        let tokenizer = small();
        let speech = Speech { seed: Seed(1), vocabulary: tokenizer.vocabulary(), tokenizer: Some(Arc::new(tokenizer)) };
        Played::new(vec![Conversation { turns, routing_key: Some("g1".into()) }], form, speech)
    }

    fn text(text: &str) -> Planned {
        Planned::new(Says::Text(text.into()), 9)
    }

    fn turn(index: u32) -> Turn {
        Turn { conversation: 0, index }
    }

    fn answer() -> Answer {
        Answer { text: " cd".to_owned(), output_ids: vec![7], ..Answer::default() }
    }

    #[test]
    fn the_users_words_are_the_files_and_the_replies_between_them_are_live() {
        let mut chat = played(vec![text("one"), text("two")], Form::Chat);
        let first = chat.ask(turn(0));
        assert_eq!((first.max_tokens, first.routing_key.as_deref()), (9, Some("g1")));
        chat.heard(turn(0), &answer());
        let expected = [(Role::User, "one"), (Role::Assistant, " cd"), (Role::User, "two")];
        let expected: Vec<Message> = expected.iter().map(|(role, text)| Message::new(*role, text)).collect();
        assert_eq!(chat.ask(turn(1)).prompt, Prompt::Messages(expected));

        let mut plain = played(vec![text("one"), text("two")], Form::Text);
        plain.ask(turn(0));
        plain.heard(turn(0), &answer());
        assert_eq!(plain.ask(turn(1)).prompt, Prompt::Text("one cd\ntwo".to_owned()));
    }

    #[test]
    fn ids_go_on_with_the_ids_of_the_reply_or_with_those_of_its_text() {
        let ids = |heard: Answer| {
            let mut played = played(vec![text(" ab"), text(" ab")], Form::Ids);
            let Prompt::Ids(first) = played.ask(turn(0)).prompt else { panic!("ids") };
            played.heard(turn(0), &heard);
            let Prompt::Ids(second) = played.ask(turn(1)).prompt else { panic!("ids") };
            assert_eq!(second[..first.len()], first);
            second[first.len()]
        };
        assert_eq!(ids(answer()), 7);
        let cd = small().ids(" cd").expect("ids")[0];
        assert_eq!(ids(Answer { output_ids: Vec::new(), ..answer() }), cd);
    }

    #[test]
    fn a_whole_request_forgets_what_was_before_it() {
        let whole = Planned::whole(Says::Messages(vec![Message::new(Role::System, "s")]), 3);
        let mut chat = played(vec![text("one"), whole, text("two")], Form::Chat);
        chat.ask(turn(0));
        chat.heard(turn(0), &answer());
        assert_eq!(chat.ask(turn(1)).prompt, Prompt::Messages(vec![Message::new(Role::System, "s")]));
        chat.heard(turn(1), &answer());
        let Prompt::Messages(messages) = chat.ask(turn(2)).prompt else { panic!("a chat") };
        assert_eq!(messages.len(), 3);
    }

    #[test]
    fn after_its_end_a_conversation_is_asked_again_with_the_very_same_words() {
        for form in [Form::Chat, Form::Text, Form::Ids] {
            let block = Passage::Drawn { purpose: "block", number: 3, tokens: 5 };
            let mut played = played(vec![Planned::new(Says::Made(vec![block, block]), 1), text(" ab")], form);
            let run = |played: &mut Played| {
                let first = played.ask(turn(0));
                played.heard(turn(0), &answer());
                let second = played.ask(turn(1));
                played.heard(turn(1), &answer());
                played.over(turn(1));
                (first, second)
            };
            let first = run(&mut played);
            assert_eq!(run(&mut played), first);
            // A conversation that failed after its first turn, too.
            played.ask(turn(0));
            played.over(turn(0));
            assert_eq!(run(&mut played), first);
        }
    }

    #[test]
    fn system_prompts_that_groups_share_are_told_each_once() {
        let system = Passage::Drawn { purpose: SHARED, number: 3, tokens: 5 };
        let own = Passage::Drawn { purpose: "own", number: 1, tokens: 2 };
        let planned = || Planned::new(Says::Made(vec![system, own]), 1);
        let mut played = played(vec![planned()], Form::Ids);
        played.conversations = vec![played.conversations[0].clone(); 2].into();
        let [Prompt::Ids(shared)] = &played.shared()[..] else { panic!("one of ids") };
        let Prompt::Ids(asked) = played.clone().ask(turn(0)).prompt else { panic!("ids") };
        assert_eq!((shared.len(), &shared[..]), (5, &asked[..5]));
    }

    #[test]
    fn words_that_differ_are_told_by_the_fingerprint() {
        let print = |turns: Vec<Planned>| {
            let mut text = String::new();
            played(turns, Form::Text).fingerprint(&mut text).expect("memory takes all");
            text
        };
        let said = |word: &str| Planned::new(Says::Messages(vec![Message::new(Role::User, word)]), 1);
        assert_eq!(print(vec![text("one"), text("two")]), print(vec![text("one"), text("two")]));
        for other in [vec![text("one"), text("tow")], vec![text("one")], vec![said("one"), said("two")]] {
            assert_ne!(print(vec![text("one"), text("two")]), print(other));
        }
        assert_ne!(print(vec![said("a")]), print(vec![said("b")]));
    }

    #[test]
    fn scripts_have_delays_and_times() {
        let mut turns = vec![text("one"), text("two")];
        turns[1].delay = Duration::from_secs(2);
        let script = |turns: &[Planned]| played(turns.to_vec(), Form::Text).scripts().remove(0);
        assert_eq!(script(&turns), Script { turns: 2, think: vec![Duration::from_secs(2)], at: Vec::new() });
        turns[0].at = Some(Duration::from_secs(5));
        assert_eq!(script(&turns).at, [Duration::from_secs(5), Duration::ZERO]);
    }
}
