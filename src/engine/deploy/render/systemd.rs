//! Units, their environment files, and what the host has to reserve, laid out as below its root: `cp -r HOST/etc /`.
//!
//! The environment is in a file of its own, so that a value can be changed without the unit.

use std::collections::BTreeMap;

use crate::engine::deploy::render::{Context, File, env, takes, words};
use crate::engine::deploy::{Launch, Role};
use crate::engine::plan::client::GIB1;

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
        let pages = pages(&launches).get(&GIB1).copied().unwrap_or(0);
        if pages > 0 {
            let name = format!("{host}/etc/tmpfiles.d/{folder}-hugepages.conf");
            files.push(File { name, text: tmpfiles(context, pages) });
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
    line(String::new());
    line("[Service]".to_owned());
    line("Type=exec".to_owned());
    if !wanted.host.user.is_empty() {
        line(format!("User={}", wanted.host.user.replace('%', "%%")));
    }
    if !launch.env.is_empty() {
        line(format!("EnvironmentFile=/etc/{folder}/{}.env", launch.name));
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

/// Huge pages of all processes of a host, by their size.
fn pages(launches: &[&Launch]) -> BTreeMap<u64, u64> {
    let mut sum = BTreeMap::new();
    for (page, count) in launches.iter().filter_map(|launch| launch.resources.hugepages) {
        *sum.entry(page).or_default() += count;
    }
    sum
}

fn sysctl(context: &Context<'_>, launches: &[&Launch]) -> String {
    let mut text = format!("# {}\n", context.head);
    let mut ports: Vec<u16> = launches.iter().flat_map(|launch| &launch.ports).map(|port| port.number).collect();
    ports.sort_unstable();
    let ports: Vec<String> = ports.iter().map(u16::to_string).collect();
    text.push_str("# Else an outgoing connection may take one of these first. Ports that are reserved already have to be added.\n");
    text.push_str(&format!("net.ipv4.ip_local_reserved_ports = {}\n", ports.join(",")));
    for (page, count) in pages(launches) {
        if page != GIB1 {
            text.push_str("# Of 2 MiB, for these processes alone: what others take has to be added.\n");
            text.push_str(&format!("vm.nr_hugepages = {count}\n"));
        }
    }
    text
}

fn tmpfiles(context: &Context<'_>, pages: u64) -> String {
    format!(
        "# {}\n# Best reserved at boot, while memory is whole: hugepagesz=1G hugepages={pages} on the kernel's command line.\n\
         w /sys/kernel/mm/hugepages/hugepages-1048576kB/nr_hugepages - - - - {pages}\n",
        context.head
    )
}
