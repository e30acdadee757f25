//! What shall run, from flags, a plan and the environment.

use std::collections::BTreeMap;
use std::io::Read;
use std::path::Path;

use serde::Deserialize;

use crate::commands::doctor::{Args, running};
use crate::commands::error::Failure;
use crate::commands::master_target::{self, RPC_PORT};
use crate::engine::base::ByteSize;
use crate::engine::doctor::host::{Intent, Pages, Protocol};
use crate::engine::doctor::wheel::Places;
use crate::engine::plan::size_text;
use crate::engine::sys::FileTree;

/// What a huge page has where nobody says more.
const PAGE_BYTES: u64 = 2 << 20;
/// The least that any architecture has.
const PAGE_MIN: u64 = 64 << 10;
/// The most of a plan that is read, bytes.
const PLAN_BYTES_MAX: u64 = 1 << 20;
/// The beginnings of the variables that count.
const PREFIXES: &[&str] = &["MC_", "MOONCAKE_", "SGLANG_", "NCCL_IB_"];

/// The words of `--protocol`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum ProtocolName {
    Tcp,
    Rdma,
}

/// What of the answer of `size-hugepages` counts.
#[derive(Debug, Deserialize)]
struct Plan {
    schema: String,
    hugepage_bytes: u64,
    host_hugepages: Range,
    #[serde(default)]
    nodes: Vec<Node>,
    guard: Guard,
    #[serde(default)]
    ranks: Vec<Rank>,
}

#[derive(Debug, Deserialize)]
struct Range {
    most: u64,
}

#[derive(Debug, Deserialize)]
struct Node {
    node: u32,
    needed: u64,
}

#[derive(Debug, Deserialize)]
struct Guard {
    needed_bytes: u64,
}

#[derive(Debug, Deserialize)]
struct Rank {
    memlock_bytes: Range,
}

/// The schema that is understood.
const SCHEMA: &str = "mcctl.size-hugepages/1";

pub(super) fn read(args: &Args) -> Result<Intent, Failure> {
    let counts = |name: &str| PREFIXES.iter().any(|prefix| name.starts_with(prefix));
    let environment: BTreeMap<String, String> = std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
        .filter(|(name, _)| counts(name))
        .collect();
    let protocol = match (args.protocol, environment.get("MOONCAKE_PROTOCOL").map(|text| text.to_ascii_lowercase())) {
        (Some(ProtocolName::Tcp), _) => Some(Protocol::Tcp),
        (Some(ProtocolName::Rdma), _) => Some(Protocol::Rdma),
        (None, Some(text)) if text == "tcp" => Some(Protocol::Tcp),
        (None, Some(text)) if text == "rdma" => Some(Protocol::Rdma),
        (None, _) if args.peer.is_asked() || args.trial.is_some() => Some(Protocol::Rdma),
        _ => None,
    };
    let mut intent = Intent {
        protocol,
        memory: args.need_memory.map(|size| size.0),
        trial: args.trial.map(|size| size.0).filter(|bytes| *bytes > 0),
        ports: args.ports.clone(),
        ..Intent::default()
    };
    if let Some(size) = args.hugepage_size {
        is_page(size.0)?;
    }
    if let Some(ByteSize(bytes)) = args.need_hugepages {
        let named = environment.get("MC_STORE_HUGEPAGE_SIZE").and_then(|text| size_text::huge_page(text).ok());
        let page = args.hugepage_size.map(|size| size.0).or(named).unwrap_or(PAGE_BYTES);
        is_page(page)?;
        intent.pages = Some(Pages { bytes: page, count: bytes.div_ceil(page) });
    }
    if let Some(path) = &args.plan {
        let plan = plan(path)?;
        intent.pages = Some(Pages { bytes: plan.hugepage_bytes, count: plan.host_hugepages.most });
        intent.pages_per_node = plan.nodes.iter().map(|node| (node.node, node.needed)).collect();
        intent.guard = Some(plan.guard.needed_bytes);
        intent.locked = plan.ranks.iter().map(|rank| rank.memlock_bytes.most).max();
    }
    let master = args.link.master.master.clone().map(|text| (format!("--master {text}"), text));
    let master = master.or_else(|| {
        let text = environment.get("MOONCAKE_MASTER").filter(|text| !text.is_empty())?;
        Some((format!("MOONCAKE_MASTER={text}"), text.clone()))
    });
    // What is not understood here is for the checks of the configuration.
    intent.master = match master {
        Some((_, text)) if running::is_etcd(&text) => None,
        Some((origin, text)) if args.link.master.master.is_some() => {
            Some(master_target::address(&text, &origin, RPC_PORT)?)
        }
        Some((origin, text)) => master_target::address(&text, &origin, RPC_PORT).ok(),
        None => None,
    };
    intent.environment = environment;
    Ok(intent)
}

