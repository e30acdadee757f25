//! `mcctl init`: a deployment file to begin with, from flags, or from questions where somebody can answer.

mod question;

use std::fs;
use std::io::{self, Write};
use std::path::PathBuf;

use crate::commands::error::{Exit, Failure, Outcome};
use crate::commands::{output, render};
use crate::engine::deploy::{
    Deployment, Device, Format, Ground, HighAvailability, HugePageSize, MetadataKind, Mode, Programs, Protocol, Size,
    commented, launches,
};

/// What the file says. What is not given is asked for on a terminal, else left at its default.
#[derive(Clone, Debug, Default, clap::Args)]
#[command(after_help = "mcctl init --model Qwen/Qwen3-32B --tp 4 --hicache-size-gb 64 --out demo.toml\n\
    mcctl render systemd demo.toml --out units")]
pub struct Args {
    /// Write to this file instead of to stdout; .toml or .yaml
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Overwrite it
    #[arg(long, requires = "out")]
    force: bool,
    /// toml or yaml [default: by the file's ending, else toml]
    #[arg(long, value_name = "FORMAT", value_parser = ["toml", "yaml"])]
    format: Option<String>,
    /// Folder of the model, or its name on the hub
    #[arg(long, value_name = "PATH")]
    model: Option<String>,
    /// How serving is arranged: single, distributed or pd
    #[arg(long, value_name = "MODE", value_parser = ["single", "distributed", "pd"])]
    mode: Option<String>,
    /// What names begin with
    #[arg(long)]
    name: Option<String>,
    /// Whose master and store nodes: upstream or mcctl
    #[arg(long, value_name = "WHOSE", value_parser = ["upstream", "mcctl"])]
    programs: Option<String>,
    /// Tensor parallel size
    #[arg(long, value_name = "N")]
    tp: Option<u64>,
    /// Pipeline parallel size
    #[arg(long, value_name = "N")]
    pp: Option<u64>,
    /// L2 of each rank, decimal GB
    #[arg(long, value_name = "GB")]
    hicache_size_gb: Option<u64>,
    /// What one server lends to the store, e.g. 16GiB; 0 for nothing
    #[arg(long, value_name = "SIZE")]
    segment: Option<Size>,
    /// Host of the master; several with --etcd
    #[arg(long, value_name = "HOSTS", value_delimiter = ',')]
    master: Vec<String>,
    /// Hosts of the servers (of the prefill servers with pd)
    #[arg(long, value_name = "HOSTS", value_delimiter = ',')]
    hosts: Vec<String>,
    /// Hosts of the decode servers
    #[arg(long, value_name = "HOSTS", value_delimiter = ',')]
    decode: Vec<String>,
    /// Host of the router
    #[arg(long, value_name = "HOST")]
    router: Option<String>,
    /// Hosts of each distributed server
    #[arg(long, value_name = "N")]
    nnodes: Option<u32>,
    /// Hosts of processes that only lend memory
    #[arg(long, value_name = "HOSTS", value_delimiter = ',')]
    stores: Vec<String>,
    /// What each of those lends
    #[arg(long, value_name = "SIZE", requires = "stores")]
    store_segment: Option<Size>,
    /// NUMA nodes of their hosts: a process for each
    #[arg(long, value_name = "NODES", value_delimiter = ',', requires = "stores")]
    numa: Vec<u32>,
    /// Folder of their SSD tier
    #[arg(long, value_name = "DIR", requires = "stores")]
    ssd: Option<String>,
    /// tcp or rdma
    #[arg(long, value_name = "PROTOCOL", value_parser = ["tcp", "rdma"])]
    protocol: Option<String>,
    /// RDMA devices
    #[arg(long, value_name = "DEVICES", value_delimiter = ',')]
    devices: Vec<String>,
    /// Huge pages: none, 2MiB or 1GiB
    #[arg(long, value_name = "SIZE", value_parser = ["none", "2MiB", "1GiB"])]
    hugepages: Option<String>,
    /// p2p or http
    #[arg(long, value_name = "KIND", value_parser = ["p2p", "http"])]
    metadata: Option<String>,
    /// Members of etcd, HOST:PORT: several masters
    #[arg(long, value_name = "MEMBERS", value_delimiter = ',')]
    etcd: Vec<String>,
    /// cuda or cpu
    #[arg(long, value_name = "DEVICE", value_parser = ["cuda", "cpu"])]
    device: Option<String>,
    /// Your image of mcctl, with a tag
    #[arg(long, value_name = "IMAGE")]
    mcctl_image: Option<String>,
}

