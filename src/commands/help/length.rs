//! How much of a command's help is shown.

/// The requested help format, the shortest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum HelpLength {
    /// `-h`: the most commonly needed flags, on one screen.
    Short,
    /// `--help`: examples and all flags that have an effect.
    Long,
    /// `--help-all`: all flags that are accepted.
    All,
}
