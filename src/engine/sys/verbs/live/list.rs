//! Which devices there are.

use std::ffi::CStr;
use std::fs;
use std::io;
use std::ptr::NonNull;

use ibverbs_sys as ffi;

use crate::engine::sys::verbs::{Absent, Listed, VerbsError};

const LIBRARY: &str = "libibverbs.so.1";

/// The devices that libibverbs can drive, in its order.
///
/// # Errors
/// Why there is none.
pub fn devices() -> Result<Vec<Listed>, Absent> {
    ffi::library().map_err(|why| Absent::Library { file: LIBRARY, why: why.to_owned() })?;
    let list = ibverbs::devices().map_err(unlisted)?;
    let listed: Vec<Listed> = list
        .iter()
        .filter_map(|device| {
            // the crate hands out the number as it lies in memory, in network order, and an error where it is zero
            let guid = device.guid().map_or(0, |guid| u64::from_be(guid.into()));
            Some(Listed { name: device.name()?.to_string_lossy().into_owned(), guid })
        })
        .collect();
    if listed.is_empty() { Err(none_listed()) } else { Ok(listed) }
}

/// The library has no list.
fn unlisted(error: io::Error) -> Absent {
    if error.raw_os_error() == Some(libc::ENOSYS) {
        return Absent::Kernel;
    }
    VerbsError { what: "ibv_get_device_list", device: "this host".to_owned(), detail: String::new(), source: error }
        .into()
}

/// The list is empty: does the kernel know devices?
fn none_listed() -> Absent {
    let entries = fs::read_dir("/sys/class/infiniband").into_iter().flatten().flatten();
    let mut devices: Vec<String> = entries.map(|e| e.file_name().to_string_lossy().into_owned()).collect();
    devices.sort();
    if devices.is_empty() { Absent::NoDevice } else { Absent::NoProvider { devices } }
}

/// The library's own list, for opening one of it.
pub(super) struct List {
    first: NonNull<*mut ffi::ibv_device>,
    count: usize,
}

impl List {
    pub(super) fn get() -> Result<List, Absent> {
        ffi::library().map_err(|why| Absent::Library { file: LIBRARY, why: why.to_owned() })?;
        let mut count = 0;
        // SAFETY: `count` is for writing.
        let first = unsafe { ffi::ibv_get_device_list(&raw mut count) };
        let first = NonNull::new(first).ok_or_else(|| unlisted(io::Error::last_os_error()))?;
        let list = List { first, count: usize::try_from(count).unwrap_or(0) };
        if list.count == 0 { Err(none_listed()) } else { Ok(list) }
    }

    /// The devices, and their names. They are valid as long as the list is.
    pub(super) fn iter(&self) -> impl Iterator<Item = (NonNull<ffi::ibv_device>, String)> {
        (0..self.count).filter_map(|i| {
            // SAFETY: the library's list has `count` entries, and is freed in drop only.
            let device = NonNull::new(unsafe { self.first.add(i).read() })?;
            // SAFETY: a device of the list is valid; its name is a text within it.
            let name = unsafe { ffi::ibv_get_device_name(device.as_ptr()) };
            if name.is_null() {
                return None;
            }
            // SAFETY: not null, ends with a zero, and is copied at once.
            let name = unsafe { CStr::from_ptr(name) };
            Some((device, name.to_string_lossy().into_owned()))
        })
    }
}

impl Drop for List {
    fn drop(&mut self) {
        // SAFETY: it is the library's list, freed once; devices that were opened stay valid.
        unsafe { ffi::ibv_free_device_list(self.first.as_ptr()) };
    }
}
