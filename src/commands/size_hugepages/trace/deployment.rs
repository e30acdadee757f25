//! The sizes and the deployment file for the chosen size of L3.

use std::io;
use std::path::Path;

use crate::commands::cli::deployment_file;
use crate::commands::cli::error::Failure;
use crate::commands::cli::output;
use crate::commands::cli::whole_file::{self, IfExists};
use crate::commands::size_hugepages::Args;
use crate::commands::size_hugepages::host::TargetHost;
use crate::commands::size_hugepages::report::SizingReport;
use crate::commands::size_hugepages::request::{self, NO_SIZE, SizingRequest};
use crate::commands::size_hugepages::trace::choice::{Choice, KnownTiers};
use crate::commands::size_hugepages::trace::curve::CurveInputs;
use crate::commands::size_hugepages::trace::document::{ChosenNeeds, ChosenSize, TierRates};
use crate::engine::base::ByteSize;
use crate::engine::deploy::{
    DeploySize, DeploymentSpec, FileFormat, HugePageSize, KvCache, Programs, StoreProtocol, commented,
    render::shell_quoted,
};
use crate::engine::plan::client::{GIB1, MIB2};
use crate::engine::plan::host_pool::L2Size;
use crate::engine::trace::reuse::TierSizes;

/// Checks `--out` before the trace is read.
///
/// # Errors
/// The extension is unknown, the file exists, or no size of L2 is set.
pub(super) fn check_file(args: &Args) -> Result<(), Failure> {
    let Some(path) = &args.trace.out else { return Ok(()) };
    if deployment_file::format_of(path).is_none() {
        let what = format!("{} is not a valid deployment file name", path.display());
        return Err(Failure::usage(what).next("use the extension .toml, .yaml or .yml"));
    }
    if !args.trace.force && path.symlink_metadata().is_ok() {
        return Err(already_exists(path));
    }
    if let Some(flag) = not_written(args) {
        return Err(Failure::usage(format!("--out does not write {flag} to the deployment file"))
            .next(format!("omit {flag}, and add it to the file afterward")));
    }
    if !has_l2(args) {
        return Err(Failure::usage("a deployment file requires the size of L2").next(NO_SIZE));
    }
    Ok(())
}

/// The first flag that changes the sizes or the commands, and that [`spec`] does not write.
fn not_written(args: &Args) -> Option<&'static str> {
    let flags = [
        ("--store-services", args.store_services > 0),
        ("--arena-pool-size", args.arena_pool_size != "0"),
        ("--dcp-size", args.dcp_size != 1),
        ("--packed-draft-layers", args.packed_draft_layers > 0),
        ("--nnodes", args.nnodes != 1),
        ("--max-mr-size", args.max_mr_size != "1tb"),
        ("--nic-numa-nodes", !args.nic_numa_nodes.is_empty()),
        ("--device-swa-tokens", args.pools.device_swa_tokens.is_some()),
        ("--hicache-host-memory-fraction", args.pools.hicache_host_memory_fraction.is_some()),
        ("--mamba-ssm-dtype", args.pools.mamba_ssm_dtype.is_some()),
        ("--master", args.settings.master.is_some()),
        ("--metadata-server", args.settings.metadata_server.is_some()),
    ];
    flags.into_iter().find(|(_, is_set)| *is_set).map(|(flag, _)| flag)
}

fn already_exists(path: &Path) -> Failure {
    Failure::usage(format!("{} already exists", path.display())).next("use another file name, or add --force")
}

/// Whether the command line determines L2.
fn has_l2(args: &Args) -> bool {
    args.hicache_size.is_some() || args.hicache_ratio.is_some()
}

/// Why there is no size to write.
pub(super) fn nothing_to_write(has_prices: bool) -> &'static str {
    if has_prices {
        return "no deployment file was written: at these prices, no size of L3 pays; next: use --choose knee, or \
                --choose hit-rate with --hit-rate";
    }
    "no deployment file was written: no size has such a hit rate, or the trace has no hits; next: lower --hit-rate"
}

/// The chosen size with its report. Writes the deployment file of `--out`.
///
/// # Errors
/// The deployment is invalid, or the file cannot be written.
pub(super) fn chosen(args: &Args, inputs: &CurveInputs, choice: Choice) -> Result<ChosenSize, Failure> {
    let point = inputs.point(choice.tokens, None);
    let tiers = inputs.tiers.map(|tiers| tier_rates(args, inputs, tiers, choice.tokens));
    let mut chosen = ChosenSize { by: choice.by, point, tiers, group_segment_bytes: None, needs: None, file: None };
    let Some(total) = chosen.point.segment_bytes.filter(|_| has_l2(args)) else { return Ok(chosen) };
    let services = args.store_services;
    let first = request::read(args)?;
    let rest = total.saturating_sub(services.saturating_mul(first.wanted.services.segment));
    let shares = first.wanted.layout.groups().max(1).saturating_mul(args.trace.servers);
    // Whole GiB, at least one: a size that is easy to read.
    let segment = rest.div_ceil(shares).div_ceil(ByteSize::GIB).max(1) * ByteSize::GIB;
    let sized = Args { global_segment_size: Some(segment.to_string()), ..args.clone() };
    let request = request::read(&sized)?;
    let host = TargetHost::read(&sized, &request)?;
    chosen.group_segment_bytes = Some(segment);
    let report = SizingReport::new(&sized, &request, &host, None)?;
    chosen.needs = Some(ChosenNeeds {
        verdict: report.verdict,
        hugepage_bytes: report.hugepage_bytes,
        hugepages: report.host_hugepages.most,
        summary: report.summary,
    });
    if let Some(path) = &args.trace.out {
        write(args, &request, segment, path)?;
        chosen.file = Some(path.display().to_string());
    }
    Ok(chosen)
}

