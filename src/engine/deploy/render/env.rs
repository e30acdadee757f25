//! A file of variables for each process: for a shell (`set -a; . FILE`) and for `EnvironmentFile=`.

use crate::engine::deploy::Launch;
use crate::engine::deploy::render::{Context, File, takes, words};

/// The files: HOST/NAME.env.
pub(crate) fn files(context: &Context<'_>) -> Vec<File> {
    let name = |launch: &Launch| format!("{}/{}.env", launch.host, launch.name);
    context.launches.iter().map(|launch| File { name: name(launch), text: text(context, launch) }).collect()
}

/// The variables of `launch`, below what they are for.
pub(crate) fn text(context: &Context<'_>, launch: &Launch) -> String {
    let mut text = format!("# {}\n", context.head);
    text.push_str(&format!("# {} on {}, takes {}. Its command line:\n", launch.name, launch.host, takes(launch)));
    text.push_str(&format!("#   {}\n", words::shell_line(&launch.argv)));
    for (name, value) in &launch.env {
        text.push_str(&format!("{name}={}\n", words::shell(value)));
    }
    text
}
