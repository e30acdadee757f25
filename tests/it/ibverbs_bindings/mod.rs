//! The libibverbs bindings: the program starts without the library, and our declarations match its
//! header.
#![cfg(feature = "rdma")]

mod elf;
mod layout;
