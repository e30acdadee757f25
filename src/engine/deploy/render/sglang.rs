//! A script with the command line of each serving process.

use crate::engine::deploy::render::{Context, File, takes, words};
use crate::engine::deploy::{Launch, Role};

/// The files: HOST/NAME.sh.
pub(crate) fn files(context: &Context<'_>) -> Vec<File> {
    let serves = |launch: &&Launch| launch.role.is_engine() || launch.role == Role::Router;
    context
        .launches
        .iter()
        .filter(serves)
        .map(|launch| File { name: format!("{}/{}.sh", launch.host, launch.name), text: text(context, launch) })
        .collect()
}

fn text(context: &Context<'_>, launch: &Launch) -> String {
    let mut text = format!("#!/bin/sh\n# {}\n", context.head);
    text.push_str(&format!("# {} on {}, takes {}.\n", launch.name, launch.host, takes(launch)));
    if launch.role == Role::Decode {
        text.push_str("# It has no HiCache: what it decodes was looked up in the store by the prefill servers.\n");
    }
    if !launch.after.is_empty() {
        text.push_str(&format!("# Started before it: {}.\n", launch.after.join(", ")));
    }
    text.push_str("set -eu\n");
    if launch.resources.rdma {
        text.push_str("ulimit -l unlimited # the devices register all of L2 and the segment\n");
    }
    for (name, value) in &launch.env {
        text.push_str(&format!("export {name}={}\n", words::shell(value)));
    }
    if let Some(script) = launch.wait_script() {
        text.push_str(&format!("bash -c {}\n", words::shell(&script)));
    }
    text.push_str(&format!("exec {}\n", words::shell_lines(&launch.argv)));
    text
}
