//! Reliable connection (RC) queue pairs.

use std::ffi::c_int;
use std::fmt;
use std::io;
use std::ptr::{NonNull, null_mut};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ibverbs_sys as ffi;
use ibverbs_sys::ibv_qp_attr_mask as mask;
use ibverbs_sys::ibv_qp_state as qps;

use super::{CompletionQueue, ProtectionDomain, WorkRequestList, is_leaked, outcome};
use crate::verbs::{PathAttributes, PostError, QpCaps, QpState, VerbsError};

/// Maximum number of outstanding READs per queue pair and direction. Same value as Mooncake.
const READS_MAX: u32 = 16;
/// RNR timer code (0.64 ms). Same value as Mooncake.
const MIN_RNR_TIMER: u8 = 12;
/// Acknowledgement timeout code (4.096 us << 14 = 67 ms). Same value as Mooncake.
const TIMEOUT: u8 = 14;
/// Packet retry count. Same value as Mooncake, and the maximum.
const RETRIES: u8 = 7;
/// RNR retry count; 7 means infinite. Same value as Mooncake. (Nothing here requires a receiver to
/// be ready.)
const RNR_RETRIES: u8 = 7;

/// A reliable connection queue pair, for READs and WRITEs. Never receives messages.
pub struct QueuePair {
    qp: NonNull<ffi::ibv_qp>,
    number: u32,
    caps: QpCaps,
    /// The state last set by this side. The lock also guards posting, because a driver may reset a
    /// queue pair's queue without a lock.
    state: Mutex<QpState>,
    domain: Arc<ProtectionDomain>,
    queue: Arc<CompletionQueue>,
}

// SAFETY: not tied to a thread, and verbs are thread-safe.
unsafe impl Send for QueuePair {}
// SAFETY: as above. Everything that the library changes in a queue pair (state, queue) is accessed
// with `state` locked.
unsafe impl Sync for QueuePair {}

impl QueuePair {
    /// Creates a queue pair in `domain`, with completions in `queue`.
    ///
    /// # Errors
    /// Fails if the device has no queue pairs left, if `caps` exceed its limits, or if `domain` and
    /// `queue` belong to different devices.
    pub fn new(
        domain: &Arc<ProtectionDomain>,
        queue: &Arc<CompletionQueue>,
        caps: QpCaps,
    ) -> Result<QueuePair, VerbsError> {
        let device = domain.device();
        let failed = |source| {
            let detail = format!(" with {} work requests of {} SGEs, {} bytes inline", caps.wr, caps.sge, caps.inline);
            device.error("ibv_create_qp", detail, source)
        };
        if !device.is(queue.device()) {
            return Err(failed(io::Error::from_raw_os_error(libc::EINVAL)));
        }
        let mut attr = ffi::ibv_qp_init_attr {
            send_cq: queue.raw(),
            recv_cq: queue.raw(),
            qp_type: ffi::ibv_qp_type::IBV_QPT_RC,
            cap: ffi::ibv_qp_cap {
                max_send_wr: caps.wr,
                // Nothing is ever received, but some drivers reject 0.
                max_recv_wr: 1,
                max_send_sge: caps.sge,
                max_recv_sge: 1,
                max_inline_data: caps.inline,
            },
            ..ffi::ibv_qp_init_attr::default()
        };
        // SAFETY: domain and queue are valid, belong to the same device, and are kept alive by the
        // queue pair. `attr` is readable and writable.
        let qp = NonNull::new(unsafe { ffi::ibv_create_qp(domain.raw(), &raw mut attr) })
            .ok_or_else(|| failed(io::Error::last_os_error()))?;
        Ok(QueuePair {
            qp,
            // SAFETY: the library created the queue pair, and its number never changes.
            number: unsafe { (*qp.as_ptr()).qp_num },
            caps: QpCaps { wr: attr.cap.max_send_wr, sge: attr.cap.max_send_sge, inline: attr.cap.max_inline_data },
            state: Mutex::new(QpState::Reset),
            domain: Arc::clone(domain),
            queue: Arc::clone(queue),
        })
    }

    /// The QP number, which the peer uses to address the queue pair.
    pub fn number(&self) -> u32 {
        self.number
    }

    /// The actual capabilities, which are at least the requested ones.
    pub fn caps(&self) -> QpCaps {
        self.caps
    }

    /// The completion queue for both sends and receives.
    pub fn queue(&self) -> &Arc<CompletionQueue> {
        &self.queue
    }

