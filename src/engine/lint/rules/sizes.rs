//! Sizes: what each program reads, what is too small, huge pages.

use crate::engine::base::ByteSize;
use crate::engine::lint::quantity;
use crate::engine::lint::rules::{Findings, View};
use crate::engine::lint::scene::{Habitat, Make, Role, Said};
use crate::engine::lint::settings::{Seen, Setting};
use crate::engine::plan::PlanError;
use crate::engine::plan::client::PLAIN_SEGMENT_BYTES_MIN;
use crate::engine::plan::size_text;

/// Sizes in a grammar that their reader does not have.
pub fn grammar(view: &View<'_>, out: &mut Findings) {
    for seen in &view.seen {
        let process = seen.process;
        for key in ["global_segment_size", "local_buffer_size"] {
            let Setting::Is(said) = seen.client(key) else { continue };
            match (process.role, process.make) {
                // SGLang does not read local_buffer_size at all.
                (Role::Sglang(_), _) if key == "local_buffer_size" => {}
                (Role::Sglang(_), _) => {
                    if let Err(error) = size_text::sglang_segment(&said.text) {
                        wrong(out, key, &said, &error, whole_gb(&said.text));
                    }
                }
                (Role::Store | Role::RealClient, Make::Upstream) => {
                    if let Err(error) = size_text::store(&said.text) {
                        wrong(out, key, &said, &error, store_spelling(&said.text));
                    }
                }
                (Role::Environment, _) => {
                    let (sglang, store) = (size_text::sglang_segment(&said.text), size_text::store(&said.text));
                    if let (Err(_), Err(error)) = (&sglang, &store) {
                        wrong(out, key, &said, error, whole_gb(&said.text));
                    }
                }
                _ => {}
            }
        }
        if let Some(said) = seen.value(&["hicache_size"])
            && let Err(error) = size_text::hicache_gb(&said.text)
        {
            let gb = said.text.trim().to_ascii_lowercase();
            let digits = gb.trim_end_matches(|c: char| c.is_ascii_alphabetic());
            let remedy = match digits.parse::<u64>() {
                Ok(n) => format!("write --hicache-size {n}"),
                Err(_) => "write a whole number of decimal GB".to_owned(),
            };
            wrong(out, "--hicache-size", said, &error, remedy);
        }
        for name in ["MC_MMAP_ARENA_POOL_SIZE"] {
            if let Some(said) = process.var(name).filter(|said| !said.text.trim().is_empty())
                && size_text::arena(&said.text).is_err()
                && said.text.trim() != "infinite"
            {
                out.warning(
                    &said.place,
                    format!("{name} cannot be read as '{}', and the store takes an arena of 8 GiB", said.text),
                    "it is a number with b, kb, mb, gb or tb (powers of 1024)",
                    format!("write {name}={}", store_text(&said.text).unwrap_or_else(|| "8gb".to_owned())),
                );
            }
        }
    }
}

fn wrong(out: &mut Findings, what: &str, said: &Said, error: &PlanError, remedy: String) {
    let reader = match error {
        PlanError::NotASize { reader, .. } => {
            format!("{reader} cannot read {what} '{}', and the process ends", said.text)
        }
        _ => format!("{what} '{}' is too large", said.text),
    };
    out.error(&said.place, reader, error.to_string(), remedy);
}

/// The same size as the store service reads it.
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
        .map_or_else(|| "write a number with mb or gb, e.g. 16gb".to_owned(), |text| format!("write {text}"))
}

/// The same size as SGLang reads it.
fn whole_gb(text: &str) -> String {
    let bytes = text.parse::<ByteSize>().ok().map(|size| size.0).or_else(|| quantity::kubernetes(text));
    match bytes {
        Some(n) if n.is_multiple_of(ByteSize::GIB) => format!("write {}gb", n / ByteSize::GIB),
        Some(n) => format!("write {n}, in bytes"),
        None => "write a whole number with gb, e.g. 16gb".to_owned(),
    }
}

/// Ranks that a server often has.
const RANKS_USUAL: u64 = 8;

/// A rank's part of the segment below the smallest that can be mounted.
pub fn rank_segment(view: &View<'_>, out: &mut Findings) {
    for seen in &view.seen {
        ranks_elsewhere(seen, out);
    }
    for seen in view.clients() {
        // Huge pages round a small segment up; whether a shell has them is not known.
        let huge = seen.huge_pages();
        if huge == Some(true) {
            continue;
        }
        let (Some((bytes, place)), Some(ranks)) = (seen.segment(), ranks(seen)) else { continue };
        let part = bytes / ranks.max(1);
        if part == 0 || part >= PLAIN_SEGMENT_BYTES_MIN {
            continue;
        }
        let least = PLAIN_SEGMENT_BYTES_MIN.saturating_mul(ranks).div_ceil(ByteSize::GIB).max(1);
        let evidence = match ranks {
            1 => format!("it lends {}, and a segment has at least 16 MiB", ByteSize(bytes)),
            n => format!(
                "{} over {n} ranks is {} each, and a segment has at least 16 MiB",
                ByteSize(bytes),
                ByteSize(part)
            ),
        };
        let what = format!("{} cannot start: its segment is too small to be mounted (-600)", seen.process.called());
        let remedy = format!("lend {least}gb or more, or 0 to lend nothing");
        match huge {
            Some(_) => out.error(&place, what, evidence, remedy),
            None => out.warning(&place, what, format!("{evidence}, but on huge pages"), remedy),
        }
    }
}

