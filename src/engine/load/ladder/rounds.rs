//! The rounds of a tier ladder: the first one sends the same number of prompts of each length, and
//! each further one more prompts of the lengths whose intervals are still too wide.

use std::ops::Range;
use std::time::Duration;

use serde::Serialize;

use crate::ladder::median::error_of_looks;
use crate::ladder::{COMPARISON_LEVEL, Ladder, LadderPrompts, LadderTier, result};
use crate::server::ServerInfo;
use crate::session::{
    AfterPass, Control, Figure, LoadEndpoint, MoreSteps, Observer, PassPlan, PassResult, Session, SessionStep, Tier,
};
use crate::{Pace, Rules};
use mcctl_base::Mono;
use mcctl_base::text::counted;
use mcctl_sys::env::Env;

/// How many prompts a ladder sends.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct LadderLimits {
    /// Number of prompts per length in the first round.
    pub repeats: u32,
    /// Maximum number of prompts per length.
    pub repeats_max: u32,
    /// An interval is narrow enough if each bound is at most this share of the TTFT of computing
    /// away from its middle.
    pub precision: f64,
    /// No round starts after this time.
    #[serde(rename = "max_time_s", serialize_with = "seconds")]
    pub time_max: Duration,
}

impl LadderLimits {
    /// Returns the number of prompts that each further round adds, if the limit allows it.
    fn added(&self) -> u32 {
        self.repeats.div_ceil(2).max(1)
    }

    /// Returns the probability that a tier which takes as long as computing at some length gets the
    /// verdict faster or slower there. It is higher than that of one interval, because each round
    /// may lead to a verdict.
    pub fn verdict_error(&self) -> f64 {
        let looks = (self.repeats..self.repeats_max).step_by(self.added() as usize).chain([self.repeats_max]);
        error_of_looks(&looks.map(|look| look as usize).collect::<Vec<_>>(), COMPARISON_LEVEL)
    }
}

fn seconds<S: serde::Serializer>(value: &Duration, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_f64(value.as_secs_f64())
}

/// Why a ladder sent no further prompts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum LadderEnd {
    /// All intervals are narrow enough.
    Precise,
    MaxRepeats,
    MaxTime,
    /// A signal or a failed step ended the run.
    #[default]
    Interrupted,
}

/// Plans the rounds. Observes the session to learn the results of each.
pub struct LadderRounds<E: Env> {
    env: E,
    prompts: LadderPrompts,
    limits: LadderLimits,
    info: ServerInfo,
    began: Mono,
    rounds: u32,
    figures: Vec<(LadderTier, Figure)>,
    end: LadderEnd,
}

impl<E: Env> LadderRounds<E> {
    /// Plans for a server with these settings. The time starts now.
    pub fn new(env: E, prompts: LadderPrompts, limits: LadderLimits, info: ServerInfo) -> LadderRounds<E> {
        let began = env.now();
        LadderRounds { env, prompts, limits, info, began, rounds: 0, figures: Vec::new(), end: LadderEnd::default() }
    }

    /// Returns the session that climbs the ladder at `side`, with the first round.
    pub fn session(&mut self, side: LoadEndpoint) -> Session {
        let mut schedule = vec![(0, SessionStep::Control(Control::Warm(2)))];
        schedule.extend(self.round(&self.prompts.lengths.clone(), self.limits.repeats));
        Session { sides: vec![side], schedule: schedule.into(), seed: self.prompts.seed, keep_figures: true }
    }

    /// Returns the number of rounds that have started.
    pub fn rounds(&self) -> u32 {
        self.rounds
    }

    /// Returns why no further round was planned.
    pub fn end(&self) -> LadderEnd {
        self.end
    }

