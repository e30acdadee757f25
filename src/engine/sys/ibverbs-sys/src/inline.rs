//! What C's header defines in place: calls through a context's table, the way of the data path.

use std::ffi::c_int;

use crate::library::absent;
use crate::structs::*;

/// Take up to `count` completions out of `cq` into `wc`: how many, or a negative number.
///
/// # Safety
/// `cq` is valid, and `wc` has room for `count`.
#[inline]
pub unsafe fn ibv_poll_cq(cq: *mut ibv_cq, count: c_int, wc: *mut ibv_wc) -> c_int {
    // SAFETY: a valid queue has a valid context, whose table was filled when it was opened.
    match unsafe { (*(*cq).context).ops.poll_cq } {
        // SAFETY: the caller's promise.
        Some(call) => unsafe { call(cq, count, wc) },
        None => -absent(),
    }
}

/// Ask for an event at the next completion of `cq`, or, with `solicited_only`, at the next solicited one.
///
/// # Safety
/// `cq` is valid.
#[inline]
pub unsafe fn ibv_req_notify_cq(cq: *mut ibv_cq, solicited_only: c_int) -> c_int {
    // SAFETY: as in `ibv_poll_cq`.
    match unsafe { (*(*cq).context).ops.req_notify_cq } {
        // SAFETY: the caller's promise.
        Some(call) => unsafe { call(cq, solicited_only) },
        None => absent(),
    }
}

/// Post the chain that begins with `wr`; the first that was refused comes back in `bad`.
///
/// # Safety
/// `qp` is valid; the chain and its lists are for the time of the call; `bad` is for writing.
#[inline]
pub unsafe fn ibv_post_send(qp: *mut ibv_qp, wr: *mut ibv_send_wr, bad: *mut *mut ibv_send_wr) -> c_int {
    // SAFETY: a valid pair has a valid context, whose table was filled when it was opened.
    match unsafe { (*(*qp).context).ops.post_send } {
        // SAFETY: the caller's promise.
        Some(call) => unsafe { call(qp, wr, bad) },
        None => absent(),
    }
}
