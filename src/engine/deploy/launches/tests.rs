//! What holds for the processes of any deployment, and what is refused.

use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;
use crate::engine::deploy::{Format, HighAvailability, MetadataKind, Mode, ProbeBy, Size, parse};
use crate::engine::plan::size_text;

fn read(text: &str) -> Deployment {
    parse(text, Format::Toml, &[]).unwrap()
}

fn one(text: &str) -> Vec<Launch> {
    launches(&read(text), Ground::Hosts).unwrap()
}

fn refused(text: &str) -> String {
    launches(&read(text), Ground::Hosts).expect_err(text).to_string()
}

const LAPTOP: &str = "[model]\npath = \"/m\"\n";

#[test]
fn a_model_is_all_that_a_deployment_needs() {
    let all = one(LAPTOP);
    assert_eq!(all.iter().map(|l| l.name.as_str()).collect::<Vec<_>>(), ["hicache-master", "hicache-server-0"]);
    assert_eq!(all[0].argv[0], "mooncake_master");
    assert_eq!(all[1].variable("MOONCAKE_MASTER"), Some("127.0.0.1:50051"));
    assert_eq!(all[1].variable("MOONCAKE_GLOBAL_SEGMENT_SIZE"), Some("4gb"));
    assert_eq!(all[1].wait.any_of, [HostPort::new("127.0.0.1", 50051)]);
}

#[test]
fn loopback_beside_other_hosts_is_refused() {
    let said = refused("[model]\npath = \"m\"\n[master]\nhosts = [\"10.0.0.1\"]\n");
    assert!(said.starts_with("serving.hosts: 127.0.0.1 is reached from its own host only"), "{said}");
}

#[test]
fn ranks_over_hosts_meet_at_the_first() {
    let all = one(
        "[model]\npath = \"m\"\ntp = 16\n[master]\nhosts = [\"a\"]\n[serving]\nmode = \"distributed\"\nnnodes = 2\n\
                   hosts = [\"a\", \"b\", \"c\", \"d\"]\n",
    );
    let line = |i: usize| all[i].argv.join(" ");
    assert!(line(2).contains("--nnodes 2 --node-rank 1 --dist-init-addr a:20000"), "{}", line(2));
    assert!(line(3).contains("--node-rank 0 --dist-init-addr c:20000"), "{}", line(3));
}

#[test]
fn servers_of_one_host_take_other_gpus_and_the_router_knows_them() {
    let all = one("[model]\npath = \"m\"\ntp = 2\n[serving]\nmode = \"pd\"\n");
    assert!(!all[1].argv.contains(&"--base-gpu-id".to_owned()));
    assert!(all[2].argv.join(" ").contains("--base-gpu-id 2"), "{:?}", all[2].argv);
    let router = all[3].argv.join(" ");
    assert!(router.contains("--prefill http://127.0.0.1:30000 8998 --decode http://127.0.0.1:30001"), "{router}");
    assert!(!all[2].argv.contains(&"--enable-hierarchical-cache".to_owned()));
}

#[test]
fn a_stand_by_is_not_ready() {
    let ha = "[model]\npath = \"m\"\n[master]\nhosts = [\"10.0.0.1\", \"10.0.0.2\"]\n[master.ha]\netcd = [\"10.0.0.9:2379\"]\n\
              cluster_id = \"x\"\n[serving]\nhosts = [\"10.0.0.3\"]\n";
    let all = one(ha);
    let ProbeBy::Exec { argv } = &all[0].probes.readiness.by else { panic!("{:?}", all[0].probes) };
    assert!(argv[2].contains("service_ready"), "{argv:?}");
    assert!(all[0].argv.contains(&"--rpc_address=10.0.0.1".to_owned()));
    assert_eq!(all[2].variable("MOONCAKE_MASTER"), Some("etcd://10.0.0.9:2379"));
    assert_eq!(all[2].variable("MC_STORE_CLUSTER_ID"), Some("x"));
    let ours = refused(&format!("programs = \"mcctl\"\n{ha}"));
    assert!(ours.contains("has no high availability yet"), "{ours}");
    let old = refused(&format!("mooncake = \"0.3.12.post1\"\n{ha}"));
    assert!(old.contains("has no oplog yet"), "{old}");
    assert!(refused(&format!("{ha}[metadata]\nkind = \"http\"\n")).contains("ends with it"));
}

