//! Renders systemd units, environment files and host settings, as a tree to copy to the root
//! directory: `cp -r HOST/etc /`.
//!
//! The environment has its own file, so that values can change without editing the unit.

use std::collections::{BTreeMap, BTreeSet};

use crate::plan::client::{GIB1, MIB2};
use crate::render::sandbox::{self, FILE_OWNER, UnitUser, below_state};
use crate::render::{RenderContext, RenderedFile, env, io_backend_note, quoting, requirements};
use crate::{ComponentRole, DeployError, ProcessPlan, SecretFile};

/// Renders the files of all hosts.
///
/// # Errors
/// The user of a unit cannot run its program.
pub(crate) fn files(context: &RenderContext<'_>) -> Result<Vec<RenderedFile>, DeployError> {
    let mut files = Vec::new();
    for (host, plans) in context.by_host() {
        let folder = &context.spec.name;
        for plan in &plans {
            sandbox::check_program(context.spec, plan)?;
            let name = format!("{host}/etc/systemd/system/{}.service", plan.name);
            files.push(RenderedFile { name, text: unit(context, plan, &plans) });
            if !plan.env.is_empty() {
                let name = format!("{host}/etc/{folder}/{}.env", plan.name);
                files.push(RenderedFile { name, text: env::text(context, plan) });
            }
        }
        files.push(RenderedFile {
            name: format!("{host}/etc/sysctl.d/60-{folder}.conf"),
            text: sysctl(context, &plans),
        });
        if let Some(text) = tmpfiles(context, &plans) {
            files.push(RenderedFile { name: format!("{host}/etc/tmpfiles.d/{folder}-hugepages.conf"), text });
        }
        if let Some(text) = sysusers(context, &plans) {
            files.push(RenderedFile { name: format!("{host}/etc/sysusers.d/{folder}.conf"), text });
        }
    }
    Ok(files)
}

fn unit(context: &RenderContext<'_>, plan: &ProcessPlan, beside: &[&ProcessPlan]) -> String {
    let spec = context.spec;
    let folder = &context.spec.name;
    let what = match plan.role {
        ComponentRole::Master => "Mooncake store master",
        ComponentRole::MetadataProxy => "proxy for the metadata service of the masters",
        ComponentRole::Store => "Mooncake store node",
        ComponentRole::Server => "SGLang server",
        ComponentRole::Prefill => "SGLang prefill server",
        ComponentRole::Decode => "SGLang decode server",
        ComponentRole::Router => "SGLang router",
    };
    let mut after = vec!["network-online.target".to_owned()];
    if plan.resources.rdma {
        after.push("rdma.service".to_owned());
    }
    let local = beside.iter().filter(|other| plan.after.contains(&other.role));
    let local: Vec<String> = local.map(|other| format!("{}.service", other.name)).collect();
    let wanted_units = [&["network-online.target".to_owned()][..], &local].concat();
    after.extend(local);
    let mut text = format!("# {}\n# Needs {}.\n", context.head, requirements(plan));
    let user = UnitUser::of(spec, plan);
    let io_backend = io_backend_note(plan);
    let readable = (!plan.access.is_empty()).then(|| {
        let paths: Vec<&str> = plan.access.iter().map(|file| file.path.as_str()).collect();
        format!("The user {} must be able to read {}.", user.name(), paths.join(", "))
    });
    for note in io_backend.into_iter().chain(readable) {
        text.push_str(&format!("# {note}\n"));
    }
    let mut line = |text_: String| {
        text.push_str(&text_);
        text.push('\n');
    };
    line("[Unit]".to_owned());
    line(format!("Description={folder}: {what}"));
    line(format!("Wants={}", wanted_units.join(" ")));
    line(format!("After={}", after.join(" ")));
    for mount in &plan.mounts {
        line(format!("RequiresMountsFor={}", quoting::unit_path(&mount.path)));
    }
    if let Some(data) = plan.data.as_ref().filter(|data| below_state(&data.path).is_none()) {
        line(format!("RequiresMountsFor={}", quoting::unit_path(&data.path)));
    }
    // With the default limit, systemd stops restarting a unit after five failures until an operator
    // intervenes.
    line("StartLimitIntervalSec=0".to_owned());
    line(String::new());
    line("[Service]".to_owned());
    line("Type=exec".to_owned());
    user.setting().into_iter().for_each(&mut line);
    if !plan.env.is_empty() {
        line(format!("EnvironmentFile=/etc/{folder}/{}.env", plan.name));
    }
    directories(context, plan, user).into_iter().for_each(&mut line);
    if let Some(script) = plan.wait_script() {
        line(format!("ExecStartPre={}", quoting::unit_line(&["/bin/bash".to_owned(), "-c".to_owned(), script])));
    }
    let mut start = quoting::unit_line(&plan.argv);
    if let Some(secret) = &plan.secret {
        // systemd reads the file as root, and gives the process a copy.
        line(format!("LoadCredential={}:{}", SecretFile::KEY, quoting::unit_path(&secret.source)));
        start.push_str(&format!(" --{}=${{CREDENTIALS_DIRECTORY}}/{}", secret.flag, SecretFile::KEY));
    }
    line(format!("ExecStart={start}"));
    if let Some(argv) = plan.drain_argv() {
        // systemd sends SIGTERM afterwards, regardless of the response.
        line(format!("ExecStop=-{}", quoting::unit_line(&argv)));
    }
    line(format!("TimeoutStartSec={}", plan.wait.seconds + 60));
    line(format!("TimeoutStopSec={}", plan.stop_s));
    line("Restart=on-failure".to_owned());
    line("RestartSec=2".to_owned());
    if plan.role.is_engine() {
        // The schedulers are child processes. The main process stops them.
        line("KillMode=mixed".to_owned());
    }
    // On SIGTERM, Python and SGLang exit with 143 (128 + 15).
    line("SuccessExitStatus=143".to_owned());
    if plan.resources.memlock {
        line("LimitMEMLOCK=infinity".to_owned());
    }
    line("LimitNOFILE=1048576".to_owned());
    line("TasksMax=infinity".to_owned());
    if plan.role == ComponentRole::Master {
        // Without the master, no request is served. Without a data directory, the whole cache is
        // lost with it.
        line("OOMScoreAdjust=-500".to_owned());
    }
    if let Some(node) = plan.numa {
        line("NUMAPolicy=bind".to_owned());
        line(format!("NUMAMask={node}"));
        line("CPUAffinity=numa".to_owned());
    }
    sandbox::settings(plan).into_iter().for_each(&mut line);
    line(String::new());
    line("[Install]".to_owned());
    line("WantedBy=multi-user.target".to_owned());
    text
}

