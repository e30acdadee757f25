//! Why verbs are unavailable, or why a call failed, and how to fix it.

use std::io;

/// The reason why a device is unavailable.
#[derive(Debug, thiserror::Error)]
pub enum VerbsUnavailable {
    #[error("mcctl was built without the cargo feature `rdma`")]
    Feature,
    #[error("cannot open {file}: {why}")]
    Library { file: &'static str, why: String },
    #[error("the kernel does not provide RDMA to user space")]
    Kernel,
    /// The kernel supports RDMA but has no device.
    #[error("the kernel has no RDMA device: /sys/class/infiniband is empty")]
    NoDevice,
    /// The kernel has devices for which the library has no provider.
    #[error("libibverbs has no driver for {}", .devices.join(", "))]
    NoProvider { devices: Vec<String> },
    /// The requested device does not exist, but other devices do.
    #[error("RDMA device {device} not found; libibverbs lists {}", .listed.join(", "))]
    NoSuchDevice { device: String, listed: Vec<String> },
    /// This process cannot open the device file.
    #[error("{device}: cannot open {file}: {source}")]
    Denied {
        device: String,
        /// The device file below `/dev`.
        file: String,
        /// Permission denied, or not found.
        source: io::Error,
    },
    #[error(transparent)]
    Failed(#[from] VerbsError),
}

impl VerbsUnavailable {
    /// How to fix it.
    pub fn remedy(&self) -> String {
        match self {
            VerbsUnavailable::Feature => "build mcctl with its default features".to_owned(),
            VerbsUnavailable::Library { .. } => {
                "install libibverbs (Debian: libibverbs1 and ibverbs-providers; RHEL: libibverbs)".to_owned()
            }
            VerbsUnavailable::Kernel => {
                "load the device's driver and run modprobe ib_uverbs (for a container, on the host)".to_owned()
            }
            VerbsUnavailable::NoDevice => {
                "load the device's driver (lspci lists the device; dmesg shows why its driver does not start)"
                    .to_owned()
            }
            VerbsUnavailable::NoProvider { .. } => {
                "install ibverbs-providers (RHEL: libibverbs) or the vendor's drivers, and run modprobe ib_uverbs"
                    .to_owned()
            }
            VerbsUnavailable::NoSuchDevice { listed, .. } => format!("use one of {}", listed.join(", ")),
            VerbsUnavailable::Denied { file, .. } => {
                format!("grant this user read and write access to {file}; for a container, pass in /dev/infiniband/*")
            }
            VerbsUnavailable::Failed(error) => {
                error.remedy().unwrap_or("check the kernel log (dmesg) for device errors").to_owned()
            }
        }
    }
}

/// A verb that failed.
#[derive(Debug, thiserror::Error)]
#[error("{what} failed on {device}{detail}: {source}")]
pub struct VerbsError {
    /// The verb, for example `ibv_modify_qp to RTR`.
    pub what: &'static str,
    pub device: String,
    /// The arguments. Empty, or begins with a space.
    pub detail: String,
    pub source: io::Error,
}

impl VerbsError {
    /// The error number. 0 if there is none.
    pub fn errno(&self) -> i32 {
        self.source.raw_os_error().unwrap_or(0)
    }

    /// Whether the error is ENOMEM: out of memory, or the locked-memory limit would be exceeded.
    pub fn is_out_of_memory(&self) -> bool {
        self.source.kind() == io::ErrorKind::OutOfMemory
    }

    /// Whether the error is EINVAL.
    pub fn is_invalid(&self) -> bool {
        self.source.kind() == io::ErrorKind::InvalidInput
    }

    /// How to fix it, for errors whose message alone would be misleading.
    pub fn remedy(&self) -> Option<&'static str> {
        match (self.what, self.errno()) {
            ("ibv_reg_mr", libc::ENOMEM) => Some(
                "registered memory is locked: raise RLIMIT_MEMLOCK (ulimit -l unlimited, LimitMEMLOCK=infinity, or \
                 --ulimit memlock=-1 for a container), or grant CAP_IPC_LOCK",
            ),
            ("ibv_reg_mr", libc::EFAULT) => Some("reserve enough huge pages for this memory"),
            ("ibv_modify_qp to RTR", libc::EINVAL | libc::ENODATA | libc::ENOENT) => Some(
                "choose a GID index (MC_GID_INDEX) whose type and network match the peer's GID, and an MTU (MC_MTU) that the port supports",
            ),
            ("ibv_modify_qp to RTR", libc::ETIMEDOUT | libc::ENETUNREACH | libc::EHOSTUNREACH) => {
                Some("check that the local GID's address has a route to the peer GID's address (ip route get, ping -I)")
            }
            (_, libc::ENOSYS | libc::EOPNOTSUPP) => {
                Some("use a newer libibverbs or kernel: the installed one does not support the call")
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_verbs_error_names_the_verb_the_device_and_the_fix() {
        let error = VerbsError {
            what: "ibv_reg_mr",
            device: "mlx5_0".to_owned(),
            detail: " with 4096 bytes at 0x1000".to_owned(),
            source: io::Error::from_raw_os_error(libc::ENOMEM),
        };
        let text = error.to_string();
        for part in ["ibv_reg_mr", "mlx5_0", "4096 bytes at 0x1000", "Cannot allocate memory"] {
            assert!(text.contains(part), "{part}: {text}");
        }
        assert!(error.errno() == libc::ENOMEM && error.is_out_of_memory());
        let remedy = VerbsUnavailable::Failed(error).remedy();
        assert!(remedy.contains("ulimit -l unlimited"), "{remedy}");
    }

    #[test]
    fn missing_software_names_the_package_to_install() {
        let absent = VerbsUnavailable::Library { file: "libibverbs.so.1", why: "no such file".to_owned() };
        assert!(absent.remedy().contains("ibverbs-providers"), "{absent}");
        let absent = VerbsUnavailable::NoProvider { devices: vec!["rxe0".to_owned(), "rxe1".to_owned()] };
        assert_eq!(absent.to_string(), "libibverbs has no driver for rxe0, rxe1");
    }
}
