//! The master: its flags, its settings file, high availability.

use crate::engine::lint::quantity;
use crate::engine::lint::rules::{Findings, View};
use crate::engine::lint::scene::{Make, ProbeFor, ProbeHow};
use crate::engine::lint::settings::Setting;

/// A standby of an HA master listens and answers 200; only `service_ready` tells that it serves.
pub fn ha_readiness(view: &View<'_>, out: &mut Findings) {
    for seen in view.masters().filter(|seen| seen.master_switch("enable_ha") == Some(true)) {
        for probe in seen.process.probes.iter().filter(|probe| probe.what == ProbeFor::Readiness) {
            let evidence = match &probe.how {
                ProbeHow::Tcp { port } => match port {
                    Some(port) => format!("tcpSocket on port {port}; the admin port of a standby is open, too"),
                    None => "tcpSocket; the admin port of a standby is open, too".to_owned(),
                },
                ProbeHow::Http { path, .. } if path.starts_with("/health") => {
                    "GET /health answers 200 on a standby and while the leader warms up".to_owned()
                }
                _ => continue,
            };
            let remedy = match seen.process.make {
                Make::Mcctl => "probe GET /ready on the metrics port: 503 unless it serves",
                Make::Upstream => {
                    "probe by exec what /health says: curl -s localhost:9003/health | grep -q '\"service_ready\":true'"
                }
            };
            out.warning(
                &probe.place,
                "the readiness of a master with HA does not tell the leader from a standby",
                evidence,
                remedy,
            );
        }
    }
}

/// The least threads that keep pings alive when many servers start at once.
const THREADS_MIN: u64 = 4;
/// The least CPU, thousandths.
const CPU_MIN: u64 = 2000;

/// A master that is short of CPU misses pings, and takes living clients for dead.
pub fn threads(view: &View<'_>, out: &mut Findings) {
    let remedy = "give it 4 threads and 2 CPUs or more, and --client_ttl=30 where that cannot be";
    for seen in view.masters() {
        if let Setting::Is(said) = seen.master("rpc_thread_num")
            && let Some(threads) = said.text.parse::<u64>().ok().filter(|n| (1..THREADS_MIN).contains(n))
        {
            out.warning(
                &said.place,
                "the master may take clients for dead when many start at once: it has few RPC threads",
                format!(
                    "rpc_thread_num is {threads}; a ping that waits longer than client_ttl (10 s) counts as missed"
                ),
                remedy,
            );
        }
        if let Some((cpu, said)) = quantity::cpu_limit(seen.process)
            && cpu < CPU_MIN
        {
            out.warning(
                &said.place,
                "the master may take clients for dead when it is throttled: its CPU limit is low",
                format!("CPU limit {}; a ping that waits longer than client_ttl (10 s) counts as missed", said.text),
                remedy,
            );
        }
    }
}
