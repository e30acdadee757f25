//! A flag of an upstream program: name, type, default, settings key and release.

/// Type and range of a flag's value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FlagKind {
    Text,
    /// One of `words`. For another value, the program uses `fallback`, or exits if there is none.
    Word {
        words: &'static [&'static str],
        fallback: Option<&'static str>,
    },
    /// true or false. Does not consume the next argument.
    Switch,
    Int32,
    Int64,
    Uint32,
    Uint64,
    /// A TCP port, as an `int32`.
    Port,
    Number,
    /// A fraction from 0 to 1.
    Ratio,
    /// Milliseconds, or a number with ms, s, m or h.
    Duration,
    /// A number of bytes, or a number with a unit such as mb.
    Size,
}

impl FlagKind {
    /// Whether the value is a whole number.
    pub const fn is_whole(self) -> bool {
        matches!(self, FlagKind::Int32 | FlagKind::Int64 | FlagKind::Uint32 | FlagKind::Uint64 | FlagKind::Port)
    }

    /// The type that gflags prints in `--help`.
    pub const fn gflags_type(self) -> &'static str {
        match self {
            FlagKind::Text | FlagKind::Word { .. } | FlagKind::Duration | FlagKind::Size => "string",
            FlagKind::Switch => "bool",
            FlagKind::Int32 | FlagKind::Port => "int32",
            FlagKind::Int64 => "int64",
            FlagKind::Uint32 => "uint32",
            FlagKind::Uint64 => "uint64",
            FlagKind::Number | FlagKind::Ratio => "double",
        }
    }
}

/// A flag of an upstream program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UpstreamFlag {
    /// Flag name, with `_`.
    pub name: &'static str,
    pub kind: FlagKind,
    /// The default in the release that mcctl is tested with, as written on a command line.
    pub default: &'static str,
    /// The flag's key in a settings file, or the setting that it stands for; `None` if it has none.
    pub key: Option<&'static str>,
    /// The first release that has the flag, if an older release is known to lack it.
    pub since: Option<&'static str>,
}

/// A flag whose settings key is its name.
pub(super) const fn flag(name: &'static str, kind: FlagKind, default: &'static str) -> UpstreamFlag {
    UpstreamFlag { name, kind, default, key: Some(name), since: None }
}

impl UpstreamFlag {
    /// Whether the flag does not consume the next argument.
    pub fn is_switch(&self) -> bool {
        self.kind == FlagKind::Switch
    }

    /// Sets the release that added the flag.
    pub(super) const fn since(mut self, release: &'static str) -> UpstreamFlag {
        self.since = Some(release);
        self
    }

    /// Sets the settings key.
    pub(super) const fn key(mut self, key: &'static str) -> UpstreamFlag {
        self.key = Some(key);
        self
    }

    /// Marks the flag as ignored in a settings file.
    pub(super) const fn not_a_key(mut self) -> UpstreamFlag {
        self.key = None;
        self
    }
}

/// The flag `name` in `flags`, if it exists.
pub(super) const fn lookup(flags: &'static [UpstreamFlag], name: &str) -> Option<&'static UpstreamFlag> {
    let mut at = 0;
    while at < flags.len() {
        if is_same(flags[at].name, name) {
            return Some(&flags[at]);
        }
        at += 1;
    }
    None
}

/// The flag `name` in `flags`.
///
/// # Panics
/// No flag has that name. In a constant, this is a compile error.
pub const fn find(flags: &'static [UpstreamFlag], name: &str) -> &'static UpstreamFlag {
    lookup(flags, name).expect("an upstream flag")
}

/// `a == b` in a constant.
pub const fn is_same(a: &str, b: &str) -> bool {
    let a = a.as_bytes();
    let b = b.as_bytes();
    if a.len() != b.len() {
        return false;
    }
    let mut at = 0;
    while at < a.len() {
        if a[at] != b[at] {
            return false;
        }
        at += 1;
    }
    true
}
