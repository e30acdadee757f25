//! Help content for each command: examples for `--help`, and the flags that `-h` lists. Every command in the tree has an entry.

/// Help content for one command.
#[derive(Debug)]
pub struct Guide {
    /// The command as typed after `mcctl`; empty for mcctl itself.
    pub command: &'static str,
    /// Command lines, each with a description.
    pub examples: &'static [(&'static str, &'static str)],
    /// Long names of the flags that `-h` lists. Positional arguments are always listed. If empty, `-h` lists all flags.
    pub first: &'static [&'static str],
}

/// The guide for `command`, the words after `mcctl`.
pub fn find(command: &str) -> Option<&'static Guide> {
    GUIDES.iter().find(|guide| guide.command == command)
}

/// The guides for all commands, in `mcctl --help` order.
pub const GUIDES: &[Guide] = &[
    Guide {
        command: "",
        examples: &[
            ("mcctl up", "run a complete store on this machine and print usage instructions"),
            ("mcctl store put greeting --value hello", "store an object"),
            ("mcctl status", "show a running master's memory, objects, clients and segments"),
            ("mcctl doctor", "check this host and the running store"),
            ("mcctl help store put", "show the help for one command"),
        ],
        first: &["help", "version"],
    },
    Guide {
        command: "serve",
        examples: &[
            ("mcctl serve master --enable_http_metadata_server=true", "run a master with an embedded metadata service"),
            (
                "mcctl serve store --master 10.0.0.1:50051 --segment-size 64gb",
                "contribute 64 GiB of this host's memory to the store",
            ),
        ],
        first: &["help"],
    },
    Guide {
        command: "serve master",
        examples: &[
            ("mcctl serve master", "RPC on port 50051, admin HTTP on port 9003"),
            ("mcctl serve master --enable_http_metadata_server=true", "also serve the metadata service on port 8080"),
            ("mcctl serve master --config_path /etc/mooncake/master.yaml", "read the settings from a file"),
        ],
        first: &[
            "rpc_port",
            "metrics_port",
            "data_dir",
            "enable_ha",
            "etcd_endpoints",
            "enable_http_metadata_server",
            "default_kv_lease_ttl",
            "eviction_high_watermark_ratio",
            "client_ttl",
            "config_path",
            "log_level",
        ],
    },
    Guide {
        command: "serve metadata",
        examples: &[
            ("mcctl serve metadata", "listen on port 8080 on all addresses"),
            ("mcctl serve metadata --host 10.0.0.1 --port 8081", "listen on a specific address and port"),
        ],
        first: &["port", "host", "log_level"],
    },
    Guide {
        command: "serve store",
        examples: &[
            (
                "mcctl serve store --master 10.0.0.1:50051 --segment-size 64gb",
                "contribute 64 GiB, without a metadata service",
            ),
            (
                "mcctl serve store --master 10.0.0.1:50051 --metadata-server http://10.0.0.1:8080/metadata",
                "use an HTTP metadata service",
            ),
            ("mcctl serve store --config /etc/mooncake/store.json", "read the settings from a file"),
        ],
        first: &[
            "master",
            "metadata_server",
            "local_hostname",
            "segment_size",
            "protocol",
            "device_name",
            "rest_port",
            "config",
            "log_level",
        ],
    },
    Guide {
        command: "serve sim",
        examples: &[
            ("mcctl serve sim", "simulate an SGLang server with a device cache (L1) on port 30000"),
            (
                "mcctl serve sim --enable-hierarchical-cache --master 127.0.0.1:50051",
                "add a host cache (L2) and a Mooncake store (L3)",
            ),
        ],
        first: &[
            "port",
            "host",
            "enable-hierarchical-cache",
            "master",
            "max-total-tokens",
            "hicache-ratio",
            "page-size",
        ],
    },
    Guide {
        command: "up",
        examples: &[
            ("mcctl up", "run a master, a metadata service and a 1 GiB node on 127.0.0.1"),
            ("mcctl up --segment-size 8gb --bind 10.0.0.1", "contribute 8 GiB and allow access from other hosts"),
            ("mcctl up --with-sim", "also run a simulated SGLang server on the store"),
            ("mcctl up --once --json", "start, check, print one JSON document and exit"),
        ],
        first: &["segment-size", "bind", "metadata", "protocol", "with-sim", "once", "json"],
    },
    Guide {
        command: "store",
        examples: &[
            ("mcctl store put greeting --value hello", "store an object"),
            ("mcctl store get greeting", "write the object to stdout"),
            ("mcctl store ls --long", "list all keys with size, replica count and node"),
        ],
        first: &["help"],
    },
    Guide {
        command: "store put",
        examples: &[
            ("mcctl store put greeting --value hello", "store a string"),
            ("mcctl store put model/1 weights.bin --replicas 2", "store a file on two segments"),
            ("tar c dir | mcctl store put backup --upsert", "store stdin; replace the object if the key exists"),
        ],
        first: &[
            "value",
            "upsert",
            "replicas",
            "soft-pin",
            "hard-pin",
            "master",
            "metadata-server",
            "protocol",
            "json",
        ],
    },
    Guide {
        command: "store get",
        examples: &[
            ("mcctl store get greeting", "write the object to stdout"),
            ("mcctl store get model/1 -o weights.bin", "write the object to a file"),
        ],
        first: &["output", "master", "metadata-server", "protocol", "json"],
    },
    Guide {
        command: "store exists",
        examples: &[
            ("mcctl store exists a b", "print yes or no for each key"),
            ("mcctl store exists -q a && echo found", "report the result only in the exit code"),
        ],
        first: &["quiet", "master", "admin", "json"],
    },
    Guide {
        command: "store rm",
        examples: &[
            ("mcctl store rm a b", "remove two objects"),
            ("mcctl store rm --regex '^session/42/'", "remove all objects whose key matches"),
            ("mcctl store rm --all --force --yes", "empty the store without confirmation"),
        ],
        first: &["regex", "all", "force", "yes", "master", "json"],
    },
    Guide {
        command: "store ls",
        examples: &[
            ("mcctl store ls session/", "list the keys that begin with session/"),
            ("mcctl store ls --long -n 20", "list 20 keys with size, replica count and node"),
        ],
        first: &["limit", "long", "master", "admin", "json"],
    },
    Guide {
        command: "store stat",
        examples: &[("mcctl store stat greeting", "show an object's size and replicas")],
        first: &["master", "admin", "json"],
    },
    Guide {
        command: "store verify",
        examples: &[
            ("mcctl store verify a b", "compare all replicas of two objects with their checksums"),
            ("mcctl store verify --all --rate 100mb", "verify the whole store at no more than 100 MiB/s"),
        ],
        first: &["all", "rate", "json", "master", "admin"],
    },
    Guide {
        command: "master",
        examples: &[(
            "mcctl master step-down --master etcd://127.0.0.1:2379",
            "make a standby the leader before a host is shut down",
        )],
        first: &["help"],
    },
    Guide {
        command: "master step-down",
        examples: &[
            ("mcctl master step-down --master etcd://127.0.0.1:2379", "the leader that etcd names hands over"),
            ("mcctl master step-down --master 10.0.0.1:50051 --json", "the same for the master at an address"),
        ],
        first: &["master", "json", "help"],
    },
    Guide {
        command: "status",
        examples: &[
            ("mcctl status", "show the master on this host"),
            ("mcctl status --master 10.0.0.1:50051 --watch", "show another master, refreshed every second"),
            ("mcctl status --node 10.0.0.2:8081", "also show a node's transport"),
        ],
        first: &["watch", "interval", "node", "json", "master", "admin"],
    },
    Guide {
        command: "bench",
        examples: &[
            ("mcctl bench store", "measure put and get on a store"),
            (
                "mcctl bench multi-turn --url http://127.0.0.1:30000",
                "measure multi-turn conversations with an inference server",
            ),
        ],
        first: &["help"],
    },
    Guide {
        command: "bench multi-turn",
        examples: &[
            (
                "mcctl bench multi-turn --url http://127.0.0.1:30000 --num-clients 8 --num-rounds 4",
                "8 conversations with 4 rounds each",
            ),
            (
                "mcctl bench multi-turn --dataset-name sharegpt --dataset-path chats.json --request-rate 4",
                "conversations from a file, 4 requests per second",
            ),
        ],
        first: &[
            "url",
            "num-clients",
            "num-rounds",
            "request-length",
            "output-length",
            "request-rate",
            "max-parallel",
            "dataset-name",
            "dataset-path",
        ],
    },
    Guide {
        command: "bench serving",
        examples: &[(
            "mcctl bench serving --backend sglang --dataset-name random --num-prompts 1000 --request-rate 8",
            "1,000 random prompts at 8 requests per second, with the flags of sglang.bench_serving",
        )],
        first: &[
            "backend",
            "url",
            "model",
            "dataset-name",
            "dataset-path",
            "num-prompts",
            "request-rate",
            "max-parallel",
        ],
    },
    Guide {
        command: "bench compare",
        examples: &[
            (
                "mcctl bench compare http://10.0.0.1:30000 http://10.0.0.2:30000 --yes",
                "send the same prompts to both servers; empties their caches",
            ),
            ("mcctl bench compare before.jsonl http://10.0.0.1:30000", "compare a recorded run with a server"),
        ],
        first: &["yes", "primary", "num-clients", "request-length", "output-length", "request-rate", "blocks"],
    },
    Guide {
        command: "bench dataset",
        examples: &[(
            "mcctl bench dataset --format mooncake --conversations 100 --out trace.jsonl",
            "write a small Mooncake trace",
        )],
        first: &["format", "conversations", "turns", "question", "answer", "out"],
    },
    Guide {
        command: "bench ladder",
        examples: &[(
            "mcctl bench ladder --url http://127.0.0.1:30000 --yes",
            "compare prefill with L1, L2 and L3 hits; empties the server's L1 and L2 caches",
        )],
        first: &["url", "yes", "lengths", "repeats", "html", "svg", "csv", "json"],
    },
    Guide {
        command: "bench store",
        examples: &[
            ("mcctl bench store", "256 objects of 1 MiB with one client"),
            ("mcctl bench store --object-size 4mb --clients 8 --duration 30s", "8 clients read for 30 s"),
        ],
        first: &[
            "object-size",
            "objects",
            "clients",
            "ranks",
            "batch-size",
            "duration",
            "verify",
            "master",
            "protocol",
            "no-shared-memory",
            "json",
        ],
    },
    Guide {
        command: "bench transfer",
        examples: &[
            ("mcctl bench transfer --mode target", "serve memory and print the segment name"),
            ("mcctl bench transfer --segment-id 10.0.0.1:15001 --threads 4", "read from that target"),
        ],
        first: &["mode", "segment-id", "operation", "block-size", "batch-size", "threads", "duration", "protocol"],
    },
    Guide {
        command: "size-hugepages",
        examples: &[
            (
                "mcctl size-hugepages --model Qwen3-32B --tp-size 4 --hicache-size 64",
                "memory and huge pages for a server with 64 GB of L2 per rank",
            ),
            ("mcctl size-hugepages --model Qwen3-32B --hicache-size 64 --apply", "also reserve the huge pages"),
        ],
        first: &[
            "model",
            "tp-size",
            "hicache-size",
            "hicache-ratio",
            "global-segment-size",
            "page-size",
            "apply",
            "json",
        ],
    },
    Guide {
        command: "devices",
        examples: &[
            ("mcctl devices", "list RDMA devices, their problems and the recommended choice"),
            ("mcctl devices --format env >> store.env", "append the recommended settings to an environment file"),
        ],
        first: &["format", "json"],
    },
    Guide {
        command: "doctor",
        examples: &[
            ("mcctl doctor", "check this host, the wheel and the store at MOONCAKE_MASTER"),
            ("mcctl doctor --master 10.0.0.1:50051 --protocol rdma", "check an RDMA deployment"),
            ("mcctl doctor --list", "list all checks"),
        ],
        first: &["master", "protocol", "only", "skip", "verbose", "fail-on", "list", "json"],
    },
    Guide {
        command: "lint",
        examples: &[
            ("mcctl lint k8s/ start.sh store.json", "check all files of one deployment together"),
            ("mcctl lint --list", "list all rules"),
        ],
        first: &["only", "skip", "fail-on", "list", "json"],
    },
    Guide {
        command: "init",
        examples: &[
            ("mcctl init --out demo.toml", "answer questions, then write a deployment file"),
            (
                "mcctl init --model Qwen/Qwen3-32B --tp-size 4 --hicache-size 64 --out demo.toml",
                "write a deployment file without questions",
            ),
        ],
        first: &["out", "model", "mode", "tp-size", "hicache-size", "segment-size", "master", "hosts"],
    },
    Guide {
        command: "render",
        examples: &[
            ("mcctl render systemd demo.toml --out units", "write units and environment files"),
            ("mcctl render k8s demo.toml", "print Kubernetes manifests"),
            ("mcctl render kustomize demo.toml --out base", "write a Kustomize base"),
            ("mcctl render prometheus demo.toml --out monitoring", "write scrape jobs, rules and alerts"),
            ("mcctl render grafana demo.toml --out monitoring", "write a dashboard"),
        ],
        first: &["out", "force", "set", "json"],
    },
    Guide {
        command: "completions",
        examples: &[("source <(mcctl completions bash)", "complete command lines in this shell")],
        first: &["help"],
    },
    Guide {
        command: "man",
        examples: &[
            ("mcctl man store put | man -l -", "read one page"),
            ("mcctl man --dir /usr/local/share/man/man1", "install all pages"),
        ],
        first: &["dir"],
    },
    Guide {
        command: "help",
        examples: &[("mcctl help store put", "the same as mcctl store put --help")],
        first: &["help"],
    },
    Guide {
        command: "version",
        examples: &[
            ("mcctl version", "the same as mcctl --version"),
            ("mcctl version --json", "also the commit, the target and the build profile"),
        ],
        first: &["json", "help"],
    },
];