    /// Moves the queue pair from RESET to INIT, with a port (numbered from 1) and a P_Key index.
    ///
    /// # Errors
    /// Fails if the queue pair is in another state, or if the port or index does not exist.
    pub fn init(&self, port: u8, pkey_index: u16) -> Result<(), VerbsError> {
        let mut attr = ffi::ibv_qp_attr {
            qp_state: qps::IBV_QPS_INIT,
            port_num: port,
            pkey_index,
            // Maximum access flags for peers: LOCAL_WRITE, REMOTE_WRITE, REMOTE_READ, REMOTE_ATOMIC
            // (15, same as Mooncake). No memory region here allows atomics.
            qp_access_flags: 0xf,
            ..ffi::ibv_qp_attr::default()
        };
        let what = mask::IBV_QP_STATE | mask::IBV_QP_PKEY_INDEX | mask::IBV_QP_PORT | mask::IBV_QP_ACCESS_FLAGS;
        self.modify("ibv_modify_qp to INIT", &mut attr, what, QpState::Init, || {
            format!("port {port}, P_Key {pkey_index}")
        })
    }

    /// Connects the queue pair: moves it from INIT to RTR, then to RTS.
    ///
    /// # Errors
    /// Fails with the failed step and its arguments. After a failure, the queue pair must be reset
    /// or dropped.
    pub fn connect(&self, path: &PathAttributes) -> Result<(), VerbsError> {
        let limits = self.domain.device().attributes();
        let at_most = |limit: u32| u8::try_from(READS_MAX.min(limit)).unwrap_or(0);
        let answers = at_most(limits.max_qp_rd_atom);
        let asks = at_most(limits.max_qp_init_rd_atom);
        let detail = || format!("{path:?}, READs {answers} in, {asks} out");
        let mut attr = ffi::ibv_qp_attr {
            qp_state: qps::IBV_QPS_RTR,
            path_mtu: path.mtu.code(),
            dest_qp_num: path.remote_number,
            rq_psn: 0,
            max_dest_rd_atomic: answers,
            min_rnr_timer: MIN_RNR_TIMER,
            ah_attr: ffi::ibv_ah_attr {
                grh: ffi::ibv_global_route {
                    dgid: ffi::ibv_gid { raw: path.remote_gid },
                    flow_label: 0,
                    sgid_index: path.sgid_index,
                    hop_limit: path.hop_limit,
                    traffic_class: path.traffic_class,
                },
                dlid: path.remote_lid,
                sl: path.service_level,
                src_path_bits: 0,
                static_rate: 0,
                is_global: 1,
                port_num: path.port,
            },
            ..ffi::ibv_qp_attr::default()
        };
        let what = mask::IBV_QP_STATE
            | mask::IBV_QP_AV
            | mask::IBV_QP_PATH_MTU
            | mask::IBV_QP_DEST_QPN
            | mask::IBV_QP_RQ_PSN
            | mask::IBV_QP_MAX_DEST_RD_ATOMIC
            | mask::IBV_QP_MIN_RNR_TIMER;
        self.modify("ibv_modify_qp to RTR", &mut attr, what, QpState::ReadyToReceive, detail)?;
        let mut attr = ffi::ibv_qp_attr {
            qp_state: qps::IBV_QPS_RTS,
            timeout: TIMEOUT,
            retry_cnt: RETRIES,
            rnr_retry: RNR_RETRIES,
            sq_psn: 0,
            max_rd_atomic: asks,
            ..ffi::ibv_qp_attr::default()
        };
        let what = mask::IBV_QP_STATE
            | mask::IBV_QP_TIMEOUT
            | mask::IBV_QP_RETRY_CNT
            | mask::IBV_QP_RNR_RETRY
            | mask::IBV_QP_SQ_PSN
            | mask::IBV_QP_MAX_QP_RD_ATOMIC;
        self.modify("ibv_modify_qp to RTS", &mut attr, what, QpState::ReadyToSend, detail)
    }

    /// Moves the queue pair to ERR. All outstanding requests are flushed, and so is every request
    /// posted afterward.
    ///
    /// # Errors
    /// Fails if the device is gone.
    pub fn fail(&self) -> Result<(), VerbsError> {
        let mut attr = ffi::ibv_qp_attr { qp_state: qps::IBV_QPS_ERR, ..ffi::ibv_qp_attr::default() };
        self.modify("ibv_modify_qp to ERR", &mut attr, mask::IBV_QP_STATE, QpState::Error, String::new)
    }

