//! Invariants of planned processes, and rejected deployments.

use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;
use crate::plan::size_text;
use crate::render::{RenderFormat, render as render_files};
use crate::{DeploySize, FileFormat, HighAvailability, HugePageSize, MetadataKind, ProbeAction, ServingMode, parse};
use mcctl_base::upstream::DeployedRelease;

fn read(text: &str) -> DeploymentSpec {
    parse(text, FileFormat::Toml, &[]).unwrap()
}

fn one(text: &str) -> Vec<ProcessPlan> {
    plan_processes(&read(text), Platform::Hosts).unwrap()
}

fn error_of(text: &str, platform: Platform) -> DeployError {
    plan_processes(&read(text), platform).expect_err(text)
}

/// The key that the error names.
fn error_key(error: &DeployError) -> &str {
    match error {
        DeployError::Value { key, .. } | DeployError::Plan { key, .. } => key,
        DeployError::PortTaken { .. } => "port",
        error => panic!("{error}"),
    }
}

fn refused(text: &str) -> String {
    error_key(&error_of(text, Platform::Hosts)).to_owned()
}

const LAPTOP: &str = "[model]\npath = \"/m\"\n";

#[test]
fn a_model_is_the_only_required_key() {
    let all = one(LAPTOP);
    assert_eq!(all.iter().map(|l| l.name.as_str()).collect::<Vec<_>>(), ["hicache-master", "hicache-server-0"]);
    assert_eq!(all[0].argv[0], "mooncake_master");
    assert_eq!(all[1].variable("MOONCAKE_MASTER"), Some("127.0.0.1:50051"));
    assert_eq!(all[1].variable("MOONCAKE_GLOBAL_SEGMENT_SIZE"), Some("4gb"));
    assert_eq!(all[1].wait.any_of, [HostPort::new("127.0.0.1", 50051)]);
}

#[test]
fn the_client_selects_the_command_and_the_backend() {
    let server = |client: &str, more: &str| {
        let text = format!(
            "{LAPTOP}hicache_size_gb = 4\nkv_cache = \"bf16\"\nknown_as = \"Qwen/Qwen3-32B\"\n[serving]\nclient = \"{client}\"\n{more}"
        );
        one(&text).into_iter().find(|plan| plan.role.is_engine()).expect("a server")
    };
    let start = |plan: &ProcessPlan| plan.argv[1..5].join(" ");
    let value = |plan: &ProcessPlan, flag: &str| {
        let at = plan.argv.iter().position(|word| word == flag).expect("the flag");
        plan.argv[at + 1].clone()
    };
    let wheel = server("upstream", "");
    assert!(start(&wheel).starts_with("-m sglang.launch_server --model-path"));
    let launched = server("mcctl", "");
    assert_eq!(start(&launched), "-m mcctl_mooncake.run -- -m");
    assert_eq!(launched.argv[5..], wheel.argv[2..]);
    let dynamic = server("mcctl-dynamic", "[hugepages]\nsize = \"2MiB\"\n");
    assert_eq!(start(&dynamic), start(&wheel));
    assert_eq!(value(&dynamic, "--hicache-storage-backend"), "dynamic");
    let extra: serde_json::Value =
        serde_json::from_str(&value(&dynamic, "--hicache-storage-backend-extra-config")).expect("JSON");
    assert_eq!((&extra["class_name"], &extra["interface_v1"]), (&"McctlHiCacheStorage".into(), &1.into()));
    assert_eq!(extra["prefetch_threshold"], 256);
    assert_eq!(dynamic.variable("SGLANG_HUGEPAGE_SIZE"), Some("2MB"));
    let other = error_of(&format!("{LAPTOP}extra_args = [\"--hicache-storage-backend=file\"]\n"), Platform::Hosts);
    assert!(other.to_string().contains("serving.client"), "{other}");
    // Decode servers do not use the store.
    let pd = one(&format!("{LAPTOP}[serving]\nmode = \"pd\"\nclient = \"mcctl\"\n"));
    let starts: Vec<_> = pd[1..3].iter().map(|plan| plan.argv[2].as_str()).collect();
    assert_eq!(starts, ["mcctl_mooncake.run", "sglang.launch_server"]);
}

#[test]
fn the_deployment_switches_checksums_of_clients_on_and_off() {
    let values = |programs: &str, client: &str, more: &str| {
        let text = format!(
            "programs = \"{programs}\"\n{more}\n[model]\npath = \"m\"\n[nodes]\nhosts = [\"localhost\"]\n\
             [serving]\nclient = \"{client}\"\n"
        );
        let all = one(&text);
        let of = |role| {
            let plan = all.iter().find(|plan| plan.role == role).expect("a process");
            plan.variable("MOONCAKE_STORE_CHECKSUM").map(str::to_owned)
        };
        (of(ComponentRole::Store), of(ComponentRole::Server), of(ComponentRole::Master))
    };
    let on = Some("1".to_owned());
    let off = Some("0".to_owned());
    assert_eq!(values("upstream", "upstream", ""), (None, None, None));
    let with = "[transfer]\nchecksums = true";
    assert_eq!(values("upstream", "upstream", with), (on.clone(), on.clone(), None));
    assert_eq!(values("mcctl", "upstream", with), (None, on, None));
    assert_eq!(values("mcctl", "mcctl", with), (None, None, None));
    let old = format!("mooncake = \"0.3.12.post1\"\n{with}");
    assert_eq!(values("upstream", "upstream", &old), (None, None, None));
    let without = "[transfer]\nchecksums = false";
    assert_eq!(values("upstream", "upstream", without), (None, None, None));
    assert_eq!(values("mcctl", "mcctl-dynamic", without), (off.clone(), off, None));
}

#[test]
fn loopback_and_other_hosts_cannot_be_mixed() {
    assert_eq!(refused("[model]\npath = \"m\"\n[master]\nhosts = [\"10.0.0.1\"]\n"), "serving.hosts");
}

