//! The command line: the only place that knows clap, tables, colours, progress bars and exit codes.

pub mod admin;
pub mod args;
pub mod bench;
pub mod completions;
pub mod config_file;
pub mod confirm;
pub mod devices;
pub mod discovery;
pub mod doctor;
pub mod error;
pub mod flags;
pub mod gflags;
pub mod help;
pub mod init;
pub mod input;
pub mod link;
pub mod lint;
pub mod listen;
pub mod logging;
pub mod man;
pub mod output;
pub mod render;
pub mod runtime;
pub mod serve;
pub mod settings;
pub mod size_hugepages;
pub mod status;
pub mod store;
pub mod svg;
pub mod target;
pub mod transport;
mod tree;
mod unknown_key;
pub mod up;

use std::ffi::OsString;
use std::process::ExitCode;

use clap::error::ErrorKind;
use clap::{Args, CommandFactory, Parser, Subcommand};

use crate::commands::error::{Exit, Failure, Outcome};
use crate::commands::link::Link;
use crate::commands::serve::Service;
use crate::engine::sys::signal;

/// What `--version` says after the program's name.
pub const VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), " (speaks Mooncake 0.3.13)");

/// Size, check, serve, move and measure a Mooncake KV-cache store.
#[derive(Debug, Parser)]
#[command(name = "mcctl", version = VERSION, max_term_width = 100, disable_help_subcommand = true)]
#[command(after_help = "Exit codes: 0 done, 1 ran and the answer is no, 2 command line or configuration wrong, \
    3 something outside unreachable, 4 this host cannot do it, 70 a bug.\n\
    A link named mooncake_master, mooncake_http_metadata_server, mc_store_rest_server, mooncake_store_service, \
    transfer_engine_bench, transfer_engine_topology_dump, mooncake-hicache-sizing or check_hicache_hugepage_requirements \
    behaves as that program.")]
struct Cli {
    #[command(flatten)]
    log: logging::Options,
    #[command(subcommand)]
    command: Command,
}

/// What goes wrong in a command that ends by itself is in its own error; that it moves bytes otherwise than asked for is not.
const QUIET: &str = "error,mcctl::commands::transport=warn,mcctl::engine::transfer::engine=warn,\
                     mcctl::engine::transfer::rdma::open=warn";

#[derive(Debug, Subcommand)]
enum Command {
    /// Run a part of a store until a signal ends it
    #[command(subcommand)]
    Serve(ServeCommand),
    /// A whole store in one process on this machine, checked, and what to paste to use it
    Up(up::Args),
    /// Put, get and look at objects
    #[command(subcommand)]
    Store(store::Command),
    /// What a master holds and does
    Status(status::Args),
    /// Measure
    #[command(subcommand)]
    Bench(bench::Command),
    /// How much memory and how many huge pages a SGLang HiCache deployment takes, and whether this host has them
    SizeHugepages(Box<size_hugepages::Args>),
    /// The RDMA devices of this host, what is wrong with them, and which to use
    Devices(devices::Args),
    /// What is wrong with this host, the wheel, a running store, and what to do about it
    Doctor(Box<doctor::Args>),
    /// What is wrong with manifests, units, environment files and command lines, with file and line
    Lint(lint::Args),
    /// A commented deployment file, from flags or questions
    Init(Box<init::Args>),
    /// The files that start a deployment: units, scripts, Compose files, manifests
    Render(render::Args),
    /// A script with which a shell completes this command line
    Completions(completions::Args),
    /// Manual pages
    Man(man::Args),
}

#[derive(Debug, Subcommand)]
enum ServeCommand {
    /// The master: where objects are, and who holds memory (takes mooncake_master's flags)
    #[command(disable_help_flag = true)]
    Master(Raw),
    /// The transfer engine's metadata service (takes mooncake_http_metadata_server's flags)
    #[command(disable_help_flag = true)]
    Metadata(Raw),
    /// A store node: memory for objects, and a REST port (takes mooncake_store_service's flags)
    #[command(disable_help_flag = true)]
    Store(Raw),
    /// A simulator of a SGLang endpoint with HiCache: no model, a real radix cache, any Mooncake store as its third tier
    Sim(Box<serve::sim::Args>),
}

/// Flags that another parser reads.
#[derive(Debug, Args)]
struct Raw {
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "FLAGS")]
    args: Vec<String>,
}

/// Run the command line `args` (the program's name first) and give its exit code.
pub fn main(args: Vec<OsString>) -> ExitCode {
    error::install_panic_hook();
    signal::file_size_limit_is_an_error();
    let exit = error::guard(|| run(args).unwrap_or_else(|failure| failure.report()));
    logging::finish();
    exit.into()
}

