//! The deployment file: what each key means and what it is when it is not there.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::engine::deploy::Size;

/// The whole file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Deployment {
    /// Of this schema: 1.
    pub version: u32,
    /// The name that units, containers and objects begin with: a DNS label.
    pub name: String,
    /// Whose master and store nodes.
    pub programs: Programs,
    /// The release of Mooncake in the images and on the hosts.
    pub mooncake: Release,
    /// What is served, and its cache.
    pub model: Model,
    /// The index of the store.
    pub master: Master,
    /// How transfer engines find each other.
    pub metadata: Metadata,
    /// How bytes are moved.
    pub transfer: Transfer,
    /// What the serving processes lend to the store.
    pub segment: Segment,
    /// Processes that only lend.
    pub nodes: Nodes,
    /// The serving processes.
    pub serving: Serving,
    /// Huge pages for L2 and segments.
    pub hugepages: HugePages,
    /// Container images.
    pub images: Images,
    /// What only Kubernetes asks.
    pub kubernetes: Kubernetes,
    /// Where programs are on plain hosts.
    pub host: Host,
}

impl Default for Deployment {
    fn default() -> Deployment {
        Deployment {
            version: 1,
            name: "hicache".to_owned(),
            programs: Programs::Upstream,
            mooncake: Release::V0_3_13Post1,
            model: Model::default(),
            master: Master::default(),
            metadata: Metadata::default(),
            transfer: Transfer::default(),
            segment: Segment::default(),
            nodes: Nodes::default(),
            serving: Serving::default(),
            hugepages: HugePages::default(),
            images: Images::default(),
            kubernetes: Kubernetes::default(),
            host: Host::default(),
        }
    }
}

/// Whose master and store nodes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Programs {
    /// `mooncake_master` and `mc_store_rest_server`.
    #[default]
    Upstream,
    /// `mcctl serve`.
    Mcctl,
}

/// A release of Mooncake whose flags are known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Release {
    /// Of which the flags of 0.3.13 are not yet there.
    #[serde(rename = "0.3.12.post1")]
    V0_3_12Post1,
    /// The one that everything here was tried with.
    #[default]
    #[serde(rename = "0.3.13.post1")]
    V0_3_13Post1,
}

impl Release {
    /// As the package index writes it.
    pub fn text(self) -> &'static str {
        match self {
            Release::V0_3_12Post1 => "0.3.12.post1",
            Release::V0_3_13Post1 => "0.3.13.post1",
        }
    }
}

/// The element type of the cache, as `--kv-cache-dtype` names it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum KvCache {
    /// The model's own.
    #[default]
    #[serde(rename = "auto")]
    Auto,
    /// 2 bytes.
    #[serde(rename = "bf16")]
    Bf16,
    /// 1 byte.
    #[serde(rename = "fp8_e4m3")]
    Fp8E4m3,
    /// 1 byte.
    #[serde(rename = "fp8_e5m2")]
    Fp8E5m2,
}

impl KvCache {
    /// The value of the flag.
    pub fn text(self) -> &'static str {
        match self {
            KvCache::Auto => "auto",
            KvCache::Bf16 => "bf16",
            KvCache::Fp8E4m3 => "fp8_e4m3",
            KvCache::Fp8E5m2 => "fp8_e5m2",
        }
    }
}

/// What is served, and its cache.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Model {
    /// `--model-path`: a folder, or a name on the hub.
    pub path: String,
    /// The model whose cache is sized, where the path does not tell; else there are bounds only.
    pub known_as: String,
    /// `--served-model-name`; empty leaves it out.
    pub served_name: String,
    /// Tensor parallel size.
    pub tp: u64,
    /// Pipeline parallel size.
    pub pp: u64,
    /// Data parallel size.
    pub dp: u64,
    /// Data parallel ranks are groups within tp.
    pub dp_attention: bool,
    /// Tokens of a page: the same in every server that shares the store.
    pub page_size: u64,
    /// `--kv-cache-dtype`.
    pub kv_cache: KvCache,
    /// `--hicache-mem-layout`.
    pub layout: String,
    /// `--hicache-io-backend`.
    pub io_backend: String,
    /// L2 per rank, decimal GB; without it `hicache_ratio` counts.
    pub hicache_size_gb: Option<u64>,
    /// L2 as a multiple of the device's pool.
    pub hicache_ratio: Option<f64>,
    /// Tokens of the device's pool: what a ratio is a multiple of. Without it the memory of a ratio is not known.
    pub device_tokens: Option<u64>,
    /// `--hicache-write-policy`.
    pub write_policy: String,
    /// `--hicache-storage-prefetch-policy`.
    pub prefetch_policy: String,
    /// Tokens below which L3 is not asked.
    pub prefetch_threshold: u64,
    /// Flags of SGLang, as they stand.
    pub extra_args: Vec<String>,
    /// Variables of SGLang.
    pub env: BTreeMap<String, String>,
}

