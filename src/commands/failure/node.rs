//! Failures of clients, nodes and store services, as messages: [`ClientOrigins`] and
//! [`NodeOrigins`] name what chose the values.

use std::time::Duration;

use crate::commands::cli::args::show_duration;
use crate::commands::cli::error::{Failure, chain};
use crate::commands::cli::listen::ListenAddress;
use crate::commands::cli::origin::{ClientOrigins, NodeOrigins, Origin, ValueOrigin};
use crate::commands::failure::memory::{self as memory_failure, MemoryBlock};
use crate::commands::target::transport;
use crate::engine::base::text::masked_address;
use crate::engine::base::{ByteSize, HostPort};
use crate::engine::metadata::{MetadataError, MetadataUri, ParseMetadataUriError};
use crate::engine::rpc::CallError;
use crate::engine::store::service::{HostnameError, StoreServiceConfig, StoreServiceError};
use crate::engine::store::{ClientConfig, NodeConfig, StoreError, StoreStartError};
use crate::engine::transfer::TransferError;
use crate::engine::upstream::SERIES;

/// Parses a metadata mode. In an error, a password is masked.
///
/// # Errors
/// The string is neither P2PHANDSHAKE nor the URL of a service.
pub fn metadata(given: Origin<String>) -> Result<Origin<MetadataUri>, Failure> {
    let Origin { value: text, origin } = given;
    let value = text.parse().map_err(|error: ParseMetadataUriError| {
        Failure::usage("unsupported metadata service")
            .tried(origin.to_string().replace(&text, &masked_address(&text)))
            .found(error.to_string())
            .next("use P2PHANDSHAKE, http://HOST:PORT/metadata or etcd://HOST:PORT")
    })?;
    Ok(Origin { value, origin })
}

/// The failure for a process without a usable name. `origin` is what chose the name, if it was
/// given. If the master's name cannot be resolved, the failure is
/// [unreachable](crate::commands::cli::error::Exit::Unreachable).
pub fn hostname(error: &HostnameError, origin: &ValueOrigin) -> Failure {
    match error {
        HostnameError::Unresolved { master, source } => Failure::unreachable(error.to_string())
            .tried(format!("resolve {}", master.host))
            .found(source.to_string())
            .next("correct --master, or fix name resolution on this host"),
        HostnameError::NoAddress { master } => Failure::usage(error.to_string())
            .tried(format!("determine the local address used to reach the master at {master}"))
            .next("set --local-hostname to a name or address of this host"),
        HostnameError::Invalid { source, .. } => {
            Failure::usage(error.to_string()).tried(origin.to_string()).found(source.to_string())
        }
        HostnameError::Unspecified { usable, .. } | HostnameError::LocalOnly { usable, .. } => {
            let reason = match error {
                HostnameError::LocalOnly { master, .. } => format!(
                    "with P2PHANDSHAKE, other nodes connect to this node by its name, and the master is on another host ({master})"
                ),
                _ => "an unspecified address is only valid for listening".to_owned(),
            };
            let usable = usable.map_or(String::new(), |address| format!(", e.g. {address}"));
            Failure::usage(error.to_string()).tried(origin.to_string()).found(reason).next(format!(
                "set --local-hostname (or MOONCAKE_LOCAL_HOSTNAME) to an address that other hosts can reach{usable}"
            ))
        }
    }
}

/// The failure for a store service with `config` that did not start. `rest` and `client_http` are
/// its ports.
pub fn service(
    config: &StoreServiceConfig,
    origins: &NodeOrigins,
    (rest, client_http): (&ListenAddress, Option<&ListenAddress>),
    error: StoreServiceError,
) -> Failure {
    match error {
        StoreServiceError::Memory(shortage) => memory_failure::shortage(origins, &shortage),
        StoreServiceError::Rest(error) => rest.http_failure(&error),
        StoreServiceError::ClientHttp(error) => client_http.unwrap_or(rest).http_failure(&error),
        StoreServiceError::Start(error) => node(&config.node, origins, error),
    }
}

/// The failure for a client with `config` that did not start.
pub fn client(config: &ClientConfig, origins: &ClientOrigins, error: StoreStartError) -> Failure {
    let node_origins =
        NodeOrigins { client: origins.clone(), segment: ValueOrigin::Default, local_buffer: ValueOrigin::Default };
    node(&NodeConfig { client: config.clone(), segment_bytes: ByteSize(0) }, &node_origins, error)
}

