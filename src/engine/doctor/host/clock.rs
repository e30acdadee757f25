//! The clocks.

use std::time::Duration;

use crate::engine::base::Unix;
use crate::engine::check::{Check, Severity, Status};
use crate::engine::doctor::host::Look;
use crate::engine::doctor::{find, status};
use crate::engine::sys::clock::{ClockSync, clock_sync};

/// The start of 2025: no host that runs this is older, so an earlier time is a clock that was never set.
const EARLIEST: Unix = Unix(1_735_689_600_000);
/// An error of the wall clock that confuses nobody who compares logs.
const ERROR_MAX: Duration = Duration::from_secs(1);
/// Clock sources whose reading is a call into the kernel, or slower.
const SLOW: &[&str] = &["hpet", "acpi_pm", "jiffies", "pit"];
const SOURCE: &str = "/sys/devices/system/clocksource/clocksource0/current_clocksource";

pub(super) fn clock(look: &Look, check: &Check) -> Status {
    if !look.tree.is_this_host() {
        return judge(check, None, None, look.text(SOURCE).as_deref());
    }
    judge(check, Some(look.now), clock_sync().ok(), look.text(SOURCE).as_deref())
}

fn judge(check: &Check, now: Option<Unix>, clock_sync: Option<ClockSync>, source: Option<&str>) -> Status {
    if now.is_none() && source.is_none() {
        return Status::Skipped("the clock of another host cannot be asked".to_owned());
    }
    let mut findings = Vec::new();
    if now.is_some_and(|now| now < EARLIEST) {
        findings.push(find(
            check,
            Severity::Warning,
            "the wall clock was never set: TLS fails, and times in logs and in metadata mean nothing",
            format!("it is {} seconds after 1970", now.map_or(0, |now| now.0 / 1000)),
            "start a time daemon: systemctl enable --now systemd-timesyncd (or chronyd)",
        ));
    } else if let Some(clock_sync) = clock_sync.filter(|k| !k.synchronised || k.error_max > ERROR_MAX) {
        let evidence = match clock_sync.synchronised {
            true => format!("the kernel takes it to be up to {} ms off", clock_sync.error_max.as_millis()),
            false => "the kernel says that nobody keeps it (adjtimex: TIME_ERROR)".to_owned(),
        };
        findings.push(find(
            check,
            Severity::Info,
            "no time daemon keeps the wall clock: logs of several hosts cannot be compared; leases are counted by the master alone, and do not care",
            evidence,
            "systemctl enable --now systemd-timesyncd (or chronyd); in a virtual machine the host may do it unseen",
        ));
    }
    if let Some(source) = source.filter(|source| SLOW.contains(source)) {
        findings.push(find(
            check,
            Severity::Info,
            "reading the clock is slow here, and a transfer reads it often",
            format!("the clock source is {source}"),
            "see /sys/devices/system/clocksource/clocksource0/available_clocksource for tsc or kvm-clock",
        ));
    }
    status(findings, || {
        format!(
            "kept in step: {}; source {}",
            if clock_sync.is_some() { "yes" } else { "not known" },
            source.unwrap_or("not known")
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::check::Group;

    const CHECK: Check = Check { id: "clock", group: Group::Host, about: "", problems: &[] };
    const NOW: Unix = Unix(1_795_000_000_000);

    fn worst(now: Unix, clock_sync: Option<ClockSync>, source: &str) -> Option<Severity> {
        match judge(&CHECK, Some(now), clock_sync, Some(source)) {
            Status::Found(findings) => findings.iter().map(|finding| finding.severity).max(),
            Status::Passed(_) => None,
            Status::Skipped(why) => panic!("{why}"),
        }
    }

    #[test]
    fn a_clock_that_nobody_keeps_or_that_was_never_set_or_is_slow_is_found() {
        let kept = ClockSync { synchronised: true, error_max: Duration::from_millis(20) };
        assert_eq!(worst(NOW, Some(kept), "tsc"), None);
        assert_eq!(worst(NOW, None, "kvm-clock"), None);
        assert_eq!(worst(NOW, Some(ClockSync { synchronised: false, ..kept }), "tsc"), Some(Severity::Info));
        assert_eq!(
            worst(NOW, Some(ClockSync { error_max: Duration::from_secs(3), ..kept }), "tsc"),
            Some(Severity::Info)
        );
        assert_eq!(worst(NOW, Some(kept), "hpet"), Some(Severity::Info));
        assert_eq!(worst(Unix(1_000_000), Some(kept), "tsc"), Some(Severity::Warning));
    }
}