#[test]
fn nodes_of_mcctl_get_the_rdma_devices() {
    let all = one("programs = \"mcctl\"\n[model]\npath = \"m\"\n[master]\nhosts = [\"10.0.0.1\"]\n[transfer]\n\
                   protocol = \"rdma\"\ndevices = [\"mlx5_0\", \"mlx5_1\"]\n[nodes]\nhosts = [\"10.0.1.1\"]\n\
                   segment = \"1GiB\"\n[serving]\nhosts = [\"10.0.2.1\"]\n");
    let node = all.iter().find(|launch| launch.role == Role::Store).expect("a node");
    assert_eq!(node.variable("MOONCAKE_PROTOCOL"), Some("rdma"));
    assert_eq!(node.variable("MOONCAKE_DEVICE"), Some("mlx5_0,mlx5_1"));
    assert!(node.resources.rdma && node.resources.memlock);
}

#[test]
fn the_release_and_the_programs_decide_the_flags() {
    let nodes = "[model]\npath = \"m\"\n[nodes]\nhosts = [\"127.0.0.1\"]\n";
    let new = one(nodes);
    assert!(new[0].argv.iter().any(|arg| arg.starts_with("--metrics_host")));
    assert_eq!(new[1].probes.readiness.by, ProbeBy::Http { port: 9300, path: "/health" });
    let old = one(&format!("mooncake = \"0.3.12.post1\"\n{nodes}"));
    assert!(!old[0].argv.iter().any(|arg| arg.starts_with("--metrics_host")));
    let ours = one(&format!("programs = \"mcctl\"\n{nodes}"));
    assert_eq!(ours[0].argv[..3], ["mcctl", "serve", "master"]);
    assert_eq!(ours[0].probes.readiness.by, ProbeBy::Http { port: 9003, path: "/ready" });
    assert_eq!(ours[1].variable("MOONCAKE_ENABLE_CLIENT_HTTP_SERVER"), None);
}

#[test]
fn the_ssd_tier_is_switched_on_on_both_sides_and_left_before_the_end() {
    let all = one("[model]\npath = \"m\"\n[nodes]\nhosts = [\"127.0.0.1\"]\nnuma = [0, 1]\nssd_path = \"/ssd\"\n");
    assert!(all[0].argv.contains(&"--enable_offload=true".to_owned()));
    assert_eq!(all[1].variable("MOONCAKE_OFFLOAD_ENABLED"), Some("true"));
    assert_eq!(all[1].variable("MOONCAKE_OFFLOAD_FILE_STORAGE_PATH"), Some("/ssd/0"));
    assert_eq!(all[2].variable("MOONCAKE_OFFLOAD_FILE_STORAGE_PATH"), Some("/ssd/1"));
    let drain = all[1].drain.as_ref().unwrap();
    assert!(all[1].stop_s > drain.seconds);
}

