//! Converts the command line to a [`SizingInput`]. Every value is parsed with the grammar of the
//! program that it is passed to.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use crate::commands::cli::error::Failure;
use crate::commands::size_hugepages::Args;
use crate::engine::plan::client::{GIB1, MIB2};
use crate::engine::plan::config_json::{self, CONFIG_BYTES_MAX};
use crate::engine::plan::geometry::{CacheType, Geometry};
use crate::engine::plan::host_pool::L2Size;
use crate::engine::plan::layout::ParallelLayout;
use crate::engine::plan::size_flag::{self, SizeFlag};
use crate::engine::plan::sizing_input::{REGULAR_PAGE_BYTES, Services, SizingInput};
use crate::engine::plan::{SizingError, models, upstream};
use crate::engine::sys::hugetlb;

/// The parsed command line.
#[derive(Clone, Debug)]
pub(super) struct SizingRequest {
    /// The deployment to size.
    pub wanted: SizingInput,
    /// The model name and the source of its geometry.
    pub model: Option<(String, String)>,
    /// The sizes that are passed to other programs, in the order L2 (absent with a ratio), segment,
    /// arena (absent without huge pages).
    pub sizes: Vec<SizeFlag>,
}

impl From<SizingError> for Failure {
    fn from(error: SizingError) -> Failure {
        let failure = Failure::usage(error.to_string());
        match error {
            SizingError::UnknownModel { .. } => {
                failure.next("use one of these names, or the path of the model's config.json")
            }
            SizingError::NotASize { reader: "SGLang's --hicache-size", .. } => failure.next(
                "set --hicache-size to 64 for 64 GB, or to 64gb for 64 GiB (the format of upstream's sizing script)",
            ),
            SizingError::BelowOneGb { .. } => failure.next("set --hicache-size to 1 or more"),
            SizingError::Unsupported { .. } => failure.next("omit --model to get bounds"),
            _ => failure,
        }
    }
}

/// Parses the command line.
///
/// # Errors
/// A value is invalid, or SGLang would not start the deployment.
pub(super) fn read(args: &Args) -> Result<SizingRequest, Failure> {
    let mut l2 = None;
    let l2_size = match (&args.hicache_size, args.hicache_ratio, args.device_pool_tokens) {
        (Some(text), ..) => {
            let (gb, size) = size_flag::hicache(text)?;
            if gb == 0 {
                return Err(Failure::usage("--hicache-size 0 means that --hicache-ratio applies").next(NO_SIZE));
            }
            l2 = Some(size);
            L2Size::Gb(gb)
        }
        (None, Some(ratio), Some(device_tokens)) => L2Size::Ratio { ratio, device_tokens },
        _ => return Err(Failure::usage("no L2 size specified").next(NO_SIZE)),
    };
    if args.device_pool_tokens.is_some() && args.hicache_ratio.is_none() && !args.per_request {
        return Err(Failure::usage("--device-pool-tokens requires --hicache-ratio or --per-request"));
    }
    let mut request = sized(args, l2_size)?;
    if let Some(size) = l2 {
        request.sizes.insert(0, size);
    }
    Ok(request)
}

/// Parses the command line with the L2 size `l2_size`.
///
/// # Errors
/// The same as [`read`].
pub(super) fn sized(args: &Args, l2_size: L2Size) -> Result<SizingRequest, Failure> {
    let layout = ParallelLayout::new(args.tp_size, args.pp_size, args.dp_size, args.enable_dp_attention, args.nnodes)?;
    let layout = layout.with_dcp(args.dcp_size)?;
    if args.page_size == 0 || args.conversation_tokens == 0 {
        return Err(Failure::usage("--page-size and --conversation-tokens must be at least 1"));
    }
    let model = args.model.as_deref().map(model).transpose()?;
    if model.is_none() && matches!(l2_size, L2Size::Ratio { .. }) {
        return Err(Failure::usage(
            "--hicache-ratio requires --model: the ratio applies to tokens, whose size depends on the model",
        )
        .next("set --model, or use --hicache-size"));
    }
    let cache = cache_type(&args.kv_cache_dtype)?;
    let geometry = geometry(args, model.as_ref(), &layout)?;
    let cache = match (args.dsa_fp8_layout.as_str(), cache) {
        ("raw", CacheType::Fp8) if geometry.is_some_and(|geometry| geometry.is_sparse()) => CacheType::Fp8Plain,
        ("raw", _) => {
            let what = "--dsa-fp8-layout raw requires a model with sparse attention and an fp8 cache";
            return Err(Failure::usage(what).next("set --model, or omit the flag"));
        }
        (_, cache) => cache,
    };
    let region = size_flag::store("--max-mr-size", &args.max_mr_size)?;
    if region < REGION_BYTES_MIN {
        return Err(Failure::usage("--max-mr-size must be at least 16 MiB: buffers are split at multiples of 16 MiB"));
    }
    let page = match upstream::size(&args.hugepage_size).ok().and_then(|bytes| u64::try_from(bytes).ok()) {
        _ if args.no_hugepages => REGULAR_PAGE_BYTES,
        Some(page @ (MIB2 | GIB1)) => page,
        _ => {
            let text = format!("--hugepage-size {}: the store supports 2 MiB and 1 GiB huge pages", args.hugepage_size);
            return Err(Failure::usage(text).next("use 2mb or 1gb"));
        }
    };
    let is_rdma = args.protocol == "rdma";
    if !is_rdma && !args.nic_numa_nodes.is_empty() {
        return Err(Failure::usage("--nic-numa-nodes requires --protocol rdma"));
    }
    args.settings.check(is_rdma)?;
    let services = Services {
        count: args.store_services,
        segment: size_flag::store("--store-segment-size", &args.store_segment_size)?,
        local_buffer: size_flag::store("--store-local-buffer-size", &args.store_local_buffer_size)?,
    };
    let mut nic_nodes = args.nic_numa_nodes.clone();
    nic_nodes.sort_unstable();
    nic_nodes.dedup();
    let segment = size_flag::segment(args.segment_text())?;
    let arena = size_flag::arena(&args.arena_pool_size)?;
    let wanted = SizingInput {
        layout,
        geometry,
        cache,
        page_size: args.page_size,
        l2_size,
        group_segment: segment.used_bytes,
        arena: arena.used_bytes,
        page,
        default_page: hugetlb::default_page_bytes().filter(|bytes| *bytes == GIB1).unwrap_or(MIB2),
        nic_nodes: nic_nodes.len() as u64,
        region,
        services,
    };
    let mut sizes = vec![segment];
    sizes.extend(Some(arena).filter(|_| wanted.uses_hugepages()));
    Ok(SizingRequest { wanted, model: model.map(|model| (model.name, model.source)), sizes })
}

