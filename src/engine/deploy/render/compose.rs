//! Renders one Compose file per host.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::render::{RenderContext, RenderedFile, notes, readiness_command};
use crate::{DeployError, ProcessPlan};

#[derive(Serialize)]
struct ComposeFile<'a> {
    name: &'a str,
    services: BTreeMap<&'a str, ComposeService>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    volumes: BTreeMap<&'a str, ComposeVolume<'a>>,
}

#[derive(Serialize)]
struct ComposeVolume<'a> {
    /// Without it, Compose adds the project's name.
    name: &'a str,
}

#[derive(Serialize)]
struct ComposeService {
    container_name: String,
    image: String,
    entrypoint: Vec<String>,
    command: Vec<String>,
    network_mode: &'static str,
    restart: &'static str,
    stop_grace_period: String,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    environment: Vec<String>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    depends_on: BTreeMap<String, ComposeCondition>,
    ulimits: BTreeMap<&'static str, i64>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    cap_add: Vec<&'static str>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    devices: Vec<&'static str>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    volumes: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    shm_size: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    healthcheck: Option<ComposeHealthcheck>,
    #[serde(skip_serializing_if = "Option::is_none")]
    deploy: Option<ComposeDeploy>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pre_stop: Vec<ComposeHook>,
}

#[derive(Serialize)]
struct ComposeCondition {
    condition: &'static str,
}

#[derive(Serialize)]
struct ComposeHealthcheck {
    test: Vec<String>,
    interval: String,
    timeout: String,
    retries: u32,
    start_period: String,
}

#[derive(Serialize)]
struct ComposeHook {
    command: Vec<String>,
}

#[derive(Serialize)]
struct ComposeDeploy {
    resources: ComposeResources,
}

#[derive(Serialize)]
struct ComposeResources {
    reservations: ComposeReservations,
}

#[derive(Serialize)]
struct ComposeReservations {
    devices: Vec<ComposeGpus>,
}

#[derive(Serialize)]
struct ComposeGpus {
    driver: &'static str,
    count: &'static str,
    capabilities: [&'static str; 1],
}

/// Renders the files HOST/compose.yaml.
pub(crate) fn files(context: &RenderContext<'_>) -> Result<Vec<RenderedFile>, DeployError> {
    let mut files = Vec::new();
    for (host, plans) in context.by_host() {
        let mut services = BTreeMap::new();
        for plan in &plans {
            services.insert(plan.name.as_str(), service(context, plan, &plans)?);
        }
        let data = plans.iter().filter_map(|plan| plan.data.as_ref()).map(|data| data.name.as_str());
        let caches = plans.iter().filter_map(|plan| plan.model_cache.as_deref());
        let volumes = data.chain(caches).map(|name| (name, ComposeVolume { name })).collect();
        let compose = ComposeFile { name: &context.spec.name, services, volumes };
        let yaml = serde_yaml_ng::to_string(&compose).expect("strings, numbers and lists");
        let notes: String =
            plans.iter().flat_map(|plan| notes(context, plan)).map(|note| format!("# {note}\n")).collect();
        let text = format!("# {}\n# docker compose up -d, on {host}.\n{notes}{yaml}", context.head);
        files.push(RenderedFile { name: format!("{host}/compose.yaml"), text });
    }
    Ok(files)
}

/// Escapes `text` so that Compose does not substitute variables.
fn literal(text: &str) -> String {
    text.replace('$', "$$")
}

fn literals(words: &[String]) -> Vec<String> {
    words.iter().map(|word| literal(word)).collect()
}

fn service(
    context: &RenderContext<'_>,
    plan: &ProcessPlan,
    beside: &[&ProcessPlan],
) -> Result<ComposeService, DeployError> {
    let resources = &plan.resources;
    let argv = literals(&plan.container_argv());
    let (program, arguments) = argv.split_first().map(|(program, rest)| (program.clone(), rest)).unwrap_or_default();
    let local = beside.iter().filter(|other| plan.after.contains(&other.role));
    let mut ulimits = BTreeMap::from([("nofile", 1_048_576)]);
    let mut cap_add = Vec::new();
    if resources.memlock {
        ulimits.insert("memlock", -1);
        cap_add.push("IPC_LOCK");
    }
    if plan.numa.is_some() {
        // For numactl.
        cap_add.push("SYS_NICE");
    }
    let probes = &plan.probes;
    let start = probes.startup.period_s * probes.startup.failures + plan.wait.seconds;
    let health = |command: Vec<String>| ComposeHealthcheck {
        test: [&["CMD".to_owned()][..], &literals(&command)].concat(),
        interval: format!("{}s", probes.readiness.period_s),
        timeout: format!("{}s", probes.readiness.timeout_s),
        retries: probes.readiness.failures,
        start_period: format!("{start}s"),
    };
    let gpus = || ComposeGpus { driver: "nvidia", count: "all", capabilities: ["gpu"] };
    let mount = |path: &str, writes: bool| format!("{path}:{path}{}", if writes { "" } else { ":ro" });
    Ok(ComposeService {
        container_name: plan.name.clone(),
        image: context.image(plan)?,
        entrypoint: vec![program],
        command: arguments.to_vec(),
        network_mode: "host",
        restart: "unless-stopped",
        stop_grace_period: format!("{}s", plan.stop_s),
        environment: plan.env.iter().map(|(name, value)| format!("{name}={}", literal(value))).collect(),
        // The container itself waits until these services are ready.
        depends_on: local
            .map(|other| (other.name.clone(), ComposeCondition { condition: "service_started" }))
            .collect(),
        ulimits,
        cap_add,
        devices: if resources.rdma { vec!["/dev/infiniband:/dev/infiniband"] } else { Vec::new() },
        volumes: plan
            .mounts
            .iter()
            .map(|found| mount(&found.path, found.writes))
            .chain(plan.secret.iter().map(|secret| mount(&secret.source, false)))
            .chain(plan.access.iter().map(|file| mount(&file.path, false)))
            .chain(plan.model_cache.iter().map(|volume| format!("{volume}:{}", ProcessPlan::MODEL_CACHE)))
            .chain(plan.data.iter().map(|data| format!("{}:{}", data.name, data.path)))
            .map(|volume| literal(&volume))
            .collect(),
        shm_size: (resources.shm > 0).then_some(resources.shm),
        healthcheck: readiness_command(plan).map(health),
        deploy: (resources.gpus > 0).then(|| ComposeDeploy {
            resources: ComposeResources { reservations: ComposeReservations { devices: vec![gpus()] } },
        }),
        pre_stop: plan.drain_argv().map(|argv| ComposeHook { command: literals(&argv) }).into_iter().collect(),
    })
}
