//! Device data that only libibverbs provides, for this host. Reading the data opens each device.

use serde::Serialize;

use mcctl_sys::verbs::{DeviceAttributes, PortAttributes, RdmaDevice, VerbsError, VerbsUnavailable, devices};

/// The data of all devices that only libibverbs provides, or the reason for their absence.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct VerbsReport {
    /// Why no data is available.
    pub missing: Option<String>,
    /// How to make the data available.
    pub next: Option<String>,
    pub devices: Vec<VerbsDevice>,
}

/// Data about a device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct VerbsDevice {
    pub name: String,
    /// Why no data is available.
    pub missing: Option<String>,
    /// How to make the data available.
    pub next: Option<String>,
    /// The limits, named as in `ibv_devinfo -v`.
    pub attributes: Option<DeviceAttributes>,
    pub ports: Vec<VerbsPort>,
}

/// Data about a port.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct VerbsPort {
    /// Port number, counted from 1.
    pub number: u8,
    /// Why no data is available.
    pub missing: Option<String>,
    /// Port attributes, named as in `ibv_devinfo -v`; MTUs are in bytes.
    #[serde(flatten)]
    pub attributes: Option<PortAttributes>,
}

impl VerbsReport {
    /// Queries libibverbs. This takes a few milliseconds per device, and a broken driver may block
    /// the call indefinitely.
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

    /// Creates an empty report with a reason.
    pub fn missing(why: &str, next: &str) -> VerbsReport {
        VerbsReport { missing: Some(why.to_owned()), next: Some(next.to_owned()), devices: Vec::new() }
    }

    /// Returns the data about device `name`.
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
        let missing = Some(absent.to_string());
        let next = Some(absent.remedy());
        VerbsDevice { name, missing, next, attributes: None, ports: Vec::new() }
    }

    /// Returns the attributes of port `number`.
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
