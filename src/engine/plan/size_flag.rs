//! The size flags of `mcctl size-hugepages`. A bare number has the meaning of the program that reads the setting. A number with a unit
//! is read as upstream's sizing script reads it, in powers of 1024, and converted to a text that the program accepts.

use crate::engine::plan::{PlanError, size_text, upstream};

/// Bytes of SGLang's GB.
const GB: u64 = 1_000_000_000;
/// The most bytes of a size: what an address space holds.
const BYTES_MAX: u128 = 1 << 57;

/// A size flag, and the setting that takes its place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SizeFlag {
    /// The flag, with its dashes.
    pub flag: &'static str,
    /// The text after it.
    pub given: String,
    /// Bytes that the text stands for.
    pub asked_bytes: u64,
    /// The text that the program accepts.
    pub setting: String,
    /// Bytes that the program makes of it.
    pub used_bytes: u64,
}

impl SizeFlag {
    /// Bytes that the program allocates beyond those asked for; negative where it allocates fewer.
    pub fn difference(&self) -> i64 {
        // Both are below 2^57.
        self.used_bytes.cast_signed() - self.asked_bytes.cast_signed()
    }
}

/// SGLang's `--hicache-size`: bare, a whole number of GB (10^9 bytes). A number with a unit becomes the whole GB below it.
///
/// # Errors
/// The text is neither, or what it stands for is less than 1 GB or beyond any address space. A bare 0 is accepted.
pub fn hicache(given: &str) -> Result<(u64, SizeFlag), PlanError> {
    let flag = "--hicache-size";
    let (gb, asked_bytes) = if has_unit(given) {
        let bytes = scripted(flag, given, "64 for 64 GB (10^9 bytes each)")?;
        if bytes < GB {
            return Err(PlanError::BelowOneGb { given: given.to_owned() });
        }
        (bytes / GB, bytes)
    } else {
        let gb = size_text::hicache_gb(given)?;
        (gb, gb.saturating_mul(GB))
    };
    let used_bytes = gb.saturating_mul(GB);
    Ok((gb, SizeFlag { flag, given: given.to_owned(), asked_bytes, setting: gb.to_string(), used_bytes }))
}

/// SGLang's `MOONCAKE_GLOBAL_SEGMENT_SIZE`: bare, bytes. SGLang accepts `gb` alone as a unit; any other becomes bytes.
///
/// # Errors
/// The text is not a size, or one beyond any address space.
pub fn segment(given: &str) -> Result<SizeFlag, PlanError> {
    let flag = "--global-segment-size";
    let bytes = match size_text::sglang_segment(given) {
        Err(PlanError::NotASize { .. }) if has_unit(given) => scripted(flag, given, "4294967296 for bytes")?,
        read => read?,
    };
    Ok(exact(flag, given, bytes, bytes))
}

/// `MC_MMAP_ARENA_POOL_SIZE`: bare, bytes. The store rounds it up to 2 MiB.
///
/// # Errors
/// As [`segment`].
pub fn arena(given: &str) -> Result<SizeFlag, PlanError> {
    let flag = "--arena-pool-size";
    let bytes = stored(flag, given)?;
    let used = bytes.checked_next_multiple_of(2 << 20).ok_or(PlanError::TooLarge { what: "the arena" })?;
    Ok(exact(flag, given, bytes, used))
}

/// A size that the store reads: bare, bytes.
///
/// # Errors
/// As [`segment`].
pub fn store(flag: &'static str, given: &str) -> Result<u64, PlanError> {
    stored(flag, given)
}

/// A figure of the host, which no program reads: bare, bytes.
///
/// # Errors
/// As [`segment`].
pub fn host(flag: &'static str, given: &str) -> Result<u64, PlanError> {
    scripted(flag, given, "68719476736 for bytes")
}

fn stored(flag: &'static str, given: &str) -> Result<u64, PlanError> {
    match size_text::store(given) {
        Err(PlanError::NotASize { .. }) => scripted(flag, given, "8589934592 for bytes"),
        read => read,
    }
}

