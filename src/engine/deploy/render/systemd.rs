//! Units, their environment files, and what the host has to reserve, laid out as below its root: `cp -r HOST/etc /`.
//!
//! The environment is in a file of its own, so that a value can be changed without the unit.

use std::collections::{BTreeMap, BTreeSet};

use crate::engine::deploy::render::{Context, File, env, takes, words};
use crate::engine::deploy::{Launch, Role};
use crate::engine::plan::client::{GIB1, MIB2};

/// The files of every host.
pub(crate) fn files(context: &Context<'_>) -> Vec<File> {
    let mut files = Vec::new();
    for (host, launches) in context.by_host() {
        let folder = &context.wanted.name;
        for launch in &launches {
            let name = format!("{host}/etc/systemd/system/{}.service", launch.name);
            files.push(File { name, text: unit(context, launch, &launches) });
            if !launch.env.is_empty() {
                let name = format!("{host}/etc/{folder}/{}.env", launch.name);
                files.push(File { name, text: env::text(context, launch) });
            }
        }
        files.push(File { name: format!("{host}/etc/sysctl.d/60-{folder}.conf"), text: sysctl(context, &launches) });
        if let Some(text) = tmpfiles(context, &launches) {
            files.push(File { name: format!("{host}/etc/tmpfiles.d/{folder}-hugepages.conf"), text });
        }
    }
    files
}

fn unit(context: &Context<'_>, launch: &Launch, beside: &[&Launch]) -> String {
    let (wanted, folder) = (context.wanted, &context.wanted.name);
    let what = match launch.role {
        Role::Master => "master of the Mooncake store",
        Role::Store => "memory of the Mooncake store",
        Role::Server => "SGLang server",
        Role::Prefill => "SGLang prefill server",
        Role::Decode => "SGLang decode server",
        Role::Router => "SGLang router",
    };
    let mut after = vec!["network-online.target".to_owned()];
    if launch.resources.rdma {
        after.push("rdma.service".to_owned());
    }
    let local = launch.after.iter().filter(|name| beside.iter().any(|other| other.name == **name));
    let local: Vec<String> = local.map(|name| format!("{name}.service")).collect();
    let wants = [&["network-online.target".to_owned()][..], &local].concat();
    after.extend(local);
    let mut text = format!("# {}\n# Takes {}.\n", context.head, takes(launch));
    let mut line = |text_: String| {
        text.push_str(&text_);
        text.push('\n');
    };
    line("[Unit]".to_owned());
    line(format!("Description={folder}: {what}"));
    line(format!("Wants={}", wants.join(" ")));
    line(format!("After={}", after.join(" ")));
    for mount in &launch.mounts {
        line(format!("RequiresMountsFor={}", words::unit(&mount.path)));
    }
    // A cache that gave up after five tries would stay away until somebody looks.
    line("StartLimitIntervalSec=0".to_owned());
    line(String::new());
    line("[Service]".to_owned());
    line("Type=exec".to_owned());
    if !wanted.host.user.is_empty() {
        line(format!("User={}", wanted.host.user.replace('%', "%%")));
    }
    if !launch.env.is_empty() {
        line(format!("EnvironmentFile=/etc/{folder}/{}.env", launch.name));
    }
    // The store takes a missing folder for an error. That of one process is made below the one that must be there.
    for mount in launch.mounts.iter().filter(|mount| mount.writes && mount.path != wanted.nodes.ssd_path) {
        let owner = if wanted.host.user.is_empty() { "root" } else { &wanted.host.user };
        let argv = ["/usr/bin/install", "-d", "-o", owner, &mount.path].map(str::to_owned);
        line(format!("ExecStartPre=+{}", words::unit_line(&argv)));
    }
    if let Some(script) = launch.wait_script() {
        line(format!("ExecStartPre={}", words::unit_line(&["/bin/bash".to_owned(), "-c".to_owned(), script])));
    }
    line(format!("ExecStart={}", words::unit_line(&launch.argv)));
    if let Some(argv) = launch.drain_argv() {
        // The signal comes after it, whatever it answers.
        line(format!("ExecStop=-{}", words::unit_line(&argv)));
    }
    line(format!("TimeoutStartSec={}", launch.wait.seconds + 60));
    line(format!("TimeoutStopSec={}", launch.stop_s));
    line("Restart=on-failure".to_owned());
    line("RestartSec=2".to_owned());
    if launch.role.is_engine() {
        // Its schedulers are children; the first process ends them.
        line("KillMode=mixed".to_owned());
    }
    // Python and SGLang end by the signal.
    line("SuccessExitStatus=143".to_owned());
    if launch.resources.memlock {
        line("LimitMEMLOCK=infinity".to_owned());
    }
    line("LimitNOFILE=1048576".to_owned());
    line("TasksMax=infinity".to_owned());
    if launch.role == Role::Master {
        // Without it the whole cache is gone.
        line("OOMScoreAdjust=-500".to_owned());
    }
    if let Some(node) = launch.numa {
        line("NUMAPolicy=bind".to_owned());
        line(format!("NUMAMask={node}"));
        line("CPUAffinity=numa".to_owned());
    }
    line(String::new());
    line("[Install]".to_owned());
    line("WantedBy=multi-user.target".to_owned());
    text
}

