//! The interface between a server's connections and the service that handles their requests.

use std::pin::Pin;

use crate::engine::wire::{DecodeError, Method};

/// A wait until changes are stored. `false`: they cannot be stored.
pub type CommitWait<'a> = Pin<Box<dyn Future<Output = bool> + Send + 'a>>;

/// Handles requests: one call at a time per connection, from several threads.
pub trait RpcService: Send + Sync + 'static {
    /// Appends the response body to `out`. `peer` is the client's address.
    ///
    /// # Errors
    /// The body cannot be decoded as the method's arguments. `out` must then be unchanged.
    fn answer(&self, peer: &str, method: Method, body: &[u8], out: &mut Vec<u8>) -> Result<(), DecodeError>;

    /// Stores what the calls on this thread have changed. Called before their responses are sent, on the thread that called
    /// [`answer`](RpcService::answer), with no other task in between. `None`: the responses may be sent. Otherwise, they are sent after the
    /// wait if it returns true. If it returns false, the connection is closed without them.
    fn commit(&self) -> Option<CommitWait<'_>> {
        None
    }

    /// Returns true if a call to this method can take long, such as a scan of all keys. The call then runs on a separate thread, so that
    /// the worker continues to serve its other connections. At most
    /// [`LONG_CALLS_MAX`](crate::engine::rpc::connection::LONG_CALLS_MAX) long calls run concurrently.
    fn is_long(&self, _method: Method) -> bool {
        false
    }
}
