//! `mcctl serve store`: runs a store node with its REST port. It accepts mooncake_store_service's
//! flags, JSON keys and environment.

mod plan;
mod settings;

use std::pin::pin;

use tokio::sync::oneshot;

use crate::commands::cli::error::{Exit, Failure, Outcome};
use crate::commands::cli::gflags::ParsedFlags;
use crate::commands::cli::logging;
use crate::commands::cli::runtime;
use crate::commands::cli::runtime::Signals;
use crate::commands::failure::node as node_failure;
use crate::commands::serve::access_plan::{AccessPlan, OpenPort};
use crate::commands::serve::start_logging;
use crate::commands::serve::store::plan::{ServicePlan, plan_in_time, warn_of_unknown_name};
use crate::commands::serve::store::settings::settings;
use crate::engine::base::{ByteSize, HostPort};
use crate::engine::env::{RealEnv, processors};
use crate::engine::store::service::StoreService;

/// Runs a store node until it receives SIGINT or SIGTERM.
///
/// # Errors
/// The settings are invalid, a port cannot be bound, or the master or metadata service is
/// unreachable.
pub fn run(parsed: &ParsedFlags, log: &logging::LogOptions) -> Outcome {
    let env = |name: &str| std::env::var(name).ok();
    let (settings, warnings) = settings(parsed, &env)?;
    start_logging(&settings, log, None)?;
    for warning in warnings {
        tracing::warn!("{warning}");
    }
    runtime::block_on(processors().min(THREADS_MAX), async {
        let mut signals = Signals::take_for_service()?;
        let plan = tokio::select! {
            planned = plan_in_time(settings) => planned?,
            signal = signals.next() => {
                tracing::info!("{signal}: stopping before the node is ready");
                return Ok(Exit::Done);
            }
        };
        plan.check_ports()?;
        let client = &plan.config.node.client;
        warn_of_unknown_name(client);
        let Some(service) = start(&plan, &mut signals).await? else { return Ok(Exit::Done) };
        let memory = service
            .node()
            .segment()
            .map_or_else(|| "no memory".to_owned(), |segment| ByteSize(segment.size).to_string());
        tracing::info!(
            "Store service started successfully on {}: contributes {memory} to the master at {}",
            service.node().name(),
            client.master
        );
        let scheme = plan.access.http.scheme();
        tracing::info!("REST API started on port {}: {scheme}://{}", service.rest_at().port, service.rest_at());
        if let Some(at) = service.client_http_at() {
            tracing::info!("client HTTP server started on port {}: {scheme}://{at}", at.port);
        }
        warn_if_open(&plan.access, &service);
        let signal = tokio::select! {
            signal = signals.next() => signal,
            never = plan.access.keep_current() => match never {},
        };
        tracing::info!("{signal}: stopping");
        runtime::stop_in_time("the node", service.stop()).await;
        Ok(Exit::Done)
    })
}

/// Starts the service of `plan`; `None` if a signal arrives before it has started. In this case,
/// its records have been removed.
async fn start(plan: &ServicePlan, signals: &mut Signals) -> Result<Option<StoreService<RealEnv>>, Failure> {
    for warning in &plan.warnings {
        tracing::warn!("{warning}");
    }
    let (cancel, cancelled) = oneshot::channel::<()>();
    let cancelled = async move { cancelled.await.unwrap_or_default() };
    let mut starting = pin!(StoreService::start_unless(plan.config.clone(), plan.access.env(), cancelled));
    let started = tokio::select! {
        started = &mut starting => started,
        signal = signals.next() => {
            tracing::info!("{signal}: stopping before the node is ready");
            // The receiver no longer exists if startup has just completed.
            let _ = cancel.send(());
            let end = async {
                if let Ok(service) = starting.await {
                    service.stop().await;
                }
            };
            runtime::stop_in_time("the node", end).await;
            return Ok(None);
        }
    };
    let ports = (&plan.rest, plan.client_http.as_ref());
    started.map(Some).map_err(|error| node_failure::service(&plan.config, &plan.origins, ports, error))
}

/// Logs one warning if a port is reachable from other hosts and nothing restricts who uses it.
fn warn_if_open(access: &AccessPlan, service: &StoreService<RealEnv>) {
    let engine = service.node().client().engine();
    // Without --bind, the transfer engine listens on the loopback only if it announces a loopback
    // name.
    let on = |port| HostPort::new(access.bind.map_or(engine.handshake().host.clone(), |bind| bind.to_string()), port);
    let handshake = on(engine.handshake().port);
    let data = on(engine.data_port());
    let mut listens = vec![OpenPort::http("REST", service.rest_at())];
    listens.extend(service.client_http_at().map(|at| OpenPort::http("client HTTP", at)));
    listens.push(OpenPort::mooncake("handshake", &handshake));
    if data.port != 0 {
        listens.push(OpenPort::mooncake("data", &data));
    }
    access.warn_if_open(&listens);
}

/// Threads for REST, heartbeats and handshakes. The transfer engine has its own threads.
const THREADS_MAX: usize = 4;
