//! Renders one script per host that starts and stops its containers.

use crate::render::{RenderContext, RenderedFile, notes, quoting, requirements};
use crate::{DeployError, ProcessPlan, SecretFile};

/// Renders the files HOST/docker.sh.
pub(crate) fn files(context: &RenderContext<'_>) -> Result<Vec<RenderedFile>, DeployError> {
    let mut files = Vec::new();
    for (host, plans) in context.by_host() {
        let mut text =
            format!("#!/bin/sh\n# {}\n# sh docker.sh up | down, on {host}.\nset -eu\n\nup() {{\n", context.head);
        for plan in &plans {
            text.push_str(&format!("  # {} needs {}.\n", plan.name, requirements(plan)));
            for note in notes(context, plan) {
                text.push_str(&format!("  # {note}\n"));
            }
            text.push_str(&run(context, plan)?);
        }
        text.push_str("}\n\ndown() {\n");
        for plan in plans.iter().rev() {
            if let Some(argv) = plan.drain_argv() {
                text.push_str(&format!("  docker exec {} {} || true\n", plan.name, quoting::shell_line(&argv)));
            }
            text.push_str(&format!("  docker stop -t {} {} || true\n", plan.stop_s, plan.name));
            text.push_str(&format!("  docker rm {} || true\n", plan.name));
        }
        text.push_str("}\n\ncase ${1:-} in\n  up) up ;;\n  down) down ;;\n  *) echo \"usage: $0 up | down\" >&2; exit 2 ;;\nesac\n");
        files.push(RenderedFile { name: format!("{host}/docker.sh"), text });
    }
    Ok(files)
}

/// The `docker run` command of one container.
fn run(context: &RenderContext<'_>, plan: &ProcessPlan) -> Result<String, DeployError> {
    let resources = &plan.resources;
    let mut flags: Vec<Vec<String>> = Vec::new();
    let mut flag = |words: &[&str]| flags.push(words.iter().map(|word| (*word).to_owned()).collect());
    flag(&["--name", &plan.name]);
    // Peers connect to ports that processes choose at run time, so ports cannot be mapped.
    flag(&["--network", "host"]);
    flag(&["--restart", "unless-stopped"]);
    flag(&["--stop-timeout", &plan.stop_s.to_string()]);
    flag(&["--ulimit", "nofile=1048576:1048576"]);
    if resources.memlock {
        flag(&["--ulimit", "memlock=-1:-1"]);
        flag(&["--cap-add", "IPC_LOCK"]);
    }
    if resources.rdma {
        flag(&["--device", "/dev/infiniband"]);
    }
    if resources.shm > 0 {
        flag(&["--shm-size", &format!("{}b", resources.shm)]);
    }
    if resources.gpus > 0 {
        flag(&["--gpus", "all"]);
    }
    if let Some(node) = plan.numa {
        // Memory is bound here. numactl binds the CPUs inside the container.
        flag(&["--cpuset-mems", &node.to_string()]);
        flag(&["--cap-add", "SYS_NICE"]);
    }
    for mount in &plan.mounts {
        let mode = if mount.writes { "" } else { ":ro" };
        flag(&["--volume", &format!("{0}:{0}{mode}", mount.path)]);
    }
    if let Some(SecretFile { source, .. }) = &plan.secret {
        flag(&["--volume", &format!("{source}:{source}:ro")]);
    }
    for file in &plan.access {
        flag(&["--volume", &format!("{0}:{0}:ro", file.path)]);
    }
    if let Some(volume) = &plan.model_cache {
        flag(&["--volume", &format!("{volume}:{}", ProcessPlan::MODEL_CACHE)]);
    }
    if let Some(data) = &plan.data {
        flag(&["--volume", &format!("{}:{}", data.name, data.path)]);
    }
    for (name, value) in &plan.env {
        flag(&["--env", &format!("{name}={value}")]);
    }
    let argv = plan.container_argv();
    let (program, arguments) = argv.split_first().map(|(program, rest)| (program.clone(), rest)).unwrap_or_default();
    flag(&["--entrypoint", &program]);
    let mut text = "  docker run --detach".to_owned();
    for words in flags {
        text.push_str(&format!(" \\\n    {}", quoting::shell_line(&words)));
    }
    text.push_str(&format!(" \\\n    {} {}\n", quoting::shell(&context.image(plan)?), quoting::shell_line(arguments)));
    Ok(text)
}
