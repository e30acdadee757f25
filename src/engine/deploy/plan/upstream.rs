//! Reproduces Mooncake's sizing script (`scripts/check_hicache_hugepage_requirements.py`) byte for
//! byte.
//!
//! The script's numbers differ from what Mooncake allocates; [`crate::plan::need`] computes the
//! latter. Beyond 127 bits, where the script uses big integers or fails on an infinite double, this
//! module returns [`ScriptError::TooLarge`].

use crate::plan::python_text::{self, PythonInt};

/// The script's command-line values.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScriptInput {
    /// `--tp-size`, already parsed.
    pub tp: i128,
    /// `--hicache-size`.
    pub hicache: String,
    /// `--global-segment-size`.
    pub segment: String,
    /// `--arena-pool-size`.
    pub arena: String,
    /// `--hugepage-size`.
    pub hugepage: String,
    /// `--available-hugetlb`; an empty value is treated as absent.
    pub available: Option<String>,
}

/// The reason why the script exits with code 64.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ScriptError {
    /// The string is not a number followed by letters.
    #[error("invalid size: {}", python_text::repr(.0))]
    Invalid(String),
    /// The letters are not a unit.
    #[error("unsupported size unit in {}", python_text::repr(.0))]
    Unit(String),
    #[error("tp_size must be positive")]
    Tp,
    /// The value exceeds 127 bits.
    #[error("the sizes are too large")]
    TooLarge,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScriptVerdict {
    /// The number of available pages is unknown.
    PlanningOnly,
    /// Fewer bytes are available than the baseline needs.
    Insufficient,
    /// Fewer bytes are available than baseline plus arena need.
    ArenaMayFallBack,
    Clean,
}

impl ScriptVerdict {
    /// The script's exit code.
    pub const fn exit(self) -> u8 {
        match self {
            ScriptVerdict::PlanningOnly | ScriptVerdict::Clean => 0,
            ScriptVerdict::ArenaMayFallBack => 1,
            ScriptVerdict::Insufficient => 2,
        }
    }

    fn lines(self) -> &'static str {
        match self {
            ScriptVerdict::PlanningOnly => PLANNING,
            ScriptVerdict::Insufficient => INSUFFICIENT,
            ScriptVerdict::ArenaMayFallBack => FALL_BACK,
            ScriptVerdict::Clean => CLEAN,
        }
    }
}

/// The script's results in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScriptEstimate {
    /// A rank's L2 plus segment.
    pub baseline_rank: u128,
    pub baseline_total: u128,
    /// A rank's L2 plus segment and arena.
    pub clean_rank: u128,
    pub clean_total: u128,
    /// Bytes available in huge pages, if known.
    pub available: Option<u128>,
    pub status: ScriptVerdict,
}

/// Parses a size as the script does: a number followed by letters, computed as a double and
/// truncated to whole bytes.
///
/// # Errors
/// The script rejects the string.
pub fn size(text: &str) -> Result<u128, ScriptError> {
    let normal: String = python_text::strip(text).to_lowercase().chars().filter(|c| *c != '_').collect();
    let letters = normal.trim_start_matches(|c: char| c.is_ascii_digit() || c == '.');
    let number = &normal[..normal.len() - letters.len()];
    let (whole, fraction) = number.split_once('.').unwrap_or((number, "0"));
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    if !digits(whole) || !digits(fraction) || !letters.bytes().all(|b| b.is_ascii_lowercase()) {
        return Err(ScriptError::Invalid(text.to_owned()));
    }
    let shift = match letters {
        "" | "b" => 0,
        "k" | "kb" | "kib" => 10,
        "m" | "mb" | "mib" => 20,
        "g" | "gb" | "gib" => 30,
        "t" | "tb" | "tib" => 40,
        _ => return Err(ScriptError::Unit(text.to_owned())),
    };
    let number: f64 = number.parse().map_err(|_| ScriptError::Invalid(text.to_owned()))?;
    let bytes = number * (1u64 << shift) as f64;
    if bytes >= (1u128 << 127) as f64 {
        return Err(ScriptError::TooLarge);
    }
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "not negative, and below 2^127")]
    Ok(bytes as u128)
}

