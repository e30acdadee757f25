//! The schema of the deployment file: the meaning and default of each key.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::{AccessSection, DeploySize, ExtraVolume, MonitoringSection, PodToleration};
use mcctl_base::upstream::{DeployedRelease, MASTER_FLAGS, find, ports};

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct DeploymentSpec {
    /// Schema version, always 1.
    pub version: u32,
    /// Prefix of unit, container and object names: a DNS label.
    pub name: String,
    /// Which implementation runs the master and the store nodes.
    pub programs: Programs,
    /// Mooncake release in the images and on the hosts.
    pub mooncake: DeployedRelease,
    /// The model and its cache.
    pub model: ModelSection,
    /// The master, which holds the store's metadata.
    pub master: MasterSection,
    /// How transfer engines discover each other.
    pub metadata: MetadataSection,
    pub transfer: TransferSection,
    /// Memory that serving processes contribute to the store.
    pub segment: SegmentSection,
    pub nodes: NodesSection,
    pub serving: ServingSection,
    /// Huge pages for L2 and segments.
    pub hugepages: HugePagesSection,
    /// Access control of masters and store nodes.
    pub access: AccessSection,
    pub monitoring: MonitoringSection,
    pub images: ImagesSection,
    pub kubernetes: KubernetesSection,
    /// Location of programs on plain hosts.
    pub host: HostSection,
}

impl Default for DeploymentSpec {
    fn default() -> DeploymentSpec {
        DeploymentSpec {
            version: 1,
            name: "hicache".to_owned(),
            programs: Programs::Upstream,
            mooncake: DeployedRelease::TESTED,
            model: ModelSection::default(),
            master: MasterSection::default(),
            metadata: MetadataSection::default(),
            transfer: TransferSection::default(),
            segment: SegmentSection::default(),
            nodes: NodesSection::default(),
            serving: ServingSection::default(),
            hugepages: HugePagesSection::default(),
            access: AccessSection::default(),
            monitoring: MonitoringSection::default(),
            images: ImagesSection::default(),
            kubernetes: KubernetesSection::default(),
            host: HostSection::default(),
        }
    }
}

impl DeploymentSpec {
    /// The data directory of mcctl's master if the file does not set one.
    pub fn default_data_dir(&self) -> String {
        format!("/var/lib/mcctl/{}-master", self.name)
    }

    /// Whether each master has a directory or a volume of its own on `platform`. The pods of a role
    /// in a RoleBasedGroup share their volumes, because it has no claim templates.
    pub fn has_volume_per_master(&self, platform: Platform) -> bool {
        self.master.ha.is_none() || platform != Platform::Rbg
    }

    /// The platform that the file describes: Kubernetes if it has settings for Kubernetes, and no
    /// host but the default one.
    pub fn main_platform(&self) -> Platform {
        let serving = &self.serving;
        let lists =
            [&self.master.hosts, &self.nodes.hosts, &serving.hosts, &serving.prefill.hosts, &serving.decode.hosts];
        let mut hosts = lists.into_iter().flatten().chain([&serving.router.host]);
        let is_default = hosts.all(|host| host == "127.0.0.1");
        match is_default && self.kubernetes != KubernetesSection::default() {
            true => Platform::Kubernetes,
            false => Platform::Hosts,
        }
    }

    /// Number of NUMA nodes with NICs.
    pub fn nic_nodes(&self) -> u64 {
        if self.host.nic_numa.is_empty() { self.transfer.nic_nodes } else { self.host.nic_numa.len() as u64 }
    }

    /// The data directory of each master on `platform`. `None` if the state is in memory only.
    /// Upstream's master has no such directory.
    pub fn data_dir(&self, platform: Platform) -> Option<String> {
        if !self.has_volume_per_master(platform) {
            return None;
        }
        match (self.programs, &self.master.data_dir) {
            (Programs::Upstream, _) => None,
            (Programs::Mcctl, None) => Some(self.default_data_dir()),
            (Programs::Mcctl, Some(path)) => Some(path.clone()).filter(|path| !path.is_empty()),
        }
    }
}

