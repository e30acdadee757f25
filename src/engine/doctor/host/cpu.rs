//! CPU time.

use crate::engine::check::{Check, Severity, Status};
use crate::engine::doctor::find;
use crate::engine::doctor::host::{Look, cgroup};

/// A master answers with this many threads at once when it is well off.
const MASTER_CPUS: f64 = 4.0;
/// Below this a master of a few clients is late with its answers.
const CPUS_MIN: f64 = 2.0;
/// Periods in a hundred that may be cut short.
const THROTTLED_MAX: u64 = 10;
/// Time in a hundred that some process may wait for a CPU.
const PRESSURE_MAX: f64 = 60.0;

pub(super) fn limit(look: &Look, check: &Check) -> Status {
    let Some(groups) = look.text("/proc/self/cgroup") else {
        return Status::Skipped("/proc/self/cgroup cannot be read: no control groups".to_owned());
    };
    let Some((file, cpus, stat)) = tightest(look, &groups) else {
        return Status::Passed("no control group limits CPU time".to_owned());
    };
    let field = |name: &str| stat.lines().find_map(|l| l.strip_prefix(name)?.strip_prefix(' ')?.parse::<u64>().ok());
    let (periods, cut) = (field("nr_periods").unwrap_or(0), field("nr_throttled").unwrap_or(0));
    let seen = format!("{file} gives {cpus} CPUs; {cut} of {periods} periods were cut short");
    let throttled = periods > 0 && cut.saturating_mul(100) / periods >= THROTTLED_MAX;
    let (severity, finding) = if cpus < CPUS_MIN || throttled {
        let what = "the control group cuts CPU time: a master that stands still longer than client_ttl (10 s) takes its clients for dead, and the cache is gone";
        (Severity::Warning, what)
    } else if cpus < MASTER_CPUS {
        (Severity::Info, "a master here has fewer than 4 CPUs: enough for a few clients")
    } else {
        return Status::Passed(seen);
    };
    let remedy = "give the master 4 CPUs (Kubernetes: requests.cpu, and no limits.cpu) and --rpc-thread-num=4, or clients a longer life: --client-ttl=60";
    Status::Found(vec![find(check, severity, finding, seen, remedy)])
}

/// The least CPUs that a group around this process allows: the file, how many, and the group's statistics.
fn tightest(look: &Look, groups: &str) -> Option<(String, f64, String)> {
    let mut least: Option<(String, f64, String)> = None;
    for line in groups.lines() {
        let mut parts = line.splitn(3, ':');
        let (Some(_), Some(controllers), Some(own)) = (parts.next(), parts.next(), parts.next()) else { continue };
        let is_second = controllers.is_empty();
        let root = match controllers {
            "" => "/sys/fs/cgroup".to_owned(),
            _ if controllers.split(',').any(|name| name == "cpu") => format!("/sys/fs/cgroup/{controllers}"),
            _ => continue,
        };
        for folder in cgroup::upwards(look, &root, own) {
            let (file, quota, period) = if is_second {
                let file = format!("{folder}/cpu.max");
                let text = look.text(&file).unwrap_or_default();
                let mut words = text.split_whitespace().map(|word| word.parse::<f64>().ok());
                (file, words.next().flatten(), words.next().flatten())
            } else {
                let file = format!("{folder}/cpu.cfs_quota_us");
                let number = |path: &str| look.text(path)?.parse::<f64>().ok();
                let quota = number(&file);
                (file, quota, number(&format!("{folder}/cpu.cfs_period_us")))
            };
            // A quota of -1 is none.
            let (Some(quota @ 0.0..), Some(period)) = (quota, period) else { continue };
            let cpus = quota / period.max(1.0);
            if least.as_ref().is_none_or(|(_, least, _)| cpus < *least) {
                least = Some((file, cpus, look.text(&format!("{folder}/cpu.stat")).unwrap_or_default()));
            }
        }
    }
    least
}

pub(super) fn pressure(look: &Look, check: &Check) -> Status {
    let Some(text) = look.text("/proc/pressure/cpu") else {
        return Status::Skipped("this kernel does not measure pressure: /proc/pressure/cpu is absent".to_owned());
    };
    let minute = text.lines().find_map(|line| {
        line.strip_prefix("some ")?
            .split_whitespace()
            .find_map(|field| field.strip_prefix("avg60=")?.parse::<f64>().ok())
    });
    let Some(minute) = minute else { return Status::Skipped("/proc/pressure/cpu is of an unknown form".to_owned()) };
    let seen = format!("in {minute} % of the last minute a process waited for a CPU");
    if minute <= PRESSURE_MAX {
        return Status::Passed(seen);
    }
    let finding =
        "this host has more work than CPUs: answers of a master or a node come late, and clients may be taken for dead";
    let remedy = "look at top; give the master CPUs of its own (taskset, AllowedCPUs=, a static CPU policy), or clients a longer life: --client-ttl=60";
    Status::Found(vec![find(check, Severity::Info, finding, seen, remedy)])
}
