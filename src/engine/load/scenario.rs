//! The rules of AgentX, a public scenario for agentic load, and whether a run has followed them.

use std::time::Duration;

use serde::Serialize;

/// Shortest run.
pub const DURATION_MIN: Duration = Duration::from_secs(900);
/// Longest delay between the end of a request and the start of the next one.
pub const IDLE_MAX: Duration = Duration::from_secs(10);
/// Largest share of requests that exceed the model's context.
pub const OVERFLOW_MAX: f64 = 0.01;

/// What a run did, as far as the rules concern it.
#[derive(Clone, Debug, Default)]
pub struct ScenarioRun {
    /// Whether the requests are those of recorded session trees.
    pub has_session_trees: bool,
    /// Number of live sessions.
    pub live_sessions: Option<u32>,
    /// Whether the first sessions started at a random point of their life.
    pub starts_midway: bool,
    /// Whether each session has a prefix of its own that differs between runs.
    pub has_unique_prefix: bool,
    /// Limit of the delays.
    pub idle_max: Option<Duration>,
    /// Whether lengths, turns and times are those of the trace.
    pub is_unchanged: bool,
    pub streams: bool,
    pub ignores_eos: bool,
    /// Whether the seed was set on the command line.
    pub has_seed: bool,
    /// How long requests were sent.
    pub sent_for: Duration,
    /// Whether the run ended early.
    pub is_incomplete: bool,
    /// Requests that ended, and those that exceeded the model's context.
    pub requests: u64,
    pub context_overflows: u64,
}

/// A rule, and whether the run has followed it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct RuleCheck {
    /// Name of the rule.
    pub rule: &'static str,
    pub met: bool,
    /// What the rule requires.
    pub required: &'static str,
    /// What was found.
    pub found: String,
}

/// Checks all rules.
pub fn check(run: &ScenarioRun) -> Vec<RuleCheck> {
    let yes_no = |yes: bool| if yes { "yes" } else { "no" }.to_owned();
    let rule = |rule, required, met, found: String| RuleCheck { rule, met, required, found };
    let overflow = if run.requests == 0 { 0.0 } else { run.context_overflows as f64 / run.requests as f64 };
    let idle = run.idle_max.map_or("as recorded".to_owned(), |idle| format!("{} s", idle.as_secs_f64()));
    vec![
        rule(
            "session_trees",
            "requests of recorded session trees",
            run.has_session_trees,
            yes_no(run.has_session_trees),
        ),
        rule(
            "live_sessions",
            "a fixed number of live sessions",
            run.live_sessions.is_some(),
            run.live_sessions.map_or("none".to_owned(), |live| live.to_string()),
        ),
        rule(
            "session_start",
            "the first sessions start at a random point",
            run.starts_midway,
            yes_no(run.starts_midway),
        ),
        rule(
            "unique_prefix",
            "a prefix for each session and run",
            run.has_unique_prefix,
            yes_no(run.has_unique_prefix),
        ),
        rule("idle_max", "delays of at most 10 s", run.idle_max.is_some_and(|idle| idle <= IDLE_MAX), idle),
        rule(
            "unchanged",
            "all requests of the trace, with their lengths and times, in one pass",
            run.is_unchanged,
            yes_no(run.is_unchanged),
        ),
        rule("streaming", "streamed responses", run.streams, yes_no(run.streams)),
        rule("ignore_eos", "responses of the recorded length", run.ignores_eos, yes_no(run.ignores_eos)),
        rule("seed", "a seed on the command line", run.has_seed, yes_no(run.has_seed)),
        rule(
            "duration",
            "at least 900 s",
            run.sent_for >= DURATION_MIN,
            format!("{:.1} s", run.sent_for.as_secs_f64()),
        ),
        rule("complete", "a run that was not ended early", !run.is_incomplete, yes_no(!run.is_incomplete)),
        rule(
            "context_overflow",
            "at most 1 % of the requests exceed the context",
            run.requests > 0 && overflow <= OVERFLOW_MAX,
            format!("{:.2} % of {} requests", overflow * 100.0, run.requests),
        ),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn valid() -> ScenarioRun {
        ScenarioRun {
            has_session_trees: true,
            live_sessions: Some(8),
            starts_midway: true,
            has_unique_prefix: true,
            idle_max: Some(IDLE_MAX),
            is_unchanged: true,
            streams: true,
            ignores_eos: true,
            has_seed: true,
            sent_for: DURATION_MIN,
            is_incomplete: false,
            requests: 1000,
            context_overflows: 10,
        }
    }

    fn broken(run: &ScenarioRun) -> Vec<&'static str> {
        check(run).iter().filter(|check| !check.met).map(|check| check.rule).collect()
    }

    #[test]
    fn each_rule_can_be_broken() {
        assert_eq!(broken(&valid()), [""; 0]);
        type Change = fn(&mut ScenarioRun);
        let cases: [(&str, Change); 12] = [
            ("session_trees", |run| run.has_session_trees = false),
            ("live_sessions", |run| run.live_sessions = None),
            ("session_start", |run| run.starts_midway = false),
            ("unique_prefix", |run| run.has_unique_prefix = false),
            ("idle_max", |run| run.idle_max = Some(Duration::from_secs(11))),
            ("unchanged", |run| run.is_unchanged = false),
            ("streaming", |run| run.streams = false),
            ("ignore_eos", |run| run.ignores_eos = false),
            ("seed", |run| run.has_seed = false),
            ("duration", |run| run.sent_for = Duration::from_secs(899)),
            ("complete", |run| run.is_incomplete = true),
            ("context_overflow", |run| run.context_overflows = 11),
        ];
        for (rule, change) in cases {
            let mut run = valid();
            change(&mut run);
            assert_eq!(broken(&run), [rule]);
        }
    }
}
