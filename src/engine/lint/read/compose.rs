//! Compose files of Docker.

use std::sync::Arc;

use crate::engine::check::Place;
use crate::engine::lint::node::{Node, Text, Value};
use crate::engine::lint::read::launch::{self, assignment, expanded};
use crate::engine::lint::scene::{
    DeclaredPort, Habitat, Mount, MountSource, Probe, ProbeFor, ProbeHow, Process, Role, Said, Scene, Variable,
};
use crate::engine::lint::words::commands;

/// Is it a compose file?
pub fn is_one(node: &Node) -> bool {
    let services = node.get("services").map_or(&[][..], Node::entries);
    node.get("apiVersion").is_none()
        && services.iter().any(|service| {
            ["image", "build", "command", "extends", "entrypoint"].iter().any(|key| service.value.get(key).is_some())
        })
}

/// Add what the file says to `scene`.
pub fn read(node: &Node, file: &Arc<str>, scene: &mut Scene) {
    let place = |line| Place { file: file.clone(), line };
    let said = |node: &Node| Some(Said::new(node.text()?, place(node.line)));
    let names = scene.compose_names.get_or_insert_with(Vec::new);
    let services = node.get("services").map_or(&[][..], Node::entries);
    for service in services {
        names.push(service.key.clone());
        for key in ["container_name", "hostname"] {
            names.extend(service.value.get(key).and_then(Node::text).map(str::to_owned));
        }
        let host = |text: &str| text.split([':', '=']).next().map(str::to_owned);
        names.extend(
            service.value.get("extra_hosts").map_or(&[][..], Node::items).iter().filter_map(|n| host(n.text()?)),
        );
        names.extend(service.value.get("extra_hosts").map_or(&[][..], Node::entries).iter().map(|e| e.key.clone()));
        names.extend(
            service
                .value
                .get("links")
                .map_or(&[][..], Node::items)
                .iter()
                .filter_map(|n| Some(n.text()?.rsplit(':').next()?.to_owned())),
        );
        for network in service.value.get("networks").map_or(&[][..], Node::entries) {
            let aliases = network.value.get("aliases").map_or(&[][..], Node::items);
            names.extend(aliases.iter().filter_map(|n| Some(n.text()?.to_owned())));
        }
    }
    for service in services {
        let node = &service.value;
        let mut process =
            Process::new(format!("service {}", service.key), Role::Other, place(service.line), Habitat::Compose);
        process.network = match node.get("network_mode").and_then(Node::text) {
            Some("host") => {
                process.limits.host_network = true;
                format!("host of {file}")
            }
            Some(mode) => match mode.strip_prefix("service:") {
                Some(other) => format!("service {other} of {file}"),
                None => format!("service {} of {file}", service.key),
            },
            None => format!("service {} of {file}", service.key),
        };
        process.image = node.get("image").and_then(said);
        variables(node, file, &mut process);
        limits(node, file, &mut process);
        let mut words = list_or_line(node.get("entrypoint"), file);
        words.extend(list_or_line(node.get("command"), file));
        for word in &mut words {
            // `$$` is a `$` that compose leaves to the container.
            word.text = word.text.replace("$$", "$");
        }
        let words = expanded(&words, &process.env);
        let before = scene.processes.len();
        let no_program = node.get("entrypoint").is_none() && words.first().is_none_or(|w| w.text.starts_with('-'));
        let image = process.image.as_ref().map(|image| image.text.as_str());
        if (no_program || image.is_some_and(|image| image.contains("mcctl")))
            && let Some((role, make, args)) = launch::guess(image, &words)
        {
            scene.processes.push(launch::with_mode(Process { role, make, args, ..process.clone() }));
        }
        if scene.processes.len() == before {
            launch::start(&process, &words, 0, &mut scene.processes);
        }
        if scene.processes.len() == before {
            scene.processes.push(Process { args: words, ..process });
        }
    }
}

/// A command as a list of words, or as a line that a shell splits.
fn list_or_line(node: Option<&Node>, file: &Arc<str>) -> Vec<Said> {
    let place = |line| Place { file: file.clone(), line };
    match node.map(|n| &n.value) {
        Some(Value::List(items)) => items
            .iter()
            .filter_map(|item| match &item.value {
                Value::Scalar(Text { text, first_line, .. }) => Some(Said::new(text.clone(), place(*first_line))),
                _ => None,
            })
            .collect(),
        Some(Value::Scalar(Text { text, first_line, .. })) => {
            // A folded text has lost its lines.
            let words = commands(&text.replace('\n', " \\\n"), *first_line).into_iter().flatten();
            words.map(|w| Said::new(w.text, place(w.line))).collect()
        }
        _ => Vec::new(),
    }
}

