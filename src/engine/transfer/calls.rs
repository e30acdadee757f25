//! The way from threads that may block to the runtime that the control plane runs on.

use std::sync::{Arc, mpsc};
use std::time::Duration;

use futures_util::future::BoxFuture;
use tokio::runtime::Handle;

use crate::engine::transfer::directory::Directory;
use crate::engine::transfer::transport::Calls;
use crate::engine::transfer::{Step, TransferError};
use crate::engine::wire::json::{Connection, SegmentDescriptor};

/// What the exchange between the asking thread and the runtime may add to a limit.
const BRIDGE_SLACK: Duration = Duration::from_millis(500);

/// Asks the directory, and waits for what it says. Not for the runtime's own threads, which would wait for themselves.
pub(super) struct Bridge {
    directory: Arc<dyn Directory>,
    runtime: Handle,
}

impl Bridge {
    /// To `directory`, by way of `runtime`.
    pub(super) fn new(directory: Arc<dyn Directory>, runtime: Handle) -> Bridge {
        Bridge { directory, runtime }
    }

    /// Let the runtime do `work`, which keeps to `limit` itself; a runtime that does not get round to it is given up on.
    fn run<T: Send + 'static>(
        &self,
        segment: &str,
        limit: Duration,
        work: BoxFuture<'static, Result<T, TransferError>>,
    ) -> Result<T, TransferError> {
        let (tell, told) = mpsc::sync_channel(1);
        self.runtime.spawn(async move {
            // Whoever asked may have given up.
            let _ = tell.send(work.await);
        });
        match told.recv_timeout(limit + BRIDGE_SLACK) {
            Ok(found) => found,
            Err(mpsc::RecvTimeoutError::Timeout) => {
                Err(TransferError::Timeout { peer: segment.to_owned(), step: Step::Handshake, limit })
            }
            Err(mpsc::RecvTimeoutError::Disconnected) => Err(TransferError::Stopped),
        }
    }
}

impl Calls for Bridge {
    fn connect(&self, segment: &str, request: &Connection, limit: Duration) -> Result<Connection, TransferError> {
        self.run(segment, limit, self.directory.connect(segment, request.clone(), limit))
    }

    fn find(&self, segment: &str, limit: Duration) -> Result<SegmentDescriptor, TransferError> {
        self.run(segment, limit, self.directory.find(segment, limit))
    }
}
