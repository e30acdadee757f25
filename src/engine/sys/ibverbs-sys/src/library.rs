//! Finding the library's functions.

use std::ffi::{CStr, CString, c_int, c_void};
use std::sync::OnceLock;

use crate::functions::Symbols;

/// The file that is looked for, in the loader's places.
const FILE: &CStr = c"libibverbs.so.1";

static SYMBOLS: OnceLock<Result<Symbols, String>> = OnceLock::new();

/// Is the library there? Opens it on the first call; later calls give the same answer.
///
/// # Errors
/// The loader's words.
pub fn library() -> Result<(), &'static str> {
    loaded().map(|_| ())
}

/// Does the library know `ibv_reg_mr_iova2`, which takes optional access flags (rdma-core 28)?
pub fn has_reg_mr_iova2() -> bool {
    loaded().is_ok_and(|symbols| symbols.ibv_reg_mr_iova2.is_some())
}

pub(crate) fn loaded() -> Result<&'static Symbols, &'static str> {
    SYMBOLS.get_or_init(open).as_ref().map_err(String::as_str)
}

/// Set `errno` to `ENOSYS`, as a kernel without RDMA does; gives it back.
pub(crate) fn absent() -> c_int {
    // SAFETY: the pointer is to this thread's errno, always valid.
    unsafe { *libc::__errno_location() = libc::ENOSYS };
    libc::ENOSYS
}

fn open() -> Result<Symbols, String> {
    // SAFETY: FILE ends with a zero. The library's constructors run; libibverbs has none that touches our state. It is never closed,
    // so that what is looked up in it stays valid.
    let handle = unsafe { libc::dlopen(FILE.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
    if handle.is_null() {
        // SAFETY: no arguments; the text, when there is one, is valid until this thread's next call of the loader.
        let text = unsafe { libc::dlerror() };
        if text.is_null() {
            return Err(format!("cannot open {}", FILE.to_string_lossy()));
        }
        // SAFETY: not null, ends with a zero, copied at once.
        return Err(unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned());
    }
    Ok(Symbols::look_up(|name| symbol(handle, name)))
}

/// The address of `name`, null where the library does not have it. The newest version of it, where it has several.
fn symbol(handle: *mut c_void, name: &str) -> *mut c_void {
    let name = CString::new(name).expect("the names of functions have no zero");
    // SAFETY: `handle` was opened and is never closed; the name ends with a zero.
    unsafe { libc::dlsym(handle, name.as_ptr()) }
}
