//! Kubernetes pod templates as processes.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::lint::model::{
    ConfigData, ContainerMount, ContainerProbe, DeclaredPort, LocatedValue, MountSource, ProbeMethod, ProbePurpose,
    Process, ProcessRole, RuntimeKind, Variable,
};
use crate::lint::read::launch;
use crate::lint::shell::effects::ScriptEffects;
use crate::lint::yaml::{YamlNode, YamlScalar, YamlValue};
use mcctl_base::check::SourceLocation;

/// The context of a pod template.
pub(crate) struct PodContext<'a> {
    pub name: String,
    /// Index into the list of pod sets.
    pub pod: usize,
    pub replicas: Option<LocatedValue>,
    /// ConfigMaps and Secrets from the provided files.
    pub data: &'a [ConfigData],
    pub file: &'a Arc<str>,
}

impl PodContext<'_> {
    fn place(&self, line: u32) -> SourceLocation {
        SourceLocation { file: self.file.clone(), line }
    }

    fn located(&self, node: &YamlNode) -> Option<LocatedValue> {
        Some(LocatedValue::new(node.text()?, self.place(node.line)))
    }
}

/// Adds the processes of the pod spec `spec` to `out`.
pub(crate) fn read(spec: &YamlNode, context: &PodContext<'_>, sink: &mut ScriptEffects) {
    let volumes: BTreeMap<&str, &YamlNode> = spec
        .get("volumes")
        .map_or(&[][..], YamlNode::items)
        .iter()
        .filter_map(|volume| Some((volume.get("name")?.text()?, volume)))
        .collect();
    let sidecars = spec.get("initContainers").map_or(&[][..], YamlNode::items).iter();
    let sidecars = sidecars.filter(|c| c.get("restartPolicy").and_then(YamlNode::text) == Some("Always"));
    for container in spec.get("containers").map_or(&[][..], YamlNode::items).iter().chain(sidecars) {
        let base = container_context(spec, container, &volumes, context);
        let command = words(container.get("command"), context);
        let args = words(container.get("args"), context);
        let whole: Vec<LocatedValue> = command.iter().chain(&args).cloned().collect();
        let whole = launch::expanded(&whole, &base.env);
        let before = sink.processes.len();
        let image = base.image.as_ref().map(|image| image.text.as_str());
        if command.is_empty()
            && let Some((role, implementation, args)) = launch::guess_role(image, &whole)
        {
            sink.processes.push(launch::with_mode(Process { role, implementation, args, ..base.clone() }));
        }
        if sink.processes.len() == before {
            launch::start(&base, &whole, 0, sink);
        }
        let out = &mut sink.processes;
        if out.len() == before {
            out.push(Process { args: whole, ..base });
        } else if out[before..]
            .windows(2)
            .any(|pair| pair[0].span.as_ref().map(|s| s.start) != pair[1].span.as_ref().map(|s| s.start))
        {
            // Probes and ports belong to the container, not to each of its processes.
            for process in &mut out[before..] {
                process.probes.clear();
                process.ports.clear();
            }
        }
    }
}

fn words(node: Option<&YamlNode>, context: &PodContext<'_>) -> Vec<LocatedValue> {
    let one = |node: &YamlNode| match &node.value {
        YamlValue::Scalar(YamlScalar { text, first_line, .. }) => {
            Some(LocatedValue::new(text.clone(), context.place(*first_line)))
        }
        _ => None,
    };
    node.map_or(&[][..], YamlNode::items).iter().filter_map(one).collect()
}

