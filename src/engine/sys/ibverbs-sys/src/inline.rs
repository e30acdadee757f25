//! Functions that the C header defines inline. They call through a context's function table and are
//! used on the data path.

use std::ffi::c_int;

use crate::library::absent;
use crate::structs::*;

/// Moves up to `count` completions from `cq` to `wc`. Returns their number, or a negative number on
/// error.
///
/// # Safety
/// `cq` is valid, and `wc` has room for `count` completions.
#[inline]
pub unsafe fn ibv_poll_cq(cq: *mut ibv_cq, count: c_int, wc: *mut ibv_wc) -> c_int {
    // SAFETY: a valid queue has a valid context, whose table was filled when the device was opened.
    match unsafe { (*(*cq).context).ops.poll_cq } {
        // SAFETY: guaranteed by the caller.
        Some(call) => unsafe { call(cq, count, wc) },
        None => -absent(),
    }
}

/// Requests an event for the next completion on `cq`, or only for the next solicited one if
/// `solicited_only` is set.
///
/// # Safety
/// `cq` is valid.
#[inline]
pub unsafe fn ibv_req_notify_cq(cq: *mut ibv_cq, solicited_only: c_int) -> c_int {
    // SAFETY: as in `ibv_poll_cq`.
    match unsafe { (*(*cq).context).ops.req_notify_cq } {
        // SAFETY: guaranteed by the caller.
        Some(call) => unsafe { call(cq, solicited_only) },
        None => absent(),
    }
}

/// Posts the list of work requests that begins with `wr`. The first rejected request is stored in
/// `bad`.
///
/// # Safety
/// `qp` is valid. The list and its SGEs are valid during the call. `bad` is writable.
#[inline]
pub unsafe fn ibv_post_send(qp: *mut ibv_qp, wr: *mut ibv_send_wr, bad: *mut *mut ibv_send_wr) -> c_int {
    // SAFETY: a valid queue pair has a valid context, whose table was filled when the device was
    // opened.
    match unsafe { (*(*qp).context).ops.post_send } {
        // SAFETY: guaranteed by the caller.
        Some(call) => unsafe { call(qp, wr, bad) },
        None => absent(),
    }
}
