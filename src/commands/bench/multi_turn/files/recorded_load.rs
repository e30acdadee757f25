//! The load of a recorded run. Two recorded runs are comparable only if their loads are equal, and
//! a server that is compared with a recorded run gets its load.

use std::fmt::Write;

use md5::{Digest, Md5};
use serde::{Deserialize, Serialize};

use crate::commands::bench::multi_turn::{Args, DigestWriter};
use crate::engine::load::session::Session;

/// What determines the requests of a run and their times, apart from the seed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(in crate::commands::bench) struct RecordedLoad {
    /// Number of conversations over all blocks.
    pub conversations: u32,
    /// Number of blocks of a comparison; `None` for other runs.
    pub blocks: Option<u32>,
    /// Requests per second; `None` without a limit.
    pub request_rate: Option<f64>,
    /// Maximum number of requests in flight; `None` without a limit.
    pub max_parallel: Option<u32>,
    /// Digest of the conversations of all endpoints: prompts, turns and output lengths.
    pub prompts: String,
    /// Digest of the other flags: distribution of the gaps, order, duration, phases, requests and
    /// sweep.
    pub other_flags: String,
}

impl RecordedLoad {
    /// Returns the load of `session`, planned from `args`. The first endpoint stands for all,
    /// because the endpoints of a comparison get the same conversations.
    pub(in crate::commands::bench::multi_turn) fn of(args: &Args, session: &Session) -> RecordedLoad {
        let mut prompts = DigestWriter(Md5::new());
        let mut conversations = 0;
        if let Some(side) = session.sides.first() {
            for script in side.workload.scripts() {
                conversations += 1;
                prompts.0.update(format!("{script:?}"));
            }
            side.workload.fingerprint(&mut prompts).expect("writing to a digest cannot fail");
        }
        let mut other = DigestWriter(Md5::new());
        let load = &args.load;
        let flags = (&load.distribution, &load.ready_queue_policy, load.enable_round_barrier, load.duration);
        let flags = format!("{flags:?} {:?} {:?} {:?} {:?}", args.phases, args.request, args.sweep, args.endpoint.api);
        other.write_str(&flags).expect("writing to a digest cannot fail");
        let compares = args.compare.against.is_some() || args.compare.self_compare;
        RecordedLoad {
            conversations,
            blocks: args.recorded_blocks.or(compares.then(|| args.compare.blocks())),
            request_rate: Some(args.load.rate()).filter(|rate| rate.is_finite()),
            max_parallel: args.load.max_parallel,
            prompts: prompts.hex(),
            other_flags: other.hex(),
        }
    }

    /// Returns how the loads of two runs differ: the flag or the part of the load, and both values.
    pub(in crate::commands::bench::multi_turn) fn differences(&self, other: &RecordedLoad) -> Vec<String> {
        // One pass is a block.
        let blocks = |load: &RecordedLoad| load.blocks.unwrap_or(1).to_string();
        let count = |value: Option<u32>| value.map_or("none".to_owned(), |value| value.to_string());
        let rate = |value: Option<f64>| value.map_or("inf".to_owned(), |value| value.to_string());
        let values = [
            ("--request-rate", rate(self.request_rate), rate(other.request_rate)),
            ("conversations", self.conversations.to_string(), other.conversations.to_string()),
            ("--blocks", blocks(self), blocks(other)),
            ("--max-parallel", count(self.max_parallel), count(other.max_parallel)),
        ];
        let differ = values.into_iter().filter(|(_, a, b)| a != b);
        let mut found: Vec<String> = differ.map(|(name, a, b)| format!("{name} {a} and {b}")).collect();
        if self.conversations == other.conversations && self.prompts != other.prompts {
            found.push("other prompts or output lengths".to_owned());
        }
        if self.other_flags != other.other_flags {
            found.push("other flags for load, requests or phases".to_owned());
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn differences_have_the_flag_and_both_values() {
        let load = RecordedLoad {
            conversations: 8,
            blocks: None,
            request_rate: Some(40.0),
            max_parallel: Some(128),
            prompts: "p".to_owned(),
            other_flags: "f".to_owned(),
        };
        assert!(load.differences(&load).is_empty());
        let other = RecordedLoad { request_rate: None, blocks: Some(4), prompts: "q".to_owned(), ..load.clone() };
        let found = load.differences(&other);
        assert_eq!(found.len(), 3);
        assert_eq!(found[0], "--request-rate 40 and inf");
        // More conversations have other prompts anyway.
        let more = RecordedLoad { conversations: 9, prompts: "q".to_owned(), ..load.clone() };
        assert_eq!(load.differences(&more), ["conversations 8 and 9"]);
    }
}
