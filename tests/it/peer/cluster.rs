//! Masters, nodes and clients of either make, started alike.

use std::path::Path;
use std::time::Duration;

use serde_json::{Value, json};

use super::process::{Dialogue, PATIENCE, Process, free_port, http_get, wait_until};
use super::wheel::{mcctl, wheel};

/// Who made a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Make {
    /// `mcctl`.
    Ours,
    /// The wheel.
    Real,
}

/// How segments are found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Metadata {
    /// Each engine is asked itself.
    P2p,
    /// The master's embedded HTTP service.
    Http,
}

/// A master with its metadata service, on ports of its own.
pub struct Master {
    /// The process.
    pub process: Process,
    make: Make,
    dir: std::path::PathBuf,
    flags: Vec<String>,
    /// Port of the RPC service.
    pub rpc: u16,
    /// Port of the admin HTTP server.
    pub admin: u16,
    /// Port of the metadata service.
    pub metadata: u16,
}

impl Master {
    /// Starts one and waits until it answers.
    pub fn start(make: Make, dir: &Path, flags: &[&str]) -> Self {
        let (rpc, admin, metadata) = (free_port(), free_port(), free_port());
        let mut all: Vec<String> =
            ["--rpc_address=127.0.0.1", "--metrics_host=127.0.0.1", "--enable_http_metadata_server=true"]
                .into_iter()
                .chain(["--http_metadata_server_host=127.0.0.1"])
                .chain(flags.iter().copied())
                .map(str::to_owned)
                .collect();
        all.push(format!("--rpc_port={rpc}"));
        all.push(format!("--metrics_port={admin}"));
        all.push(format!("--http_metadata_server_port={metadata}"));
        let process = Self::spawn(make, dir, &all);
        let mut master = Self { process, make, dir: dir.to_owned(), flags: all, rpc, admin, metadata };
        master.ready();
        master
    }

    fn spawn(make: Make, dir: &Path, flags: &[String]) -> Process {
        let mut c = match make {
            Make::Ours => {
                let mut c = mcctl();
                c.args(["serve", "master"]);
                c
            }
            Make::Real => {
                let mut c = wheel().program("mooncake_master");
                c.arg("--logtostderr=1");
                c
            }
        };
        c.args(flags);
        Process::start("master", c, dir)
    }

    fn ready(&mut self) {
        let ports = [self.rpc, self.admin, self.metadata];
        for port in ports {
            self.process.wait_port(port);
        }
    }

    /// kill -9.
    pub fn kill(&mut self) {
        self.process.kill();
    }

    /// Starts it again on the same ports, after [`Master::kill`].
    pub fn restart(&mut self) {
        self.process = Self::spawn(self.make, &self.dir, &self.flags);
        self.ready();
    }

    /// `host:port` of the RPC service.
    pub fn address(&self) -> String {
        format!("127.0.0.1:{}", self.rpc)
    }

    /// What a client is told as metadata server.
    pub fn metadata(&self, how: Metadata) -> String {
        match how {
            Metadata::P2p => "P2PHANDSHAKE".to_owned(),
            Metadata::Http => format!("http://127.0.0.1:{}/metadata", self.metadata),
        }
    }

    /// Names of the mounted segments.
    pub fn segments(&self) -> Vec<String> {
        http_get(self.admin, "/get_all_segments")
            .map(|(_, text)| text.lines().map(str::to_owned).collect())
            .unwrap_or_default()
    }

    /// Waits until exactly `n` segments are mounted.
    pub fn wait_segments(&self, n: usize) {
        wait_until(&format!("{n} mounted segments"), PATIENCE, || self.segments().len() == n);
    }

    /// A number of the Prometheus page: the sum over labels of the lines of `family`.
    pub fn metric(&self, family: &str) -> f64 {
        let (_, text) = http_get(self.admin, "/metrics").unwrap();
        text.lines()
            .filter_map(|l| l.strip_prefix(family).filter(|rest| rest.starts_with([' ', '{'])))
            .filter_map(|rest| rest.rsplit(' ').next()?.parse::<f64>().ok())
            .sum()
    }
}

/// A store node that lends memory.
pub struct Node {
    /// The process.
    pub process: Process,
    /// Port of the REST API.
    pub rest: u16,
    make: Make,
    dir: std::path::PathBuf,
    name: String,
    config: std::path::PathBuf,
}

impl Node {
    /// Starts one that lends `segment` bytes; it is mounted once [`Master::wait_segments`] says so. `local` is its own
    /// client buffer, which only its REST API needs.
    pub fn start(make: Make, dir: &Path, name: &str, master: &Master, how: Metadata, segment: u64, local: u64) -> Self {
        Self::start_as(make, dir, name, "127.0.0.1", master, how, segment, local)
    }

