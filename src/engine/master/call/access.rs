//! Access to the state and the current time, for the RPC methods.
//!
//! There are two implementations: the server locks its state ([`server`](crate::server)), and
//! tests, simulations and benchmarks own theirs ([`DirectAccess`]).

use crate::effect::Effects;
use crate::restarted_writes::ConnectionId;
use crate::state::MasterState;
use mcctl_base::{ClientId, Mono};

/// Access to the state and the current time.
pub trait StateAccess {
    /// Runs `work` with the state locked.
    fn with_state<R>(&mut self, work: impl FnOnce(&mut MasterState, Mono, &mut Effects) -> R) -> R;
    /// The connection over which the call came.
    fn connection(&self) -> ConnectionId {
        ConnectionId::default()
    }
    /// The id of a client before 0.3.8, whose calls contain none: the same for all clients of a
    /// host.
    fn unnamed_client(&self) -> ClientId {
        ClientId::default()
    }
    /// Lets waiting callers proceed. For use between two lock acquisitions within one call.
    fn yield_to_waiters(&mut self) {}
}

/// Direct access to a state at a fixed time, for tests and simulations.
#[derive(Debug)]
pub struct DirectAccess<'a> {
    pub state: &'a mut MasterState,
    /// The fixed time, passed to every call.
    pub now: Mono,
    /// Receives the effects of the calls.
    pub effects: &'a mut Effects,
}

impl StateAccess for DirectAccess<'_> {
    fn with_state<R>(&mut self, work: impl FnOnce(&mut MasterState, Mono, &mut Effects) -> R) -> R {
        work(self.state, self.now, self.effects)
    }
}
