//! The syntax tree of a script. Words keep their source text: `word.rs` splits it into quoted and
//! expanded pieces.

use std::sync::Arc;

/// A word as written, with quotes and expansions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct RawWord {
    pub raw: String,
    /// The line on which the word begins.
    pub line: u32,
}

/// A command and the lines that it occupies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ShellNode {
    pub command: ShellCommand,
    pub line: u32,
    /// The number of lines, at least 1.
    pub lines: u32,
}

/// A list of commands that run one after another.
pub(super) type ShellBlock = Vec<ShellNode>;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ShellCommand {
    /// Assignments, then a program with its arguments. Either may be missing.
    Simple {
        assignments: Vec<ShellAssignment>,
        words: Vec<RawWord>,
    },
    /// `export`, `local`, `declare`, `readonly` or `typeset`.
    Declaration {
        keyword: String,
        options: Vec<RawWord>,
        assignments: Vec<ShellAssignment>,
    },
    /// `[ .. ]` or `[[ .. ]]`, without the brackets.
    Test(RawWord),
    /// `(( .. ))`, without the parentheses.
    Arithmetic(RawWord),
    Pipeline(ShellBlock),
    Not(Box<ShellNode>),
    /// `a && b`
    Both(Box<ShellNode>, Box<ShellNode>),
    /// `a || b`
    Either(Box<ShellNode>, Box<ShellNode>),
    Background(Box<ShellNode>),
    Group(ShellBlock),
    Subshell(ShellBlock),
    /// Conditions with their blocks, then the block of `else`.
    If(Vec<(ShellBlock, ShellBlock)>, ShellBlock),
    Case(RawWord, Vec<(Vec<RawWord>, ShellBlock)>),
    /// `for name in words`; without `in`, the words are `"$@"`.
    For {
        name: String,
        words: Option<Vec<RawWord>>,
        body: ShellBlock,
    },
    /// `for ((init; condition; update))`
    CountedFor {
        header: String,
        body: ShellBlock,
    },
    While {
        until: bool,
        condition: ShellBlock,
        body: ShellBlock,
    },
    Function(String, Arc<ShellBlock>),
    Redirected(Box<ShellNode>, Vec<Redirect>),
    /// Text that the grammar does not accept.
    Unreadable,
}

/// `name=value`, `name+=value`, `name=(..)` or `name[index]=value`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ShellAssignment {
    pub name: String,
    pub index: Option<String>,
    pub append: bool,
    pub value: AssignedText,
    pub line: u32,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum AssignedText {
    Word(RawWord),
    Array(Vec<RawWord>),
    /// `export name`: the value does not change.
    Kept,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Redirect {
    /// `> file` or `>> file` of standard output.
    Output {
        target: RawWord,
        append: bool,
    },
    Here(HereDocument),
    /// `<<< word`
    HereString(RawWord),
    /// `< file`
    Input,
}

/// The text between `<<EOF` and `EOF`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct HereDocument {
    pub body: String,
    /// The line of the first character of `body`.
    pub line: u32,
    /// The delimiter is quoted, so that `$` is a literal character.
    pub literal: bool,
}
