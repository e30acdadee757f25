//! A Kubernetes pod template as processes.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::engine::check::Place;
use crate::engine::lint::node::{Node, Text, Value};
use crate::engine::lint::read::launch;
use crate::engine::lint::scene::{
    ConfigData, DeclaredPort, Habitat, Mount, MountSource, Probe, ProbeFor, ProbeHow, Process, Role, Said, Variable,
};

/// What is known of a pod beside its template.
pub struct Around<'a> {
    /// How a person calls it.
    pub name: String,
    /// Its place in the list of pods.
    pub pod: usize,
    /// How many there are.
    pub replicas: Option<Said>,
    /// ConfigMaps and Secrets that were given.
    pub data: &'a [ConfigData],
    /// The file.
    pub file: &'a Arc<str>,
}

impl Around<'_> {
    fn place(&self, line: u32) -> Place {
        Place { file: self.file.clone(), line }
    }

    fn said(&self, node: &Node) -> Option<Said> {
        Some(Said::new(node.text()?, self.place(node.line)))
    }
}

/// Add the processes of the pod spec `spec` to `out`.
pub fn read(spec: &Node, around: &Around<'_>, out: &mut Vec<Process>) {
    let volumes: BTreeMap<&str, &Node> = spec
        .get("volumes")
        .map_or(&[][..], Node::items)
        .iter()
        .filter_map(|volume| Some((volume.get("name")?.text()?, volume)))
        .collect();
    let sidecars = spec.get("initContainers").map_or(&[][..], Node::items).iter();
    let sidecars = sidecars.filter(|c| c.get("restartPolicy").and_then(Node::text) == Some("Always"));
    for container in spec.get("containers").map_or(&[][..], Node::items).iter().chain(sidecars) {
        let base = surroundings(spec, container, &volumes, around);
        let command = words(container.get("command"), around);
        let args = words(container.get("args"), around);
        let whole: Vec<Said> = command.iter().chain(&args).cloned().collect();
        let whole = launch::expanded(&whole, &base.env);
        let before = out.len();
        let image = base.image.as_ref().map(|image| image.text.as_str());
        if command.is_empty()
            && let Some((role, make, args)) = launch::guess(image, &whole)
        {
            out.push(launch::with_mode(Process { role, make, args, ..base.clone() }));
        }
        if out.len() == before {
            launch::start(&base, &whole, 0, out);
        }
        if out.len() == before {
            out.push(Process { args: whole, ..base });
        } else if out.len() > before + 1 {
            // Probes and ports are those of the container, not of each of its processes.
            for process in &mut out[before..] {
                process.probes.clear();
                process.ports.clear();
            }
        }
    }
}

fn words(node: Option<&Node>, around: &Around<'_>) -> Vec<Said> {
    let one = |node: &Node| match &node.value {
        Value::Scalar(Text { text, first_line, .. }) => Some(Said::new(text.clone(), around.place(*first_line))),
        _ => None,
    };
    node.map_or(&[][..], Node::items).iter().filter_map(one).collect()
}

fn surroundings(spec: &Node, container: &Node, volumes: &BTreeMap<&str, &Node>, around: &Around<'_>) -> Process {
    let name = container.get("name").and_then(Node::text).unwrap_or_default();
    let called = match spec.get("containers").map_or(0, |c| c.items().len()) {
        0 | 1 => around.name.clone(),
        _ => format!("{}, container {name}", around.name),
    };
    let mut process = Process::new(called, Role::Other, around.place(container.line), Habitat::Kubernetes);
    process.pod = Some(around.pod);
    process.network = format!("pod {} of {}", around.pod, around.file);
    process.replicas = around.replicas.clone();
    process.image = container.get("image").and_then(|n| around.said(n));
    variables(container, around, &mut process);
    let limits = &mut process.limits;
    for (kind, request) in [("limits", false), ("requests", true)] {
        for entry in container.path(&["resources", kind]).map_or(&[][..], Node::entries) {
            let said = entry.value.text().map(|text| Said::new(text, around.place(entry.line)));
            let resource = limits.resources.entry(entry.key.clone()).or_default();
            *(if request { &mut resource.request } else { &mut resource.limit }) = said;
        }
    }
    let flag = |node: Option<&Node>| node.filter(|n| n.boolean() == Some(true)).map(|n| around.place(n.line));
    limits.host_network = flag(spec.get("hostNetwork")).is_some();
    limits.host_ipc = flag(spec.get("hostIPC")).is_some();
    limits.privileged = flag(container.path(&["securityContext", "privileged"]));
    let secured =
        |key: &str| container.path(&["securityContext", key]).or_else(|| spec.path(&["securityContext", key]));
    limits.user = secured("runAsUser").and_then(|n| around.said(n));
    limits.non_root = flag(secured("runAsNonRoot"));
    let added = container.path(&["securityContext", "capabilities", "add"]).map_or(&[][..], Node::items);
    limits.capabilities = added.iter().filter_map(|n| around.said(n)).collect();
    limits.grace = spec.get("terminationGracePeriodSeconds").and_then(|n| around.said(n));
    for mount in container.get("volumeMounts").map_or(&[][..], Node::items) {
        let (Some(path), Some(name)) = (mount.get("mountPath"), mount.get("name").and_then(Node::text)) else {
            continue;
        };
        let sub = mount.get("subPath").or_else(|| mount.get("subPathExpr"));
        let source = match volumes.get(name) {
            Some(volume) if volume.path(&["hostPath", "path"]).is_some() => {
                let host = volume.path(&["hostPath", "path"]).and_then(Node::text).unwrap_or_default();
                MountSource::Host(match sub.and_then(Node::text) {
                    Some(sub) => format!("{host}/{sub}"),
                    None => host.to_owned(),
                })
            }
            Some(volume) if volume.path(&["emptyDir", "medium"]).and_then(Node::text) == Some("Memory") => {
                let size = volume.path(&["emptyDir", "sizeLimit"]).and_then(Node::text);
                MountSource::Memory(size.map(str::to_owned))
            }
            _ => MountSource::Volume(name.to_owned()),
        };
        let path_text = path.text().unwrap_or_default().to_owned();
        limits.mounts.push(Mount { path: path_text, source, place: around.place(path.line) });
    }
    let ports: BTreeMap<&str, u16> = container
        .get("ports")
        .map_or(&[][..], Node::items)
        .iter()
        .filter_map(|p| Some((p.get("name").and_then(Node::text).unwrap_or(""), port(p.get("containerPort")?)?)))
        .collect();
    process.ports = container
        .get("ports")
        .map_or(&[][..], Node::items)
        .iter()
        .filter_map(|p| {
            let (number, name) = (p.get("containerPort")?, p.get("name").and_then(Node::text));
            let place = around.place(number.line);
            Some(DeclaredPort { number: port(number)?, name: name.map(str::to_owned), place })
        })
        .collect();
    for what in [ProbeFor::Readiness, ProbeFor::Liveness, ProbeFor::Startup] {
        let Some(entry) = container.entry(what.key()) else { continue };
        if let Some(how) = probe(&entry.value, &ports) {
            process.probes.push(Probe { what, how, place: around.place(entry.line) });
        }
    }
    process.pre_stop = container.path(&["lifecycle", "preStop"]).map(|node| {
        let text = serde_json::to_string(&node.to_json()).unwrap_or_default();
        Said::new(text, around.place(node.line))
    });
    process
}

