//! Files of processes: each writer spells what [`crate::engine::deploy::launches()`] decided and decides nothing itself.

/// A file that was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct File {
    /// Path within the folder that they are written to.
    pub name: String,
    /// Its text.
    pub text: String,
}
