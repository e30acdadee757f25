//! `mcctl size-hugepages FILE`: what each host of a deployment file needs, and whether its hosts
//! have it.

use std::collections::BTreeMap;
use std::path::Path;

use serde::Serialize;

use crate::commands::cli::deployment_file;
use crate::commands::cli::error::Outcome;
use crate::commands::cli::output;
use crate::commands::cli::table::{self, ReportTable};
use crate::commands::size_hugepages::Args;
use crate::commands::size_hugepages::report::SizingSummary;
use crate::commands::size_hugepages::verdict::SizingVerdict;
use crate::engine::base::ByteSize;
use crate::engine::base::addr::host_is_loopback;
use crate::engine::check::Severity;
use crate::engine::deploy::{
    DeploySize, DeploymentSpec, FitFinding, HostDemand, Platform, ProcessPlan, demands, fit, render::shell_quoted,
};
use crate::engine::sys::host;

#[derive(Debug, Serialize)]
struct DeploymentReport {
    schema: &'static str,
    summary: SizingSummary,
    verdict: SizingVerdict,
    file: String,
    /// `hosts` or `kubernetes`: whether the rows of `hosts` are hosts, or pods.
    platform: &'static str,
    hosts: Vec<DemandRow>,
    /// Memory of each host in bytes, including huge pages; `null` if unknown.
    host_bytes: Option<u64>,
    /// Part of it that may become huge pages.
    host_hugepage_bytes: Option<u64>,
    /// Where these two come from.
    host_source: &'static str,
    findings: Vec<FindingRow>,
}

/// The needs of a host or pod.
#[derive(Debug, Serialize)]
struct DemandRow {
    host: String,
    processes: Vec<ProcessRow>,
    /// Size of one huge page in bytes; 0 without huge pages.
    hugepage_size_bytes: u64,
    /// Number of huge pages.
    hugepages: u64,
    /// Regular memory with headroom, in bytes; `null` if it cannot be computed.
    memory_bytes: Option<u64>,
    /// Regular memory that is certainly needed.
    memory_bytes_min: u64,
    /// Regular memory that must be available when SGLang starts.
    guard_bytes: Option<u64>,
    gpus: u64,
}

/// The needs of a process.
#[derive(Debug, Serialize)]
struct ProcessRow {
    name: String,
    hugepages: u64,
    memory_bytes: Option<u64>,
}

/// Why the deployment does not fit.
#[derive(Debug, Serialize)]
struct FindingRow {
    severity: Severity,
    key: &'static str,
    host: String,
    finding: String,
    remedy: String,
}

/// Prints the report for the deployment file `path`.
pub(super) fn run(args: &Args, path: &Path) -> Outcome {
    let mut spec = deployment_file::read(path, &[])?;
    let (platform, plans) = deployment_file::planned(path, &spec)?;
    let source = fill_capacity(&mut spec, &plans, platform);
    let report = report(path, &spec, platform, &plans, source);
    if args.json {
        output::json(&report)?;
    } else {
        output::data(text(&report))?;
    }
    Ok(report.verdict.exit())
}

/// Sets the memory of the hosts to that of this host, if all processes run here and the file does
/// not contain it. Returns the source.
fn fill_capacity(spec: &mut DeploymentSpec, plans: &[ProcessPlan], platform: Platform) -> &'static str {
    if spec.host.memory.is_some() || spec.host.hugepages.is_some() {
        return "[host] in the file";
    }
    let is_here = platform == Platform::Hosts && plans.iter().all(|plan| host_is_loopback(&plan.host));
    match host::memory().filter(|_| is_here) {
        Some(memory) => {
            spec.host.memory = Some(DeploySize(memory.total));
            "this host"
        }
        None => "unknown: set host.memory and host.hugepages in the file",
    }
}

fn report(
    path: &Path,
    spec: &DeploymentSpec,
    platform: Platform,
    plans: &[ProcessPlan],
    source: &'static str,
) -> DeploymentReport {
    let demands = demands(plans, platform);
    let findings = fit(spec, plans, platform);
    let verdict = verdict(spec, &findings, &demands);
    let by_name: BTreeMap<&str, &ProcessPlan> = plans.iter().map(|plan| (plan.name.as_str(), plan)).collect();
    let row = |demand: &HostDemand| {
        let process = |name: &String| {
            let plan = by_name.get(name.as_str())?;
            let hugepages = plan.resources.hugepages.map_or(0, |(_, count)| count);
            Some(ProcessRow { name: name.clone(), hugepages, memory_bytes: plan.resources.memory })
        };
        DemandRow {
            host: demand.host.clone(),
            processes: demand.processes.iter().filter_map(process).collect(),
            hugepage_size_bytes: demand.page,
            hugepages: demand.pages,
            memory_bytes: demand.memory,
            memory_bytes_min: demand.memory_min,
            guard_bytes: demand.guard,
            gpus: demand.gpus,
        }
    };
    let finding = |found: &FitFinding| FindingRow {
        severity: found.severity,
        key: found.key,
        host: found.host.clone(),
        finding: found.what.clone(),
        remedy: found.remedy.clone(),
    };
    DeploymentReport {
        schema: "mcctl.size-hugepages.deployment/1",
        summary: summary(path, spec, &demands, &findings, verdict, source),
        verdict,
        file: path.display().to_string(),
        platform: if platform == Platform::Hosts { "hosts" } else { "kubernetes" },
        hosts: demands.iter().map(row).collect(),
        host_bytes: spec.host.memory.map(|size| size.0),
        host_hugepage_bytes: spec.host.hugepages.map(|size| size.0),
        host_source: source,
        findings: findings.iter().map(finding).collect(),
    }
}