/// Has a huge page so many bytes?
fn is_page(bytes: u64) -> Result<(), Failure> {
    match bytes >= PAGE_MIN && bytes.is_power_of_two() {
        true => Ok(()),
        false => Err(Failure::usage(format!("a huge page has no {}", ByteSize(bytes)))
            .tried("--hugepage-size")
            .next("give 2mb or 1gb")),
    }
}

/// Is `python` something that packages can belong to: the folder of an environment, or a file with an interpreter's name?
///
/// # Errors
/// It is not.
pub(super) fn is_interpreter(tree: &FileTree, python: &str) -> Result<(), Failure> {
    let is_named = |path: &str| path.rsplit('/').next().is_some_and(|name| name.contains("py"));
    let below = |name: &str| tree.resolve(&format!("{}/{name}", python.trim_end_matches('/'))).is_some();
    let is_folder = tree.names(python).is_ok_and(|names| names.is_some());
    let found = match tree.resolve(python) {
        None => "there is no such file or folder",
        Some(_) if is_folder && ["bin", "lib", "lib64"].into_iter().any(below) => return Ok(()),
        Some(_) if is_folder => "the folder has neither bin nor lib",
        Some(real) if is_named(python) || is_named(&real) => return Ok(()),
        Some(_) => "the file has no interpreter's name",
    };
    Err(Failure::usage(format!("{python} is no Python interpreter and no virtual environment"))
        .tried(format!("--python {python}"))
        .found(found)
        .next("give the path of an interpreter (command -v python3), or the folder that has its bin and lib"))
}

/// Where wheels are looked for: of this host as the environment says, of another one in the usual folders.
pub(super) fn places(python: Option<&str>, is_this_host: bool) -> Places {
    let usual = || ["/usr/local/bin", "/usr/bin"].map(str::to_owned).to_vec();
    if !is_this_host {
        return Places { python: python.map(str::to_owned), path: usual(), ..Places::default() };
    }
    let variable = |name: &str| std::env::var(name).ok().filter(|text| !text.is_empty());
    let folders = |name: &str| {
        let text = variable(name)?;
        Some(text.split(':').filter(|folder| folder.starts_with('/')).map(str::to_owned).collect::<Vec<_>>())
    };
    let python = python.map(|python| match std::path::absolute(python) {
        Ok(path) => path.to_string_lossy().into_owned(),
        Err(_) => python.to_owned(),
    });
    Places {
        python,
        prefixes: ["VIRTUAL_ENV", "CONDA_PREFIX"].into_iter().filter_map(variable).collect(),
        path: folders("PATH").unwrap_or_else(usual),
        packages: folders("PYTHONPATH").unwrap_or_default(),
        home: variable("HOME"),
        library_path: variable("LD_LIBRARY_PATH").unwrap_or_default(),
    }
}

fn plan(path: &Path) -> Result<Plan, Failure> {
    let wrong = |found: String| {
        Failure::usage(format!("{} is no plan", path.display()))
            .tried(format!("--plan {}", path.display()))
            .found(found)
            .next("write one: mcctl size-hugepages --json ... > plan.json")
    };
    let mut text = String::new();
    let read = match path.to_str() {
        Some("-") => std::io::stdin().take(PLAN_BYTES_MAX).read_to_string(&mut text),
        _ => std::fs::File::open(path).and_then(|file| file.take(PLAN_BYTES_MAX).read_to_string(&mut text)),
    };
    read.map_err(|error| wrong(error.to_string()))?;
    let plan: Plan = serde_json::from_str(&text).map_err(|error| wrong(error.to_string()))?;
    if plan.schema != SCHEMA {
        return Err(wrong(format!("its schema is {}, and {SCHEMA} is understood", plan.schema)));
    }
    Ok(plan)
}
