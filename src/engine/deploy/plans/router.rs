//! The router in front of prefill and decode servers.

use crate::plans::{PlanContext, engine};
use crate::{
    ComponentRole, ImageSource, NamedPort, PdServersSection, ProbeAction, ProbeSet, ProbeSpec, ProcessPlan,
    ProcessResources, ServingMode, StartupWait,
};
use mcctl_base::HostPort;

/// Plans the router, if the mode is `pd`.
pub(crate) fn plans(context: &PlanContext<'_>) -> Vec<ProcessPlan> {
    let serving = &context.spec.serving;
    if serving.mode != ServingMode::Pd {
        return Vec::new();
    }
    let host = if context.on_hosts() { serving.router.host.as_str() } else { "" };
    let prefill = addresses(context, ComponentRole::Prefill, &serving.prefill);
    let decode = addresses(context, ComponentRole::Decode, &serving.decode);
    let mut argv = vec![context.python(), "-m".to_owned(), "sglang_router.launch_router".to_owned()];
    argv.push("--pd-disaggregation".to_owned());
    for server in &prefill {
        argv.extend(["--prefill".to_owned(), format!("http://{server}"), serving.bootstrap_port.to_string()]);
    }
    for server in &decode {
        argv.extend(["--decode".to_owned(), format!("http://{server}")]);
    }
    argv.extend(["--host".to_owned(), context.bind_address(host).to_owned()]);
    argv.extend(["--port".to_owned(), serving.router.port.to_string()]);
    // The default timeout of some releases is ten minutes.
    argv.extend(["--worker-startup-timeout-secs".to_owned(), engine::STARTS_WITHIN_S.to_string()]);
    argv.extend(serving.router.extra_args.iter().cloned());
    let ask = |path, period_s, failures| ProbeSpec {
        by: ProbeAction::Http { port: serving.router.port, path, tls: false },
        period_s,
        timeout_s: 5,
        failures,
    };
    let name = context.workload(ComponentRole::Router);
    vec![ProcessPlan {
        role: ComponentRole::Router,
        workload: name.clone(),
        name,
        host: host.to_owned(),
        replicas: 1,
        size: 1,
        numa: None,
        image: ImageSource::Router,
        argv,
        env: serving.router.env.iter().map(|(name, value)| (name.clone(), value.clone())).collect(),
        ports: vec![NamedPort { name: "http", number: serving.router.port, key: "serving.router.port" }],
        resources: ProcessResources { memory: Some(MEMORY_BYTES), cpus: 2, ..ProcessResources::default() },
        mounts: Vec::new(),
        secret: None,
        access: Vec::new(),
        model_cache: None,
        data: None,
        // /health returns 200 once the router listens. It is ready when it has at least one server
        // of each type.
        probes: ProbeSet {
            startup: ask("/health", 10, 180),
            readiness: ask("/readiness", 5, 3),
            liveness: ask("/health", 10, 6),
        },
        after: vec![ComponentRole::Prefill, ComponentRole::Decode],
        // The router itself waits for its servers.
        wait: StartupWait::default(),
        stop_s: 120,
        drain: None,
    }]
}

/// Memory for the prefix tree of recent prompts and for connections, in bytes.
const MEMORY_BYTES: u64 = 4 << 30;

fn addresses(context: &PlanContext<'_>, role: ComponentRole, servers: &PdServersSection) -> Vec<HostPort> {
    let port = engine::side_port(role, servers);
    let workload = context.workload(role);
    if context.on_hosts() {
        servers.hosts.iter().map(|host| HostPort::new(host, port)).collect()
    } else {
        (0..servers.replicas).map(|i| HostPort::new(context.pod(&workload, i), port)).collect()
    }
}
