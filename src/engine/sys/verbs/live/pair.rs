//! A queue pair: one end of a reliable connection.

use std::ffi::c_int;
use std::fmt;
use std::io;
use std::ptr::{NonNull, null_mut};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ibverbs_sys as ffi;
use ibverbs_sys::ibv_qp_attr_mask as mask;
use ibverbs_sys::ibv_qp_state as qps;

use super::{Chain, Domain, Queue, left_behind, outcome};
use crate::engine::sys::verbs::{Caps, PairState, Refused, VerbsError, Way};

/// Most READs under way on one pair, each way; Mooncake's number.
const READS_MAX: u32 = 16;
/// Code of how long a receiver that is not ready asks to wait (0.64 ms); Mooncake's.
const MIN_RNR_TIMER: u8 = 12;
/// Code of how long an acknowledgement may take (4.096 us << 14 = 67 ms); Mooncake's.
const TIMEOUT: u8 = 14;
/// How often a packet is sent again; Mooncake's, and the most there is.
const RETRIES: u8 = 7;
/// How often a receiver that is not ready is asked again: 7 is for ever; Mooncake's. (Nothing here needs a receiver to be ready.)
const RNR_RETRIES: u8 = 7;

/// One end of a reliable connection, for READs and WRITEs. Nothing is ever received by requests.
pub struct Pair {
    qp: NonNull<ffi::ibv_qp>,
    number: u32,
    caps: Caps,
    /// As this side last set it, and the lock under which it is set and posted: a driver may reset a pair's queue without one.
    state: Mutex<PairState>,
    domain: Arc<Domain>,
    queue: Arc<Queue>,
}

// SAFETY: it is not tied to a thread, and verbs are thread-safe.
unsafe impl Send for Pair {}
// SAFETY: as above; what the library changes in a pair (state, queue) is asked for under `state`'s lock.
unsafe impl Sync for Pair {}