#[test]
fn ranks_meet_at_the_first_host_of_their_server() {
    let all = one(
        "[model]\npath = \"m\"\ntp = 16\n[master]\nhosts = [\"a\"]\n[serving]\nmode = \"distributed\"\nnnodes = 2\n\
                   hosts = [\"a\", \"b\", \"c\", \"d\"]\n",
    );
    let line = |i: usize| all[i].argv.join(" ");
    assert!(line(2).contains("--nnodes 2 --node-rank 1 --dist-init-addr a:20000"), "{}", line(2));
    assert!(line(3).contains("--node-rank 0 --dist-init-addr c:20000"), "{}", line(3));
}

#[test]
fn servers_on_one_host_use_different_gpus_and_the_router_lists_them() {
    let all = one("[model]\npath = \"m\"\ntp = 2\n[serving]\nmode = \"pd\"\n");
    assert!(!all[1].argv.contains(&"--base-gpu-id".to_owned()));
    assert!(all[2].argv.join(" ").contains("--base-gpu-id 2"), "{:?}", all[2].argv);
    let router = all[3].argv.join(" ");
    assert!(router.contains("--prefill http://127.0.0.1:30000 8998 --decode http://127.0.0.1:30001"), "{router}");
    assert!(!all[2].argv.contains(&"--enable-hierarchical-cache".to_owned()));
}

#[test]
fn standby_masters_are_not_ready() {
    let ha = "[model]\npath = \"m\"\n[master]\nhosts = [\"10.0.0.1\", \"10.0.0.2\"]\n[master.ha]\netcd = [\"10.0.0.9:2379\"]\n\
              cluster_id = \"x\"\n[serving]\nhosts = [\"10.0.0.3\"]\n";
    let all = one(ha);
    let ProbeAction::Exec { argv } = &all[0].probes.readiness.by else { panic!("{:?}", all[0].probes) };
    assert!(argv[2].contains("service_ready"), "{argv:?}");
    assert!(all[0].argv.contains(&"--rpc_address=10.0.0.1".to_owned()));
    assert_eq!(all[2].variable("MOONCAKE_MASTER"), Some("etcd://10.0.0.9:2379"));
    assert_eq!(all[2].variable("MC_STORE_CLUSTER_ID"), Some("x"));
    let ours = one(&format!("programs = \"mcctl\"\n{ha}"));
    assert!(matches!(ours[0].probes.readiness.by, ProbeAction::Http { path: "/ready", .. }));
    let has = |flag: &str| ours[0].argv.iter().any(|arg| arg.starts_with(flag));
    assert!(has("--enable_ha=true") && has("--etcd_endpoints=10.0.0.9:2379") && has("--cluster_id=x"));
    assert!(!has("--enable_oplog"), "{:?}", ours[0].argv);
    assert_eq!(refused(&format!("programs = \"upstream\"\nmooncake = \"0.3.12.post1\"\n{ha}")), "master.ha.oplog");
    assert_eq!(refused(&format!("{ha}[metadata]\nkind = \"http\"\n")), "metadata.kind");
}

#[test]
fn mcctl_nodes_get_the_rdma_devices() {
    let all = one("programs = \"mcctl\"\n[model]\npath = \"m\"\n[master]\nhosts = [\"10.0.0.1\"]\n[transfer]\n\
                   protocol = \"rdma\"\ndevices = [\"mlx5_0\", \"mlx5_1\"]\n[nodes]\nhosts = [\"10.0.1.1\"]\n\
                   segment = \"1GiB\"\n[serving]\nhosts = [\"10.0.2.1\"]\n");
    let node = all.iter().find(|plan| plan.role == ComponentRole::Store).expect("a node");
    assert_eq!(node.variable("MOONCAKE_PROTOCOL"), Some("rdma"));
    assert_eq!(node.variable("MOONCAKE_DEVICE"), Some("mlx5_0,mlx5_1"));
    assert!(node.resources.rdma && node.resources.memlock);
}

#[test]
fn flags_depend_on_release_and_implementation() {
    let nodes = "[model]\npath = \"m\"\n[nodes]\nhosts = [\"127.0.0.1\"]\n";
    let new = one(nodes);
    assert!(new[0].argv.iter().any(|arg| arg.starts_with("--metrics_host")));
    assert_eq!(new[1].probes.readiness.by, ProbeAction::Http { port: 9300, path: "/health", tls: false });
    let old = one(&format!("mooncake = \"0.3.12.post1\"\n{nodes}"));
    assert!(!old[0].argv.iter().any(|arg| arg.starts_with("--metrics_host")));
    let ours = one(&format!("programs = \"mcctl\"\n{nodes}"));
    assert_eq!(ours[0].argv[..3], ["mcctl", "serve", "master"]);
    assert_eq!(ours[0].probes.readiness.by, ProbeAction::Http { port: 9003, path: "/ready", tls: false });
    assert_eq!(ours[1].variable("MOONCAKE_ENABLE_CLIENT_HTTP_SERVER"), None);
}

#[test]
fn a_master_of_mcctl_has_a_data_directory_unless_it_is_empty() {
    let ours = "programs = \"mcctl\"\nname = \"a\"\n[model]\npath = \"m\"\n";
    let plan = |text: &str| one(text).remove(0);
    let path = |text: &str| plan(text).data.map(|data| data.path);
    assert_eq!(path(ours).as_deref(), Some("/var/lib/mcctl/a-master"));
    assert!(plan(ours).argv.contains(&"--data-dir=/var/lib/mcctl/a-master".to_owned()));
    assert_eq!(path(&format!("{ours}[master]\ndata_dir = \"/mnt/kv\"\n")).as_deref(), Some("/mnt/kv"));
    let none = plan(&format!("{ours}[master]\ndata_dir = \"\"\nextra_flags = [\"--enable_snapshot=true\"]\n"));
    assert_eq!((none.data, none.stop_s), (None, 30));
    let upstream = plan(&ours.replace("mcctl", "upstream"));
    assert!(upstream.data.is_none() && !upstream.argv.iter().any(|arg| arg.contains("data-dir")));
}

/// Two masters of mcctl, with these lines in `[master]`.
fn elected(more: &str) -> String {
    format!(
        "programs = \"mcctl\"\nname = \"a\"\n{LAPTOP}[serving]\nhosts = [\"10.0.0.3\"]\n[master]\n\
         hosts = [\"10.0.0.1\", \"10.0.0.2\"]\n{more}\n[master.ha]\netcd = [\"10.0.0.9:2379\"]\n"
    )
}

