//! The ports on which a process listens.

use crate::lint::model::{LocatedValue, ProcessRole, Variable};
use crate::lint::settings::{ProcessView, is_host_local};
use mcctl_base::upstream::ports;

/// SGLang's HTTP port, and that of its router.
const SGLANG_HTTP: u16 = 30000;
/// Bootstrap of disaggregated serving, in SGLang and in vLLM's Mooncake connector.
const BOOTSTRAP: u16 = 8998;
/// SGLang's gRPC port is its HTTP port plus this.
const GRPC_OFFSET: u16 = 10000;
const ROUTER_METRICS: u16 = 29000;
/// The default port of vLLM's HTTP server.
pub(super) const VLLM_HTTP: u16 = 8000;
/// Side channel of vLLM's NIXL connector.
const VLLM_SIDE_CHANNEL: u16 = 5600;

/// Whether `port` may be one on which the process listens: a default port of its program, or a
/// number in its arguments or variables. `None` if its arguments are not all known. Declared
/// container ports do not count: nothing listens because of them.
pub(super) fn may_listen(member: &ProcessView<'_>, port: u16) -> Option<bool> {
    let process = member.process;
    let defaults: &[u16] = match process.role {
        ProcessRole::Master => &[ports::MASTER_RPC, ports::MASTER_ADMIN, ports::METADATA],
        ProcessRole::Metadata => &[ports::METADATA],
        ProcessRole::Store => &[ports::STORE_REST, ports::CLIENT_HTTP],
        ProcessRole::RealClient => &[ports::CLIENT_RPC, ports::CLIENT_HTTP],
        ProcessRole::Sglang(_) => &[SGLANG_HTTP, SGLANG_HTTP + GRPC_OFFSET, BOOTSTRAP],
        ProcessRole::Router => &[SGLANG_HTTP, ROUTER_METRICS],
        ProcessRole::Vllm => &[VLLM_HTTP, BOOTSTRAP, VLLM_SIDE_CHANNEL],
        ProcessRole::Up | ProcessRole::Lmcache | ProcessRole::Environment | ProcessRole::Other => return None,
    };
    if !process.args_whole || !process.args.iter().all(LocatedValue::is_known) {
        return None;
    }
    let http = member.number(&["port"], SGLANG_HTTP.into()).and_then(|http| u16::try_from(http).ok());
    let is_grpc = http.and_then(|http| http.checked_add(GRPC_OFFSET)) == Some(port);
    let values = process.env.values().filter_map(|value| match value {
        Variable::Text(located) => Some(located),
        Variable::Elsewhere(_) => None,
    });
    let is_named = process.args.iter().any(|located| has_number(&located.text, port))
        || values.into_iter().any(|located| is_own_port(&located.text, port));
    Some(is_named || defaults.contains(&port) || process.role.is_sglang() && is_grpc)
}

/// Whether the value of a variable is the port, or an address of the process itself with it. Other
/// addresses are of other processes.
fn is_own_port(text: &str, port: u16) -> bool {
    let text = text.trim();
    text.parse() == Ok(port) || is_host_local(text) && has_number(text, port)
}

/// Whether `text` has the number, not as a part of a longer one.
fn has_number(text: &str, number: u16) -> bool {
    text.split(|c: char| !c.is_ascii_digit()).any(|digits| digits.parse() == Ok(number))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_is_found_only_as_a_whole() {
        assert!(has_number("--host=0.0.0.0:8080", 8080) && has_number("8080", 8080) && has_number("a8080b", 8080));
        assert!(is_own_port("8080", 8080) && is_own_port("tcp://0.0.0.0:8080", 8080));
        assert!(!is_own_port("http://kv-index:8080/metadata", 8080));
        assert!(!has_number("18080", 8080) && !has_number("80801", 8080) && !has_number("", 8080));
    }
}
