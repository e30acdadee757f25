//! The admin HTTP API of a master: its routes, the bodies of its responses, a client for any
//! Mooncake master, and mcctl's server.
//!
//! Start with [`AdminClient`], or with [`AdminService`], which a master implements for
//! [`server::start`]. Upstream: the HTTP server in `mooncake-store/src/rpc_service.cpp`.
//!
//! # Example
//!
//! Lists the keys of a master.
//!
//! ```no_run
//! use std::time::Duration;
//!
//! use mcctl_base::HostPort;
//! use mcctl_metadata::admin::{AdminClient, PORT};
//!
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let admin = AdminClient::new(HostPort::new("127.0.0.1", PORT), Duration::from_secs(10))?;
//! let mut keys = admin.keys().await?;
//! while let Some(key) = keys.next().await? {
//!     println!("{key}");
//! }
//! # Ok(())
//! # }
//! ```

pub mod client;
pub mod error;
pub mod hosts;
pub mod keys;
pub mod routes;
pub mod server;
pub mod status;
pub mod types;

pub use client::AdminClient;
pub use error::{AdminError, AdminErrorKind};
pub use keys::KeyList;
pub use server::AdminService;
pub use status::{CompletedWrites, MasterStatus, OperationRates};

/// A master's default admin port.
pub const PORT: u16 = 9003;