fn tier_rates(args: &Args, inputs: &CurveInputs, tiers: KnownTiers, l3: u64) -> TierRates {
    let KnownTiers { l1, l2 } = tiers;
    let curve = &inputs.curves.all;
    let hits = inputs.curves.hits(TierSizes { l1, l2, l3 });
    TierRates {
        write_policy: args.trace.hicache_write_policy.name(),
        l1_tokens: l1,
        l2_tokens: l2,
        l3_tokens: l3,
        l1_hit_rate: curve.rate(hits.l1),
        l2_hit_rate: curve.rate(hits.l2),
        l3_hit_rate: curve.rate(hits.l3),
        missed_rate: curve.rate(curve.ceiling().saturating_sub(hits.total())),
        new_rate: curve.rate(curve.asked.saturating_sub(curve.ceiling())),
    }
}

fn write(args: &Args, request: &SizingRequest, segment: u64, path: &Path) -> Result<(), Failure> {
    let spec = spec(args, request, segment)?;
    deployment_file::say_misfits(&spec, spec.main_platform());
    let format = deployment_file::format_of(path).unwrap_or(FileFormat::Toml);
    let text = commented(&spec, format);
    let if_exists = if args.trace.force { IfExists::Replace } else { IfExists::Fail };
    whole_file::write(path, text.as_bytes(), if_exists).map_err(|error| match error.kind() {
        io::ErrorKind::AlreadyExists => already_exists(path),
        _ => Failure::host(format!("cannot write {}", path.display())).found(error.to_string()),
    })?;
    let shown = path.display().to_string();
    output::say(format!(
        "wrote {shown}\nnext: set the hosts with mcctl init --from {0} --hosts HOST,.. --out FILE, or mcctl render systemd \
         {0} --out units",
        shell_quoted(&shown)
    ));
    Ok(())
}

/// The deployment with the settings of the command line.
fn spec(args: &Args, request: &SizingRequest, segment: u64) -> Result<DeploymentSpec, Failure> {
    let mut spec = DeploymentSpec { programs: Programs::Mcctl, ..DeploymentSpec::default() };
    let wanted = &request.wanted;
    spec.model.path = args.model.clone().unwrap_or_default();
    spec.model.tp = args.tp_size;
    spec.model.pp = args.pp_size;
    spec.model.dp = args.dp_size;
    spec.model.dp_attention = args.enable_dp_attention;
    spec.model.page_size = args.page_size;
    spec.model.kv_cache = kv_cache(&args.kv_cache_dtype)?;
    args.trace.hicache_write_policy.name().clone_into(&mut spec.model.write_policy);
    let (layout, backend) = args.settings.layout_and_backend();
    layout.clone_into(&mut spec.model.layout);
    backend.clone_into(&mut spec.model.io_backend);
    spec.model.device_tokens = args.device_pool_tokens;
    spec.model.device_mamba_slots = args.pools.device_mamba_slots;
    match wanted.l2_size {
        L2Size::Gb(gb) => {
            spec.model.hicache_size_gb = Some(gb);
            spec.model.hicache_ratio = None;
        }
        L2Size::Ratio { ratio, .. } | L2Size::Auto { ratio, .. } => {
            spec.model.hicache_size_gb = None;
            spec.model.hicache_ratio = Some(ratio);
        }
    }
    spec.segment.engines = DeploySize(segment);
    spec.hugepages.size = match wanted.page {
        _ if args.no_hugepages => HugePageSize::None,
        GIB1 => HugePageSize::Gib1,
        MIB2 => HugePageSize::Mib2,
        _ => HugePageSize::None,
    };
    spec.transfer.protocol = if args.protocol == "rdma" { StoreProtocol::Rdma } else { StoreProtocol::Tcp };
    if let Some(devices) = &args.settings.device_name {
        spec.transfer.devices = devices.split(',').map(str::to_owned).collect();
    }
    spec.master.data_dir = Some(spec.default_data_dir());
    Ok(spec)
}

fn kv_cache(text: &str) -> Result<KvCache, Failure> {
    let all = [KvCache::Auto, KvCache::Bf16, KvCache::Fp8E4m3, KvCache::Fp8E5m2];
    all.into_iter().find(|cache| cache.text() == text).ok_or_else(|| {
        Failure::usage(format!("a deployment file has no --kv-cache-dtype {text}"))
            .next("use auto, bf16, fp8_e4m3 or fp8_e5m2, or omit --out")
    })
}
