//! A script for each host that starts and stops its containers.

use crate::engine::deploy::render::{Context, File, takes, words};
use crate::engine::deploy::{DeployError, Launch};

/// The files: HOST/docker.sh.
pub(crate) fn files(context: &Context<'_>) -> Result<Vec<File>, DeployError> {
    let mut files = Vec::new();
    for (host, launches) in context.by_host() {
        let mut text =
            format!("#!/bin/sh\n# {}\n# sh docker.sh up | down, on {host}.\nset -eu\n\nup() {{\n", context.head);
        for launch in &launches {
            text.push_str(&format!("  # {} takes {}.\n", launch.name, takes(launch)));
            text.push_str(&run(context, launch)?);
        }
        text.push_str("}\n\ndown() {\n");
        for launch in launches.iter().rev() {
            if let Some(argv) = launch.drain_argv() {
                text.push_str(&format!("  docker exec {} {} || true\n", launch.name, words::shell_line(&argv)));
            }
            text.push_str(&format!("  docker stop -t {} {} || true\n", launch.stop_s, launch.name));
            text.push_str(&format!("  docker rm {} || true\n", launch.name));
        }
        text.push_str("}\n\ncase ${1:-} in\n  up) up ;;\n  down) down ;;\n  *) echo \"usage: $0 up | down\" >&2; exit 2 ;;\nesac\n");
        files.push(File { name: format!("{host}/docker.sh"), text });
    }
    Ok(files)
}

/// The command line of one container.
fn run(context: &Context<'_>, launch: &Launch) -> Result<String, DeployError> {
    let resources = &launch.resources;
    let mut flags: Vec<Vec<String>> = Vec::new();
    let mut flag = |words: &[&str]| flags.push(words.iter().map(|word| (*word).to_owned()).collect());
    flag(&["--name", &launch.name]);
    // Peers dial the ports that processes choose themselves, so there is nothing to map.
    flag(&["--network", "host"]);
    flag(&["--restart", "unless-stopped"]);
    flag(&["--stop-timeout", &launch.stop_s.to_string()]);
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
    if let Some(node) = launch.numa {
        // The node of the memory; CPUs of it are numactl's, within.
        flag(&["--cpuset-mems", &node.to_string()]);
        flag(&["--cap-add", "SYS_NICE"]);
    }
    for mount in &launch.mounts {
        let mode = if mount.writes { "" } else { ":ro" };
        flag(&["--volume", &format!("{0}:{0}{mode}", mount.path)]);
    }
    for (name, value) in &launch.env {
        flag(&["--env", &format!("{name}={value}")]);
    }
    let argv = launch.container_argv();
    let (program, arguments) = argv.split_first().map(|(program, rest)| (program.clone(), rest)).unwrap_or_default();
    flag(&["--entrypoint", &program]);
    let mut text = "  docker run --detach".to_owned();
    for words in flags {
        text.push_str(&format!(" \\\n    {}", words::shell_line(&words)));
    }
    text.push_str(&format!(" \\\n    {} {}\n", words::shell(&context.image(launch)?), words::shell_line(arguments)));
    Ok(text)
}