    /// Plans `repeats` prompts of each of `lengths`.
    fn round(&mut self, lengths: &[u32], repeats: u32) -> Vec<(usize, SessionStep)> {
        self.rounds += 1;
        let added = self.prompts.add(lengths, repeats);
        // The limit ensures that a whole group, including its outputs, fits in L1.
        let groups = self.prompts.groups(added, self.info.device_tokens.unwrap_or(0) * 2 / 5);
        steps(&groups, self.info.has_host, self.info.storage.is_some())
    }
}

impl<E: Env> Observer for LadderRounds<E> {
    fn pass_ended(&mut self, pass: &PassResult) -> AfterPass {
        self.figures.extend(result::tier_figures(std::slice::from_ref(pass)));
        AfterPass::Continue
    }

    fn more_steps(&mut self) -> Option<MoreSteps> {
        let LadderLimits { repeats_max, precision, time_max, .. } = self.limits;
        let ladder = Ladder::of(&self.prompts, self.info.page_size.unwrap_or(1), &self.figures);
        let unsettled = ladder.unsettled(precision);
        let counts = self.prompts.counts();
        let count = |length: &u32| counts.get(length).copied().unwrap_or(0);
        let lengths: Vec<u32> = unsettled.iter().copied().filter(|length| count(length) < repeats_max).collect();
        self.end = match (unsettled.is_empty(), lengths.is_empty()) {
            (true, _) => LadderEnd::Precise,
            (_, true) => LadderEnd::MaxRepeats,
            _ if self.env.now().since(self.began) >= time_max => LadderEnd::MaxTime,
            // A signal that arrives during the round leaves this value.
            _ => LadderEnd::Interrupted,
        };
        if self.end != LadderEnd::Interrupted {
            return None;
        }
        let most = lengths.iter().map(count).max().unwrap_or(0);
        let more = self.limits.added().min(repeats_max - most.min(repeats_max)).max(1);
        let steps = self.round(&lengths, more);
        let listed: Vec<String> = lengths.iter().map(u32::to_string).collect();
        let note = format!(
            "round {}: {} of {} tokens, to narrow the intervals",
            self.rounds,
            counted(more, "more prompt"),
            listed.join(", ")
        );
        Some(MoreSteps { note, steps })
    }
}

