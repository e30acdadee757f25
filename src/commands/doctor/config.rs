//! The files, the environment and the processes that are held to the rules of `lint`.

use crate::commands::doctor::Args;
use crate::commands::error::Failure;
use crate::commands::lint;
use crate::engine::doctor::config::{self as doctor, Question};
use crate::engine::sys::Tree;

/// Files, environment and processes.
pub(super) fn read(args: &Args, tree: &Tree) -> Result<Question, Failure> {
    let texts = args.file.iter().map(|name| Ok((lint::shown(name).to_owned(), lint::load(name)?)));
    let texts = texts.collect::<Result<Vec<_>, Failure>>()?;
    let files = match texts.is_empty() {
        true => None,
        false => Some(doctor::files(&texts).map_err(|(name, error)| lint::unreadable(&name, &error))?),
    };
    let processes = match &args.pid {
        None => doctor::processes(tree, std::process::id()),
        Some(pids) => {
            let one = |pid: &u32| {
                doctor::process(tree, *pid).ok_or_else(|| {
                    Failure::usage(format!("process {pid} is none of SGLang, Mooncake or mcctl, or cannot be seen"))
                        .tried(format!("read /proc/{pid}/cmdline"))
                        .next("name running ones: pgrep -af 'sglang|mooncake|mcctl'")
                })
            };
            pids.iter().map(one).collect::<Result<_, _>>()?
        }
    };
    // Another host's files come without its environment.
    let environment = match tree.is_this_host() {
        true => std::env::vars_os().filter_map(|(n, v)| Some((n.into_string().ok()?, v.into_string().ok()?))).collect(),
        false => Vec::new(),
    };
    Ok(Question { files, environment, processes })
}