#[test]
fn what_cannot_be_is_refused_by_its_key() {
    for (text, said) in [
        ("version = 2\n", "version: 2 is not known"),
        ("name = \"A_b\"\n[model]\npath = \"m\"\n", "name: 'A_b' is not a DNS label"),
        ("", "model.path: "),
        ("[model]\npath = \"m\"\nlayout = \"layer_first\"\n", "model.layout: "),
        ("[model]\npath = \"m\"\nhicache_size_gb = 1\nhicache_ratio = 2.0\n", "model.hicache_ratio: "),
        ("[model]\npath = \"m\"\n[transfer]\nprotocol = \"rdma\"\n", "transfer.devices: "),
        ("[model]\npath = \"m\"\n[transfer]\ndevices = [\"mlx5_0\"]\n", "transfer.devices: "),
        ("[model]\npath = \"m\"\n[segment]\nengines = 0\n", "segment.engines: nobody lends"),
        (
            "[model]\npath = \"m\"\nhicache_size_gb = 1\n[segment]\nengines = \"8MiB\"\n",
            "segment.engines: 8MiB over 1 ranks",
        ),
        ("[model]\npath = \"m\"\n[nodes]\nhosts = [\"127.0.0.1\"]\nsegment = \"1MiB\"\n", "nodes.segment: "),
        (
            "[model]\npath = \"m\"\n[nodes]\nhosts = [\"127.0.0.1\", \"127.0.0.1\"]\n",
            "port 8088 of 127.0.0.1 is wanted twice",
        ),
        ("[model]\npath = \"m\"\n[serving]\nhosts = [\"0.0.0.0\"]\n", "serving.hosts: 0.0.0.0 is no address"),
        ("[model]\npath = \"m\"\n[serving]\nhosts = [\"a b\"]\n", "serving.hosts: 'a b' is not the name"),
        ("[model]\npath = \"m\"\n[serving]\nmode = \"distributed\"\n", "serving.nnodes: "),
        ("[model]\npath = \"m\"\n[hugepages]\nsize = \"2MiB\"\n", "hugepages.size: "),
        (
            "[model]\npath = \"m\"\nextra_args = [\"--page-size=1\"]\n",
            "model.extra_args: --page-size is what model.page_size of this file sets",
        ),
        ("[model]\npath = \"m\"\nextra_args = [\"--tp\", \"8\"]\n", "model.extra_args: --tp is what model.tp"),
        (
            "[model]\npath = \"m\"\nextra_args = [\"--kv-cache-dtype\", \"fp8_e4m3\"]\n",
            "model.extra_args: --kv-cache-dtype is what model.kv_cache",
        ),
        ("[model]\npath = \"m\"\nhicache_ratio = -1.0\n", "model.hicache_ratio: must be a positive number"),
        ("[model]\npath = \"m\"\nhicache_ratio = nan\n", "model.hicache_ratio: must be a positive number"),
        ("[model]\npath = \"--help\"\n", "model.path: '--help' would be read as a flag"),
        ("[model]\npath = \"/m:ro\"\n", "model.path: '/m:ro' has a ':'"),
        ("[model]\npath = \"m\"\n[host]\nuser = \"a b\"\n", "host.user: "),
        ("[model]\npath = \"m\"\n[host]\npython = \"\"\n", "host.python: "),
        ("[model]\npath = \"m\"\n[master]\nmemory = 0\n", "master.memory: "),
        (
            "[model]\npath = \"m\"\n[master]\nhosts = [\"..\"]\n[serving]\nhosts = [\"..\"]\n",
            "master.hosts: '..' is not the name",
        ),
        ("[model]\npath = \"m\"\nenv = {MOONCAKE_PROTOCOL = \"rdma\"}\n", "model.env: MOONCAKE_PROTOCOL is set"),
        ("[model]\npath = \"m\"\ntp = 3\npp = 0\n", "model: pp must be at least 1"),
        ("[model]\npath = \"m\"\nknown_as = \"Qwen3-33B\"\nhicache_size_gb = 1\n", "model.known_as: no model is known"),
        (
            "[model]\npath = \"m\"\n[master]\nhosts = [\"a\", \"b\"]\n[serving]\nhosts = [\"c\"]\n",
            "master.hosts: more than one",
        ),
    ] {
        let found = refused(text);
        assert!(found.starts_with(said), "{text}: {found}");
    }
}

#[test]
fn what_no_cluster_takes_is_refused_by_its_key() {
    for (text, said) in [
        ("[kubernetes]\nnamespace = \"A b\"\n", "kubernetes.namespace: "),
        ("[kubernetes]\nrdma_resource = \"a b\"\n", "kubernetes.rdma_resource: "),
        ("[kubernetes]\ngpu_resource = \"\"\n", "kubernetes.gpu_resource: "),
        ("[kubernetes]\nnode_selector = {\"a b\" = \"c\"}\n", "kubernetes.node_selector: "),
        ("[kubernetes]\nmodel_claim = \"A b\"\n", "kubernetes.model_claim: "),
        ("[kubernetes]\nmodel_host_path = \"models\"\n", "kubernetes.model_host_path: "),
        ("[kubernetes]\nmodel_claim = \"a\"\nmodel_mount = \"models\"\n", "kubernetes.model_mount: "),
        ("[kubernetes]\nmodel_claim = \"a\"\n", "kubernetes.model_mount: '/m' is not below '/models'"),
        ("[master]\nadmin_port = 50051\n", "port 50051 of hicache-master is wanted twice by hicache-master"),
        ("[nodes]\nreplicas = 1\nnuma = [0, 1]\nrest_port = 9299\n", "port 9300 of hicache-store is wanted twice"),
        ("[serving]\nmode = \"pd\"\nbootstrap_port = 30000\n", "port 30000 of hicache-prefill is wanted twice"),
    ] {
        let wanted = read(&format!("{LAPTOP}{text}"));
        let found = launches(&wanted, Ground::Kubernetes).expect_err(text).to_string();
        assert!(found.starts_with(said), "{text}: {found}");
    }
}

