//! The command line. No other module uses clap, tables, colors, progress bars or exit codes.

pub mod bench;
pub mod cli;
pub mod completions;
pub mod devices;
pub mod doctor;
pub mod failure;
pub mod help;
pub mod init;
pub mod lint;
pub mod man;
pub mod master;
pub mod program_alias;
pub mod render;
pub mod serve;
pub mod size_hugepages;
pub mod status;
pub mod store;
pub mod target;
pub mod up;
pub mod version;

use std::ffi::OsString;
use std::process::ExitCode;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Args, CommandFactory, FromArgMatches, Parser, Subcommand};

use crate::commands::cli::error::{Exit, Failure, Outcome};
use crate::commands::help::arguments::HELP_ALL;
use crate::commands::help::length::HelpLength;
use crate::commands::program_alias::ProgramAlias;
use crate::commands::serve::ServiceKind;
use crate::engine::sys::signal;
use crate::engine::upstream::mooncake_series;

/// The version, in the first line that `--version` prints.
pub const VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), " (compatible with Mooncake ", mooncake_series!(), ")");

/// Size, run, check and benchmark a Mooncake KV-cache store.
#[derive(Debug, Parser)]
#[command(before_long_help = "mcctl up  # run a complete store on this machine and print usage instructions\n\
    mcctl store put greeting --value hello  # store an object\n\
    mcctl status  # show a running master's memory, objects, clients and segments\n\
    mcctl doctor  # check this host and the running store\n\
    mcctl help store put  # show the help for one command")]
#[command(name = "mcctl", version = VERSION, max_term_width = 100, disable_help_subcommand = true)]
#[command(
    after_help = "Exit codes: 0 success, 1 negative result or failed check, 2 invalid command line or configuration, \
    3 a service is unreachable, 4 missing permission, memory, device or port on this host, 70 internal error (bug in mcctl).\n\
    When mcctl is started through a symlink named mooncake_master, mooncake_http_metadata_server, mc_store_rest_server, \
    mooncake_store_service, transfer_engine_bench, transfer_engine_topology_dump, mooncake-hicache-sizing or \
    check_hicache_hugepage_requirements, it behaves like that program."
)]
struct Cli {
    #[command(flatten)]
    log: cli::logging::LogOptions,
    #[command(subcommand)]
    command: TopCommand,
}

/// Log filter for commands that are not services. The command itself reports each error, once. The
/// only warnings logged concern RDMA and the use of a transport other than the requested one.
const QUIET: &str = "error,mcctl::commands::target::transport=warn,mcctl_transfer::start=warn,\
                     mcctl_transfer::rdma::open=warn";

#[derive(Debug, Subcommand)]
enum TopCommand {
    /// Run a service: master, metadata service, store node or simulator
    #[command(
        before_long_help = "mcctl serve master --enable_http_metadata_server=true  # run a master with an embedded metadata service\n\
        mcctl serve store --master 10.0.0.1:50051 --segment-size 64gb  # contribute 64 GiB of this host's memory to the store"
    )]
    #[command(subcommand)]
    Serve(ServeCommand),
    /// Run a complete store on this machine, check it, and print usage instructions
    Up(up::Args),
    /// Put, get, list and remove objects
    #[command(before_long_help = "mcctl store put greeting --value hello  # store an object\n\
        mcctl store get greeting  # write the object to stdout\n\
        mcctl store ls --long  # list all keys with size, replica count and node")]
    #[command(subcommand)]
    Store(store::StoreCommand),
    /// Operate a running master
    #[command(
        before_long_help = "mcctl master step-down --master etcd://127.0.0.1:2379  # make a standby the leader before a host is shut down"
    )]
    #[command(subcommand)]
    Master(master::MasterCommand),
    /// Show a master's memory, objects, clients, segments and rates
    Status(status::Args),
    /// Measure stores, transfers and inference servers
    #[command(before_long_help = "mcctl bench store  # measure put and get on a store\n\
        mcctl bench multi-turn --url http://127.0.0.1:30000  # measure multi-turn conversations with an inference server")]
    #[command(subcommand)]
    Bench(bench::BenchCommand),
    /// Compute the memory and huge pages that an SGLang HiCache deployment needs, and check this
    /// host
    SizeHugepages(Box<size_hugepages::Args>),
    /// List the RDMA devices on this host, their problems and the recommended choice
    Devices(devices::Args),
    /// Check this host, the Mooncake wheel and a running store, and suggest fixes
    Doctor(Box<doctor::Args>),
    /// Check manifests, units, environment files and command lines for mistakes
    Lint(lint::Args),
    /// Write a commented deployment file from flags or interactive answers
    Init(Box<init::Args>),
    /// Generate units, scripts, Compose files or manifests from a deployment file
    Render(render::Args),
    /// Print a shell completion script
    Completions(completions::Args),
    /// Print or install manual pages
    Man(man::Args),
    /// Show the help for a command
    Help(HelpArgs),
    /// Print the mcctl version and how it was built
    Version(version::Args),
}