/// Huge pages of all processes of a host, by their size and NUMA node. `None` is for the whole host.
fn pools(launches: &[&Launch]) -> BTreeMap<(u64, Option<u32>), u64> {
    let mut pools: BTreeMap<(u64, Option<u32>), u64> = BTreeMap::new();
    for launch in launches {
        if let Some((page, count)) = launch.resources.hugepages {
            *pools.entry((page, launch.numa)).or_default() += count;
        }
    }
    // The kernel spreads a count for the whole host over all nodes, where a bound process then finds too few, and the count of a node
    // holds for all in it: so who is not bound gets a share of each.
    let nodes: BTreeSet<u32> = launches.iter().filter_map(|launch| launch.numa).collect();
    for page in if nodes.is_empty() { &[][..] } else { &[MIB2, GIB1] } {
        let Some(count) = pools.remove(&(*page, None)) else { continue };
        for node in &nodes {
            *pools.entry((*page, Some(*node))).or_default() += count.div_ceil(nodes.len() as u64);
        }
    }
    pools
}

fn sysctl(context: &Context<'_>, launches: &[&Launch]) -> String {
    let mut text = format!("# {}\n", context.head);
    let mut ports: Vec<u16> = launches.iter().flat_map(|launch| &launch.ports).map(|port| port.number).collect();
    ports.sort_unstable();
    let ports: Vec<String> = ports.iter().map(u16::to_string).collect();
    text.push_str("# Else an outgoing connection may take one of these first. Ports that are reserved already have to be added.\n");
    text.push_str(&format!("net.ipv4.ip_local_reserved_ports = {}\n", ports.join(",")));
    if let Some(count) = pools(launches).get(&(MIB2, None)) {
        text.push_str("# Of 2 MiB, for these processes alone: what others take has to be added.\n");
        text.push_str(&format!("vm.nr_hugepages = {count}\n"));
    }
    text
}

/// The pools that no sysctl fills: pages of 1 GiB, and those of one NUMA node.
fn tmpfiles(context: &Context<'_>, launches: &[&Launch]) -> Option<String> {
    let pools: Vec<_> = pools(launches).into_iter().filter(|(pool, _)| *pool != (MIB2, None)).collect();
    let (mut boot, mut lines) = (Vec::new(), String::new());
    for ((page, node), count) in &pools {
        let of = node.map_or("kernel/mm".to_owned(), |node| format!("devices/system/node/node{node}"));
        lines.push_str(&format!("w /sys/{of}/hugepages/hugepages-{}kB/nr_hugepages - - - - {count}\n", page / 1024));
        if *page == GIB1 {
            boot.push(node.map_or(count.to_string(), |node| format!("{node}:{count}")));
        }
    }
    let mut text = format!("# {}\n# For these processes alone: what others take has to be added.\n", context.head);
    if !boot.is_empty() {
        let pages = boot.join(",");
        text.push_str("# Best reserved at boot, while memory is whole, on the kernel's command line: ");
        text.push_str(&format!("hugepagesz=1G hugepages={pages}\n"));
    }
    (!pools.is_empty()).then_some(text + &lines)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::deploy::launch::tests::bare;

    #[test]
    fn huge_pages_are_where_their_processes_are_bound() {
        let taking = |numa, count| {
            let mut launch = Launch { numa, ..bare() };
            launch.resources.hugepages = Some((MIB2, count));
            launch
        };
        let (free, first, second) = (taking(None, 11), taking(Some(0), 100), taking(Some(1), 100));
        assert_eq!(pools(&[&free, &free]), BTreeMap::from([((MIB2, None), 22)]));
        let expected = BTreeMap::from([((MIB2, Some(0)), 106), ((MIB2, Some(1)), 106)]);
        assert_eq!(pools(&[&free, &first, &second]), expected);
    }
}