#[test]
fn what_peers_dial_announces_its_own_address() {
    let all = one("[model]\npath = \"m\"\n[serving]\nmode = \"pd\"\n");
    assert_eq!([1, 2].map(|i| all[i].variable("SGLANG_HOST_IP")), [Some("127.0.0.1"); 2]);
    assert_eq!(one(LAPTOP)[1].variable("SGLANG_HOST_IP"), None);
}

prop_compose! {
    pub(crate) fn deployments()(
        mode in prop_oneof![Just(Mode::Single), Just(Mode::Distributed), Just(Mode::Pd)],
        (ours, ha, http, rdma, huge) in any::<(bool, bool, bool, bool, bool)>(),
        tp in prop_oneof![Just(1u64), Just(2), Just(4), Just(8)],
        nodes in 0usize..4, numa in 0u32..3, servers in 1usize..4,
        gb in 1u64..200, segment in 0u64..100, ssd in any::<bool>(), old in any::<bool>(), known in any::<bool>(),
    ) -> Deployment {
        let mut wanted = Deployment::default();
        let hosts = |from: usize, n: usize| -> Vec<String> { (0..n).map(|i| format!("10.0.{from}.{i}")).collect() };
        wanted.model.path = if known { "Qwen/Qwen3-32B".to_owned() } else { "/models/x".to_owned() };
        wanted.model.tp = tp;
        wanted.model.hicache_size_gb = Some(gb);
        wanted.segment.engines = Size(segment << 30);
        wanted.master.hosts = hosts(1, if ha { 3 } else { 1 });
        if ha {
            let etcd = vec!["10.0.9.1:2379".to_owned(), "10.0.9.2:2379".to_owned()];
            wanted.master.ha = Some(HighAvailability { etcd, oplog: !old, ..HighAvailability::default() });
        }
        if ours { wanted.programs = Programs::Mcctl; }
        if old { wanted.mooncake = Release::V0_3_12Post1; }
        if http { wanted.metadata.kind = MetadataKind::Http; }
        if rdma {
            wanted.transfer.protocol = Protocol::Rdma;
            wanted.transfer.devices = vec!["mlx5_0".to_owned(), "mlx5_1".to_owned()];
        }
        if huge { wanted.hugepages.size = HugePageSize::Mib2; }
        wanted.nodes.hosts = hosts(2, nodes);
        wanted.nodes.numa = (0..numa).collect();
        if ssd { wanted.nodes.ssd_path = "/ssd".to_owned(); }
        wanted.serving.mode = mode;
        wanted.serving.nnodes = if mode == Mode::Distributed { 2 } else { 1 };
        wanted.serving.hosts = hosts(3, servers * wanted.serving.nnodes as usize);
        wanted.serving.prefill.hosts = hosts(4, servers);
        wanted.serving.decode.hosts = hosts(5, servers);
        wanted.serving.router.host = "10.0.6.1".to_owned();
        wanted
    }
}