/// The platform that runs the processes. It determines how they address each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Platform {
    /// Hosts listed in the deployment file.
    Hosts,
    Kubernetes,
    Rbg,
}

/// Which implementation runs the master and the store nodes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Programs {
    /// `mooncake_master` and `mc_store_rest_server`.
    #[default]
    Upstream,
    /// `mcctl serve`.
    Mcctl,
}

/// The element type of the KV cache, as in `--kv-cache-dtype`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum KvCache {
    #[default]
    #[serde(rename = "auto")]
    Auto,
    /// 2 bytes per element.
    #[serde(rename = "bf16")]
    Bf16,
    /// 1 byte per element.
    #[serde(rename = "fp8_e4m3")]
    Fp8E4m3,
    /// 1 byte per element.
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

/// The model and its cache.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ModelSection {
    /// `--model-path`: a directory, or a Hugging Face Hub name.
    pub path: String,
    /// The model that determines the cache size, if the path does not identify the model. If unset,
    /// only bounds on sizes are known.
    pub known_as: String,
    /// `--served-model-name`; empty omits the flag.
    pub served_name: String,
    pub tp: u64,
    pub pp: u64,
    pub dp: u64,
    /// `--enable-dp-attention`: each data-parallel rank is a group of TP ranks.
    pub dp_attention: bool,
    /// Tokens per page. Must match on all servers that share the store.
    pub page_size: u64,
    /// `--kv-cache-dtype`.
    pub kv_cache: KvCache,
    /// `--hicache-mem-layout`.
    pub layout: String,
    /// `--hicache-io-backend`. `direct` goes with `page_first_direct`, `kernel` with `page_first`.
    pub io_backend: String,
    /// L2 size per rank, in GB (10^9 bytes). Without it, `hicache_ratio` applies.
    pub hicache_size_gb: Option<u64>,
    /// L2 size as a multiple of the device pool size.
    pub hicache_ratio: Option<f64>,
    /// Number of tokens in the device pool, to which `hicache_ratio` refers. Without it, the L2
    /// size cannot be computed from the ratio, and how a fixed size is split over several pools is
    /// an estimate.
    pub device_tokens: Option<u64>,
    /// Number of state slots on the device, for models with linear attention, Mamba or convolution
    /// layers. Without it, how L2 is split over the pools is an estimate.
    pub device_mamba_slots: Option<u64>,
    /// `--hicache-write-policy`.
    pub write_policy: String,
    /// `--hicache-storage-prefetch-policy`.
    pub prefetch_policy: String,
    /// Token count below which L3 is not queried.
    pub prefetch_threshold: u64,
    /// Additional SGLang flags, passed unchanged.
    pub extra_args: Vec<String>,
    pub env: BTreeMap<String, String>,
    /// `HF_HOME`: the directory for downloaded models on each host. Empty uses SGLang's default
    /// and, in containers, a named volume.
    pub cache_dir: String,
    /// `HF_TOKEN_PATH`: a file with the token of the Hugging Face Hub on each host.
    pub token_file: String,
}

impl Default for ModelSection {
    fn default() -> ModelSection {
        ModelSection {
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
            device_mamba_slots: None,
            write_policy: "write_through".to_owned(),
            prefetch_policy: "timeout".to_owned(),
            prefetch_threshold: 256,
            extra_args: Vec::new(),
            env: BTreeMap::new(),
            cache_dir: String::new(),
            token_file: String::new(),
        }
    }
}

/// The master, which holds the store's metadata.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct MasterSection {
    /// Hosts outside Kubernetes. With high availability, the hosts of all masters.
    pub hosts: Vec<String>,
    pub rpc_port: u16,
    /// Port of the admin HTTP API.
    pub admin_port: u16,
    pub rpc_threads: u32,
    /// Duration of a read lease, in milliseconds.
    pub lease_ttl_ms: u64,
    /// Memory usage above which objects are evicted, as a fraction.
    pub high_watermark: f64,
    /// Seconds without a heartbeat after which the master removes a client's segments.
    pub client_ttl_s: u64,
    /// Memory of the process: about 1 GiB per million keys.
    pub memory: DeploySize,
    /// Directory for the log and the snapshots of mcctl's master. Unset uses
    /// [`DeploymentSpec::default_data_dir`]; empty keeps the state in memory only. Several masters
    /// have one each, at this path on their hosts or in their pods.
    pub data_dir: Option<String>,
    /// Additional master flags, passed unchanged.
    pub extra_flags: Vec<String>,
    /// For a lab: several masters may run on one host. The second one uses the next ports and a
    /// directory of its own, and so on.
    pub lab: bool,
    /// Settings for more than one master.
    pub ha: Option<HighAvailability>,
}