#[test]
fn elected_masters_read_their_secret_where_the_platform_keeps_it() {
    let text = elected("") + "secret_file = \"/etc/mcctl/ha\"\n[kubernetes]\nha_secret = \"ha\"\n";
    let master = |platform| plan_processes(&read(&text), platform).expect("valid").remove(0);
    let host = master(Platform::Hosts);
    let pod = master(Platform::Kubernetes);
    assert_eq!(host.container_argv().last().map(String::as_str), Some("--ha-secret-file=/etc/mcctl/ha"));
    assert_eq!(pod.container_argv().last().map(String::as_str), Some("--ha-secret-file=/etc/mcctl-secret/ha-secret"));
    assert!(pod.secret.is_some_and(|secret| secret.source == "ha"));
    let render = |format| {
        let mut spec = read(&text);
        spec.images.mcctl = "mcctl:1".to_owned();
        let files = render_files(&spec, format, "a.toml").expect("valid");
        files.into_iter().map(|file| file.text).collect::<String>()
    };
    let units = render(RenderFormat::Systemd);
    assert!(units.contains("LoadCredential=ha-secret:/etc/mcctl/ha\n"));
    assert!(units.contains(" --ha-secret-file=${CREDENTIALS_DIRECTORY}/ha-secret\n"));
    assert!(render(RenderFormat::Compose).contains("/etc/mcctl/ha:/etc/mcctl/ha:ro"));
    assert!(render(RenderFormat::K8s).contains("secretName: ha"));
    let in_pods = error_of(&text.replace("[kubernetes]\nha_secret = \"ha\"\n", ""), Platform::Kubernetes);
    assert_eq!(error_key(&in_pods), "master.ha.secret_file");
    for (wrong, key) in [
        (text.replace("\"mcctl\"\nname", "\"upstream\"\nname"), "master.ha.secret_file"),
        (text.replace("/etc/mcctl/ha", "ha"), "master.ha.secret_file"),
    ] {
        assert_eq!(refused(&wrong), key);
    }
}

#[test]
fn each_elected_master_has_a_data_directory_of_its_own() {
    let masters = |more: &str, platform| {
        let all = plan_processes(&read(&elected(more)), platform).expect("valid");
        all.into_iter().filter(|plan| plan.role == ComponentRole::Master).collect::<Vec<_>>()
    };
    let path = |plan: &ProcessPlan| plan.data.as_ref().map(|data| data.path.clone());
    for (more, wanted) in
        [("", Some("/var/lib/mcctl/a-master")), ("data_dir = \"/mnt/kv\"", Some("/mnt/kv")), ("data_dir = \"\"", None)]
    {
        let on_hosts = masters(more, Platform::Hosts);
        assert_eq!(on_hosts.iter().map(|plan| plan.host.as_str()).collect::<Vec<_>>(), ["10.0.0.1", "10.0.0.2"]);
        assert!(on_hosts.iter().all(|plan| path(plan).as_deref() == wanted), "{more}");
        let in_pods = masters(more, Platform::Kubernetes);
        assert_eq!((in_pods.len(), in_pods[0].replicas, path(&in_pods[0]).as_deref()), (1, 2, wanted), "{more}");
    }
    let data = masters("", Platform::Hosts);
    let memory = masters("data_dir = \"\"", Platform::Hosts);
    assert!(data[0].stop_s > memory[0].stop_s && memory[0].stop_s == 30, "the stop includes a snapshot");
}

#[test]
fn elected_masters_in_a_group_have_no_data_directory() {
    for more in ["", "data_dir = \"\""] {
        let all = plan_processes(&read(&elected(more)), Platform::Rbg).expect("valid");
        assert!(all[0].data.is_none() && !all[0].argv.iter().any(|arg| arg.contains("data-dir")), "{:?}", all[0]);
    }
    for (key, more) in [
        ("master.data_dir", "data_dir = \"/var/lib/mcctl/a-master\""),
        ("master.extra_flags", "extra_flags = [\"--fsync=always\"]"),
    ] {
        assert_eq!(error_key(&error_of(&elected(more), Platform::Rbg)), key);
        assert!(plan_processes(&read(&elected(more)), Platform::Kubernetes).is_ok());
    }
}

#[test]
fn clients_of_elected_masters_use_an_address_that_survives_for_metadata() {
    let text = elected("") + "[metadata]\nkind = \"http\"\n[nodes]\nhosts = [\"10.0.0.1\", \"10.0.0.3\"]\n";
    let all = one(&text);
    let of = |role| all.iter().filter(move |plan| plan.role == role);
    let hosts: Vec<&str> = of(ComponentRole::MetadataProxy).map(|plan| &*plan.host).collect();
    assert_eq!(hosts, ["10.0.0.1", "10.0.0.3"], "one on each host with clients");
    for proxy in of(ComponentRole::MetadataProxy) {
        assert_eq!(proxy.argv[..3], ["mcctl", "serve", "metadata"]);
        assert!(proxy.argv.contains(&"--forward-to=10.0.0.1:8080,10.0.0.2:8080".to_owned()), "{:?}", proxy.argv);
        assert_eq!(proxy.port("metadata"), Some(8079));
    }
    for client in of(ComponentRole::Store).chain(of(ComponentRole::Server)) {
        assert_eq!(client.variable(METADATA_VARIABLE), Some("http://127.0.0.1:8079/metadata"));
        assert!(client.after.contains(&ComponentRole::MetadataProxy));
    }
    assert!(of(ComponentRole::Master).all(|plan| plan.argv.contains(&"--enable_http_metadata_server=true".to_owned())));
    for platform in [Platform::Kubernetes, Platform::Rbg] {
        let all = plan_processes(&read(&text), platform).expect("valid");
        assert!(all.iter().all(|plan| plan.role != ComponentRole::MetadataProxy));
        let url = all.iter().find_map(|plan| plan.variable(METADATA_VARIABLE));
        assert_eq!(url, Some("http://a-master-metadata:8080/metadata"));
        let ready = &all[0].probes.readiness.by;
        assert!(matches!(ready, ProbeAction::Http { port: 8080, path: "/health", .. }), "{ready:?}");
    }
    let p2p = one(&elected(""));
    assert!(p2p.iter().all(|plan| plan.role != ComponentRole::MetadataProxy));
    let list = "[metadata]\nkind = \"http\"\nurl = \"http://a:1/metadata,http://b:1/metadata\"\n";
    assert_eq!(refused(&(elected("") + list)), "metadata.url");
    let lab = elected("lab = true").replace("10.0.0.2", "10.0.0.1") + "[metadata]\nkind = \"http\"\n";
    let ports: Vec<_> =
        one(&lab).iter().filter(|plan| plan.role == ComponentRole::Master).map(|plan| plan.port("metadata")).collect();
    assert_eq!(ports, [Some(8080), Some(8081)]);
}