/// The settings that create the directories of a process, and make its user their owner.
fn directories(context: &RenderContext<'_>, plan: &ProcessPlan, user: UnitUser<'_>) -> Vec<String> {
    let owner = user.name();
    let as_root = |argv: &[&str]| {
        let argv: Vec<String> = argv.iter().map(|&word| word.to_owned()).collect();
        format!("ExecStartPre=+{}", quoting::unit_line(&argv))
    };
    let mut lines = Vec::new();
    for path in plan.mounts.iter().filter(|mount| mount.writes).map(|mount| &mount.path) {
        // The store fails if its directory is missing. Create the process's subdirectory, but not
        // its parent.
        if *path != context.spec.nodes.ssd_path {
            lines.push(as_root(&["/usr/bin/install", "-d", "-o", owner, path]));
        }
        // Files of an earlier unit may belong to root.
        if user == UnitUser::FileOwner {
            lines.push(as_root(&["/usr/bin/chown", "-R", owner, path]));
        }
    }
    let Some(data) = &plan.data else { return lines };
    // systemd creates directories below /var/lib, and changes their owner to the unit's user.
    if let Some(below) = below_state(&data.path) {
        lines.push(format!("StateDirectory={}", quoting::unit_path(below)));
        lines.push("StateDirectoryMode=0700".to_owned());
    } else {
        lines.push(as_root(&["/usr/bin/install", "-d", "-m", "0700", "-o", owner, &data.path]));
        lines.push(as_root(&["/usr/bin/chown", "-R", owner, &data.path]));
    }
    lines
}

/// The system user that owns the files of the processes.
fn sysusers(context: &RenderContext<'_>, plans: &[&ProcessPlan]) -> Option<String> {
    let is_used = plans.iter().any(|plan| UnitUser::of(context.spec, plan) == UnitUser::FileOwner);
    is_used.then(|| format!("# {}\nu {FILE_OWNER} - \"Mooncake store\"\n", context.head))
}

