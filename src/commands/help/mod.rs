//! Help texts: the tree of commands, pages, and the names of other programs.

pub mod arguments;
pub mod flag;
pub mod length;
pub mod page;
pub mod tree;
