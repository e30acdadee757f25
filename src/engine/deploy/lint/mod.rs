//! Checks everything that starts a deployment: manifests, units, environment files, command lines,
//! settings files and running processes.
//!
//! This module is pure: it reads no host files and starts no processes. [`read()`] parses sources
//! into a [`ParsedDeployment`], and [`check_deployment`] runs the rules over it. A rule reports
//! only definite errors. A value that is resolved elsewhere (a secret, a variable of the user's
//! shell, a file that was not provided) is unknown, and an unknown value is never a finding.
//!
//! Start reading at `model.rs`, then `rules/mod.rs`, which contains the list of rules.

mod catalogue;
mod connectors;
mod findings;
mod flags;
mod model;
mod nearest;
mod programs;
mod quantity;
mod read;
mod release;
mod rules;
mod settings;
mod shell;
mod shell_lexer;
mod source;
mod view;
mod yaml;

pub use model::{
    Implementation, LocatedValue, ParsedDeployment, Process, ProcessRole, RuntimeKind, SglangMode, Variable,
};
pub use programs::{
    MCCTL_FLAGS, METADATA_FLAGS, NODE_FLAGS, REFUSED_BY_MASTER, REFUSED_BY_NODE, RefusedFlag, UP_FLAGS,
};
pub use read::proc::{environment, process as running_process};
pub use read::{read, read_each};
pub use rules::{CHECKS, check_deployment};
pub use shell::places::UnreadPlace;
pub use source::{FileKind, ReadError, SourceFile};
pub use yaml::{FILE_BYTES_MAX, YamlNode};
