//! The fence to libibverbs: the program does not need the library to start, and our declarations are those of its header.
#![cfg(feature = "rdma")]

mod elf;
mod layout;