impl Args {
    /// Write the file.
    ///
    /// # Errors
    /// Something that is needed is not given and nobody can be asked; the values contradict each other; the file is there.
    pub fn run(mut self) -> Outcome {
        if question::can_ask() {
            self.ask()?;
        }
        let format = self.notation()?;
        let wanted = self.deployment()?;
        render::flags_exist(&wanted).map_err(Failure::usage)?;
        launches(&wanted, Ground::Hosts).map_err(|error| Failure::usage(error.to_string()))?;
        let text = commented(&wanted, format);
        let Some(path) = &self.out else {
            output::data(text)?;
            return Ok(Exit::Done);
        };
        let mut how = fs::OpenOptions::new();
        let how =
            if self.force { how.write(true).create(true).truncate(true) } else { how.write(true).create_new(true) };
        how.open(path).and_then(|mut file| file.write_all(text.as_bytes())).map_err(|error| match error.kind() {
            io::ErrorKind::AlreadyExists => {
                Failure::usage(format!("{} is there already", path.display())).next("--force overwrites it")
            }
            _ => Failure::host(format!("cannot write {}", path.display())).found(error.to_string()),
        })?;
        output::say(format!("wrote {}; next: mcctl render systemd {0}", path.display()));
        Ok(Exit::Done)
    }

    fn notation(&self) -> Result<Format, Failure> {
        let ending = self.out.as_ref().map(|path| path.extension().and_then(|e| e.to_str()).unwrap_or_default());
        let of_ending = ending.and_then(Format::of_ending);
        let named = self.format.as_deref().and_then(Format::of_ending);
        if let (Some(path), None) = (&self.out, of_ending) {
            let what = format!("{} is no name of a deployment file", path.display());
            return Err(Failure::usage(what).next("name it .toml, .yaml or .yml"));
        }
        match (named, of_ending) {
            (Some(named), Some(ending)) if named != ending => {
                Err(Failure::usage("--format and the ending of --out are not the same"))
            }
            (named, ending) => Ok(named.or(ending).unwrap_or(Format::Toml)),
        }
    }

    /// What matters most and was not given.
    fn ask(&mut self) -> Result<(), Failure> {
        if self.model.is_some() {
            return Ok(());
        }
        output::say("Empty answers take what stands in brackets.");
        self.model = Some(question::ask("Model (folder, or name on the hub)", "")?);
        if self.mode.is_none() {
            self.mode = Some(question::ask("Arrangement (single, distributed, pd)", "single")?);
        }
        if self.tp.is_none() {
            self.tp = Some(question::number("Tensor parallel size", 1)?);
        }
        if self.hicache_size_gb.is_none() {
            self.hicache_size_gb = Some(question::number("L2 of each rank, decimal GB", 32)?);
        }
        if self.master.is_empty() {
            self.master = question::list("Host of the master", "127.0.0.1")?;
        }
        if self.hosts.is_empty() {
            self.hosts = question::list("Hosts of the servers, separated by commas", &self.master.join(","))?;
        }
        if self.mode.as_deref() == Some("pd") && self.decode.is_empty() {
            self.decode = question::list("Hosts of the decode servers", &self.hosts.join(","))?;
        }
        if self.mode.as_deref() == Some("distributed") && self.nnodes.is_none() {
            let all = u64::try_from(self.hosts.len()).unwrap_or(2);
            self.nnodes = u32::try_from(question::number("Hosts of each server", all)?).ok();
        }
        if self.stores.is_empty() {
            self.stores = question::list("Hosts of processes that only lend memory (empty for none)", "")?;
        }
        if self.protocol.is_none() {
            self.protocol = Some(question::ask("Protocol (tcp, rdma)", "tcp")?);
        }
        if self.protocol.as_deref() == Some("rdma") && self.devices.is_empty() {
            self.devices = question::list("RDMA devices", "mlx5_0")?;
        }
        Ok(())
    }