impl Default for MasterSection {
    fn default() -> MasterSection {
        MasterSection {
            hosts: vec!["127.0.0.1".to_owned()],
            rpc_port: ports::MASTER_RPC,
            admin_port: ports::MASTER_ADMIN,
            rpc_threads: 4,
            lease_ttl_ms: 10_000,
            high_watermark: 0.9,
            client_ttl_s: 30,
            memory: DeploySize(4 << 30),
            data_dir: None,
            extra_flags: Vec::new(),
            lab: false,
            ha: None,
        }
    }
}

/// Several masters that elect a leader through etcd.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct HighAvailability {
    /// `HOST:PORT` of each etcd member.
    pub etcd: Vec<String>,
    /// Number of masters in Kubernetes. On plain hosts, the length of `master.hosts` applies.
    pub replicas: u32,
    /// Namespace of the election. Must match on masters and clients.
    pub cluster_id: String,
    /// Path of the file with the secret of the replication, on each master's host. In Kubernetes,
    /// `kubernetes.ha_secret` has it.
    pub secret_file: String,
    /// Replicate the metadata, so that a failover preserves the keys. mcctl's masters always do.
    pub oplog: bool,
}

impl Default for HighAvailability {
    fn default() -> HighAvailability {
        HighAvailability {
            etcd: Vec::new(),
            replicas: 2,
            cluster_id: find(MASTER_FLAGS, "cluster_id").default.to_owned(),
            secret_file: String::new(),
            oplog: true,
        }
    }
}

/// How transfer engines discover each other.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct MetadataSection {
    /// Direct handshakes, or a metadata service.
    pub kind: MetadataKind,
    /// Port of the metadata service inside the master.
    pub port: u16,
    /// Port of the proxies for several masters with the service inside, one on each host with
    /// clients.
    pub proxy_port: u16,
    /// URL of an external metadata service. Empty uses the service inside the master.
    pub url: String,
}

impl Default for MetadataSection {
    fn default() -> MetadataSection {
        MetadataSection { kind: MetadataKind::P2p, port: ports::METADATA, proxy_port: 8079, url: String::new() }
    }
}

/// How transfer engines discover each other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum MetadataKind {
    /// `P2PHANDSHAKE`: direct handshakes, without a service that could lose its records.
    #[default]
    P2p,
    /// An HTTP service in the master. It keeps its records in the master's data directory, if there
    /// is one.
    Http,
}

/// The transport. It must match on all processes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct TransferSection {
    /// `tcp` or `rdma`.
    pub protocol: StoreProtocol,
    pub devices: Vec<String>,
    /// `MC_GID_INDEX`.
    pub gid_index: Option<u32>,
    /// Number of NUMA nodes with NICs. RDMA segments are spread across them.
    pub nic_nodes: u64,
    /// Whether clients send and verify checksums of whole objects. Without it, mcctl's clients do,
    /// and the wheel's do not.
    pub checksums: Option<bool>,
}

impl Default for TransferSection {
    fn default() -> TransferSection {
        TransferSection {
            protocol: StoreProtocol::Tcp,
            devices: Vec::new(),
            gid_index: None,
            nic_nodes: 1,
            checksums: None,
        }
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum StoreProtocol {
    #[default]
    Tcp,
    Rdma,
}

impl StoreProtocol {
    /// The value of `MOONCAKE_PROTOCOL`.
    pub fn text(self) -> &'static str {
        match self {
            StoreProtocol::Tcp => "tcp",
            StoreProtocol::Rdma => "rdma",
        }
    }
}

/// Memory that serving processes contribute.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct SegmentSection {
    /// Memory per server (a TP x PP group), divided among its ranks. With 0, servers contribute
    /// nothing.
    pub engines: DeploySize,
}

