//! A master with a data directory: what is stored before a response, restarts, and errors of the
//! disk.

mod earlier_records;
mod process;
mod server;
