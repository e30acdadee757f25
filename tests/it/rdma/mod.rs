//! Tests that need RDMA devices. tests/rdma-vm/run-tests runs them one at a time, in a virtual
//! machine with two soft-RoCE devices, rxe0 and rxe1. Elsewhere they are ignored.
#![cfg(feature = "rdma")]

mod checksums;
mod doctor;
mod transfer;
mod verbs;
