//! A deployment file that explains itself: every key with a line about it, and those at their defaults commented out.

use serde_json::Value;

use crate::engine::deploy::{Deployment, Format, HighAvailability};

/// A key: its section ("" for the top), its name, and what it is.
type Line = (&'static str, &'static str, &'static str);

/// All keys, in the order of the file. A section stands together, and one within another right behind it.
const LINES: &[Line] = &[
    ("", "version", "of this schema"),
    ("", "name", "what names of units, containers and objects begin with"),
    ("", "programs", "whose master and store nodes: upstream or mcctl"),
    ("", "mooncake", "release of Mooncake in the images and on the hosts: 0.3.12.post1 or 0.3.13.post1"),
    ("model", "path", "folder of the model, or its name on the hub"),
    ("model", "known_as", "model whose cache is sized, where the path does not tell (mcctl size-hugepages --model)"),
    ("model", "served_name", "name in the API"),
    ("model", "tp", "tensor parallel size"),
    ("model", "pp", "pipeline parallel size"),
    ("model", "dp", "data parallel size"),
    ("model", "dp_attention", "data parallel ranks are groups within tp"),
    ("model", "page_size", "tokens of a page; the same in all servers that share a store"),
    ("model", "kv_cache", "element type of the cache: auto, bf16, fp8_e4m3 or fp8_e5m2"),
    ("model", "layout", "layout of L2: page_first_direct or page_first (kernel)"),
    ("model", "io_backend", "what copies between device and L2: direct or kernel"),
    ("model", "hicache_size_gb", "L2 of one rank in decimal GB (10^9 bytes)"),
    ("model", "hicache_ratio", "or L2 as a multiple of the pool on the device"),
    ("model", "device_tokens", "with a ratio: tokens of that pool (max_total_num_tokens in SGLang's log)"),
    ("model", "write_policy", "write_through, write_through_selective or write_back"),
    ("model", "prefetch_policy", "timeout, wait_complete or best_effort"),
    ("model", "prefetch_threshold", "tokens below which the store is not asked"),
    ("model", "extra_args", "more flags of SGLang, as they stand"),
    ("model", "env", "more variables of SGLang"),
    ("master", "hosts", "where the master runs; an address or a name that all others reach"),
    ("master", "rpc_port", "its RPC port"),
    ("master", "admin_port", "its admin HTTP port: health and metrics"),
    ("master", "rpc_threads", "its worker threads"),
    ("master", "lease_ttl_ms", "milliseconds that a read keeps an object from eviction"),
    ("master", "high_watermark", "share of the memory above which objects are evicted"),
    ("master", "client_ttl_s", "seconds without a heartbeat after which a client's memory is given up"),
    ("master", "memory", "its own memory; about 1GiB for a million keys"),
    ("master", "extra_flags", "more flags of the master, as --FLAG=VALUE"),
    ("master.ha", "etcd", "several masters: HOST:PORT of etcd's members"),
    ("master.ha", "replicas", "masters in Kubernetes"),
    ("master.ha", "cluster_id", "namespace of the election"),
    ("master.ha", "oplog", "replicate the metadata; without it a fail-over loses all keys"),
    ("metadata", "kind", "p2p: engines ask each other. http: a service within the master, in memory only"),
    ("metadata", "port", "its port"),
    ("metadata", "url", "URL of one that runs elsewhere"),
    ("transfer", "protocol", "tcp or rdma; the same for all"),
    ("transfer", "devices", "RDMA devices (mcctl devices lists them)"),
    ("transfer", "gid_index", "row of the GID table"),
    ("transfer", "nic_nodes", "NUMA nodes with NICs, over which an RDMA segment is spread"),
    ("segment", "engines", "what one SGLang server lends to the store; its ranks share it. 0 lends nothing"),
    ("nodes", "hosts", "hosts of processes that only lend memory"),
    ("nodes", "replicas", "pods of them in Kubernetes; 0 takes as many as there are hosts"),
    ("nodes", "segment", "what each process lends"),
    ("nodes", "local_buffer", "memory for its own REST puts and gets"),
    ("nodes", "numa", "NUMA nodes; a process bound to each"),
    ("nodes", "rest_port", "REST port; the next process of a host has the next one"),
    ("nodes", "client_http_port", "port of its health and metrics; likewise"),
    ("nodes", "ssd_path", "folder of the SSD tier; empty for none"),
    ("serving", "mode", "single, distributed (each server over nnodes hosts) or pd (prefill, decode and a router)"),
    ("serving", "hosts", "hosts of the servers: one each, or nnodes for each"),
    ("serving", "replicas", "servers in Kubernetes"),
    ("serving", "nnodes", "hosts of one server"),
    ("serving", "port", "HTTP port"),
    ("serving", "dist_port", "port on which the ranks of a distributed server meet"),
    ("serving", "device", "cuda or cpu"),
    ("serving", "shm", "/dev/shm of a container"),
    ("serving", "bootstrap_port", "pd: port on which prefill servers meet decode servers"),
    ("serving", "ib_devices", "pd: devices between them; empty takes transfer.devices"),
    ("serving.prefill", "hosts", "pd: hosts of the servers that prefill; they use the store"),
    ("serving.prefill", "replicas", "in Kubernetes"),
    ("serving.prefill", "port", "HTTP port; 0 is 30000"),
    ("serving.decode", "hosts", "pd: hosts of the servers that decode; they need no store"),
    ("serving.decode", "replicas", "in Kubernetes"),
    ("serving.decode", "port", "HTTP port; 0 is 30001"),
    ("serving.router", "host", "pd: host of the router"),
    ("serving.router", "port", "HTTP port"),
    ("serving.router", "extra_args", "more flags of the router, as they stand"),
    ("hugepages", "size", "none, 2MiB or 1GiB, for L2 and segments"),
    ("images", "sglang", "SGLang with the release of Mooncake above"),
    ("images", "store", "upstream's master and store; empty takes the one above"),
    ("images", "router", "the router"),
    ("images", "mcctl", "mcctl; there is no public image, name yours"),
    ("kubernetes", "namespace", "of all objects"),
    ("kubernetes", "rbg_api", "RoleBasedGroup: v1alpha2, or v1alpha1 up to rbg 0.6"),
    ("kubernetes", "rdma_resource", "resource of the RDMA device plugin"),
    ("kubernetes", "rdma_count", "how many of it a pod takes"),
    ("kubernetes", "gpu_resource", "resource of the GPU device plugin"),
    ("kubernetes", "host_network", "pods in the host's network"),
    ("kubernetes", "node_selector", "labels of the nodes for serving and store pods"),
    ("kubernetes", "model_claim", "PersistentVolumeClaim with the model"),
    ("kubernetes", "model_host_path", "or a folder of the nodes with it"),
    ("kubernetes", "model_mount", "where it is mounted"),
    ("host", "bin_dir", "folder of mooncake_master, mc_store_rest_server and mcctl; empty looks in PATH"),
    ("host", "python", "Python with SGLang"),
    ("host", "user", "user of the units; empty for root"),
];

/// Keys that are always shown: who reads the file looks for them.
const ALWAYS: &[(&str, &str)] = &[("", "version"), ("", "name"), ("", "programs"), ("model", "path"), ("model", "tp")];

/// `wanted` as a file that explains itself, in `format`.
pub fn commented(wanted: &Deployment, format: Format) -> String {
    let tree = |of: &Deployment| serde_json::to_value(of).expect("texts, numbers and lists");
    let mut example = Deployment::default();
    example.model.hicache_size_gb = Some(64);
    example.model.hicache_ratio = Some(2.0);
    example.model.device_tokens = Some(500_000);
    example.transfer.gid_index = Some(3);
    let etcd = vec!["10.0.0.9:2379".to_owned()];
    example.master.ha = Some(HighAvailability { etcd, ..HighAvailability::default() });
    let (now, plain, example) = (tree(wanted), tree(&Deployment::default()), tree(&example));
    let mut writer = Writer { format, now, plain, example, text: String::new() };
    writer.text.push_str(
        "# A deployment of SGLang with HiCache on a Mooncake store.\n\
         # mcctl render env | sglang | systemd | docker | compose | k8s | rbg turns it into files.\n\
         # Sizes: 16GiB is 16 x 1024^3, 16GB is 16 x 10^9. What is commented out is at its default.\n",
    );
    let mut section = "";
    for (of, key, what) in LINES {
        if *of != section {
            section = of;
            writer.head(section);
        }
        writer.key(section, key, what);
    }
    writer.text
}

struct Writer {
    format: Format,
    now: Value,
    plain: Value,
    /// Shown for what has no default.
    example: Value,
    text: String,
}

/// The value at `section.key`, where it is not null.
fn at<'a>(tree: &'a Value, section: &str, key: &str) -> Option<&'a Value> {
    let parts = section.split('.').filter(|part| !part.is_empty()).chain(Some(key));
    let mut found = tree;
    for part in parts {
        found = found.get(part)?;
    }
    Some(found).filter(|value| !value.is_null())
}

