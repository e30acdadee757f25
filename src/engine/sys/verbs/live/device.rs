//! Opens devices and queries them.

use std::ffi::{CStr, c_char};
use std::io;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::sync::Arc;

use ibverbs_sys as ffi;
use nix::fcntl::{FcntlArg, OFlag, fcntl};

use super::device_list::DeviceList;
use super::{is_leaked, outcome};
use crate::verbs::{
    DeviceAttributes, GidEntry, LinkLayer, Mtu, PortAttributes, PortState, VerbsError, VerbsGidKind, VerbsUnavailable,
};

/// Maximum number of GID table entries queried.
const GID_ROWS_MAX: usize = 1 << 16;

/// An open device. Cheap to clone. Closed when the last clone and the last object created from it
/// have been dropped.
#[derive(Clone)]
pub struct RdmaDevice(Arc<OpenContext>);

struct OpenContext {
    context: NonNull<ffi::ibv_context>,
    name: String,
    attributes: DeviceAttributes,
}

// SAFETY: a context is not tied to a thread, and libibverbs locks it where needed (verbs are
// thread-safe by contract).
unsafe impl Send for OpenContext {}
// SAFETY: as above. The fields read through the pointer here (descriptors, number of vectors) do
// not change after opening.
unsafe impl Sync for OpenContext {}

impl RdmaDevice {
    /// Opens the device with this name.
    ///
    /// # Errors
    /// Fails with an error that names the missing component or the failed verb.
    pub fn open(name: &str) -> Result<RdmaDevice, VerbsUnavailable> {
        let list = DeviceList::get()?;
        let mut listed = Vec::new();
        for (device, other) in list.iter() {
            if other != name {
                listed.push(other);
                continue;
            }
            // SAFETY: the list is valid, and so is the device.
            let context = unsafe { ffi::ibv_open_device(device.as_ptr()) };
            let Some(context) = NonNull::new(context) else {
                let error = io::Error::last_os_error();
                // SAFETY: the device is valid. The field is a NUL-terminated string of at most
                // 64 bytes.
                let file = unsafe { text(&raw const (*device.as_ptr()).dev_name) };
                return Err(not_opened(name, &file, error));
            };
            return RdmaDevice::opened(context, name).map_err(VerbsUnavailable::Failed);
        }
        Err(VerbsUnavailable::NoSuchDevice { device: name.to_owned(), listed })
    }

    fn opened(context: NonNull<ffi::ibv_context>, name: &str) -> Result<RdmaDevice, VerbsError> {
        let mut open = OpenContext { context, name: name.to_owned(), attributes: empty_attributes() };
        let mut attr = ffi::ibv_device_attr::default();
        // SAFETY: the context is open. `attr` is writable and has the type that this version of the
        // function fills.
        let rc = unsafe { ffi::ibv_query_device(context.as_ptr(), &raw mut attr) };
        // From here on, dropping `open` closes the device.
        outcome(rc).map_err(|source| open.error("ibv_query_device", String::new(), source))?;
        // SAFETY: the context is open.
        let vectors = unsafe { (*context.as_ptr()).num_comp_vectors };
        open.attributes = attributes(&attr, number(vectors));
        let device = RdmaDevice(Arc::new(open));
        let never_blocks = |fd| -> nix::Result<()> {
            let flags = OFlag::from_bits_retain(fcntl(fd, FcntlArg::F_GETFL)?);
            fcntl(fd, FcntlArg::F_SETFL(flags | OFlag::O_NONBLOCK)).map(|_| ())
        };
        never_blocks(device.events_fd()).map_err(|e| device.error("fcntl", String::new(), e.into()))?;
        Ok(device)
    }

    /// The name under which the device was opened.
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// The device attributes, which do not change.
    pub fn attributes(&self) -> &DeviceAttributes {
        &self.0.attributes
    }

    /// Number of completion vectors (usually interrupts) that completion queues can be spread over.
    /// At least 1.
    pub fn completion_vectors(&self) -> u32 {
        self.0.attributes.num_comp_vectors.max(1)
    }

