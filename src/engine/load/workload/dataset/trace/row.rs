//! A row with one request: Mooncake's fields, those that aiperf and Dynamo add, and the rows of
//! other formats.

use mcctl_trace::TraceRow;

use crate::workload::dataset::openai::{cut, messages, tokens};
use crate::workload::dataset::trace::spans::length;
use crate::workload::{ChatMessage, RowError, json_text};

/// Maximum timestamp: ten years in milliseconds.
const TIME_MAX: f64 = 315_576_000_000.0;

pub(super) enum RowPrompt {
    Blocks(Vec<u64>),
    /// Only a number of tokens.
    Made(u32),
    Text(String),
    Messages(Vec<ChatMessage>),
}

/// The conversation of a row.
pub(super) enum RowSession {
    /// A conversation of its own.
    Own,
    Named(String),
    /// `parent`: the turn before.
    Chat {
        id: i64,
        parent: Option<i64>,
    },
}

pub(super) struct FlatRow {
    pub(super) prompt: RowPrompt,
    pub(super) output: Option<u32>,
    pub(super) input: Option<u32>,
    pub(super) block_tokens: Option<u64>,
    /// In the unit of the trace, as is `delay`.
    pub(super) at: Option<f64>,
    pub(super) delay: Option<f64>,
    pub(super) session: RowSession,
    /// Whether the messages are only the new ones.
    pub(super) delta: bool,
    pub(super) extra: Vec<(String, String)>,
    pub(super) tools: Option<String>,
}

/// Parses a row with Mooncake's fields.
pub(super) fn parse(text: &str) -> Result<FlatRow, RowError> {
    let mut blocks = None;
    let mut chat = None;
    let mut plain = None;
    let mut row = FlatRow {
        prompt: RowPrompt::Made(0),
        output: None,
        input: None,
        block_tokens: None,
        at: None,
        delay: None,
        session: RowSession::Own,
        delta: false,
        extra: Vec::new(),
        tools: None,
    };
    for (name, value) in json_text::members(text)? {
        if value == "null" {
            continue;
        }
        match name.as_str() {
            "hash_ids" => {
                let ids: Vec<u64> =
                    serde_json::from_str(value).map_err(|error| RowError::from(error).in_member("hash_ids"))?;
                blocks = Some(ids);
            }
            "block_size" => row.block_tokens = tokens(&name, value)?.map(u64::from),
            "messages" => chat = Some(messages(value)?),
            "text_input" => {
                plain =
                    Some(serde_json::from_str(value).map_err(|error| RowError::from(error).in_member("text_input"))?)
            }
            "input_length" | "input_tokens" => row.input = tokens(&name, value)?,
            // Some responses in traces have no tokens. In that case, one token is requested.
            "output_length" | "output_tokens" => {
                row.output = if value == "0" { Some(1) } else { tokens(&name, value)? }
            }
            "timestamp" | "created_time" => row.at = Some(time(&name, value)?),
            "delay" | "delay_ms" => row.delay = Some(time(&name, value)?),
            "session_id" => row.session = RowSession::Named(value.to_owned()),
            "message_mode" => {
                row.delta = match value {
                    "\"delta\"" => true,
                    "\"history\"" => false,
                    other => return Err(RowError::InvalidMessageMode(cut(other))),
                };
            }
            "extra" => {
                let members = json_text::members(value).map_err(|error| error.in_member("extra"))?;
                row.extra = members.into_iter().map(|(name, value)| (name, value.to_owned())).collect();
            }
            "tools" => row.tools = Some(value.to_owned()),
            _ => {}
        }
    }
    row.prompt = match (blocks, chat, plain, row.input) {
        (None, Some(chat), None, None) => RowPrompt::Messages(chat),
        (None, None, Some(plain), None) => RowPrompt::Text(plain),
        (Some(blocks), None, None, _) if !blocks.is_empty() => RowPrompt::Blocks(blocks),
        (_, None, None, Some(input)) => RowPrompt::Made(input),
        (None, None, None, None) => return Err(RowError::NoPrompt),
        (Some(_), None, None, None) => return Err(RowError::EmptyPrompt),
        _ => return Err(RowError::SeveralPrompts),
    };
    if row.delta && !matches!(row.prompt, RowPrompt::Messages(_)) {
        return Err(RowError::ModeWithoutMessages);
    }
    if row.delta && row.extra.iter().any(|(name, _)| name == "messages") {
        return Err(RowError::ExtraMessages);
    }
    Ok(row)
}

/// Parses a time of a row, in the unit of the trace.
fn time(name: &str, text: &str) -> Result<f64, RowError> {
    let time = serde_json::from_str(text).ok().filter(|time| (0.0..=TIME_MAX).contains(time));
    time.ok_or_else(|| RowError::InvalidTime { name: name.to_owned(), value: cut(text) })
}

impl FlatRow {
    /// Converts a row with hash IDs of another format. Links between turns are kept, names of
    /// sessions are not.
    pub(super) fn recorded(row: TraceRow) -> Result<FlatRow, RowError> {
        let ids = row.ids.filter(|ids| !ids.is_empty()).ok_or(RowError::EmptyPrompt)?;
        Ok(FlatRow {
            prompt: RowPrompt::Blocks(ids),
            output: row.output.map(|output| length(output.max(1))).transpose()?,
            input: row.input.map(length).transpose()?,
            block_tokens: row.block_tokens,
            at: row.at,
            delay: None,
            session: match row.chat {
                Some(chat) => RowSession::Chat { id: chat.id, parent: chat.parent },
                None => RowSession::Own,
            },
            delta: false,
            extra: Vec::new(),
            tools: None,
        })
    }
}
