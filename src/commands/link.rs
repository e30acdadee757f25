//! Links: mcctl started under the name of a program of the Mooncake wheel behaves as that program.

use std::path::Path;

use crate::commands::bench::transfer;
use crate::commands::devices::dump;
use crate::commands::error::{Failure, Outcome};
use crate::commands::logging;
use crate::commands::serve::Service;

/// A program that mcctl stands in for. The sizing script, which is imitated byte for byte, is
/// [`crate::commands::size_hugepages::compat_of`]'s.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Link {
    /// A part of a store, with its own flags.
    Service(Service),
    /// `transfer_engine_bench`.
    TransferBench,
    /// `transfer_engine_topology_dump`.
    TopologyDump,
    /// `mooncake_client`, which is not supported.
    Client,
}

/// Every name of a link, the sizing script's included.
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

impl Link {
    /// The link that `program`, a path or a name, is.
    pub fn named(program: &str) -> Option<Link> {
        Some(match Path::new(program).file_name()?.to_str()? {
            "mooncake_master" => Link::Service(Service::Master),
            "mooncake_http_metadata_server" => Link::Service(Service::Metadata),
            "mc_store_rest_server" | "mooncake_store_service" => Link::Service(Service::Store),
            "transfer_engine_bench" => Link::TransferBench,
            "transfer_engine_topology_dump" => Link::TopologyDump,
            "mooncake_client" => Link::Client,
            _ => return None,
        })
    }

    /// Run it with the words after its name.
    ///
    /// # Errors
    /// As the command that it stands for.
    pub fn run(self, words: &[String]) -> Outcome {
        match self {
            Link::Service(service) => service.run(words, &logging::Options::default()),
            Link::TransferBench => {
                logging::init(&logging::Options::default(), super::QUIET)?;
                transfer::link::run(words)
            }
            Link::TopologyDump => {
                logging::init(&logging::Options::default(), super::QUIET)?;
                dump::run(words)
            }
            Link::Client => Err(client(words)),
        }
    }
}

/// The error for `mooncake_client`, whatever its flags.
fn client(words: &[String]) -> Failure {
    let line = std::iter::once("mooncake_client").chain(words.iter().map(String::as_str)).collect::<Vec<_>>().join(" ");
    Failure::usage("mooncake_client is not supported: mcctl has no stand-alone client")
        .tried(line)
        .found("dummy clients and shared memory are served by the wheel's own mooncake_client only")
        .next(
            "for a node that keeps objects when the engine ends: mcctl serve store; for dummy clients (SGLang's standalone_storage): \
             the wheel's mooncake_client, which works with mcctl serve master",
        )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_is_named_by_the_last_part_of_its_path() {
        assert_eq!(Link::named("/usr/bin/mooncake_master"), Some(Link::Service(Service::Master)));
        assert_eq!(Link::named("mooncake_http_metadata_server"), Some(Link::Service(Service::Metadata)));
        assert_eq!(Link::named("mc_store_rest_server"), Some(Link::Service(Service::Store)));
        assert_eq!(Link::named("./mooncake_store_service"), Some(Link::Service(Service::Store)));
        assert_eq!(Link::named("mcctl"), None);
    }

    #[test]
    fn every_name_is_a_link_and_in_the_help() {
        use clap::CommandFactory;
        let help = crate::commands::Cli::command().render_help().to_string().replace(['\n', ' '], "");
        for name in NAMES {
            let is_script = crate::commands::size_hugepages::compat_of(&[(*name).to_owned()]).is_some();
            assert!(is_script || Link::named(name).is_some(), "{name}");
            assert!(help.contains(name), "{name}");
        }
    }
}