    /// Queries a port's current attributes. Ports are numbered from 1.
    ///
    /// # Errors
    /// Fails if the port does not exist or the device is gone.
    pub fn port(&self, port: u8) -> Result<PortAttributes, VerbsError> {
        let mut attr = ffi::ibv_port_attr::default();
        // SAFETY: the context is open. The function writes the beginning of `attr`, whose other
        // fields stay zero.
        let rc = unsafe { ffi::ibv_query_port(self.context(), port, (&raw mut attr).cast()) };
        outcome(rc).map_err(|source| self.error("ibv_query_port", format!(" for port {port}"), source))?;
        Ok(port_attributes(&attr))
    }

    /// Queries the entries currently in use in a port's GID table, sorted by index.
    ///
    /// # Errors
    /// Fails if the table cannot be read.
    pub fn gids(&self, port: u8) -> Result<Vec<GidEntry>, VerbsError> {
        let mut rows = 0;
        for port in 1..=u8::try_from(self.attributes().phys_port_cnt).unwrap_or(u8::MAX) {
            rows += self.port(port)?.gid_tbl_len as usize;
        }
        let mut entries = vec![ffi::ibv_gid_entry::default(); rows.min(GID_ROWS_MAX)];
        // SAFETY: the context is open. `entries` has room for the given number of entries of the
        // given size.
        let count = unsafe {
            ffi::_ibv_query_gid_table(
                self.context(),
                entries.as_mut_ptr(),
                entries.len(),
                0,
                size_of::<ffi::ibv_gid_entry>(),
            )
        };
        let Ok(count) = usize::try_from(count) else {
            let source = io::Error::from_raw_os_error(i32::try_from(-count).unwrap_or(libc::EIO));
            return Err(self.error("ibv_query_gid_table", format!(" for port {port}"), source));
        };
        let mut found: Vec<GidEntry> =
            entries.iter().take(count).filter(|e| e.port_num == u32::from(port)).map(gid_row).collect();
        found.sort_by_key(|row| row.index);
        Ok(found)
    }

    pub(super) fn context(&self) -> *mut ffi::ibv_context {
        self.0.context.as_ptr()
    }

    /// Whether both refer to the same open context.
    pub(super) fn is(&self, other: &RdmaDevice) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// The descriptor for asynchronous events: readable if one is pending
    /// ([`next_event`](RdmaDevice::next_event)).
    pub fn events_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the context is open and keeps this descriptor open until the context is closed,
        // which does not happen before `self` is dropped.
        unsafe { BorrowedFd::borrow_raw((*self.context()).async_fd) }
    }

    pub(super) fn error(&self, what: &'static str, detail: String, source: io::Error) -> VerbsError {
        self.0.error(what, detail, source)
    }
}

impl OpenContext {
    fn error(&self, what: &'static str, detail: String, source: io::Error) -> VerbsError {
        VerbsError { what, device: self.name.clone(), detail, source }
    }
}

impl Drop for OpenContext {
    fn drop(&mut self) {
        // SAFETY: the context is open and is closed once: everything created from it holds a clone
        // of the device.
        let rc = unsafe { ffi::ibv_close_device(self.context.as_ptr()) };
        is_leaked("ibv_close_device", &self.name, rc);
    }
}

impl std::fmt::Debug for RdmaDevice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Device({})", self.name())
    }
}

fn not_opened(device: &str, file: &str, error: io::Error) -> VerbsUnavailable {
    let shut = [libc::EACCES, libc::EPERM, libc::ENOENT, libc::ENXIO, libc::ENODEV];
    if error.raw_os_error().is_some_and(|number| shut.contains(&number)) {
        return VerbsUnavailable::Denied {
            device: device.to_owned(),
            file: format!("/dev/infiniband/{file}"),
            source: error,
        };
    }
    VerbsError { what: "ibv_open_device", device: device.to_owned(), detail: String::new(), source: error }.into()
}

