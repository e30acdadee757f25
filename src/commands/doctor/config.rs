//! The files, environment and processes that are checked with the `lint` rules.

use crate::commands::cli::deployment_file;
use crate::commands::cli::error::Failure;
use crate::commands::doctor::Args;
use crate::commands::lint::inputs as lint_inputs;
use crate::engine::doctor::config::{self as doctor, ConfigInputs};
use crate::engine::sys::FileTree;

/// Reads the files, the environment and the processes.
pub(super) fn read(args: &Args, tree: &FileTree) -> Result<ConfigInputs, Failure> {
    // A deployment file is checked with the same rules.
    let plan = args.plan.as_ref().filter(|path| deployment_file::is_named(path));
    let names: Vec<String> =
        args.file.iter().cloned().chain(plan.map(|path| path.to_string_lossy().into_owned())).collect();
    let (inputs, unread) = lint_inputs::load(&names);
    if let Some((_, failure)) = unread.into_iter().next() {
        return Err(failure);
    }
    let texts: Vec<(String, Vec<u8>)> = inputs
        .into_iter()
        // Files in a directory that are unrelated to the deployment are ignored.
        .filter(|input| {
            !input.is_from_folder
                || doctor::file(input.name.as_str(), &input.bytes).is_none_or(|e| !input.is_skipped(&e))
        })
        .map(|input| (input.name, input.bytes))
        .collect();
    if texts.is_empty() && !args.file.is_empty() {
        return Err(lint_inputs::nothing_in(&args.file));
    }
    let files = match texts.is_empty() {
        true => None,
        false => Some(doctor::files(&texts).map_err(|(name, error)| lint_inputs::unreadable(&name, &error))?),
    };
    let processes = match &args.pid {
        None => doctor::processes(tree, std::process::id()),
        Some(pids) => {
            let one = |pid: &u32| {
                doctor::process(tree, *pid).ok_or_else(|| {
                    Failure::usage(format!("process {pid} is not SGLang, Mooncake or mcctl, or is not visible"))
                        .tried(format!("read /proc/{pid}/cmdline"))
                        .next("list running processes: pgrep -af 'sglang|mooncake|mcctl'")
                })
            };
            pids.iter().map(one).collect::<Result<_, _>>()?
        }
    };
    // The environment belongs to this host, so it is not applied to another host's files.
    let environment = match tree.is_this_host() {
        true => std::env::vars_os().filter_map(|(n, v)| Some((n.into_string().ok()?, v.into_string().ok()?))).collect(),
        false => Vec::new(),
    };
    Ok(ConfigInputs { files, environment, processes })
}
