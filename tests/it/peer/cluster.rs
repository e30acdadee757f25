//! Masters, nodes and clients, real or of mcctl, with one interface.

use std::path::Path;
use std::time::Duration;

use serde_json::{Value, json};

use super::process::{Dialogue, PATIENCE, Process, free_port, http_get, wait_until};
use super::wheel::{mcctl, wheel};

/// Implementation of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Make {
    /// `mcctl`.
    Ours,
    Real,
}

/// Where the nodes of a test store their metadata.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Metadata {
    /// Engines exchange handshakes (P2PHANDSHAKE).
    P2p,
    /// The master's embedded HTTP service.
    Http,
}

/// A master with its metadata service, on ports of its own.
pub struct Master {
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
    /// Start a master and wait until it answers.
    pub fn start(make: Make, dir: &Path, flags: &[&str]) -> Self {
        let rpc = free_port();
        let admin = free_port();
        let metadata = free_port();
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

    /// Kill the process with SIGKILL.
    pub fn kill(&mut self) {
        self.process.kill();
    }

    /// Restart on the same ports after [`Master::kill`].
    pub fn restart(&mut self) {
        self.process = Self::spawn(self.make, &self.dir, &self.flags);
        self.ready();
    }

    /// `host:port` of the RPC service.
    pub fn address(&self) -> String {
        format!("127.0.0.1:{}", self.rpc)
    }

    /// The metadata server for clients.
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

    /// Wait until exactly `n` segments are mounted.
    pub fn wait_segments(&self, n: usize) {
        wait_until(&format!("{n} mounted segments"), PATIENCE, || self.segments().len() == n);
    }

    /// The sum of all samples of `family` on the metrics page.
    pub fn metric(&self, family: &str) -> f64 {
        let (_, text) = http_get(self.admin, "/metrics").unwrap();
        text.lines()
            .filter_map(|l| l.strip_prefix(family).filter(|rest| rest.starts_with([' ', '{'])))
            .filter_map(|rest| rest.rsplit(' ').next()?.parse::<f64>().ok())
            .sum()
    }
}

/// A running store node of either implementation.
pub struct Node {
    pub process: Process,
    /// Port of the REST API.
    pub rest: u16,
    make: Make,
    dir: std::path::PathBuf,
    name: String,
    config: std::path::PathBuf,
}

impl Node {
    /// Start a node that contributes `segment` bytes. It is mounted when [`Master::wait_segments`]
    /// returns. `local` is the size of its client buffer, which only the REST API uses.
    pub fn start(make: Make, dir: &Path, name: &str, master: &Master, how: Metadata, segment: u64, local: u64) -> Self {
        Self::start_as(make, dir, name, "127.0.0.1", master, how, segment, local)
    }

    /// Start a node with the host name `host`. A name with a port (`127.0.0.1:12345`) stays the
    /// same after a restart.
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

    /// The counter `name` of an mcctl node.
    pub fn counter(&self, name: &str) -> u64 {
        let (_, text) = http_get(self.rest, "/metrics").unwrap();
        let line = text.lines().find_map(|l| l.strip_prefix(name)?.strip_prefix(' '));
        line.unwrap_or_else(|| panic!("no {name} in\n{text}")).parse().unwrap()
    }

    /// Restart with the same configuration after `process.kill()`.
    pub fn restart(&mut self) {
        self.process = Self::spawn(self.make, &self.dir, &self.name, &self.config, self.rest);
    }
}

/// A master and its mounted nodes.
pub struct Cluster {
    /// Declared before the master, so that they are dropped first.
    pub nodes: Vec<Node>,
    pub master: Master,
    pub how: Metadata,
    /// Logs and files of the test.
    pub dir: tempfile::TempDir,
}

impl Cluster {
    /// Start a master and `nodes` nodes that contribute `segment` bytes each.
    pub fn start(master: Make, node: Make, how: Metadata, nodes: usize, segment: u64) -> Self {
        Self::with_flags(master, node, how, nodes, segment, &[])
    }

    /// Start a cluster with additional flags for the master.
    pub fn with_flags(master: Make, node: Make, how: Metadata, nodes: usize, segment: u64, flags: &[&str]) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let master = Master::start(master, dir.path(), flags);
        let nodes: Vec<Node> =
            (0..nodes).map(|i| Node::start(node, dir.path(), &format!("node{i}"), &master, how, segment, 0)).collect();
        master.wait_segments(nodes.len());
        Self { nodes, master, how, dir }
    }

    /// A real Python client of this cluster. With `segment` 0 it is a pure client.
    pub fn client(&self, name: &str, segment: u64, local: u64) -> Client {
        Client::start(name, self.dir.path(), &self.master, self.how, segment, local)
    }
}

/// A real Python client that runs commands from stdin (tests/peers/client_worker.py).
pub struct Client {
    pub dialogue: Dialogue,
}

impl Client {
    /// Start a client and wait until its setup succeeds.
    pub fn start(name: &str, dir: &Path, master: &Master, how: Metadata, segment: u64, local: u64) -> Self {
        Self::start_with(name, dir, master, how, [segment, local], None)
    }

    /// Start a client that computes and verifies checksums, or not. `sizes` are those of its
    /// segment and of its local buffer.
    pub fn start_with(
        name: &str,
        dir: &Path,
        master: &Master,
        how: Metadata,
        [segment, local]: [u64; 2],
        checksums: Option<bool>,
    ) -> Self {
        let mut c = wheel().script("client_worker.py");
        if let Some(checksums) = checksums {
            c.env("MOONCAKE_STORE_CHECKSUM", if checksums { "1" } else { "0" });
        }
        c.args([&master.address(), &master.metadata(how), "127.0.0.1", &segment.to_string(), &local.to_string()]);
        let mut dialogue = Dialogue::start(name, c, dir);
        let answer = dialogue.receive(PATIENCE);
        assert_eq!(answer["setup"], 0, "{name}: setup");
        Self { dialogue }
    }

    /// Send `command` and return its answer.
    pub fn ask(&mut self, command: Value) -> Value {
        self.dialogue.send(&command.to_string());
        self.dialogue.receive(Duration::from_secs(75))
    }

    /// Put the object `seed`. Returns the wheel's return code.
    pub fn put(&mut self, key: &str, seed: u64, size: usize) -> i64 {
        self.ask(json!({"do": "put", "key": key, "seed": seed, "size": size}))["rc"].as_i64().unwrap()
    }

    /// Get `key` and compare it with the object `seed`. Returns the size, and whether all bytes are
    /// equal.
    pub fn get(&mut self, key: &str, seed: u64, size: usize) -> (u64, bool) {
        let a = self.ask(json!({"do": "get", "key": key, "seed": seed, "size": size}));
        (a["size"].as_u64().unwrap(), a["same"].as_bool().unwrap())
    }

    /// Call `is_exist`. Returns 1, 0 or an error code.
    pub fn exist(&mut self, key: &str) -> i64 {
        self.ask(json!({"do": "exist", "key": key}))["rc"].as_i64().unwrap()
    }

    /// Close the client and wait until its process has ended.
    pub fn close(mut self) {
        assert_eq!(self.ask(json!({"do": "close"}))["rc"], 0);
        assert!(self.dialogue.process().ended(PATIENCE).success());
    }
}