#[test]
fn flags_that_conflict_with_an_election_are_refused() {
    for flag in ["enable_snapshot", "enable_snapshot_restore", "enable_http_metadata_server"] {
        for data in ["", "data_dir = \"\"\n"] {
            let text = elected(&format!("{data}extra_flags = [\"--{flag}=true\"]"));
            assert_eq!(refused(&text), "master.extra_flags", "{flag} {data}");
        }
    }
    assert_eq!(refused(&elected("data_dir = \"\"\nextra_flags = [\"--discard_data\"]")), "master.extra_flags");
    for extra in ["\"--fsync=always\", \"--on_disk_error=stop\", \"--ha_port=7001\"", "\"--data_format=1\""] {
        one(&elected(&format!("extra_flags = [{extra}]")));
    }
    for (first, second) in [("10.0.0.1", "10.0.0.1"), ("::ffff:10.0.0.1", "10.0.0.1"), ("127.0.0.1", "127.0.0.2")] {
        let text = elected("").replace("10.0.0.2", second).replace("\"10.0.0.1\",", &format!("\"{first}\","));
        let text = if first.starts_with("127") { text.replace("10.0.0.3", "127.0.0.1") } else { text };
        assert_eq!(refused(&text), "master.hosts", "{first} {second}");
    }
}

#[test]
fn volume_and_times_grow_with_the_memory_of_the_master() {
    let plan = |more: &str| one(&format!("programs = \"mcctl\"\n[model]\npath = \"m\"\n[master]\n{more}\n")).remove(0);
    let small = plan("memory = \"4GiB\"");
    let large = plan("memory = \"64GiB\"");
    let sizes = |plan: &ProcessPlan| plan.data.as_ref().map(|data| (data.bytes, data.volume_bytes >> 30)).unwrap();
    assert_eq!(sizes(&small), (4_000_000 * 440 + (288 << 20), 10));
    assert_eq!(sizes(&large), (64_000_000 * 440 + (288 << 20), 54));
    assert_eq!((small.stop_s, large.stop_s), (69, 196));
    assert_eq!([&small, &large].map(|plan| plan.probes.startup.failures), [136, 376]);
    let set = plan("[kubernetes]\nmaster_storage = \"200GiB\"");
    assert_eq!(sizes(&set).1, 200);
}

#[test]
fn the_ssd_tier_is_on_at_both_ends_and_drains_before_the_stop() {
    let all = one("[model]\npath = \"m\"\n[nodes]\nhosts = [\"127.0.0.1\"]\nnuma = [0, 1]\nssd_path = \"/ssd\"\n");
    assert!(all[0].argv.contains(&"--enable_offload=true".to_owned()));
    assert_eq!(all[1].variable("MOONCAKE_OFFLOAD_ENABLED"), Some("true"));
    assert_eq!(all[1].variable("MOONCAKE_OFFLOAD_FILE_STORAGE_PATH"), Some("/ssd/0"));
    assert_eq!(all[2].variable("MOONCAKE_OFFLOAD_FILE_STORAGE_PATH"), Some("/ssd/1"));
    let drain = all[1].drain.as_ref().unwrap();
    assert!(all[1].stop_s > drain.seconds);
}

