//! Compares the size that a master reports for its keys with their computed size.

use crate::plan::SizingError;
use crate::plan::error::narrow;
use crate::plan::tiers::StoredPage;

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ObservedKeys {
    /// Number of tokens in the complete pages that the keys form.
    pub tokens: u64,
    /// Computed size of the keys, in bytes.
    pub bytes: u64,
    /// Reported bytes minus computed bytes.
    pub surplus: i64,
    /// The surplus as a percentage of `bytes`.
    pub surplus_percent: f64,
}

/// Compares the `reported` bytes that the master reports for `keys` keys with the computed size of
/// these keys. `page` describes a page of `page_size` tokens.
///
/// # Errors
/// A value overflows.
pub fn observed(keys: u64, reported: u64, page: &StoredPage, page_size: u64) -> Result<ObservedKeys, SizingError> {
    let what = "the size of the observed keys";
    let page_keys = u128::from(page.keys.max(1));
    let all = u128::from(keys) * u128::from(page_size);
    // The keys of a page may differ in size, so each key of an incomplete page is assumed to have
    // the mean size.
    let product = all.checked_mul(u128::from(page.token_bytes)).ok_or(SizingError::TooLarge { what })?;
    let bytes = narrow(product / page_keys, what)?;
    let tokens = narrow(u128::from(keys) / page_keys * u128::from(page_size), what)?;
    let surplus = i128::from(reported) - i128::from(bytes);
    let surplus = i64::try_from(surplus).map_err(|_| SizingError::TooLarge { what })?;
    let surplus_percent = surplus as f64 * 100.0 / bytes.max(1) as f64;
    Ok(ObservedKeys { tokens, bytes, surplus, surplus_percent })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kep_74_reports_more_bytes_than_its_keys_need() {
        let page = StoredPage { token_bytes: 262_144, keys: 2, object_bytes: 131_072 };
        let reported = (26.96 * (1u64 << 30) as f64) as u64;
        let found = observed(219_474, reported, &page, 1).unwrap();
        assert_eq!((found.tokens, found.bytes), (109_737, 28_766_896_128));
        assert!((found.surplus_percent - 0.63).abs() < 0.005, "{found:?}");
        let less = observed(2, 262_143, &page, 1).unwrap();
        assert_eq!((less.tokens, less.bytes, less.surplus), (1, 262_144, -1));
        assert!(observed(u64::MAX, 0, &page, u64::MAX).is_err());
    }
}