impl Default for Model {
    fn default() -> Model {
        Model {
            path: String::new(),
            known_as: String::new(),
            served_name: String::new(),
            tp: 1,
            pp: 1,
            dp: 1,
            dp_attention: false,
            page_size: 64,
            kv_cache: KvCache::Auto,
            layout: "page_first_direct".to_owned(),
            io_backend: "direct".to_owned(),
            hicache_size_gb: None,
            hicache_ratio: None,
            device_tokens: None,
            write_policy: "write_through".to_owned(),
            prefetch_policy: "timeout".to_owned(),
            prefetch_threshold: 256,
            extra_args: Vec::new(),
            env: BTreeMap::new(),
        }
    }
}

/// The index of the store.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Master {
    /// Where it runs on plain hosts; with high availability, all of them.
    pub hosts: Vec<String>,
    /// Its RPC port.
    pub rpc_port: u16,
    /// Its admin HTTP port.
    pub admin_port: u16,
    /// Worker threads.
    pub rpc_threads: u32,
    /// Life of a read lease, milliseconds.
    pub lease_ttl_ms: u64,
    /// Share of the memory above which objects are evicted.
    pub high_watermark: f64,
    /// Seconds without a heartbeat after which a client's segments are gone.
    pub client_ttl_s: u64,
    /// Memory of the process: about 1 GiB for a million keys.
    pub memory: Size,
    /// Flags of the master, as they stand.
    pub extra_flags: Vec<String>,
    /// More than one master.
    pub ha: Option<HighAvailability>,
}

impl Default for Master {
    fn default() -> Master {
        Master {
            hosts: vec!["127.0.0.1".to_owned()],
            rpc_port: 50051,
            admin_port: 9003,
            rpc_threads: 4,
            lease_ttl_ms: 10_000,
            high_watermark: 0.9,
            client_ttl_s: 30,
            memory: Size(4 << 30),
            extra_flags: Vec::new(),
            ha: None,
        }
    }
}

/// More than one master, elected through etcd.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct HighAvailability {
    /// `HOST:PORT` of each member of etcd.
    pub etcd: Vec<String>,
    /// Masters in Kubernetes; on plain hosts they are as many as `master.hosts`.
    pub replicas: u32,
    /// Namespace of the election; masters and clients must agree.
    pub cluster_id: String,
    /// Replicate the metadata, so that a fail-over keeps the keys.
    pub oplog: bool,
}

impl Default for HighAvailability {
    fn default() -> HighAvailability {
        HighAvailability { etcd: Vec::new(), replicas: 2, cluster_id: "mooncake_cluster".to_owned(), oplog: true }
    }
}

/// How transfer engines find each other.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Metadata {
    /// By asking each other, or a service.
    pub kind: MetadataKind,
    /// Port of the service within the master.
    pub port: u16,
    /// URL of a service that runs elsewhere; empty for the one within the master.
    pub url: String,
}

impl Default for Metadata {
    fn default() -> Metadata {
        Metadata { kind: MetadataKind::P2p, port: 8080, url: String::new() }
    }
}

/// By asking each other, or a service.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum MetadataKind {
    /// `P2PHANDSHAKE`: nothing that can be lost.
    #[default]
    P2p,
    /// An HTTP service, in memory only.
    Http,
}

