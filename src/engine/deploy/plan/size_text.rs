//! The size grammars of the programs that read sizes. The grammars differ, so the same string may
//! have several meanings or be invalid.

use crate::plan::SizingError;
use crate::plan::python_text::{self, PythonInt};
use mcctl_base::ByteSize;

/// Above this value SGLang's own arithmetic (`host_size * 1e9` as a double) is inexact.
const HICACHE_GB_MAX: i128 = 9_000_000;
/// Maximum segment size, in bytes: the address space.
const BYTES_MAX: i128 = 1 << 57;

/// `--hicache-size`: a whole number of decimal GB (10^9 bytes) per rank. With 0, SGLang uses the
/// ratio instead.
///
/// Source: `sglang/srt/arg_groups/fields/memory.py` (type int), `mem_cache/pool_host/base.py`
/// (`host_size * 1e9`).
///
/// # Errors
/// SGLang rejects the string, or the size is out of range.
pub fn hicache_gb(text: &str) -> Result<u64, SizingError> {
    let what = "--hicache-size";
    match python_text::int(text) {
        PythonInt::Value(n) if (0..=HICACHE_GB_MAX).contains(&n) => whole(n, what),
        PythonInt::Value(n) if n > 0 => Err(SizingError::TooLarge { what }),
        PythonInt::TooLarge => Err(SizingError::TooLarge { what }),
        _ => Err(SizingError::NotASize {
            text: text.to_owned(),
            reader: "SGLang's --hicache-size",
            grammar: "a whole number of decimal GB (10^9 bytes) per rank, without a unit, e.g. 64",
        }),
    }
}

/// `MOONCAKE_GLOBAL_SEGMENT_SIZE` and SGLang's `global_segment_size`: a whole number with a `gb`
/// suffix (1024^3 bytes), or a byte count.
///
/// Source: `sglang/srt/mem_cache/storage/mooncake_store/mooncake_store.py`,
/// `_parse_global_segment_size`. SGLang also accepts negative numbers; this function does not.
///
/// # Errors
/// SGLang rejects the string, or the size is negative or out of range.
pub fn sglang_segment(text: &str) -> Result<u64, SizingError> {
    let what = "the global segment size";
    let lower = python_text::strip(text).to_lowercase();
    let (number, unit) = match lower.strip_suffix("gb") {
        Some(number) => (number, 1 << 30),
        None => (lower.as_str(), 1),
    };
    match python_text::int(number) {
        PythonInt::Value(n) if n >= 0 => {
            let bytes = n.checked_mul(unit).filter(|bytes| *bytes <= BYTES_MAX);
            whole(bytes.ok_or(SizingError::TooLarge { what })?, what)
        }
        PythonInt::TooLarge => Err(SizingError::TooLarge { what }),
        _ => Err(SizingError::NotASize {
            text: text.to_owned(),
            reader: "SGLang's segment size",
            grammar: "a whole number with a gb suffix (1024^3 bytes), e.g. 16gb, or a whole number of bytes",
        }),
    }
}

/// `MC_MMAP_ARENA_POOL_SIZE`: a number with the suffix B, K, KB, M, MB, G, GB, T or TB (powers of
/// 1024, case-insensitive), rounded up to a multiple of 2 MiB. Here 0 means no arena. (For 0, the
/// store uses 8 GiB and logs a warning.)
///
/// Source: `mooncake/mooncake-store/src/utils.cpp`.
///
/// # Errors
/// The store rejects the string, and uses 8 GiB instead.
pub fn arena(text: &str) -> Result<u64, SizingError> {
    let bytes = store(text).map_err(|_| SizingError::NotASize {
        text: text.to_owned(),
        reader: "the store's arena",
        grammar: "a number with a b, kb, mb, gb or tb suffix (powers of 1024), e.g. 8gb; otherwise the store uses 8 GiB",
    })?;
    bytes.checked_next_multiple_of(2 << 20).ok_or(SizingError::TooLarge { what: "the arena size" })
}