impl Default for SegmentSection {
    fn default() -> SegmentSection {
        SegmentSection { engines: DeploySize(4 << 30) }
    }
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct NodesSection {
    pub hosts: Vec<String>,
    /// Pods in Kubernetes. 0 means the number of hosts.
    pub replicas: u32,
    /// Memory that each process contributes. It is not divided.
    pub segment: DeploySize,
    /// Buffer of each process for its own REST requests.
    pub local_buffer: DeploySize,
    /// NUMA nodes, with one process bound to each. Empty runs one unbound process.
    pub numa: Vec<u32>,
    /// REST port of the first process on a host. The other processes use the ports that follow.
    pub rest_port: u16,
    /// Client HTTP port (upstream's health and metrics) of the first process on a host. The other
    /// processes use the ports that follow.
    pub client_http_port: u16,
    /// Directory for the SSD tier; empty disables it.
    pub ssd_path: String,
}

impl Default for NodesSection {
    fn default() -> NodesSection {
        NodesSection {
            hosts: Vec::new(),
            replicas: 0,
            segment: DeploySize(16 << 30),
            local_buffer: DeploySize(0),
            numa: Vec::new(),
            rest_port: 8088,
            client_http_port: ports::CLIENT_HTTP,
            ssd_path: String::new(),
        }
    }
}

/// How the serving processes are arranged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ServingMode {
    /// Each server runs on one host.
    #[default]
    Single,
    /// Each server spans `nnodes` hosts.
    Distributed,
    /// Prefill servers, decode servers and a router.
    Pd,
}

/// The store client in SGLang's processes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SglangClient {
    /// The Mooncake wheel.
    #[default]
    Upstream,
    /// mcctl's client in place of the wheel's, with its launcher.
    Mcctl,
    /// mcctl's client as a dynamic storage backend of SGLang.
    McctlDynamic,
}

/// The device that SGLang runs on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ComputeDevice {
    #[default]
    Cuda,
    Cpu,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ServingSection {
    pub mode: ServingMode,
    /// The store client of servers that use the store.
    pub client: SglangClient,
    /// Hosts outside Kubernetes: one per server, or `nnodes` per server.
    pub hosts: Vec<String>,
    pub replicas: u32,
    /// Hosts per server, for `distributed`.
    pub nnodes: u32,
    pub port: u16,
    /// Rendezvous port for the ranks of a distributed server.
    pub dist_port: u16,
    pub device: ComputeDevice,
    /// Size of `/dev/shm` in a container, used by NCCL and torch.
    pub shm: DeploySize,
    /// For `pd`: the prefill servers. They use the store.
    pub prefill: PdServersSection,
    /// For `pd`: the decode servers. They use the store only with `offload`.
    pub decode: PdServersSection,
    /// For `pd`: the router.
    pub router: RouterSection,
    /// For `pd`: bootstrap port of the prefill servers, used by decode servers.
    pub bootstrap_port: u16,
    /// For `pd`: devices for the transfer from prefill to decode. Empty uses `transfer.devices`.
    pub ib_devices: Vec<String>,
}

impl Default for ServingSection {
    fn default() -> ServingSection {
        ServingSection {
            mode: ServingMode::Single,
            client: SglangClient::Upstream,
            hosts: vec!["127.0.0.1".to_owned()],
            replicas: 1,
            nnodes: 1,
            port: 30000,
            dist_port: 20000,
            device: ComputeDevice::Cuda,
            shm: DeploySize(16 << 30),
            prefill: PdServersSection::default(),
            decode: PdServersSection::default(),
            router: RouterSection::default(),
            bootstrap_port: 8998,
            ib_devices: Vec::new(),
        }
    }
}

