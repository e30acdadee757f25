//! Writes a deployment file with a comment for every key. Keys with default values are commented out.

use serde_json::Value;

use crate::engine::deploy::{DeploymentSpec, FileFormat, HighAvailability};

/// A key: section ("" for the top level), name and description.
pub(super) type KeyHelp = (&'static str, &'static str, &'static str);

/// All keys in file order. Each section is contiguous and precedes its subsections.
pub(super) const KEYS: &[KeyHelp] = &[
    ("", "version", "schema version"),
    ("", "name", "prefix of unit, container and object names"),
    ("", "programs", "implementation of the master and store nodes: mcctl or upstream"),
    ("", "mooncake", "Mooncake release in images and on hosts: 0.3.12.post1 or 0.3.13.post1"),
    ("model", "path", "model directory, or Hugging Face Hub name"),
    (
        "model",
        "known_as",
        "model used to compute the cache size if the path does not identify the model (see mcctl size-hugepages --model)",
    ),
    ("model", "served_name", "model name in the API"),
    ("model", "tp", "tensor parallel size"),
    ("model", "pp", "pipeline parallel size"),
    ("model", "dp", "data parallel size"),
    ("model", "dp_attention", "enable DP attention: each data-parallel rank is a group of tp ranks"),
    ("model", "page_size", "tokens per page; must match on all servers that share a store"),
    ("model", "kv_cache", "KV cache element type: auto, bf16, fp8_e4m3 or fp8_e5m2"),
    ("model", "layout", "L2 memory layout: page_first_direct, or page_first for io_backend kernel"),
    ("model", "io_backend", "I/O backend for copies between device and L2: direct or kernel"),
    ("model", "hicache_size_gb", "L2 size per rank, in GB (10^9 bytes)"),
    ("model", "hicache_ratio", "alternative to hicache_size_gb: L2 size as a multiple of the device pool size"),
    (
        "model",
        "device_tokens",
        "for hicache_ratio: number of tokens in the device pool (max_total_num_tokens in SGLang's log)",
    ),
    ("model", "write_policy", "write_through, write_through_selective or write_back"),
    ("model", "prefetch_policy", "timeout, wait_complete or best_effort"),
    ("model", "prefetch_threshold", "token count below which the store is not queried"),
    ("model", "extra_args", "additional SGLang flags"),
    ("model", "env", "additional SGLang environment variables"),
    ("master", "hosts", "master host; an address or name that all other hosts can reach"),
    ("master", "rpc_port", "RPC port"),
    ("master", "admin_port", "admin HTTP port: health and metrics"),
    ("master", "rpc_threads", "RPC worker threads"),
    ("master", "lease_ttl_ms", "how long a read protects an object from eviction, in milliseconds"),
    ("master", "high_watermark", "memory usage above which objects are evicted, as a fraction"),
    ("master", "client_ttl_s", "seconds without a heartbeat after which a client's segments are removed"),
    ("master", "memory", "process memory; about 1GiB per million keys"),
    ("master", "extra_flags", "additional master flags, in the form --FLAG=VALUE"),
    ("master.ha", "etcd", "for multiple masters: etcd members as HOST:PORT"),
    ("master.ha", "replicas", "number of masters in Kubernetes"),
    ("master.ha", "cluster_id", "election namespace; must match on masters and clients"),
    ("master.ha", "oplog", "replicate the metadata; without it, a failover loses all keys"),
    (
        "metadata",
        "kind",
        "p2p: handshake between engines. http: service embedded in the master, with records in memory only",
    ),
    ("metadata", "port", "port of the embedded service"),
    ("metadata", "url", "URL of an external metadata service"),
    ("transfer", "protocol", "tcp or rdma; must match on all processes"),
    ("transfer", "devices", "RDMA devices (mcctl devices lists them)"),
    ("transfer", "gid_index", "GID index"),
    ("transfer", "nic_nodes", "number of NUMA nodes with NICs; RDMA segments are spread across them"),
    ("segment", "engines", "memory that each SGLang server contributes, divided among its ranks; 0 for none"),
    ("nodes", "hosts", "hosts of storage-only nodes"),
    ("nodes", "replicas", "number of storage-only pods in Kubernetes; 0 means the number of hosts"),
    ("nodes", "segment", "memory that each process contributes"),
    ("nodes", "local_buffer", "buffer of each process for its own REST requests"),
    ("nodes", "numa", "NUMA nodes; one process is bound to each"),
    ("nodes", "rest_port", "REST port of the first process on a host; the others use the ports that follow"),
    (
        "nodes",
        "client_http_port",
        "port for health and metrics of the first process on a host; the others use the ports that follow",
    ),
    ("nodes", "ssd_path", "directory for the SSD tier; empty disables it"),
    ("serving", "mode", "single, distributed (each server spans nnodes hosts) or pd (prefill, decode and a router)"),
    ("serving", "hosts", "hosts of the servers: one per server, or nnodes per server"),
    ("serving", "replicas", "number of servers in Kubernetes"),
    ("serving", "nnodes", "hosts per server"),
    ("serving", "port", "HTTP port"),
    ("serving", "dist_port", "rendezvous port for the ranks of a distributed server"),
    ("serving", "device", "cuda or cpu"),
    ("serving", "shm", "size of /dev/shm in a container"),
    ("serving", "bootstrap_port", "pd: bootstrap port of prefill servers"),
    ("serving", "ib_devices", "pd: devices for prefill-to-decode transfers; empty uses transfer.devices"),
    ("serving.prefill", "hosts", "pd: prefill hosts; these servers use the store"),
    ("serving.prefill", "replicas", "number of servers in Kubernetes"),
    ("serving.prefill", "port", "HTTP port; 0 means 30000"),
    ("serving.decode", "hosts", "pd: decode hosts; these servers do not use the store"),
    ("serving.decode", "replicas", "number of servers in Kubernetes"),
    ("serving.decode", "port", "HTTP port; 0 means 30001"),
    ("serving.router", "host", "pd: router host"),
    ("serving.router", "port", "HTTP port"),
    ("serving.router", "extra_args", "additional router flags"),
    ("hugepages", "size", "none, 2MiB or 1GiB, for L2 and segments"),
    ("images", "sglang", "image with SGLang and the Mooncake release set above"),
    ("images", "store", "image with upstream's master and store; empty uses the SGLang image"),
    ("images", "router", "SGLang router"),
    ("images", "mcctl", "image with mcctl; set your own, because no public image exists"),
    ("kubernetes", "namespace", "namespace for all objects"),
    ("kubernetes", "rbg_api", "RoleBasedGroup API version: v1alpha2, or v1alpha1 for rbg 0.6 and older"),
    ("kubernetes", "rdma_resource", "resource name of the RDMA device plugin"),
    ("kubernetes", "rdma_count", "number of rdma_resource units per pod"),
    ("kubernetes", "gpu_resource", "resource name of the GPU device plugin"),
    ("kubernetes", "host_network", "run pods in the host network"),
    ("kubernetes", "node_selector", "node labels for serving and store pods"),
    ("kubernetes", "model_claim", "PersistentVolumeClaim with the model"),
    ("kubernetes", "model_host_path", "alternative to model_claim: directory with the model on each node"),
    ("kubernetes", "model_mount", "mount path of the model"),
    ("host", "bin_dir", "directory that contains mooncake_master, mc_store_rest_server and mcctl; empty searches PATH"),
    ("host", "python", "Python interpreter with SGLang"),
    ("host", "user", "user for the systemd units; empty means root"),
];

/// Keys that are never commented out, because most users change or look for them.
const ALWAYS: &[(&str, &str)] = &[("", "version"), ("", "name"), ("", "programs"), ("model", "path"), ("model", "tp")];

/// `spec` as a commented file in `format`.
pub fn commented(spec: &DeploymentSpec, format: FileFormat) -> String {
    let tree = |of: &DeploymentSpec| serde_json::to_value(of).expect("the schema has only JSON types");
    let mut example = DeploymentSpec::default();
    example.model.hicache_size_gb = Some(64);
    example.model.hicache_ratio = Some(2.0);
    example.model.device_tokens = Some(500_000);
    example.transfer.gid_index = Some(3);
    let etcd = vec!["10.0.0.9:2379".to_owned()];
    example.master.ha = Some(HighAvailability { etcd, ..HighAvailability::default() });
    let (now, plain, example) = (tree(spec), tree(&DeploymentSpec::default()), tree(&example));
    let mut writer = CommentedWriter { format, now, plain, example, text: String::new() };
    writer.text.push_str(
        "# A deployment of SGLang HiCache on a Mooncake store.\n\
         # Generate files with: mcctl render env|sglang|systemd|docker|compose|k8s|rbg FILE\n\
         # Sizes: 16GiB = 16Gi = 16gb = 16 x 1024^3 bytes. Keys that are commented out have their default values.\n",
    );
    let mut section = "";
    for (of, key, what) in KEYS {
        if *of != section {
            section = of;
            writer.section_header(section);
        }
        writer.key(section, key, what);
    }
    writer.text
}

struct CommentedWriter {
    format: FileFormat,
    now: Value,
    plain: Value,
    /// Example values for keys without a default.
    example: Value,
    text: String,
}

/// The value at `section.key`, if it is not null.
fn at<'a>(tree: &'a Value, section: &str, key: &str) -> Option<&'a Value> {
    let parts = section.split('.').filter(|part| !part.is_empty()).chain(Some(key));
    let mut found = tree;
    for part in parts {
        found = found.get(part)?;
    }
    Some(found).filter(|value| !value.is_null())
}