/// The store splits larger buffers at multiples of this size.
const REGION_BYTES_MIN: u64 = 16 << 20;

fn cache_type(text: &str) -> Result<CacheType, Failure> {
    let refused = |why: &str| {
        let text = format!("--kv-cache-dtype {text} is not supported: {why}");
        Err(Failure::usage(text).next("use auto, bf16, fp8_e4m3 or fp8_e5m2"))
    };
    match text {
        "auto" | "bf16" | "bfloat16" => Ok(CacheType::Half),
        "fp8_e4m3" | "fp8_e5m2" => Ok(CacheType::Fp8),
        "mxfp8" => refused("its rows contain scales, which are stored in a special host pool"),
        fp4 if fp4.starts_with("fp4") || fp4.starts_with("nvfp4") => {
            refused("SGLang's host pool rejects FP4 caches with separate scales, except for MiniMax-M3")
        }
        _ => refused("the layout of SGLang's host pool is unknown for this type"),
    }
}

/// The geometry of the model's cache, adjusted by the command line.
fn geometry(args: &Args, model: Option<&SelectedModel>, layout: &ParallelLayout) -> Result<Option<Geometry>, Failure> {
    let draft = args.packed_draft_layers;
    let Some(SelectedModel { geometry, .. }) = model else {
        if draft > 0 || layout.dcp() > 1 {
            let what = "--packed-draft-layers and --dcp-size require --model";
            return Err(Failure::usage(what).next("set --model"));
        }
        return Ok(None);
    };
    if layout.dcp() > 1 {
        if !geometry.is_latent() {
            return Err(Failure::usage("--dcp-size above 1 with HiCache requires an MLA model in SGLang"));
        }
        if geometry.is_sparse() || draft > 0 {
            let what = "--dcp-size above 1 is not supported with sparse attention or a packed draft";
            return Err(Failure::usage(what).next("SGLang supports only DSPARK drafts with --dcp-size above 1"));
        }
    }
    if draft > 0 && (layout.pp() > 1 || geometry.window_layers > 0) {
        let what = "--packed-draft-layers is not supported with pipeline stages or sliding layers";
        return Err(Failure::usage(what).next("the draft layer pool is unknown in that case"));
    }
    Ok(Some(geometry.with_draft_layers(draft)?))
}

/// The flags that determine the L2 size.
pub(super) const NO_SIZE: &str =
    "use --hicache-size GB, --hicache-ratio with --device-pool-tokens and --model, or --max-fit";

struct SelectedModel {
    name: String,
    geometry: Geometry,
    source: String,
}

/// Loads a model by path or name. An existing file or directory, or a string that looks like a
/// path, is treated as a path.
fn model(text: &str) -> Result<SelectedModel, Failure> {
    let path = Path::new(text);
    let is_path = path.is_dir() || path.is_file() || text.ends_with(".json") || text.starts_with(['.', '/']);
    if !is_path {
        let known = models::by_name(text)?;
        let name = known.names.first().copied().unwrap_or_default().to_owned();
        return Ok(SelectedModel { name, geometry: known.geometry, source: known.source.to_owned() });
    }
    let file = if path.is_dir() { path.join("config.json") } else { PathBuf::from(path) };
    let unreadable = |error: std::io::Error| {
        Failure::usage("cannot read the model's config.json").tried(file.display().to_string()).found(error.to_string())
    };
    let mut config = String::new();
    let bytes = File::open(&file)
        .and_then(|open| open.take(CONFIG_BYTES_MAX + 1).read_to_string(&mut config))
        .map_err(unreadable)?;
    if bytes as u64 > CONFIG_BYTES_MAX {
        return Err(Failure::usage("the model's config.json is larger than 4 MiB").tried(file.display().to_string()));
    }
    let geometry = config_json::read(&config).map_err(|e| Failure::from(e).tried(file.display().to_string()))?;
    Ok(SelectedModel { name: file.display().to_string(), geometry, source: "its config.json".to_owned() })
}