/// How bytes are moved: the same for all, or they do not meet.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Transfer {
    /// `tcp` or `rdma`.
    pub protocol: Protocol,
    /// RDMA devices.
    pub devices: Vec<String>,
    /// `MC_GID_INDEX`.
    pub gid_index: Option<u32>,
    /// NUMA nodes with NICs, over which an RDMA segment is spread.
    pub nic_nodes: u64,
}

impl Default for Transfer {
    fn default() -> Transfer {
        Transfer { protocol: Protocol::Tcp, devices: Vec::new(), gid_index: None, nic_nodes: 1 }
    }
}

/// The transport.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Protocol {
    /// Sockets.
    #[default]
    Tcp,
    /// Verbs.
    Rdma,
}

impl Protocol {
    /// The value of `MOONCAKE_PROTOCOL`.
    pub fn text(self) -> &'static str {
        match self {
            Protocol::Tcp => "tcp",
            Protocol::Rdma => "rdma",
        }
    }
}

/// What the serving processes lend.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Segment {
    /// Of one server (a TP x PP group): its ranks share it. 0 lends nothing.
    pub engines: Size,
}

impl Default for Segment {
    fn default() -> Segment {
        Segment { engines: Size(4 << 30) }
    }
}

/// Processes that only lend memory.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Nodes {
    /// Where they run on plain hosts.
    pub hosts: Vec<String>,
    /// Pods in Kubernetes; 0 takes as many as there are hosts.
    pub replicas: u32,
    /// What each process lends. It is not divided.
    pub segment: Size,
    /// Memory of each process for its own REST puts and gets.
    pub local_buffer: Size,
    /// NUMA nodes; one process for each, bound to it. Empty: one process, not bound.
    pub numa: Vec<u32>,
    /// REST port; the next process of the host has the next one.
    pub rest_port: u16,
    /// Client HTTP port (upstream's health and metrics); counted up likewise.
    pub client_http_port: u16,
    /// Folder of the SSD tier; empty for none.
    pub ssd_path: String,
}

impl Default for Nodes {
    fn default() -> Nodes {
        Nodes {
            hosts: Vec::new(),
            replicas: 0,
            segment: Size(16 << 30),
            local_buffer: Size(0),
            numa: Vec::new(),
            rest_port: 8088,
            client_http_port: 9300,
            ssd_path: String::new(),
        }
    }
}

/// How the serving processes are arranged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// Every server on one host.
    #[default]
    Single,
    /// Every server over `nnodes` hosts.
    Distributed,
    /// Servers that prefill, servers that decode, and a router.
    Pd,
}

/// What SGLang computes on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Device {
    /// GPUs.
    #[default]
    Cuda,
    /// None.
    Cpu,
}

/// The serving processes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Serving {
    /// How they are arranged.
    pub mode: Mode,
    /// Where they run on plain hosts: a server each, or `nnodes` hosts for each.
    pub hosts: Vec<String>,
    /// Servers in Kubernetes.
    pub replicas: u32,
    /// Hosts of one server, for `distributed`.
    pub nnodes: u32,
    /// HTTP port.
    pub port: u16,
    /// Port on which the ranks of a distributed server meet.
    pub dist_port: u16,
    /// What SGLang computes on.
    pub device: Device,
    /// `/dev/shm` of a container: what NCCL and torch take.
    pub shm: Size,
    /// For `pd`: the servers that prefill. They use the store.
    pub prefill: Servers,
    /// For `pd`: the servers that decode. They do not use the store.
    pub decode: Servers,
    /// For `pd`: where requests go.
    pub router: Router,
    /// For `pd`: port on which a prefill server meets decode servers.
    pub bootstrap_port: u16,
    /// For `pd`: devices that move the cache from prefill to decode; empty takes `transfer.devices`.
    pub ib_devices: Vec<String>,
}

impl Default for Serving {
    fn default() -> Serving {
        Serving {
            mode: Mode::Single,
            hosts: vec!["127.0.0.1".to_owned()],
            replicas: 1,
            nnodes: 1,
            port: 30000,
            dist_port: 20000,
            device: Device::Cuda,
            shm: Size(16 << 30),
            prefill: Servers::default(),
            decode: Servers::default(),
            router: Router::default(),
            bootstrap_port: 8998,
            ib_devices: Vec::new(),
        }
    }
}

