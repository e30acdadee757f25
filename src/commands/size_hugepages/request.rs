//! Converts the command line to a [`SizingInput`]. Every value is parsed with the grammar of the
//! program that it is passed to.

use crate::commands::cli::error::Failure;
use crate::commands::size_hugepages::{Args, host, model};
use crate::engine::plan::client::{GIB1, MIB2};
use crate::engine::plan::geometry::Geometry;
use crate::engine::plan::host_pool::{BUFFER_RATIO, L2Size, MEMORY_FRACTION, RATIO};
use crate::engine::plan::layout::ParallelLayout;
use crate::engine::plan::size_flag::{self, SizeFlag};
use crate::engine::plan::sizing_input::{DevicePools, REGULAR_PAGE_BYTES, Services, SizingInput};
use crate::engine::plan::{SizingError, upstream};
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
            SizingError::UnknownModel { nearest, .. } if !nearest.is_empty() => {
                failure.next("use one of these names, or the path of the model's config.json")
            }
            SizingError::UnknownModel { .. } => failure.next("use the path of the model's config.json"),
            SizingError::NotASize { reader: "SGLang's --hicache-size", .. } => failure.next(
                "set --hicache-size to 64 for 64 GB, or to 64gb for 64 GiB (the format of upstream's sizing script)",
            ),
            SizingError::BelowOneGb { .. } => failure.next("set --hicache-size to 1 or more"),
            SizingError::Architecture { .. } => {
                failure.next("omit --model for bounds over the known models, which may not include this one")
            }
            SizingError::ConfigField { .. } => failure.next("use the complete config.json of the checkpoint"),
            SizingError::CacheType { .. } => failure.next("set --kv-cache-dtype to another type, or to auto"),
            SizingError::CacheTypeUnknown { .. } => {
                failure.next("set --kv-cache-dtype, or --model to the directory of the checkpoint")
            }
            SizingError::FixedSize => failure.next("use --hicache-ratio with --device-pool-tokens"),
            SizingError::DeviceSlots => {
                failure.next("set --device-mamba-slots to max_mamba_cache_size in SGLang's log")
            }
            SizingError::CompressedPage { .. } => failure.next("set --page-size 256"),
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
                return Err(Failure::usage(
                    "--hicache-size 0 means that --hicache-ratio applies, or SGLang's automatic size",
                )
                .next(NO_SIZE));
            }
            l2 = Some(size);
            L2Size::Gb(gb)
        }
        (None, Some(ratio), Some(device_tokens)) => L2Size::Ratio { ratio, device_tokens },
        (None, None, Some(device_tokens)) if args.model.is_some() => automatic(args, device_tokens)?,
        _ => return Err(Failure::usage("no L2 size specified").next(NO_SIZE)),
    };
    let mut request = sized(args, l2_size)?;
    if let Some(size) = l2 {
        request.sizes.insert(0, size);
    }
    Ok(request)
}

/// The L2 size that SGLang selects by itself.
fn automatic(args: &Args, device_tokens: u64) -> Result<L2Size, Failure> {
    let given = args.available_memory.as_deref();
    let given = given.map(|text| size_flag::host("--available-memory", text)).transpose()?;
    let here = || host::available(&args.root.join("sys")).filter(|_| args.available_hugetlb.is_none());
    let Some(available) = given.or_else(here) else {
        return Err(Failure::usage("SGLang's automatic L2 size depends on the available memory, which is unknown")
            .next("set --available-memory to what is available when SGLang starts"));
    };
    let ratio = if args.pools.hicache_host_memory_mode == "buffer_only" { BUFFER_RATIO } else { RATIO };
    let fraction = args.pools.hicache_host_memory_fraction.unwrap_or(MEMORY_FRACTION);
    if !(fraction > 0.0 && fraction <= 1.0) {
        return Err(Failure::usage(format!("--hicache-host-memory-fraction {fraction} is not above 0 and up to 1")));
    }
    Ok(L2Size::Auto { ratio, fraction, device_tokens, available })
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
    let model = model::selected(args)?;
    if model.is_none() && matches!(l2_size, L2Size::Ratio { .. }) {
        return Err(Failure::usage(
            "--hicache-ratio requires --model: the ratio applies to tokens, whose size depends on the model",
        )
        .next("set --model, or use --hicache-size"));
    }
    let cache = model::cache_type(args, model.as_ref())?;
    let geometry = model::geometry(args, model.as_ref(), &layout)?;
    let has = |pool: fn(&Geometry) -> bool| geometry.as_ref().is_some_and(pool);
    for (flag, is_set, is_known) in [
        ("--device-swa-tokens", args.pools.device_swa_tokens.is_some(), has(Geometry::has_windows)),
        ("--device-mamba-slots", args.pools.device_mamba_slots.is_some(), has(Geometry::has_states)),
    ] {
        if is_set && !is_known {
            return Err(Failure::usage(format!("{flag} does not apply: the model has no such pool")).next("omit it"));
        }
    }
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
    let (layout_name, _) = args.settings.layout_and_backend();
    if geometry.as_ref().is_some_and(|geometry| !geometry.has_layout(layout_name)) {
        let text = format!("--hicache-mem-layout {layout_name}: SGLang has no such layout for this model's cache");
        return Err(Failure::usage(text).next("use page_first or page_first_direct"));
    }
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
        device: DevicePools {
            tokens: args.device_pool_tokens,
            window_tokens: args.pools.device_swa_tokens,
            slots: args.pools.device_mamba_slots,
        },
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

/// The flags that determine the L2 size.
pub(super) const NO_SIZE: &str = "use --hicache-size GB, --hicache-ratio with --device-pool-tokens and --model, only these two for SGLang's automatic size, or --max-fit";
