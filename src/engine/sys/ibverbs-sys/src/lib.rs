//! libibverbs as C declares it, as far as mcctl and the crate `ibverbs` 0.9.2 use it, opened at run time.
//!
//! The names, layouts and values are those of `<infiniband/verbs.h>` (ABI `IBVERBS_1.1`, unchanged since rdma-core 15), and are held
//! against the real header by a test of mcctl where it is installed. The functions are the C functions' names, but are Rust functions:
//! each looks its symbol up in `libibverbs.so.1`, which the first call opens. So the program has no hard need of the library, and no
//! symbol of it, that could take the place of the library's own, is exported.
//!
//! Where the library or a symbol is absent, a function does what it does on a kernel without RDMA: null or an error number, `errno` =
//! `ENOSYS`. [`library`] tells why.
#![allow(non_camel_case_types, reason = "the names are C's")]
#![allow(
    clippy::missing_safety_doc,
    reason = "what C's function of the name demands: valid pointers to objects that are not yet destroyed"
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