/// As upstream's script reads a size.
fn scripted(flag: &'static str, given: &str, bare: &'static str) -> Result<u64, PlanError> {
    match upstream::size(given) {
        Ok(bytes) if bytes <= BYTES_MAX => u64::try_from(bytes).map_err(|_| PlanError::TooLarge { what: flag }),
        Ok(_) | Err(upstream::UpstreamError::TooLarge) => Err(PlanError::TooLarge { what: flag }),
        Err(_) => Err(PlanError::NotAFlagSize { flag, given: given.to_owned(), bare }),
    }
}

fn exact(flag: &'static str, given: &str, asked_bytes: u64, used_bytes: u64) -> SizeFlag {
    // Bytes and whole gb are read alike by SGLang and by the store.
    let setting = match asked_bytes {
        bytes if bytes > 0 && bytes.is_multiple_of(1 << 30) => format!("{}gb", bytes >> 30),
        bytes => bytes.to_string(),
    };
    SizeFlag { flag, given: given.to_owned(), asked_bytes, setting, used_bytes }
}

fn has_unit(text: &str) -> bool {
    text.trim_end().ends_with(|c: char| c.is_alphabetic())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hicache_size_is_decimal_bare_and_binary_with_a_unit() {
        let read = |text| hicache(text).map(|(gb, size)| (gb, size.asked_bytes, size.difference()));
        assert_eq!(read("64"), Ok((64, 64_000_000_000, 0)));
        for text in ["64gb", "64GB", "64g", " 64GiB "] {
            assert_eq!(read(text), Ok((68, 64 << 30, -719_476_736)), "{text}");
        }
        assert_eq!(read("1.5tb"), Ok((1_649, 3 << 39, -267_441_664)));
        assert_eq!(read("0"), Ok((0, 0, 0)));
    }

    #[test]
    fn a_size_that_no_program_reads_names_the_flag() {
        for bad in ["64Gi", "64 xb", "gb", "-1gb", "64 gb"] {
            assert!(matches!(hicache(bad), Err(PlanError::NotAFlagSize { flag: "--hicache-size", .. })), "{bad}");
        }
        for bad in ["", "1.5", "-1", "1e3"] {
            assert!(matches!(hicache(bad), Err(PlanError::NotASize { .. })), "{bad}");
        }
        assert!(matches!(hicache("953mb"), Err(PlanError::BelowOneGb { .. })));
        assert!(hicache("954mb").is_ok());
        assert!(matches!(hicache("999999999tb"), Err(PlanError::TooLarge { .. })));
        assert!(matches!(segment("4Gi"), Err(PlanError::NotAFlagSize { .. })));
        assert!(matches!(segment("1.5"), Err(PlanError::NotASize { .. })));
        assert!(matches!(host("--available-memory", "-1"), Err(PlanError::NotAFlagSize { .. })));
    }

    #[test]
    fn a_segment_is_written_as_sglang_reads_it() {
        for (text, setting) in [
            ("8gb", "8gb"),
            (" 8 GB ", "8gb"),
            ("8g", "8gb"),
            ("8gib", "8gb"),
            ("1.5gb", "1610612736"),
            ("512mb", "536870912"),
            ("4096", "4096"),
            ("0", "0"),
        ] {
            let size = segment(text).unwrap();
            assert_eq!((size.setting.as_str(), size.difference()), (setting, 0), "{text}");
            assert_eq!(size_text::sglang_segment(&size.setting), Ok(size.used_bytes), "{text}");
        }
    }

    #[test]
    fn an_arena_is_written_as_the_store_reads_it() {
        for (text, setting, difference) in
            [("56gb", "56gb", 0), ("8GiB", "8gb", 0), ("33mb", "34603008", 1 << 20), ("0", "0", 0)]
        {
            let size = arena(text).unwrap();
            assert_eq!((size.setting.as_str(), size.difference()), (setting, difference), "{text}");
            assert_eq!(size_text::arena(&size.setting), Ok(size.used_bytes), "{text}");
        }
        assert_eq!(store("--store-segment-size", "2gib"), Ok(2 << 30));
    }
}
