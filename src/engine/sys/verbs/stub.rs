//! Stub for builds without the `rdma` feature: the types exist, but no value can be created.

use std::convert::Infallible;
use std::marker::PhantomData;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;

use crate::memory::{OutOfRange, Slice};
use crate::verbs::{
    AccessFlags, AsyncEvent, DeviceAttributes, GidEntry, ListedDevice, PathAttributes, PortAttributes, PostError,
    QpCaps, QpState, RdmaRequest, VerbsError, VerbsUnavailable, WorkCompletion,
};

/// Always fails: the feature is disabled.
///
/// # Errors
/// Always fails.
pub fn devices() -> Result<Vec<ListedDevice>, VerbsUnavailable> {
    Err(VerbsUnavailable::Feature)
}

/// Whether the library supports relaxed ordering. Always `false`.
pub fn relaxed_ordering() -> bool {
    false
}

/// A list of work requests, which is always empty.
#[derive(Debug, Default)]
pub struct WorkRequestList<'r>(PhantomData<&'r MemoryRegion>);

impl<'r> WorkRequestList<'r> {
    /// Creates an empty list.
    pub fn new() -> WorkRequestList<'r> {
        WorkRequestList::default()
    }

    /// Cannot be called without a region.
    ///
    /// # Errors
    /// Never fails.
    pub fn push(&mut self, region: &'r MemoryRegion, _: RdmaRequest) -> Result<(), OutOfRange> {
        match region.0 {}
    }

    /// Number of work requests. Always 0.
    pub fn len(&self) -> usize {
        0
    }

    /// Whether the list is empty. Always `true`.
    pub fn is_empty(&self) -> bool {
        true
    }

    /// Leaves the empty list unchanged.
    pub fn clear(&mut self) {}

    /// Returns an empty list.
    pub fn recycle<'s>(self) -> WorkRequestList<'s> {
        WorkRequestList::default()
    }
}

/// Declares types without values, and their methods, which cannot be called.
macro_rules! nothing {
    ($( $(#[$attr:meta])* $name:ident { $( fn $method:ident(&self $(, $type:ty)*) -> $answer:ty; )* } )*) => { $(
        /// Cannot be created without the `rdma` feature.
        $(#[$attr])*
        #[derive(Debug)]
        pub struct $name(Infallible);

        impl $name {
            $(
                /// Cannot be called without a value.
                ///
                /// # Errors
                /// Never fails.
                pub fn $method(&self $(, _: $type)*) -> $answer {
                    match self.0 {}
                }
            )*
        }
    )* };
}

nothing! {
    #[derive(Clone)]
    RdmaDevice {
        fn name(&self) -> &str;
        fn attributes(&self) -> &DeviceAttributes;
        fn completion_vectors(&self) -> u32;
        fn port(&self, u8) -> Result<PortAttributes, VerbsError>;
        fn gids(&self, u8) -> Result<Vec<GidEntry>, VerbsError>;
        fn events_fd(&self) -> BorrowedFd<'_>;
        fn next_event(&self, Duration) -> Result<Option<AsyncEvent>, VerbsError>;
    }
    ProtectionDomain {
        fn device(&self) -> &RdmaDevice;
    }
    MemoryRegion {
        fn lkey(&self) -> u32;
        fn rkey(&self) -> u32;
        fn address(&self) -> u64;
        fn len(&self) -> usize;
        fn is_empty(&self) -> bool;
        fn memory(&self) -> &Slice;
        fn domain(&self) -> &Arc<ProtectionDomain>;
    }
    CompletionQueue {
        fn device(&self) -> &RdmaDevice;
        fn entries(&self) -> u32;
        fn poll(&self, &mut [WorkCompletion]) -> Result<usize, VerbsError>;
        fn arm(&self) -> Result<(), VerbsError>;
        fn fd(&self) -> BorrowedFd<'_>;
        fn clear(&self) -> usize;
    }
    QueuePair {
        fn number(&self) -> u32;
        fn caps(&self) -> QpCaps;
        fn queue(&self) -> &Arc<CompletionQueue>;
        fn init(&self, u8, u16) -> Result<(), VerbsError>;
        fn connect(&self, &PathAttributes) -> Result<(), VerbsError>;
        fn fail(&self) -> Result<(), VerbsError>;
        fn reset(&self) -> Result<(), VerbsError>;
        fn state(&self) -> Result<QpState, VerbsError>;
        fn post(&self, &mut WorkRequestList<'_>) -> Result<(), PostError>;
    }
}

impl RdmaDevice {
    /// Always fails: the feature is disabled.
    ///
    /// # Errors
    /// Always fails.
    pub fn open(_: &str) -> Result<RdmaDevice, VerbsUnavailable> {
        Err(VerbsUnavailable::Feature)
    }
}

impl ProtectionDomain {
    /// Cannot be called without a device.
    ///
    /// # Errors
    /// Never fails.
    pub fn new(device: &RdmaDevice) -> Result<Arc<ProtectionDomain>, VerbsError> {
        match device.0 {}
    }
}

impl MemoryRegion {
    /// Cannot be called without a domain.
    ///
    /// # Errors
    /// Never fails.
    pub fn register(domain: &Arc<ProtectionDomain>, _: &Slice, _: AccessFlags) -> Result<MemoryRegion, VerbsError> {
        match domain.0 {}
    }
}

impl CompletionQueue {
    /// Cannot be called without a device.
    ///
    /// # Errors
    /// Never fails.
    pub fn new(device: &RdmaDevice, _: u32, _: u32) -> Result<Arc<CompletionQueue>, VerbsError> {
        match device.0 {}
    }
}

impl QueuePair {
    /// Cannot be called without a domain.
    ///
    /// # Errors
    /// Never fails.
    pub fn new(domain: &Arc<ProtectionDomain>, _: &Arc<CompletionQueue>, _: QpCaps) -> Result<QueuePair, VerbsError> {
        match domain.0 {}
    }
}
