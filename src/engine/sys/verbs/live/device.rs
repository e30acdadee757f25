//! An open device.

use std::ffi::{CStr, c_char};
use std::io;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::sync::Arc;

use ibverbs_sys as ffi;
use nix::fcntl::{FcntlArg, OFlag, fcntl};

use super::list::List;
use super::{left_behind, outcome};
use crate::engine::sys::verbs::{
    Absent, DeviceAttributes, GidKind, GidRow, LinkLayer, Mtu, PortAttributes, PortState, VerbsError,
};

/// Most rows of GID tables that are asked for.
const GID_ROWS_MAX: usize = 1 << 16;

/// An open device. Cheap to clone; closed when the last clone, and the last that was made from it, is gone.
#[derive(Clone)]
pub struct Device(Arc<Open>);

struct Open {
    context: NonNull<ffi::ibv_context>,
    name: String,
    attributes: DeviceAttributes,
}

// SAFETY: a context is not tied to a thread, and libibverbs locks where threads meet in it (verbs are thread-safe by contract).
unsafe impl Send for Open {}
// SAFETY: as above; what is read through the pointer here (descriptors, number of vectors) is not changed after it was opened.
unsafe impl Sync for Open {}

impl Device {
    /// Open the device of this name.
    ///
    /// # Errors
    /// What is missing, or which verb failed.
    pub fn open(name: &str) -> Result<Device, Absent> {
        let list = List::get()?;
        let mut listed = Vec::new();
        for (device, other) in list.iter() {
            if other != name {
                listed.push(other);
                continue;
            }
            // SAFETY: the list, and so the device, is valid.
            let context = unsafe { ffi::ibv_open_device(device.as_ptr()) };
            let Some(context) = NonNull::new(context) else {
                let error = io::Error::last_os_error();
                // SAFETY: the device is valid; its own field is a text of at most 64 bytes with its end.
                let file = unsafe { text(&raw const (*device.as_ptr()).dev_name) };
                return Err(not_opened(name, &file, error));
            };
            return Device::opened(context, name).map_err(Absent::Failed);
        }
        Err(Absent::NoSuchDevice { device: name.to_owned(), listed })
    }

    fn opened(context: NonNull<ffi::ibv_context>, name: &str) -> Result<Device, VerbsError> {
        let mut open = Open { context, name: name.to_owned(), attributes: empty_attributes() };
        let mut attr = ffi::ibv_device_attr::default();
        // SAFETY: the context is open; `attr` is for writing, of the type that this version of the function fills.
        let rc = unsafe { ffi::ibv_query_device(context.as_ptr(), &raw mut attr) };
        // from here on, dropping `open` closes the device
        outcome(rc).map_err(|source| open.error("ibv_query_device", String::new(), source))?;
        // SAFETY: the context is open.
        let vectors = unsafe { (*context.as_ptr()).num_comp_vectors };
        open.attributes = attributes(&attr, number(vectors));
        let device = Device(Arc::new(open));
        let never_blocks = |fd| -> nix::Result<()> {
            let flags = OFlag::from_bits_retain(fcntl(fd, FcntlArg::F_GETFL)?);
            fcntl(fd, FcntlArg::F_SETFL(flags | OFlag::O_NONBLOCK)).map(|_| ())
        };
        never_blocks(device.events_fd()).map_err(|e| device.error("fcntl", String::new(), e.into()))?;
        Ok(device)
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// Its attributes, which never change.
    pub fn attributes(&self) -> &DeviceAttributes {
        &self.0.attributes
    }

    /// On how many vectors (interrupts, most often) completion queues can be spread; at least 1.
    pub fn completion_vectors(&self) -> u32 {
        self.0.attributes.num_comp_vectors.max(1)
    }

    /// The attributes of a port, from 1, as they are now.
    ///
    /// # Errors
    /// There is no such port, or the device is gone.
    pub fn port(&self, port: u8) -> Result<PortAttributes, VerbsError> {
        let mut attr = ffi::ibv_port_attr::default();
        // SAFETY: the context is open; the function writes a beginning of `attr`, whose other fields stay zero.
        let rc = unsafe { ffi::ibv_query_port(self.context(), port, (&raw mut attr).cast()) };
        outcome(rc).map_err(|source| self.error("ibv_query_port", format!(" for port {port}"), source))?;
        Ok(port_attributes(&attr))
    }

    /// The rows in use of a port's GID table, as they are now, in the order of their numbers.
    ///
    /// # Errors
    /// The table cannot be read.
    pub fn gids(&self, port: u8) -> Result<Vec<GidRow>, VerbsError> {
        let mut rows = 0;
        for port in 1..=u8::try_from(self.attributes().phys_port_cnt).unwrap_or(u8::MAX) {
            rows += self.port(port)?.gid_tbl_len as usize;
        }
        let mut entries = vec![ffi::ibv_gid_entry::default(); rows.min(GID_ROWS_MAX)];
        // SAFETY: the context is open; `entries` has room for as many rows of the size that is told.
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
        let mut found: Vec<GidRow> =
            entries.iter().take(count).filter(|e| e.port_num == u32::from(port)).map(gid_row).collect();
        found.sort_by_key(|row| row.index);
        Ok(found)
    }

    pub(super) fn context(&self) -> *mut ffi::ibv_context {
        self.0.context.as_ptr()
    }

    /// Are the two one opening?
    pub(super) fn is(&self, other: &Device) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// Where its events come: readable when there is one ([`next_event`](Device::next_event)).
    pub fn events_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the context is open, and keeps this descriptor open until it is closed, which is not before `self` is gone.
        unsafe { BorrowedFd::borrow_raw((*self.context()).async_fd) }
    }

