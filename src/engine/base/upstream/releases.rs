//! Mooncake's releases.

use serde::{Deserialize, Serialize};

/// The series that mcctl is compatible with, as a literal for `concat!`.
#[doc(hidden)]
#[macro_export]
macro_rules! __mooncake_series {
    () => {
        "0.3.13"
    };
}
pub use __mooncake_series as mooncake_series;

/// The series that mcctl is compatible with: its wire format, admin routes and metrics.
pub const SERIES: &str = mooncake_series!();

/// The version that a master of this series returns from `ServiceReady`. Releases since
/// 0.3.8 return the same one.
pub const PROTOCOL_VERSION: &str = "2.0.0";

/// The first series that mcctl was not tested with. Faults observed in older releases may be fixed
/// from here on.
pub const UNTESTED_SINCE: &str = "0.3.14";

/// A Mooncake release that a deployment file can name, in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum DeployedRelease {
    /// Lacks the flags that were added in 0.3.13.
    #[serde(rename = "0.3.12.post1")]
    V0_3_12Post1,
    /// The release that mcctl is tested with.
    #[serde(rename = "0.3.13.post1")]
    V0_3_13Post1,
}

impl Default for DeployedRelease {
    fn default() -> DeployedRelease {
        DeployedRelease::TESTED
    }
}

impl DeployedRelease {
    /// All known releases, oldest first.
    pub const ALL: [DeployedRelease; 2] = [DeployedRelease::V0_3_12Post1, DeployedRelease::V0_3_13Post1];
    /// The release that mcctl is tested with. Its programs have the flags and defaults of this
    /// release.
    pub const TESTED: DeployedRelease = DeployedRelease::V0_3_13Post1;

    /// The version string on PyPI.
    pub const fn text(self) -> &'static str {
        match self {
            DeployedRelease::V0_3_12Post1 => "0.3.12.post1",
            DeployedRelease::V0_3_13Post1 => "0.3.13.post1",
        }
    }

    /// Whether the release has what was added in `since`; `None` stands for the oldest known
    /// release or an earlier one.
    pub fn has(self, since: Option<&str>) -> bool {
        since.is_none_or(|since| !is_older(self.text(), since))
    }
}

/// Whether `release` precedes `since`. False for a string without numbers.
pub fn is_older(release: &str, since: &str) -> bool {
    let numbers = |text: &str| text.split('.').map_while(|part| part.parse::<u32>().ok()).collect::<Vec<_>>();
    let release = numbers(release);
    let since = numbers(since);
    !release.is_empty()
        && release.iter().chain(std::iter::repeat(&0)).zip(&since).find(|(a, b)| a != b).is_some_and(|(a, b)| a < b)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tested_release_is_known_and_of_the_series() {
        assert!(DeployedRelease::ALL.contains(&DeployedRelease::TESTED));
        assert!(DeployedRelease::TESTED.text().starts_with(SERIES));
        assert!(DeployedRelease::ALL.is_sorted());
        assert!(is_older(DeployedRelease::TESTED.text(), UNTESTED_SINCE));
        for release in DeployedRelease::ALL {
            assert_eq!(serde_json::to_value(release).ok(), Some(release.text().into()));
        }
    }

    #[test]
    fn releases_compare_by_their_numbers() {
        assert!(is_older("0.3.12.post1", "0.3.13") && is_older("0.3.9", "0.3.13") && is_older("0.3", "0.3.13"));
        assert!(!is_older("0.3.13.post1", "0.3.13") && !is_older("0.3.13", "0.3.13") && !is_older("latest", "0.3.13"));
    }
}
