//! CPU limits and CPU pressure.

use procfs_core::ProcessCGroup;

use crate::find;
use crate::host::{HostFacts, cgroup};
use mcctl_base::check::{Check, CheckStatus, Severity};
use mcctl_sys::procfs;

/// Recommended number of CPUs for a master, which can serve one request per CPU in parallel.
const MASTER_CPUS: f64 = 4.0;
/// With fewer CPUs, even the master of a small cluster responds late.
const CPUS_MIN: f64 = 2.0;
/// Percentage of throttled periods above which the finding is a warning.
const THROTTLED_MAX: u64 = 10;
/// Percentage of the last minute during which a process waited for a CPU, above which CPU pressure
/// is reported.
const PRESSURE_MAX: f32 = 60.0;

pub(super) fn limit(facts: &HostFacts, check: &Check) -> CheckStatus {
    let Some(groups) = facts.text("/proc/self/cgroup") else {
        return CheckStatus::Skipped("/proc/self/cgroup cannot be read: no cgroups".to_owned());
    };
    let Some((file, cpus, stat)) = tightest(facts, &procfs::cgroups(&groups)) else {
        return CheckStatus::Passed("no cgroup limits CPU time".to_owned());
    };
    let field = |name: &str| stat.lines().find_map(|l| l.strip_prefix(name)?.strip_prefix(' ')?.parse::<u64>().ok());
    let periods = field("nr_periods").unwrap_or(0);
    let cut = field("nr_throttled").unwrap_or(0);
    let seen = format!("{file} allows {cpus} CPUs; {cut} of {periods} periods were throttled");
    let throttled = periods > 0 && cut.saturating_mul(100) / periods >= THROTTLED_MAX;
    let (severity, finding) = if cpus < CPUS_MIN || throttled {
        let what = "the cgroup throttles CPU time: a master that stalls for longer than client_ttl (10 s) expires its clients, and the cached data is lost";
        (Severity::Warning, what)
    } else if cpus < MASTER_CPUS {
        (Severity::Info, "a master on this host has fewer than 4 CPUs: enough for only a few clients")
    } else {
        return CheckStatus::Passed(seen);
    };
    let remedy = "run the master with 4 CPUs (Kubernetes: requests.cpu without limits.cpu) and --rpc-thread-num=4, or raise the client TTL: --client-ttl=60";
    CheckStatus::Found(vec![find(check, severity, finding, seen, remedy)])
}

/// The tightest CPU limit of the process's cgroups: its file, the number of CPUs, and the cgroup's
/// statistics.
fn tightest(facts: &HostFacts, groups: &[ProcessCGroup]) -> Option<(String, f64, String)> {
    let mut least: Option<(String, f64, String)> = None;
    for ProcessCGroup { controllers, pathname, .. } in groups {
        let is_second = controllers.is_empty();
        let root = match controllers.iter().any(|name| name == "cpu") {
            _ if is_second => "/sys/fs/cgroup".to_owned(),
            true => format!("/sys/fs/cgroup/{}", controllers.join(",")),
            false => continue,
        };
        for folder in cgroup::upwards(facts, &root, pathname) {
            let (file, quota, period) = if is_second {
                let file = format!("{folder}/cpu.max");
                let text = facts.text(&file).unwrap_or_default();
                let mut words = text.split_whitespace().map(|word| word.parse::<f64>().ok());
                (file, words.next().flatten(), words.next().flatten())
            } else {
                let file = format!("{folder}/cpu.cfs_quota_us");
                let number = |path: &str| facts.text(path)?.parse::<f64>().ok();
                let quota = number(&file);
                (file, quota, number(&format!("{folder}/cpu.cfs_period_us")))
            };
            // A quota of -1 means unlimited.
            let (Some(quota @ 0.0..), Some(period)) = (quota, period) else { continue };
            let cpus = quota / period.max(1.0);
            if least.as_ref().is_none_or(|(_, least, _)| cpus < *least) {
                least = Some((file, cpus, facts.text(&format!("{folder}/cpu.stat")).unwrap_or_default()));
            }
        }
    }
    least
}

pub(super) fn pressure(facts: &HostFacts, check: &Check) -> CheckStatus {
    let Some(text) = facts.text("/proc/pressure/cpu") else {
        return CheckStatus::Skipped(
            "this kernel does not measure CPU pressure: /proc/pressure/cpu does not exist".to_owned(),
        );
    };
    let Some(minute) = procfs::cpu_pressure(&text).map(|pressure| pressure.avg60) else {
        return CheckStatus::Skipped("/proc/pressure/cpu has an unknown format".to_owned());
    };
    let seen = format!("a process waited for a CPU in {minute} % of the last minute");
    if minute <= PRESSURE_MAX {
        return CheckStatus::Passed(seen);
    }
    let finding = "this host is short of CPU time: masters and nodes respond late, and clients may expire";
    let remedy = "check top; run the master on dedicated CPUs (taskset, AllowedCPUs=, a static CPU policy), or raise the client TTL: --client-ttl=60";
    CheckStatus::Found(vec![find(check, Severity::Info, finding, seen, remedy)])
}
