//! Program names: when mcctl is started under the name of a program from the Mooncake wheel, it
//! behaves like that program.

use std::path::Path;

use crate::commands::bench::transfer;
use crate::commands::cli::error::{Failure, Outcome};
use crate::commands::cli::logging;
use crate::commands::devices::dump;
use crate::commands::serve::ServiceKind;

/// A program that mcctl replaces. [`crate::commands::size_hugepages::compat_of`] handles the sizing
/// script, whose output mcctl reproduces byte for byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProgramAlias {
    /// A service with its own flags.
    Service(ServiceKind),
    /// `transfer_engine_bench`.
    TransferBench,
    /// `transfer_engine_topology_dump`.
    TopologyDump,
    /// `mooncake_client`, which is not supported.
    Client,
}

/// All names that a symlink to mcctl may have, including the names of the sizing script.
pub const NAMES: &[&str] = &[
    "mooncake_master",
    "mooncake_http_metadata_server",
    "mc_store_rest_server",
    "mooncake_store_service",
    "transfer_engine_bench",
    "transfer_engine_topology_dump",
    "mooncake-hicache-sizing",
    "check_hicache_hugepage_requirements",
];

impl ProgramAlias {
    /// The program that `program`, a path or a name, refers to.
    pub fn named(program: &str) -> Option<ProgramAlias> {
        Some(match Path::new(program).file_name()?.to_str()? {
            "mooncake_master" => ProgramAlias::Service(ServiceKind::Master),
            "mooncake_http_metadata_server" => ProgramAlias::Service(ServiceKind::Metadata),
            "mc_store_rest_server" | "mooncake_store_service" => ProgramAlias::Service(ServiceKind::Store),
            "transfer_engine_bench" => ProgramAlias::TransferBench,
            "transfer_engine_topology_dump" => ProgramAlias::TopologyDump,
            "mooncake_client" => ProgramAlias::Client,
            _ => return None,
        })
    }

    /// Runs the program with `words`, the arguments after its name.
    ///
    /// # Errors
    /// The same as for the command that replaces the program.
    pub fn run(self, words: &[String]) -> Outcome {
        match self {
            ProgramAlias::Service(service) => service.run(words, &logging::LogOptions::default()),
            ProgramAlias::TransferBench => {
                logging::init(&logging::LogOptions::default(), crate::commands::QUIET)?;
                transfer::link::run(words)
            }
            ProgramAlias::TopologyDump => {
                logging::init(&logging::LogOptions::default(), crate::commands::QUIET)?;
                dump::run(words)
            }
            ProgramAlias::Client => Err(client(words)),
        }
    }
}

/// The failure for `mooncake_client` with any flags.
fn client(words: &[String]) -> Failure {
    let line = std::iter::once("mooncake_client").chain(words.iter().map(String::as_str)).collect::<Vec<_>>().join(" ");
    Failure::usage("mooncake_client is not supported: mcctl has no standalone client")
        .tried(line)
        .found("dummy clients and shared memory require the wheel's mooncake_client")
        .next(
            "to keep objects after the engine stops, run mcctl serve store; for dummy clients (SGLang's standalone_storage), run the \
             wheel's mooncake_client, which works with mcctl serve master",
        )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::help::arguments as help;
    use crate::commands::help::length::HelpLength;

    #[test]
    fn a_program_is_recognised_by_the_file_name_of_its_path() {
        assert_eq!(ProgramAlias::named("/usr/bin/mooncake_master"), Some(ProgramAlias::Service(ServiceKind::Master)));
        assert_eq!(
            ProgramAlias::named("mooncake_http_metadata_server"),
            Some(ProgramAlias::Service(ServiceKind::Metadata))
        );
        assert_eq!(ProgramAlias::named("mc_store_rest_server"), Some(ProgramAlias::Service(ServiceKind::Store)));
        assert_eq!(ProgramAlias::named("./mooncake_store_service"), Some(ProgramAlias::Service(ServiceKind::Store)));
        assert_eq!(ProgramAlias::named("mcctl"), None);
    }

    #[test]
    fn every_name_is_recognised_and_listed_in_the_help() {
        let help = help::text("", HelpLength::Long).unwrap().replace(['\n', ' '], "");
        for name in NAMES {
            let is_script = crate::commands::size_hugepages::compat_of(&[(*name).to_owned()]).is_some();
            assert!(is_script || ProgramAlias::named(name).is_some(), "{name}");
            assert!(help.contains(name), "{name}");
        }
    }
}
