//! Lists the RDMA devices.

use std::ffi::CStr;
use std::fs;
use std::io;
use std::ptr::NonNull;

use ibverbs_sys as ffi;

use crate::verbs::{ListedDevice, VerbsError, VerbsUnavailable};

const LIBRARY: &str = "libibverbs.so.1";

/// The devices that libibverbs supports, in its order.
///
/// # Errors
/// Fails with the reason if no device exists.
pub fn devices() -> Result<Vec<ListedDevice>, VerbsUnavailable> {
    ffi::library().map_err(|why| VerbsUnavailable::Library { file: LIBRARY, why: why.to_string() })?;
    let list = ibverbs::devices().map_err(unlisted)?;
    let listed: Vec<ListedDevice> = list
        .iter()
        .filter_map(|device| {
            // The crate returns the GUID as stored in memory, in network byte order, and an error
            // if it is zero.
            let guid = device.guid().map_or(0, |guid| u64::from_be(guid.into()));
            Some(ListedDevice { name: device.name()?.to_string_lossy().into_owned(), guid })
        })
        .collect();
    if listed.is_empty() { Err(none_listed()) } else { Ok(listed) }
}

/// Converts the library's error from listing devices.
fn unlisted(error: io::Error) -> VerbsUnavailable {
    if error.raw_os_error() == Some(libc::ENOSYS) {
        return VerbsUnavailable::Kernel;
    }
    VerbsError { what: "ibv_get_device_list", device: "this host".to_owned(), detail: String::new(), source: error }
        .into()
}

/// Returns the error for an empty list, which depends on whether the kernel has devices.
fn none_listed() -> VerbsUnavailable {
    let entries = fs::read_dir("/sys/class/infiniband").into_iter().flatten().flatten();
    let mut devices: Vec<String> = entries.map(|e| e.file_name().to_string_lossy().into_owned()).collect();
    devices.sort();
    if devices.is_empty() { VerbsUnavailable::NoDevice } else { VerbsUnavailable::NoProvider { devices } }
}

/// The library's device list, used to open a device.
pub(super) struct DeviceList {
    first: NonNull<*mut ffi::ibv_device>,
    count: usize,
}

impl DeviceList {
    pub(super) fn get() -> Result<DeviceList, VerbsUnavailable> {
        ffi::library().map_err(|why| VerbsUnavailable::Library { file: LIBRARY, why: why.to_string() })?;
        let mut count = 0;
        // SAFETY: `count` is writable.
        let first = unsafe { ffi::ibv_get_device_list(&raw mut count) };
        let first = NonNull::new(first).ok_or_else(|| unlisted(io::Error::last_os_error()))?;
        let list = DeviceList { first, count: usize::try_from(count).unwrap_or(0) };
        if list.count == 0 { Err(none_listed()) } else { Ok(list) }
    }

    /// The devices and their names. Valid for as long as the list exists.
    pub(super) fn iter(&self) -> impl Iterator<Item = (NonNull<ffi::ibv_device>, String)> {
        (0..self.count).filter_map(|i| {
            // SAFETY: the library's list has `count` entries and is freed only in drop.
            let device = NonNull::new(unsafe { self.first.add(i).read() })?;
            // SAFETY: a device in the list is valid. Its name is stored inside it.
            let name = unsafe { ffi::ibv_get_device_name(device.as_ptr()) };
            if name.is_null() {
                return None;
            }
            // SAFETY: not null, NUL-terminated, and copied immediately.
            let name = unsafe { CStr::from_ptr(name) };
            Some((device, name.to_string_lossy().into_owned()))
        })
    }
}

impl Drop for DeviceList {
    fn drop(&mut self) {
        // SAFETY: the library's list, freed once. Devices that were opened stay valid.
        unsafe { ffi::ibv_free_device_list(self.first.as_ptr()) };
    }
}