/// The failure for a node with `config` that did not start.
pub fn node(config: &NodeConfig, origins: &NodeOrigins, error: StoreStartError) -> Failure {
    let client = &config.client;
    match error {
        StoreStartError::Name(_) | StoreStartError::LoopbackName { .. } => {
            Failure::usage("this node does not have a usable name")
                .tried(format!("--local-hostname {}", client.local_hostname))
                .found(error.to_string())
                .next("set --local-hostname to a name or address that other hosts can reach")
        }
        StoreStartError::Segment(error) => memory_failure::allocation(config, origins, &error, MemoryBlock::Segment),
        StoreStartError::LocalBuffer(error) => {
            memory_failure::allocation(config, origins, &error, MemoryBlock::LocalBuffer)
        }
        StoreStartError::Engine(error) => engine_failure(client, &origins.client, &error),
        StoreStartError::Master(error) => master_failure(client, &origins.client, &error),
        StoreStartError::Stopped => Failure::no(error.to_string()),
    }
}

fn engine_failure(config: &ClientConfig, origins: &ClientOrigins, error: &TransferError) -> Failure {
    if let Some(failure) = transport::failure(error, &origins.transport) {
        return failure;
    }
    let cause = chain(error);
    match error {
        TransferError::Metadata(inner) if inner.is_retryable() => {
            let (within, longer) = match config.max_wait {
                Duration::ZERO => (String::new(), ""),
                wait => (format!(" within {}", show_duration(wait)), "; or set a longer --max-wait-time"),
            };
            let start = match inner.as_ref() {
                MetadataError::Timeout { .. } => "if it is hung, restart it",
                _ => "start it",
            };
            Failure::unreachable(format!("cannot reach the metadata service {}{within}", config.engine.metadata))
                .found(cause)
                .next(format!(
                    "{start} (mcctl serve metadata, or the master's --enable-http-metadata-server), or correct \
                     --metadata-server{longer}"
                ))
        }
        TransferError::Metadata(_)
        | TransferError::Name { .. }
        | TransferError::NameTaken { .. }
        | TransferError::Protocol { .. } => Failure::usage("the transfer engine cannot start")
            .tried(format!("use the name {} in {}", config.local_hostname, config.engine.metadata))
            .found(cause)
            .next("change --local-hostname or --metadata-server"),
        TransferError::NoPort { first, last, source, .. } if first == last => {
            let origin = format!("MC_LEGACY_RPC_PORT_BINDING with the name {}", config.local_hostname);
            handshake_port(*first, origin).failure(source)
        }
        _ => Failure::host("the transfer engine cannot start")
            .tried(format!("use the name {} in {}", config.local_hostname, config.engine.metadata))
            .found(cause)
            .next("check MC_MIN_RPC_PORT, MC_MAX_RPC_PORT and MC_TCP_BIND_ADDRESS"),
    }
}

fn master_failure(config: &ClientConfig, origins: &ClientOrigins, error: &StoreError) -> Failure {
    let tried = format!("call the master at {} ({})", config.master, origins.master);
    match error {
        StoreError::Call(CallError::Remote { .. } | CallError::Decode(_)) | StoreError::Version { .. } => {
            Failure::unreachable(format!("{} is not a Mooncake {SERIES} master", config.master))
                .tried(tried)
                .found(error.to_string())
                .next(format!("pass the RPC address of a Mooncake {SERIES} master with --master"))
        }
        StoreError::Call(call) => {
            let cause = match call {
                CallError::Connect { source, .. } => source.to_string(),
                other => other.to_string(),
            };
            let (within, longer) = match config.max_wait {
                Duration::ZERO => (String::new(), ""),
                wait => (format!(" within {}", show_duration(wait)), "; or set a longer --max-wait-time"),
            };
            Failure::unreachable(format!("cannot reach the master at {}{within}", config.master))
                .tried(tried)
                .found(cause)
                .next(format!("start the master (mcctl serve master) or correct --master{longer}"))
        }
        _ => {
            Failure::no(format!("the master at {} rejected this node", config.master)).tried(tried).found(chain(error))
        }
    }
}

/// The handshake port, if it is fixed. `origin` is what chose it.
pub fn handshake_port(port: u16, origin: String) -> ListenAddress {
    // The port is bound to this address for any node name.
    let at = HostPort::new("0.0.0.0", port);
    ListenAddress { what: "the transfer engine's handshake", at, host_origin: origin.clone(), origin }
}
