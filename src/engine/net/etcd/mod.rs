//! A client of etcd: keys, transactions, leases and watches, over etcd's JSON gateway (`/v3/...`).
//!
//! The gateway needs no generated code, and uses the HTTP library that is here anyway. etcd 3.4 and
//! later serve it on the client port, unless started with `--enable-grpc-gateway=false`. In it,
//! 64-bit numbers are strings, keys and values are base64, and zeros are left out.

mod client;
mod error;
mod gateway;
mod json;
mod options;
mod request;
mod rotation;
#[cfg(test)]
mod tests;
mod watch;

pub use client::EtcdClient;
pub use error::EtcdError;
pub use options::{EtcdEndpoint, EtcdOptions, EtcdUser, ParseEndpointsError};
pub use request::{EtcdCompare, EtcdKeyValue, EtcdOp, EtcdRange, EtcdTxn, EtcdTxnResult};
pub use watch::{EtcdEvent, EtcdWatch};
