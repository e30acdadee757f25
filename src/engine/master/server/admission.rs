//! The admission of requests: in a cluster, the gate decides. The log of a slow disk delays
//! requests that change something, and so does a standby that is far behind.

use std::sync::Arc;
use std::time::Duration;

use crate::server::ha::HaDisk;
use crate::server::log::MasterLog;
use crate::server::reads::is_read;
use crate::server::shared::MasterShared;
use mcctl_net::rpc::{AdmissionWait, Admitted};
use mcctl_sys::env::Env;
use mcctl_wire::Method;

impl<E: Env> MasterShared<E> {
    /// The log of this master's changes, if it has one now.
    pub(super) fn current_log(&self) -> Option<Arc<MasterLog>> {
        self.log.clone().or_else(|| self.disk()?.log())
    }

    /// Whether the log, if there is one, has room for changes.
    #[inline]
    fn log_has_room(&self) -> bool {
        match &self.log {
            Some(log) => log.has_room(),
            None => self.disk().is_none_or(HaDisk::log_has_room),
        }
    }

    /// Time by which a request that changes something is delayed, so that a standby can catch up.
    #[inline]
    fn replication_delay(&self, method: Method) -> Duration {
        let tail = self.ha.as_ref().map(|ha| &ha.tail).filter(|_| !is_read(method));
        tail.map_or(Duration::ZERO, |tail| tail.write_delay())
    }

    /// Whether the log permits background work that changes the state.
    pub(super) fn log_permits_tick(&self) -> bool {
        self.current_log().is_none_or(|log| log.permits_tick())
    }

    /// Time for which requests have waited for room in the log since the last call.
    pub(super) fn take_log_wait(&self) -> Duration {
        self.current_log().map_or(Duration::ZERO, |log| log.room.take_waited())
    }

    /// Whether a request can be processed now:
    /// [`RpcService::admits`](mcctl_net::rpc::RpcService::admits).
    #[inline]
    pub(super) fn admits_request(&self, method: Method) -> bool {
        let is_open = self.ha.as_ref().is_none_or(|ha| ha.gate.admits(method));
        is_open && (is_read(method) || self.log_has_room() && self.replication_delay(method).is_zero())
    }

    /// Waits until a request can be processed:
    /// [`RpcService::admission`](mcctl_net::rpc::RpcService::admission).
    pub(super) fn request_admission(&self, method: Method) -> AdmissionWait<'_> {
        Box::pin(async move {
            let mut is_delayed = false;
            loop {
                if let Some(ha) = &self.ha {
                    match ha.gate.admission(&self.env, method).await {
                        Admitted::Proceed => {}
                        other => return other,
                    }
                }
                match self.current_log().filter(|log| !is_read(method) && !log.has_room()) {
                    // The wait also ends with the log, when this master no longer leads.
                    Some(log) => log.wait_for_room(&self.env).await,
                    None => {
                        let delay = self.replication_delay(method);
                        if is_delayed || delay.is_zero() {
                            return Admitted::Proceed;
                        }
                        self.env.sleep(delay).await;
                        is_delayed = true;
                    }
                }
            }
        })
    }

    /// Waits for the disk if the log's buffer has grown too large, because one call has made many
    /// changes.
    pub(super) fn limit_log_buffer(&self) {
        if let Some(log) = self.current_log().filter(|log| log.writer.is_overfull()) {
            log.make_room();
        }
    }
}
