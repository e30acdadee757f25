//! Sizes: syntax per program, minimum segment, huge pages.

use crate::lint::findings::Findings;
use crate::lint::model::{LocatedValue, ProcessRole, RuntimeKind};
use crate::lint::quantity;
use crate::lint::settings::{ProcessView, SettingReader, SettingType, SettingValue, settings_of};
use crate::lint::view::DeploymentView;
use crate::plan::SizingError;
use crate::plan::client::PLAIN_SEGMENT_BYTES_MIN;
use crate::plan::size_text;
use mcctl_base::ByteSize;
use mcctl_base::text::counted;

/// Sizes in a syntax that the program cannot parse. `vllm-config` checks those of vLLM.
pub(super) fn grammar(view: &DeploymentView<'_>, out: &mut Findings) {
    for (member, reader) in view.readers() {
        for setting in settings_of(SettingType::Size) {
            if let SettingValue::Is(located) = member.client(setting.key) {
                size_of_setting(setting.key, reader, &located, out);
            }
        }
    }
    for member in &view.member {
        let process = member.process;
        if let Some(located) = member.value(&["hicache_size"])
            && let Err(error) = size_text::hicache_gb(&located.text)
        {
            let gb = located.text.trim().to_ascii_lowercase();
            let digits = gb.trim_end_matches(|c: char| c.is_ascii_alphabetic());
            let remedy = match digits.parse::<u64>() {
                Ok(n) => format!("use --hicache-size {n}"),
                Err(_) => "use a whole number of GB (10^9 bytes)".to_owned(),
            };
            invalid_size(out, "--hicache-size", located, &error, remedy);
        }
        for name in ["MC_MMAP_ARENA_POOL_SIZE"] {
            if let Some(located) = process.var(name).filter(|located| !located.text.trim().is_empty())
                && size_text::arena(&located.text).is_err()
                && located.text.trim() != "infinite"
            {
                out.warning(
                    &located.place,
                    format!("{name}='{}' is not a valid size; the store uses an 8 GiB arena", located.text),
                    "the store accepts a number with the unit b, kb, mb, gb or tb (powers of 1024)",
                    format!("set {name}={}", store_text(&located.text).unwrap_or_else(|| "8gb".to_owned())),
                );
            }
        }
    }
}

fn size_of_setting(key: &str, reader: SettingReader, located: &LocatedValue, out: &mut Findings) {
    let (error, remedy) = match reader {
        // SGLang ignores local_buffer_size.
        SettingReader::Sglang if key == "local_buffer_size" => return,
        SettingReader::Sglang => (size_text::sglang_segment(&located.text).err(), whole_gb(&located.text)),
        SettingReader::Service | SettingReader::RealClient => {
            (size_text::store(&located.text).err(), store_spelling(&located.text))
        }
        // SGLang or the store service may read the variable.
        SettingReader::Variables => {
            let is_valid = size_text::sglang_segment(&located.text).is_ok();
            (size_text::store(&located.text).err().filter(|_| !is_valid), whole_gb(&located.text))
        }
        SettingReader::McctlNode | SettingReader::Vllm | SettingReader::Lmcache => return,
    };
    if let Some(error) = error {
        invalid_size(out, key, located, &error, remedy);
    }
}

fn invalid_size(out: &mut Findings, what: &str, located: &LocatedValue, error: &SizingError, remedy: String) {
    let finding = match error {
        SizingError::NotASize { .. } => {
            format!("the process exits at startup: {what} '{}' is not a valid size", located.text)
        }
        _ => format!("{what} '{}' is too large", located.text),
    };
    out.error(&located.place, finding, error.to_string(), remedy);
}

/// The same size in the syntax of the store service.
fn store_text(text: &str) -> Option<String> {
    let bytes = text.parse::<ByteSize>().ok().map(|size| size.0).or_else(|| quantity::kubernetes(text))?;
    Some(match bytes {
        n if n.is_multiple_of(ByteSize::GIB) => format!("{}gb", n / ByteSize::GIB),
        n if n.is_multiple_of(ByteSize::MIB) => format!("{}mb", n / ByteSize::MIB),
        n => n.to_string(),
    })
}

fn store_spelling(text: &str) -> String {
    store_text(text)
        .map_or_else(|| "use a number with the unit mb or gb, e.g. 16gb".to_owned(), |text| format!("use {text}"))
}

/// The same size in the syntax of SGLang.
fn whole_gb(text: &str) -> String {
    let bytes = text.parse::<ByteSize>().ok().map(|size| size.0).or_else(|| quantity::kubernetes(text));
    match bytes {
        Some(n) if n.is_multiple_of(ByteSize::GIB) => format!("use {}gb", n / ByteSize::GIB),
        Some(n) => format!("use {n} (bytes)"),
        None => "use a whole number with the unit gb, e.g. 16gb".to_owned(),
    }
}

/// A common number of ranks per server.
const RANKS_USUAL: u64 = 8;

