//! The size of a terminal. Read-only.

use std::os::fd::{AsFd, AsRawFd};

/// Width of the terminal behind `fd`, in columns. `None` if `fd` is not a terminal, or its width is
/// unknown.
pub fn width(fd: impl AsFd) -> Option<usize> {
    let mut size = libc::winsize { ws_row: 0, ws_col: 0, ws_xpixel: 0, ws_ypixel: 0 };
    // SAFETY: `fd` is open during the call. TIOCGWINSZ writes one `winsize` to the pointer, which
    // is valid for that.
    let code = unsafe { libc::ioctl(fd.as_fd().as_raw_fd(), libc::TIOCGWINSZ, &raw mut size) };
    (code == 0 && size.ws_col > 0).then_some(usize::from(size.ws_col))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_has_no_width() {
        assert_eq!(width(std::fs::File::open("/dev/null").unwrap()), None);
    }
}
