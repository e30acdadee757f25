//! Declarations of libibverbs, as far as mcctl and the crate `ibverbs` 0.9.2 use it. The library is opened at run time.
//!
//! Names, layouts and values are those of `<infiniband/verbs.h>` (ABI `IBVERBS_1.1`, unchanged since rdma-core 15). A
//! test of mcctl compares them with the real header where it is installed. The functions have the C functions' names,
//! but are Rust functions: each looks up its symbol in `libibverbs.so.1`, which the first call opens. So the program
//! does not require the library, and exports no symbol that could replace one of the library's.
//!
//! If the library or a symbol is missing, a function behaves as on a kernel without RDMA: it returns null or an error
//! number, and sets `errno` to `ENOSYS`. [`library`] returns the reason.
#![allow(non_camel_case_types, reason = "the names are C's")]
#![allow(
    clippy::missing_safety_doc,
    reason = "as for the C function: valid pointers to objects that are not yet destroyed"
)]

mod constants;
mod functions;
mod inline;
mod library;
mod structs;

pub use constants::*;
pub use functions::*;
pub use inline::*;
pub use library::{has_reg_mr_iova2, library};
pub use structs::*;