impl Pair {
    /// A new one in `domain`, whose completions come into `queue`.
    ///
    /// # Errors
    /// The device has no more, or `caps` are more than it can do; the two are of different devices.
    pub fn new(domain: &Arc<Domain>, queue: &Arc<Queue>, caps: Caps) -> Result<Pair, VerbsError> {
        let device = domain.device();
        let failed = |source| {
            let detail = format!(" with {} requests of {} stretches, {} bytes inline", caps.wr, caps.sge, caps.inline);
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
                // nothing is ever received by requests; not 0, which not every driver takes
                max_recv_wr: 1,
                max_send_sge: caps.sge,
                max_recv_sge: 1,
                max_inline_data: caps.inline,
            },
            ..ffi::ibv_qp_init_attr::default()
        };
        // SAFETY: domain and queue are valid, of one device, and held by the pair; `attr` is for reading and writing.
        let qp = NonNull::new(unsafe { ffi::ibv_create_qp(domain.raw(), &raw mut attr) })
            .ok_or_else(|| failed(io::Error::last_os_error()))?;
        Ok(Pair {
            qp,
            // SAFETY: the library made it; its number never changes.
            number: unsafe { (*qp.as_ptr()).qp_num },
            caps: Caps { wr: attr.cap.max_send_wr, sge: attr.cap.max_send_sge, inline: attr.cap.max_inline_data },
            state: Mutex::new(PairState::Reset),
            domain: Arc::clone(domain),
            queue: Arc::clone(queue),
        })
    }

    /// Its number, by which its peer reaches it.
    pub fn number(&self) -> u32 {
        self.number
    }

    /// What it can hold: at least what was asked for.
    pub fn caps(&self) -> Caps {
        self.caps
    }

    /// Where its completions come.
    pub fn queue(&self) -> &Arc<Queue> {
        &self.queue
    }

    /// Give it a port, from 1, and a row of the port's P_Key table. It must be new, or reset.
    ///
    /// # Errors
    /// It is not, or there is no such port or row.
    pub fn init(&self, port: u8, pkey_index: u16) -> Result<(), VerbsError> {
        let mut attr = ffi::ibv_qp_attr {
            qp_state: qps::IBV_QPS_INIT,
            port_num: port,
            pkey_index,
            // What peers may do at most. LOCAL_WRITE, REMOTE_WRITE, REMOTE_READ, REMOTE_ATOMIC: Mooncake's 15. No region here allows
            // atomics.
            qp_access_flags: 0xf,
            ..ffi::ibv_qp_attr::default()
        };
        let what = mask::IBV_QP_STATE | mask::IBV_QP_PKEY_INDEX | mask::IBV_QP_PORT | mask::IBV_QP_ACCESS_FLAGS;
        self.modify("ibv_modify_qp to INIT", &mut attr, what, PairState::Init, || {
            format!("port {port}, P_Key {pkey_index}")
        })
    }

    /// Connect it: ready to receive, then ready to send. It must have a port.
    ///
    /// # Errors
    /// Which of the two steps failed, and all that was asked for. It is then to be reset, or given up.
    pub fn connect(&self, way: &Way) -> Result<(), VerbsError> {
        let limits = self.domain.device().attributes();
        let at_most = |limit: u32| u8::try_from(READS_MAX.min(limit)).unwrap_or(0);
        let (answers, asks) = (at_most(limits.max_qp_rd_atom), at_most(limits.max_qp_init_rd_atom));
        let detail = || format!("{way:?}, READs {answers} in, {asks} out");
        let mut attr = ffi::ibv_qp_attr {
            qp_state: qps::IBV_QPS_RTR,
            path_mtu: way.mtu.code(),
            dest_qp_num: way.remote_number,
            rq_psn: 0,
            max_dest_rd_atomic: answers,
            min_rnr_timer: MIN_RNR_TIMER,
            ah_attr: ffi::ibv_ah_attr {
                grh: ffi::ibv_global_route {
                    dgid: ffi::ibv_gid { raw: way.remote_gid },
                    flow_label: 0,
                    sgid_index: way.sgid_index,
                    hop_limit: way.hop_limit,
                    traffic_class: way.traffic_class,
                },
                dlid: way.remote_lid,
                sl: way.service_level,
                src_path_bits: 0,
                static_rate: 0,
                is_global: 1,
                port_num: way.port,
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
        self.modify("ibv_modify_qp to RTR", &mut attr, what, PairState::ReadyToReceive, detail)?;
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
        self.modify("ibv_modify_qp to RTS", &mut attr, what, PairState::ReadyToSend, detail)
    }

    /// Give the connection up: all that is posted and not done completes as flushed, and so does all that is posted from now on.
    ///
    /// # Errors
    /// The device is gone.
    pub fn fail(&self) -> Result<(), VerbsError> {
        let mut attr = ffi::ibv_qp_attr { qp_state: qps::IBV_QPS_ERR, ..ffi::ibv_qp_attr::default() };
        self.modify("ibv_modify_qp to ERR", &mut attr, mask::IBV_QP_STATE, PairState::Error, String::new)
    }

    /// Make it like new. What is posted and not done is forgotten without completions: await them first, see [`Pair::fail`].
    ///
    /// # Errors
    /// The device is gone.
    pub fn reset(&self) -> Result<(), VerbsError> {
        let mut attr = ffi::ibv_qp_attr { qp_state: qps::IBV_QPS_RESET, ..ffi::ibv_qp_attr::default() };
        self.modify("ibv_modify_qp to RESET", &mut attr, mask::IBV_QP_STATE, PairState::Reset, String::new)
    }

    /// Its state as the device has it: an error moves it there by itself.
    ///
    /// # Errors
    /// The device is gone.
    pub fn state(&self) -> Result<PairState, VerbsError> {
        let (mut attr, mut made) = (ffi::ibv_qp_attr::default(), ffi::ibv_qp_init_attr::default());
        let _lock = self.lock();
        // SAFETY: the pair is valid, both places are for writing.
        let rc =
            unsafe { ffi::ibv_query_qp(self.qp.as_ptr(), &raw mut attr, mask::IBV_QP_STATE.0 as c_int, &raw mut made) };
        outcome(rc).map_err(|source| self.error("ibv_query_qp", String::new(), source))?;
        Ok(match attr.qp_state {
            qps::IBV_QPS_RESET => PairState::Reset,
            qps::IBV_QPS_INIT => PairState::Init,
            qps::IBV_QPS_RTR => PairState::ReadyToReceive,
            qps::IBV_QPS_RTS => PairState::ReadyToSend,
            qps::IBV_QPS_ERR => PairState::Error,
            other => PairState::Other(other),
        })
    }

    /// Post all requests of `chain`, which is empty then. WRITEs that fit are taken along at once.
    ///
    /// # Errors
    /// Not all were taken: how many were, and why the next was not. Those that were are no longer in the chain. `ENOMEM` is a full
    /// queue, `ENOTCONN` a pair that is not connected.
    pub fn post(&self, chain: &mut Chain<'_>) -> Result<(), Refused> {
        let state = self.lock();
        if !matches!(*state, PairState::ReadyToSend | PairState::Error) {
            return Err(Refused { posted: 0, source: io::Error::from_raw_os_error(libc::ENOTCONN) });
        }
        let first = chain.link(self.caps.inline);
        if first.is_null() {
            return Ok(());
        }
        let mut bad = null_mut();
        // SAFETY: the pair is valid and can send. The chain is linked, and is borrowed for the call; the regions it is about are
        // borrowed by it, so that bytes that go along at once are there. Later the device finds memory by keys, which are void when
        // a region is gone.
        let rc = unsafe { ffi::ibv_post_send(self.qp.as_ptr(), first, &raw mut bad) };
        match outcome(rc) {
            Ok(()) => {
                chain.clear();
                Ok(())
            }
            Err(source) => {
                let posted = chain.place(bad).unwrap_or(0);
                chain.drop_first(posted);
                Err(Refused { posted, source })
            }
        }
    }

    fn modify(
        &self,
        step: &'static str,
        attr: &mut ffi::ibv_qp_attr,
        what: mask,
        to: PairState,
        detail: impl Fn() -> String,
    ) -> Result<(), VerbsError> {
        let mut state = self.lock();
        // SAFETY: the pair is valid; `attr` is whole, whatever the mask says.
        let rc = unsafe { ffi::ibv_modify_qp(self.qp.as_ptr(), attr, what.0 as c_int) };
        match outcome(rc) {
            Ok(()) => {
                *state = to;
                Ok(())
            }
            Err(source) => Err(self.error(step, detail(), source)),
        }
    }

    fn lock(&self) -> MutexGuard<'_, PairState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn error(&self, what: &'static str, detail: String, source: io::Error) -> VerbsError {
        let about = if detail.is_empty() { String::new() } else { format!(": {detail}") };
        self.domain.device().error(what, format!(" (pair {}{about})", self.number), source)
    }
}

impl Drop for Pair {
    fn drop(&mut self) {
        // SAFETY: it is ended once. Events about it are acknowledged as soon as they are got, so that this does not wait.
        let rc = unsafe { ffi::ibv_destroy_qp(self.qp.as_ptr()) };
        if left_behind("ibv_destroy_qp", self.domain.device().name(), rc) {
            std::mem::forget((Arc::clone(&self.domain), Arc::clone(&self.queue)));
        }
    }
}

impl fmt::Debug for Pair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Pair({} on {})", self.number, self.domain.device().name())
    }
}
