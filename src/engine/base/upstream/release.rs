//! Mooncake's releases, as far as their messages differ.
//!
//! A release of Mooncake is compatible only with itself: from one to the next, methods get
//! arguments, and types get fields. Each type and method names the release of every later part
//! (`[since V0_3_12]`), and encoders and decoders leave out what a release does not have. To add a
//! release, add a line here, and its parts to the types and methods that changed.

use std::fmt;

macro_rules! releases {
    ($($(#[$doc:meta])* $variant:ident $name:literal;)*) => {
        /// A release whose messages differ from those of the release before.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr(u8)]
        pub enum Release { $($(#[$doc])* $variant),* }

        impl Release {
            /// All releases, oldest first.
            pub const ALL: &'static [Release] = &[$(Release::$variant),*];

            /// The newest version with these messages.
            pub const fn name(self) -> &'static str {
                match self { $(Release::$variant => $name),* }
            }
        }
    };
}

releases! {
    /// Its clients send no handshake.
    V0_3_6 "0.3.6.post1";
    V0_3_7 "0.3.7.post2";
    /// Clients require the version of the handshake, which has been `2.0.0` since.
    V0_3_8 "0.3.8.post1";
    V0_3_9 "0.3.9";
    V0_3_10 "0.3.10";
    /// Also 0.3.10.post1, without upserts.
    V0_3_10_2 "0.3.10.post2";
    V0_3_11 "0.3.11.post1";
    /// The first release whose calls name a tenant.
    V0_3_12 "0.3.12.post1";
    V0_3_13 "0.3.13.post1";
    /// Its messages may end with fields that 0.3.13 does not have. Peers ignore or omit them.
    V0_3_14 "0.3.14";
}

impl Release {
    /// The oldest release that mcctl supports.
    pub const FIRST: Release = Release::V0_3_6;
    /// The newest release, which peers are assumed to run until their messages show another.
    pub const LATEST: Release = Release::V0_3_14;

    /// Whether clients of one of the releases work with an upstream master of the other one.
    pub fn works_with(self, other: Release) -> bool {
        // 0.3.14 only adds calls, and fields at the end of messages.
        let alike = |release: Release| if release == Release::V0_3_14 { Release::V0_3_13 } else { release };
        alike(self) == alike(other)
    }

    /// The release of a version such as `0.3.12` or `0.3.12.post1`; `None` if it is not known.
    pub fn of_version(version: &str) -> Option<Release> {
        if version.starts_with("0.3.10.post") {
            return Some(Release::V0_3_10_2);
        }
        let exact = Release::ALL.iter().find(|release| release.name() == version);
        let numbers = |version: &str| version.split('.').take(3).map(str::to_owned).collect::<Vec<_>>();
        let same = || Release::ALL.iter().find(|release| numbers(release.name()) == numbers(version));
        exact.or_else(same).copied()
    }
}

impl fmt::Display for Release {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A set of releases.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Releases(u16);

impl Releases {
    pub const NONE: Releases = Releases(0);
    pub const ALL: Releases = Releases((1 << Release::ALL.len()) - 1);

    /// The set that contains only `release`.
    #[inline]
    pub fn only(release: Release) -> Releases {
        Releases(1 << release as u8)
    }

    /// `release` and all newer ones.
    pub fn since(release: Release) -> Releases {
        Releases(Releases::ALL.0 & !((1 << release as u8) - 1))
    }

    /// Whether the set contains `release`.
    #[inline]
    pub fn contains(self, release: Release) -> bool {
        self.0 & (1 << release as u8) != 0
    }

    /// The releases in both sets.
    #[must_use]
    #[inline]
    pub fn and(self, other: Releases) -> Releases {
        Releases(self.0 & other.0)
    }

    /// The releases in either set.
    #[must_use]
    #[inline]
    pub fn or(self, other: Releases) -> Releases {
        Releases(self.0 | other.0)
    }

    /// The releases in this set that are not in `other`.
    #[must_use]
    pub fn without(self, other: Releases) -> Releases {
        Releases(self.0 & !other.0)
    }

    /// Whether no release is in the set.
    #[inline]
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// The releases, oldest first.
    pub fn iter(self) -> impl DoubleEndedIterator<Item = Release> {
        Release::ALL.iter().copied().filter(move |release| self.contains(*release))
    }

    /// The newest release in the set.
    pub fn newest(self) -> Option<Release> {
        self.iter().next_back()
    }

    /// The only release in the set.
    pub fn single(self) -> Option<Release> {
        if self.0.is_power_of_two() { self.newest() } else { None }
    }
}

impl FromIterator<Release> for Releases {
    fn from_iter<I: IntoIterator<Item = Release>>(releases: I) -> Releases {
        releases.into_iter().fold(Releases::NONE, |all, release| all.or(Releases::only(release)))
    }
}

/// `0.3.9`, `0.3.9 to 0.3.11.post1`, or the parts of a set with gaps.
impl fmt::Display for Releases {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut runs: Vec<(Release, Release)> = Vec::new();
        for release in self.iter() {
            match runs.last_mut() {
                Some((_, last)) if *last as u8 + 1 == release as u8 => *last = release,
                _ => runs.push((release, release)),
            }
        }
        for (at, (first, last)) in runs.iter().enumerate() {
            if at > 0 {
                f.write_str(", ")?;
            }
            write!(f, "{first}")?;
            if first != last {
                write!(f, " to {last}")?;
            }
        }
        Ok(())
    }
}

impl fmt::Debug for Releases {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{{{self}}}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_have_the_release_whose_messages_they_use() {
        let cases = [
            ("0.3.6", Some(Release::V0_3_6)),
            ("0.3.10", Some(Release::V0_3_10)),
            ("0.3.10.post1", Some(Release::V0_3_10_2)),
            ("0.3.12.post1", Some(Release::V0_3_12)),
            ("0.3.13", Some(Release::V0_3_13)),
            ("0.3.5", None),
            ("0.3", None),
            ("", None),
        ];
        for (version, release) in cases {
            assert_eq!(Release::of_version(version), release, "{version}");
        }
        for release in Release::ALL {
            assert_eq!(Release::of_version(release.name()), Some(*release));
        }
    }

    #[test]
    fn upstreams_releases_work_with_themselves_and_0_3_13_with_0_3_14() {
        for (one, other) in Release::ALL.iter().flat_map(|one| Release::ALL.iter().map(move |other| (*one, *other))) {
            let newest = [Release::V0_3_13, Release::V0_3_14];
            assert_eq!(one.works_with(other), one == other || newest.contains(&one) && newest.contains(&other));
        }
    }

    #[test]
    fn sets_are_shown_as_ranges() {
        let set: Releases =
            [Release::V0_3_7, Release::V0_3_9, Release::V0_3_10, Release::V0_3_12].into_iter().collect();
        assert_eq!(set.to_string(), "0.3.7.post2, 0.3.9 to 0.3.10, 0.3.12.post1");
        assert_eq!(set.newest(), Some(Release::V0_3_12));
        assert_eq!(set.single(), None);
        assert_eq!(Releases::only(Release::V0_3_8).single(), Some(Release::V0_3_8));
        assert_eq!(Releases::since(Release::FIRST), Releases::ALL);
        assert_eq!(Releases::NONE.newest(), None);
    }
}