impl CommentedWriter {
    fn is_set(&self, section: &str, key: &str) -> bool {
        let value = at(&self.now, section, key);
        ALWAYS.contains(&(section, key)) || (value.is_some() && value != at(&self.plain, section, key))
    }

    /// Whether any key of `section` or of its subsections is set.
    fn is_open(&self, section: &str) -> bool {
        let within = |of: &str| of == section || of.strip_prefix(section).is_some_and(|rest| rest.starts_with('.'));
        KEYS.iter().any(|(of, key, _)| within(of) && self.is_set(of, key))
    }

    fn section_header(&mut self, section: &str) {
        let mark = if self.is_open(section) { "" } else { "# " };
        let line = match self.format {
            FileFormat::Toml => format!("\n{mark}[{section}]\n"),
            FileFormat::Yaml => {
                let (indent, name) = match section.split_once('.') {
                    Some((_, name)) => ("  ", name),
                    None => ("", section),
                };
                let gap = if indent.is_empty() { "\n" } else { "" };
                format!("{gap}{indent}{mark}{name}:\n")
            }
        };
        self.text.push_str(&line);
    }

    fn key(&mut self, section: &str, key: &str, what: &str) {
        let depth = section.split('.').filter(|part| !part.is_empty()).count();
        let indent = if self.format == FileFormat::Yaml { "  ".repeat(depth) } else { String::new() };
        let value = at(&self.now, section, key).or(at(&self.example, section, key));
        let value = value.map_or_else(String::new, |value| literal(value, self.format));
        let mark = if self.is_set(section, key) { "" } else { "# " };
        let line = match self.format {
            FileFormat::Toml => format!("{indent}{mark}{key} = {value}"),
            FileFormat::Yaml => format!("{indent}{mark}{key}: {value}"),
        };
        self.text.push_str(&format!("{line}  # {what}\n"));
    }
}