#[test]
fn invalid_values_are_refused_by_key() {
    let mut texts = String::new();
    for (key, text) in [
        ("version", "version = 2\n"),
        ("name", "name = \"A_b\"\n[model]\npath = \"m\"\n"),
        ("model.path", ""),
        ("model.path", "[model]\npath = \"--help\"\n"),
        ("model.path", "[model]\npath = \"/m:ro\"\n"),
        ("model.layout", "[model]\npath = \"m\"\nlayout = \"layer_first\"\n"),
        ("model.hicache_ratio", "[model]\npath = \"m\"\nhicache_size_gb = 1\nhicache_ratio = 2.0\n"),
        ("model.hicache_ratio", "[model]\npath = \"m\"\nhicache_ratio = -1.0\n"),
        ("model.hicache_ratio", "[model]\npath = \"m\"\nhicache_ratio = nan\n"),
        ("model.extra_args", "[model]\npath = \"m\"\nextra_args = [\"--page-size=1\"]\n"),
        ("model.extra_args", "[model]\npath = \"m\"\nextra_args = [\"--tp\", \"8\"]\n"),
        ("model.extra_args", "[model]\npath = \"m\"\nextra_args = [\"--kv-cache-dtype\", \"fp8_e4m3\"]\n"),
        ("model.env", "[model]\npath = \"m\"\nenv = {MOONCAKE_PROTOCOL = \"rdma\"}\n"),
        ("model", "[model]\npath = \"m\"\ntp = 3\npp = 0\n"),
        ("model.known_as", "[model]\npath = \"m\"\nknown_as = \"Qwen3-33B\"\nhicache_size_gb = 1\n"),
        ("transfer.devices", "[model]\npath = \"m\"\n[transfer]\nprotocol = \"rdma\"\n"),
        ("transfer.devices", "[model]\npath = \"m\"\n[transfer]\ndevices = [\"mlx5_0\"]\n"),
        ("segment.engines", "[model]\npath = \"m\"\n[segment]\nengines = 0\n"),
        ("segment.engines", "[model]\npath = \"m\"\nhicache_size_gb = 1\n[segment]\nengines = \"8MiB\"\n"),
        ("nodes.segment", "[model]\npath = \"m\"\n[nodes]\nhosts = [\"127.0.0.1\"]\nsegment = \"1MiB\"\n"),
        ("port", "[model]\npath = \"m\"\n[nodes]\nhosts = [\"127.0.0.1\", \"127.0.0.1\"]\n"),
        ("serving.hosts", "[model]\npath = \"m\"\n[serving]\nhosts = [\"0.0.0.0\"]\n"),
        ("serving.hosts", "[model]\npath = \"m\"\n[serving]\nhosts = [\"a b\"]\n"),
        ("serving.nnodes", "[model]\npath = \"m\"\n[serving]\nmode = \"distributed\"\n"),
        ("hugepages.size", "[model]\npath = \"m\"\n[hugepages]\nsize = \"2MiB\"\n"),
        ("host.user", "[model]\npath = \"m\"\n[host]\nuser = \"a b\"\n"),
        ("host.python", "[model]\npath = \"m\"\n[host]\npython = \"\"\n"),
        ("master.memory", "[model]\npath = \"m\"\n[master]\nmemory = 0\n"),
        ("master.data_dir", "[model]\npath = \"m\"\n[master]\ndata_dir = \"/var/lib/a\"\n"),
        ("master.data_dir", "programs = \"mcctl\"\n[model]\npath = \"m\"\n[master]\ndata_dir = \"data\"\n"),
        ("master.data_dir", "programs = \"mcctl\"\n[model]\npath = \"m\"\n[master]\ndata_dir = \"/a/../b\"\n"),
        ("master.data_dir", "programs = \"mcctl\"\n[model]\npath = \"m\"\n[master]\ndata_dir = \"/run/mcctl\"\n"),
        ("master.data_dir", "programs = \"mcctl\"\n[model]\npath = \"m\"\n[master]\ndata_dir = \"/\"\n"),
        (
            "master.extra_flags",
            "programs = \"mcctl\"\n[model]\npath = \"m\"\n[master]\nextra_flags = [\"--enable_snapshot=true\"]\n",
        ),
        (
            "master.extra_flags",
            "programs = \"mcctl\"\n[model]\npath = \"m\"\n[master]\nextra_flags = [\"--data_dir=/a\"]\n",
        ),
        ("master.hosts", "[model]\npath = \"m\"\n[master]\nhosts = [\"..\"]\n[serving]\nhosts = [\"..\"]\n"),
        ("master.hosts", "[model]\npath = \"m\"\n[master]\nhosts = [\"a\", \"b\"]\n[serving]\nhosts = [\"c\"]\n"),
        ("master.hosts", &elected("").replace("10.0.0.2", "10.0.0.1")),
        ("master.extra_flags", &elected("extra_flags = [\"--enable_snapshot=true\"]")),
        ("master.extra_flags", &elected("extra_flags = [\"--enable_http_metadata_server=true\"]")),
    ] {
        let error = error_of(text, Platform::Hosts);
        assert_eq!(error_key(&error), key, "{text}: {error}");
        texts.push_str(&format!("{error}\n"));
    }
    insta::assert_snapshot!("errors_on_hosts", texts);
}

#[test]
fn invalid_cluster_values_are_refused_by_key() {
    let mut texts = String::new();
    for (key, text) in [
        ("kubernetes.namespace", "[kubernetes]\nnamespace = \"A b\"\n"),
        ("kubernetes.storage_class", "[master]\ndata_dir = \"\"\n[kubernetes]\nstorage_class = \"fast\"\n"),
        ("kubernetes.rdma_resource", "[kubernetes]\nrdma_resource = \"a b\"\n"),
        ("kubernetes.gpu_resource", "[kubernetes]\ngpu_resource = \"\"\n"),
        ("kubernetes.node_selector", "[kubernetes]\nnode_selector = {\"a b\" = \"c\"}\n"),
        ("kubernetes.model_claim", "[kubernetes]\nmodel_claim = \"A b\"\n"),
        ("kubernetes.model_host_path", "[kubernetes]\nmodel_host_path = \"models\"\n"),
        ("kubernetes.model_mount", "[kubernetes]\nmodel_claim = \"a\"\nmodel_mount = \"models\"\n"),
        ("kubernetes.model_mount", "[kubernetes]\nmodel_claim = \"a\"\n"),
        ("port", "[master]\nadmin_port = 50051\n"),
        ("port", "[nodes]\nreplicas = 1\nnuma = [0, 1]\nrest_port = 9299\n"),
        ("port", "[serving]\nmode = \"pd\"\nbootstrap_port = 30000\n"),
    ] {
        let error = error_of(&format!("{LAPTOP}{text}"), Platform::Kubernetes);
        assert_eq!(error_key(&error), key, "{text}: {error}");
        texts.push_str(&format!("{error}\n"));
    }
    for (key, text) in [
        ("kubernetes.storage_class", "storage_class = \"A b\"\n"),
        ("kubernetes.master_storage", "master_storage = \"1MiB\"\n"),
    ] {
        let error = error_of(&format!("programs = \"mcctl\"\n{LAPTOP}[kubernetes]\n{text}"), Platform::Kubernetes);
        assert_eq!(error_key(&error), key, "{text}: {error}");
        texts.push_str(&format!("{error}\n"));
    }
    for (key, text) in [
        ("master.data_dir", elected("data_dir = \"/var/lib/mcctl/a-master\"")),
        ("kubernetes.storage_class", format!("{}[kubernetes]\nstorage_class = \"fast\"\n", elected(""))),
        ("master.extra_flags", elected("extra_flags = [\"--fsync=always\"]")),
    ] {
        let error = error_of(&text, Platform::Rbg);
        assert_eq!(error_key(&error), key, "{text}: {error}");
        texts.push_str(&format!("{error}\n"));
    }
    insta::assert_snapshot!("errors_on_kubernetes", texts);
}

#[test]
fn processes_that_peers_connect_to_announce_their_address() {
    let all = one("[model]\npath = \"m\"\n[serving]\nmode = \"pd\"\n");
    assert_eq!([1, 2].map(|i| all[i].variable("SGLANG_HOST_IP")), [Some("127.0.0.1"); 2]);
    assert_eq!(one(LAPTOP)[1].variable("SGLANG_HOST_IP"), None);
}