fn verdict(spec: &DeploymentSpec, findings: &[FitFinding], demands: &[HostDemand]) -> SizingVerdict {
    let has = |key: &str| findings.iter().any(|found| found.severity == Severity::Error && found.key == key);
    if has("host.hugepages") {
        SizingVerdict::HugepagesShort
    } else if has("host.memory") {
        SizingVerdict::MemoryShort
    } else if findings.iter().any(|found| found.severity == Severity::Error) {
        SizingVerdict::DevicesShort
    } else if findings.iter().any(|found| found.severity > Severity::Info) {
        SizingVerdict::NotCertain
    } else if spec.host.memory.is_none() || demands.iter().any(|demand| demand.memory.is_none()) {
        SizingVerdict::Unknown
    } else {
        SizingVerdict::Fits
    }
}

/// The three lines at the end of the report.
fn summary(
    path: &Path,
    spec: &DeploymentSpec,
    demands: &[HostDemand],
    findings: &[FitFinding],
    verdict: SizingVerdict,
    source: &'static str,
) -> SizingSummary {
    let total = |demand: &&HostDemand| demand.hugepages().saturating_add(demand.memory.unwrap_or(demand.memory_min));
    let needs = demands.iter().max_by_key(total).map_or_else(String::new, |demand| {
        let pages = match demand.pages {
            0 => "no huge pages".to_owned(),
            count => {
                let size = ByteSize(demand.hugepages());
                format!("{count} {} huge pages ({size})", ByteSize(demand.page))
            }
        };
        let memory = match demand.memory {
            Some(bytes) => format!("about {} of regular (non-hugepage) memory", ByteSize(bytes)),
            None => "regular memory that depends on the size of its device pool".to_owned(),
        };
        let has_numbers = demand.pages > 0 || demand.memory.is_some();
        let bound = demand.bound.filter(|_| has_numbers);
        let bound = bound.map_or_else(String::new, |cause| format!(", an upper bound because {}", cause.text()));
        format!("{pages}, and {memory}, on {}{bound}", demand.host)
    });
    let size = |size: DeploySize| ByteSize(size.0);
    let has = match (spec.host.memory.map(size), spec.host.hugepages.map(size)) {
        (Some(memory), Some(pages)) => format!("{memory} of memory per host, {pages} of it for huge pages"),
        (Some(memory), None) => format!("{memory} of memory per host"),
        (None, Some(pages)) => format!("{pages} for huge pages per host"),
        (None, None) => "memory per host".to_owned(),
    };
    let fits = match verdict {
        SizingVerdict::Fits => "it fits",
        SizingVerdict::Unknown => "whether it fits is unknown",
        SizingVerdict::NotCertain => "whether it fits is not certain",
        SizingVerdict::HugepagesShort
        | SizingVerdict::MemoryShort
        | SizingVerdict::SegmentRejected
        | SizingVerdict::DevicesShort => "it does not fit",
    };
    let misfit = findings.iter().find(|found| found.severity > Severity::Info);
    let file = shell_quoted(&path.display().to_string());
    let is_kubernetes = spec.main_platform() != Platform::Hosts;
    let next = match (misfit, demands.iter().any(|demand| demand.pages > 0)) {
        (Some(found), _) => found.remedy.clone(),
        (None, _) if is_kubernetes => format!("mcctl render k8s {file} --out manifests, or another format"),
        (None, true) => format!("mcctl render systemd {file} --out units (with the files that reserve the huge pages)"),
        (None, false) => format!("mcctl render systemd {file} --out units, or another format"),
    };
    // Devices are not part of the sizes in this line.
    let available = match misfit.filter(|_| verdict == SizingVerdict::DevicesShort) {
        Some(found) => format!("{}: {fits}", found.what),
        None => format!("{has} ({source}): {fits}"),
    };
    SizingSummary { needs, available, next }
}

/// The report as text.
fn text(report: &DeploymentReport) -> String {
    let mut text = format!("{}. MiB and GiB are powers of 1024.\n\n", report.file);
    let memory = |bytes: Option<u64>| bytes.map_or("unknown".to_owned(), |bytes| ByteSize(bytes).to_string());
    let head = if report.platform == "hosts" { "host" } else { "pod" };
    let mut rows = ReportTable::new("", &[head, "process", "huge pages", "regular memory"]).text_column(1);
    for host in &report.hosts {
        for process in &host.processes {
            rows.row([
                host.host.clone(),
                process.name.clone(),
                process.hugepages.to_string(),
                memory(process.memory_bytes),
            ]);
        }
        if host.processes.len() > 1 {
            rows.row([host.host.clone(), "all".to_owned(), host.hugepages.to_string(), memory(host.memory_bytes)]);
        }
    }
    text.push_str(&format!("{}\n", rows.render(table::width())));
    if !report.findings.is_empty() {
        text.push_str("Caveats:\n");
        for found in &report.findings {
            text.push_str(&format!("  {}: {} [{}]\n", found.severity, found.finding, found.key));
        }
        text.push('\n');
    }
    let SizingSummary { needs, available, next } = &report.summary;
    text + &format!("needs      {needs}\navailable  {available}\nnext       {next}\n")
}
