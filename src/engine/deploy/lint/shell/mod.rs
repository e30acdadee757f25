//! Shell scripts, read as a shell runs them.
//!
//! `parser.rs` turns text into the syntax tree of `syntax.rs`, with the grammar `tree-sitter-bash`.
//! `evaluator.rs` and the files with more of its methods follow the script: variables, branches,
//! functions, loops, jobs and here-documents. A value from outside is unknown. What cannot be
//! followed becomes an [`UnreadPlace`](places::UnreadPlace). No command is executed.
//!
//! Branches that exclude each other are kept apart: every value, process and file carries the
//! choices under which it exists (`choice.rs`). Start reading at `evaluator.rs`.

mod arithmetic;
mod builtins;
pub(super) mod choice;
mod commands;
mod condition;
pub(super) mod effects;
mod evaluator;
mod expansion;
mod field;
mod flow;
mod jobs;
mod parser;
pub(super) mod places;
mod substitution;
mod syntax;
mod variables;
pub(super) mod word;
mod written;

pub(super) use evaluator::Evaluator;