    /// The same under a host name of the caller's choice (`127.0.0.1:12345` names a segment for good).
    #[allow(clippy::too_many_arguments)]
    pub fn start_as(
        make: Make,
        dir: &Path,
        name: &str,
        host: &str,
        master: &Master,
        how: Metadata,
        segment: u64,
        local: u64,
    ) -> Self {
        let config = dir.join(format!("{name}.json"));
        let text = json!({
            "local_hostname": host, "metadata_server": master.metadata(how), "master_server_address": master.address(),
            "global_segment_size": segment, "local_buffer_size": local, "protocol": "tcp", "device_name": "",
        });
        std::fs::write(&config, text.to_string()).unwrap();
        let rest = free_port();
        let process = Self::spawn(make, dir, name, &config, rest);
        Self { process, rest, make, dir: dir.to_owned(), name: name.to_owned(), config }
    }

    fn spawn(make: Make, dir: &Path, name: &str, config: &Path, rest: u16) -> Process {
        let mut c = match make {
            Make::Ours => {
                let mut c = mcctl();
                c.args(["serve", "store"]);
                c
            }
            Make::Real => {
                let mut c = wheel().python();
                c.args(["-m", "mooncake.mooncake_store_service"]);
                c
            }
        };
        c.arg("--config").arg(config).args(["--port", &rest.to_string()]);
        Process::start(name, c, dir)
    }

    /// One of the counters that a node of ours exposes.
    pub fn counter(&self, name: &str) -> u64 {
        let (_, text) = http_get(self.rest, "/metrics").unwrap();
        let line = text.lines().find_map(|l| l.strip_prefix(name)?.strip_prefix(' '));
        line.unwrap_or_else(|| panic!("no {name} in\n{text}")).parse().unwrap()
    }

    /// Starts it again as it was, after `process.kill()`.
    pub fn restart(&mut self) {
        self.process = Self::spawn(self.make, &self.dir, &self.name, &self.config, self.rest);
    }
}

/// A master and its nodes, all mounted.
pub struct Cluster {
    /// The nodes (dropped before the master, as one would stop them).
    pub nodes: Vec<Node>,
    /// The master.
    pub master: Master,
    /// How its segments are found.
    pub how: Metadata,
    /// Logs and files of the test.
    pub dir: tempfile::TempDir,
}

impl Cluster {
    /// Starts a master and `nodes` nodes that lend `segment` bytes each.
    pub fn start(master: Make, node: Make, how: Metadata, nodes: usize, segment: u64) -> Self {
        Self::with_flags(master, node, how, nodes, segment, &[])
    }

    /// The same with more flags for the master.
    pub fn with_flags(master: Make, node: Make, how: Metadata, nodes: usize, segment: u64, flags: &[&str]) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let master = Master::start(master, dir.path(), flags);
        let nodes: Vec<Node> =
            (0..nodes).map(|i| Node::start(node, dir.path(), &format!("node{i}"), &master, how, segment, 0)).collect();
        master.wait_segments(nodes.len());
        Self { nodes, master, how, dir }
    }

    /// A real Python client of this cluster; `segment` 0 makes it a pure client.
    pub fn client(&self, name: &str, segment: u64, local: u64) -> Client {
        Client::start(name, self.dir.path(), &self.master, self.how, segment, local)
    }
}

/// A real Python client that is told what to do (tests/peers/client_worker.py).
pub struct Client {
    /// The process and its answers.
    pub dialogue: Dialogue,
}

impl Client {
    /// Starts one and waits for its setup to succeed.
    pub fn start(name: &str, dir: &Path, master: &Master, how: Metadata, segment: u64, local: u64) -> Self {
        let mut c = wheel().script("client_worker.py");
        c.args([&master.address(), &master.metadata(how), "127.0.0.1", &segment.to_string(), &local.to_string()]);
        let mut dialogue = Dialogue::start(name, c, dir);
        let answer = dialogue.hear(PATIENCE);
        assert_eq!(answer["setup"], 0, "{name}: setup");
        Self { dialogue }
    }

    /// One command and its answer.
    pub fn ask(&mut self, command: Value) -> Value {
        self.dialogue.say(&command.to_string());
        self.dialogue.hear(Duration::from_secs(75))
    }

    /// `put` of the object `seed`: the wheel's return code.
    pub fn put(&mut self, key: &str, seed: u64, size: usize) -> i64 {
        self.ask(json!({"do": "put", "key": key, "seed": seed, "size": size}))["rc"].as_i64().unwrap()
    }

    /// `get`, compared with the object `seed`: found size, and whether every byte is right.
    pub fn get(&mut self, key: &str, seed: u64, size: usize) -> (u64, bool) {
        let a = self.ask(json!({"do": "get", "key": key, "seed": seed, "size": size}));
        (a["size"].as_u64().unwrap(), a["same"].as_bool().unwrap())
    }

    /// `is_exist`: 1, 0 or an error.
    pub fn exist(&mut self, key: &str) -> i64 {
        self.ask(json!({"do": "exist", "key": key}))["rc"].as_i64().unwrap()
    }

    /// `close`, and the process has ended.
    pub fn close(mut self) {
        assert_eq!(self.ask(json!({"do": "close"}))["rc"], 0);
        assert!(self.dialogue.process().ended(PATIENCE).success());
    }
}