fn container_context(
    spec: &YamlNode,
    container: &YamlNode,
    volumes: &BTreeMap<&str, &YamlNode>,
    context: &PodContext<'_>,
) -> Process {
    let name = container.get("name").and_then(YamlNode::text).unwrap_or_default();
    let label = match spec.get("containers").map_or(0, |c| c.items().len()) {
        0 | 1 => context.name.clone(),
        _ => format!("{}, container {name}", context.name),
    };
    let mut process = Process::new(label, ProcessRole::Other, context.place(container.line), RuntimeKind::Kubernetes);
    process.pod = Some(context.pod);
    process.network = format!("pod {} of {}", context.pod, context.file);
    process.replicas = context.replicas.clone();
    process.image = container.get("image").and_then(|n| context.located(n));
    variables(container, context, &mut process);
    let limits = &mut process.limits;
    for (kind, request) in [("limits", false), ("requests", true)] {
        for entry in container.path(&["resources", kind]).map_or(&[][..], YamlNode::entries) {
            let located = entry.value.text().map(|text| LocatedValue::new(text, context.place(entry.line)));
            let resource = limits.resources.entry(entry.key.clone()).or_default();
            *(if request { &mut resource.request } else { &mut resource.limit }) = located;
        }
    }
    let flag = |node: Option<&YamlNode>| node.filter(|n| n.boolean() == Some(true)).map(|n| context.place(n.line));
    limits.host_network = flag(spec.get("hostNetwork")).is_some();
    limits.host_ipc = flag(spec.get("hostIPC")).is_some();
    limits.privileged = flag(container.path(&["securityContext", "privileged"]));
    let secured =
        |key: &str| container.path(&["securityContext", key]).or_else(|| spec.path(&["securityContext", key]));
    limits.user = secured("runAsUser").and_then(|n| context.located(n));
    limits.non_root = flag(secured("runAsNonRoot"));
    let added = container.path(&["securityContext", "capabilities", "add"]).map_or(&[][..], YamlNode::items);
    limits.capabilities = added.iter().filter_map(|n| context.located(n)).collect();
    limits.grace = spec.get("terminationGracePeriodSeconds").and_then(|n| context.located(n));
    for mount in container.get("volumeMounts").map_or(&[][..], YamlNode::items) {
        let (Some(path), Some(name)) = (mount.get("mountPath"), mount.get("name").and_then(YamlNode::text)) else {
            continue;
        };
        let sub = mount.get("subPath").or_else(|| mount.get("subPathExpr"));
        let source = match volumes.get(name) {
            Some(volume) if volume.path(&["hostPath", "path"]).is_some() => {
                let host = volume.path(&["hostPath", "path"]).and_then(YamlNode::text).unwrap_or_default();
                MountSource::Host(match sub.and_then(YamlNode::text) {
                    Some(sub) => format!("{host}/{sub}"),
                    None => host.to_owned(),
                })
            }
            Some(volume) if volume.path(&["emptyDir", "medium"]).and_then(YamlNode::text) == Some("Memory") => {
                let size = volume.path(&["emptyDir", "sizeLimit"]).and_then(YamlNode::text);
                MountSource::Memory(size.map(str::to_owned))
            }
            Some(volume) if volume.get("emptyDir").is_some() => MountSource::EmptyDir,
            _ => MountSource::Volume(name.to_owned()),
        };
        let path_text = path.text().unwrap_or_default().to_owned();
        limits.mounts.push(ContainerMount { path: path_text, source, place: context.place(path.line) });
    }
    let ports: BTreeMap<&str, u16> = container
        .get("ports")
        .map_or(&[][..], YamlNode::items)
        .iter()
        .filter_map(|p| Some((p.get("name").and_then(YamlNode::text).unwrap_or(""), port(p.get("containerPort")?)?)))
        .collect();
    process.ports = container
        .get("ports")
        .map_or(&[][..], YamlNode::items)
        .iter()
        .filter_map(|p| {
            let number = p.get("containerPort")?;
            let name = p.get("name").and_then(YamlNode::text);
            let place = context.place(number.line);
            Some(DeclaredPort { number: port(number)?, name: name.map(str::to_owned), place })
        })
        .collect();
    for what in [ProbePurpose::Readiness, ProbePurpose::Liveness, ProbePurpose::Startup] {
        let Some(entry) = container.entry(what.key()) else { continue };
        if let Some(how) = probe(&entry.value, &ports) {
            process.probes.push(ContainerProbe { what, how, place: context.place(entry.line) });
        }
    }
    process.pre_stop = container.path(&["lifecycle", "preStop"]).map(|node| {
        let text = serde_json::to_string(&node.to_json()).unwrap_or_default();
        LocatedValue::new(text, context.place(node.line))
    });
    process
}

