//! `mcctl render`: writes the files that start and monitor a deployment.

pub mod write;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use clap::builder::{PossibleValuesParser, TypedValueParser};
use serde_json::json;

use crate::commands::cli::deployment_file::{failure, read, say_misfits, say_plain_secrets};
use crate::commands::cli::error::{Exit, Outcome};
use crate::commands::cli::output;
use crate::engine::base::addr::host_is_loopback;
use crate::engine::base::text::one_line;
use crate::engine::deploy::render::{RenderFormat, RenderedFile, render, shell_quoted};
use crate::engine::deploy::{DeploymentSpec, Programs, SglangClient, is_ipv6};
use crate::engine::upstream::python_client;

/// Write the files that start a deployment
#[derive(Debug, clap::Args)]
#[command(before_help = "out force set json")]
#[command(before_long_help = "mcctl render systemd demo.toml --out units  # write units and environment files\n\
    mcctl render k8s demo.toml  # print Kubernetes manifests\n\
    mcctl render kustomize demo.toml --out base  # write a Kustomize base\n\
    mcctl render prometheus demo.toml --out monitoring  # write scrape jobs, rules and alerts\n\
    mcctl render grafana demo.toml --out monitoring  # write a dashboard")]
#[command(after_help = "Formats:\n  \
    env         one environment file per process\n  \
    sglang      one launch script per serving process\n  \
    systemd     units, environment files and sysctl.d, one directory per host\n  \
    docker      one docker run script per host\n  \
    compose     one Compose file per host\n  \
    k8s         Deployments, StatefulSets and Services\n  \
    kustomize   the same, as a Kustomize base\n  \
    rbg         a RoleBasedGroup\n  \
    prometheus  scrape jobs, recording rules and alerts\n  \
    grafana     a dashboard\n\n\
    mcctl init writes a deployment file.")]
pub struct Args {
    /// Output format: env, sglang, systemd, docker, compose, k8s, kustomize, rbg, prometheus or
    /// grafana
    #[arg(value_name = "FORMAT", value_parser = formats())]
    kind: RenderFormat,
    /// Deployment file, .toml or .yaml
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Write the files to this directory instead of stdout
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Overwrite existing files whose contents differ
    #[arg(long, requires = "out")]
    force: bool,
    /// Containers: image with mcctl, instead of images.mcctl in the deployment file
    #[arg(long, value_name = "NAME:TAG")]
    image: Option<String>,
    /// Override a value in the deployment file, e.g. model.tp=8; repeatable
    #[arg(long, value_name = "KEY=VALUE")]
    set: Vec<String>,
    /// RoleBasedGroup API version: v1alpha2, or v1alpha1 for RBG up to 0.6
    #[arg(long, value_name = "VERSION", value_parser = ["v1alpha1", "v1alpha2"])]
    rbg_api: Option<String>,
    /// Kubernetes: storage class of the volume for the master's data directory [default: the
    /// cluster's default class]
    #[arg(long, value_name = "NAME")]
    storage_class: Option<String>,
    /// Kubernetes: size of that volume, e.g. 10Gi [default: computed from master.memory]
    #[arg(long, value_name = "SIZE")]
    master_storage: Option<String>,
    /// Run mcctl's masters without data directories: their state is in memory only
    #[arg(long, conflicts_with_all = ["storage_class", "master_storage"])]
    no_master_data: bool,
    /// Print all files as one JSON document
    #[arg(long, conflicts_with = "out")]
    json: bool,
}

/// An unknown output format.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown output format")]
struct UnknownFormat;

/// Parses a name in [`RenderFormat::ALL`]. Shell completions offer the names.
fn formats() -> impl TypedValueParser<Value = RenderFormat> {
    let format = |name: String| RenderFormat::ALL.iter().find(|(known, _)| *known == name).map(|(_, format)| *format);
    let names = RenderFormat::ALL.iter().map(|(name, _)| *name);
    PossibleValuesParser::new(names).try_map(move |name| format(name).ok_or(UnknownFormat))
}

