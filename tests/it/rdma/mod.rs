//! What needs RDMA devices: run by tests/rdma-vm/run-tests in a virtual machine with two soft-RoCE devices, rxe0 and rxe1, one test at
//! a time. Elsewhere each says that it did not test.
#![cfg(feature = "rdma")]

mod doctor;
mod transfer;
mod verbs;

use std::io::Write;

/// Is this the virtual machine?
fn here(test: &str) -> bool {
    let here = std::env::var_os("MCCTL_RDMA_VM").is_some();
    if !here {
        let _ =
            writeln!(std::io::stderr(), "NOT TESTED: {test}: no RDMA devices here; tests/rdma-vm/run-tests has them");
    }
    here
}