fn port(node: &YamlNode) -> Option<u16> {
    u16::try_from(node.whole()?).ok()
}

fn probe(node: &YamlNode, ports: &BTreeMap<&str, u16>) -> Option<ProbeMethod> {
    let number = |node: Option<&YamlNode>| node.and_then(|n| port(n).or_else(|| ports.get(n.text()?).copied()));
    if let Some(tcp) = node.get("tcpSocket") {
        return Some(ProbeMethod::Tcp { port: number(tcp.get("port")) });
    }
    if let Some(http) = node.get("httpGet") {
        let path = http.get("path").and_then(YamlNode::text).unwrap_or("/").to_owned();
        return Some(ProbeMethod::Http { port: number(http.get("port")), path });
    }
    let words = node.path(&["exec", "command"])?.items().iter().filter_map(YamlNode::text).collect::<Vec<_>>();
    Some(ProbeMethod::Exec(words.join(" ")))
}

/// Applies `envFrom` first and then `env`, as Kubernetes does.
fn variables(container: &YamlNode, context: &PodContext<'_>, process: &mut Process) {
    for source in container.get("envFrom").map_or(&[][..], YamlNode::items) {
        let prefix = source.get("prefix").and_then(YamlNode::text).unwrap_or_default();
        let (reference, secret) = match source.get("configMapRef") {
            Some(reference) => (Some(reference), false),
            None => (source.get("secretRef"), true),
        };
        let name = reference.and_then(|r| r.get("name")).and_then(YamlNode::text);
        match context.data.iter().find(|data| data.secret == secret && Some(data.name.as_str()) == name) {
            Some(found) => {
                for (key, (located, _)) in &found.data {
                    process.env.insert(format!("{prefix}{key}"), Variable::Text(located.clone()));
                }
            }
            None => process.env_whole = false,
        }
    }
    for item in container.get("env").map_or(&[][..], YamlNode::items) {
        let Some(name) = item.get("name").and_then(YamlNode::text) else { continue };
        let variable = match (item.get("value"), item.get("valueFrom")) {
            (Some(value), _) => {
                let line = match &value.value {
                    YamlValue::Scalar(YamlScalar { first_line, .. }) => *first_line,
                    _ => value.line,
                };
                let text = value.text().unwrap_or_default();
                let text = launch::expanded(&[LocatedValue::new(text, context.place(line))], &process.env);
                Variable::Text(text.into_iter().next().unwrap_or(LocatedValue::new("", context.place(line))))
            }
            (None, Some(from)) => {
                let source = ["configMapKeyRef", "secretKeyRef"].iter().find_map(|kind| {
                    let reference = from.get(kind)?;
                    let name = reference.get("name")?.text()?;
                    let key = reference.get("key")?.text()?;
                    let secret = *kind == "secretKeyRef";
                    let data = context.data.iter().find(|data| data.secret == secret && data.name == name)?;
                    data.data.get(key).map(|(located, _)| located.clone())
                });
                let path = from.path(&["fieldRef", "fieldPath"]).and_then(YamlNode::text).unwrap_or("elsewhere");
                match source {
                    Some(located) => Variable::Text(located),
                    None => Variable::Elsewhere(LocatedValue::new(format!("$({path})"), context.place(item.line))),
                }
            }
            (None, None) => Variable::Text(LocatedValue::new("", context.place(item.line))),
        };
        process.env.insert(name.to_owned(), variable);
    }
}
