//! Opens libibverbs and looks up its functions.

use std::ffi::{CStr, CString, c_int, c_void};
use std::sync::OnceLock;

use crate::functions::Symbols;

/// The library's file name, searched by the dynamic loader.
const FILE: &CStr = c"libibverbs.so.1";

/// The dynamic loader's message about why the library could not be opened.
#[derive(Debug)]
pub struct LoadError(String);

impl std::fmt::Display for LoadError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for LoadError {}

static SYMBOLS: OnceLock<Result<Symbols, LoadError>> = OnceLock::new();

/// Opens the library on the first call. Later calls return the same result.
///
/// # Errors
/// Fails with the loader's message.
pub fn library() -> Result<(), &'static LoadError> {
    loaded().map(|_| ())
}

/// Whether the library exports `ibv_reg_mr_iova2`, which accepts optional access flags (rdma-core
/// 28).
pub fn has_reg_mr_iova2() -> bool {
    loaded().is_ok_and(|symbols| symbols.ibv_reg_mr_iova2.is_some())
}

pub(crate) fn loaded() -> Result<&'static Symbols, &'static LoadError> {
    SYMBOLS.get_or_init(open).as_ref()
}

/// Sets `errno` to `ENOSYS`, like a kernel without RDMA, and returns that number.
pub(crate) fn absent() -> c_int {
    // SAFETY: the pointer refers to this thread's errno, which is always valid.
    unsafe { *libc::__errno_location() = libc::ENOSYS };
    libc::ENOSYS
}

fn open() -> Result<Symbols, LoadError> {
    // SAFETY: FILE is NUL-terminated. Loading runs the library's constructors, and libibverbs has
    // none that touches our state. The handle is never closed, so looked-up symbols stay valid.
    let handle = unsafe { libc::dlopen(FILE.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
    if handle.is_null() {
        // SAFETY: no arguments. The message, if any, is valid until this thread next calls the
        // loader.
        let text = unsafe { libc::dlerror() };
        if text.is_null() {
            return Err(LoadError(format!("cannot open {}", FILE.to_string_lossy())));
        }
        // SAFETY: not null, NUL-terminated, and copied immediately.
        return Err(LoadError(unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()));
    }
    Ok(Symbols::look_up(|name| symbol(handle, name)))
}

/// Returns the address of `name`, or null if the library does not export it. If several versions
/// exist, returns the newest.
fn symbol(handle: *mut c_void, name: &str) -> *mut c_void {
    let name = CString::new(name).expect("function names contain no NUL byte");
    // SAFETY: `handle` was opened and is never closed. The name is NUL-terminated.
    unsafe { libc::dlsym(handle, name.as_ptr()) }
}
