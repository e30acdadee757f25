//! Phases: the state of the server's caches before and between the passes of a run.

use crate::session::{Control, PassPlan, SessionStep, Tier};

/// A phase of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Flush L1 and L2.
    Flush,
    /// Clear L3 and verify that it is empty.
    Clear,
    /// Send requests that share no prefix with the measured ones.
    Warm,
    /// Send each shared system prompt once.
    Prime,
    /// Wait until pending writes to L2 and L3 have completed.
    FlushWait,
    /// Measured: run the conversations.
    First,
    /// Fill L1 with other conversations.
    EvictDevice,
    /// Fill L2 with other conversations.
    EvictHost,
    /// Measured: run the same conversations again.
    Repeat,
}

/// Phases that cannot run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PhaseError {
    #[error("the phases include no measured phase")]
    NotMeasured,
    #[error("warm-up requests need the warm phase")]
    NoWarmPhase,
}

/// The steps around a measured pass.
#[derive(Clone, Debug, Default)]
pub struct PhasePlan {
    phases: Vec<Phase>,
    warmup_requests: Option<u32>,
    flush_first: bool,
}

impl PhasePlan {
    /// Without `phases`, the pass follows the `warmup_requests` and, if `flush_first` is set, a
    /// flush of L1 and L2. With `phases`, `warmup_requests` is the number of requests in the warm
    /// phase (1 by default), and `flush_first` has no effect.
    ///
    /// # Errors
    /// `phases` has no measured phase, or `warmup_requests` has no warm phase.
    pub fn new(phases: Vec<Phase>, warmup_requests: Option<u32>, flush_first: bool) -> Result<PhasePlan, PhaseError> {
        if !phases.is_empty() {
            if !phases.iter().any(|phase| matches!(phase, Phase::First | Phase::Repeat)) {
                return Err(PhaseError::NotMeasured);
            }
            if warmup_requests.is_some() && !phases.contains(&Phase::Warm) {
                return Err(PhaseError::NoWarmPhase);
            }
        }
        Ok(PhasePlan { phases, warmup_requests, flush_first })
    }

    /// Returns whether any of `phases` is part of the plan.
    pub fn has(&self, phases: &[Phase]) -> bool {
        self.phases.iter().any(|phase| phases.contains(phase))
    }

    /// Returns whether the plan itself determines when caches are flushed.
    pub(super) fn decides_flushes(&self) -> bool {
        !self.phases.is_empty() || self.flush_first
    }

    /// Returns whether caches are flushed before each pass.
    pub(super) fn flush_first(&self) -> bool {
        self.flush_first
    }

    /// Returns the warm-up without phases.
    pub(super) fn warmup(&self) -> Option<SessionStep> {
        let requests = self.warmup_requests.filter(|requests| *requests > 0 && self.phases.is_empty());
        requests.map(|requests| SessionStep::Control(Control::Warm(requests)))
    }

    /// Returns the steps of a run with the measured pass `run`.
    pub fn steps(&self, run: PassPlan) -> Vec<SessionStep> {
        if self.phases.is_empty() {
            let flush = self.flush_first.then_some(SessionStep::Control(Control::Flush));
            return self.warmup().into_iter().chain(flush).chain([SessionStep::Pass(Box::new(run))]).collect();
        }
        let named = |name: &str| SessionStep::Pass(Box::new(PassPlan { name: name.to_owned(), ..run.clone() }));
        let step = |phase: &Phase| match phase {
            Phase::Flush => SessionStep::Control(Control::Flush),
            Phase::Clear => SessionStep::Control(Control::Clear),
            Phase::Warm => SessionStep::Control(Control::Warm(self.warmup_requests.unwrap_or(1))),
            Phase::Prime => SessionStep::Control(Control::Prime),
            Phase::FlushWait => SessionStep::Control(Control::Settle),
            Phase::EvictDevice => SessionStep::Control(Control::Fill(Tier::Device)),
            Phase::EvictHost => SessionStep::Control(Control::Fill(Tier::Host)),
            Phase::First => named("first"),
            Phase::Repeat => named("repeat"),
        };
        self.phases.iter().map(step).collect()
    }
}

/// Profiler calls around each measured pass.
#[derive(Clone, Debug, Default)]
pub struct ProfileCalls {
    pub before: Option<Control>,
    pub after: Option<Control>,
}

impl ProfileCalls {
    /// Returns `steps` with the calls around each pass.
    pub fn around(&self, steps: Vec<SessionStep>) -> Vec<SessionStep> {
        let around = |step: SessionStep| {
            let is_pass = matches!(step, SessionStep::Pass(_));
            let call = |control: &Option<Control>| control.clone().filter(|_| is_pass).map(SessionStep::Control);
            call(&self.before).into_iter().chain([step]).chain(call(&self.after))
        };
        steps.into_iter().flat_map(around).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::OfferedLoad;

    fn steps(phases: &[Phase], warmup: Option<u32>, flush_first: bool) -> Result<Vec<String>, PhaseError> {
        let plan = PhasePlan::new(phases.to_vec(), warmup, flush_first)?;
        let word = |step: SessionStep| match step {
            SessionStep::Pass(plan) => plan.name,
            SessionStep::Control(step) => step.to_string(),
        };
        Ok(plan.steps(OfferedLoad::default().pass("run", 0, 0..1)).into_iter().map(word).collect())
    }

    #[test]
    fn phases_keep_their_order_and_need_a_measured_one() {
        let phases = [Phase::Flush, Phase::Clear, Phase::First, Phase::FlushWait, Phase::EvictDevice, Phase::Repeat];
        let expected = [
            "flush device and host",
            "clear the store",
            "first",
            "wait for write-back",
            "fill the device with unrelated requests",
            "repeat",
        ];
        assert_eq!(steps(&phases, None, false).expect("steps"), expected);
        assert_eq!(steps(&[Phase::Flush, Phase::FlushWait], None, false), Err(PhaseError::NotMeasured));
        assert_eq!(steps(&[Phase::First], Some(5), false), Err(PhaseError::NoWarmPhase));
    }

    #[test]
    fn without_phases_only_warmup_and_flush_precede_the_run() {
        assert_eq!(steps(&[], None, false).expect("steps"), ["run"]);
        let found = steps(&[], Some(3), true).expect("steps");
        assert_eq!(found, ["warm up with 3 requests", "flush device and host", "run"]);
    }

    #[test]
    fn profiler_calls_surround_each_pass() {
        let calls = ProfileCalls { before: Some(Control::Prime), after: Some(Control::Clear) };
        let pass = || SessionStep::Pass(Box::new(OfferedLoad::default().pass("run", 0, 0..1)));
        let around = calls.around(vec![SessionStep::Control(Control::Flush), pass()]);
        let is =
            |step: &SessionStep, control: Control| matches!(step, SessionStep::Control(found) if *found == control);
        assert!(is(&around[0], Control::Flush) && is(&around[1], Control::Prime) && is(&around[3], Control::Clear));
        assert_eq!(around.len(), 4);
    }
}
