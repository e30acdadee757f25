//! A Compose file for each host.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::engine::deploy::render::{Context, File, asks};
use crate::engine::deploy::{DeployError, Launch};

#[derive(Serialize)]
struct Compose<'a> {
    name: &'a str,
    services: BTreeMap<&'a str, Service>,
}

#[derive(Serialize)]
struct Service {
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
    depends_on: BTreeMap<String, Condition>,
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
    healthcheck: Option<Health>,
    #[serde(skip_serializing_if = "Option::is_none")]
    deploy: Option<Deploy>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pre_stop: Vec<Hook>,
}

#[derive(Serialize)]
struct Condition {
    condition: &'static str,
}

#[derive(Serialize)]
struct Health {
    test: Vec<String>,
    interval: String,
    timeout: String,
    retries: u32,
    start_period: String,
}

#[derive(Serialize)]
struct Hook {
    command: Vec<String>,
}

#[derive(Serialize)]
struct Deploy {
    resources: Reserved,
}

#[derive(Serialize)]
struct Reserved {
    reservations: Reservations,
}

#[derive(Serialize)]
struct Reservations {
    devices: Vec<Gpus>,
}

#[derive(Serialize)]
struct Gpus {
    driver: &'static str,
    count: &'static str,
    capabilities: [&'static str; 1],
}

/// The files: HOST/compose.yaml.
pub(crate) fn files(context: &Context<'_>) -> Result<Vec<File>, DeployError> {
    let mut files = Vec::new();
    for (host, launches) in context.by_host() {
        let mut services = BTreeMap::new();
        for launch in &launches {
            services.insert(launch.name.as_str(), service(context, launch, &launches)?);
        }
        let compose = Compose { name: &context.wanted.name, services };
        let yaml = serde_yaml_ng::to_string(&compose).expect("texts, numbers and lists");
        let text = format!("# {}\n# docker compose up -d, on {host}.\n{yaml}", context.head);
        files.push(File { name: format!("{host}/compose.yaml"), text });
    }
    Ok(files)
}

/// A text in which Compose finds no variable.
fn literal(text: &str) -> String {
    text.replace('$', "$$")
}

fn literals(words: &[String]) -> Vec<String> {
    words.iter().map(|word| literal(word)).collect()
}

fn service(context: &Context<'_>, launch: &Launch, beside: &[&Launch]) -> Result<Service, DeployError> {
    let resources = &launch.resources;
    let argv = literals(&launch.container_argv());
    let (program, arguments) = argv.split_first().map(|(program, rest)| (program.clone(), rest)).unwrap_or_default();
    let local = launch.after.iter().filter(|name| beside.iter().any(|other| other.name == **name));
    let mut ulimits = BTreeMap::from([("nofile", 1_048_576)]);
    let mut cap_add = Vec::new();
    if resources.memlock {
        ulimits.insert("memlock", -1);
        cap_add.push("IPC_LOCK");
    }
    if launch.numa.is_some() {
        // For numactl.
        cap_add.push("SYS_NICE");
    }
    let probes = &launch.probes;
    let start = probes.startup.period_s * probes.startup.failures + launch.wait.seconds;
    let health = |command: Vec<String>| Health {
        test: [&["CMD".to_owned()][..], &literals(&command)].concat(),
        interval: format!("{}s", probes.readiness.period_s),
        timeout: format!("{}s", probes.readiness.timeout_s),
        retries: probes.readiness.failures,
        start_period: format!("{start}s"),
    };
    let gpus = || Gpus { driver: "nvidia", count: "all", capabilities: ["gpu"] };
    let mount = |path: &str, writes: bool| format!("{path}:{path}{}", if writes { "" } else { ":ro" });
    Ok(Service {
        container_name: launch.name.clone(),
        image: context.image(launch)?,
        entrypoint: vec![program],
        command: arguments.to_vec(),
        network_mode: "host",
        restart: "unless-stopped",
        stop_grace_period: format!("{}s", launch.stop_s),
        environment: launch.env.iter().map(|(name, value)| format!("{name}={}", literal(value))).collect(),
        // Its own wait is for what is ready.
        depends_on: local.map(|name| (name.clone(), Condition { condition: "service_started" })).collect(),
        ulimits,
        cap_add,
        devices: if resources.rdma { vec!["/dev/infiniband:/dev/infiniband"] } else { Vec::new() },
        volumes: launch.mounts.iter().map(|found| mount(&found.path, found.writes)).collect(),
        shm_size: (resources.shm > 0).then_some(resources.shm),
        healthcheck: asks(launch).map(health),
        deploy: (resources.gpus > 0)
            .then(|| Deploy { resources: Reserved { reservations: Reservations { devices: vec![gpus()] } } }),
        pre_stop: launch.drain_argv().map(|argv| Hook { command: literals(&argv) }).into_iter().collect(),
    })
}
