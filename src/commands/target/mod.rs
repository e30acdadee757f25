//! Which master and store a command calls, and with which credentials and transport.

pub mod connect;
pub mod credentials;
pub mod discovery;
pub mod etcd_access;
pub mod etcd_master;
pub mod key_space;
pub mod master_target;
pub mod shared_memory;
pub mod transport;
