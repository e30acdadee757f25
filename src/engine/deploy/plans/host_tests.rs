//! Plans of processes on certain hosts: IPv6 addresses, several names of one host, and many hosts.

use super::*;
use crate::{FileFormat, parse};

fn of_text(text: &str) -> Result<Vec<ProcessPlan>, DeployError> {
    plan_processes(&parse(text, FileFormat::Toml, &[]).unwrap(), Platform::Hosts)
}

/// The value after the flag `--name`, or in `--name=`.
fn flag<'a>(plan: &'a ProcessPlan, name: &str) -> Option<&'a str> {
    let inline = plan.argv.iter().find_map(|word| word.strip_prefix(name)?.strip_prefix('='));
    inline.or_else(|| plan.argv.iter().skip_while(|word| *word != name).nth(1).map(String::as_str))
}

#[test]
fn processes_on_an_ipv6_host_listen_on_ipv6() {
    let text = "programs = 'mcctl'\n[model]\npath = 'm'\n[master]\nhosts = ['fd00::1']\n[nodes]\nhosts = ['fd00::2']\n[serving]\n\
                mode = 'pd'\n[serving.prefill]\nhosts = ['fd00::3']\n[serving.decode]\nhosts = ['fd00::4']\n[serving.router]\nhost = 'fd00::1'\n";
    let all = of_text(text).unwrap();
    let of = |role| all.iter().find(|plan| plan.role == role).unwrap();
    for name in ["--rpc_address", "--metrics_host"] {
        assert_eq!(flag(of(ComponentRole::Master), name), Some("::"));
    }
    for role in [ComponentRole::Store, ComponentRole::Prefill, ComponentRole::Decode, ComponentRole::Router] {
        assert_eq!(flag(of(role), "--host"), Some("::"), "{role:?}");
    }
    assert_eq!(of(ComponentRole::Store).variable("MC_USE_IPV6"), Some("1"));
    assert_eq!(of(ComponentRole::Prefill).variable("MOONCAKE_MASTER"), Some("[fd00::1]:50051"));
    assert_eq!(flag(of(ComponentRole::Router), "--prefill"), Some("http://[fd00::3]:30000"));
    let local = of_text(
        &text.replace("fd00::1", "::1").replace("fd00::2", "::1").replace("fd00::3", "::1").replace("fd00::4", "::1"),
    );
    assert!(
        local
            .unwrap()
            .iter()
            .filter(|plan| plan.role != ComponentRole::Master)
            .all(|plan| flag(plan, "--host") == Some("::1"))
    );
    let ipv4 =
        of_text("[model]\npath = 'm'\n[master]\nhosts = ['10.0.0.1']\n[serving]\nhosts = ['10.0.0.2']\n").unwrap();
    assert!(ipv4.iter().all(|plan| plan.variable("MC_USE_IPV6").is_none()));
    assert_eq!(flag(&ipv4[1], "--host"), Some("0.0.0.0"));
}

#[test]
fn a_port_that_is_used_twice_is_reported_with_the_keys_that_set_it() {
    let keys = |text: &str| match of_text(&format!("[model]\npath = 'm'\n{text}")).unwrap_err() {
        DeployError::PortTaken { first, second, .. } => (first.key, second.key),
        error => panic!("{error}"),
    };
    assert_eq!(keys("[master]\nadmin_port = 30000\n"), ("master.admin_port", "serving.port"));
    assert_eq!(keys("[master]\nrpc_port = 9003\n"), ("master.rpc_port", "master.admin_port"));
    assert_eq!(keys("[serving]\nhosts = ['127.0.0.1', 'localhost']\n"), ("serving.port", "serving.port"));
    assert_eq!(keys("[nodes]\nhosts = ['::1', 'localhost']\n"), ("nodes.rest_port", "nodes.rest_port"));
    let pd = "[serving]\nmode = 'pd'\n[serving.decode]\nport = 30000\nhosts = ['localhost']\n";
    assert_eq!(keys(pd), ("serving.prefill.port", "serving.decode.port"));
    let text = of_text("[model]\npath = 'm'\n[serving]\nhosts = ['127.0.0.1', 'localhost']\n").unwrap_err().to_string();
    assert!(text.contains("serving.port (hicache-server-0 on 127.0.0.1)") && text.contains("on localhost)"), "{text}");
}

#[test]
fn servers_on_two_names_of_a_host_use_consecutive_gpus() {
    let text = "[model]\npath = 'm'\ntp = 2\n[serving]\nmode = 'pd'\n[serving.decode]\nhosts = ['localhost']\n";
    let all = of_text(text).unwrap();
    let decode = all.iter().find(|plan| plan.role == ComponentRole::Decode).unwrap();
    assert_eq!(flag(decode, "--base-gpu-id"), Some("2"));
}

#[test]
fn the_plan_of_a_server_does_not_grow_with_the_number_of_nodes() {
    let spec = |count| {
        let list: Vec<String> = (0..count).map(|i| format!("10.0.{}.{}", i / 250, i % 250 + 1)).collect();
        let mut spec = DeploymentSpec { programs: Programs::Mcctl, ..DeploymentSpec::default() };
        spec.model.path = "m".to_owned();
        spec.access.tls_cert = "/tls.crt".to_owned();
        spec.access.tls_key = "/tls.key".to_owned();
        spec.master.hosts = vec!["10.1.0.1".to_owned()];
        spec.serving.hosts = list.clone();
        spec.nodes.hosts = list;
        spec
    };
    let size = |count| {
        let all = plan_processes(&spec(count), Platform::Hosts).unwrap();
        format!("{:?}", all.last().unwrap()).len()
    };
    assert!(size(250) < size(50) + 100, "{} {}", size(250), size(50));
}
