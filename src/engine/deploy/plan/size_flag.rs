//! The size flags for `mcctl size-hugepages`. A bare number uses the unit of the program that reads
//! the setting. A number with a unit is interpreted in powers of 1024, as in upstream's sizing
//! script, and converted to text that the program accepts.

use crate::plan::host_pool::GB;
use crate::plan::{SizingError, size_text, upstream};

/// Maximum size, in bytes: the address space.
const BYTES_MAX: u128 = 1 << 57;

/// A size flag, and the setting derived from it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SizeFlag {
    /// The flag, including its dashes.
    pub flag: &'static str,
    /// The value of the flag.
    pub given: String,
    /// The value in bytes.
    pub asked_bytes: u64,
    /// The string that the program accepts.
    pub setting: String,
    /// The bytes that the program allocates for this setting.
    pub used_bytes: u64,
}

impl SizeFlag {
    /// Allocated minus requested bytes.
    pub fn difference(&self) -> i64 {
        // Both values are below 2^57.
        self.used_bytes.cast_signed() - self.asked_bytes.cast_signed()
    }
}

/// SGLang's `--hicache-size`. A bare number is in GB (10^9 bytes). A number with a unit is rounded
/// down to a whole number of GB.
///
/// # Errors
/// The string is not a size, or the size is below 1 GB or out of range. A bare 0 is accepted.
pub fn hicache(given: &str) -> Result<(u64, SizeFlag), SizingError> {
    let flag = "--hicache-size";
    let (gb, asked_bytes) = if has_unit(given) {
        let bytes = scripted(flag, given, "a whole number of GB (10^9 bytes), e.g. 64")?;
        if bytes < GB {
            return Err(SizingError::BelowOneGb { given: given.to_owned() });
        }
        (bytes / GB, bytes)
    } else {
        let gb = size_text::hicache_gb(given)?;
        (gb, gb.saturating_mul(GB))
    };
    let used_bytes = gb.saturating_mul(GB);
    Ok((gb, SizeFlag { flag, given: given.to_owned(), asked_bytes, setting: gb.to_string(), used_bytes }))
}

/// SGLang's `MOONCAKE_GLOBAL_SEGMENT_SIZE`. A bare number is in bytes. SGLang accepts only the unit
/// `gb`; others are converted to bytes.
///
/// # Errors
/// The string is not a size, or the size is out of range.
pub fn segment(given: &str) -> Result<SizeFlag, SizingError> {
    let flag = "--global-segment-size";
    let bytes = match size_text::sglang_segment(given) {
        Err(SizingError::NotASize { .. }) if has_unit(given) => {
            scripted(flag, given, "a number of bytes, e.g. 4294967296")?
        }
        read => read?,
    };
    Ok(exact(flag, given, bytes, bytes))
}

/// `MC_MMAP_ARENA_POOL_SIZE`. A bare number is in bytes. The store rounds the size up to a multiple
/// of 2 MiB.
///
/// # Errors
/// Same as [`segment`].
pub fn arena(given: &str) -> Result<SizeFlag, SizingError> {
    let flag = "--arena-pool-size";
    let bytes = stored(flag, given)?;
    let used = bytes.checked_next_multiple_of(2 << 20).ok_or(SizingError::TooLarge { what: "the arena size" })?;
    Ok(exact(flag, given, bytes, used))
}

/// Parses a size that the store reads. A bare number is in bytes.
///
/// # Errors
/// Same as [`segment`].
pub fn store(flag: &'static str, given: &str) -> Result<u64, SizingError> {
    stored(flag, given)
}

/// Parses a host property, which no other program reads. A bare number is in bytes.
///
/// # Errors
/// Same as [`segment`].
pub fn host(flag: &'static str, given: &str) -> Result<u64, SizingError> {
    scripted(flag, given, "a number of bytes, e.g. 68719476736")
}

fn stored(flag: &'static str, given: &str) -> Result<u64, SizingError> {
    match size_text::store(given) {
        Err(SizingError::NotASize { .. }) => scripted(flag, given, "a number of bytes, e.g. 8589934592"),
        read => read,
    }
}

/// Parses a size as upstream's script does.
fn scripted(flag: &'static str, given: &str, bare: &'static str) -> Result<u64, SizingError> {
    match upstream::size(given) {
        Ok(bytes) if bytes <= BYTES_MAX => u64::try_from(bytes).map_err(|_| SizingError::TooLarge { what: flag }),
        Ok(_) | Err(upstream::ScriptError::TooLarge) => Err(SizingError::TooLarge { what: flag }),
        Err(_) => Err(SizingError::NotAFlagSize { flag, given: given.to_owned(), bare }),
    }
}

fn exact(flag: &'static str, given: &str, asked_bytes: u64, used_bytes: u64) -> SizeFlag {
    // SGLang and the store interpret plain byte counts and whole numbers of gb identically.
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
    fn an_invalid_size_names_the_flag() {
        for bad in ["64Gi", "64 xb", "gb", "-1gb", "64 gb"] {
            assert!(matches!(hicache(bad), Err(SizingError::NotAFlagSize { flag: "--hicache-size", .. })), "{bad}");
        }
        for bad in ["", "1.5", "-1", "1e3"] {
            assert!(matches!(hicache(bad), Err(SizingError::NotASize { .. })), "{bad}");
        }
        assert!(matches!(hicache("953mb"), Err(SizingError::BelowOneGb { .. })));
        assert!(hicache("954mb").is_ok());
        assert!(matches!(hicache("999999999tb"), Err(SizingError::TooLarge { .. })));
        assert!(matches!(segment("4Gi"), Err(SizingError::NotAFlagSize { .. })));
        assert!(matches!(segment("1.5"), Err(SizingError::NotASize { .. })));
        assert!(matches!(host("--available-memory", "-1"), Err(SizingError::NotAFlagSize { .. })));
    }

    #[test]
    fn a_segment_is_written_in_sglangs_syntax() {
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
    fn an_arena_is_written_in_the_stores_syntax() {
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
