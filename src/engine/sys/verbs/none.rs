//! The owners where the program was built without the feature `rdma`: none can be made.

use std::convert::Infallible;
use std::marker::PhantomData;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;

use crate::engine::sys::memory::{OutOfRange, Slice};
use crate::engine::sys::verbs::{
    Absent, AsyncEvent, Caps, Completion, DeviceAttributes, GidRow, Listed, PairState, PortAttributes, Refused, Rights,
    VerbsError, Way, Work,
};

/// None, for want of the feature.
///
/// # Errors
/// Always.
pub fn devices() -> Result<Vec<Listed>, Absent> {
    Err(Absent::Feature)
}

/// No.
pub fn relaxed_ordering() -> bool {
    false
}

/// Work requests, which nothing can take.
#[derive(Debug, Default)]
pub struct Chain<'r>(PhantomData<&'r Region>);

impl<'r> Chain<'r> {
    /// An empty one.
    pub fn new() -> Chain<'r> {
        Chain::default()
    }

    /// Needs a region.
    ///
    /// # Errors
    /// None.
    pub fn push(&mut self, region: &'r Region, _: Work) -> Result<(), OutOfRange> {
        match region.0 {}
    }

    /// None.
    pub fn len(&self) -> usize {
        0
    }

    /// Yes.
    pub fn is_empty(&self) -> bool {
        true
    }

    /// Nothing to do.
    pub fn clear(&mut self) {}

    /// An empty one.
    pub fn recycle<'s>(self) -> Chain<'s> {
        Chain::default()
    }
}

/// Types without values, and their functions, which nobody can call.
macro_rules! nothing {
    ($( $(#[$attr:meta])* $name:ident { $( fn $method:ident(&self $(, $type:ty)*) -> $answer:ty; )* } )*) => { $(
        /// There is none without the feature `rdma`.
        $(#[$attr])*
        #[derive(Debug)]
        pub struct $name(Infallible);

        impl $name {
            $(
                /// There is none to ask.
                ///
                /// # Errors
                /// None.
                pub fn $method(&self $(, _: $type)*) -> $answer {
                    match self.0 {}
                }
            )*
        }
    )* };
}

nothing! {
    #[derive(Clone)]
    Device {
        fn name(&self) -> &str;
        fn attributes(&self) -> &DeviceAttributes;
        fn completion_vectors(&self) -> u32;
        fn port(&self, u8) -> Result<PortAttributes, VerbsError>;
        fn gids(&self, u8) -> Result<Vec<GidRow>, VerbsError>;
        fn events_fd(&self) -> BorrowedFd<'_>;
        fn next_event(&self, Duration) -> Result<Option<AsyncEvent>, VerbsError>;
    }
    Domain {
        fn device(&self) -> &Device;
    }
    Region {
        fn lkey(&self) -> u32;
        fn rkey(&self) -> u32;
        fn address(&self) -> u64;
        fn len(&self) -> usize;
        fn is_empty(&self) -> bool;
        fn memory(&self) -> &Slice;
        fn domain(&self) -> &Arc<Domain>;
    }
    Queue {
        fn device(&self) -> &Device;
        fn entries(&self) -> u32;
        fn poll(&self, &mut [Completion]) -> Result<usize, VerbsError>;
        fn arm(&self) -> Result<(), VerbsError>;
        fn fd(&self) -> BorrowedFd<'_>;
        fn clear(&self) -> usize;
    }
    Pair {
        fn number(&self) -> u32;
        fn caps(&self) -> Caps;
        fn queue(&self) -> &Arc<Queue>;
        fn init(&self, u8, u16) -> Result<(), VerbsError>;
        fn connect(&self, &Way) -> Result<(), VerbsError>;
        fn fail(&self) -> Result<(), VerbsError>;
        fn reset(&self) -> Result<(), VerbsError>;
        fn state(&self) -> Result<PairState, VerbsError>;
        fn post(&self, &mut Chain<'_>) -> Result<(), Refused>;
    }
}

impl Device {
    /// Not without the feature.
    ///
    /// # Errors
    /// Always.
    pub fn open(_: &str) -> Result<Device, Absent> {
        Err(Absent::Feature)
    }
}

impl Domain {
    /// Needs a device.
    ///
    /// # Errors
    /// None.
    pub fn new(device: &Device) -> Result<Arc<Domain>, VerbsError> {
        match device.0 {}
    }
}

impl Region {
    /// Needs a domain.
    ///
    /// # Errors
    /// None.
    pub fn register(domain: &Arc<Domain>, _: &Slice, _: Rights) -> Result<Region, VerbsError> {
        match domain.0 {}
    }
}

impl Queue {
    /// Needs a device.
    ///
    /// # Errors
    /// None.
    pub fn new(device: &Device, _: u32, _: u32) -> Result<Arc<Queue>, VerbsError> {
        match device.0 {}
    }
}

impl Pair {
    /// Needs a domain.
    ///
    /// # Errors
    /// None.
    pub fn new(domain: &Arc<Domain>, _: &Arc<Queue>, _: Caps) -> Result<Pair, VerbsError> {
        match domain.0 {}
    }
}