/// What holds for `all` processes of `wanted`.
fn holds(wanted: &Deployment, ground: Ground, all: &[Launch]) {
    let names: BTreeSet<&str> = all.iter().map(|l| l.name.as_str()).collect();
    let workloads: BTreeSet<&str> = all.iter().map(|l| l.workload.as_str()).collect();
    assert_eq!(names.len(), all.len(), "a name for each process");
    let mut started: BTreeSet<&str> = BTreeSet::new();
    for launch in all {
        let is_label = launch.name.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-');
        assert!(is_label && launch.name.len() <= 63, "{}", launch.name);
        for before in &launch.after {
            let known = if ground == Ground::Hosts { &names } else { &workloads };
            assert!(
                known.contains(before.as_str()) && started.contains(before.as_str()),
                "{} after {before}",
                launch.name
            );
        }
        started.insert(&launch.name);
        started.insert(&launch.workload);
        let variables: BTreeSet<&str> = launch.env.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(variables.len(), launch.env.len(), "each variable once");
        let ports: BTreeSet<u16> = launch.ports.iter().map(|port| port.number).collect();
        assert_eq!(ports.len(), launch.ports.len(), "each port once");
        let uses_store = matches!(launch.role, Role::Store | Role::Server | Role::Prefill);
        assert_eq!(launch.variable("MOONCAKE_MASTER").is_some(), uses_store);
        if uses_store {
            let own = launch.variable("MOONCAKE_LOCAL_HOSTNAME").unwrap();
            assert_eq!(own, if ground == Ground::Hosts { launch.host.as_str() } else { "$(POD_IP)" });
            assert_eq!(launch.variable("MOONCAKE_PROTOCOL"), Some(wanted.transfer.protocol.text()));
            assert_eq!(launch.variable("MC_STORE_USE_HUGEPAGE").is_some(), wanted.hugepages.size != HugePageSize::None);
            assert_eq!(launch.resources.hugepages.is_some(), wanted.hugepages.size != HugePageSize::None);
            let cluster = wanted.master.ha.as_ref().map(|ha| ha.cluster_id.as_str());
            assert_eq!(launch.variable("MC_STORE_CLUSTER_ID"), cluster, "the same on both sides");
            let waits = !launch.wait.any_of.is_empty() || launch.image == crate::engine::deploy::Image::Mcctl;
            assert!(waits, "{} waits for a master", launch.name);
            assert!(launch.resources.memlock);
            let segment = launch.variable("MOONCAKE_GLOBAL_SEGMENT_SIZE").unwrap();
            let (bytes, meant) = if launch.role == Role::Store {
                (size_text::store(segment), wanted.nodes.segment)
            } else {
                (size_text::sglang_segment(segment), wanted.segment.engines)
            };
            assert_eq!(bytes, Ok(meant.0), "the size as its reader reads it");
            if wanted.hugepages.size == HugePageSize::None {
                let hosts = if launch.role == Role::Store { 1 } else { u64::from(wanted.serving.nnodes) };
                let here = meant.0 / hosts;
                assert!(launch.resources.memory.unwrap() > here + here / 10, "there is headroom");
            }
        }
        if launch.role == Role::Master {
            let has = |flag: &str| launch.argv.iter().any(|arg| arg.starts_with(flag));
            assert_eq!(has("--enable_offload=true"), !wanted.nodes.ssd_path.is_empty());
            assert_eq!(has("--enable_oplog"), wanted.master.ha.as_ref().is_some_and(|ha| ha.oplog));
            let embedded = wanted.metadata.kind == MetadataKind::Http;
            assert_eq!(has("--enable_http_metadata_server=true"), embedded);
            if wanted.master.ha.is_some() {
                assert!(!has("--rpc_address=0.0.0.0"), "it is published");
                assert!(matches!(launch.probes.readiness.by, ProbeBy::Exec { .. }));
            }
        }
        let spelt = format!("{:?} {:?}", launch.argv, launch.env);
        assert!(!spelt.contains("localhost"), "{spelt}");
        assert_eq!(
            spelt.contains("$("),
            ground != Ground::Hosts
                && (launch.role.is_engine()
                    || launch.role == Role::Store
                    || wanted.master.ha.is_some() && launch.role == Role::Master)
        );
    }
}

proptest! {
    #[test]
    fn whatever_is_not_refused_holds_together(wanted in deployments()) {
        for ground in [Ground::Hosts, Ground::Kubernetes, Ground::Rbg] {
            match launches(&wanted, ground) {
                Ok(all) => holds(&wanted, ground, &all),
                Err(error) => {
                    let said = error.to_string();
                    prop_assert!(!said.contains('\n') && said.contains(": "), "{}", said);
                }
            }
        }
    }

    #[test]
    fn upstreams_programs_without_contradictions_are_never_refused(mut wanted in deployments()) {
        wanted.programs = Programs::Upstream;
        wanted.metadata.kind = MetadataKind::P2p;
        // Two hosts need two ranks.
        wanted.model.tp = wanted.model.tp.max(2);
        prop_assume!(wanted.segment.engines.0 > 0);
        for ground in [Ground::Hosts, Ground::Kubernetes, Ground::Rbg] {
            prop_assert!(launches(&wanted, ground).is_ok(), "{:?}", launches(&wanted, ground));
        }
    }
}
