//! `mcctl serve metadata --forward-to`: a proxy for the metadata services of other processes.

use crate::commands::cli::error::{Exit, Failure, Outcome, chain};
use crate::commands::cli::flags::spelled;
use crate::commands::cli::listen::ListenAddress;
use crate::commands::cli::runtime::{self, Signals};
use crate::commands::cli::settings::Settings;
use crate::commands::serve::access_plan::{AccessPlan, OpenPort};
use crate::commands::serve::metadata_directory::ONLY_WITH_DATA;
use crate::engine::base::HostPort;
use crate::engine::metadata::{ForwardTargets, MetadataProxy, ParseForwardTargetsError};
use crate::engine::sys::interface::hosts_overlap;

/// The targets of the proxy that the flags of `serve metadata` describe. `None` for a service with
/// records of its own.
///
/// # Errors
/// The list is invalid, contains the address `listen`, or contradicts another flag.
pub fn targets(settings: &Settings, listen: &HostPort) -> Result<Option<ForwardTargets>, Failure> {
    if !settings.is_given("forward_to") {
        return Ok(None);
    }
    let given = settings.describe("forward_to");
    if let Some(other) = ["data_dir"].iter().chain(&ONLY_WITH_DATA).find(|name| settings.is_given(name)) {
        return Err(Failure::usage(format!(
            "--forward-to cannot be combined with {}: a proxy keeps no records",
            spelled(other)
        ))
        .found(format!("{given} and {}", settings.describe(other)))
        .next("remove one of them: the records are in the data directories of the services in --forward-to"));
    }
    let invalid = |found: String| {
        Failure::usage("--forward-to is not a list of metadata services")
            .tried(given.clone())
            .found(found)
            .next("use addresses like 10.0.0.1:8080,10.0.0.2:8080, or URLs like https://10.0.0.1:8080")
    };
    let parsed = settings.text("forward_to").parse::<ForwardTargets>();
    let targets = parsed.map_err(|error: ParseForwardTargetsError| invalid(error.to_string()))?;
    let is_self = |at: &&HostPort| at.port == listen.port && at.is_loopback() && hosts_overlap(&at.host, &listen.host);
    if let Some(own) = targets.addresses().find(is_self) {
        return Err(Failure::usage("--forward-to contains the address of this proxy")
            .tried(given)
            .found(format!("{own}, and this process listens on {listen}"))
            .next("name only the services that keep the records, or use another --port"));
    }
    Ok(Some(targets))
}

/// Runs a proxy for `targets` until it receives SIGINT or SIGTERM.
///
/// # Errors
/// The port cannot be bound, or the HTTP client cannot be set up.
pub fn run(targets: &ForwardTargets, access: &AccessPlan, listen: &ListenAddress) -> Outcome {
    let proxy = MetadataProxy::new(targets, &access.credentials);
    let proxy = proxy.map_err(|error| Failure::host("cannot start the metadata proxy").found(chain(&error)))?;
    runtime::block_on(0, async {
        let mut signals = Signals::take_for_service()?;
        let running = proxy.start_with(access.env(), &listen.at, access.main_http()).await;
        let running = running.map_err(|error| listen.http_failure(&error))?;
        let targets: Vec<&str> = proxy.targets().collect();
        let scheme = access.http.scheme();
        tracing::info!("metadata proxy ready: {scheme}://{}/metadata, for {}", running.at(), targets.join(", "));
        access.warn_if_open(&[OpenPort::http("metadata", running.at())]);
        tokio::select! {
            signal = signals.next() => tracing::info!("{signal}: stopping"),
            never = access.keep_current() => match never {},
        }
        running.stop().await;
        Ok(Exit::Done)
    })
}