fn variables(node: &Node, file: &Arc<str>, process: &mut Process) {
    let place = |line| Place { file: file.clone(), line };
    let plain = |text: &str| text.replace("$$", "$");
    if let Some(files) = node.get("env_file") {
        let one = |node: &Node| {
            let path = node.get("path").unwrap_or(node);
            Some(Said::new(path.text()?, place(path.line)))
        };
        process.env_files = match files.items() {
            [] => one(files).into_iter().collect(),
            items => items.iter().filter_map(one).collect(),
        };
        process.env_whole = false;
    }
    let environment = node.get("environment");
    for entry in environment.map_or(&[][..], Node::entries) {
        let variable = match entry.value.text() {
            Some(text) => Variable::Text(Said::new(plain(text), place(entry.value.line))),
            None => Variable::Elsewhere(Said::new(format!("${}", entry.key), place(entry.line))),
        };
        process.env.insert(entry.key.clone(), variable);
    }
    for item in environment.map_or(&[][..], Node::items) {
        let Some(text) = item.text() else { continue };
        match assignment(text) {
            Some((name, value)) => {
                process.env.insert(name.to_owned(), Variable::Text(Said::new(plain(value), place(item.line))));
            }
            None => {
                let outside = Variable::Elsewhere(Said::new(format!("${text}"), place(item.line)));
                process.env.insert(text.to_owned(), outside);
            }
        }
    }
}

fn limits(node: &Node, file: &Arc<str>, process: &mut Process) {
    let place = |line| Place { file: file.clone(), line };
    let said = |node: &Node| Some(Said::new(node.text()?, place(node.line)));
    let all = |key: &str| node.get(key).map_or(&[][..], Node::items).iter().filter_map(said).collect::<Vec<_>>();
    let limits = &mut process.limits;
    limits.privileged = node.get("privileged").filter(|n| n.boolean() == Some(true)).map(|n| place(n.line));
    limits.capabilities = all("cap_add");
    limits.devices = all("devices");
    limits.user = node.get("user").and_then(said);
    limits.shm_size = node.get("shm_size").and_then(said);
    limits.host_ipc = node.get("ipc").and_then(Node::text) == Some("host");
    limits.grace = node.get("stop_grace_period").and_then(said);
    limits.memlock = node.path(&["ulimits", "memlock"]).and_then(|n| {
        let lowest = ["hard", "soft"].iter().filter_map(|key| n.get(key)).min_by_key(|n| n.whole().unwrap_or(i64::MAX));
        said(lowest.unwrap_or(n))
    });
    let memory = node.get("mem_limit").or_else(|| node.path(&["deploy", "resources", "limits", "memory"]));
    if let Some(memory) = memory.and_then(said) {
        limits.resources.entry("memory".into()).or_default().limit = Some(memory);
    }
    let cpus = node.get("cpus").or_else(|| node.path(&["deploy", "resources", "limits", "cpus"]));
    if let Some(cpus) = cpus.and_then(said) {
        limits.resources.entry("cpu".into()).or_default().limit = Some(cpus);
    }
    process.replicas = node.path(&["deploy", "replicas"]).or_else(|| node.get("scale")).and_then(said);
    for volume in node.get("volumes").map_or(&[][..], Node::items) {
        let (from, to) = match volume.text() {
            Some(text) => match text.split_once(':') {
                Some((from, to)) => (from.to_owned(), to.split(':').next().unwrap_or(to).to_owned()),
                None => (String::new(), text.to_owned()),
            },
            None => {
                let part = |key: &str| volume.get(key).and_then(Node::text).unwrap_or_default().to_owned();
                (part("source"), part("target"))
            }
        };
        let source = match from.starts_with(['/', '.', '~', '$']) {
            true => MountSource::Host(from),
            false => MountSource::Volume(from),
        };
        process.limits.mounts.push(Mount { path: to, source, place: place(volume.line) });
    }
    for port in node.get("ports").map_or(&[][..], Node::items) {
        let inner = port.text().and_then(|text| text.rsplit(':').next()?.split('/').next()?.parse().ok());
        let inner = inner.or_else(|| u16::try_from(port.get("target")?.whole()?).ok());
        process.ports.extend(inner.map(|number: u16| DeclaredPort { number, name: None, place: place(port.line) }));
    }
    if let Some(test) = node.path(&["healthcheck", "test"]) {
        let text = match test.items() {
            [] => test.text().unwrap_or_default().to_owned(),
            items => items.iter().filter_map(Node::text).collect::<Vec<_>>().join(" "),
        };
        process.probes.push(Probe { what: ProbeFor::Readiness, how: ProbeHow::Exec(text), place: place(test.line) });
    }
}
