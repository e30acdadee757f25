//! The deployment that the flags of `mcctl init` describe.

use crate::commands::cli::deployment_file;
use crate::commands::cli::error::Failure;
use crate::commands::cli::output;
use crate::commands::init::Args;
use crate::engine::base::addr::host_is_loopback;
use crate::engine::deploy::{
    ComputeDevice, DeploySize, DeploymentSpec, HighAvailability, HugePageSize, MetadataKind, Programs, ServingMode,
    SizeNote, StoreProtocol,
};

impl Args {
    /// The deployment: that of `--from` or the default one, with the values of the flags.
    ///
    /// # Errors
    /// No model is set, or flags contradict each other.
    pub(super) fn spec(&self) -> Result<DeploymentSpec, Failure> {
        let mut spec = match &self.from {
            Some(path) => deployment_file::read(path, &[])?,
            None => DeploymentSpec { programs: Programs::Mcctl, ..DeploymentSpec::default() },
        };
        let given = self.clone();
        if let Some(model) = given.model.filter(|model| !model.is_empty()) {
            spec.model.path = model;
        }
        if spec.model.path.is_empty() {
            return Err(Failure::usage("--model is required")
                .next("use mcctl init --model PATH, or run mcctl init in a terminal to answer questions"));
        }
        spec.name = given.name.unwrap_or(spec.name);
        spec.model.tp = given.tp.unwrap_or(spec.model.tp);
        spec.model.pp = given.pp.unwrap_or(spec.model.pp);
        if given.hicache_size_gb.is_some() {
            spec.model.hicache_size_gb = given.hicache_size_gb;
            spec.model.hicache_ratio = None;
        }
        spec.segment.engines = size_or("--segment-size", given.segment, spec.segment.engines);
        self.choose_values(&mut spec)?;
        if !self.devices.is_empty() {
            spec.transfer.devices.clone_from(&self.devices);
        }
        self.place_masters(&mut spec);
        self.place_servers(&mut spec)?;
        if !self.stores.is_empty() {
            spec.nodes.hosts.clone_from(&self.stores);
        }
        spec.nodes.segment = size_or("--store-segment-size", given.store_segment, spec.nodes.segment);
        if !given.numa.is_empty() {
            spec.nodes.numa = given.numa;
        }
        spec.nodes.ssd_path = given.ssd.unwrap_or(spec.nodes.ssd_path);
        spec.images.mcctl = given.mcctl_image.unwrap_or(spec.images.mcctl);
        let host = &mut spec.host;
        host.memory = given.host_memory.map(|text| size_or("--host-memory", Some(text), DeploySize(0))).or(host.memory);
        let pages = given.host_hugepages.map(|text| size_or("--host-hugepages", Some(text), DeploySize(0)));
        host.hugepages = pages.or(host.hugepages);
        let access = &mut spec.access;
        if !given.allow_cidr.is_empty() {
            access.allow_cidr = given.allow_cidr;
        }
        for (value, key) in [
            (given.token_file, &mut access.token_file),
            (given.tls_cert, &mut access.tls_cert),
            (given.tls_key, &mut access.tls_key),
        ] {
            if let Some(value) = value {
                *key = value;
            }
        }
        Ok(spec)
    }

    /// Sets the values that are words.
    fn choose_values(&self, spec: &mut DeploymentSpec) -> Result<(), Failure> {
        choice(
            "--programs",
            self.programs.as_deref(),
            &mut spec.programs,
            &[("mcctl", Programs::Mcctl), ("upstream", Programs::Upstream)],
        )?;
        choice(
            "--mode",
            self.mode.as_deref(),
            &mut spec.serving.mode,
            &[("single", ServingMode::Single), ("distributed", ServingMode::Distributed), ("pd", ServingMode::Pd)],
        )?;
        let devices = [("cuda", ComputeDevice::Cuda), ("cpu", ComputeDevice::Cpu)];
        choice("--device", self.device.as_deref(), &mut spec.serving.device, &devices)?;
        let protocols = [("tcp", StoreProtocol::Tcp), ("rdma", StoreProtocol::Rdma)];
        choice("--protocol", self.protocol.as_deref(), &mut spec.transfer.protocol, &protocols)?;
        let kinds = [("p2p", MetadataKind::P2p), ("http", MetadataKind::Http)];
        choice("--metadata", self.metadata.as_deref(), &mut spec.metadata.kind, &kinds)?;
        choice(
            "--hugepages",
            self.hugepages.as_deref(),
            &mut spec.hugepages.size,
            &[("none", HugePageSize::None), ("2MiB", HugePageSize::Mib2), ("1GiB", HugePageSize::Gib1)],
        )
    }