impl Args {
    /// Runs the command.
    ///
    /// # Errors
    /// The deployment file is invalid, or a file cannot be written.
    pub fn run(mut self) -> Outcome {
        for (key, value) in [
            ("images.mcctl", self.image.as_deref()),
            ("kubernetes.rbg_api", self.rbg_api.as_deref()),
            ("kubernetes.storage_class", self.storage_class.as_deref()),
            ("kubernetes.master_storage", self.master_storage.as_deref()),
            ("master.data_dir", self.no_master_data.then_some("")),
        ] {
            // JSON, so that any value is a string.
            self.set.extend(value.map(|value| format!("{key}={}", json!(value))));
        }
        let spec = read(&self.file, &self.set)?;
        if self.image.is_some() && spec.programs == Programs::Upstream {
            return Err(failure(
                &self.file,
                "--image sets the image of mcctl, and programs = \"upstream\" does not use it",
            )
            .next("set images.store, or programs = \"mcctl\""));
        }
        let source = self.file.file_name().unwrap_or(self.file.as_os_str()).to_string_lossy().into_owned();
        let files = render(&spec, self.kind, &one_line(&source, usize::MAX))
            .map_err(|error| failure(&self.file, &error.to_string()))?;
        say_misfits(&spec, self.kind.platform_for(&spec));
        if !matches!(self.kind, RenderFormat::Prometheus | RenderFormat::Grafana) {
            say_plain_secrets(&spec);
        }
        if let Some(note) = client_note(&spec, self.kind) {
            output::say(format!("note: {note}"));
        }
        match &self.out {
            Some(dir) => {
                write::write_files(dir, &files, self.force)?;
                for line in next_steps(self.kind, dir, &files, Path::new(SYSTEMD_RUNS).is_dir()) {
                    output::say(line);
                }
            }
            None if self.json => {
                let files: Vec<_> = files.iter().map(|f| json!({"name": f.name, "text": f.text})).collect();
                output::json(&json!({"schema": "mcctl.render/1", "files": files}))?;
            }
            None => output::data(concatenate(&files))?,
        }
        Ok(Exit::Done)
    }
}

/// What SGLang's environment must contain that the rendered files do not.
fn client_note(spec: &DeploymentSpec, kind: RenderFormat) -> Option<String> {
    let client = match spec.serving.client {
        SglangClient::Upstream => return None,
        SglangClient::Mcctl => "mcctl",
        SglangClient::McctlDynamic => "mcctl-dynamic",
    };
    let place = match kind {
        RenderFormat::Prometheus | RenderFormat::Grafana => return None,
        RenderFormat::Env | RenderFormat::Sglang | RenderFormat::Systemd => "SGLang's Python environment",
        _ => "the image with SGLang",
    };
    Some(format!("serving.client = \"{client}\": {place} needs mcctl's client: {}", python_client::INSTALL))
}

/// A directory that exists on hosts that run systemd, see sd_booted(3).
const SYSTEMD_RUNS: &str = "/run/systemd/system";
/// Maximum number of hosts whose next steps are printed.
const HOSTS_SHOWN: usize = 8;

/// The commands that start the files in `dir`, one line per host.
fn next_steps(kind: RenderFormat, dir: &Path, files: &[RenderedFile], has_systemd: bool) -> Vec<String> {
    let path = |below: &str| shell_quoted(&dir.join(below).display().to_string());
    match (kind, files) {
        (RenderFormat::Prometheus, _) => {
            return vec![format!("next: prometheus --config.file={}", path("prometheus.yml"))];
        }
        (RenderFormat::Kustomize, _) => {
            return vec![format!("next: kubectl apply -k {}", shell_quoted(&dir.display().to_string()))];
        }
        (RenderFormat::Grafana, [file]) => return vec![format!("next: import {} in Grafana", path(&file.name))],
        _ => {}
    }
    let mut hosts: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for file in files {
        let (host, rest) = file.name.split_once('/').unwrap_or(("", file.name.as_str()));
        hosts.entry(host).or_default().push(rest);
    }
    let on_host = |host: &str| match host_is_loopback(host) {
        true => "next: ".to_owned(),
        false => format!("next, on {host}: "),
    };
    let line = |(host, names): (&&str, &Vec<&str>)| match kind {
        RenderFormat::Env
        | RenderFormat::Sglang
        | RenderFormat::Kustomize
        | RenderFormat::Prometheus
        | RenderFormat::Grafana => None,
        RenderFormat::Systemd => {
            Some(systemd_step(host, names, &dir.join(host).join("etc").display().to_string(), has_systemd))
        }
        RenderFormat::Docker => Some(format!("{}sh {} up", on_host(host), path(&format!("{host}/docker.sh")))),
        RenderFormat::Compose => {
            Some(format!("{}docker compose -f {} up -d", on_host(host), path(&format!("{host}/compose.yaml"))))
        }
        RenderFormat::K8s | RenderFormat::Rbg => Some(format!(
            "next: kubectl apply -f {}",
            names.iter().map(|name| path(name)).collect::<Vec<_>>().join(" -f ")
        )),
    };
    let mut lines: Vec<String> = hosts.iter().take(HOSTS_SHOWN).filter_map(line).collect();
    if !lines.is_empty() && hosts.len() > HOSTS_SHOWN {
        lines.push(format!("repeat for {} more hosts", hosts.len() - HOSTS_SHOWN));
    }
    lines
}

