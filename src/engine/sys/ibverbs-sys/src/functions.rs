//! The library's exported functions.

use std::ffi::{c_char, c_int, c_uint, c_void};
use std::ptr::null_mut;

use crate::library::{absent, loaded};
use crate::structs::*;

/// Declares each function once: the field for its address, its symbol lookup, and a wrapper that
/// calls it. If the symbol was not found, the wrapper returns the value after `else`.
macro_rules! functions {
    ($( $(#[$doc:meta])* fn $name:ident($($arg:ident: $type:ty),* $(,)?) -> $answer:ty, else $absent:expr; )*) => {
        pub(crate) struct Symbols {
            $( pub(crate) $name: Option<unsafe extern "C" fn($($type),*) -> $answer>, )*
        }

        impl Symbols {
            /// Looks up the functions. `find` returns the address of a C function by name, or null.
            pub(crate) fn look_up(find: impl Fn(&str) -> *mut c_void) -> Symbols {
                Symbols {
                    $(
                        // SAFETY: a pointer and an optional function pointer have the same size,
                        // and null is `None`. The library function with this name has this
                        // signature: ABI IBVERBS_1.1 never changes a signature.
                        $name: unsafe {
                            std::mem::transmute::<*mut c_void, Option<unsafe extern "C" fn($($type),*) -> $answer>>(
                                find(stringify!($name)),
                            )
                        },
                    )*
                }
            }
        }

        $(
            $(#[$doc])*
            pub unsafe fn $name($($arg: $type),*) -> $answer {
                match loaded().ok().and_then(|symbols| symbols.$name) {
                    // SAFETY: the caller follows the C function's rules, and the address is that of
                    // the C function.
                    Some(call) => unsafe { call($($arg),*) },
                    None => {
                        absent();
                        $absent
                    }
                }
            }
        )*
    };
}

functions! {
    /// Returns a null-terminated list of all devices. Stores the number of devices in `count`.
    fn ibv_get_device_list(count: *mut c_int) -> *mut *mut ibv_device, else null_mut();
    /// Frees the list and the devices in it that are not open.
    fn ibv_free_device_list(list: *mut *mut ibv_device) -> (), else ();
    /// Returns the device name, such as `mlx5_0`.
    fn ibv_get_device_name(device: *mut ibv_device) -> *const c_char, else std::ptr::null();
    /// Returns the node GUID, in network byte order.
    fn ibv_get_device_guid(device: *mut ibv_device) -> __be64, else 0;
    /// Returns the kernel's index for the device, or -1.
    fn ibv_get_device_index(device: *mut ibv_device) -> c_int, else -1;
    /// Opens a device. Returns null on failure.
    fn ibv_open_device(device: *mut ibv_device) -> *mut ibv_context, else null_mut();
    /// Closes a device. All objects created on it must be destroyed.
    fn ibv_close_device(context: *mut ibv_context) -> c_int, else libc::ENOSYS;
    /// Queries the device attributes.
    fn ibv_query_device(context: *mut ibv_context, attr: *mut ibv_device_attr) -> c_int, else libc::ENOSYS;
    /// Queries the attributes of a port. Writes only the fields of an [`ibv_port_attr`] up to
    /// `flags`.
    fn ibv_query_port(context: *mut ibv_context, port: u8, attr: *mut _compat_ibv_port_attr) -> c_int, else libc::ENOSYS;
    /// Queries all used entries of all GID tables of a device. Returns their number, or a negative
    /// error number.
    fn _ibv_query_gid_table(
        context: *mut ibv_context, entries: *mut ibv_gid_entry, max_entries: usize, flags: u32, entry_size: usize,
    ) -> isize, else -(libc::ENOSYS as isize);
    /// Allocates a protection domain.
    fn ibv_alloc_pd(context: *mut ibv_context) -> *mut ibv_pd, else null_mut();
    /// Deallocates the protection domain.
    fn ibv_dealloc_pd(pd: *mut ibv_pd) -> c_int, else libc::ENOSYS;
    /// Registers a memory region.
    fn ibv_reg_mr(pd: *mut ibv_pd, addr: *mut c_void, length: usize, access: c_int) -> *mut ibv_mr, else null_mut();
    /// Registers a memory region at a chosen address, with optional flags that older kernels
    /// ignore.
    fn ibv_reg_mr_iova2(
        pd: *mut ibv_pd, addr: *mut c_void, length: usize, iova: u64, access: c_uint,
    ) -> *mut ibv_mr, else null_mut();
    /// Deregisters a memory region. After it returns 0, the device no longer accesses the memory.
    fn ibv_dereg_mr(mr: *mut ibv_mr) -> c_int, else libc::ENOSYS;
    /// Creates a completion channel.
    fn ibv_create_comp_channel(context: *mut ibv_context) -> *mut ibv_comp_channel, else null_mut();
    /// Destroys a channel. No completion queue may use it.
    fn ibv_destroy_comp_channel(channel: *mut ibv_comp_channel) -> c_int, else libc::ENOSYS;
    /// Creates a completion queue.
    fn ibv_create_cq(
        context: *mut ibv_context, cqe: c_int, cq_context: *mut c_void, channel: *mut ibv_comp_channel, comp_vector: c_int,
    ) -> *mut ibv_cq, else null_mut();
    /// Destroys the queue. Blocks until all its events have been acknowledged.
    fn ibv_destroy_cq(cq: *mut ibv_cq) -> c_int, else libc::ENOSYS;
    /// Returns the next event on a channel, or -1 if there is none.
    fn ibv_get_cq_event(channel: *mut ibv_comp_channel, cq: *mut *mut ibv_cq, cq_context: *mut *mut c_void) -> c_int, else -1;
    /// Acknowledges `count` events of a completion queue, which allows its destruction.
    fn ibv_ack_cq_events(cq: *mut ibv_cq, count: c_uint) -> (), else ();
    /// Creates a queue pair. The actual capabilities are returned in `attr.cap`.
    fn ibv_create_qp(pd: *mut ibv_pd, attr: *mut ibv_qp_init_attr) -> *mut ibv_qp, else null_mut();
    /// Modifies the attributes selected by `mask`.
    fn ibv_modify_qp(qp: *mut ibv_qp, attr: *mut ibv_qp_attr, mask: c_int) -> c_int, else libc::ENOSYS;
    /// Queries the attributes selected by `mask`.
    fn ibv_query_qp(
        qp: *mut ibv_qp, attr: *mut ibv_qp_attr, mask: c_int, init_attr: *mut ibv_qp_init_attr,
    ) -> c_int, else libc::ENOSYS;
    /// Destroys the queue pair. Blocks until all its events have been acknowledged.
    fn ibv_destroy_qp(qp: *mut ibv_qp) -> c_int, else libc::ENOSYS;
    /// Returns the next asynchronous event from a device, or -1 if there is none.
    fn ibv_get_async_event(context: *mut ibv_context, event: *mut ibv_async_event) -> c_int, else -1;
    /// Acknowledges an event, which allows the destruction of the object that it names.
    fn ibv_ack_async_event(event: *mut ibv_async_event) -> (), else ();
}