/// Settings of SGLang without its command line: how many ranks divide the segment is not known, and it may be one.
fn ranks_elsewhere(seen: &Seen<'_>, out: &mut Findings) {
    let is_of_sglang = seen.process.role.is_sglang() || seen.process.role == Role::Environment;
    if !is_of_sglang || seen.process.args_whole || seen.huge_pages() == Some(true) {
        return;
    }
    let Setting::Is(said) = seen.client("global_segment_size") else { return };
    let Ok(bytes) = size_text::sglang_segment(&said.text) else { return };
    let evidence =
        format!("{}; SGLang divides it by its ranks (tp), and each part has at least 16 MiB", ByteSize(bytes));
    if bytes > 0 && bytes < PLAIN_SEGMENT_BYTES_MIN {
        out.warning(
            &said.place,
            "the segment is too small to be mounted: SGLang and the store service end with -600",
            evidence,
            "lend 1gb or more, or 0 to lend nothing",
        );
    } else if bytes > 0 && bytes < RANKS_USUAL * PLAIN_SEGMENT_BYTES_MIN {
        let most = bytes / PLAIN_SEGMENT_BYTES_MIN;
        out.info(
            &said.place,
            format!("the segment is enough for {most} rank{} of SGLang only", if most == 1 { "" } else { "s" }),
            evidence,
            "lend 1gb or more, or 0 to lend nothing",
        );
    }
}

fn ranks(seen: &Seen<'_>) -> Option<u64> {
    if seen.process.role.is_sglang() { seen.ranks() } else { Some(1) }
}

/// What switches huge pages on, and what only looks so.
pub fn huge_page_switch(view: &View<'_>, out: &mut Findings) {
    for seen in &view.seen {
        let process = seen.process;
        if let Some(said) = process.var("MC_STORE_USE_HUGEPAGE") {
            let word = said.text.trim().to_ascii_lowercase();
            if matches!(word.as_str(), "0" | "false" | "no" | "off" | "") {
                out.warning(
                    &said.place,
                    "huge pages are on: MC_STORE_USE_HUGEPAGE counts by being set, whatever to",
                    format!("MC_STORE_USE_HUGEPAGE={}", said.text),
                    "unset MC_STORE_USE_HUGEPAGE, or set it to 1",
                );
            }
        }
        if let Some(said) = process.var("MC_STORE_HUGEPAGE_SIZE")
            && size_text::huge_page(&said.text).is_err()
        {
            out.warning(
                &said.place,
                format!(
                    "MC_STORE_HUGEPAGE_SIZE={} is not a size of huge pages, and the store takes 2 MiB ones",
                    said.text
                ),
                "there are pages of 2MB and of 1GB",
                "write MC_STORE_HUGEPAGE_SIZE=2MB or 1GB",
            );
        }
    }
}

/// What the store's client reads as true and as false.
const ON: &[&str] = &["1", "true", "yes", "on"];
const OFF: &[&str] = &["0", "false", "no", "off", ""];

