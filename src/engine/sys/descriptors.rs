//! How many files and sockets this process may have open.

use std::io;

use nix::sys::resource::{Resource, getrlimit, setrlimit};

/// Allow `wanted` open files and sockets, as far as the hard limit goes; gives how many are allowed now.
///
/// # Errors
/// What the system calls say.
pub fn allow(wanted: u64) -> io::Result<u64> {
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE)?;
    if soft >= wanted {
        return Ok(soft);
    }
    let more = wanted.min(hard);
    setrlimit(Resource::RLIMIT_NOFILE, more, hard)?;
    Ok(more)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_allowed_already_stays() {
        let now = allow(1).unwrap();
        assert!(now >= 1);
        assert_eq!(allow(now).unwrap(), now);
    }
}
