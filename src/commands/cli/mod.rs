//! What every command shares: flags, settings and their origins, input and output, errors, logging,
//! and the runtime.

pub mod args;
pub mod config_file;
pub mod confirm;
pub mod deployment_file;
pub mod error;
pub mod error_document;
pub mod extra_flags;
pub mod flags;
pub mod gflags;
pub mod input;
pub mod json_flag;
pub mod listen;
pub mod logging;
pub mod origin;
pub mod output;
pub mod process_sources;
pub mod progress_bar;
pub mod runtime;
pub mod service_flags;
pub mod settings;
pub mod severity_colour;
pub mod svg;
pub mod switch_value;
pub mod table;
pub mod time_flag;
pub mod time_unit;
pub mod times;
pub mod unknown_key;
pub mod whole_file;
