//! The wall clock and the clock source.

use std::time::Duration;

use crate::host::HostFacts;
use crate::{find, status};
use mcctl_base::Unix;
use mcctl_base::check::{Check, CheckStatus, Severity};
use mcctl_sys::clock::{ClockSync, clock_sync};

/// The start of 2025, before the first release of mcctl. An earlier time means that the clock was
/// never set.
const EARLIEST: Unix = Unix(1_735_689_600_000);
/// Wall clock errors up to this limit do not matter when comparing logs from different hosts.
const ERROR_MAX: Duration = Duration::from_secs(1);
/// Slow clock sources: reading them takes a system call or longer.
const SLOW: &[&str] = &["hpet", "acpi_pm", "jiffies", "pit"];
const SOURCE: &str = "/sys/devices/system/clocksource/clocksource0/current_clocksource";

pub(super) fn clock(facts: &HostFacts, check: &Check) -> CheckStatus {
    if !facts.tree.is_this_host() {
        return judge(check, None, None, facts.text(SOURCE).as_deref());
    }
    judge(check, Some(facts.now), clock_sync().ok(), facts.text(SOURCE).as_deref())
}

fn judge(check: &Check, now: Option<Unix>, keeping: Option<ClockSync>, source: Option<&str>) -> CheckStatus {
    if now.is_none() && source.is_none() {
        return CheckStatus::Skipped("the clock of another host cannot be read".to_owned());
    }
    let mut findings = Vec::new();
    if now.is_some_and(|now| now < EARLIEST) {
        findings.push(find(
            check,
            Severity::Warning,
            "the wall clock was never set: TLS fails, and timestamps in logs and metadata are meaningless",
            format!("the clock shows {} seconds after the Unix epoch", now.map_or(0, |now| now.0 / 1000)),
            "start a time daemon: systemctl enable --now systemd-timesyncd (or chronyd)",
        ));
    } else if let Some(keeping) = keeping.filter(|k| !k.synchronised || k.error_max > ERROR_MAX) {
        let evidence = match keeping.synchronised {
            true => format!("the kernel estimates an error of up to {} ms", keeping.error_max.as_millis()),
            false => "the kernel reports an unsynchronized clock (adjtimex: TIME_ERROR)".to_owned(),
        };
        findings.push(find(
            check,
            Severity::Info,
            "no time daemon synchronizes the wall clock: logs from different hosts cannot be compared \
             (leases are unaffected, because only the master times them)",
            evidence,
            "systemctl enable --now systemd-timesyncd (or chronyd); in a virtual machine, the host may already synchronize the clock",
        ));
    }
    if let Some(source) = source.filter(|source| SLOW.contains(source)) {
        findings.push(find(
            check,
            Severity::Info,
            "reading the clock is slow on this host, and transfers read it often",
            format!("the clock source is {source}"),
            "switch to tsc or kvm-clock if /sys/devices/system/clocksource/clocksource0/available_clocksource lists one",
        ));
    }
    status(findings, || {
        format!(
            "synchronized: {}; source {}",
            if keeping.is_some() { "yes" } else { "unknown" },
            source.unwrap_or("unknown")
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use mcctl_base::check::CheckGroup;

    const CHECK: Check = Check { id: "clock", group: CheckGroup::Host, about: "", problems: &[] };
    const NOW: Unix = Unix(1_795_000_000_000);

    fn worst(now: Unix, keeping: Option<ClockSync>, source: &str) -> Option<Severity> {
        match judge(&CHECK, Some(now), keeping, Some(source)) {
            CheckStatus::Found(findings) => findings.iter().map(|finding| finding.severity).max(),
            CheckStatus::Passed(_) => None,
            CheckStatus::Skipped(why) => panic!("{why}"),
        }
    }

    #[test]
    fn unsynchronized_unset_and_slow_clocks_are_found() {
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