#[derive(Debug, Args)]
#[command(before_long_help = "mcctl help store put  # the same as mcctl store put --help")]
struct HelpArgs {
    /// The command, e.g. store put
    #[arg(value_name = "COMMAND")]
    command: Vec<String>,
}

#[derive(Debug, Subcommand)]
enum ServeCommand {
    /// Run a master, the index of a store's objects and segments (accepts the mooncake_master
    /// flags)
    #[command(before_help = "rpc-port metrics-port data-dir enable-ha etcd-endpoints enable-http-metadata-server \
        default-kv-lease-ttl eviction-high-watermark-ratio client-ttl config-path log-level")]
    #[command(before_long_help = "mcctl serve master  # RPC on port 50051, admin HTTP on port 9003\n\
        mcctl serve master --enable_http_metadata_server=true  # also serve the metadata service on port 8080\n\
        mcctl serve master --config_path /etc/mooncake/master.yaml  # read the settings from a file")]
    #[command(disable_help_flag = true)]
    Master(RawFlags),
    /// Run the transfer engine's metadata service (accepts the mooncake_http_metadata_server flags)
    #[command(before_help = "port host log-level")]
    #[command(before_long_help = "mcctl serve metadata  # listen on port 8080 on all addresses\n\
        mcctl serve metadata --host 10.0.0.1 --port 8081  # listen on a specific address and port")]
    #[command(disable_help_flag = true)]
    Metadata(RawFlags),
    /// Run a store node that contributes memory and serves a REST API (accepts the
    /// mooncake_store_service flags)
    #[command(
        before_help = "master metadata-server local-hostname segment-size protocol device-name rest-port config log-level"
    )]
    #[command(
        before_long_help = "mcctl serve store --master 10.0.0.1:50051 --segment-size 64gb  # contribute 64 GiB, without a metadata service\n\
        mcctl serve store --master 10.0.0.1:50051 --metadata-server http://10.0.0.1:8080/metadata  # use an HTTP metadata service\n\
        mcctl serve store --config /etc/mooncake/store.json  # read the settings from a file"
    )]
    #[command(disable_help_flag = true)]
    Store(RawFlags),
    /// Simulate an SGLang server with HiCache: no model, but a real radix cache and any Mooncake
    /// store as L3
    Sim(Box<serve::sim::Args>),
}

/// Flags that [`cli::gflags`] parses.
#[derive(Debug, Args)]
struct RawFlags {
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "FLAGS")]
    args: Vec<String>,
}

/// Runs the command line `args`, which begins with the program name. Returns the exit code.
pub fn main(args: Vec<OsString>) -> ExitCode {
    cli::error::install_panic_hook();
    signal::file_size_limit_is_an_error();
    let (exit, failure) = match cli::error::guard(|| run(args.clone())) {
        Ok(Ok(exit)) => (exit, None),
        Ok(Err(failure)) => (failure.report(), Some(failure)),
        Err(panic) => (panic.exit, Some(panic)),
    };
    if exit != Exit::Done && !cli::output::has_document() && requests_json(args) {
        let failure = failure.unwrap_or_else(|| Failure::new(exit, "the command failed").next("see stderr"));
        // The exit code does not depend on whether stdout can be written: stderr has the error.
        let _ = cli::error_document::print(&failure);
    }
    cli::logging::finish();
    exit.into()
}

/// Whether the command line requests JSON on stdout. Programs that a symlink imitates have no JSON
/// documents.
fn requests_json(args: Vec<OsString>) -> bool {
    let args: Vec<String> = args.into_iter().map(|word| word.to_string_lossy().into_owned()).collect();
    let is_imitated = size_hugepages::compat_of(&args).is_some()
        || args.first().is_some_and(|program| ProgramAlias::named(program).is_some());
    !is_imitated && cli::json_flag::is_set(&Cli::command(), &args)
}