impl Writer {
    fn is_set(&self, section: &str, key: &str) -> bool {
        let value = at(&self.now, section, key);
        ALWAYS.contains(&(section, key)) || (value.is_some() && value != at(&self.plain, section, key))
    }

    /// Is anything set in `section`, or in one within it?
    fn is_open(&self, section: &str) -> bool {
        let within = |of: &str| of == section || of.strip_prefix(section).is_some_and(|rest| rest.starts_with('.'));
        LINES.iter().any(|(of, key, _)| within(of) && self.is_set(of, key))
    }

    fn head(&mut self, section: &str) {
        let mark = if self.is_open(section) { "" } else { "# " };
        let line = match self.format {
            Format::Toml => format!("\n{mark}[{section}]\n"),
            Format::Yaml => {
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
        let indent = if self.format == Format::Yaml { "  ".repeat(depth) } else { String::new() };
        let value = at(&self.now, section, key).or(at(&self.example, section, key));
        let value = value.map_or_else(String::new, |value| literal(value, self.format));
        let mark = if self.is_set(section, key) { "" } else { "# " };
        let line = match self.format {
            Format::Toml => format!("{indent}{mark}{key} = {value}"),
            Format::Yaml => format!("{indent}{mark}{key}: {value}"),
        };
        self.text.push_str(&format!("{line}  # {what}\n"));
    }
}

/// A value in both notations: JSON, but for the maps of TOML.
fn literal(value: &Value, format: Format) -> String {
    match value {
        Value::Object(map) if format == Format::Toml => {
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
    use crate::engine::deploy::launches::tests::deployments;
    use crate::engine::deploy::parse;
    use proptest::prelude::*;

    /// The keys of `tree` that are no sections.
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
    fn every_key_of_the_schema_has_its_line() {
        let mut wanted = Deployment::default();
        wanted.master.ha = Some(HighAvailability::default());
        let mut all = Vec::new();
        keys(&serde_json::to_value(&wanted).unwrap(), "", &mut all);
        let mut lines: Vec<_> = LINES.iter().map(|(s, k, _)| ((*s).to_owned(), (*k).to_owned())).collect();
        all.sort();
        lines.sort();
        assert_eq!(all, lines);
    }

    proptest! {
        #[test]
        fn the_file_means_what_it_was_made_from(mut wanted in deployments()) {
            wanted.model.env.insert("A".to_owned(), "x \"y\" # z".to_owned());
            wanted.model.extra_args = vec!["--a".to_owned(), "b'c".to_owned()];
            for format in [Format::Toml, Format::Yaml] {
                let text = commented(&wanted, format);
                prop_assert_eq!(parse(&text, format, &[]).map_err(|e| format!("{e}\n{text}")).unwrap(), wanted.clone());
            }
        }
    }
}
