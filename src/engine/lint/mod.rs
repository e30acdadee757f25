//! Reads what starts a deployment (manifests, units, environment files, command lines, settings files, running processes) and says
//! what is wrong with it.
//!
//! Pure: bytes in, findings out. It reads no file of the host and starts nothing. [`read()`] makes a [`Scene`] of texts, [`check_scene`]
//! runs the rules over it. A rule says only what it can be sure of: what is decided elsewhere (a secret, a variable of the user's
//! shell, a file that was not given) is unknown, and an unknown is never a finding.
//!
//! Start reading at `scene.rs`, then `rules/mod.rs`, which has the catalogue.

mod connectors;
mod flags;
mod names;
mod node;
mod programs;
mod quantity;
mod read;
mod rules;
mod scene;
mod settings;
mod words;

pub use names::MCCTL_FLAGS;
pub use node::{FILE_BYTES_MAX, Node};
pub use programs::{METADATA_FLAGS, NODE_FLAGS, REFUSED_BY_MASTER, REFUSED_BY_NODE, Refused, UP_FLAGS};
pub use read::proc::{environment, process as running_process};
pub use read::{Kind, ReadError, Source, read, read_each};
pub use rules::{CHECKS, check_scene};
pub use scene::{Habitat, Make, Mode, Process, Role, Said, Scene, Variable};
