//! The buffers that a client has sent to a node over one connection.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::shared_memory::codec::BUFFERS_MAX;
use mcctl_sys::{SharedSource, Slice};

/// Maximum number of bytes of all clients' buffers. Only limits the use of address space.
const BYTES_MAX: u64 = 16 << 40;

/// Number of bytes of all clients' buffers of a node.
#[derive(Debug, Default)]
pub(super) struct BufferBudget(AtomicU64);

/// A client's buffer, which counts toward the budget.
struct ReceivedBuffer {
    source: SharedSource,
    budget: Arc<BufferBudget>,
}

impl Drop for ReceivedBuffer {
    fn drop(&mut self) {
        self.budget.0.fetch_sub(self.source.len(), Ordering::Relaxed);
    }
}

/// A connection's buffers by slot.
pub(super) struct ReceivedBuffers {
    slots: Vec<Option<ReceivedBuffer>>,
    budget: Arc<BufferBudget>,
}

/// The state of a buffer during one request.
pub(super) struct ReadableBuffer<'a> {
    source: &'a SharedSource,
    /// Whether all of its pages exist.
    is_dense: bool,
}

impl ReceivedBuffers {
    pub(super) fn new(budget: &Arc<BufferBudget>) -> ReceivedBuffers {
        let slots = (0..BUFFERS_MAX).map(|_| None).collect();
        ReceivedBuffers { slots, budget: Arc::clone(budget) }
    }

    /// Replaces the buffer in `slot`. A file that cannot be used leaves the slot empty, so that
    /// writes from it fail.
    pub(super) fn set(&mut self, slot: u32, file: OwnedFd, length: u64) {
        let Some(slot) = usize::try_from(slot).ok().and_then(|slot| self.slots.get_mut(slot)) else { return };
        *slot = None;
        let sum = |before: u64| before.checked_add(length).filter(|sum| *sum <= BYTES_MAX);
        if self.budget.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, sum).is_err() {
            tracing::debug!(length, "a client's buffer exceeds the limit on mapped buffers");
            return;
        }
        match SharedSource::new(file, length) {
            Ok(source) => *slot = Some(ReceivedBuffer { source, budget: Arc::clone(&self.budget) }),
            Err(error) => {
                self.budget.0.fetch_sub(length, Ordering::Relaxed);
                tracing::debug!(%error, "a client's buffer cannot be used");
            }
        }
    }

    /// The buffers by slot, for one request.
    pub(super) fn readable(&self) -> Vec<Option<ReadableBuffer<'_>>> {
        self.slots
            .iter()
            .map(|slot| {
                let source = &slot.as_ref()?.source;
                Some(ReadableBuffer { source, is_dense: source.is_dense() })
            })
            .collect()
    }
}

impl ReadableBuffer<'_> {
    /// Copies the bytes at `offset` to `into`.
    ///
    /// # Errors
    /// Fails if the range exceeds the buffer.
    pub(super) fn read(&self, offset: u64, into: &Slice) -> std::io::Result<()> {
        self.source.read(offset, into, self.is_dense)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use mcctl_sys::{Memory, MemoryPolicy, MemorySource};

    #[test]
    fn unusable_and_oversized_buffers_leave_their_slot_empty() {
        let budget = Arc::new(BufferBudget::default());
        let mut buffers = ReceivedBuffers::new(&budget);
        let memory = MemorySource::new(MemoryPolicy::default()).buffer(10_000).unwrap();
        let file = || memory.shared_file().unwrap().try_clone_to_owned().unwrap();
        memory.write_at(9_000, b"text").unwrap();
        buffers.set(3, file(), 10_000);
        let into = Arc::new(Memory::from_vec(vec![0; 4])).whole();
        buffers.readable()[3].as_ref().unwrap().read(9_000, &into).unwrap();
        assert_eq!(into.to_vec(), b"text");
        buffers.set(3, file(), 10_001);
        assert!(buffers.readable()[3].is_none(), "longer than the file");
        buffers.set(2, file(), BYTES_MAX + 1);
        buffers.set(99, file(), 1);
        let (pipe, _other) = std::io::pipe().unwrap();
        buffers.set(1, OwnedFd::from(pipe), 0);
        assert!(buffers.readable().iter().all(Option::is_none));
        buffers.set(0, file(), 5_000);
        assert_eq!(budget.0.load(Ordering::Relaxed), 5_000);
        drop(buffers);
        assert_eq!(budget.0.load(Ordering::Relaxed), 0);
    }
}
