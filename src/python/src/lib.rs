//! The native part of the Python module `mcctl_mooncake`: a client of the store with the methods of
//! `mooncake.store`.
//!
//! [`session`] is a started client: one background runtime, and one runtime with its own connection
//! to the master for each thread that calls at the same time. The other files are the Python
//! classes. A method parses its arguments, releases the interpreter's lock, and runs an operation
//! of `mcctl_store`. The Python files (`src/python/mcctl_mooncake`) add the parts that need no
//! native code.

#![expect(
    clippy::result_large_err,
    reason = "an error is returned at most once per object, beside a request to another process"
)]

mod access;
mod arguments;
mod host_memory;
mod interpreter;
mod logging;
mod memory;
mod objects;
mod put_session;
mod ranges;
mod replica;
mod replicate_config;
mod segments;
mod session;
mod setup;
mod setup_arguments;
mod setup_variables;
mod store;
mod tasks;
mod values;

use pyo3::prelude::*;

#[pymodule]
mod _native {
    #[pymodule_export]
    use crate::host_memory::MooncakeHostMemAllocator;
    #[pymodule_export]
    use crate::replica::{DiskDescriptor, MemoryDescriptor, NativeBufferDescriptor, NativeReplicaDescriptor};
    #[pymodule_export]
    use crate::replicate_config::NativeReplicateConfig;
    #[pymodule_export]
    use crate::store::MooncakeDistributedStore;
    #[pymodule_export]
    use crate::store::close_all;
    #[pymodule_export]
    use crate::tasks::NativeQueryTaskResponse;
    #[pymodule_export]
    use crate::values::address_of;

    use super::*;

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        crate::logging::start();
        module.add("__version__", env!("CARGO_PKG_VERSION"))
    }
}
