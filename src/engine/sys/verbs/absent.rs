//! Why there are no verbs, or why a call failed: in words for the person who has to do something about it.

use std::io;

/// Why a device cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum Absent {
    /// This program was built without them.
    #[error("this mcctl was built without the cargo feature `rdma`")]
    Feature,
    /// The library is not installed.
    #[error("{file} cannot be opened: {why}")]
    Library {
        /// Its name.
        file: &'static str,
        /// The loader's words.
        why: String,
    },
    /// The kernel has no RDMA for programs.
    #[error("the kernel has no RDMA for programs")]
    Kernel,
    /// The kernel has RDMA and no device.
    #[error("the kernel knows no RDMA device: /sys/class/infiniband is empty")]
    NoDevice,
    /// The kernel has devices that the library does not know how to drive.
    #[error("libibverbs has no driver for {}", .devices.join(", "))]
    NoProvider {
        /// The kernel's devices.
        devices: Vec<String>,
    },
    /// There are devices, and not this one.
    #[error("there is no RDMA device {device}; libibverbs lists {}", .listed.join(", "))]
    NoSuchDevice {
        /// The one that was asked for.
        device: String,
        /// Those there are.
        listed: Vec<String>,
    },
    /// The way to the device is shut to this process.
    #[error("{device}: {file} cannot be opened: {source}")]
    Denied {
        /// The device.
        device: String,
        /// Its file below `/dev`.
        file: String,
        /// Permission denied, or no such file.
        source: io::Error,
    },
    /// Some call failed.
    #[error(transparent)]
    Failed(#[from] VerbsError),
}

impl Absent {
    /// What to do about it.
    pub fn remedy(&self) -> String {
        match self {
            Absent::Feature => "build it with its default features".to_owned(),
            Absent::Library { .. } => {
                "install libibverbs (Debian: libibverbs1 and ibverbs-providers; RHEL: libibverbs)".to_owned()
            }
            Absent::Kernel => {
                "load the driver of the device, and modprobe ib_uverbs; in a container: on the host".to_owned()
            }
            Absent::NoDevice => {
                "load the driver of the device (lspci shows the device; dmesg why it is not taken)".to_owned()
            }
            Absent::NoProvider { .. } => {
                "install ibverbs-providers (RHEL: libibverbs) or the vendor's drivers, and modprobe ib_uverbs"
                    .to_owned()
            }
            Absent::NoSuchDevice { listed, .. } => format!("name one of {}", listed.join(", ")),
            Absent::Denied { file, .. } => {
                format!("give this user the right to read and write {file}; in a container pass /dev/infiniband/* in")
            }
            Absent::Failed(error) => {
                error.remedy().unwrap_or("the kernel's log (dmesg) may say more of the device").to_owned()
            }
        }
    }
}

/// A verb failed.
#[derive(Debug, thiserror::Error)]
#[error("{what} failed on {device}{detail}: {source}")]
pub struct VerbsError {
    /// Which, for instance `ibv_modify_qp to RTR`.
    pub what: &'static str,
    /// On which device.
    pub device: String,
    /// With what, beginning with a blank; may be empty.
    pub detail: String,
    /// The system's reason.
    pub source: io::Error,
}

impl VerbsError {
    /// The error number; 0 where there is none.
    pub fn errno(&self) -> i32 {
        self.source.raw_os_error().unwrap_or(0)
    }

    /// Was there no memory, or none that may be locked?
    pub fn is_out_of_memory(&self) -> bool {
        self.source.kind() == io::ErrorKind::OutOfMemory
    }

    /// Was it something that it was given?
    pub fn is_invalid(&self) -> bool {
        self.source.kind() == io::ErrorKind::InvalidInput
    }

    /// What to do about it, where the number alone would mislead.
    pub fn remedy(&self) -> Option<&'static str> {
        match (self.what, self.errno()) {
            ("ibv_reg_mr", libc::ENOMEM) => Some(
                "registered memory is locked: raise RLIMIT_MEMLOCK (ulimit -l unlimited, LimitMEMLOCK=infinity, a container's \
                 --ulimit memlock=-1), or give CAP_IPC_LOCK",
            ),
            ("ibv_reg_mr", libc::EFAULT) => Some("see that as many huge pages are reserved as the memory takes"),
            ("ibv_modify_qp to RTR", libc::EINVAL | libc::ENODATA | libc::ENOENT) => Some(
                "choose a row of the GID table (MC_GID_INDEX) of the peer's kind and network, and an MTU (MC_MTU) that the port has",
            ),
            ("ibv_modify_qp to RTR", libc::ETIMEDOUT | libc::ENETUNREACH | libc::EHOSTUNREACH) => {
                Some("see that the address of the local GID has a route to that of the peer's (ip route get, ping -I)")
            }
            (_, libc::ENOSYS | libc::EOPNOTSUPP) => Some("use a newer libibverbs or kernel: this one does not know it"),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_says_the_step_the_device_the_values_and_what_to_do() {
        let error = VerbsError {
            what: "ibv_reg_mr",
            device: "mlx5_0".to_owned(),
            detail: " with 4096 bytes at 0x1000".to_owned(),
            source: io::Error::from_raw_os_error(libc::ENOMEM),
        };
        let text = error.to_string();
        assert!(
            text.starts_with("ibv_reg_mr failed on mlx5_0 with 4096 bytes at 0x1000: Cannot allocate memory"),
            "{text}"
        );
        assert!(error.errno() == libc::ENOMEM && error.is_out_of_memory());
        let remedy = Absent::Failed(error).remedy();
        assert!(remedy.contains("ulimit -l unlimited"), "{remedy}");
    }

    #[test]
    fn what_is_missing_is_named_with_what_to_install() {
        let absent = Absent::Library { file: "libibverbs.so.1", why: "no such file".to_owned() };
        assert!(absent.remedy().contains("ibverbs-providers"), "{absent}");
        let absent = Absent::NoProvider { devices: vec!["rxe0".to_owned(), "rxe1".to_owned()] };
        assert_eq!(absent.to_string(), "libibverbs has no driver for rxe0, rxe1");
    }
}
