//! Sessions of kv-cache-tester and AgentX (Weka): one row per session.
//!
//! A session is a tree of conversations of entire prompts (`session_tree`): that of the agent, and
//! those of its subagents. With [`Pace::Sessions`](crate::Pace::Sessions), a fixed number of
//! sessions is live at a time, and each request waits for what it waited for when it was recorded.
//!
//! The trace does not record when sessions start. With [`Pace::Recorded`](crate::Pace::Recorded),
//! starts are assumed as in the sizing commands, and each conversation starts at its own time.

use mcctl_trace::{
    LIVE_SESSIONS, LiveSessions, PromptCounts, SizeCheck, TimeUnit, TraceCaveat, TraceFormat, WekaRequest, WekaSession,
};

use crate::workload::dataset::trace::session::{self, RecordedTurn, TraceSession};
use crate::workload::dataset::trace::session_tree::{StreamRequest, session_tree};
use crate::workload::dataset::trace::spans::{IdScope, block_spans, length};
use crate::workload::dataset::trace::{TraceReader, TraceReading};
use crate::workload::dataset::{DatasetCaveat, DatasetError, DatasetOptions};
use crate::workload::{Conversation, PlannedTurn, RowError, TurnContent};

pub(super) struct WekaReader {
    sizes: SizeCheck,
    /// Sessions that wait for the block size, with their line and the number of rows before.
    waiting: Vec<(u64, u64, WekaSession)>,
    live: LiveSessions,
    sessions: u64,
    /// Seconds per unit of the recorded times.
    scale: f64,
    conversations: Vec<Conversation>,
    subagents: u64,
    relative: u64,
    absolute: u64,
    ambiguous: u64,
}

impl WekaReader {
    pub(super) fn new(reading: &TraceReading<'_>) -> WekaReader {
        let options = reading.options;
        WekaReader {
            sizes: SizeCheck::new(TraceFormat::Weka, options.block_tokens, options.skip_bad),
            waiting: Vec::new(),
            live: LiveSessions::new(LIVE_SESSIONS),
            sessions: 0,
            scale: options.time_unit.unwrap_or(TimeUnit::Seconds).seconds(),
            conversations: Vec::new(),
            subagents: 0,
            relative: 0,
            absolute: 0,
            ambiguous: 0,
        }
    }

    /// Adds the conversations of a session. `before`: number of rows before its first request.
    fn add(
        &mut self,
        line: u64,
        before: u64,
        session: &WekaSession,
        reading: &mut TraceReading<'_>,
    ) -> Result<(), DatasetError> {
        let start = self.live.start(session.duration * self.scale) / self.scale;
        self.relative += session.relative;
        self.absolute += session.absolute;
        self.ambiguous += session.ambiguous;
        let scope = IdScope::Session(self.sessions);
        self.sessions += 1;
        let mut requests = Vec::with_capacity(session.requests.len());
        let mut turns = Vec::with_capacity(session.requests.len());
        for (index, request) in session.requests.iter().enumerate() {
            let number = before + index as u64;
            match self.turn(session, request, scope, number, reading.options) {
                Ok(turn) => turns.push(Some(turn)),
                Err(reason) => {
                    reading.bad(line, reason.in_request(index))?;
                    continue;
                }
            }
            let WekaRequest { stream, at, duration, ref ids, .. } = *request;
            requests.push(StreamRequest { stream, at, end: at + duration, ids });
        }
        let tree = session_tree(&requests, &session.parents, reading.options.live_sessions);
        self.subagents += tree.iter().filter(|conversation| conversation.stream > 0).count() as u64;
        let mut conversations = Vec::with_capacity(tree.len());
        for (index, conversation) in tree.iter().enumerate() {
            let mut chain = TraceSession::new(line);
            for (request, delay) in conversation.requests.iter().zip(&conversation.delays) {
                let Some(mut turn) = turns.get_mut(*request).and_then(Option::take) else { continue };
                let at = requests[*request].at;
                turn.turn.since_start = super::duration(at * self.scale);
                match chain.turns().is_empty() {
                    true => turn.at = Some(start + at),
                    false => turn.delay = *delay,
                }
                chain.push(turn, reading.options);
            }
            let mut node = conversation.node(index);
            node.delay = super::duration(conversation.delays.first().copied().unwrap_or(0.0) * self.scale);
            conversations.push(Conversation { node: Some(Box::new(node)), ..chain.finish(self.scale) });
        }
        self.conversations.extend(session::without_cut_turns(conversations));
        Ok(())
    }

    fn turn(
        &mut self,
        session: &WekaSession,
        request: &WekaRequest,
        scope: IdScope,
        number: u64,
        options: &DatasetOptions,
    ) -> Result<RecordedTurn, RowError> {
        let checked = self.sizes.check(counts(session, request))?;
        let spans = block_spans(&request.ids, checked, scope, number)?;
        let output = options.output.map_or_else(|| length(request.output), Ok)?;
        let turn = PlannedTurn::whole(TurnContent::made(spans), output);
        Ok(RecordedTurn { turn, prompt: length(checked.tokens)?, at: None, delay: 0.0 })
    }
}

impl TraceReader for WekaReader {
    fn row(&mut self, line: u64, text: &str, reading: &mut TraceReading<'_>) -> Result<bool, DatasetError> {
        let session = match TraceFormat::Weka.parse_session(text) {
            Some(Ok(session)) => session,
            Some(Err(reason)) => {
                if !reading.options.skip_bad {
                    self.check_waiting(reading)?;
                }
                reading.rows += 1;
                return reading.bad(line, reason.into()).map(|()| true);
            }
            None => return Ok(true),
        };
        let before = reading.rows;
        reading.rows += session.requests.len() as u64;
        let mut is_known = false;
        for request in &session.requests {
            is_known = self.sizes.add(counts(&session, request));
        }
        self.waiting.push((line, before, session));
        if is_known || self.sessions as usize + self.waiting.len() >= reading.enough() {
            self.check_waiting(reading)?;
        }
        Ok((self.sessions as usize) < reading.enough())
    }

    fn check_waiting(&mut self, reading: &mut TraceReading<'_>) -> Result<(), DatasetError> {
        self.sizes.settle();
        for (line, before, session) in std::mem::take(&mut self.waiting) {
            self.add(line, before, &session, reading)?;
        }
        Ok(())
    }

    fn finish(mut self: Box<Self>, reading: &mut TraceReading<'_>) -> Result<Vec<Conversation>, DatasetError> {
        self.check_waiting(reading)?;
        let sessions = self.sessions;
        if !reading.options.live_sessions {
            reading.caveats.push(TraceCaveat::AssumedSessionStarts { live: LIVE_SESSIONS, sessions }.into());
        }
        let (relative, absolute, ambiguous) = (self.relative, self.absolute, self.ambiguous);
        if ambiguous > 0 || relative > 0 && absolute > 0 {
            reading.caveats.push(TraceCaveat::SubagentTimes { relative, absolute, ambiguous }.into());
        }
        if self.subagents > 0 && !reading.options.live_sessions {
            reading.caveats.push(DatasetCaveat::DetachedSubagents { subagents: self.subagents });
        }
        Ok(self.conversations)
    }
}

fn counts(session: &WekaSession, request: &WekaRequest) -> PromptCounts {
    PromptCounts {
        tokens: Some(request.input),
        blocks: Some(request.ids.len() as u64),
        block_tokens: session.block_tokens,
    }
}
