//! The planned deployment, from flags, a plan and the environment.

use std::collections::BTreeMap;
use std::io::Read;
use std::path::Path;

use serde::Deserialize;

use crate::commands::cli::deployment_file;
use crate::commands::cli::error::Failure;
use crate::commands::doctor::{Args, plan_file, running};
use crate::commands::target::master_target::{self, RPC_PORT};
use crate::engine::base::ByteSize;
use crate::engine::doctor::host::{DataProtocol, HugePageDemand, Intent, PlannedData};
use crate::engine::doctor::wheel::WheelSearch;
use crate::engine::election::cluster_name;
use crate::engine::plan::guard::RESERVE_BYTES;
use crate::engine::plan::size_text;
use crate::engine::sys::FileTree;
use crate::engine::upstream::{MASTER_FLAGS, find};

/// The default huge page size, in bytes.
const PAGE_BYTES: u64 = 2 << 20;
/// The smallest huge page size on any architecture, in bytes.
const PAGE_MIN: u64 = 64 << 10;
/// Maximum size of a plan, in bytes.
const PLAN_BYTES_MAX: u64 = 1 << 20;
/// Prefixes of the environment variables that are read.
const PREFIXES: &[&str] = &["MC_", "MOONCAKE_", "SGLANG_", "NCCL_IB_"];

/// The values of `--protocol`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum ProtocolName {
    Tcp,
    Rdma,
}

/// The fields that are read from the `size-hugepages --json` output.
#[derive(Debug, Deserialize)]
struct SizingPlan {
    schema: String,
    hugepage_bytes: u64,
    host_hugepages: PlanRange,
    #[serde(default)]
    nodes: Vec<PlanNode>,
    guard: PlanGuard,
    /// Only without huge pages.
    regular: Option<PlanRegular>,
    #[serde(default)]
    ranks: Vec<PlanRank>,
}

#[derive(Debug, Deserialize)]
struct PlanRange {
    most: u64,
}

#[derive(Debug, Deserialize)]
struct PlanNode {
    node: u32,
    needed: u64,
}

#[derive(Debug, Deserialize)]
struct PlanGuard {
    needed_bytes: u64,
}

#[derive(Debug, Deserialize)]
struct PlanRegular {
    needed_bytes: PlanRange,
}

#[derive(Debug, Deserialize)]
struct PlanRank {
    memlock_bytes: PlanRange,
}

/// The variable with the directory of upstream's snapshots.
const SNAPSHOT_PATH: &str = "MOONCAKE_SNAPSHOT_LOCAL_PATH";

const SCHEMA: &str = "mcctl.size-hugepages/1";

/// The plan from flags, the environment and `--plan`.
///
/// # Errors
/// A flag or the plan is invalid.
pub(super) fn read(args: &Args, tree: &FileTree) -> Result<Intent, Failure> {
    let counts = |name: &str| PREFIXES.iter().any(|prefix| name.starts_with(prefix));
    let environment: BTreeMap<String, String> = std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
        .filter(|(name, _)| counts(name))
        .collect();
    let protocol = match (args.protocol, environment.get("MOONCAKE_PROTOCOL").map(|text| text.to_ascii_lowercase())) {
        (Some(ProtocolName::Tcp), _) => Some(DataProtocol::Tcp),
        (Some(ProtocolName::Rdma), _) => Some(DataProtocol::Rdma),
        (None, Some(text)) if text == "tcp" => Some(DataProtocol::Tcp),
        (None, Some(text)) if text == "rdma" => Some(DataProtocol::Rdma),
        (None, _) if args.peer.is_asked() || args.mr_test_size.is_some() => Some(DataProtocol::Rdma),
        _ => None,
    };
    let mut intent = Intent {
        protocol,
        memory: args.expect_memory.map(|size| size.0),
        mr_test_size: args.mr_test_size.map(|size| size.0).filter(|bytes| *bytes > 0),
        ports: args.ports.clone(),
        ..Intent::default()
    };
    if let Some(size) = args.hugepage_size {
        is_page(size.0)?;
    }
    if let Some(ByteSize(bytes)) = args.expect_hugepages {
        let named = environment.get("MC_STORE_HUGEPAGE_SIZE").and_then(|text| size_text::huge_page(text).ok());
        let page = args.hugepage_size.map(|size| size.0).or(named).unwrap_or(PAGE_BYTES);
        is_page(page)?;
        intent.pages = Some(HugePageDemand { bytes: page, count: bytes.div_ceil(page) });
    }
    let (file, document) = plan_paths(args)?;
    if let Some(path) = document {
        let plan = plan(path)?;
        match plan.regular {
            None => {
                intent.pages = Some(HugePageDemand { bytes: plan.hugepage_bytes, count: plan.host_hugepages.most });
                intent.pages_per_node = plan.nodes.iter().map(|node| (node.node, node.needed)).collect();
                intent.guard = Some(plan.guard.needed_bytes);
            }
            Some(PlanRegular { needed_bytes: PlanRange { most } }) => {
                // Everything is in regular memory, and SGLang's check leaves its reserve.
                intent.memory = Some(most.saturating_sub(RESERVE_BYTES));
                intent.guard = Some(most);
            }
        }
        intent.locked = plan.ranks.iter().map(|rank| rank.memlock_bytes.most).max();
    }
    let master = args.link.master.master.clone().map(|text| (format!("--master {text}"), text));
    let master = master.or_else(|| {
        let text = environment.get("MOONCAKE_MASTER").filter(|text| !text.is_empty())?;
        Some((format!("MOONCAKE_MASTER={text}"), text.clone()))
    });
    // The configuration checks report an invalid variable.
    intent.master = match master {
        Some((_, text)) if running::is_etcd(&text) => None,
        Some((origin, text)) if args.link.master.master.is_some() => {
            Some(master_target::address(&text, &origin, RPC_PORT)?)
        }
        Some((origin, text)) => master_target::address(&text, &origin, RPC_PORT).ok(),
        None => None,
    };
    intent.data = data_directory(args, &environment);
    intent.environment = environment;
    if let Some(path) = file {
        plan_file::fill(&mut intent, args, path, tree)?;
    }
    Ok(intent)
}