/// The prefill or decode servers for `pd`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct PdServersSection {
    /// Hosts outside Kubernetes, one server per host.
    pub hosts: Vec<String>,
    /// Number of servers in Kubernetes.
    pub replicas: u32,
    /// HTTP port. 0 uses 30000 for prefill and 30001 for decode.
    pub port: u16,
    /// Tensor parallel size. Without it, `model.tp` applies; the same is true of the other sizes.
    pub tp: Option<u64>,
    pub pp: Option<u64>,
    pub dp: Option<u64>,
    pub dp_attention: Option<bool>,
    /// L2 size per rank, in GB (10^9 bytes).
    pub hicache_size_gb: Option<u64>,
    /// Additional SGLang flags, after those of `model.extra_args`.
    pub extra_args: Vec<String>,
    /// Additional variables. A name that `model.env` has, too, gets this value.
    pub env: BTreeMap<String, String>,
    /// RDMA devices of these servers. Empty uses `transfer.devices` and `serving.ib_devices`.
    pub devices: Vec<String>,
    /// The first GPU on each host. Without it, servers on one host use consecutive GPUs.
    pub first_gpu: Option<u64>,
    /// Decode only: store the KV cache of generated tokens
    /// (`--disaggregation-decode-enable-offload-kvcache`).
    pub offload: bool,
}

impl Default for PdServersSection {
    fn default() -> PdServersSection {
        PdServersSection {
            hosts: vec!["127.0.0.1".to_owned()],
            replicas: 1,
            port: 0,
            tp: None,
            pp: None,
            dp: None,
            dp_attention: None,
            hicache_size_gb: None,
            extra_args: Vec::new(),
            env: BTreeMap::new(),
            devices: Vec::new(),
            first_gpu: None,
            offload: false,
        }
    }
}

/// The router for `pd`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RouterSection {
    pub host: String,
    pub port: u16,
    /// Additional router flags, passed unchanged.
    pub extra_args: Vec<String>,
    pub env: BTreeMap<String, String>,
}

impl Default for RouterSection {
    fn default() -> RouterSection {
        RouterSection { host: "127.0.0.1".to_owned(), port: 8000, extra_args: Vec::new(), env: BTreeMap::new() }
    }
}

/// Huge pages for L2 and segments.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct HugePagesSection {
    pub size: HugePageSize,
}

/// The size of a huge page.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum HugePageSize {
    #[default]
    #[serde(rename = "none")]
    None,
    #[serde(rename = "2MiB")]
    Mib2,
    #[serde(rename = "1GiB")]
    Gib1,
}