/// Rejects mcctl and Mooncake environment variables that are not UTF-8: they would be treated as
/// unset.
fn check_environment(variables: impl Iterator<Item = (OsString, OsString)>) -> Result<(), Failure> {
    let is_read = |name: &str| ["MC_", "MCCTL_", "MOONCAKE_"].iter().any(|prefix| name.starts_with(prefix));
    for (name, value) in variables {
        if let (Some(name), None) = (name.to_str().filter(|name| is_read(name)), value.to_str()) {
            // The value of a variable that contains a secret is not shown.
            let value =
                if name == target::credentials::TOKEN { String::new() } else { format!(": {}", value.display()) };
            let what = format!("the environment variable {name} is not UTF-8{value}");
            return Err(Failure::usage(what).next(format!("unset {name}, or set it to valid UTF-8")));
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
        && let Some(link) = ProgramAlias::named(program)
    {
        return link.run(words);
    }
    let (service, rest) = match service_of(&args) {
        Some(found) => found,
        None => {
            let args = bench::serving::abbreviations::expand(args, own_flags);
            let args = bench::multi_turn::preset::expand(args)?;
            let cli = match parse(&args) {
                Ok(cli) => {
                    cli::switch_value::check(&parser(), &args)?;
                    cli
                }
                Err(error) if error.kind() == ErrorKind::DisplayVersion => {
                    return version::print(args.iter().any(|word| word == "--json"));
                }
                Err(error) => {
                    if error.use_stderr() {
                        cli::switch_value::check(&parser(), &args)?;
                    }
                    return answer(error, &args)
                        .map_err(|failure| cli::switch_value::explained(failure, &parser(), &args));
                }
            };
            return cli.run().map_err(|failure| cli::switch_value::explained(failure, &parser(), &args));
        }
    };
    service.run(rest, &cli::logging::LogOptions::default())
}

/// Prints the help or the version that clap's `error` asks for. Other errors are failures.
fn answer(error: clap::Error, args: &[String]) -> Outcome {
    // clap does not know --help-all, and answers --help instead.
    let as_help = |arg: &String| if arg == HELP_ALL { "--help".to_owned() } else { arg.clone() };
    let asks_for_all = args.iter().any(|arg| arg == HELP_ALL);
    let error = if asks_for_all { parse(&args.iter().map(as_help).collect::<Vec<_>>()).err() } else { Some(error) };
    let Some(error) = error else { return Err(Failure::usage(format!("{HELP_ALL} is not a value"))) };
    let text = error.to_string();
    match help::arguments::requested(&text) {
        // If a required subcommand is missing, the list of subcommands is the error message.
        Some((path, _))
            if error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand
                && args.iter().any(|arg| arg == "--json") =>
        {
            Err(Failure::usage(format!("mcctl {path} needs a subcommand")).next("see --help"))
        }
        Some((path, length)) if error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            cli::output::say(help::arguments::plain_text(&path, length)?.trim_end());
            Ok(Exit::Usage)
        }
        Some((path, length)) => {
            cli::output::data(help::arguments::text(&path, if asks_for_all { HelpLength::All } else { length })?)?;
            Ok(Exit::Done)
        }
        None if !error.use_stderr() => {
            cli::output::data(text)?;
            Ok(Exit::Done)
        }
        None => Err(error.into()),
    }
}

/// The command tree used by the parser.
fn parser() -> clap::Command {
    help::arguments::guided(Cli::command())
}

fn parse(args: &[String]) -> Result<Cli, clap::Error> {
    let matches = parser().try_get_matches_from(args).map_err(|error| suggest_visible(error, args))?;
    Cli::from_arg_matches(&matches)
}

/// Replaces a suggested alias by its argument's name in the help, and removes the suggestion of an
/// argument that the help does not show.
fn suggest_visible(mut error: clap::Error, args: &[String]) -> clap::Error {
    let Some(ContextValue::String(suggested)) = error.get(ContextKind::SuggestedArg) else { return error };
    let name = suggested.trim_start_matches('-').to_owned();
    let mut whole = parser();
    whole.build();
    let command = args.iter().skip(1).fold(&whole, |command, word| command.find_subcommand(word).unwrap_or(command));
    let argument = command.get_arguments().find(|argument| {
        let names = argument.get_long_and_visible_aliases().unwrap_or_default();
        names.into_iter().chain(argument.get_all_aliases().unwrap_or_default()).any(|known| known == name)
    });
    match argument.filter(|argument| !argument.is_hide_set()).and_then(clap::Arg::get_long) {
        Some(long) => error.insert(ContextKind::SuggestedArg, ContextValue::String(format!("--{long}"))),
        None => error.remove(ContextKind::SuggestedArg),
    };
    error
}

/// Shows the help for the command that `words` specify.
fn show_help(words: &[String]) -> Outcome {
    cli::output::data(help::arguments::text(&words.join(" "), HelpLength::Long)?)?;
    Ok(Exit::Done)
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

/// The service that the first two words specify, and its flags. clap does not parse these flags;
/// [`cli::gflags`] does.
fn service_of(args: &[String]) -> Option<(ServiceKind, &[String])> {
    let (_, rest) = args.split_first()?;
    let ([first, second], rest) = rest.split_first_chunk::<2>()?;
    let service = match (first.as_str(), second.as_str()) {
        ("serve", "master") => ServiceKind::Master,
        ("serve", "metadata") => ServiceKind::Metadata,
        ("serve", "store") => ServiceKind::Store,
        _ => return None,
    };
    Some((service, rest))
}

impl Cli {
    fn run(self) -> Outcome {
        let log = &self.log;
        match self.command {
            TopCommand::Serve(ServeCommand::Master(raw)) => ServiceKind::Master.run(&raw.args, log),
            TopCommand::Serve(ServeCommand::Metadata(raw)) => ServiceKind::Metadata.run(&raw.args, log),
            TopCommand::Serve(ServeCommand::Store(raw)) => ServiceKind::Store.run(&raw.args, log),
            TopCommand::Serve(ServeCommand::Sim(args)) => {
                cli::logging::init(&log.with_file(&args.log), "warn")?;
                args.run()
            }
            TopCommand::Up(args) => {
                cli::logging::init(&log.with_file(&args.log), "warn")?;
                args.run()
            }
            TopCommand::Store(command) => {
                cli::logging::init(log, QUIET)?;
                command.run()
            }
            TopCommand::Master(command) => {
                cli::logging::init(log, QUIET)?;
                command.run()
            }
            TopCommand::Status(args) => {
                cli::logging::init(log, QUIET)?;
                args.run()
            }
            TopCommand::Bench(command) => {
                cli::logging::init(log, QUIET)?;
                command.run()
            }
            TopCommand::SizeHugepages(args) => {
                cli::logging::init(log, QUIET)?;
                args.run()
            }
            TopCommand::Devices(args) => {
                cli::logging::init(log, QUIET)?;
                args.run()
            }
            TopCommand::Doctor(args) => {
                cli::logging::init(log, "off")?;
                args.run()
            }
            TopCommand::Lint(args) => {
                cli::logging::init(log, QUIET)?;
                args.run()
            }
            TopCommand::Init(args) => args.run(),
            TopCommand::Render(args) => args.run(),
            TopCommand::Completions(args) => args.run(),
            TopCommand::Man(args) => args.run(),
            TopCommand::Help(args) => show_help(&args.command),
            TopCommand::Version(args) => version::print(args.json),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_tree_is_well_formed() {
        parser().debug_assert();
    }

    #[test]
    fn the_value_of_a_variable_with_a_secret_is_not_shown() {
        use std::os::unix::ffi::OsStringExt;
        let refused = |name: &str| {
            let value = OsString::from_vec(b"secret-\xff".to_vec());
            check_environment([(OsString::from(name), value)].into_iter()).unwrap_err().what
        };
        assert!(refused("MOONCAKE_MASTER").contains("secret-"));
        assert!(!refused("MCCTL_TOKEN").contains("secret-"));
    }

    #[test]
    fn only_flags_in_the_help_are_suggested() {
        let suggestion = |line: &str| {
            let args: Vec<String> = line.split(' ').map(str::to_owned).collect();
            match parse(&args).unwrap_err().get(ContextKind::SuggestedArg) {
                Some(ContextValue::String(name)) => Some(name.clone()),
                _ => None,
            }
        };
        assert_eq!(suggestion("mcctl status --adnin=x").as_deref(), Some("--admin"));
        assert_eq!(suggestion("mcctl doctor --problem").as_deref(), Some("--list-problems"));
        for line in ["mcctl doctor --problem", "mcctl bench multi-turn --a-b", "mcctl init --hicache-size-g=1"] {
            let visible = suggestion(line).is_none_or(|name| {
                let words: Vec<&str> = line.split(' ').skip(1).take_while(|word| !word.starts_with('-')).collect();
                help::arguments::text(&words.join(" "), HelpLength::Long).unwrap().contains(&name)
            });
            assert!(visible, "{line}: {:?}", suggestion(line));
        }
    }

    #[test]
    fn the_first_two_words_name_a_service() {
        let split = |line: &str| -> Option<(ServiceKind, usize)> {
            let args: Vec<String> = line.split(' ').map(str::to_owned).collect();
            service_of(&args).map(|(service, rest)| (service, rest.len()))
        };
        assert_eq!(split("mcctl serve store --port=1"), Some((ServiceKind::Store, 1)));
        assert_eq!(split("mcctl serve"), None);
        assert_eq!(split("mcctl bench transfer"), None);
    }
}
