//! Device data that only libibverbs provides, for this host. Reading it opens each device.

use serde::Serialize;

use crate::engine::sys::verbs::{DeviceAttributes, PortAttributes, RdmaDevice, VerbsError, VerbsUnavailable, devices};

/// The data of libibverbs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct VerbsReport {
    /// Why no data is available.
    pub missing: Option<String>,
    /// The remedy for that.
    pub next: Option<String>,
    pub devices: Vec<VerbsDevice>,
}

/// The data of a device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct VerbsDevice {
    pub name: String,
    /// Why no data is available.
    pub missing: Option<String>,
    /// The remedy for that.
    pub next: Option<String>,
    /// The limits, by their names in `ibv_devinfo -v`.
    pub attributes: Option<DeviceAttributes>,
    pub ports: Vec<VerbsPort>,
}

/// The data of a port.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct VerbsPort {
    /// Port number from 1.
    pub number: u8,
    /// Why no data is available.
    pub missing: Option<String>,
    /// By their names in `ibv_devinfo -v`; MTUs in bytes.
    #[serde(flatten)]
    pub attributes: Option<PortAttributes>,
}

impl VerbsReport {
    /// Queries libibverbs. It takes some milliseconds per device, and a broken driver may block it indefinitely.
    pub fn read() -> VerbsReport {
        match devices() {
            Ok(listed) => VerbsReport {
                devices: listed.into_iter().map(|l| VerbsDevice::read(l.name)).collect(),
                ..VerbsReport::default()
            },
            Err(absent) => {
                VerbsReport { missing: Some(absent.to_string()), next: Some(absent.remedy()), devices: Vec::new() }
            }
        }
    }

    /// Builds an empty result with a reason.
    pub fn missing(why: &str, next: &str) -> VerbsReport {
        VerbsReport { missing: Some(why.to_owned()), next: Some(next.to_owned()), devices: Vec::new() }
    }

    /// The data of the device `name`.
    pub fn device(&self, name: &str) -> Option<&VerbsDevice> {
        self.devices.iter().find(|device| device.name == name)
    }
}

impl VerbsDevice {
    fn read(name: String) -> VerbsDevice {
        let device = match RdmaDevice::open(&name) {
            Ok(device) => device,
            Err(absent) => return VerbsDevice::absent(name, &absent),
        };
        let attributes = device.attributes().clone();
        let last = u8::try_from(attributes.phys_port_cnt).unwrap_or(u8::MAX);
        let ports = (1..=last).map(|number| VerbsPort::of(number, device.port(number))).collect();
        VerbsDevice { name, missing: None, next: None, attributes: Some(attributes), ports }
    }

    fn absent(name: String, absent: &VerbsUnavailable) -> VerbsDevice {
        let (missing, next) = (Some(absent.to_string()), Some(absent.remedy()));
        VerbsDevice { name, missing, next, attributes: None, ports: Vec::new() }
    }

    /// The attributes of the port `number`.
    pub fn port(&self, number: u32) -> Option<&PortAttributes> {
        self.ports.iter().find(|port| u32::from(port.number) == number)?.attributes.as_ref()
    }
}

impl VerbsPort {
    fn of(number: u8, attributes: Result<PortAttributes, VerbsError>) -> VerbsPort {
        match attributes {
            Ok(attributes) => VerbsPort { number, missing: None, attributes: Some(attributes) },
            Err(error) => VerbsPort { number, missing: Some(error.to_string()), attributes: None },
        }
    }
}