/// Sizes for a standalone store service: same as [`arena`], but without rounding.
///
/// # Errors
/// The service rejects the string.
pub fn store(text: &str) -> Result<u64, SizingError> {
    let bad = || SizingError::NotASize {
        text: text.to_owned(),
        reader: "the store",
        grammar: "a number with a b, kb, mb, gb or tb suffix (powers of 1024), e.g. 1.5gb",
    };
    // `ByteSize` accepts the store's units and Kubernetes' units; the store rejects Kubernetes'
    // units.
    if text.contains(['i', 'I']) {
        return Err(bad());
    }
    let ByteSize(bytes) = text.parse().map_err(|_| bad())?;
    if i128::from(bytes) > BYTES_MAX { Err(SizingError::TooLarge { what: "the size" }) } else { Ok(bytes) }
}

/// `MC_STORE_HUGEPAGE_SIZE`: any string that denotes 2 MiB or 1 GiB.
///
/// Source: `mooncake/mooncake-store/include/utils.h`.
///
/// # Errors
/// The size is neither; the store then uses 2 MiB pages.
pub fn huge_page(text: &str) -> Result<u64, SizingError> {
    store(text).ok().filter(|bytes| matches!(bytes, 0x20_0000 | 0x4000_0000)).ok_or_else(|| SizingError::NotASize {
        text: text.to_owned(),
        reader: "the store's huge page size",
        grammar: "2MB or 1GB; otherwise the store uses 2 MiB pages",
    })
}

fn whole(n: i128, what: &'static str) -> Result<u64, SizingError> {
    u64::try_from(n).map_err(|_| SizingError::TooLarge { what })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn huge_pages_have_two_sizes() {
        assert_eq!((huge_page("2MB"), huge_page("1g"), huge_page("2097152")), (Ok(2 << 20), Ok(1 << 30), Ok(2 << 20)));
        for bad in ["4MB", "2MiB", "", "big"] {
            assert!(huge_page(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn hicache_size_is_a_whole_number_of_decimal_gb() {
        assert_eq!((hicache_gb("64"), hicache_gb(" 1_0 "), hicache_gb("0")), (Ok(64), Ok(10), Ok(0)));
        for bad in ["64gb", "1.5", "", "-1", "1e3"] {
            assert!(matches!(hicache_gb(bad), Err(SizingError::NotASize { .. })), "{bad}");
        }
        assert_eq!(hicache_gb("9000001"), Err(SizingError::TooLarge { what: "--hicache-size" }));
        assert_eq!(hicache_gb(&"9".repeat(80)), Err(SizingError::TooLarge { what: "--hicache-size" }));
    }

    #[test]
    fn an_sglang_segment_is_in_whole_gb_or_bytes() {
        for (text, bytes) in [("16gb", 16 << 30), ("16GB", 16 << 30), (" 16 gb ", 16 << 30), ("4_294", 4294), ("0", 0)]
        {
            assert_eq!(sglang_segment(text), Ok(bytes), "{text}");
        }
        for bad in ["16g", "16gib", "16mb", "1.5gb", "1e9", "", "-1gb", "gb"] {
            assert!(matches!(sglang_segment(bad), Err(SizingError::NotASize { .. })), "{bad}");
        }
        assert!(matches!(sglang_segment("999999999999999gb"), Err(SizingError::TooLarge { .. })));
    }

    #[test]
    fn an_arena_is_rounded_up_to_2_mib_and_a_store_size_is_not() {
        assert_eq!((arena("33mb"), arena("0"), arena("1.5 GB")), (Ok(34 << 20), Ok(0), Ok(3 << 29)));
        assert_eq!((store("33mb"), store("4096")), (Ok(33 << 20), Ok(4096)));
        for bad in ["8gib", "8Gi", "x", "", "-1"] {
            assert!(arena(bad).is_err() && store(bad).is_err(), "{bad}");
        }
    }
}
