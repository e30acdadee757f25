//! The engine owner's choices for its transport.

/// The engine owner's choices for its transport. TCP has none.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TransportOptions {
    /// The devices to use. An empty list means every usable device.
    pub devices: Vec<String>,
    /// Fall back to TCP if the transport is unavailable on this host. Peers must fall back too,
    /// because a peer can only be reached over the protocol that it announces.
    pub allow_tcp_fallback: bool,
}

impl TransportOptions {
    /// Parses upstream's device list, as in `--device_name`: names separated by commas. An empty
    /// list or `auto-discovery` selects all devices.
    pub fn parse(devices: &str) -> TransportOptions {
        let names = devices.split(',').map(str::trim).filter(|name| !name.is_empty() && *name != "auto-discovery");
        TransportOptions { devices: names.map(str::to_owned).collect(), allow_tcp_fallback: false }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn device_names_are_separated_by_commas() {
        assert_eq!(TransportOptions::parse("rxe0, rxe1,").devices, ["rxe0", "rxe1"]);
        assert_eq!(TransportOptions::parse("auto-discovery"), TransportOptions::default());
        assert_eq!(TransportOptions::parse(""), TransportOptions::default());
    }
}