    /// Sets the hosts of the masters, their election and their data directories.
    fn place_masters(&self, spec: &mut DeploymentSpec) {
        if !self.master.is_empty() {
            spec.master.hosts.clone_from(&self.master);
        } else if let Some(host) = self.hosts.first().filter(|host| !host_is_loopback(host))
            && (self.from.is_none() || spec.master.hosts.iter().all(|host| host_is_loopback(host)))
        {
            // A master on the loopback interface could not be reached from there.
            spec.master.hosts = vec![host.clone()];
        }
        // The file names the directory even if it is the default, so that an operator finds it. For
        // several masters, it depends on the format.
        let default = self.from.is_none() && spec.programs == Programs::Mcctl && self.etcd.is_empty();
        let own = default.then(|| spec.default_data_dir());
        spec.master.data_dir = self.data_dir.clone().or(own).or(spec.master.data_dir.take());
        if !self.etcd.is_empty() {
            let replicas = u32::try_from(spec.master.hosts.len()).unwrap_or(u32::MAX);
            // etcd:// addresses have semicolons.
            let etcd = self.etcd.iter().flat_map(|members| members.split(';')).map(str::to_owned).collect();
            spec.master.ha = Some(HighAvailability { etcd, replicas, ..spec.master.ha.take().unwrap_or_default() });
        }
    }

    /// Sets the hosts, numbers and sizes of the servers. Without `--hosts`, they run on the
    /// master's host.
    fn place_servers(&self, spec: &mut DeploymentSpec) -> Result<(), Failure> {
        let master_host = spec.master.hosts.first().cloned().into_iter().collect::<Vec<_>>();
        let is_kept = self.from.is_some() && self.hosts.is_empty();
        let count = |hosts: &[String]| u32::try_from(hosts.len()).unwrap_or(u32::MAX).max(1);
        let serving = &mut spec.serving;
        if serving.mode != ServingMode::Pd && (!self.decode.is_empty() || self.router.is_some()) {
            return Err(
                Failure::usage("--decode and --router require --mode pd").next("add --mode pd, or remove these flags")
            );
        }
        if serving.mode != ServingMode::Pd && (self.prefill_tp.is_some() || self.decode_tp.is_some()) {
            return Err(Failure::usage("--prefill-tp and --decode-tp require --mode pd")
                .next("add --mode pd, or use --tp-size"));
        }
        serving.prefill.tp = self.prefill_tp.or(serving.prefill.tp);
        serving.decode.tp = self.decode_tp.or(serving.decode.tp);
        let hosts = if self.hosts.is_empty() { master_host.clone() } else { self.hosts.clone() };
        if !is_kept || self.nnodes.is_some() {
            serving.nnodes = match (serving.mode, self.nnodes) {
                (ServingMode::Distributed, nnodes) => nnodes.unwrap_or(count(&hosts)),
                (_, nnodes) => nnodes.unwrap_or(1),
            };
        }
        if serving.mode == ServingMode::Pd {
            let decode = if self.decode.is_empty() { hosts.clone() } else { self.decode.clone() };
            if !is_kept {
                serving.router.host = master_host.first().cloned().unwrap_or_default();
                serving.prefill.replicas = count(&hosts);
                serving.prefill.hosts = hosts;
            }
            if !is_kept || !self.decode.is_empty() {
                serving.decode.replicas = count(&decode);
                serving.decode.hosts = decode;
            }
            if let Some(router) = &self.router {
                serving.router.host.clone_from(router);
            }
        } else if !is_kept {
            serving.replicas = (count(&hosts) / serving.nnodes.max(1)).max(1);
            serving.hosts = hosts;
        }
        Ok(())
    }
}

/// The size from `flag`, or `default`. Reports an ambiguous unit on stderr.
fn size_or(flag: &str, text: Option<String>, default: DeploySize) -> DeploySize {
    let Some(text) = text else { return default };
    if let Some(note) = SizeNote::of(flag, &text) {
        output::say(format!("note: {note}"));
    }
    text.parse().unwrap_or(default)
}

/// Sets `value` to the one named `text` in `known`.
fn choice<T: Copy>(flag: &str, text: Option<&str>, value: &mut T, known: &[(&str, T)]) -> Result<(), Failure> {
    let Some(text) = text else { return Ok(()) };
    let Some((_, found)) = known.iter().find(|(name, _)| *name == text) else {
        let names: Vec<&str> = known.iter().map(|(name, _)| *name).collect();
        return Err(Failure::usage(format!("invalid value '{text}' for {flag}"))
            .next(format!("use one of {}", names.join(", "))));
    };
    *value = *found;
    Ok(())
}
