//! The `timestamp` in a segment descriptor. It is only for human readers; no program compares it.

use mcctl_base::Unix;

/// Formats a time as `2026-11-21 04:22:17.977000`. Upstream writes local time; this is UTC, which
/// needs no time zone data.
pub fn timestamp(at: Unix) -> String {
    const DAY_MS: i64 = 86_400_000;
    let days = at.0.div_euclid(DAY_MS);
    let ms = at.0.rem_euclid(DAY_MS);
    // Converts days to a civil date. Years start in March, so that the leap day is the last day of
    // a year.
    let shifted = days + 719_468;
    let era = shifted.div_euclid(146_097);
    let day_of_era = shifted.rem_euclid(146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let march_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * march_month + 2) / 5 + 1;
    let month = if march_month < 10 { march_month + 3 } else { march_month - 9 };
    let year = year_of_era + era * 400 + i64::from(month <= 2);
    let seconds = ms / 1000;
    let millis = ms % 1000;
    let hour = seconds / 3600;
    let minute = seconds / 60 % 60;
    let second = seconds % 60;
    format!("{year:04}-{month:02}-{day:02} {hour:02}:{minute:02}:{second:02}.{millis:03}000")
}

/// A time as part of a file name, like `2026-11-21T20-31-00`.
pub fn file_name_of(at: Unix) -> String {
    let text = timestamp(at);
    text.split('.').next().unwrap_or_default().replace(' ', "T").replace(':', "-")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_times_are_formatted_as_dates() {
        assert_eq!(timestamp(Unix(0)), "1970-01-01 00:00:00.000000");
        assert_eq!(timestamp(Unix(1_709_164_800_000 + 45_296_789)), "2024-02-29 12:34:56.789000");
        assert_eq!(timestamp(Unix(951_782_400_000)), "2000-02-29 00:00:00.000000");
        assert_eq!(timestamp(Unix(4_102_444_799_999)), "2099-12-31 23:59:59.999000");
    }

    #[test]
    fn a_date_is_a_file_name() {
        assert_eq!(file_name_of(Unix(1_709_164_800_000 + 45_296_789)), "2024-02-29T12-34-56");
    }
}