prop_compose! {
    pub(crate) fn deployments()(
        mode in prop_oneof![Just(ServingMode::Single), Just(ServingMode::Distributed), Just(ServingMode::Pd)],
        (ours, ha, http, rdma, huge) in any::<(bool, bool, bool, bool, bool)>(),
        tp in prop_oneof![Just(1u64), Just(2), Just(4), Just(8)],
        nodes in 0usize..4, numa in 0u32..3, servers in 1usize..4,
        gb in 1u64..200, segment in 0u64..100, ssd in any::<bool>(), old in any::<bool>(), known in any::<bool>(),
        memory_only in any::<bool>(), checksums in any::<Option<bool>>(),
    ) -> DeploymentSpec {
        let mut spec = DeploymentSpec::default();
        let hosts = |from: usize, n: usize| -> Vec<String> { (0..n).map(|i| format!("10.0.{from}.{i}")).collect() };
        spec.model.path = if known { "Qwen/Qwen3-32B".to_owned() } else { "/models/x".to_owned() };
        spec.model.tp = tp;
        spec.model.hicache_size_gb = Some(gb);
        spec.segment.engines = DeploySize(segment << 30);
        spec.master.hosts = hosts(1, if ha { 3 } else { 1 });
        if ha {
            let etcd = vec!["10.0.9.1:2379".to_owned(), "10.0.9.2:2379".to_owned()];
            spec.master.ha = Some(HighAvailability { etcd, oplog: !old, ..HighAvailability::default() });
        }
        if ours { spec.programs = Programs::Mcctl; }
        if memory_only { spec.master.data_dir = Some(String::new()); }
        spec.transfer.checksums = checksums;
        if old { spec.mooncake = DeployedRelease::V0_3_12Post1; }
        if http { spec.metadata.kind = MetadataKind::Http; }
        if rdma {
            spec.transfer.protocol = StoreProtocol::Rdma;
            spec.transfer.devices = vec!["mlx5_0".to_owned(), "mlx5_1".to_owned()];
        }
        if huge { spec.hugepages.size = HugePageSize::Mib2; }
        spec.nodes.hosts = hosts(2, nodes);
        spec.nodes.numa = (0..numa).collect();
        if ssd { spec.nodes.ssd_path = "/ssd".to_owned(); }
        spec.serving.mode = mode;
        spec.serving.nnodes = if mode == ServingMode::Distributed { 2 } else { 1 };
        spec.serving.hosts = hosts(3, servers * spec.serving.nnodes as usize);
        spec.serving.prefill.hosts = hosts(4, servers);
        spec.serving.decode.hosts = hosts(5, servers);
        spec.serving.router.host = "10.0.6.1".to_owned();
        spec
    }
}

/// Asserts the invariants of `all` processes of `spec`.
fn assert_invariants(spec: &DeploymentSpec, platform: Platform, all: &[ProcessPlan]) {
    let names: BTreeSet<&str> = all.iter().map(|l| l.name.as_str()).collect();
    assert_eq!(names.len(), all.len(), "names are unique");
    let mut started: BTreeSet<ComponentRole> = BTreeSet::new();
    for plan in all {
        let is_label = plan.name.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-');
        assert!(is_label && plan.name.len() <= 63, "{}", plan.name);
        for before in &plan.after {
            assert!(started.contains(before) && *before != plan.role, "{} after {before:?}", plan.name);
        }
        started.insert(plan.role);
        let variables: BTreeSet<&str> = plan.env.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(variables.len(), plan.env.len(), "variables are unique");
        let ports: BTreeSet<u16> = plan.ports.iter().map(|port| port.number).collect();
        assert_eq!(ports.len(), plan.ports.len(), "ports are unique");
        let uses_store = matches!(plan.role, ComponentRole::Store | ComponentRole::Server | ComponentRole::Prefill);
        assert_eq!(plan.variable("MOONCAKE_MASTER").is_some(), uses_store);
        if uses_store {
            let own = plan.variable("MOONCAKE_LOCAL_HOSTNAME").unwrap();
            assert_eq!(own, if platform == Platform::Hosts { plan.host.as_str() } else { "$(POD_IP)" });
            assert_eq!(plan.variable("MOONCAKE_PROTOCOL"), Some(spec.transfer.protocol.text()));
            assert_eq!(plan.variable("MC_STORE_USE_HUGEPAGE").is_some(), spec.hugepages.size != HugePageSize::None);
            assert_eq!(plan.resources.hugepages.is_some(), spec.hugepages.size != HugePageSize::None);
            let cluster = spec.master.ha.as_ref().map(|ha| ha.cluster_id.as_str());
            assert_eq!(plan.variable("MC_STORE_CLUSTER_ID"), cluster, "masters and clients agree");
            let waits = !plan.wait.any_of.is_empty() || plan.image == crate::ImageSource::Mcctl;
            assert!(waits, "{} waits for a master", plan.name);
            assert_eq!(plan.resources.memlock, plan.role.is_engine() || plan.resources.rdma);
            let segment = plan.variable("MOONCAKE_GLOBAL_SEGMENT_SIZE").unwrap();
            let (bytes, meant) = if plan.role == ComponentRole::Store {
                (size_text::store(segment), spec.nodes.segment)
            } else {
                (size_text::sglang_segment(segment), spec.segment.engines)
            };
            assert_eq!(bytes, Ok(meant.0), "the parsed size is the planned value");
            if spec.hugepages.size == HugePageSize::None {
                let hosts = if plan.role == ComponentRole::Store { 1 } else { u64::from(spec.serving.nnodes) };
                let here = meant.0 / hosts;
                assert!(plan.resources.memory.unwrap() > here + here / 10, "memory has headroom");
            }
        }
        if plan.role == ComponentRole::Master {
            let has = |flag: &str| plan.argv.iter().any(|arg| arg.starts_with(flag));
            assert_eq!(has("--data-dir="), plan.data.is_some());
            let is_memory_only = spec.master.data_dir.as_ref().is_some_and(String::is_empty);
            let shares_volumes = spec.master.ha.is_some() && platform == Platform::Rbg;
            assert_eq!(plan.data.is_some(), spec.programs == Programs::Mcctl && !is_memory_only && !shares_volumes);
            assert_eq!(has("--enable_offload=true"), !spec.nodes.ssd_path.is_empty());
            assert_eq!(
                has("--enable_oplog"),
                spec.programs == Programs::Upstream && spec.master.ha.as_ref().is_some_and(|ha| ha.oplog)
            );
            let embedded = spec.metadata.kind == MetadataKind::Http;
            assert_eq!(has("--enable_http_metadata_server=true"), embedded);
            if spec.master.ha.is_some() {
                assert!(!has("--rpc_address=0.0.0.0"), "the address is published");
                let is_exec = matches!(plan.probes.readiness.by, ProbeAction::Exec { .. });
                assert_eq!(is_exec, spec.programs == Programs::Upstream);
            }
        }
        let spelt = format!("{:?} {:?}", plan.argv, plan.env);
        assert!(!spelt.contains("localhost"), "{spelt}");
        assert_eq!(
            spelt.contains("$("),
            platform != Platform::Hosts
                && (plan.role.is_engine()
                    || plan.role == ComponentRole::Store
                    || spec.master.ha.is_some() && plan.role == ComponentRole::Master)
        );
    }
}

