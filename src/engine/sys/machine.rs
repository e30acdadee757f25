//! The kernel and the processor of this host, for reports.

use std::fs;

/// Maximum length of a processor name in characters.
const NAME_CHARS: usize = 80;

/// Returns the kernel release, e.g. `6.1.0-18-amd64`. `None` if `/proc` cannot be read.
pub fn kernel_release() -> Option<String> {
    let text = fs::read_to_string("/proc/sys/kernel/osrelease").ok()?;
    Some(text.trim().chars().take(NAME_CHARS).collect())
}

/// Returns the product name of the first processor. `None` if the kernel does not report one.
pub fn processor_name() -> Option<String> {
    name_in(&fs::read_to_string("/proc/cpuinfo").ok()?)
}

/// Finds the product name in `/proc/cpuinfo`.
fn name_in(text: &str) -> Option<String> {
    let names = text.lines().filter_map(|line| line.split_once(':'));
    let mut names = names.filter(|(key, _)| key.trim() == "model name").map(|(_, name)| name.trim());
    let name = names.find(|name| !name.is_empty())?;
    Some(name.split_whitespace().collect::<Vec<_>>().join(" ").chars().take(NAME_CHARS).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processor_name_is_on_one_line_without_padding() {
        let text = "processor\t: 0\nmodel name\t: Intel(R)  Xeon(R) CPU   @ 2.50GHz\nmodel name\t: other\n";
        assert_eq!(name_in(text).as_deref(), Some("Intel(R) Xeon(R) CPU @ 2.50GHz"));
        assert_eq!(name_in("CPU implementer\t: 0x41\n"), None);
    }
}
