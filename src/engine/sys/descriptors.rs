//! This process's limit on open files and sockets.

use std::io;

use nix::sys::resource::{Resource, getrlimit, setrlimit};

/// Raises the soft limit on open files to `wanted`, or to the hard limit if that is lower. Returns
/// the new limit.
///
/// # Errors
/// Fails with the error from `getrlimit` or `setrlimit`.
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
    fn a_sufficient_limit_is_not_changed() {
        let now = allow(1).unwrap();
        assert!(now >= 1);
        assert_eq!(allow(now).unwrap(), now);
    }
}
