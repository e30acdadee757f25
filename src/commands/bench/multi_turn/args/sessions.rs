//! Flags for sessions: how many are live, where they start, and what they share.

use std::time::Duration;

use clap::ValueEnum;

use crate::commands::bench::env;
use crate::commands::cli::error::Failure;
use crate::commands::cli::time_flag::TimeParser;
use crate::engine::env::Env;
use crate::engine::load::workload::{Replay, SessionPrefix};
use crate::engine::load::{LiveSessionPlan, Seed};

/// Where the first sessions of a run start.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum SessionStart {
    /// At their first request
    Beginning,
    /// At a random point of their life. Before the run, the last request before that point is sent
    /// with one output token, so that the caches have the prefix
    Random,
}

/// Whether sessions have a prefix that no other session has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum UniquePrefix {
    /// Sessions share what they shared when they were recorded
    None,
    /// A prefix from the seed: runs with the same seed send the same requests
    Seed,
    /// A prefix from the seed and a random number, so that no run hits what an earlier one left in
    /// the caches
    Run,
}

/// A session is an agent with its subagents (Weka, AgentX), or else a conversation.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Sessions")]
pub struct SessionArgs {
    /// Keep N sessions live: when one ends, the next starts. Each request waits for what it waited
    /// for when it was recorded; recorded start times and --request-rate are not used [default: no
    /// fixed number]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub live_sessions: Option<u32>,
    /// After the last session, start again with the first one, until --duration ends
    #[arg(long, requires = "live_sessions")]
    pub repeat_sessions: bool,
    /// Where the first N sessions start
    #[arg(long, value_enum, default_value = "beginning", value_name = "WHERE")]
    pub session_start: SessionStart,
    /// Begin each prompt of a session with 8 tokens that no other session has
    #[arg(long, value_enum, default_value = "none", value_name = "KIND")]
    pub unique_prefix: UniquePrefix,
    /// Maximum delay between the end of a request and the start of the next one, e.g. 30s [default:
    /// as recorded]
    #[arg(long, value_name = "TIME", value_parser = TimeParser::any())]
    pub idle_max: Option<Duration>,
    /// Number of GPUs of the server, for the throughput per GPU [default: not reported]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub gpus: Option<u32>,
    /// The random number of this run, the same for all endpoints.
    #[arg(skip = env().rng())]
    pub run: u64,
}

impl SessionArgs {
    /// Returns which sessions are live; `None` without a fixed number.
    pub fn plan(&self) -> Option<LiveSessionPlan> {
        let live = self.live_sessions? as usize;
        let once = if self.session_start == SessionStart::Random { live } else { 0 };
        Some(LiveSessionPlan { live, once, repeat: self.repeat_sessions })
    }

    /// Applies the flags to the conversations of a dataset.
    ///
    /// # Errors Sessions cannot start at a random point, because their prompts contain responses
    /// that are not known.
    pub fn apply(&self, mut replay: Replay, seed: Seed) -> Result<Replay, Failure> {
        if let Some(LiveSessionPlan { once, .. }) = self.plan()
            && once > 0
        {
            if !replay.is_whole() {
                return Err(Failure::usage("--session-start random needs a trace of entire prompts")
                    .found("prompts that continue the server's own responses, which are not recorded")
                    .next("use --session-start beginning, or a trace (--dataset-name trace)"));
            }
            replay = replay.midway(once);
        }
        Ok(match self.unique_prefix {
            UniquePrefix::None => replay,
            UniquePrefix::Seed => replay.prefixed(SessionPrefix { run: seed.0 }),
            UniquePrefix::Run => replay.prefixed(SessionPrefix { run: seed.0 ^ self.run }),
        })
    }

    /// Rejects flags that need live sessions of a dataset.
    ///
    /// # Errors
    /// The flags conflict.
    pub fn check(&self, is_dataset: bool, is_single: bool, resumes: bool) -> Result<(), Failure> {
        let is_live = self.live_sessions.is_some();
        if is_live && !is_single {
            return Err(Failure::usage("--live-sessions works with a single run only")
                .found("a comparison, a sweep or a preset sets the load itself")
                .next("drop --live-sessions, or run each load on its own"));
        }
        if is_live && resumes {
            return Err(Failure::usage("--resume does not work with --live-sessions").next("start the run again"));
        }
        if self.session_start == SessionStart::Random && !is_live {
            return Err(
                Failure::usage("--session-start random needs a number of live sessions").next("add --live-sessions N")
            );
        }
        let needs_dataset = [
            ("--session-start random", self.session_start == SessionStart::Random),
            ("--unique-prefix", self.unique_prefix != UniquePrefix::None),
            ("--idle-max", self.idle_max.is_some()),
        ];
        match needs_dataset.into_iter().find(|(_, is_set)| *is_set && !is_dataset) {
            Some((flag, _)) => {
                Err(Failure::usage(format!("{flag} needs a dataset"))
                    .next("add --dataset-name trace --dataset-path FILE"))
            }
            None => Ok(()),
        }
    }
}