/// A value as a literal. TOML and YAML both accept JSON, except for maps in TOML.
fn literal(value: &Value, format: FileFormat) -> String {
    match value {
        Value::Object(map) if format == FileFormat::Toml => {
            let pair = |(name, value): (&String, &Value)| {
                format!("{} = {}", Value::from(name.as_str()), literal(value, format))
            };
            format!("{{{}}}", map.iter().map(pair).collect::<Vec<_>>().join(", "))
        }
        Value::Array(list) => format!("[{}]", list.iter().map(|v| literal(v, format)).collect::<Vec<_>>().join(", ")),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::deploy::parse;
    use crate::engine::deploy::plans::tests::deployments;
    use proptest::prelude::*;

    /// Collects the keys of `tree` that are not sections.
    fn keys(tree: &Value, section: &str, found: &mut Vec<(String, String)>) {
        for (key, value) in tree.as_object().into_iter().flatten() {
            let inner = if section.is_empty() { key.clone() } else { format!("{section}.{key}") };
            let is_map = ["env", "node_selector"].contains(&key.as_str());
            if value.is_object() && !is_map {
                keys(value, &inner, found);
            } else {
                found.push((section.to_owned(), key.clone()));
            }
        }
    }

    #[test]
    fn every_schema_key_has_a_description() {
        let mut spec = DeploymentSpec::default();
        spec.master.ha = Some(HighAvailability::default());
        let mut all = Vec::new();
        keys(&serde_json::to_value(&spec).unwrap(), "", &mut all);
        let mut lines: Vec<_> = KEYS.iter().map(|(s, k, _)| ((*s).to_owned(), (*k).to_owned())).collect();
        all.sort();
        lines.sort();
        assert_eq!(all, lines);
    }

    proptest! {
        #[test]
        fn the_written_file_parses_to_the_same_deployment(mut spec in deployments()) {
            spec.model.env.insert("A".to_owned(), "x \"y\" # z".to_owned());
            spec.model.extra_args = vec!["--a".to_owned(), "b'c".to_owned()];
            for format in [FileFormat::Toml, FileFormat::Yaml] {
                let text = commented(&spec, format);
                prop_assert_eq!(parse(&text, format, &[]).map_err(|e| format!("{e}\n{text}")).unwrap(), spec.clone());
            }
        }
    }
}
