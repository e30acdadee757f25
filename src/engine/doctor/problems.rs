//! 26 common problems when running Mooncake with SGLang, and the aspects of each that no check can
//! detect.
//!
//! Each check lists the problems that it detects.

/// A common deployment problem.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Problem {
    pub number: u8,
    /// The symptom and its cause.
    pub about: &'static str,
    /// Other commands that show it.
    pub commands: &'static [&'static str],
    /// The aspect that no check can detect, and the reason.
    pub beyond: Option<&'static str>,
}

const fn problem(
    number: u8,
    about: &'static str,
    commands: &'static [&'static str],
    beyond: Option<&'static str>,
) -> Problem {
    Problem { number, about, commands, beyond }
}

/// All problems, ordered by number.
pub const ALL: &[Problem] = &[
    problem(1, "a node announces localhost, so other hosts cannot open its segment (-800)", &["status"], None),
    problem(
        2,
        "rdma is configured but no device is found, and Mooncake silently uses TCP",
        &["devices"],
        Some(
            "how many bytes each device carried: only its port counters show that, and they are zero before traffic starts",
        ),
    ),
    problem(
        3,
        "client and master run different releases: nothing is stored, and no counter shows it",
        &[],
        Some("the release of an image that is not on this host"),
    ),
    problem(
        4,
        "memory registration with a device fails: locked memory, maximum region size, page tables",
        &["size-hugepages", "devices"],
        Some("regions larger than --mr-test-size: the device may still run out of page tables"),
    ),
    problem(5, "memory registration fails in Kubernetes although the container has IPC_LOCK", &[], None),
    problem(
        6,
        "RDMA connections fail: GID index, RoCE version, subnet, MTU",
        &["devices"],
        Some("the GID entries that the peer has but does not announce: run mcctl devices on the peer"),
    ),
    problem(
        7,
        "a store does not start with huge pages: none reserved, wrong size, or too few on a NUMA node",
        &["size-hugepages"],
        None,
    ),
    problem(
        8,
        "a size applies per server in one setting and per process in another: the host runs out of memory, or contributes a quarter of the planned amount",
        &["size-hugepages"],
        None,
    ),
    problem(9, "a pod is OOM-killed after hours: its memory limit equals its segment size", &["size-hugepages"], None),
    problem(
        10,
        "nodes cannot join after the metadata service restarts, because it keeps its records in memory",
        &[],
        None,
    ),
    problem(11, "a stale metadata record prevents a node from restarting", &[], None),
    problem(12, "a service exits at startup: another service or an outgoing connection uses its port", &["up"], None),
    problem(
        13,
        "clients expire and their cached data is lost: the master stalled for longer than the client TTL",
        &["status"],
        Some("stalls that occur only under load: run mcctl status --watch under load; it shows heartbeats and clients"),
    ),
    problem(14, "one node is dead or hangs, and all others wait for it", &[], None),
    problem(15, "puts fail for lack of space and nothing is evicted: leases cover all objects", &["status"], None),
    problem(
        16,
        "the store is written to but never read from: policy, threshold, page size, or a different model name",
        &[],
        Some(
            "which prompts share a prefix: that depends on the workload; mcctl size-hugepages --trace computes it for a recorded one",
        ),
    ),
    problem(
        17,
        "timeouts among tensor-parallel ranks: one of them waits for the store",
        &["bench transfer"],
        Some(
            "how long a rank waits (percentiles): this can be measured only under load, over time and with the rank's own clock",
        ),
    ),
    problem(
        18,
        "startup hangs for 90 s and ignores SIGTERM: the master's address is wrong or the master is not running yet",
        &["status"],
        None,
    ),
    problem(19, "a mass restart fails on endpoints of dead nodes that are still listed", &["status"], None),
    problem(
        20,
        "failover loses all keys or never happens",
        &[],
        Some(
            "leader election through Redis or a Kubernetes Lease, which upstream's wheel does not support; and a real failover, which no check triggers",
        ),
    ),
    problem(21, "restarting or upgrading the master empties the cache", &[], Some("whether an upgrade is planned")),
    problem(22, "a library is missing: the wheel's variant does not match the image", &[], None),
    problem(
        23,
        "half of the devices are idle, or the wrong ones are used",
        &["devices"],
        Some("how much traffic each device carried: see its port counters during a benchmark"),
    ),
    problem(
        24,
        "TCP transfers are limited to about 1 GB/s: one slice in flight at a time",
        &["bench transfer"],
        Some(
            "bandwidth: it must be measured under load, using mcctl bench transfer with more threads and larger blocks",
        ),
    ),
    problem(25, "some nodes use rdma and others tcp: transfers between them fail", &["status"], None),
    problem(
        26,
        "the SSD tier is never read, is full, or loses its data",
        &[],
        Some("the contents of its files: buckets use upstream's own format"),
    ),
];