/// The servers of one side of `pd`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Servers {
    /// Where they run on plain hosts, one on each.
    pub hosts: Vec<String>,
    /// How many in Kubernetes.
    pub replicas: u32,
    /// HTTP port; 0 takes 30000 for prefill and 30001 for decode.
    pub port: u16,
}

impl Default for Servers {
    fn default() -> Servers {
        Servers { hosts: vec!["127.0.0.1".to_owned()], replicas: 1, port: 0 }
    }
}

/// Where requests go.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Router {
    /// Where it runs on plain hosts.
    pub host: String,
    /// HTTP port.
    pub port: u16,
    /// Flags of the router, as they stand.
    pub extra_args: Vec<String>,
}

impl Default for Router {
    fn default() -> Router {
        Router { host: "127.0.0.1".to_owned(), port: 8000, extra_args: Vec::new() }
    }
}

/// Huge pages for L2 and segments.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct HugePages {
    /// Their size.
    pub size: HugePageSize,
}

/// The size of a huge page.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum HugePageSize {
    /// Ordinary pages.
    #[default]
    #[serde(rename = "none")]
    None,
    /// 2 MiB.
    #[serde(rename = "2MiB")]
    Mib2,
    /// 1 GiB.
    #[serde(rename = "1GiB")]
    Gib1,
}

/// Container images.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Images {
    /// SGLang, with the client of the release that `mooncake` names.
    pub sglang: String,
    /// Upstream's master and store; empty takes the one above.
    pub store: String,
    /// The router.
    pub router: String,
    /// mcctl's; there is no public one, so this is to be filled in.
    pub mcctl: String,
}

impl Default for Images {
    fn default() -> Images {
        Images {
            sglang: "lmsysorg/sglang:v0.5.23".to_owned(),
            store: String::new(),
            router: "lmsysorg/sglang-router:v0.2.4".to_owned(),
            mcctl: String::new(),
        }
    }
}

/// The version of the RoleBasedGroup API.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RbgApi {
    /// Up to rbg 0.6.
    V1alpha1,
    /// From rbg 0.7.
    #[default]
    V1alpha2,
}

/// What only Kubernetes asks.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Kubernetes {
    /// Namespace of all objects.
    pub namespace: String,
    /// Version of the RoleBasedGroup API.
    pub rbg_api: RbgApi,
    /// Resource of the RDMA device plugin.
    pub rdma_resource: String,
    /// How many of it a pod takes.
    pub rdma_count: u32,
    /// Resource of the GPU device plugin.
    pub gpu_resource: String,
    /// Pods in the host's network.
    pub host_network: bool,
    /// Labels of the nodes that serving and store pods run on.
    pub node_selector: BTreeMap<String, String>,
    /// A PersistentVolumeClaim with the model; empty for none.
    pub model_claim: String,
    /// A folder of the nodes with the model; empty for none.
    pub model_host_path: String,
    /// Where either is mounted.
    pub model_mount: String,
}

impl Default for Kubernetes {
    fn default() -> Kubernetes {
        Kubernetes {
            namespace: "default".to_owned(),
            rbg_api: RbgApi::V1alpha2,
            rdma_resource: "rdma/hca".to_owned(),
            rdma_count: 1,
            gpu_resource: "nvidia.com/gpu".to_owned(),
            host_network: false,
            node_selector: BTreeMap::new(),
            model_claim: String::new(),
            model_host_path: String::new(),
            model_mount: "/models".to_owned(),
        }
    }
}

/// Where programs are on plain hosts.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Host {
    /// Folder of `mooncake_master`, `mc_store_rest_server` and `mcctl`; empty looks in PATH.
    pub bin_dir: String,
    /// Python with SGLang.
    pub python: String,
    /// User of the units; empty for root.
    pub user: String,
}

impl Default for Host {
    fn default() -> Host {
        Host { bin_dir: String::new(), python: "python3".to_owned(), user: String::new() }
    }
}