/// Computes the script's results. `pages_of` returns `nr_hugepages` for the pool with the given
/// page size in KiB.
///
/// The checks run in the script's order: available (or hugepage size), hicache, segment, arena, tp.
/// If the hugepage size proves invalid after these checks, the script crashes; this function
/// returns the matching error instead.
///
/// # Errors
/// The script exits with code 64.
pub fn estimate(request: &ScriptInput, pages_of: &dyn Fn(u128) -> Option<u64>) -> Result<ScriptEstimate, ScriptError> {
    let available = match request.available.as_deref().filter(|text| !text.is_empty()) {
        Some(text) => Some(size(text)?),
        None => {
            let page = size(&request.hugepage)?;
            let pages = page.is_multiple_of(1024).then(|| pages_of(page / 1024)).flatten();
            pages.map(|pages| u128::from(pages).checked_mul(page).ok_or(ScriptError::TooLarge)).transpose()?
        }
    };
    let hicache = size(&request.hicache)?;
    let segment = size(&request.segment)?;
    let arena = size(&request.arena)?;
    let tp = u128::try_from(request.tp).ok().filter(|tp| *tp > 0).ok_or(ScriptError::Tp)?;
    size(&request.hugepage)?;
    let sum = |a: u128, b: u128| a.checked_add(b).ok_or(ScriptError::TooLarge);
    let times = |a: u128| a.checked_mul(tp).ok_or(ScriptError::TooLarge);
    let baseline_rank = sum(hicache, segment)?;
    let clean_rank = sum(baseline_rank, arena)?;
    let baseline_total = times(baseline_rank)?;
    let clean_total = times(clean_rank)?;
    let status = match available {
        None => ScriptVerdict::PlanningOnly,
        Some(bytes) if bytes < baseline_total => ScriptVerdict::Insufficient,
        Some(bytes) if bytes < clean_total => ScriptVerdict::ArenaMayFallBack,
        Some(_) => ScriptVerdict::Clean,
    };
    Ok(ScriptEstimate { baseline_rank, baseline_total, clean_rank, clean_total, available, status })
}

/// Formats the script's output.
///
/// # Errors
/// Same as [`estimate`].
pub fn summary(request: &ScriptInput, estimate: &ScriptEstimate) -> Result<String, ScriptError> {
    let mut text = format!("Mooncake HiCache HugeTLB sizing summary\n\ntp-size:                {}\n", request.tp);
    for (name, raw) in [
        ("hicache-size:", &request.hicache),
        ("global-segment-size:", &request.segment),
        ("arena-pool-size:", &request.arena),
        ("hugepage-size:", &request.hugepage),
    ] {
        text.push_str(&format!("{name:<24}{raw} ({})\n", pretty(size(raw)?)));
    }
    let available = estimate.available.map_or("unavailable (planning-only mode)".to_owned(), pretty);
    text.push_str(&format!("{:<24}{available}\n\n", "available HugeTLB:"));
    for (name, bytes) in [
        ("baseline floor / rank:", estimate.baseline_rank),
        ("baseline floor / total:", estimate.baseline_total),
        ("clean arena / rank:", estimate.clean_rank),
        ("clean arena / total:", estimate.clean_total),
    ] {
        text.push_str(&format!("{name:<24}{}\n", pretty(bytes)));
    }
    text.push_str(&format!("\n{}\n\n{NOTE}\n", estimate.status.lines()));
    Ok(text)
}

/// Formats bytes with the largest unit that fits: TiB, GiB, MiB, KiB or B.
pub fn pretty(bytes: u128) -> String {
    let scaled = |shift: u32, unit: &str| format!("{:.2} {unit}", bytes as f64 / (1u64 << shift) as f64);
    match bytes {
        n if n >= 1 << 40 => scaled(40, "TiB"),
        n if n >= 1 << 30 => scaled(30, "GiB"),
        n if n >= 1 << 20 => scaled(20, "MiB"),
        n if n >= 1 << 10 => scaled(10, "KiB"),
        n => format!("{n} B"),
    }
}

