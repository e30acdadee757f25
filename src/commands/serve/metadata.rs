//! `mcctl serve metadata`: the transfer engine's metadata service as a separate process.

use crate::commands::cli::error::{Exit, Failure, Outcome};
use crate::commands::cli::gflags::ParsedFlags;
use crate::commands::cli::listen::ListenAddress;
use crate::commands::cli::logging;
use crate::commands::cli::runtime::{self, Signals};
use crate::commands::cli::service_flags::metadata_flags;
use crate::commands::serve::access_plan::{AccessPlan, OpenPort};
use crate::commands::serve::metadata_directory::MetadataDataPlan;
use crate::commands::serve::{metadata_proxy, settings_of, start_logging};
use crate::commands::target::key_space::key_space;
use crate::engine::base::HostPort;
use crate::engine::metadata::{KeyParsing, MetadataService};

/// Runs the service until it receives SIGINT or SIGTERM.
///
/// # Errors
/// The flags are invalid, the port cannot be bound, or the data directory cannot be used.
pub fn run(parsed: &ParsedFlags, log: &logging::LogOptions) -> Outcome {
    let settings = settings_of(&metadata_flags::TABLE, parsed)?;
    start_logging(&settings, log, None)?;
    let access = AccessPlan::of(&settings)?;
    let (host, host_origin) = access.host(&settings, "host");
    let at = HostPort::new(host, settings.whole("port"));
    let origin = settings.describe("port");
    let listen = ListenAddress { what: "the metadata service", at, origin, host_origin };
    if let Some(targets) = metadata_proxy::targets(&settings, &listen.at)? {
        return metadata_proxy::run(&targets, &access, &listen);
    }
    let data = MetadataDataPlan::of(&settings)?;
    // One thread serves about 100,000 requests per second, which is enough.
    runtime::block_on(0, async {
        let mut signals = Signals::take_for_service()?;
        let env = access.env();
        let keys = key_space();
        let parsing = KeyParsing::Trimmed;
        let service = match &data {
            Some(data) => data.restore(&env, keys, parsing)?,
            None => MetadataService::with_parsing(env, keys, parsing),
        };
        let running = service.start_with(&listen.at, access.main_http()).await;
        let running = running.map_err(|error| listen.http_failure(&error))?;
        tracing::info!("metadata service ready: {}://{}/metadata", access.http.scheme(), running.at());
        access.warn_if_open(&[OpenPort::http("metadata", running.at())]);
        tokio::select! {
            signal = signals.next() => {
                let end = if data.is_some() { "are kept" } else { "are lost" };
                tracing::info!("{signal}: stopping; {} records {end}", service.records());
            }
            // `close` returns the same error.
            _ = service.failed() => {}
            never = access.keep_current() => match never {},
        }
        running.stop().await;
        service.close().await.map(|()| Exit::Done).map_err(|error| match &data {
            Some(data) => data.stopped(&error),
            None => Failure::host("the metadata service stopped").found(error.to_string()),
        })
    })
}
