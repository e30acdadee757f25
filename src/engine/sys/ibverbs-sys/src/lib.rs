//! The libibverbs declarations that mcctl and the `ibverbs` 0.9.2 crate use. The library is opened
//! at run time.
//!
//! Names, layouts and values match `<infiniband/verbs.h>` (ABI `IBVERBS_1.1`, unchanged since
//! rdma-core 15). An mcctl test compares them with the real header where it is installed. The
//! functions have the same names as the C functions, but are Rust functions: each one looks up its
//! symbol in `libibverbs.so.1`, which the first call opens. The program therefore does not require
//! the library, and exports no symbol that could replace a library symbol.
//!
//! If the library or a symbol is missing, a function behaves as on a kernel without RDMA: it
//! returns null or an error number, and sets `errno` to `ENOSYS`. [`library`](fn@library) returns
//! the reason.
#![allow(non_camel_case_types, reason = "the names match C")]
#![allow(
    clippy::missing_safety_doc,
    reason = "same as for the C function: pointers are valid, and their objects are not yet destroyed"
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
