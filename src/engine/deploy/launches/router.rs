//! The router before prefill and decode servers.

use crate::engine::base::HostPort;
use crate::engine::deploy::launches::{Place, engine};
use crate::engine::deploy::{Image, Launch, Mode, Port, Probe, ProbeBy, Probes, Resources, Role, Servers, Wait};

/// The router, where there is one.
pub(crate) fn launches(place: &Place<'_>) -> Vec<Launch> {
    let serving = &place.wanted.serving;
    if serving.mode != Mode::Pd {
        return Vec::new();
    }
    let host = if place.on_hosts() { serving.router.host.as_str() } else { "" };
    let prefill = addresses(place, Role::Prefill, &serving.prefill);
    let decode = addresses(place, Role::Decode, &serving.decode);
    let mut argv = vec![place.python(), "-m".to_owned(), "sglang_router.launch_router".to_owned()];
    argv.push("--pd-disaggregation".to_owned());
    for server in &prefill {
        argv.extend(["--prefill".to_owned(), format!("http://{server}"), serving.bootstrap_port.to_string()]);
    }
    for server in &decode {
        argv.extend(["--decode".to_owned(), format!("http://{server}")]);
    }
    argv.extend(["--host".to_owned(), place.bind_address(host).to_owned()]);
    argv.extend(["--port".to_owned(), serving.router.port.to_string()]);
    // By default it gives a server up after ten minutes in some releases.
    argv.extend(["--worker-startup-timeout-secs".to_owned(), engine::STARTS_WITHIN_S.to_string()]);
    argv.extend(serving.router.extra_args.iter().cloned());
    let names = |role: Role, count: usize| -> Vec<String> {
        let workload = place.workload(role);
        if place.on_hosts() { (0..count).map(|i| format!("{workload}-{i}")).collect() } else { vec![workload] }
    };
    let ask = |path, period_s, failures| Probe {
        by: ProbeBy::Http { port: serving.router.port, path },
        period_s,
        timeout_s: 5,
        failures,
    };
    let name = place.workload(Role::Router);
    vec![Launch {
        role: Role::Router,
        workload: name.clone(),
        name,
        host: host.to_owned(),
        replicas: 1,
        size: 1,
        numa: None,
        image: Image::Router,
        argv,
        env: Vec::new(),
        ports: vec![Port { name: "http", number: serving.router.port }],
        resources: Resources { memory: Some(MEMORY_BYTES), cpus: 2, ..Resources::default() },
        mounts: Vec::new(),
        // Its /health is 200 as soon as it listens; ready it is with a server of each side.
        probes: Probes {
            startup: ask("/health", 10, 180),
            readiness: ask("/readiness", 5, 3),
            liveness: ask("/health", 10, 6),
        },
        after: [names(Role::Prefill, prefill.len()), names(Role::Decode, decode.len())].concat(),
        // It looks for the others itself.
        wait: Wait::default(),
        stop_s: 120,
        drain: None,
    }]
}

/// A tree of recent prompts, and connections.
const MEMORY_BYTES: u64 = 4 << 30;

fn addresses(place: &Place<'_>, role: Role, servers: &Servers) -> Vec<HostPort> {
    let port = engine::side_port(role, servers);
    let workload = place.workload(role);
    if place.on_hosts() {
        servers.hosts.iter().map(|host| HostPort::new(host, port)).collect()
    } else {
        (0..servers.replicas).map(|i| HostPort::new(place.pod(&workload, i), port)).collect()
    }
}
