//! What the core decides about responses, and how it makes that visible.

use crate::engine::base::Mono;

/// Which responses may be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ResponseLimits {
    /// Responses may be sent before this time. `None`: this master processes no more requests, because it hands over.
    /// The time that was published before holds for the responses that still wait.
    pub fence: Option<Mono>,
    /// Responses to changes up to this one may be sent. `None`: they wait for no standby.
    pub acked: Option<u64>,
    /// The required standbys have all changes up to this one, and so has every master that is elected. Responses to changes that
    /// hand out or free memory wait for this in every mode. `None`: no standby is required.
    pub replicated: Option<u64>,
}

/// The changes of the state, and the threads that respond to requests.
pub trait ResponseGate {
    /// The last change of the state.
    fn appended(&self) -> u64;

    /// Makes the limits visible to all threads that send responses.
    fn publish(&self, limits: ResponseLimits);

    /// The last change that a thread may have answered without looking at the limits that were published last. A thread
    /// appends a change before it looks at the limits. So this must be read in an order with the appends, for example
    /// under the lock that they use.
    fn appended_before_publish(&self) -> u64;
}
