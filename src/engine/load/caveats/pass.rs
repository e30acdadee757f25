//! The caveats about a pass and about a session as a whole.

use std::time::Duration;

use crate::LoadCaveat;
use crate::measure::is_late;
use crate::plan::OfferedLoad;
use crate::session::{PassResult, SessionResult};

/// A median wait for a concurrency slot above this shows that the rate is too high.
const WAIT_MAX: Duration = Duration::from_millis(1);

impl PassResult {
    /// Returns the caveats about the pass at this `load`.
    pub fn caveats(&self, load: &OfferedLoad) -> Vec<LoadCaveat> {
        let tally = &self.tally;
        let all = &self.tally.all;
        let ms = |duration: Duration| duration.as_secs_f64() * 1e3;
        let mut caveats = Vec::new();
        if let (Some(lag), Some(ttft)) = (tally.lag.summary(), all.ttft.summary())
            && is_late(&lag, &ttft)
        {
            caveats.push(LoadCaveat::GeneratorLag { lag_ms: ms(lag.p99.unwrap_or(lag.max)) });
        }
        if let Some(wait) = tally.wait.summary()
            && wait.p50 > WAIT_MAX
            && load.rate.is_finite()
        {
            caveats.push(LoadCaveat::ConcurrencyWait { p50_ms: ms(wait.p50), limit: load.in_flight() });
        }
        caveats.extend(self.ran.caveats().into_iter().map(LoadCaveat::Generator));
        if all.tokens.uncounted > 0 {
            caveats.push(LoadCaveat::UncountedTokens { frames: all.tokens.uncounted });
        }
        if tally.bad_frames > 0 {
            caveats.push(LoadCaveat::UnreadableFrames { frames: tally.bad_frames });
        }
        let observed = self.observed.iter().flat_map(|observed| &observed.caveats);
        caveats.extend(observed.cloned().map(LoadCaveat::Server));
        caveats
    }
}

impl SessionResult {
    /// Returns a caveat if a failed step ended the schedule.
    pub fn caveat(&self) -> Option<LoadCaveat> {
        self.failed_step.clone().map(LoadCaveat::Incomplete)
    }
}
