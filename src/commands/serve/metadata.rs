//! `mcctl serve metadata`: the transfer engine's metadata service alone.

use crate::commands::error::{Exit, Outcome};
use crate::commands::gflags::Parsed;
use crate::commands::listen::Listen;
use crate::commands::logging;
use crate::commands::runtime::{self, Signals};
use crate::commands::serve::{metadata_flags, settings_of, start_logging};
use crate::engine::base::HostPort;
use crate::engine::env::RealEnv;
use crate::engine::metadata::{KeySpace, Keys, MetadataService};

/// Run the service until a signal ends it.
///
/// # Errors
/// What the user has to know.
pub fn run(parsed: &Parsed, log: &logging::Options) -> Outcome {
    let settings = settings_of(&metadata_flags::TABLE, parsed)?;
    start_logging(&settings, log, None)?;
    let listen = Listen {
        what: "the metadata service",
        at: HostPort::new(settings.text("host"), settings.whole("port")),
        origin: settings.describe("port"),
        host_origin: settings.describe("host"),
    };
    // One thread answers some 100,000 requests a second; a second one would mostly be woken to find nothing to do.
    runtime::block_on(0, async {
        let mut signals = Signals::take_for_service()?;
        let service = MetadataService::reading(RealEnv::new(), key_space(), Keys::Trimmed);
        let running = service.start(&listen.at).await.map_err(|error| listen.failure(&error.source))?;
        tracing::info!("metadata service ready: http://{}/metadata", running.at());
        let signal = signals.next().await;
        tracing::info!("{signal}: stopping with {} records, which are not kept", service.records());
        running.stop().await;
        Ok(Exit::Done)
    })
}

/// The names of records, of the cluster that the environment names.
pub(in crate::commands) fn key_space() -> KeySpace {
    KeySpace::new(std::env::var("MC_METADATA_CLUSTER_ID").ok().as_deref())
}