proptest! {
    #[test]
    fn accepted_deployments_satisfy_the_invariants(spec in deployments()) {
        for platform in [Platform::Hosts, Platform::Kubernetes, Platform::Rbg] {
            match plan_processes(&spec, platform) {
                Ok(all) => assert_invariants(&spec, platform, &all),
                Err(error) => {
                    let text = error.to_string();
                    prop_assert!(!text.contains('\n') && text.contains(": "), "{}", text);
                }
            }
        }
    }

    #[test]
    fn upstream_deployments_without_contradictions_are_accepted(mut spec in deployments()) {
        spec.programs = Programs::Upstream;
        spec.metadata.kind = MetadataKind::P2p;
        // Two hosts require two ranks.
        spec.model.tp = spec.model.tp.max(2);
        prop_assume!(spec.segment.engines.0 > 0);
        for platform in [Platform::Hosts, Platform::Kubernetes, Platform::Rbg] {
            prop_assert!(plan_processes(&spec, platform).is_ok(), "{:?}", plan_processes(&spec, platform));
        }
    }
}

const PD: &str = "[model]\npath = \"m\"\ntp = 2\nhicache_size_gb = 8\n[serving]\nmode = \"pd\"\n";

#[test]
fn prefill_and_decode_servers_have_settings_of_their_own() {
    let all = one(&format!(
        "{PD}[serving.prefill]\nextra_args = [\"--p\"]\nenv = {{ X = \"1\" }}\nfirst_gpu = 4\n\
         [serving.decode]\ntp = 4\ndp = 2\ndp_attention = true\nextra_args = [\"--d\"]\nfirst_gpu = 0\n[serving.router]\nenv = {{ Y = \"2\" }}\n"
    ));
    let line = |role: ComponentRole| all.iter().find(|plan| plan.role == role).expect("a process");
    let prefill = line(ComponentRole::Prefill);
    let decode = line(ComponentRole::Decode);
    let has = |plan: &ProcessPlan, words: &str| format!(" {} ", plan.argv.join(" ")).contains(&format!(" {words} "));
    assert!(
        has(prefill, "--tp-size 2") && has(prefill, "--base-gpu-id 4") && has(prefill, "--p"),
        "{:?}",
        prefill.argv
    );
    assert!(has(decode, "--tp-size 4") && has(decode, "--dp-size 2") && has(decode, "--d"), "{:?}", decode.argv);
    assert!(has(decode, "--enable-dp-attention") && !has(decode, "--p") && !has(decode, "--base-gpu-id 0"));
    assert_eq!((prefill.resources.gpus, decode.resources.gpus), (2, 4));
    assert_eq!((prefill.variable("X"), decode.variable("X")), (Some("1"), None));
    assert_eq!(line(ComponentRole::Router).variable("Y"), Some("2"));
}

#[test]
fn a_decode_server_with_offload_uses_the_store_without_a_radix_cache() {
    let all = one(&format!("{PD}[serving.decode]\noffload = true\nhicache_size_gb = 4\n"));
    let decode = all.iter().find(|plan| plan.role == ComponentRole::Decode).expect("a server");
    let line = decode.argv.join(" ");
    assert!(
        line.contains("--disaggregation-decode-enable-offload-kvcache") && line.contains("--hicache-size 4"),
        "{line}"
    );
    assert!(!line.contains("--enable-hierarchical-cache") && decode.variable("MOONCAKE_MASTER").is_some(), "{line}");
    assert_eq!(refused(&format!("{PD}[serving.decode]\nhicache_size_gb = 4\n")), "serving.decode.hicache_size_gb");
    assert_eq!(refused(&format!("{PD}[serving.prefill]\noffload = true\n")), "serving.prefill.offload");
    let flag = "extra_args = [\"--disaggregation-decode-enable-offload-kvcache\"]\n";
    assert_eq!(refused(&format!("{PD}[serving.decode]\n{flag}")), "serving.decode.extra_args");
    // With one model for both roles, old files have the flag there.
    assert!(!one(&PD.replace("[serving]", &format!("{flag}[serving]"))).is_empty());
    assert_eq!(refused("[model]\npath = \"m\"\n[serving.decode]\ntp = 4\n"), "serving.decode");
}

const GUARDED: &str = "programs = \"mcctl\"\n[model]\npath = \"m\"\nhicache_size_gb = 8\n[nodes]\nhosts = [\"127.0.0.1\"]\n[access]\n\
                       allow_cidr = [\"127.0.0.0/8\"]\ntoken_file = \"/etc/t\"\ntls_cert = \"/etc/c\"\ntls_key = \"/etc/k\"\n";

#[test]
fn masters_and_nodes_get_the_flags_of_access_control() {
    let all = one(GUARDED);
    for plan in all.iter().filter(|plan| !plan.role.is_engine()) {
        let line = plan.argv.join(" ");
        let flags = "--allow-cidr=127.0.0.0/8 --token-file=/etc/t --tls-cert=/etc/c --tls-key=/etc/k";
        assert!(line.contains(flags), "{line}");
        let paths: Vec<&str> = plan.access.iter().map(|file| file.path.as_str()).collect();
        assert_eq!(paths, ["/etc/t", "/etc/c", "/etc/k"]);
        assert!(matches!(plan.probes.readiness.by, ProbeAction::Http { tls: true, .. }), "{:?}", plan.probes);
    }
    let server = all.iter().find(|plan| plan.role.is_engine()).expect("a server");
    // The request that asks the master for its segments has no token.
    assert_eq!(server.variable("MOONCAKE_CHECK_SERVER"), None);
    assert_eq!(server.wait.any_of, [HostPort::new("127.0.0.1", 8088)]);
    assert!(!server.argv.join(" ").contains("token"));
    let more = "protect_metrics = true\nmonitoring_token_file = \"/etc/m\"\n";
    let protected = one(&format!("{GUARDED}{more}"));
    assert!(matches!(protected[0].probes.readiness.by, ProbeAction::Tcp { .. }), "{:?}", protected[0].probes);
}

