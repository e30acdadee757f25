//! The 26 problems that operators of Mooncake with SGLang meet, each as one line, and what beside checks tells of it.
//!
//! Which checks recognise a problem stands in the catalogue; here is what no check can tell, and why.

/// A problem.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Problem {
    pub number: u8,
    /// What is seen, and from what it comes.
    pub about: &'static str,
    /// Commands that show it.
    pub commands: &'static [&'static str],
    /// What of it cannot be told, and why.
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

/// All of them.
pub const ALL: &[Problem] = &[
    problem(1, "a node announces localhost, so that no other host can open its segment (-800)", &["status"], None),
    problem(
        2,
        "rdma is asked for, no device is found, and TCP is taken without a word",
        &["devices"],
        Some(
            "how many bytes went over a device while it served: its port counters, which a check before the start cannot read",
        ),
    ),
    problem(
        3,
        "client and master are of different releases: nothing is stored, and no counter says so",
        &[],
        Some("the release of an image that is not on this host"),
    ),
    problem(
        4,
        "registering memory with a device fails: locked memory, largest region of the device, page tables",
        &["size-hugepages", "devices"],
        Some("what is larger than --trial registers: page tables of a device may still run out"),
    ),
    problem(5, "the same in Kubernetes although the container has IPC_LOCK", &[], None),
    problem(
        6,
        "connections of RDMA fail: GID row, RoCE version, subnet, MTU",
        &["devices"],
        Some("which rows the other end has beside the one that it announces: mcctl devices there"),
    ),
    problem(
        7,
        "a store does not start with huge pages: none reserved, another size, or too few on a node",
        &["size-hugepages"],
        None,
    ),
    problem(
        8,
        "a size that is per server here and per process there: the host runs out, or has a quarter of the plan",
        &["size-hugepages"],
        None,
    ),
    problem(9, "a pod is killed hours later: its limit is the size of its segment", &["size-hugepages"], None),
    problem(
        10,
        "nobody can join after a restart of the metadata service, which keeps its records in memory",
        &[],
        None,
    ),
    problem(11, "a record of an earlier life keeps a node from starting again", &[], None),
    problem(
        12,
        "a service ends at once: its port is taken, by another service or by an outgoing connection",
        &["up"],
        None,
    ),
    problem(
        13,
        "clients vanish and the cache with them: the master stood still longer than their life",
        &["status"],
        Some("a stall that comes with load only: mcctl status --watch shows heartbeats and clients while it runs"),
    ),
    problem(14, "one node is dead or hangs, and every other one waits for it", &[], None),
    problem(15, "puts fail for want of room, and nothing is evicted: leases cover everything", &["status"], None),
    problem(
        16,
        "the store is written and never read: policy, threshold, page size, another name of the model",
        &[],
        Some(
            "which prompts share a beginning: that is of the load, and mcctl size-hugepages --trace tells it of a recorded one",
        ),
    ),
    problem(
        17,
        "time-outs among tensor-parallel ranks: one of them waits for the store",
        &["bench transfer"],
        Some("how long a rank waits at its percentiles: that takes load and time, and a rank's own clock"),
    ),
    problem(
        18,
        "a start hangs for 90 s and ignores SIGTERM: the master's address is wrong or not there yet",
        &["status"],
        None,
    ),
    problem(19, "a mass restart fails on endpoints of the dead that are still listed", &["status"], None),
    problem(
        20,
        "fail-over loses all keys or never comes",
        &[],
        Some(
            "leaders in redis or in a Kubernetes Lease: upstream's wheel has neither; and a fail-over itself, which nobody makes for a check",
        ),
    ),
    problem(21, "a restart or an upgrade of the master empties the cache", &[], Some("that there will be an upgrade")),
    problem(22, "a library is missing: the wheel is of another kind than the image", &[], None),
    problem(
        23,
        "half of the devices are idle, or the wrong ones are used",
        &["devices"],
        Some("which device carried how much: its port counters during a bench"),
    ),
    problem(
        24,
        "transfers over TCP stop at about 1 GB/s: one slice on the way at a time",
        &["bench transfer"],
        Some("bandwidth takes a measurement under load: mcctl bench transfer, with more threads and larger blocks"),
    ),
    problem(25, "some nodes speak rdma and others tcp: transfers between them fail", &["status"], None),
    problem(
        26,
        "the SSD tier is never read, is full, or loses what it had",
        &[],
        Some("what is in its files: buckets are upstream's own format"),
    ),
];
