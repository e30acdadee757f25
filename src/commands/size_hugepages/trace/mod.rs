//! `--trace`: what a cache of any size would bring on recorded requests.
//!
//! - `args`, `file`: the flags, and the file that they name
//! - `curve`: the hit rate by size, with the requested rates; `scale` converts sizes, `price` adds
//!   what they save and cost, and `choice` selects one of them
//! - `document`: all results, which `text`, `html` and `picture` render
//! - `deployment`: the sizes and the deployment file of the chosen size
//! - `per_request`: the tokens by tier of each request

pub(super) mod args;
mod choice;
mod curve;
mod deployment;
mod document;
mod file;
mod html;
mod per_request;
mod picture;
mod price;
mod scale;
mod text;

use crate::commands::cli::error::Outcome;
use crate::commands::size_hugepages::Args;

/// Computes and prints the curve, or the tokens by tier.
///
/// # Errors
/// The trace or the model cannot be read, an argument is invalid, or an output cannot be written.
pub(super) fn run(args: &Args, path: &str) -> Outcome {
    if args.trace.per_request { per_request::run(args, path) } else { curve::run(args, path) }
}
