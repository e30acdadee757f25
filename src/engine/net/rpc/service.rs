//! The interface between a server's connections and the service that handles their requests.

use std::pin::Pin;

use crate::rpc::receipt::Receipt;
use mcctl_base::HostPort;
use mcctl_wire::{DecodeError, Method, MethodLayout};

/// A wait until changes are stored. `false`: they cannot be stored.
pub type CommitWait<'a> = Pin<Box<dyn Future<Output = bool> + Send + 'a>>;

/// A wait until a request can be processed.
pub type AdmissionWait<'a> = Pin<Box<dyn Future<Output = Admitted> + Send + 'a>>;

/// The result of the wait of a request that was not processed at once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Admitted {
    /// Process the request now.
    Proceed,
    /// Forward it, and all later bytes of its connection, to this address.
    Forward(HostPort),
    /// Close the connection without a response.
    Close,
}

/// A request with the layout of its client's release.
#[derive(Clone, Copy, Debug)]
pub struct RpcCall<'a> {
    /// The client's address, `host:port`.
    pub peer: &'a str,
    pub method: Method,
    pub layout: &'static MethodLayout,
    pub body: &'a [u8],
}

/// Handles requests: one call at a time per connection, from several threads.
pub trait RpcService: Send + Sync + 'static {
    /// Appends the response body to `out`, and returns what the response waits for
    /// ([`commit`](RpcService::commit)).
    ///
    /// # Errors
    /// The body cannot be decoded as the method's arguments. The call then has changed nothing, and
    /// `out` must be unchanged.
    fn answer(&self, call: RpcCall<'_>, out: &mut Vec<u8>) -> Result<Receipt, DecodeError>;

    /// Whether a request can be processed now. Otherwise, wait for its
    /// [`admission`](RpcService::admission).
    fn admits(&self, _method: Method) -> bool {
        true
    }

    /// Waits until a request can be processed, or its connection must be forwarded or closed.
    fn admission(&self, _method: Method) -> AdmissionWait<'_> {
        Box::pin(std::future::ready(Admitted::Proceed))
    }

    /// Stores what calls have changed. Called before their responses are sent, with their merged
    /// receipts. `None`: the responses may be sent. Otherwise, they are sent after the wait if it
    /// returns true. If it returns false, the connection is closed without them.
    fn commit(&self, _receipt: Receipt) -> Option<CommitWait<'_>> {
        None
    }

    /// Returns true if a call to this method can take long, such as a scan of all keys. The call
    /// then runs on a separate thread, so that the worker continues to serve its other connections.
    /// At most [`LONG_CALLS_MAX`](crate::rpc::connection::LONG_CALLS_MAX) long calls run
    /// concurrently.
    fn is_long(&self, _method: Method) -> bool {
        false
    }
}
