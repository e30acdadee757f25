//! 128-bit identifiers in their usual text form: of a data directory, and of a boot of the kernel.

use std::fmt;
use std::str::FromStr;

/// A UUID, for example the content of `/proc/sys/kernel/random/boot_id`. Its text is
/// `xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Uuid(pub u128);

impl fmt::Display for Uuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let digits = format!("{:032x}", self.0);
        let parts = [&digits[..8], &digits[8..12], &digits[12..16], &digits[16..20], &digits[20..]];
        f.write_str(&parts.join("-"))
    }
}

/// The text is not a UUID.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("invalid UUID: expected 32 hexadecimal digits in five groups")]
pub struct ParseUuidError;

impl FromStr for Uuid {
    type Err = ParseUuidError;

    /// Parses the text form. White space around it is ignored, because `boot_id` ends with a
    /// newline.
    fn from_str(text: &str) -> Result<Uuid, ParseUuidError> {
        let groups: Vec<&str> = text.trim().split('-').collect();
        let is_hex = |group: &&str| group.bytes().all(|byte| byte.is_ascii_hexdigit());
        if !groups.iter().map(|group| group.len()).eq([8, 4, 4, 4, 12]) || !groups.iter().all(is_hex) {
            return Err(ParseUuidError);
        }
        u128::from_str_radix(&groups.concat(), 16).map(Uuid).map_err(|_| ParseUuidError)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_uuid_round_trips_through_text() {
        let text = "0f0e0d0c-0b0a-0908-0706-050403020100";
        let uuid: Uuid = format!("{text}\n").parse().unwrap();
        assert_eq!(uuid, Uuid(0x0f0e_0d0c_0b0a_0908_0706_0504_0302_0100));
        assert_eq!(uuid.to_string(), text);
        for bad in ["", "7", "0f0e0d0c0b0a09080706050403020100", "+f0e0d0c-0b0a-0908-0706-050403020100"] {
            assert_eq!(bad.parse::<Uuid>(), Err(ParseUuidError), "{bad}");
        }
    }
}