/// A rank's share of the segment must not be smaller than the minimum mountable size.
pub(super) fn rank_segment(view: &DeploymentView<'_>, out: &mut Findings) {
    for member in &view.member {
        unknown_rank_count(member, out);
    }
    for member in view.clients() {
        // With huge pages, a small segment is rounded up. For shell variables, it is unknown
        // whether huge pages are enabled.
        let huge = member.huge_pages();
        if huge == Some(true) {
            continue;
        }
        let (Some((bytes, place)), Some(ranks)) = (member.segment(), ranks(member)) else { continue };
        let part = bytes / ranks.max(1);
        if part == 0 || part >= PLAIN_SEGMENT_BYTES_MIN {
            continue;
        }
        let least = PLAIN_SEGMENT_BYTES_MIN.saturating_mul(ranks).div_ceil(ByteSize::GIB).max(1);
        let evidence = match ranks {
            1 => format!("the segment is {}; the minimum is 16 MiB", ByteSize(bytes)),
            n => format!("{} across {n} ranks is {} each; the minimum is 16 MiB", ByteSize(bytes), ByteSize(part)),
        };
        let what = format!("{} cannot start: its segment is too small to mount (-600)", member.process.describe());
        let remedy = format!("set it to {least}gb or more, or to 0 to contribute nothing");
        match huge {
            Some(_) => out.error(&place, what, evidence, remedy),
            None => out.warning(&place, what, format!("{evidence} (except with huge pages)"), remedy),
        }
    }
}

/// SGLang settings without a command line: the number of ranks among which the segment is divided
/// is unknown and may be one.
fn unknown_rank_count(member: &ProcessView<'_>, out: &mut Findings) {
    let is_of_sglang = member.process.role.is_sglang() || member.process.role == ProcessRole::Environment;
    if !is_of_sglang || member.process.args_whole || member.huge_pages() == Some(true) {
        return;
    }
    let SettingValue::Is(located) = member.client("global_segment_size") else { return };
    let Ok(bytes) = size_text::sglang_segment(&located.text) else { return };
    let evidence = format!(
        "{}; SGLang divides it among its ranks (tp), and each rank's segment must be at least 16 MiB",
        ByteSize(bytes)
    );
    if bytes > 0 && bytes < PLAIN_SEGMENT_BYTES_MIN {
        out.warning(
            &located.place,
            "the segment is too small to mount: SGLang and the store service exit with -600",
            evidence,
            "set it to 1gb or more, or to 0 to contribute nothing",
        );
    } else if bytes > 0 && bytes < RANKS_USUAL * PLAIN_SEGMENT_BYTES_MIN {
        let most = bytes / PLAIN_SEGMENT_BYTES_MIN;
        out.info(
            &located.place,
            format!("the segment is large enough for at most {}", counted(most, "SGLang rank")),
            evidence,
            "set it to 1gb or more, or to 0 to contribute nothing",
        );
    }
}

fn ranks(member: &ProcessView<'_>) -> Option<u64> {
    if member.process.role.is_sglang() { member.ranks() } else { Some(1) }
}

/// Variables that enable huge pages, and values that only appear to disable them.
pub(super) fn huge_page_switch(view: &DeploymentView<'_>, out: &mut Findings) {
    for member in &view.member {
        let process = member.process;
        if let Some(located) = process.var("MC_STORE_USE_HUGEPAGE") {
            let word = located.text.trim().to_ascii_lowercase();
            if matches!(word.as_str(), "0" | "false" | "no" | "off" | "") {
                out.warning(
                    &located.place,
                    "huge pages are on: MC_STORE_USE_HUGEPAGE takes effect whenever it is set, whatever its value",
                    format!("MC_STORE_USE_HUGEPAGE={}", located.text),
                    "unset MC_STORE_USE_HUGEPAGE, or set it to 1",
                );
            }
        }
        if let Some(located) = process.var("MC_STORE_HUGEPAGE_SIZE")
            && size_text::huge_page(&located.text).is_err()
        {
            out.warning(
                &located.place,
                format!(
                    "MC_STORE_HUGEPAGE_SIZE={} is not a supported huge-page size; the store uses 2 MiB pages",
                    located.text
                ),
                "valid sizes are 2MB and 1GB",
                "set MC_STORE_HUGEPAGE_SIZE to 2MB or 1GB",
            );
        }
    }
}

/// Values that the store client parses as true and as false.
const ON: &[&str] = &["1", "true", "yes", "on"];
const OFF: &[&str] = &["0", "false", "no", "off", ""];

