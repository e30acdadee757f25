//! The variable that switches checksums of whole objects on or off in a client, and how the clients
//! read it.

/// The variable. The wheel's client has checksums only if it is on. mcctl's client has them unless
/// it is off.
pub const VARIABLE: &str = "MOONCAKE_STORE_CHECKSUM";

/// The first release whose client reads the variable.
pub const SINCE: &str = "0.3.13";

/// The cost of checksums in the wheel's client.
pub const COST: &str =
    "one client over TCP then has 0.1 to 0.5 of the throughput, and uses two to five times the CPU time per byte";

/// The values that the wheel's client reads as on and as off, in any case. It reads every other
/// value as off, and logs a warning. From a run of the client of 0.3.13.post1 with each of them.
const ON: &[&str] = &["1", "true", "yes", "on", "enable"];
const OFF: &[&str] = &["0", "false", "no", "off", "disable"];

/// What the wheel's client reads a value as.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChecksumSwitch {
    On,
    Off,
    /// An unknown value, which the client reads as off.
    Invalid,
}

/// How the wheel's client reads the value `text`.
pub fn in_wheel(text: &str) -> ChecksumSwitch {
    let is_among = |words: &[&str]| words.iter().any(|word| word.eq_ignore_ascii_case(text.trim()));
    match (is_among(ON), is_among(OFF)) {
        (true, _) => ChecksumSwitch::On,
        (_, true) => ChecksumSwitch::Off,
        _ => ChecksumSwitch::Invalid,
    }
}

/// Whether the value `text` switches checksums off in mcctl's client. An unknown value does not,
/// and causes a warning.
pub fn is_off_in_mcctl(text: &str) -> bool {
    in_wheel(text) == ChecksumSwitch::Off
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_read_as_the_wheel_reads_them() {
        for text in ["1", "true", "TRUE", "yEs", "on", " 1", "1 ", "enable"] {
            assert_eq!(in_wheel(text), ChecksumSwitch::On, "{text}");
        }
        for text in ["0", "FALSE", "no", "off", "disable"] {
            assert_eq!(in_wheel(text), ChecksumSwitch::Off, "{text}");
        }
        for text in ["", "t", "y", "2", "enabled"] {
            assert_eq!(in_wheel(text), ChecksumSwitch::Invalid, "{text}");
        }
        assert!(is_off_in_mcctl("0") && is_off_in_mcctl("Off") && !is_off_in_mcctl("1") && !is_off_in_mcctl(""));
    }
}
