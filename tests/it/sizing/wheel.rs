//! Compares the huge pages that the real wheel uses with the computed ones, for every layout of one
//! rank.

use std::fs;

use mcctl::engine::plan::client::{ClientSizes, LOCAL_BUFFER_BYTES, MIB2, client};

use super::{POOL, REAL_POOL, RealPool, is_root};
use crate::peer::cluster::{Make, Master};
use crate::peer::wheel::wheel;

const MIB: u64 = 1 << 20;
/// A buffer of 16 pages plus one byte.
const L2: u64 = 33 * MIB + 1;
/// Enough for the largest layout, but too few for an arena of 1 GiB.
const PAGES: u64 = 160;

#[test]
#[ignore = "needs the Mooncake wheel, root and an empty pool of 2 MiB huge pages"]
fn the_wheel_uses_exactly_the_computed_pages() {
    let _alone = POOL.write().unwrap_or_else(|poisoned| poisoned.into_inner());
    let pool = fs::read_to_string(REAL_POOL).ok().and_then(|text| text.trim().parse::<u64>().ok());
    assert!(
        is_root() && pool == Some(0),
        "needs root and an empty pool of 2 MiB huge pages: root {}, pool {pool:?}",
        is_root()
    );
    let _restore = RealPool(0);
    fs::write(REAL_POOL, PAGES.to_string()).unwrap();
    let granted = fs::read_to_string(REAL_POOL).unwrap();
    assert_eq!(granted.trim(), PAGES.to_string(), "the kernel cannot provide the huge pages");
    let folder = tempfile::tempdir().unwrap();
    let master = Master::start(Make::Ours, folder.path(), &[]);
    // The arena in the environment, whether it is disabled, its effective size, and the segment.
    for (arena, disabled, counts, segment) in [
        ("", false, 0, 33 * MIB),
        ("64mb", false, 64 * MIB, 33 * MIB),
        ("32mb", false, 32 * MIB, 33 * MIB),
        ("64mb", true, 0, 33 * MIB),
        ("1gb", false, 0, 33 * MIB),
        ("33mb", false, 34 * MIB, 16 * MIB),
        ("", false, 0, 0),
        ("", false, 0, MIB),
    ] {
        let wish = ClientSizes {
            segment,
            local_buffer: LOCAL_BUFFER_BYTES,
            arena: counts,
            page: MIB2,
            default_page: MIB2,
            nic_nodes: 0,
        };
        let predicted = client(&wish).unwrap().pages.mib2;
        let mut worker = wheel().script("hugepage_worker.py");
        worker.args([master.address(), L2.to_string(), segment.to_string()]);
        worker.env("MC_STORE_USE_HUGEPAGE", "1");
        if !arena.is_empty() {
            worker.env("MC_MMAP_ARENA_POOL_SIZE", arena);
        }
        if disabled {
            worker.env("MC_DISABLE_MMAP_ARENA", "yes");
        }
        let out = worker.output().unwrap();
        let text = String::from_utf8_lossy(&out.stdout);
        let line = text.lines().find_map(|line| line.strip_prefix('@'));
        let found: serde_json::Value = serde_json::from_str(line.unwrap_or_else(|| panic!("{out:?}"))).unwrap();
        let expected = serde_json::json!({
            "before": PAGES, "l2": L2.div_ceil(MIB2), "client": predicted, "rc": 0, "ok": true
        });
        assert_eq!(found, expected, "arena {arena:?}, disabled {disabled}, segment {segment}");
    }
}