/// An arena has no effect without huge pages, and wastes memory if its size does not match its
/// contents.
pub(super) fn arena(view: &DeploymentView<'_>, out: &mut Findings) {
    for member in &view.member {
        let switch = member.process.var("MC_DISABLE_MMAP_ARENA");
        let word = switch.map(|located| located.text.trim().to_ascii_lowercase());
        if let (Some(located), Some(word)) = (switch, &word)
            && !ON.contains(&word.as_str())
            && !OFF.contains(&word.as_str())
        {
            out.warning(
                &located.place,
                format!("the arena stays on: MC_DISABLE_MMAP_ARENA={} is parsed as false", located.text),
                format!("true values are {}", ON.join(", ")),
                "set MC_DISABLE_MMAP_ARENA=1",
            );
        }
        let Some(located) = member.process.var("MC_MMAP_ARENA_POOL_SIZE").filter(|s| !s.text.trim().is_empty()) else {
            continue;
        };
        if word.is_some_and(|word| ON.contains(&word.as_str())) {
            out.info(
                &located.place,
                "MC_MMAP_ARENA_POOL_SIZE has no effect: the arena is off",
                format!("MC_DISABLE_MMAP_ARENA={}", switch.map_or("", |located| located.text.as_str())),
                "remove one of them",
            );
            continue;
        }
        if member.huge_pages() == Some(false) {
            out.warning(
                &located.place,
                "MC_MMAP_ARENA_POOL_SIZE has no effect: an arena requires huge pages",
                "MC_STORE_USE_HUGEPAGE is not set",
                "set MC_STORE_USE_HUGEPAGE=1 and reserve the pages, or remove the arena",
            );
            continue;
        }
        let (Ok(arena), Some((segment, _)), Some(ranks)) =
            (size_text::arena(&located.text), member.segment(), ranks(member))
        else {
            continue;
        };
        if !member.process.role.is_sglang() || arena == 0 {
            continue;
        }
        let wanted = (segment / ranks.max(1)).saturating_add(16 * ByteSize::MIB);
        let fits = wanted.checked_next_multiple_of(2 << 20).unwrap_or(wanted);
        if arena < fits {
            out.warning(
                &located.place,
                "the arena is too small for a rank's segment: its pages are wasted, and the segment is allocated outside the arena",
                format!("{}; {} needed (a rank's segment and local buffer)", ByteSize(arena), ByteSize(fits)),
                "remove MC_MMAP_ARENA_POOL_SIZE: an arena provides no benefit for two allocations",
            );
        } else if arena > fits.saturating_mul(2) {
            out.warning(
                &located.place,
                "most of the arena is never used: it holds a rank's segment and local buffer, but not the L2 pool",
                format!("{}; {} needed per rank", ByteSize(arena), ByteSize(fits)),
                "remove MC_MMAP_ARENA_POOL_SIZE: the unused part stays allocated until the process exits",
            );
        }
    }
}

/// A container's huge pages: whether it may use any, and whether they suffice. (`manifest` checks
/// the syntax of the request.)
pub(super) fn huge_page_resources(view: &DeploymentView<'_>, out: &mut Findings) {
    for member in view.member.iter().filter(|member| member.process.runtime == RuntimeKind::Kubernetes) {
        let limits = &member.process.limits;
        let asked: Vec<_> = limits.resources.iter().filter(|(name, _)| name.starts_with("hugepages-")).collect();
        let on = member.huge_pages() == Some(true);
        let Some(switch) =
            member.process.raw_var("MC_STORE_USE_HUGEPAGE").filter(|_| on && member.process.role.is_client())
        else {
            continue;
        };
        let granted: Option<u64> = asked
            .iter()
            .map(|(_, r)| r.limit.as_ref().and_then(|l| quantity::kubernetes(&l.text)))
            .try_fold(0u64, |sum, bytes| sum.checked_add(bytes?));
        let needed = huge_bytes(member);
        if asked.is_empty() && limits.privileged.is_none() {
            out.error(
                &switch.place,
                format!("{} cannot start: huge pages are on, but its container has none", member.process.describe()),
                "MC_STORE_USE_HUGEPAGE is set, and the container has no limit hugepages-2Mi or hugepages-1Gi",
                match needed {
                    Some(bytes) => {
                        format!("add hugepages-2Mi: {}Gi to requests and limits", bytes.div_ceil(ByteSize::GIB))
                    }
                    None => {
                        "add hugepages-2Mi to requests and limits; mcctl size-hugepages computes the amount".to_owned()
                    }
                },
            );
        } else if let (Some(granted), Some(needed), Some((name, resource))) = (granted, needed, asked.first())
            && granted < needed
            && let Some(located) = &resource.limit
        {
            out.error(
                &located.place,
                format!("{} cannot start: it needs more huge pages than its container has", member.process.describe()),
                format!("{name} is {}; at least {} needed", located.text, ByteSize(needed)),
                format!("set {name} to {}Gi", needed.div_ceil(ByteSize::GIB)),
            );
        }
    }
}

/// A lower bound on a client's allocations in huge pages, in bytes.
fn huge_bytes(member: &ProcessView<'_>) -> Option<u64> {
    let (segment, _) = member.segment()?;
    match member.process.role {
        ProcessRole::Store => segment.checked_add(member.local_buffer()?),
        ProcessRole::Sglang(_) => {
            let l2 = member.value(&["hicache_size"]).and_then(|located| located.text.parse::<u64>().ok()).unwrap_or(0);
            let rank = l2.checked_mul(1_000_000_000)?.checked_add(16 * ByteSize::MIB)?;
            rank.checked_add(segment / member.ranks()?.max(1))?.checked_mul(member.ranks_per_host()?)
        }
        _ => None,
    }
}
