//! Failures of a node's memory, as messages.

use crate::commands::cli::error::Failure;
use crate::commands::cli::origin::NodeOrigins;
use crate::engine::base::ByteSize;
use crate::engine::store::NodeConfig;
use crate::engine::store::service::MemoryShortage;
use crate::engine::sys::host;
use crate::engine::sys::pages::MemoryError;
use crate::engine::sys::reserve::leaves_enough;

/// The failure for a node that needs more memory than its host has.
pub fn shortage(origins: &NodeOrigins, shortage: &MemoryShortage) -> Failure {
    let MemoryShortage { needed, total } = shortage;
    Failure::host(shortage.to_string())
        .tried(format!("{}, {}", origins.segment, origins.local_buffer))
        .found("MemTotal in /proc/meminfo".to_owned())
        .next(match (needed.segment, needed.local_buffer) {
            (_, buffer) if buffer > *total => "lower --local-buffer-size",
            (segment, buffer) if buffer.0 == 0 || segment > *total => "lower --segment-size",
            _ => "lower --segment-size or --local-buffer-size",
        })
}

/// A memory block that a node allocates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemoryBlock {
    Segment,
    LocalBuffer,
}

impl MemoryBlock {
    /// The flag that sets the block's size.
    fn flag(self) -> &'static str {
        match self {
            MemoryBlock::Segment => "--segment-size",
            MemoryBlock::LocalBuffer => "--local-buffer-size",
        }
    }
}

/// The failure for a node with `config` that could not allocate `block`.
pub fn allocation(config: &NodeConfig, origins: &NodeOrigins, error: &MemoryError, block: MemoryBlock) -> Failure {
    let flag = block.flag();
    let segment_bytes = config.segment_bytes;
    let buffer_bytes = config.client.local_buffer_bytes;
    let failure = match error {
        MemoryError::Empty | MemoryError::SegmentTooSmall { .. } | MemoryError::TooLarge { .. } => {
            Failure::usage(error.to_string()).next(format!("change {flag}"))
        }
        MemoryError::LargerThanHost { .. } => Failure::host(error.to_string()).next(format!("lower {flag}")),
        MemoryError::NoSuchPage { page, path, .. } => {
            Failure::host(format!("this kernel does not support {} huge pages", ByteSize(page.bytes())))
                .found(format!("{} does not exist", path.display()))
                .next("change MC_STORE_HUGEPAGE_SIZE, or unset MC_STORE_USE_HUGEPAGE")
        }
        MemoryError::NotEnoughHugePages { page, available, total, .. } => {
            let pages = |size: ByteSize| size.0.div_ceil(page.bytes());
            let buffer = pages(buffer_bytes);
            let segment = pages(segment_bytes);
            // The buffer is allocated first. If the segment does not fit, the buffer already has
            // its pages.
            let free = if block == MemoryBlock::Segment { available + buffer } else { *available };
            let needed = buffer + segment;
            let missing = needed.saturating_sub(free);
            let file = format!("/sys/kernel/mm/hugepages/hugepages-{}kB/nr_hugepages", page.bytes() >> 10);
            let purpose = match (segment, buffer) {
                (_, 0) => "for the segment".to_owned(),
                (0, _) => "for the local buffer".to_owned(),
                _ => format!("({segment} for the segment, {buffer} for the local buffer)"),
            };
            Failure::host(format!("needs {needed} {} huge pages {purpose}; {free} available", ByteSize(page.bytes())))
                .found(error.to_string())
                .next(match host::memory().filter(|memory| !leaves_enough(missing.saturating_mul(page.bytes()), 0, memory.available)) {
                    Some(memory) => format!(
                        "lower {flag}: only {} of memory are available for the missing pages; or unset MC_STORE_USE_HUGEPAGE",
                        ByteSize(memory.available)
                    ),
                    None => format!(
                        "reserve the pages (echo {} > {file}), or unset MC_STORE_USE_HUGEPAGE",
                        total + missing
                    ),
                })
        }
        MemoryError::Refused { .. } => {
            let cause = std::error::Error::source(error).map(ToString::to_string).unwrap_or_default();
            Failure::host(error.to_string()).found(cause).next(format!("lower {flag}, or raise this process's limits"))
        }
    };
    failure.tried(match block {
        MemoryBlock::Segment if buffer_bytes.0 == 0 => origins.segment.to_string(),
        MemoryBlock::LocalBuffer if segment_bytes.0 == 0 => origins.local_buffer.to_string(),
        _ => format!("{}, {}", origins.segment, origins.local_buffer),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::cli::origin::ClientOrigins;
    use crate::commands::cli::origin::ValueOrigin;
    use crate::commands::failure::node as node_failure;
    use crate::engine::base::HostPort;
    use crate::engine::store::{ClientConfig, StoreStartError};
    use crate::engine::sys::pages::HugePage;

    fn config(segment: u64, local_buffer: u64) -> NodeConfig {
        let mut client = ClientConfig::new(HostPort::new("127.0.0.1", 1));
        client.local_buffer_bytes = ByteSize(local_buffer);
        NodeConfig { client, segment_bytes: ByteSize(segment) }
    }

    fn failure(config: &NodeConfig, error: StoreStartError) -> Failure {
        let client = ClientOrigins { master: ValueOrigin::Default, transport: ValueOrigin::Default };
        let flag = |name: &str| ValueOrigin::Flag(name.to_owned());
        let origins =
            NodeOrigins { client, segment: flag("--global-segment-size"), local_buffer: flag("--local-buffer-size") };
        node_failure::node(config, &origins, error)
    }

    #[test]
    fn huge_pages_are_counted_for_segment_and_buffer_together() {
        let short = |wanted, available, total| MemoryError::NotEnoughHugePages {
            page: HugePage::Mib2,
            wanted,
            available,
            total,
            free: available,
            reserved: 0,
        };
        let config = config(64 << 20, 5 << 20);
        let file = "/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages";
        // Ten pages, of which two are free: the buffer's three do not fit.
        let found = failure(&config, StoreStartError::LocalBuffer(short(3, 2, 10)));
        assert!(
            ["35 2 MiB huge pages", "32 for", "3 for", "2 available"].iter().all(|part| found.what.contains(part)),
            "{found}"
        );
        assert_eq!(found.exit, crate::commands::cli::error::Exit::Host);
        assert!(found.next.is_some_and(|next| next.contains(&format!("echo 43 > {file}"))));
        // Ten free pages: the buffer has already allocated its three.
        let found = failure(&config, StoreStartError::Segment(short(32, 7, 10)));
        assert!(found.what.ends_with("10 available"), "{found}");
        assert!(found.next.is_some_and(|next| next.contains("echo 35 >")));
        // More than this host has: no command reserves it.
        let found = failure(&self::config(1 << 50, 0), StoreStartError::Segment(short(1 << 29, 0, 0)));
        let next = found.next.expect("a remedy");
        assert!(next.starts_with("lower --segment-size: only ") && !next.contains("echo"), "{next}");
    }

    #[test]
    fn the_fix_names_the_flag_of_the_block_that_does_not_fit() {
        let large = || MemoryError::LargerThanHost { wanted: 9, total: 8, limit: "a test" };
        let next = |error| failure(&config(1, 9), error).next.expect("a hint");
        assert!(next(StoreStartError::LocalBuffer(large())).contains("--local-buffer-size"));
        assert!(next(StoreStartError::Segment(large())).contains("--segment-size"));
    }
}
