//! Compares the memory that a node needs with the host's memory.

use std::fmt;

use crate::NodeConfig;
use mcctl_base::ByteSize;
use mcctl_sys::host::HostMemory;

/// A node needs more memory than its host has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{needed} exceeds this host's total memory of {total}")]
pub struct MemoryShortage {
    pub needed: NodeMemory,
    /// The host's total memory, in bytes.
    pub total: ByteSize,
}

/// The memory that a node allocates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodeMemory {
    pub segment: ByteSize,
    pub local_buffer: ByteSize,
}

impl NodeMemory {
    fn total(self) -> ByteSize {
        ByteSize(self.segment.0.saturating_add(self.local_buffer.0))
    }
}

impl fmt::Display for NodeMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (NodeMemory { segment, local_buffer }, total) = (self, self.total());
        match local_buffer.0 {
            0 => write!(f, "a segment of {total}"),
            _ => write!(f, "a segment of {segment} and a local buffer of {local_buffer} (total {total})"),
        }
    }
}

/// Checks the segment and local buffer sizes against the host's memory; passes if it is unknown.
/// Exceeding the available memory is only a warning, because the kernel allocates pages on first
/// use.
///
/// # Errors
/// The sizes exceed the total.
pub fn check_memory(node: &NodeConfig, host: Option<HostMemory>) -> Result<(), MemoryShortage> {
    let Some(host) = host else { return Ok(()) };
    let needed = NodeMemory { segment: node.segment_bytes, local_buffer: node.client.local_buffer_bytes };
    if needed.total().0 > host.total {
        return Err(MemoryShortage { needed, total: ByteSize(host.total) });
    }
    if needed.total().0 > host.available {
        tracing::warn!(
            "{needed} exceeds the available memory of {}; if memory runs out, the kernel kills a process",
            ByteSize(host.available)
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ClientConfig;
    use mcctl_base::HostPort;

    #[test]
    fn only_a_node_larger_than_the_host_is_refused() {
        let mut client = ClientConfig::new(HostPort::new("127.0.0.1", 1));
        client.local_buffer_bytes = ByteSize(2);
        let node = NodeConfig { client, segment_bytes: ByteSize(6) };
        let host = |total, available| Some(HostMemory { total, available });
        assert_eq!(check_memory(&node, None), Ok(()));
        assert_eq!(check_memory(&node, host(8, 1)), Ok(()));
        let shortage = check_memory(&node, host(7, 7)).expect_err("a byte too many").to_string();
        assert_eq!(
            shortage,
            "a segment of 6 B and a local buffer of 2 B (total 8 B) exceeds this host's total memory of 7 B"
        );
        let huge = NodeConfig { segment_bytes: ByteSize(u64::MAX), ..node };
        assert!(check_memory(&huge, host(8, 8)).is_err(), "the sum does not overflow");
    }
}
