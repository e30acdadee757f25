//! Which releases have which flags. `tests/peers/flag-releases` writes the lists.

use std::collections::BTreeMap;
use std::sync::LazyLock;

/// The flags of one program in its releases.
#[derive(Debug)]
pub struct FlagReleases {
    /// The releases, oldest first. There may be others in between.
    releases: Vec<&'static str>,
    /// For each flag, the runs of releases that have it, as first and last index.
    flags: BTreeMap<&'static str, Vec<(usize, usize)>>,
}

/// Flags of SGLang's server by release.
pub static SGLANG_RELEASES: LazyLock<FlagReleases> =
    LazyLock::new(|| FlagReleases::parse(include_str!("flags_by_release/sglang.txt")));
/// `mooncake_master`, without the flags of its libraries.
pub static MASTER_RELEASES: LazyLock<FlagReleases> =
    LazyLock::new(|| FlagReleases::parse(include_str!("flags_by_release/mooncake_master.txt")));

/// `mooncake_client`, without the flags of its libraries.
pub static CLIENT_RELEASES: LazyLock<FlagReleases> =
    LazyLock::new(|| FlagReleases::parse(include_str!("flags_by_release/mooncake_client.txt")));

/// Whether a release has a flag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FlagPresence {
    Present,
    /// Releases before the first, or after the last, have it. `None` if there is no such release.
    Absent {
        last: Option<&'static str>,
        first: Option<&'static str>,
    },
    /// The release is not listed, or the flag was removed close to it.
    Unknown,
}

/// The numbers of a release: `0.5.3.post3` is 0, 5, 3, 3.
fn numbers(release: &str) -> Vec<u32> {
    let part = |part: &str| part.trim_start_matches(|c: char| c.is_ascii_alphabetic()).parse().ok();
    release.split('.').map_while(part).collect()
}

impl FlagReleases {
    fn parse(text: &'static str) -> FlagReleases {
        let mut all = FlagReleases { releases: Vec::new(), flags: BTreeMap::new() };
        for line in text.lines().filter(|line| !line.starts_with('#')) {
            let mut words = line.split(' ');
            let Some(name) = words.next() else { continue };
            if name == "releases" {
                all.releases = words.collect();
                continue;
            }
            let newest = all.releases.len().saturating_sub(1);
            let run = |word: &'static str| {
                let (first, last) = word.split_once("..")?;
                Some((all.at(first)?, if last.is_empty() { newest } else { all.at(last)? }))
            };
            let runs = words.filter_map(run).collect();
            all.flags.insert(name, runs);
        }
        all
    }

    fn at(&self, release: &str) -> Option<usize> {
        self.releases.iter().position(|known| *known == release)
    }

    /// The index of `release`, and whether it is that release and not another one of its series
    /// (the first three numbers).
    fn resolve(&self, release: &str) -> Option<(usize, bool)> {
        let wanted = numbers(release);
        if wanted.len() < 3 {
            return None;
        }
        let of_series =
            || self.releases.iter().position(|known| numbers(known).iter().take(3).eq(wanted.iter().take(3)));
        match self.releases.iter().position(|known| numbers(known) == wanted) {
            Some(at) => Some((at, true)),
            None => of_series().map(|at| (at, false)),
        }
    }

    /// Whether any listed release has the flag `name`, with `_`.
    pub fn is_known(&self, name: &str) -> bool {
        self.flags.contains_key(name)
    }

    /// All flags of all releases.
    pub fn names(&self) -> impl Iterator<Item = &'static str> {
        self.flags.keys().copied()
    }

    /// Whether the flag `name`, with `_`, exists in `release`.
    pub fn presence(&self, release: &str, name: &str) -> FlagPresence {
        let Some((at, is_exact)) = self.resolve(release) else { return FlagPresence::Unknown };
        let runs = self.flags.get(name).map_or(&[][..], Vec::as_slice);
        let has = |at: usize| runs.iter().any(|(first, last)| (*first..=*last).contains(&at));
        if has(at) {
            return FlagPresence::Present;
        }
        // Another release of the series lacks it. This one may still have it if the series before
        // does.
        if !is_exact && at.checked_sub(1).is_some_and(has) {
            return FlagPresence::Unknown;
        }
        let last = runs.iter().rev().find(|(_, last)| *last < at).and_then(|(_, last)| self.releases.get(*last));
        let first = runs.iter().find(|(first, _)| *first > at).and_then(|(first, _)| self.releases.get(*first));
        FlagPresence::Absent { last: last.copied(), first: first.copied() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::upstream::{CLIENT_FLAGS, DeployedRelease, MASTER_FLAGS, sglang};

    #[test]
    fn the_lists_agree_with_the_flags_of_the_tested_releases() {
        for name in sglang::FLAGS.iter().filter(|name| **name != "help") {
            let positive = name.strip_prefix("no_").unwrap_or(name);
            let is_listed = [*name, positive]
                .iter()
                .any(|name| SGLANG_RELEASES.presence(sglang::RELEASE, name) == FlagPresence::Present);
            assert!(is_listed, "{name}");
        }
        for release in DeployedRelease::ALL {
            for (table, flags) in [(&MASTER_RELEASES, MASTER_FLAGS), (&CLIENT_RELEASES, CLIENT_FLAGS)] {
                for flag in flags {
                    let found = table.presence(release.text(), flag.name) == FlagPresence::Present;
                    assert_eq!(found, release.has(flag.since), "{} {}", release.text(), flag.name);
                }
            }
        }
    }

    #[test]
    fn a_flag_is_present_only_in_its_releases() {
        let at = |release| SGLANG_RELEASES.presence(release, "nsa_prefill_backend");
        assert_eq!(at("0.5.9"), FlagPresence::Present);
        assert_eq!(at(sglang::RELEASE), FlagPresence::Absent { last: Some("0.5.19"), first: None });
        assert!(matches!(at("0.4.6.post5"), FlagPresence::Absent { last: None, first: Some(_) }));
        assert_eq!(at("0.5.99"), FlagPresence::Unknown);
        assert_eq!(at("latest"), FlagPresence::Unknown);
        // The list has 0.5.3.post3, which lacks what an earlier release of the series may have.
        assert_eq!(SGLANG_RELEASES.presence("0.5.3", "max_micro_batch_size"), FlagPresence::Unknown);
        assert!(MASTER_RELEASES.is_known("enable_gc") && !MASTER_RELEASES.is_known("enable_gcs"));
        assert_eq!(
            MASTER_RELEASES.presence("0.3.13.post1", "enable_gc"),
            FlagPresence::Absent { last: Some("0.3.5"), first: None }
        );
    }
}