    pub(super) fn error(&self, what: &'static str, detail: String, source: io::Error) -> VerbsError {
        self.0.error(what, detail, source)
    }
}

impl Open {
    fn error(&self, what: &'static str, detail: String, source: io::Error) -> VerbsError {
        VerbsError { what, device: self.name.clone(), detail, source }
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        // SAFETY: it is open, and closed once: all that is made from it holds a clone of the device.
        let rc = unsafe { ffi::ibv_close_device(self.context.as_ptr()) };
        left_behind("ibv_close_device", &self.name, rc);
    }
}

impl std::fmt::Debug for Device {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Device({})", self.name())
    }
}

fn not_opened(device: &str, file: &str, error: io::Error) -> Absent {
    let shut = [libc::EACCES, libc::EPERM, libc::ENOENT, libc::ENXIO, libc::ENODEV];
    if error.raw_os_error().is_some_and(|number| shut.contains(&number)) {
        return Absent::Denied { device: device.to_owned(), file: format!("/dev/infiniband/{file}"), source: error };
    }
    VerbsError { what: "ibv_open_device", device: device.to_owned(), detail: String::new(), source: error }.into()
}

/// The text in a field of 64 characters.
///
/// # Safety
/// `field` is valid for reading.
unsafe fn text(field: *const [c_char; 64]) -> String {
    // SAFETY: the caller's promise. A character and a byte have one size, and every byte is a valid one.
    let bytes: [u8; 64] = unsafe { field.cast::<[u8; 64]>().read() };
    CStr::from_bytes_until_nul(&bytes).map(|text| text.to_string_lossy().into_owned()).unwrap_or_default()
}

/// A count that C holds in an `int`.
fn number(count: std::ffi::c_int) -> u32 {
    u32::try_from(count).unwrap_or(0)
}

fn attributes(attr: &ffi::ibv_device_attr, vectors: u32) -> DeviceAttributes {
    DeviceAttributes {
        // SAFETY: a borrowed field.
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

fn gid_row(entry: &ffi::ibv_gid_entry) -> GidRow {
    GidRow {
        index: entry.gid_index,
        // SAFETY: both views of a GID are plain bytes.
        gid: unsafe { entry.gid.raw },
        kind: match entry.gid_type {
            ffi::IBV_GID_TYPE_IB => GidKind::Infiniband,
            ffi::IBV_GID_TYPE_ROCE_V1 => GidKind::RoceV1,
            ffi::IBV_GID_TYPE_ROCE_V2 => GidKind::RoceV2,
            other => GidKind::Other(other),
        },
        netdev_index: (entry.ndev_ifindex != 0).then_some(entry.ndev_ifindex),
    }
}
