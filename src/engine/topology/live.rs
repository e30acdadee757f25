//! What only libibverbs tells of the devices of this host: it is opened for it, and so is each device.

use serde::Serialize;

use crate::engine::sys::verbs::{DeviceAttributes, PortAttributes, RdmaDevice, VerbsError, VerbsUnavailable, devices};

/// What libibverbs tells.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Live {
    /// Why it tells nothing.
    pub missing: Option<String>,
    /// What to do about that.
    pub next: Option<String>,
    /// Its devices, in its order.
    pub devices: Vec<LiveDevice>,
}

/// What it tells of a device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct LiveDevice {
    /// For instance `mlx5_0`.
    pub name: String,
    /// Why nothing is known of it.
    pub missing: Option<String>,
    /// What to do about that.
    pub next: Option<String>,
    /// Its limits, by the names of `ibv_devinfo -v`.
    pub attributes: Option<DeviceAttributes>,
    pub ports: Vec<LivePort>,
}

/// What it tells of a port.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct LivePort {
    /// From 1.
    pub number: u8,
    /// Why nothing is known of it.
    pub missing: Option<String>,
    /// By the names of `ibv_devinfo -v`; MTUs in bytes.
    #[serde(flatten)]
    pub attributes: Option<PortAttributes>,
}

impl Live {
    /// Ask it. Takes some milliseconds for each device, and as long as a driver likes that is broken.
    pub fn read() -> Live {
        match devices() {
            Ok(listed) => {
                Live { devices: listed.into_iter().map(|l| LiveDevice::read(l.name)).collect(), ..Live::default() }
            }
            Err(absent) => Live { missing: Some(absent.to_string()), next: Some(absent.remedy()), devices: Vec::new() },
        }
    }

    /// Nothing, for this reason.
    pub fn missing(why: &str, next: &str) -> Live {
        Live { missing: Some(why.to_owned()), next: Some(next.to_owned()), devices: Vec::new() }
    }

    /// What is known of the device of this name.
    pub fn device(&self, name: &str) -> Option<&LiveDevice> {
        self.devices.iter().find(|device| device.name == name)
    }
}

impl LiveDevice {
    fn read(name: String) -> LiveDevice {
        let device = match RdmaDevice::open(&name) {
            Ok(device) => device,
            Err(absent) => return LiveDevice::absent(name, &absent),
        };
        let attributes = device.attributes().clone();
        let last = u8::try_from(attributes.phys_port_cnt).unwrap_or(u8::MAX);
        let ports = (1..=last).map(|number| LivePort::of(number, device.port(number))).collect();
        LiveDevice { name, missing: None, next: None, attributes: Some(attributes), ports }
    }

    fn absent(name: String, absent: &VerbsUnavailable) -> LiveDevice {
        let (missing, next) = (Some(absent.to_string()), Some(absent.remedy()));
        LiveDevice { name, missing, next, attributes: None, ports: Vec::new() }
    }

    /// What is known of its port of this number.
    pub fn port(&self, number: u32) -> Option<&PortAttributes> {
        self.ports.iter().find(|port| u32::from(port.number) == number)?.attributes.as_ref()
    }
}

impl LivePort {
    fn of(number: u8, told: Result<PortAttributes, VerbsError>) -> LivePort {
        match told {
            Ok(attributes) => LivePort { number, missing: None, attributes: Some(attributes) },
            Err(error) => LivePort { number, missing: Some(error.to_string()), attributes: None },
        }
    }
}