fn port(node: &Node) -> Option<u16> {
    u16::try_from(node.whole()?).ok()
}

fn probe(node: &Node, ports: &BTreeMap<&str, u16>) -> Option<ProbeHow> {
    let number = |node: Option<&Node>| node.and_then(|n| port(n).or_else(|| ports.get(n.text()?).copied()));
    if let Some(tcp) = node.get("tcpSocket") {
        return Some(ProbeHow::Tcp { port: number(tcp.get("port")) });
    }
    if let Some(http) = node.get("httpGet") {
        let path = http.get("path").and_then(Node::text).unwrap_or("/").to_owned();
        return Some(ProbeHow::Http { port: number(http.get("port")), path });
    }
    let words = node.path(&["exec", "command"])?.items().iter().filter_map(Node::text).collect::<Vec<_>>();
    Some(ProbeHow::Exec(words.join(" ")))
}

/// `envFrom` first, then `env`, as Kubernetes does.
fn variables(container: &Node, around: &Around<'_>, process: &mut Process) {
    for source in container.get("envFrom").map_or(&[][..], Node::items) {
        let prefix = source.get("prefix").and_then(Node::text).unwrap_or_default();
        let (reference, secret) = match source.get("configMapRef") {
            Some(reference) => (Some(reference), false),
            None => (source.get("secretRef"), true),
        };
        let name = reference.and_then(|r| r.get("name")).and_then(Node::text);
        match around.data.iter().find(|data| data.secret == secret && Some(data.name.as_str()) == name) {
            Some(found) => {
                for (key, (said, _)) in &found.data {
                    process.env.insert(format!("{prefix}{key}"), Variable::Text(said.clone()));
                }
            }
            None => process.env_whole = false,
        }
    }
    for item in container.get("env").map_or(&[][..], Node::items) {
        let Some(name) = item.get("name").and_then(Node::text) else { continue };
        let variable = match (item.get("value"), item.get("valueFrom")) {
            (Some(value), _) => {
                let line = match &value.value {
                    Value::Scalar(Text { first_line, .. }) => *first_line,
                    _ => value.line,
                };
                let text = value.text().unwrap_or_default();
                let text = launch::expanded(&[Said::new(text, around.place(line))], &process.env);
                Variable::Text(text.into_iter().next().unwrap_or(Said::new("", around.place(line))))
            }
            (None, Some(from)) => {
                let source = ["configMapKeyRef", "secretKeyRef"].iter().find_map(|kind| {
                    let reference = from.get(kind)?;
                    let (name, key) = (reference.get("name")?.text()?, reference.get("key")?.text()?);
                    let secret = *kind == "secretKeyRef";
                    let data = around.data.iter().find(|data| data.secret == secret && data.name == name)?;
                    data.data.get(key).map(|(said, _)| said.clone())
                });
                let path = from.path(&["fieldRef", "fieldPath"]).and_then(Node::text).unwrap_or("elsewhere");
                match source {
                    Some(said) => Variable::Text(said),
                    None => Variable::Elsewhere(Said::new(format!("$({path})"), around.place(item.line))),
                }
            }
            (None, None) => Variable::Text(Said::new("", around.place(item.line))),
        };
        process.env.insert(name.to_owned(), variable);
    }
}