    fn deployment(&self) -> Result<Deployment, Failure> {
        let given = self.clone();
        let mut wanted = Deployment::default();
        let Some(model) = given.model.filter(|model| !model.is_empty()) else {
            return Err(Failure::usage("the model is not given").next("--model PATH; on a terminal it is asked for"));
        };
        wanted.model.path = model;
        wanted.name = given.name.unwrap_or(wanted.name);
        wanted.model.tp = given.tp.unwrap_or(wanted.model.tp);
        wanted.model.pp = given.pp.unwrap_or(wanted.model.pp);
        wanted.model.hicache_size_gb = given.hicache_size_gb;
        wanted.segment.engines = given.segment.unwrap_or(wanted.segment.engines);
        wanted.programs =
            word("--programs", given.programs, &[("upstream", Programs::Upstream), ("mcctl", Programs::Mcctl)])?;
        wanted.serving.mode = word(
            "--mode",
            given.mode,
            &[("single", Mode::Single), ("distributed", Mode::Distributed), ("pd", Mode::Pd)],
        )?;
        wanted.serving.device = word("--device", given.device, &[("cuda", Device::Cuda), ("cpu", Device::Cpu)])?;
        wanted.transfer.protocol =
            word("--protocol", given.protocol, &[("tcp", Protocol::Tcp), ("rdma", Protocol::Rdma)])?;
        wanted.metadata.kind =
            word("--metadata", given.metadata, &[("p2p", MetadataKind::P2p), ("http", MetadataKind::Http)])?;
        wanted.hugepages.size = word(
            "--hugepages",
            given.hugepages,
            &[("none", HugePageSize::None), ("2MiB", HugePageSize::Mib2), ("1GiB", HugePageSize::Gib1)],
        )?;
        wanted.transfer.devices = given.devices;
        if !given.master.is_empty() {
            wanted.master.hosts = given.master;
        }
        if !given.etcd.is_empty() {
            let replicas = u32::try_from(wanted.master.hosts.len()).unwrap_or(u32::MAX);
            wanted.master.ha = Some(HighAvailability { etcd: given.etcd, replicas, ..HighAvailability::default() });
        }
        // Somebody who names no host of the servers means that of the master.
        let own = wanted.master.hosts.first().cloned().into_iter().collect::<Vec<_>>();
        let hosts = if given.hosts.is_empty() { own.clone() } else { given.hosts };
        let decode = if given.decode.is_empty() { hosts.clone() } else { given.decode.clone() };
        let count = |hosts: &[String]| u32::try_from(hosts.len()).unwrap_or(u32::MAX).max(1);
        let serving = &mut wanted.serving;
        serving.nnodes = match (serving.mode, given.nnodes) {
            (Mode::Distributed, nnodes) => nnodes.unwrap_or(count(&hosts)),
            (_, nnodes) => nnodes.unwrap_or(1),
        };
        if serving.mode != Mode::Pd && (!given.decode.is_empty() || given.router.is_some()) {
            return Err(
                Failure::usage("--decode and --router are of --mode pd").next("add --mode pd, or leave them out")
            );
        }
        if serving.mode == Mode::Pd {
            serving.router.host = given.router.or(own.first().cloned()).unwrap_or_default();
            serving.prefill.replicas = count(&hosts);
            serving.decode.replicas = count(&decode);
            (serving.prefill.hosts, serving.decode.hosts) = (hosts, decode);
        } else {
            serving.replicas = (count(&hosts) / serving.nnodes.max(1)).max(1);
            serving.hosts = hosts;
        }
        wanted.nodes.hosts = given.stores;
        wanted.nodes.segment = given.store_segment.unwrap_or(wanted.nodes.segment);
        wanted.nodes.numa = given.numa;
        wanted.nodes.ssd_path = given.ssd.unwrap_or_default();
        wanted.images.mcctl = given.mcctl_image.unwrap_or_default();
        Ok(wanted)
    }
}

/// The value that `text` names among `known`; without a text the first.
fn word<T: Copy>(flag: &str, text: Option<String>, known: &[(&str, T)]) -> Result<T, Failure> {
    let Some(text) = text else { return Ok(known[0].1) };
    let found = known.iter().find(|(name, _)| *name == text).map(|(_, value)| *value);
    found.ok_or_else(|| {
        let names: Vec<&str> = known.iter().map(|(name, _)| *name).collect();
        Failure::usage(format!("'{text}' is no value of {flag}")).next(format!("known are {}", names.join(", ")))
    })
}
