//! A master with a data directory: what is stored before a response, restarts, and errors of the
//! disk.

mod process;
mod server;