#[test]
fn contradictions_of_access_control_are_refused() {
    let key = |from: &str, to: &str| refused(&GUARDED.replace(from, to));
    assert_eq!(key("programs = \"mcctl\"\n", ""), "access");
    assert_eq!(key("tls_key = \"/etc/k\"\n", ""), "access.tls_key");
    assert_eq!(key("tls_key = \"/etc/k\"", "tls_key = \"k\""), "access.tls_key");
    assert_eq!(key("127.0.0.0/8", "10.0.0.0/8"), "access.allow_cidr");
    assert_eq!(key("127.0.0.0/8", "127.0.0.1/8"), "access.allow_cidr");
    assert_eq!(key("[nodes]", "[metadata]\nkind = \"http\"\n[nodes]"), "metadata.kind");
    let protected = read(&GUARDED.replace("tls_cert", "protect_metrics = true\ntls_cert"));
    let error = render_files(&protected, RenderFormat::Prometheus, "a.toml").expect_err("no token");
    assert_eq!(error_key(&error), "access.monitoring_token_file");
    let kubernetes = error_of(GUARDED, Platform::Kubernetes);
    assert_eq!(error_key(&kubernetes), "access.token_file");
    let secrets = format!("{GUARDED}[kubernetes]\ntoken_secret = \"t\"\ntls_secret = \"c\"\n");
    let all = plan_processes(&read(&secrets), Platform::Kubernetes).unwrap();
    assert!(
        all[0].argv.iter().any(|word| word == "--tls-cert=/etc/mcctl-access/access-tls/tls.crt"),
        "{:?}",
        all[0].argv
    );
}

#[test]
fn the_masters_of_a_lab_share_a_host_but_no_port_or_directory() {
    let lab = "programs = \"mcctl\"\n[model]\npath = \"m\"\n[master]\nlab = true\nhosts = [\"127.0.0.1\", \"127.0.0.1\", \"127.0.0.12\"]\n\
               [master.ha]\netcd = [\"127.0.0.1:2379\"]\n";
    let all = one(lab);
    let masters: Vec<&ProcessPlan> = all.iter().filter(|plan| plan.role == ComponentRole::Master).collect();
    let ports: Vec<_> = masters.iter().map(|plan| (plan.port("rpc"), plan.port("admin"))).collect();
    assert_eq!(ports, [(Some(50051), Some(9003)), (Some(50052), Some(9004)), (Some(50053), Some(9005))]);
    let paths: BTreeSet<_> = masters.iter().map(|plan| plan.data.as_ref().expect("data").path.clone()).collect();
    assert_eq!(paths.len(), 3);
    let server = all.iter().find(|plan| plan.role.is_engine()).expect("a server");
    assert_eq!(server.wait.any_of[2], HostPort::new("127.0.0.12", 50053));
    let units = render_files(&read(lab), RenderFormat::Systemd, "a.toml").unwrap();
    assert!(units.iter().all(|file| file.name.starts_with("127.0.0.1/")), "{units:?}");
    assert_eq!(refused(&lab.replace("lab = true\n", "")), "master.hosts");
}

#[test]
fn downloaded_models_have_a_directory_that_outlives_the_container() {
    let volumes = |more: &str| {
        let all = one(&format!("[model]\npath = \"a/b\"\n{more}"));
        let server = all.into_iter().find(|plan| plan.role.is_engine()).expect("a server");
        (server.model_cache.clone(), server.variable("HF_HOME").map(str::to_owned), server.mounts)
    };
    assert_eq!(volumes("").0, Some("hicache-model-cache".to_owned()));
    let (volume, home, mounts) = volumes("cache_dir = \"/data/hub\"\ntoken_file = \"/etc/token\"\n");
    assert_eq!((volume, home.as_deref()), (None, Some("/data/hub")));
    let mounts: Vec<_> = mounts.iter().map(|mount| (mount.path.as_str(), mount.writes)).collect();
    assert_eq!(mounts, [("/data/hub", true), ("/etc/token", false)]);
    assert_eq!(volumes("env = { HF_HOME = \"/x\" }\n").0, None);
}

#[test]
fn invalid_pod_options_are_refused() {
    let key = |text: &str| {
        let text = format!("[model]\npath = \"m\"\n[kubernetes]\n{text}\n");
        error_key(&error_of(&text, Platform::Kubernetes)).to_owned()
    };
    for (text, expected) in [
        ("tolerations = [{operator = \"Equals\"}]", "kubernetes.tolerations"),
        ("tolerations = [{value = \"x\"}]", "kubernetes.tolerations"),
        ("tolerations = [{key = \"a\", toleration_seconds = 3}]", "kubernetes.tolerations"),
        ("volumes = [{name = \"a\", mount_path = \"/a\"}]", "kubernetes.volumes"),
        ("volumes = [{name = \"tmp\", mount_path = \"/a\", claim = \"c\"}]", "kubernetes.volumes"),
        ("volumes = [{name = \"a\", mount_path = \"/a\", claim = \"c\", roles = [\"engine\"]}]", "kubernetes.volumes"),
        ("pull_secrets = [\"A_b\"]", "kubernetes.pull_secrets"),
        ("annotations = { \"a b\" = \"\" }", "kubernetes.annotations"),
        ("cache_claim = \"a\"\ncache_host_path = \"/a\"", "kubernetes.cache_claim"),
        ("network_policy = true\nhost_network = true", "kubernetes.network_policy"),
        ("tls_secret = \"a\"", "kubernetes.tls_secret"),
    ] {
        assert_eq!(key(text), expected, "{text}");
    }
}