/// Variables that are read here must be text; else they would be taken for unset.
fn check_environment(variables: impl Iterator<Item = (OsString, OsString)>) -> Result<(), Failure> {
    let ours = |name: &str| ["MC_", "MCCTL_", "MOONCAKE_"].iter().any(|prefix| name.starts_with(prefix));
    for (name, value) in variables {
        if let (Some(name), None) = (name.to_str().filter(|name| ours(name)), value.to_str()) {
            let found = format!("the environment variable {name} is not UTF-8: {}", value.display());
            return Err(Failure::usage(found).next(format!("unset {name}, or give it a value")));
        }
    }
    Ok(())
}

fn run(args: Vec<OsString>) -> Outcome {
    let args = args.into_iter().map(OsString::into_string).collect::<Result<Vec<_>, _>>();
    let args = args.map_err(|bad| Failure::usage(format!("an argument is not UTF-8: {}", bad.display())))?;
    if let Some((program, rest)) = size_hugepages::compat_of(&args) {
        return size_hugepages::compat::run(&program, &rest).map(Exit::Imitated);
    }
    check_environment(std::env::vars_os())?;
    if let Some((program, words)) = args.split_first()
        && let Some(link) = Link::named(program)
    {
        return link.run(words);
    }
    let (service, rest) = match service_of(&args) {
        Some(found) => found,
        None => {
            let args = bench::serving::abbreviations::expand(args, own_flags);
            let args = bench::multi_turn::preset::expand(args)?;
            let cli = match Cli::try_parse_from(&args) {
                Ok(cli) => cli,
                // --help and --version
                Err(error) if !error.use_stderr() => {
                    output::data(error.to_string())?;
                    return Ok(Exit::Done);
                }
                // A command without its second word: the choice is shown, which is no error message.
                Err(error) if error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
                    output::say(error.to_string().trim_end());
                    return Ok(Exit::Usage);
                }
                Err(error) => return Err(error.into()),
            };
            return cli.run();
        }
    };
    service.run(rest, &logging::Options::default())
}

/// The long flags of `bench COMMAND`, without dashes.
fn own_flags(command: &str) -> Vec<String> {
    let whole = Cli::command();
    let found = whole.find_subcommand("bench").and_then(|bench| bench.find_subcommand(command));
    let args = found.into_iter().flat_map(clap::Command::get_arguments);
    args.flat_map(|arg| {
        arg.get_long_and_visible_aliases().into_iter().flatten().chain(arg.get_all_aliases().into_iter().flatten())
    })
    .map(str::to_owned)
    .collect()
}

/// The service that the first two words name. Its flags are not clap's: they go past it untouched.
fn service_of(args: &[String]) -> Option<(Service, &[String])> {
    let (_, rest) = args.split_first()?;
    let ([first, second], rest) = rest.split_first_chunk::<2>()?;
    let service = match (first.as_str(), second.as_str()) {
        ("serve", "master") => Service::Master,
        ("serve", "metadata") => Service::Metadata,
        ("serve", "store") => Service::Store,
        _ => return None,
    };
    Some((service, rest))
}

impl Cli {
    fn run(self) -> Outcome {
        let log = &self.log;
        match self.command {
            Command::Serve(ServeCommand::Master(raw)) => Service::Master.run(&raw.args, log),
            Command::Serve(ServeCommand::Metadata(raw)) => Service::Metadata.run(&raw.args, log),
            Command::Serve(ServeCommand::Store(raw)) => Service::Store.run(&raw.args, log),
            Command::Serve(ServeCommand::Sim(args)) => {
                logging::init(&log.with_file(&args.log), "warn")?;
                args.run()
            }
            Command::Up(args) => {
                logging::init(&log.with_file(&args.log), "warn")?;
                args.run()
            }
            Command::Store(command) => {
                logging::init(log, QUIET)?;
                command.run()
            }
            Command::Status(args) => {
                logging::init(log, QUIET)?;
                args.run()
            }
            Command::Bench(command) => {
                logging::init(log, QUIET)?;
                command.run()
            }
            Command::SizeHugepages(args) => {
                logging::init(log, QUIET)?;
                args.run()
            }
            Command::Devices(args) => {
                logging::init(log, QUIET)?;
                args.run()
            }
            Command::Doctor(args) => {
                logging::init(log, "off")?;
                args.run()
            }
            Command::Lint(args) => {
                logging::init(log, QUIET)?;
                args.run()
            }
            Command::Init(args) => args.run(),
            Command::Render(args) => args.run(),
            Command::Completions(args) => args.run(),
            Command::Man(args) => args.run(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_well_formed() {
        use clap::CommandFactory;
        Cli::command().debug_assert();
    }

    #[test]
    fn two_words_name_a_service() {
        let split = |line: &str| -> Option<(Service, usize)> {
            let args: Vec<String> = line.split(' ').map(str::to_owned).collect();
            service_of(&args).map(|(service, rest)| (service, rest.len()))
        };
        assert_eq!(split("mcctl serve store --port=1"), Some((Service::Store, 1)));
        assert_eq!(split("mcctl serve"), None);
        assert_eq!(split("mcctl bench transfer"), None);
    }
}
