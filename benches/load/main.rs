//! What the load generator itself adds: `mock` is an endpoint whose timing is known, `truth` sets
//! the generator's times against the endpoint's own, `floor` is the least that any client of this
//! kind pays. See README.md beside this file.
#![allow(missing_docs, unreachable_pub)]
#![expect(clippy::disallowed_methods, clippy::print_stdout, reason = "a program of its own, for measurements")]

mod floor;
mod mock;
mod truth;

fn main() {
    let args: Vec<String> = std::env::args().collect();
    match args.get(1).map(String::as_str) {
        Some("mock") => mock::main(&args),
        Some("truth") => truth::main(&args),
        Some("floor") => floor::main(&args),
        // `cargo bench` starts every bench. These take minutes and a processor each, so they run
        // only if named.
        _ => println!("load: not run; say `-- mock`, `-- truth` or `-- floor` (benches/load/README.md)"),
    }
}

/// The number after `name`.
fn number(args: &[String], name: &str, or: f64) -> f64 {
    args.iter().position(|arg| arg == name).map_or(or, |at| args[at + 1].parse().expect("a number"))
}

/// The word after `name`.
fn word<'a>(args: &'a [String], name: &str, or: &'a str) -> &'a str {
    args.iter().position(|arg| arg == name).map_or(or, |at| args[at + 1].as_str())
}
