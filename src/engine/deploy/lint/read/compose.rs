//! Docker Compose files.

use std::sync::Arc;

use crate::lint::model::{
    ContainerMount, ContainerProbe, DeclaredPort, LocatedValue, MountSource, ParsedDeployment, ProbeMethod,
    ProbePurpose, Process, ProcessRole, RuntimeKind, Variable,
};
use crate::lint::read::compose_merge::{self, ComposeFile, EffectiveService};
use crate::lint::read::launch::{self, assignment, expanded};
use crate::lint::shell::effects::ScriptEffects;
use crate::lint::shell_lexer::commands;
use crate::lint::yaml::{YamlNode, YamlScalar, YamlValue};
use mcctl_base::check::SourceLocation;

/// Keys of a service by which a Compose file is recognized. An override file may have only the last
/// ones.
const SERVICE_KEYS: &[&str] = &[
    "image",
    "build",
    "command",
    "extends",
    "entrypoint",
    "environment",
    "env_file",
    "network_mode",
    "volumes",
    "deploy",
];

/// Whether the node is a Compose file.
pub(crate) fn is_compose_file(node: &YamlNode) -> bool {
    let services = node.get("services").map_or(&[][..], YamlNode::entries);
    node.get("apiVersion").is_none()
        && services.iter().any(|service| SERVICE_KEYS.iter().any(|key| service.value.get(key).is_some()))
}

