//! The debug log line for a call.

use crate::rpc::{Receipt, RpcCall, RpcService};
use mcctl_sys::env::Env;
use mcctl_wire::{DecodeError, method};

/// Calls `service` and logs the call at debug level: method, peer, number of keys, result and
/// microseconds.
///
/// # Errors
/// The same as [`RpcService::answer`].
pub(super) fn answer(
    service: &impl RpcService,
    env: &impl Env,
    call: RpcCall<'_>,
    out: &mut Vec<u8>,
) -> Result<Receipt, DecodeError> {
    let began = env.now();
    let start = out.len();
    let answered = service.answer(call, out);
    let RpcCall { peer, method, layout, body } = call;
    let us = u64::try_from(env.now().since(began).as_micros()).unwrap_or(u64::MAX);
    let keys = method::outline::keys(method, layout, body);
    let result = match &answered {
        Ok(_) => method::outline::result(method, layout, &out[start..]),
        Err(_) => "cannot decode the request".to_owned(),
    };
    tracing::debug!(method = method.name(), peer, release = layout.release().name(), keys, result, us, "RPC");
    answered
}