impl HugePageSize {
    /// The value of `MC_STORE_HUGEPAGE_SIZE` and `SGLANG_HUGEPAGE_SIZE`; `None` without huge pages.
    pub fn text(self) -> Option<&'static str> {
        match self {
            HugePageSize::None => None,
            HugePageSize::Mib2 => Some("2MB"),
            HugePageSize::Gib1 => Some("1GB"),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ImagesSection {
    /// The image with SGLang and a Mooncake client of the release set in `mooncake`.
    pub sglang: String,
    /// The image with upstream's master and store. Empty uses the SGLang image.
    pub store: String,
    pub router: String,
    /// The image with mcctl. Required for containers, because no public image exists.
    pub mcctl: String,
}

impl Default for ImagesSection {
    fn default() -> ImagesSection {
        ImagesSection {
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
    /// For rbg up to 0.6.
    V1alpha1,
    /// For rbg 0.7 and later.
    #[default]
    V1alpha2,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct KubernetesSection {
    /// Namespace for all objects.
    pub namespace: String,
    /// Version of the RoleBasedGroup API.
    pub rbg_api: RbgApi,
    /// Resource name of the RDMA device plugin.
    pub rdma_resource: String,
    /// Number of RDMA resource units per pod.
    pub rdma_count: u32,
    /// Resource name of the GPU device plugin.
    pub gpu_resource: String,
    /// Run pods in the host network.
    pub host_network: bool,
    /// Storage class of the volume for the master's data directory. Empty uses the cluster's
    /// default class.
    pub storage_class: String,
    /// Size of that volume. Unset computes it from the master's memory.
    pub master_storage: Option<DeploySize>,
    /// Node labels for serving and store pods.
    pub node_selector: BTreeMap<String, String>,
    /// PersistentVolumeClaim that contains the model; empty if there is none.
    pub model_claim: String,
    /// Directory with the model on each node; empty if there is none.
    pub model_host_path: String,
    /// Name of a Secret with the secret of the replication between masters, under the key
    /// `ha-secret`.
    pub ha_secret: String,
    /// Mount path of the model.
    pub model_mount: String,
    /// PersistentVolumeClaim for downloaded models (`HF_HOME`), shared by all servers; empty if
    /// there is none.
    pub cache_claim: String,
    /// Alternative to `cache_claim`: a directory on each node.
    pub cache_host_path: String,
    /// Name of a Secret with the token of the Hugging Face Hub, under the key `token`.
    pub hf_token_secret: String,
    /// Name of a Secret with the tokens for HTTP requests, under the key `tokens`.
    pub token_secret: String,
    /// Name of a Secret with the certificate of the HTTP ports: `tls.crt` and `tls.key`.
    pub tls_secret: String,
    /// Name of a Secret with the CAs of client certificates, under the key `ca.crt`.
    pub client_ca_secret: String,
    /// Render NetworkPolicies for masters and store nodes.
    pub network_policy: bool,
    /// Tolerations of all pods.
    pub tolerations: Vec<PodToleration>,
    /// Names of Secrets for pulling images.
    pub pull_secrets: Vec<String>,
    /// Priority class of all pods.
    pub priority_class: String,
    /// Service account of all pods. Its token is not mounted.
    pub service_account: String,
    /// Annotations of all pods.
    pub annotations: BTreeMap<String, String>,
    /// Volumes in addition to those that the deployment needs.
    pub volumes: Vec<ExtraVolume>,
}

impl Default for KubernetesSection {
    fn default() -> KubernetesSection {
        KubernetesSection {
            namespace: "default".to_owned(),
            rbg_api: RbgApi::V1alpha2,
            rdma_resource: "rdma/hca".to_owned(),
            rdma_count: 1,
            gpu_resource: "nvidia.com/gpu".to_owned(),
            host_network: false,
            storage_class: String::new(),
            master_storage: None,
            node_selector: BTreeMap::new(),
            model_claim: String::new(),
            model_host_path: String::new(),
            ha_secret: String::new(),
            model_mount: "/models".to_owned(),
            cache_claim: String::new(),
            cache_host_path: String::new(),
            hf_token_secret: String::new(),
            token_secret: String::new(),
            tls_secret: String::new(),
            client_ca_secret: String::new(),
            network_policy: false,
            tolerations: Vec::new(),
            pull_secrets: Vec::new(),
            priority_class: String::new(),
            service_account: String::new(),
            annotations: BTreeMap::new(),
            volumes: Vec::new(),
        }
    }
}

/// Location of programs on plain hosts, and what each host has. Sizes that are not set are unknown.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct HostSection {
    /// Directory that contains `mooncake_master`, `mc_store_rest_server` and `mcctl`. Empty
    /// searches PATH.
    pub bin_dir: String,
    pub python: String,
    /// User for the systemd units. Empty: unprivileged users for masters and store nodes, root for
    /// engines.
    pub user: String,
    /// Memory of each host, including huge pages.
    pub memory: Option<DeploySize>,
    /// Part of the memory that may become huge pages of `hugepages.size`.
    pub hugepages: Option<DeploySize>,
    /// Number of NUMA nodes.
    pub numa_nodes: Option<u32>,
    /// Number of GPUs of each host.
    pub gpus: Option<u64>,
    /// Names of the RDMA devices.
    pub nics: Vec<String>,
    /// NUMA nodes with NICs. Their number replaces `transfer.nic_nodes`.
    pub nic_numa: Vec<u32>,
}

impl Default for HostSection {
    fn default() -> HostSection {
        HostSection {
            bin_dir: String::new(),
            python: "python3".to_owned(),
            user: String::new(),
            memory: None,
            hugepages: None,
            numa_nodes: None,
            gpus: None,
            nics: Vec::new(),
            nic_numa: Vec::new(),
        }
    }
}
