//! The fence: the only folder in which `unsafe` may be written, and the readers of /proc and /sys.

pub mod ports;