/// Whether `c` is a decimal digit in any script, like `\d` in Python's regular expressions.
pub fn is_decimal(c: char) -> bool {
    python_text::decimal(c).is_some()
}

/// Parses `--tp-size`; `None` means Python's ValueError.
///
/// # Errors
/// The number is too large.
pub fn tp(text: &str) -> Option<Result<i128, ScriptError>> {
    match python_text::int(text) {
        PythonInt::Value(n) => Some(Ok(n)),
        PythonInt::TooLarge => Some(Err(ScriptError::TooLarge)),
        PythonInt::Invalid => None,
    }
}

const PLANNING: &str = "Status: planning only\nMeaning: baseline and clean-arena targets were computed, but host HugeTLB capacity was not detected.";
const INSUFFICIENT: &str = "Status: insufficient for baseline\nMeaning: the current HugeTLB pool is below the baseline floor. Expect startup or allocation failures.";
const FALL_BACK: &str = "Status: baseline fits, arena may fall back\nMeaning: baseline should fit, but the cleaner fully arena-backed target is above the current HugeTLB pool. Arena allocations may partially or fully fall back to regular pages.";
const CLEAN: &str = "Status: clean arena budget available\nMeaning: the current HugeTLB pool meets the cleaner target for baseline plus arena-backed bring-up.";
const NOTE: &str = "Note: the baseline floor is a conservative bring-up estimate (hicache + global segment per rank). The clean-arena target adds the arena pool per rank to show when arena-backed runs are less likely to spill onto the regular-page fallback path.";

#[cfg(test)]
mod tests {
    use super::*;

    fn request() -> ScriptInput {
        ScriptInput {
            tp: 4,
            hicache: "64gb".to_owned(),
            segment: "8gb".to_owned(),
            arena: "56gb".to_owned(),
            hugepage: "2mb".to_owned(),
            available: None,
        }
    }

    #[test]
    fn sizes_are_truncated_doubles_in_powers_of_1024() {
        for (text, bytes) in [
            ("64gb", 64 << 30),
            (" 8_GiB\n", 8 << 30),
            ("1.9", 1),
            ("1.0009765k", 1024),
            ("9007199254740993", 9_007_199_254_740_992),
            ("0.1gb", 107_374_182),
        ] {
            assert_eq!(size(text), Ok(bytes), "{text}");
        }
        for bad in ["", "_", "64 gb", ".5gb", "5.gb", "1.2.3gb", "1e9", "+8gb", "-8gb", "٤gb", "1,024mb"] {
            assert_eq!(size(bad), Err(ScriptError::Invalid(bad.to_owned())));
        }
        assert_eq!(size("1pb").unwrap_err().to_string(), "unsupported size unit in '1pb'");
        assert_eq!(size(&"9".repeat(400)), Err(ScriptError::TooLarge));
    }

    #[test]
    fn the_pool_counts_all_pages_and_equality_suffices() {
        let four = request();
        let pages = |gib: u64| move |kib: u128| (kib == 2048).then_some(gib * 512);
        assert_eq!(estimate(&four, &pages(512)).unwrap().status, ScriptVerdict::Clean);
        assert_eq!(estimate(&four, &pages(511)).unwrap().status, ScriptVerdict::ArenaMayFallBack);
        assert_eq!(estimate(&four, &pages(288)).unwrap().status, ScriptVerdict::ArenaMayFallBack);
        assert_eq!(estimate(&four, &pages(287)).unwrap().status, ScriptVerdict::Insufficient);
        assert_eq!(estimate(&four, &|_| None).unwrap().status, ScriptVerdict::PlanningOnly);
    }

    #[test]
    fn out_of_range_numbers_are_errors() {
        let huge = ScriptInput { tp: i128::MAX, ..request() };
        assert_eq!(estimate(&huge, &|_| None), Err(ScriptError::TooLarge));
        assert_eq!(estimate(&ScriptInput { tp: 0, ..request() }, &|_| None), Err(ScriptError::Tp));
        assert_eq!(pretty(1_048_575), "1024.00 KiB");
        assert_eq!(pretty(u128::MAX).split(' ').nth(1), Some("TiB"));
    }
}
