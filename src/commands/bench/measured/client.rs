//! The host of the load generator.

use serde::Serialize;

use crate::engine::base::ByteSize;
use crate::engine::sys::{host, machine};

/// The host of the load generator. Fields that the kernel does not report are missing.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub(in crate::commands::bench) struct ClientHost {
    /// Release of the host's kernel, as in `uname -r`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kernel: Option<String>,
    /// Product name of the processor.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub processor: Option<String>,
    /// Total memory in bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_bytes: Option<u64>,
}

impl ClientHost {
    /// Reads the facts about this host.
    pub(crate) fn of_this_host() -> ClientHost {
        ClientHost {
            kernel: machine::kernel_release(),
            processor: machine::processor_name(),
            memory_bytes: host::memory().map(|memory| memory.total),
        }
    }

    /// Describes the host, of which `processors` processors were available, on one line.
    pub(crate) fn text(&self, processors: usize) -> String {
        let mut parts = vec![match &self.processor {
            Some(name) => format!("{processors} x {name}"),
            None => format!("{processors} processors"),
        }];
        parts.extend(self.memory_bytes.map(|bytes| format!("{} memory", ByteSize(bytes))));
        parts.extend(self.kernel.as_ref().map(|kernel| format!("Linux {kernel}")));
        parts.join(", ")
    }
}