/// An arena does nothing without huge pages, and costs when it is of another size than what goes into it.
pub fn arena(view: &View<'_>, out: &mut Findings) {
    for seen in &view.seen {
        let switch = seen.process.var("MC_DISABLE_MMAP_ARENA");
        let word = switch.map(|said| said.text.trim().to_ascii_lowercase());
        if let (Some(said), Some(word)) = (switch, &word)
            && !ON.contains(&word.as_str())
            && !OFF.contains(&word.as_str())
        {
            out.warning(
                &said.place,
                format!("the arena stays on: MC_DISABLE_MMAP_ARENA={} counts as off", said.text),
                format!("it is on with {}", ON.join(", ")),
                "write MC_DISABLE_MMAP_ARENA=1",
            );
        }
        let Some(said) = seen.process.var("MC_MMAP_ARENA_POOL_SIZE").filter(|s| !s.text.trim().is_empty()) else {
            continue;
        };
        if word.is_some_and(|word| ON.contains(&word.as_str())) {
            out.info(
                &said.place,
                "MC_MMAP_ARENA_POOL_SIZE has no effect: the arena is off",
                format!("MC_DISABLE_MMAP_ARENA={}", switch.map_or("", |said| said.text.as_str())),
                "remove one of them",
            );
            continue;
        }
        if seen.huge_pages() == Some(false) {
            out.warning(
                &said.place,
                "MC_MMAP_ARENA_POOL_SIZE does nothing: there is an arena only with huge pages",
                "MC_STORE_USE_HUGEPAGE is not set",
                "set MC_STORE_USE_HUGEPAGE=1 and reserve the pages, or take the arena away",
            );
            continue;
        }
        let (Ok(arena), Some((segment, _)), Some(ranks)) = (size_text::arena(&said.text), seen.segment(), ranks(seen))
        else {
            continue;
        };
        if !seen.process.role.is_sglang() || arena == 0 {
            continue;
        }
        let wanted = (segment / ranks.max(1)).saturating_add(16 * ByteSize::MIB);
        let fits = wanted.checked_next_multiple_of(2 << 20).unwrap_or(wanted);
        if arena < fits {
            out.warning(
                &said.place,
                "the arena is too small for a rank's segment: its pages are taken, and the segment's again beside it",
                format!("{} for {} (segment and local buffer of a rank)", ByteSize(arena), ByteSize(fits)),
                "take MC_MMAP_ARENA_POOL_SIZE away: it brings nothing for two allocations",
            );
        } else if arena > fits.saturating_mul(2) {
            out.warning(
                &said.place,
                "most of the arena is never used: it holds a rank's segment and local buffer, and never the L2 pool",
                format!("{} for {} per rank", ByteSize(arena), ByteSize(fits)),
                "take MC_MMAP_ARENA_POOL_SIZE away: the rest of it is lost until the process ends",
            );
        }
    }
}

/// Huge pages of a container: whether it may take any, and enough. (That they are asked for rightly is `manifest`'s.)
pub fn huge_page_resources(view: &View<'_>, out: &mut Findings) {
    for seen in view.seen.iter().filter(|seen| seen.process.habitat == Habitat::Kubernetes) {
        let limits = &seen.process.limits;
        let asked: Vec<_> = limits.resources.iter().filter(|(name, _)| name.starts_with("hugepages-")).collect();
        let on = seen.huge_pages() == Some(true);
        let Some(switch) =
            seen.process.raw_var("MC_STORE_USE_HUGEPAGE").filter(|_| on && seen.process.role.is_client())
        else {
            continue;
        };
        let granted: Option<u64> = asked
            .iter()
            .map(|(_, r)| r.limit.as_ref().and_then(|l| quantity::kubernetes(&l.text)))
            .try_fold(0u64, |sum, bytes| sum.checked_add(bytes?));
        let needed = huge_bytes(seen);
        if asked.is_empty() && limits.privileged.is_none() {
            out.error(
                &switch.place,
                format!("{} cannot start: huge pages are on, and its container may take none", seen.process.called()),
                "MC_STORE_USE_HUGEPAGE is set, and there is no limit hugepages-2Mi or hugepages-1Gi",
                match needed {
                    Some(bytes) => {
                        format!("add hugepages-2Mi: {}Gi to requests and limits", bytes.div_ceil(ByteSize::GIB))
                    }
                    None => "add hugepages-2Mi to requests and limits; mcctl size-hugepages tells how much".to_owned(),
                },
            );
        } else if let (Some(granted), Some(needed), Some((name, resource))) = (granted, needed, asked.first())
            && granted < needed
            && let Some(said) = &resource.limit
        {
            out.error(
                &said.place,
                format!("{} cannot start: its huge pages do not hold what it allocates in them", seen.process.called()),
                format!("{name} {}; it takes at least {}", said.text, ByteSize(needed)),
                format!("write {name}: {}Gi", needed.div_ceil(ByteSize::GIB)),
            );
        }
    }
}

/// What a client takes in huge pages, at least.
fn huge_bytes(seen: &Seen<'_>) -> Option<u64> {
    let (segment, _) = seen.segment()?;
    match seen.process.role {
        Role::Store => {
            let buffer = match seen.client("local_buffer_size") {
                Setting::Is(said) => seen.size(&said.text)?,
                Setting::Unset => ByteSize::GIB,
                Setting::Unknown => return None,
            };
            segment.checked_add(buffer)
        }
        Role::Sglang(_) => {
            let l2 = seen.value(&["hicache_size"]).and_then(|said| said.text.parse::<u64>().ok()).unwrap_or(0);
            let rank = l2.checked_mul(1_000_000_000)?.checked_add(16 * ByteSize::MIB)?;
            rank.checked_add(segment / seen.ranks()?.max(1))?.checked_mul(seen.ranks_here()?)
        }
        _ => None,
    }
}