/// Huge pages of all processes on a host, by page size and NUMA node. `None` means the whole host.
fn pools(plans: &[&ProcessPlan]) -> BTreeMap<(u64, Option<u32>), u64> {
    let mut pools: BTreeMap<(u64, Option<u32>), u64> = BTreeMap::new();
    for plan in plans {
        if let Some((page, count)) = plan.resources.hugepages {
            *pools.entry((page, plan.numa)).or_default() += count;
        }
    }
    // The kernel spreads a host-wide count over all nodes, so too few would be left for a bound
    // process. A per-node count is shared by all processes on the node, so unbound processes take a
    // share from each node.
    let nodes: BTreeSet<u32> = plans.iter().filter_map(|plan| plan.numa).collect();
    for page in if nodes.is_empty() { &[][..] } else { &[MIB2, GIB1] } {
        let Some(count) = pools.remove(&(*page, None)) else { continue };
        for node in &nodes {
            *pools.entry((*page, Some(*node))).or_default() += count.div_ceil(nodes.len() as u64);
        }
    }
    pools
}

fn sysctl(context: &RenderContext<'_>, plans: &[&ProcessPlan]) -> String {
    let mut text = format!("# {}\n", context.head);
    let mut ports: Vec<u16> = plans.iter().flat_map(|plan| &plan.ports).map(|port| port.number).collect();
    ports.sort_unstable();
    let ports: Vec<String> = ports.iter().map(u16::to_string).collect();
    text.push_str(
        "# Keeps outgoing connections off these ports. Merge this list with the ports that are already reserved.\n",
    );
    text.push_str(&format!("net.ipv4.ip_local_reserved_ports = {}\n", ports.join(",")));
    if let Some(count) = pools(plans).get(&(MIB2, None)) {
        text.push_str("# 2 MiB pages for these processes only. Add the pages that other processes need.\n");
        text.push_str(&upper_bound_comment(plans));
        text.push_str(&format!("vm.nr_hugepages = {count}\n"));
    }
    text
}

/// A comment if a number of pages is an upper bound.
fn upper_bound_comment(plans: &[&ProcessPlan]) -> String {
    let cause = plans.iter().find_map(|plan| plan.resources.firm.bound);
    cause.map_or_else(String::new, |cause| format!("# An upper bound, because {}: {}.\n", cause.text(), cause.remedy()))
}

/// The pools that sysctl cannot set: 1 GiB pages, and pools of a single NUMA node.
fn tmpfiles(context: &RenderContext<'_>, plans: &[&ProcessPlan]) -> Option<String> {
    let pools: Vec<_> = pools(plans).into_iter().filter(|(pool, _)| *pool != (MIB2, None)).collect();
    let mut boot = Vec::new();
    let mut lines = String::new();
    for ((page, node), count) in &pools {
        let of = node.map_or("kernel/mm".to_owned(), |node| format!("devices/system/node/node{node}"));
        lines.push_str(&format!("w /sys/{of}/hugepages/hugepages-{}kB/nr_hugepages - - - - {count}\n", page / 1024));
        if *page == GIB1 {
            boot.push(node.map_or(count.to_string(), |node| format!("{node}:{count}")));
        }
    }
    let mut text =
        format!("# {}\n# For these processes only. Add the pages that other processes need.\n", context.head);
    text.push_str(&upper_bound_comment(plans));
    if !boot.is_empty() {
        let pages = boot.join(",");
        text.push_str("# Preferably, reserve them on the kernel command line, before memory is fragmented: ");
        text.push_str(&format!("hugepagesz=1G hugepages={pages}\n"));
    }
    (!pools.is_empty()).then_some(text + &lines)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process_plan::tests::bare;

    #[test]
    fn huge_pages_are_reserved_on_the_bound_numa_nodes() {
        let taking = |numa, count| {
            let mut plan = ProcessPlan { numa, ..bare() };
            plan.resources.hugepages = Some((MIB2, count));
            plan
        };
        let free = taking(None, 11);
        let first = taking(Some(0), 100);
        let second = taking(Some(1), 100);
        assert_eq!(pools(&[&free, &free]), BTreeMap::from([((MIB2, None), 22)]));
        let expected = BTreeMap::from([((MIB2, Some(0)), 106), ((MIB2, Some(1)), 106)]);
        assert_eq!(pools(&[&free, &first, &second]), expected);
    }
}