/// Returns the string in a 64-character field.
///
/// # Safety
/// `field` is valid for reading.
unsafe fn text(field: *const [c_char; 64]) -> String {
    // SAFETY: guaranteed by the caller. A character and a byte have the same size, and every byte
    // is valid.
    let bytes: [u8; 64] = unsafe { field.cast::<[u8; 64]>().read() };
    CStr::from_bytes_until_nul(&bytes).map(|text| text.to_string_lossy().into_owned()).unwrap_or_default()
}

/// Converts a count that C stores in an `int`.
fn number(count: std::ffi::c_int) -> u32 {
    u32::try_from(count).unwrap_or(0)
}

fn attributes(attr: &ffi::ibv_device_attr, vectors: u32) -> DeviceAttributes {
    DeviceAttributes {
        // SAFETY: the pointer refers to a borrowed field.
        fw_ver: unsafe { text(&raw const attr.fw_ver) },
        node_guid: u64::from_be(attr.node_guid),
        sys_image_guid: u64::from_be(attr.sys_image_guid),
        max_mr_size: attr.max_mr_size,
        page_size_cap: attr.page_size_cap,
        vendor_id: attr.vendor_id,
        vendor_part_id: attr.vendor_part_id,
        hw_ver: attr.hw_ver,
        max_qp: number(attr.max_qp),
        max_qp_wr: number(attr.max_qp_wr),
        device_cap_flags: attr.device_cap_flags,
        max_sge: number(attr.max_sge),
        max_sge_rd: number(attr.max_sge_rd),
        max_cq: number(attr.max_cq),
        max_cqe: number(attr.max_cqe),
        max_mr: number(attr.max_mr),
        max_pd: number(attr.max_pd),
        max_qp_rd_atom: number(attr.max_qp_rd_atom),
        max_res_rd_atom: number(attr.max_res_rd_atom),
        max_qp_init_rd_atom: number(attr.max_qp_init_rd_atom),
        max_srq: number(attr.max_srq),
        max_pkeys: attr.max_pkeys.into(),
        local_ca_ack_delay: attr.local_ca_ack_delay.into(),
        phys_port_cnt: attr.phys_port_cnt.into(),
        num_comp_vectors: vectors,
    }
}

fn empty_attributes() -> DeviceAttributes {
    attributes(&ffi::ibv_device_attr::default(), 0)
}

fn port_attributes(attr: &ffi::ibv_port_attr) -> PortAttributes {
    PortAttributes {
        state: PortState(attr.state),
        max_mtu: Mtu::from_code(attr.max_mtu),
        active_mtu: Mtu::from_code(attr.active_mtu),
        gid_tbl_len: number(attr.gid_tbl_len),
        pkey_tbl_len: attr.pkey_tbl_len.into(),
        max_msg_sz: attr.max_msg_sz,
        lid: attr.lid,
        sm_lid: attr.sm_lid,
        lmc: attr.lmc,
        link_layer: match attr.link_layer {
            ffi::IBV_LINK_LAYER_INFINIBAND => LinkLayer::InfiniBand,
            ffi::IBV_LINK_LAYER_ETHERNET => LinkLayer::Ethernet,
            _ => LinkLayer::Unspecified,
        },
        active_width: attr.active_width,
        active_speed: attr.active_speed,
        phys_state: attr.phys_state,
        port_cap_flags: attr.port_cap_flags,
    }
}

fn gid_row(entry: &ffi::ibv_gid_entry) -> GidEntry {
    GidEntry {
        index: entry.gid_index,
        // SAFETY: both views of a GID are plain bytes.
        gid: unsafe { entry.gid.raw },
        kind: match entry.gid_type {
            ffi::IBV_GID_TYPE_IB => VerbsGidKind::Infiniband,
            ffi::IBV_GID_TYPE_ROCE_V1 => VerbsGidKind::RoceV1,
            ffi::IBV_GID_TYPE_ROCE_V2 => VerbsGidKind::RoceV2,
            other => VerbsGidKind::Other(other),
        },
        netdev_index: (entry.ndev_ifindex != 0).then_some(entry.ndev_ifindex),
    }
}
