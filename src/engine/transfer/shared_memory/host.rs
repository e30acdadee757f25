//! The host of an engine's server: starts and stops it, and returns its announcement.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

use crate::RandomSource;
use crate::counters::TargetCounters;
use crate::local::TransferEra;
use crate::region::Regions;
use crate::shared_memory::server::SharedMemoryServer;
use crate::shared_memory::settings::{SOCKET_EXTENSION, SharedMemorySettings};
use crate::types::Access;
use mcctl_sys::Memory;
use mcctl_sys::packet_socket::remove_unused_sockets;
use mcctl_wire::json::{SHARED_MEMORY_TOKEN_BYTES, SharedMemoryDescriptor};

/// Maximum number of files in the directory that are examined for unused sockets.
const FILES_MAX: usize = 1000;

/// An engine's server for clients on this host. It starts with the first region that such clients
/// can map.
pub struct SharedMemoryHost {
    settings: SharedMemorySettings,
    regions: Arc<RwLock<Regions>>,
    eras: Arc<TransferEra>,
    random: RandomSource,
    server: Mutex<HostState>,
}

#[derive(Default)]
enum HostState {
    #[default]
    Idle,
    Serving(SharedMemoryServer),
    /// Stopped, or failed to start.
    Ended,
}

impl SharedMemoryHost {
    /// Creates the host of an engine with this memory. Starts nothing.
    pub fn new(
        settings: SharedMemorySettings,
        regions: Arc<RwLock<Regions>>,
        eras: Arc<TransferEra>,
        random: RandomSource,
    ) -> SharedMemoryHost {
        SharedMemoryHost { settings, regions, eras, random, server: Mutex::default() }
    }

    /// Call after a region has been registered, and before it is announced.
    pub fn region_added(&self, memory: &Memory, access: Access) {
        if !self.settings.enabled || access != Access::Remote || memory.shared_file().is_none() {
            return;
        }
        let mut state = self.state();
        match &*state {
            HostState::Idle => *state = self.start().map_or(HostState::Ended, HostState::Serving),
            HostState::Serving(server) => server.regions_added(),
            HostState::Ended => {}
        }
    }

    /// Call after a region has been removed.
    pub fn region_removed(&self, memory: &Memory, access: Access) {
        if access == Access::Remote && memory.shared_file().is_some() {
            self.end_inbound();
        }
    }

    fn start(&self) -> Option<SharedMemoryServer> {
        if let Some(directory) = &self.settings.directory {
            remove_unused_sockets(directory, SOCKET_EXTENSION, FILES_MAX);
        }
        let mut token = [0; SHARED_MEMORY_TOKEN_BYTES];
        let (first, second) = token.split_at_mut(SHARED_MEMORY_TOKEN_BYTES / 2);
        first.copy_from_slice(&(self.random)().to_le_bytes());
        second.copy_from_slice(&(self.random)().to_le_bytes());
        let address = self.settings.new_address((self.random)());
        match SharedMemoryServer::start(&address, token, Arc::clone(&self.regions), Arc::clone(&self.eras)) {
            Ok(server) => {
                tracing::debug!(socket = %address, "memory is shared with processes on this host");
                Some(server)
            }
            Err(error) => {
                tracing::warn!(socket = %address, %error, "cannot share memory with processes on this host; they use the transport");
                None
            }
        }
    }

    /// Returns the announcement for the segment descriptor.
    pub fn descriptor(&self) -> Option<SharedMemoryDescriptor> {
        self.with_server(|server| server.descriptor().clone())
    }

    /// Calls [`SharedMemoryServer::end_generation`], if the server runs.
    pub fn end_generation(&self) {
        self.with_server(SharedMemoryServer::end_generation);
    }

    /// Calls [`SharedMemoryServer::end_inbound`], if the server runs. Returns the number of
    /// connections.
    pub fn end_inbound(&self) -> usize {
        self.with_server(SharedMemoryServer::end_inbound).unwrap_or(0)
    }

    /// Returns the counters of [`SharedMemoryServer::counters`]; zeros without a server.
    pub fn counters(&self) -> TargetCounters {
        self.with_server(SharedMemoryServer::counters).unwrap_or_default()
    }

    /// Returns the number of [`SharedMemoryServer::clients`]; 0 without a server.
    pub fn clients(&self) -> usize {
        self.with_server(SharedMemoryServer::clients).unwrap_or(0)
    }

    /// Stops the server permanently: regions that are added later are not shared.
    pub fn stop(&self) {
        *self.state() = HostState::Ended;
    }

    fn with_server<T>(&self, with: impl FnOnce(&SharedMemoryServer) -> T) -> Option<T> {
        match &*self.state() {
            HostState::Serving(server) => Some(with(server)),
            HostState::Idle | HostState::Ended => None,
        }
    }

    fn state(&self) -> MutexGuard<'_, HostState> {
        self.server.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