/// The path of `--plan`, as that of a deployment file or of a document with sizes.
fn plan_paths(args: &Args) -> Result<(Option<&Path>, Option<&Path>), Failure> {
    let path = args.plan.as_deref();
    let file = path.filter(|path| deployment_file::is_named(path));
    if let (None, Some(host)) = (file, &args.plan_host) {
        return Err(Failure::usage("--plan-host requires a deployment file")
            .tried(format!("--plan-host {host}"))
            .next("pass a deployment file (.toml or .yaml) to --plan"));
    }
    Ok((file, path.filter(|_| file.is_none())))
}

/// The planned data directory: that of the flag, or mcctl's directory below that of upstream's
/// snapshots.
fn data_directory(args: &Args, environment: &BTreeMap<String, String>) -> Option<PlannedData> {
    let set = |name: &str| environment.get(name).filter(|text| !text.is_empty());
    let cluster_id = args.cluster_id.as_ref().or_else(|| set("MC_STORE_CLUSTER_ID"));
    let cluster_id = cluster_id.map(|id| cluster_name(id).to_owned());
    let keys = args.expect_keys;
    if let Some(path) = &args.data_dir {
        let path = std::path::absolute(path).unwrap_or_else(|_| path.clone()).to_string_lossy().into_owned();
        let origin = format!("--data-dir {path}");
        return Some(PlannedData { path, origin, cluster_id, keys, may_write: true });
    }
    let parent = set(SNAPSHOT_PATH)?;
    let id = cluster_id.as_deref().unwrap_or(find(MASTER_FLAGS, "cluster_id").default);
    let path = format!("{}/mcctl/{id}", parent.trim_end_matches('/'));
    Some(PlannedData { path, origin: format!("{SNAPSHOT_PATH}={parent}"), cluster_id, keys, may_write: false })
}

/// Checks that `bytes` is a plausible huge page size.
fn is_page(bytes: u64) -> Result<(), Failure> {
    match bytes >= PAGE_MIN && bytes.is_power_of_two() {
        true => Ok(()),
        false => Err(Failure::usage(format!("invalid huge page size {}", ByteSize(bytes)))
            .tried("--hugepage-size")
            .next("use a size that the CPU supports, such as 2mb or 1gb")),
    }
}

/// Checks that `python` is a virtual environment directory or a file named like an interpreter.
///
/// # Errors
/// `python` is neither.
pub(super) fn is_interpreter(tree: &FileTree, python: &str) -> Result<(), Failure> {
    let is_named = |path: &str| path.rsplit('/').next().is_some_and(|name| name.contains("py"));
    let below = |name: &str| tree.resolve(&format!("{}/{name}", python.trim_end_matches('/'))).is_some();
    let is_folder = tree.names(python).is_ok_and(|names| names.is_some());
    let found = match tree.resolve(python) {
        None => "no such file or directory",
        Some(_) if is_folder && ["bin", "lib", "lib64"].into_iter().any(below) => return Ok(()),
        Some(_) if is_folder => "the directory has neither bin nor lib",
        Some(real) if is_named(python) || is_named(&real) => return Ok(()),
        Some(_) => "the file is not named like a Python interpreter",
    };
    Err(Failure::usage(format!("{python} is not a Python interpreter or virtual environment"))
        .tried(format!("--python {python}"))
        .found(found)
        .next("pass the path of an interpreter (command -v python3), or the directory that contains its bin and lib"))
}

/// Where to search for the interpreter that imports the wheel.
pub(super) fn search(python: Option<&str>) -> WheelSearch {
    let variable = |name: &str| std::env::var(name).ok().filter(|text| !text.is_empty());
    let path = variable("PATH").unwrap_or_else(|| "/usr/local/bin:/usr/bin".to_owned());
    let python = python.map(|python| match std::path::absolute(python) {
        Ok(path) => path.to_string_lossy().into_owned(),
        Err(_) => python.to_owned(),
    });
    WheelSearch {
        python,
        prefixes: ["VIRTUAL_ENV", "CONDA_PREFIX"].into_iter().filter_map(variable).collect(),
        path: path.split(':').filter(|folder| folder.starts_with('/')).map(str::to_owned).collect(),
    }
}

fn plan(path: &Path) -> Result<SizingPlan, Failure> {
    let wrong = |found: String| {
        Failure::usage(format!("{} is not a plan", path.display()))
            .tried(format!("--plan {}", path.display()))
            .found(found)
            .next("pass a deployment file (mcctl init), or create a plan: mcctl size-hugepages --json ... > plan.json")
    };
    let mut text = String::new();
    let read = match path.to_str() {
        Some("-") => std::io::stdin().take(PLAN_BYTES_MAX).read_to_string(&mut text),
        _ => std::fs::File::open(path).and_then(|file| file.take(PLAN_BYTES_MAX).read_to_string(&mut text)),
    };
    read.map_err(|error| wrong(error.to_string()))?;
    let plan: SizingPlan = serde_json::from_str(&text).map_err(|error| wrong(error.to_string()))?;
    if plan.schema != SCHEMA {
        return Err(wrong(format!("the schema is {}, expected {SCHEMA}", plan.schema)));
    }
    Ok(plan)
}