    /// Moves the queue pair to RESET. Outstanding requests are dropped without completions, so wait
    /// for their completions first; see [`QueuePair::fail`].
    ///
    /// # Errors
    /// Fails if the device is gone.
    pub fn reset(&self) -> Result<(), VerbsError> {
        let mut attr = ffi::ibv_qp_attr { qp_state: qps::IBV_QPS_RESET, ..ffi::ibv_qp_attr::default() };
        self.modify("ibv_modify_qp to RESET", &mut attr, mask::IBV_QP_STATE, QpState::Reset, String::new)
    }

    /// Queries the queue pair's state from the device. A failed request moves the queue pair to the
    /// error state.
    ///
    /// # Errors
    /// Fails if the device is gone.
    pub fn state(&self) -> Result<QpState, VerbsError> {
        let mut attr = ffi::ibv_qp_attr::default();
        let mut made = ffi::ibv_qp_init_attr::default();
        let _lock = self.lock();
        // SAFETY: the queue pair is valid, and both structures are writable.
        let rc =
            unsafe { ffi::ibv_query_qp(self.qp.as_ptr(), &raw mut attr, mask::IBV_QP_STATE.0 as c_int, &raw mut made) };
        outcome(rc).map_err(|source| self.error("ibv_query_qp", String::new(), source))?;
        Ok(match attr.qp_state {
            qps::IBV_QPS_RESET => QpState::Reset,
            qps::IBV_QPS_INIT => QpState::Init,
            qps::IBV_QPS_RTR => QpState::ReadyToReceive,
            qps::IBV_QPS_RTS => QpState::ReadyToSend,
            qps::IBV_QPS_ERR => QpState::Error,
            other => QpState::Other(other),
        })
    }

    /// Posts all requests in `chain` and empties the list. Small WRITEs are sent inline.
    ///
    /// # Errors
    /// Fails if not all requests were accepted, with the number of accepted requests and the error
    /// for the next request. Accepted requests are removed from the list. `ENOMEM` means that the
    /// queue is full, and `ENOTCONN` that the queue pair is not connected.
    pub fn post(&self, chain: &mut WorkRequestList<'_>) -> Result<(), PostError> {
        let state = self.lock();
        if !matches!(*state, QpState::ReadyToSend | QpState::Error) {
            return Err(PostError { posted: 0, source: io::Error::from_raw_os_error(libc::ENOTCONN) });
        }
        let first = chain.link(self.caps.inline);
        if first.is_null() {
            return Ok(());
        }
        let mut bad = null_mut();
        // SAFETY: the queue pair is valid and can send. The list is linked, and borrowed for the
        // call. It borrows its memory regions, so bytes sent inline are valid. After the call, the
        // device accesses memory by keys, which become invalid when a region is deregistered.
        let rc = unsafe { ffi::ibv_post_send(self.qp.as_ptr(), first, &raw mut bad) };
        match outcome(rc) {
            Ok(()) => {
                chain.clear();
                Ok(())
            }
            Err(source) => {
                let posted = chain.index_of(bad).unwrap_or(0);
                chain.drop_first(posted);
                Err(PostError { posted, source })
            }
        }
    }

    fn modify(
        &self,
        step: &'static str,
        attr: &mut ffi::ibv_qp_attr,
        what: mask,
        to: QpState,
        detail: impl Fn() -> String,
    ) -> Result<(), VerbsError> {
        let mut state = self.lock();
        // SAFETY: the queue pair is valid. `attr` is fully initialized, whatever the mask selects.
        let rc = unsafe { ffi::ibv_modify_qp(self.qp.as_ptr(), attr, what.0 as c_int) };
        match outcome(rc) {
            Ok(()) => {
                *state = to;
                Ok(())
            }
            Err(source) => Err(self.error(step, detail(), source)),
        }
    }

    fn lock(&self) -> MutexGuard<'_, QpState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn error(&self, what: &'static str, detail: String, source: io::Error) -> VerbsError {
        let about = if detail.is_empty() { String::new() } else { format!(": {detail}") };
        self.domain.device().error(what, format!(" (QP {}{about})", self.number), source)
    }
}

impl Drop for QueuePair {
    fn drop(&mut self) {
        // SAFETY: destroyed once. Its events are acknowledged as soon as they are received, so this
        // does not block.
        let rc = unsafe { ffi::ibv_destroy_qp(self.qp.as_ptr()) };
        if is_leaked("ibv_destroy_qp", self.domain.device().name(), rc) {
            std::mem::forget((Arc::clone(&self.domain), Arc::clone(&self.queue)));
        }
    }
}

impl fmt::Debug for QueuePair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Pair({} on {})", self.number, self.domain.device().name())
    }
}