/// The command that installs and starts one host's units. `etc` is the directory with its files.
fn systemd_step(host: &str, names: &[&str], etc: &str, has_systemd: bool) -> String {
    let units: Vec<&str> = names.iter().filter_map(|name| name.strip_prefix("etc/systemd/system/")).collect();
    let mut commands = vec!["systemctl daemon-reload".to_owned(), "sysctl --system".to_owned()];
    if names.iter().any(|name| name.starts_with("etc/sysusers.d/")) {
        commands.push("systemd-sysusers".to_owned());
    }
    if names.iter().any(|name| name.starts_with("etc/tmpfiles.d/")) {
        commands.push("systemd-tmpfiles --create".to_owned());
    }
    commands.push(format!("systemctl enable --now {}", units.join(" ")));
    let commands = commands.join(" && ");
    if !host_is_loopback(host) {
        // scp separates the host from the path at the first colon. ssh reads an address without
        // brackets.
        let target = if is_ipv6(host) { format!("root@[{host}]:/") } else { format!("root@{host}:/") };
        return format!(
            "next: scp -r {} {} && ssh root@{host} '{commands}'",
            shell_quoted(&local(etc)),
            shell_quoted(&target)
        );
    }
    let etc = shell_quoted(etc);
    match has_systemd {
        true => format!("next, as root: cp -r {etc} / && {commands}"),
        false => format!(
            "next: this host does not run systemd. Copy {etc} to / on a host that does, and run as root: {commands}"
        ),
    }
}

/// `path` as scp reads it. A colon before the first slash would separate a host from a path.
fn local(path: &str) -> String {
    let is_remote = path.split('/').next().is_some_and(|first| first.contains(':'));
    if is_remote { format!("./{path}") } else { path.to_owned() }
}

/// All files in a single string, each preceded by a line with its name. Each YAML file becomes a
/// separate YAML document.
fn concatenate(files: &[RenderedFile]) -> String {
    if let [file] = files {
        return file.text.clone();
    }
    let mut text = String::new();
    for file in files {
        let is_yaml = file.name.ends_with(".yaml");
        let head = if is_yaml { format!("---\n# {}\n", file.name) } else { format!("# ---- {} ----\n", file.name) };
        text.push_str(&head);
        text.push_str(&file.text);
        if !is_yaml {
            text.push('\n');
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn files(names: &[&str]) -> Vec<RenderedFile> {
        names.iter().map(|name| RenderedFile { name: (*name).to_owned(), text: String::new() }).collect()
    }

    #[test]
    fn next_steps_name_the_real_units_and_fit_the_host() {
        let local = files(&["127.0.0.1/etc/systemd/system/a.service", "127.0.0.1/etc/sysctl.d/60-a.conf"]);
        let remote = files(&[
            "10.0.0.1/etc/systemd/system/b.service",
            "10.0.0.1/etc/tmpfiles.d/b.conf",
            "10.0.0.1/etc/sysusers.d/b.conf",
        ]);
        let step = |files: &[RenderedFile], kind, systemd| next_steps(kind, Path::new("my units"), files, systemd);
        let steps = [
            step(&local, RenderFormat::Systemd, true),
            step(&local, RenderFormat::Systemd, false),
            step(&remote, RenderFormat::Systemd, true),
            step(&files(&["fd00::1/etc/systemd/system/b.service"]), RenderFormat::Systemd, true),
            next_steps(RenderFormat::Systemd, Path::new(""), &files(&["fd00::1/etc/systemd/system/b.service"]), true),
            step(&files(&["10.0.0.1/docker.sh"]), RenderFormat::Docker, true),
            step(&files(&["127.0.0.1/compose.yaml"]), RenderFormat::Compose, true),
            step(&files(&["k8s.yaml"]), RenderFormat::K8s, true),
            step(&files(&["kustomization.yaml", "master.yaml"]), RenderFormat::Kustomize, true),
            step(&files(&["127.0.0.1/a.env"]), RenderFormat::Env, true),
            step(&files(&["prometheus.yml", "rules/a.yml"]), RenderFormat::Prometheus, true),
            step(&files(&["a.json"]), RenderFormat::Grafana, true),
        ];
        insta::assert_snapshot!("next_steps", steps.concat().join("\n"));
    }
}
