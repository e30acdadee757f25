//! Lets blocking threads use the control plane, which runs on a tokio runtime.

use std::sync::{Arc, mpsc};
use std::time::Duration;

use futures_util::future::BoxFuture;
use tokio::runtime::Handle;

use crate::directory::SegmentDirectory;
use crate::transport::ControlPlane;
use crate::{TransferError, TransferStep};
use mcctl_wire::json::{ConnectionMessage, SegmentDescriptor};

/// Added to a caller's time limit to cover the round trip between its thread and the runtime.
const BRIDGE_SLACK: Duration = Duration::from_millis(500);

/// Runs directory requests on the runtime and blocks until they finish. Calling its methods from
/// one of the runtime's own threads would deadlock.
pub(super) struct BlockingControlPlane {
    directory: Arc<dyn SegmentDirectory>,
    runtime: Handle,
}

impl BlockingControlPlane {
    pub(super) fn new(directory: Arc<dyn SegmentDirectory>, runtime: Handle) -> BlockingControlPlane {
        BlockingControlPlane { directory, runtime }
    }

    /// Runs `work`, which enforces `limit` itself, on the runtime. Times out if the runtime does
    /// not schedule it in time.
    fn run<T: Send + 'static>(
        &self,
        segment: &str,
        limit: Duration,
        work: BoxFuture<'static, Result<T, TransferError>>,
    ) -> Result<T, TransferError> {
        let (sender, outcome) = mpsc::sync_channel(1);
        self.runtime.spawn(async move {
            // The caller may have timed out.
            let _ = sender.send(work.await);
        });
        match outcome.recv_timeout(limit + BRIDGE_SLACK) {
            Ok(found) => found,
            Err(mpsc::RecvTimeoutError::Timeout) => {
                Err(TransferError::Timeout { peer: segment.to_owned(), step: TransferStep::Handshake, limit })
            }
            Err(mpsc::RecvTimeoutError::Disconnected) => Err(TransferError::Stopped),
        }
    }
}

impl ControlPlane for BlockingControlPlane {
    fn connect(
        &self,
        segment: &str,
        request: &ConnectionMessage,
        limit: Duration,
    ) -> Result<ConnectionMessage, TransferError> {
        self.run(segment, limit, self.directory.connect(segment, request.clone(), limit))
    }

    fn find(&self, segment: &str, limit: Duration) -> Result<SegmentDescriptor, TransferError> {
        self.run(segment, limit, self.directory.find(segment, limit))
    }
}