/// Plans the steps for the prompts in `groups`. Each group is sent up to four times: once to be
/// computed, again immediately (from L1), again after other requests have evicted it from L1 (from
/// L2), and again after a flush of L1 and L2 (from L3).
fn steps(groups: &[Range<u32>], has_host: bool, has_storage: bool) -> Vec<(usize, SessionStep)> {
    let pass = |rung: LadderTier, part: &Range<u32>| {
        let plan = PassPlan {
            name: rung.name().to_owned(),
            block: 0,
            part: part.clone(),
            pace: Pace::Closed { conversations: 1 },
            rules: Rules { in_flight: 1, ..Rules::default() },
            duration: Duration::from_secs(24 * 3600),
        };
        SessionStep::Pass(Box::new(plan))
    };
    let mut steps = Vec::new();
    for part in groups {
        steps.extend([SessionStep::Control(Control::Settle), SessionStep::Control(Control::Flush)]);
        steps.extend([pass(LadderTier::Cold, part), pass(LadderTier::Device, part)]);
        if has_host {
            steps.extend([
                SessionStep::Control(Control::Settle),
                SessionStep::Control(Control::Fill(Tier::Device)),
                pass(LadderTier::Host, part),
            ]);
        }
        if has_storage {
            steps.extend([
                SessionStep::Control(Control::Settle),
                SessionStep::Control(Control::Flush),
                pass(LadderTier::Storage, part),
            ]);
        }
    }
    steps.into_iter().map(|step| (0, step)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::session::PassId;
    use crate::{Seed, Turn};
    use mcctl_sys::env::RealEnv;

    #[test]
    fn schedule_skips_tiers_that_the_server_lacks() {
        let names = |steps: Vec<(usize, SessionStep)>| {
            let passes = steps.into_iter().filter_map(|(_, step)| match step {
                SessionStep::Pass(plan) => Some(plan.name),
                SessionStep::Control(_) => None,
            });
            passes.collect::<Vec<_>>()
        };
        assert_eq!(names(steps(&[0..1, 1..2], false, false)), ["cold", "device", "cold", "device"]);
        assert_eq!(names(steps(&[0..1; 1], true, true)), ["cold", "device", "host", "storage"]);
    }

    /// Computing takes 100 ms, and L1 20 ms; the prompt `outlier` takes 480 ms from L1.
    fn rounds(limits: LadderLimits, outlier: u32) -> (LadderRounds<RealEnv>, u32) {
        let prompts = LadderPrompts::new(vec![512, 1024], 1000, 1, Seed(1));
        let info = ServerInfo { device_tokens: Some(4096), page_size: Some(16), ..ServerInfo::default() };
        let mut rounds = LadderRounds::new(RealEnv::new(), prompts.clone(), limits, info);
        let mut more = rounds.round(&[512, 1024], limits.repeats);
        let mut sent = 0;
        while !more.is_empty() {
            for (_, step) in more {
                let SessionStep::Pass(plan) = step else { continue };
                let id = PassId { side: 0, side_name: "A".to_owned(), name: plan.name, block: 0 };
                let mut pass = PassResult::new(id);
                let is_device = pass.id.name == "device";
                for conversation in plan.part {
                    let prompt = prompts.length(conversation);
                    let cached = if is_device { (prompt - 1) / 16 * 16 } else { 0 };
                    let ms = if conversation == outlier { 480 } else { 20 };
                    pass.figures.push(Figure {
                        turn: Turn { conversation, index: 0 },
                        well: true,
                        ttft: Duration::from_millis(if is_device { ms } else { 100 }),
                        e2e: Duration::ZERO,
                        tpot: None,
                        lag: Duration::ZERO,
                        prompt,
                        completion: 1,
                        device: cached,
                        host: 0,
                        storage: 0,
                        cached,
                        expected: None,
                    });
                    sent += u32::from(is_device);
                }
                rounds.pass_ended(&pass);
            }
            more = rounds.more_steps().map(|more| more.steps).unwrap_or_default();
        }
        (rounds, sent)
    }

    const LIMITS: LadderLimits =
        LadderLimits { repeats: 8, repeats_max: 24, precision: 0.1, time_max: Duration::from_secs(3600) };

    #[test]
    fn only_lengths_with_wide_intervals_get_more_prompts() {
        let (clean, sent) = rounds(LIMITS, u32::MAX);
        assert_eq!((sent, clean.rounds(), clean.end()), (16, 1, LadderEnd::Precise));
        // The outlier has 1024 tokens.
        let (disturbed, sent) = rounds(LIMITS, 3);
        assert_eq!((sent, disturbed.rounds(), disturbed.end()), (20, 2, LadderEnd::Precise));
        let ladder = Ladder::of(&disturbed.prompts, 16, &disturbed.figures);
        assert_eq!(ladder.break_even[0].shown_from, Some(512));
    }

    #[test]
    fn further_rounds_raise_the_probability_of_a_wrong_verdict() {
        let once = LadderLimits { repeats_max: 8, ..LIMITS }.verdict_error();
        assert!((once - 2.0 / 256.0).abs() < 1e-12);
        assert!((0.01..0.02).contains(&LIMITS.verdict_error()), "{}", LIMITS.verdict_error());
    }

    #[test]
    fn limits_end_the_rounds() {
        let (few, sent) = rounds(LadderLimits { repeats: 3, repeats_max: 6, ..LIMITS }, u32::MAX);
        assert_eq!((sent, few.rounds(), few.end()), (12, 3, LadderEnd::MaxRepeats));
        let (late, sent) = rounds(LadderLimits { repeats: 3, time_max: Duration::ZERO, ..LIMITS }, u32::MAX);
        assert_eq!((sent, late.rounds(), late.end()), (6, 1, LadderEnd::MaxTime));
    }
}
