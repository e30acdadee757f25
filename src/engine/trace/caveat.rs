//! Warnings about the validity of a trace.

use std::fmt;

use crate::times::TimeUnit;

/// A reason to distrust a part of the trace. Reading succeeded nevertheless.
#[derive(Clone, Debug, PartialEq)]
pub enum TraceCaveat {
    /// `rows` rows have an earlier time than a row before them. They were sorted.
    NotInTimeOrder { rows: u64 },
    /// With `unit`, the trace has `rate` requests per second, which is implausible. With the other
    /// unit, it has `other_rate`.
    TimeUnitDoubt { unit: TimeUnit, rate: f64, other_rate: f64 },
    /// `rows` rows have no time, so the times of all rows are ignored.
    MissingTimes { rows: u64 },
    /// The start of `rows` turns is the start of the turn before plus the recorded delay, because
    /// the trace does not record how long a turn took.
    DelaysWithoutDurations { rows: u64 },
    /// Sessions have no recorded start. `live` sessions at a time were assumed.
    AssumedSessionStarts { live: u32, sessions: u64 },
    /// Times inside `relative` subagents count from the start of the subagent, inside `absolute`
    /// ones from the start of the session. For `ambiguous` ones, both are possible.
    SubagentTimes { relative: u64, absolute: u64, ambiguous: u64 },
    /// Rows that were left out: `no_tokens` without prompt tokens, `no_time` without a time,
    /// `no_hashes` without block hashes.
    LeftOut { no_tokens: u64, no_time: u64, no_hashes: u64 },
    /// The first rounds of `sessions` sessions had `tokens` prefix tokens from other sessions. The
    /// trace does not record which, so they count as new.
    PrefixFromOtherSessions { sessions: u64, tokens: u64 },
    /// In `rounds` rounds, the recorded prefix is shorter than the prompt before, although the
    /// prompt grew: the provider's cache had dropped it. The whole prompt before counts as prefix.
    ProviderCacheMisses { rounds: u64 },
    /// In `rows` rows, the number of hashes does not match the recorded prompt length.
    HashCount { rows: u64 },
}

impl fmt::Display for TraceCaveat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TraceCaveat::NotInTimeOrder { rows } => {
                write!(f, "{rows} rows are not in time order; all rows were sorted by time")
            }
            TraceCaveat::TimeUnitDoubt { unit, rate, other_rate } => write!(
                f,
                "times are read as {unit}, which gives {rate:.4} requests/s; as {} it would be {other_rate:.4} requests/s",
                unit.other()
            ),
            TraceCaveat::MissingTimes { rows } => {
                write!(f, "{rows} rows have no time; the trace is used in file order, without times")
            }
            TraceCaveat::DelaysWithoutDurations { rows } => write!(
                f,
                "the start of {rows} turns is estimated: the delay counts from the start of the turn before, because \
                 the trace does not record when that turn ended"
            ),
            TraceCaveat::AssumedSessionStarts { live, sessions } => write!(
                f,
                "the start of the {sessions} sessions is not recorded; {live} sessions are assumed to be live at a time"
            ),
            TraceCaveat::SubagentTimes { relative, absolute, ambiguous } => write!(
                f,
                "times inside subagents count from the start of the subagent in {relative} subagents and from the \
                 start of the session in {absolute}; {ambiguous} of them fit both"
            ),
            TraceCaveat::LeftOut { no_tokens, no_time, no_hashes } => {
                let counts = [(no_tokens, "prompt tokens"), (no_time, "a time"), (no_hashes, "block hashes")];
                f.write_str("rows were left out: ")?;
                let counts = counts.into_iter().filter(|(rows, _)| **rows > 0);
                for (at, (rows, field)) in counts.enumerate() {
                    write!(f, "{}{rows} without {field}", if at > 0 { ", " } else { "" })?;
                }
                Ok(())
            }
            TraceCaveat::PrefixFromOtherSessions { sessions, tokens } => write!(
                f,
                "the first rounds of {sessions} sessions reused {tokens} tokens of other sessions; the trace does not \
                 record which, so these tokens count as new"
            ),
            TraceCaveat::ProviderCacheMisses { rounds } => write!(
                f,
                "in {rounds} rounds the provider's cache had dropped a part of the prompt before; that prompt counts \
                 as prefix nevertheless"
            ),
            TraceCaveat::HashCount { rows } => {
                write!(f, "in {rows} rows the number of hashes does not match the prompt length")
            }
        }
    }
}