/// Adds the services of the file to `deployment`. `all` are its Compose files.
pub(crate) fn read(
    node: &YamlNode,
    file: &Arc<str>,
    all: &[ComposeFile<'_>],
    deployment: &mut ParsedDeployment,
    sink: &mut ScriptEffects,
) {
    let place = |line| SourceLocation { file: file.clone(), line };
    let located = |node: &YamlNode| Some(LocatedValue::new(node.text()?, place(node.line)));
    let names = deployment.compose_names.get_or_insert_with(Vec::new);
    let services = node.get("services").map_or(&[][..], YamlNode::entries);
    for service in services {
        names.push(service.key.clone());
        for key in ["container_name", "hostname"] {
            names.extend(service.value.get(key).and_then(YamlNode::text).map(str::to_owned));
        }
        let host = |text: &str| text.split([':', '=']).next().map(str::to_owned);
        names.extend(
            service.value.get("extra_hosts").map_or(&[][..], YamlNode::items).iter().filter_map(|n| host(n.text()?)),
        );
        names.extend(service.value.get("extra_hosts").map_or(&[][..], YamlNode::entries).iter().map(|e| e.key.clone()));
        names.extend(
            service
                .value
                .get("links")
                .map_or(&[][..], YamlNode::items)
                .iter()
                .filter_map(|n| Some(n.text()?.rsplit(':').next()?.to_owned())),
        );
        for network in service.value.get("networks").map_or(&[][..], YamlNode::entries) {
            let aliases = network.value.get("aliases").map_or(&[][..], YamlNode::items);
            names.extend(aliases.iter().filter_map(|n| Some(n.text()?.to_owned())));
        }
    }
    for EffectiveService { name, line, node, is_partial } in compose_merge::services((file, node), all) {
        let node = &node;
        let mut process =
            Process::new(format!("service {name}"), ProcessRole::Other, place(line), RuntimeKind::Compose);
        process.network = match node.get("network_mode").and_then(YamlNode::text) {
            Some("host") => {
                process.limits.host_network = true;
                format!("host of {file}")
            }
            Some(mode) => match mode.strip_prefix("service:") {
                Some(other) => format!("service {other} of {file}"),
                None => format!("service {name} of {file}"),
            },
            None => format!("service {name} of {file}"),
        };
        if let Some(profiles) = node.get("profiles").filter(|_| process.limits.host_network) {
            // Services of different profiles need not run together.
            let names: Vec<&str> = profiles.items().iter().filter_map(YamlNode::text).collect();
            process.network.push_str(&format!(" with the profiles {}", names.join(", ")));
        }
        process.image = node.get("image").and_then(located);
        variables(node, file, &mut process);
        limits(node, file, &mut process);
        process.env_whole &= !is_partial;
        process.limits.is_partial |= is_partial;
        let mut words = list_or_line(node.get("entrypoint"), file);
        words.extend(list_or_line(node.get("command"), file));
        for word in &mut words {
            // Compose passes `$$` to the container as `$`.
            word.text = word.text.replace("$$", "$");
        }
        let words = expanded(&words, &process.env);
        let before = sink.processes.len();
        let no_program = node.get("entrypoint").is_none() && words.first().is_none_or(|w| w.text.starts_with('-'));
        let image = process.image.as_ref().map(|image| image.text.as_str());
        if (no_program || image.is_some_and(|image| image.contains("mcctl")))
            && let Some((role, implementation, args)) = launch::guess_role(image, &words)
        {
            sink.processes.push(launch::with_mode(Process { role, implementation, args, ..process.clone() }));
        }
        if sink.processes.len() == before {
            launch::start(&process, &words, 0, sink);
        }
        if sink.processes.len() == before {
            sink.processes.push(Process { args: words, ..process });
        }
    }
}

/// A command as a list of words, or as a string that is split like a shell command.
fn list_or_line(node: Option<&YamlNode>, file: &Arc<str>) -> Vec<LocatedValue> {
    let place = |line| SourceLocation { file: file.clone(), line };
    match node.map(|n| &n.value) {
        Some(YamlValue::List(items)) => items
            .iter()
            .filter_map(|item| match &item.value {
                YamlValue::Scalar(YamlScalar { text, first_line, .. }) => {
                    Some(LocatedValue::new(text.clone(), place(*first_line)))
                }
                _ => None,
            })
            .collect(),
        Some(YamlValue::Scalar(YamlScalar { text, first_line, .. })) => {
            // A folded scalar has no line breaks left.
            let words = commands(&text.replace('\n', " \\\n"), *first_line).into_iter().flatten();
            words.map(|w| LocatedValue::new(w.text, place(w.line))).collect()
        }
        _ => Vec::new(),
    }
}

fn variables(node: &YamlNode, file: &Arc<str>, process: &mut Process) {
    let place = |line| SourceLocation { file: file.clone(), line };
    let plain = |text: &str| text.replace("$$", "$");
    if let Some(files) = node.get("env_file") {
        let one = |node: &YamlNode| {
            let path = node.get("path").unwrap_or(node);
            Some(LocatedValue::new(path.text()?, place(path.line)))
        };
        process.env_files = match files.items() {
            [] => one(files).into_iter().collect(),
            items => items.iter().filter_map(one).collect(),
        };
        process.env_whole = false;
    }
    let environment = node.get("environment");
    for entry in environment.map_or(&[][..], YamlNode::entries) {
        let variable = match entry.value.text() {
            Some(text) => Variable::Text(LocatedValue::new(plain(text), place(entry.value.line))),
            None => Variable::Elsewhere(LocatedValue::new(format!("${}", entry.key), place(entry.line))),
        };
        process.env.insert(entry.key.clone(), variable);
    }
    for item in environment.map_or(&[][..], YamlNode::items) {
        let Some(text) = item.text() else { continue };
        match assignment(text) {
            Some((name, value)) => {
                process.env.insert(name.to_owned(), Variable::Text(LocatedValue::new(plain(value), place(item.line))));
            }
            None => {
                let outside = Variable::Elsewhere(LocatedValue::new(format!("${text}"), place(item.line)));
                process.env.insert(text.to_owned(), outside);
            }
        }
    }
}

fn limits(node: &YamlNode, file: &Arc<str>, process: &mut Process) {
    let place = |line| SourceLocation { file: file.clone(), line };
    let located = |node: &YamlNode| Some(LocatedValue::new(node.text()?, place(node.line)));
    let all = |key: &str| node.get(key).map_or(&[][..], YamlNode::items).iter().filter_map(located).collect::<Vec<_>>();
    let limits = &mut process.limits;
    limits.privileged = node.get("privileged").filter(|n| n.boolean() == Some(true)).map(|n| place(n.line));
    limits.capabilities = all("cap_add");
    let devices = node.get("devices").map_or(&[][..], YamlNode::items);
    limits.devices = devices.iter().filter_map(|device| located(device.get("source").unwrap_or(device))).collect();
    // Only devices of these drivers are certainly no RDMA devices.
    let reserved = node.path(&["deploy", "resources", "reservations", "devices"]).map_or(&[][..], YamlNode::items);
    let driver = |device: &YamlNode| device.get("driver").and_then(YamlNode::text).map(str::to_owned);
    limits.is_partial = reserved.iter().filter_map(driver).any(|driver| driver != "nvidia" && driver != "amd");
    limits.user = node.get("user").and_then(located);
    limits.shm_size = node.get("shm_size").and_then(located);
    limits.host_ipc = node.get("ipc").and_then(YamlNode::text) == Some("host");
    limits.grace = node.get("stop_grace_period").and_then(located);
    limits.memlock = node.path(&["ulimits", "memlock"]).and_then(|n| {
        let lowest = ["hard", "soft"].iter().filter_map(|key| n.get(key)).min_by_key(|n| n.whole().unwrap_or(i64::MAX));
        located(lowest.unwrap_or(n))
    });
    let memory = node.get("mem_limit").or_else(|| node.path(&["deploy", "resources", "limits", "memory"]));
    if let Some(memory) = memory.and_then(located) {
        limits.resources.entry("memory".into()).or_default().limit = Some(memory);
    }
    let cpus = node.get("cpus").or_else(|| node.path(&["deploy", "resources", "limits", "cpus"]));
    if let Some(cpus) = cpus.and_then(located) {
        limits.resources.entry("cpu".into()).or_default().limit = Some(cpus);
    }
    process.replicas = node.path(&["deploy", "replicas"]).or_else(|| node.get("scale")).and_then(located);
    for volume in node.get("volumes").map_or(&[][..], YamlNode::items) {
        let (from, to) = match volume.text() {
            Some(text) => match text.split_once(':') {
                Some((from, to)) => (from.to_owned(), to.split(':').next().unwrap_or(to).to_owned()),
                None => (String::new(), text.to_owned()),
            },
            None => {
                let part = |key: &str| volume.get(key).and_then(YamlNode::text).unwrap_or_default().to_owned();
                (part("source"), part("target"))
            }
        };
        let source = match from.starts_with(['/', '.', '~', '$']) {
            _ if volume.get("type").and_then(YamlNode::text) == Some("tmpfs") => MountSource::Memory(None),
            true => MountSource::Host(from),
            false => MountSource::Volume(from),
        };
        process.limits.mounts.push(ContainerMount { path: to, source, place: place(volume.line) });
    }
    for mount in node.get("tmpfs").map_or(&[][..], |tmpfs| match tmpfs.items() {
        [] => std::slice::from_ref(tmpfs),
        items => items,
    }) {
        let path = mount.text().and_then(|text| text.split(':').next()).unwrap_or_default().to_owned();
        let place = place(mount.line);
        process.limits.mounts.push(ContainerMount { path, source: MountSource::Memory(None), place });
    }
    for port in node.get("ports").map_or(&[][..], YamlNode::items) {
        let inner = port.text().and_then(|text| text.rsplit(':').next()?.split('/').next()?.parse().ok());
        let inner = inner.or_else(|| u16::try_from(port.get("target")?.whole()?).ok());
        process.ports.extend(inner.map(|number: u16| DeclaredPort { number, name: None, place: place(port.line) }));
    }
    if let Some(test) = node.path(&["healthcheck", "test"]) {
        let text = match test.items() {
            [] => test.text().unwrap_or_default().to_owned(),
            items => items.iter().filter_map(YamlNode::text).collect::<Vec<_>>().join(" "),
        };
        process.probes.push(ContainerProbe {
            what: ProbePurpose::Readiness,
            how: ProbeMethod::Exec(text),
            place: place(test.line),
        });
    }
}
