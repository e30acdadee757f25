//! The limits for responses that the core publishes.

use mcctl_base::Mono;

/// The limits up to which responses may be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ResponseLimits {
    /// Responses may be sent before this time. `None`: this master processes no more requests,
    /// because it hands over. The time that was published before still applies to waiting
    /// responses.
    pub fence: Option<Mono>,
    /// Responses to changes up to this one may be sent. `None`: they wait for no standby.
    pub acked: Option<u64>,
    /// The required standbys have all changes up to this one, and so has every master that is
    /// elected. Responses to changes that hand out or free memory wait for this in every mode.
    /// `None`: no standby is required.
    pub replicated: Option<u64>,
    /// The barrier in the sync record: responses to later changes wait if they permit a client to
    /// overwrite memory, or report a removal or replacement. `None`: there is none.
    pub barrier: Option<u64>,
}

/// The changes of the state, and the threads that respond to requests.
pub trait ResponseGate {
    /// The last change of the state.
    fn appended(&self) -> u64;

    /// Makes the limits visible to all threads that send responses.
    fn publish(&self, limits: ResponseLimits);

    /// The last change that a thread may have answered without reading the limits that were
    /// published last. A thread appends a change before it reads the limits. So this value must be
    /// read in a defined order with the appends, for example under their lock.
    fn appended_before_publish(&self) -> u64;
}
