//! `mcctl init`: writes a deployment file from flags, or from answers to interactive questions.

mod question;

use std::fs;
use std::io::{self, BufRead, IsTerminal, Write};
use std::path::{Path, PathBuf};

use question::{
    AnswerError, Prompter, count, hosts, hosts_at_least, hosts_or_none, hosts_per_server, list, one_of, optional,
    required,
};

use crate::commands::error::{Exit, Failure, Outcome};
use crate::commands::{args, extra_flags, output};
use crate::engine::deploy::{
    ComputeDevice, DeploySize, DeploySizeError, DeploymentSpec, FileFormat, HighAvailability, HugePageSize,
    MetadataKind, Platform, Programs, ServingMode, SizeNote, StoreProtocol, commented, plan_processes,
};

/// Write a deployment file for `mcctl render`
#[derive(Clone, Debug, Default, PartialEq, clap::Args)]
#[command(
    after_help = "In an interactive terminal, init without --model prompts for the most important values. All other values have defaults.\n\
    Sizes: 16gb = 16g = 16Gi = 16GiB = 16 x 1024^3 bytes; a number without a unit is in bytes."
)]
pub struct Args {
    /// Write to this file instead of stdout; .toml or .yaml
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Overwrite an existing file
    #[arg(long, requires = "out")]
    force: bool,
    /// File format: toml or yaml [default: determined by the file extension, otherwise toml]
    #[arg(long, value_name = "FORMAT", value_parser = ["toml", "yaml"])]
    format: Option<String>,
    /// Model directory, or model name on the Hugging Face Hub
    #[arg(long, value_name = "PATH")]
    model: Option<String>,
    /// Serving mode: single, distributed or pd (prefill-decode disaggregation)
    #[arg(long, value_name = "MODE", value_parser = ["single", "distributed", "pd"])]
    mode: Option<String>,
    /// Prefix for unit, container and object names
    #[arg(long)]
    name: Option<String>,
    /// Programs for the master and store nodes: mcctl or upstream [default: mcctl; upstream with --ssd]
    #[arg(long, value_name = "NAME", value_parser = ["mcctl", "upstream"])]
    programs: Option<String>,
    /// Tensor parallel size of each server
    #[arg(long = "tp-size", alias = "tp", value_name = "N")]
    tp: Option<u64>,
    /// Pipeline parallel size of each server
    #[arg(long = "pp-size", alias = "pp", value_name = "N")]
    pp: Option<u64>,
    /// L2 per rank in GB (10^9 bytes), the same as SGLang's --hicache-size
    #[arg(long = "hicache-size", alias = "hicache-size-gb", value_name = "GB", value_parser = args::gigabytes)]
    hicache_size_gb: Option<u64>,
    /// Memory that each server contributes to the store, e.g. 16GiB; 0 for none
    #[arg(long, value_name = "SIZE", value_parser = size)]
    segment: Option<String>,
    /// Master host; with --etcd, several hosts
    #[arg(long, value_name = "HOSTS", value_delimiter = ',')]
    master: Vec<String>,
    /// Directory for the log and snapshots of each mcctl master; '' for none: the state is in memory only [default: /var/lib/mcctl/NAME-master]
    #[arg(long, value_name = "DIR")]
    data_dir: Option<String>,
    /// Server hosts (with --mode pd: prefill server hosts)
    #[arg(long, value_name = "HOSTS", value_delimiter = ',')]
    hosts: Vec<String>,
    /// Decode server hosts
    #[arg(long, value_name = "HOSTS", value_delimiter = ',')]
    decode: Vec<String>,
    /// Router host
    #[arg(long, value_name = "HOST")]
    router: Option<String>,
    /// Number of hosts per distributed server
    #[arg(long, value_name = "N")]
    nnodes: Option<u32>,
    /// Storage-only node hosts
    #[arg(long, value_name = "HOSTS", value_delimiter = ',')]
    stores: Vec<String>,
    /// Memory that each storage-only node contributes
    #[arg(long, value_name = "SIZE", requires = "stores", value_parser = size)]
    store_segment: Option<String>,
    /// NUMA nodes to use on storage-only hosts; one process per NUMA node
    #[arg(long, value_name = "NODES", value_delimiter = ',', requires = "stores")]
    numa: Vec<u32>,
    /// SSD tier directory on storage-only hosts
    #[arg(long, value_name = "DIR", requires = "stores")]
    ssd: Option<String>,
    /// Transport between engines: tcp or rdma
    #[arg(long, value_name = "PROTOCOL", value_parser = ["tcp", "rdma"])]
    protocol: Option<String>,
    /// RDMA devices (use mcctl devices to list them)
    #[arg(long, value_name = "DEVICES", value_delimiter = ',')]
    devices: Vec<String>,
    /// Huge page size: none, 2MiB or 1GiB
    #[arg(long, value_name = "SIZE", value_parser = ["none", "2MiB", "1GiB"])]
    hugepages: Option<String>,
    /// Metadata mode of the transfer engines: p2p or http
    #[arg(long, value_name = "KIND", value_parser = ["p2p", "http"])]
    metadata: Option<String>,
    /// etcd members as HOST:PORT; required for several masters
    #[arg(long, value_name = "MEMBERS", value_delimiter = ',')]
    etcd: Vec<String>,
    /// SGLang's compute device: cuda or cpu
    #[arg(long, value_name = "DEVICE", value_parser = ["cuda", "cpu"])]
    device: Option<String>,
    /// mcctl image, including its tag (for container output formats)
    #[arg(long, value_name = "IMAGE")]
    mcctl_image: Option<String>,
}

/// Checks a size and returns it as written, so that an ambiguous size can be reported.
fn size(text: &str) -> Result<String, DeploySizeError> {
    text.parse::<DeploySize>().map(|_| text.to_owned())
}

impl Args {
    /// Runs the command.
    ///
    /// # Errors
    /// A required value is missing and stdin is not a terminal, the values contradict each other, or the file exists.
    pub fn run(mut self) -> Outcome {
        self.file_format()?;
        if let Some(path) = self.out.as_deref().filter(|path| !self.force && path.symlink_metadata().is_ok()) {
            return Err(already_exists(path));
        }
        let spec = if question::is_interactive() && self.model.is_none() {
            let file = self.default_file(io::stdout().is_terminal());
            self.ask(&mut Prompter { input: io::stdin().lock(), output: io::stderr() }, file)?
        } else {
            self.choose_programs();
            self.checked_spec()?
        };
        let format = self.file_format()?;
        let text = commented(&spec, format);
        let Some(path) = &self.out else {
            output::data(text)?;
            return Ok(Exit::Done);
        };
        let mut options = fs::OpenOptions::new();
        let options = match self.force {
            true => options.write(true).create(true).truncate(true),
            false => options.write(true).create_new(true),
        };
        options.open(path).and_then(|mut file| file.write_all(text.as_bytes())).map_err(|error| {
            match error.kind() {
                io::ErrorKind::AlreadyExists => already_exists(path),
                _ => Failure::host(format!("cannot write {}", path.display())).found(error.to_string()),
            }
        })?;
        output::say(format!("wrote {0}\nnext: mcctl render systemd {0} --out units", path.display()));
        Ok(Exit::Done)
    }

    fn file_format(&self) -> Result<FileFormat, Failure> {
        let of_file = self.out.as_deref().and_then(format_of);
        let named = self.format.as_deref().and_then(FileFormat::of_extension);
        if let (Some(path), None) = (&self.out, of_file) {
            let what = format!("{} is not a valid deployment file name", path.display());
            return Err(Failure::usage(what).next("use the extension .toml, .yaml or .yml"));
        }
        match (named, of_file) {
            (Some(named), Some(of_file)) if named != of_file => {
                Err(Failure::usage("--format contradicts the extension of --out"))
            }
            (named, of_file) => Ok(named.or(of_file).unwrap_or(FileFormat::Toml)),
        }
    }

    /// A requested feature that mcctl's programs do not support.
    fn unsupported_by_mcctl(&self) -> Option<&'static str> {
        let has_ssd = !self.ssd.as_deref().unwrap_or_default().is_empty();
        has_ssd.then_some("an SSD tier")
    }

    /// Selects upstream's programs if mcctl's programs do not support a requested feature, unless `--programs` is set.
    fn choose_programs(&mut self) {
        if let (None, Some(feature)) = (&self.programs, self.unsupported_by_mcctl()) {
            output::say(format!(
                "note: mcctl does not support {feature} yet, so the file uses upstream's master and store nodes \
                 (programs = \"upstream\")"
            ));
            self.programs = Some("upstream".to_owned());
        }
    }

    /// The default output file that the prompt suggests: `-` (stdout) if stdout is redirected.
    fn default_file(&self, stdout_is_terminal: bool) -> &'static str {
        match (stdout_is_terminal, self.format.as_deref()) {
            (false, _) => "-",
            (true, Some("yaml")) => "deployment.yaml",
            (true, _) => "deployment.toml",
        }
    }

    /// Asks for the most important values that are not set, and returns the resulting deployment. If it is invalid, asks again with the
    /// previous answers as defaults, until nothing is changed.
    fn ask<R: BufRead, W: Write>(
        &mut self,
        prompt: &mut Prompter<R, W>,
        default_file: &str,
    ) -> Result<DeploymentSpec, Failure> {
        let _ = writeln!(prompt.output, "Press Enter to accept the default in brackets.");
        let flags = self.clone();
        let spec = loop {
            let mut round = flags.clone();
            round.ask_values(prompt, self)?;
            let is_unchanged = round == *self;
            *self = round;
            match self.checked_spec() {
                Ok(spec) => break spec,
                Err(failure) if is_unchanged => return Err(failure),
                Err(failure) => {
                    let _ = writeln!(prompt.output, "\n{}\nChange an answer, or press Enter to keep it.", failure.what);
                }
            }
        };
        if self.out.is_none() {
            let answer = |text: &str| out_file(text, self.force, self.format.as_deref());
            self.out = prompt.ask("Output file (- for stdout)", default_file, answer)?;
        }
        Ok(spec)
    }

    /// Asks for each value that is not set. The answers in `last` are the defaults.
    fn ask_values<R: BufRead, W: Write>(&mut self, prompt: &mut Prompter<R, W>, last: &Args) -> Result<(), Failure> {
        let text = |answer: &Option<String>, default: &str| answer.clone().unwrap_or_else(|| default.to_owned());
        let number = |answer: Option<u64>, default: u64| answer.unwrap_or(default).to_string();
        let items = |answer: &[String], default: &str| match answer.is_empty() {
            true => default.to_owned(),
            false => answer.join(","),
        };
        let model = text(&last.model, "");
        self.model = Some(prompt.ask("Model (directory, or name on the Hugging Face Hub)", &model, required)?);
        if self.mode.is_none() {
            let modes = one_of(&["single", "distributed", "pd"]);
            self.mode =
                Some(prompt.ask("Serving mode (single, distributed, pd)", &text(&last.mode, "single"), modes)?);
        }
        let is_distributed = self.mode.as_deref() == Some("distributed");
        if self.tp.is_none() {
            self.tp = Some(prompt.ask("Tensor parallel size", &number(last.tp, 1), count)?);
        }
        if self.hicache_size_gb.is_none() {
            let default = number(last.hicache_size_gb, 32);
            self.hicache_size_gb = Some(prompt.ask("L2 per rank in GB (10^9 bytes)", &default, count)?);
        }
        if self.master.is_empty() {
            let default = items(&last.master, "127.0.0.1");
            self.master = prompt.ask("Master host (with etcd: several, comma-separated)", &default, hosts)?;
        }
        if self.master.len() > 1 && self.etcd.is_empty() {
            self.etcd = prompt.ask("etcd members (HOST:PORT, comma-separated)", &items(&last.etcd, ""), list)?;
        }
        if self.hosts.is_empty() {
            let default = if last.hosts == last.master { &self.master } else { &last.hosts };
            let needed = if is_distributed { 2 } else { 1 };
            let default = if default.len() < needed { String::new() } else { default.join(",") };
            self.hosts = prompt.ask("Server hosts (comma-separated)", &default, hosts_at_least(needed))?;
        }
        if self.mode.as_deref() == Some("pd") && self.decode.is_empty() {
            let default = if last.decode == last.hosts { &self.hosts } else { &last.decode };
            self.decode =
                prompt.ask("Decode hosts (comma-separated)", &items(default, &self.hosts.join(",")), hosts)?;
        }
        // With a single host from --hosts, no answer is valid.
        if is_distributed && self.nnodes.is_none() && self.hosts.len() > 1 {
            let parse = hosts_per_server(self.hosts.len());
            let default = last.nnodes.map(|nnodes| nnodes.to_string()).filter(|text| parse(text).is_ok());
            let default = default.unwrap_or_else(|| self.hosts.len().to_string());
            self.nnodes = Some(prompt.ask("Hosts per server", &default, parse)?);
        }
        if self.stores.is_empty() {
            let default = items(&last.stores, "-");
            self.stores = prompt.ask("Storage-only hosts (comma-separated, - for none)", &default, hosts_or_none)?;
        }
        if !self.stores.is_empty() && self.ssd.is_none() {
            let default = text(&last.ssd, "-");
            let folder = prompt.ask("SSD tier directory on these hosts (- for none)", &default, optional)?;
            self.ssd = Some(folder).filter(|folder| !folder.is_empty());
        }
        if let (None, Some(feature)) = (&self.programs, self.unsupported_by_mcctl()) {
            let question = format!("mcctl does not support {feature} yet. Use upstream's programs? (yes, no)");
            if prompt.ask(&question, "yes", one_of(&["yes", "no"]))? == "yes" {
                self.programs = Some("upstream".to_owned());
            } else {
                self.ssd = None;
                self.etcd.clear();
                self.master.truncate(1);
            }
        }
        if self.protocol.is_none() {
            let default = text(&last.protocol, "tcp");
            self.protocol = Some(prompt.ask("Transport (tcp, rdma)", &default, one_of(&["tcp", "rdma"]))?);
        }
        if self.protocol.as_deref() == Some("rdma") && self.devices.is_empty() {
            self.devices = prompt.ask("RDMA devices (comma-separated)", &items(&last.devices, "mlx5_0"), list)?;
        }
        Ok(())
    }

    /// Returns the deployment after all checks.
    fn checked_spec(&self) -> Result<DeploymentSpec, Failure> {
        let spec = self.spec()?;
        extra_flags::check(&spec).map_err(|error| Failure::usage(error.to_string()))?;
        plan_processes(&spec, Platform::Hosts).map_err(|error| Failure::usage(error.to_string()))?;
        Ok(spec)
    }

    fn spec(&self) -> Result<DeploymentSpec, Failure> {
        let given = self.clone();
        let mut spec = DeploymentSpec::default();
        let Some(model) = given.model.filter(|model| !model.is_empty()) else {
            return Err(Failure::usage("--model is required")
                .next("use mcctl init --model PATH, or run mcctl init in a terminal to answer questions"));
        };
        spec.model.path = model;
        spec.name = given.name.unwrap_or(spec.name);
        spec.model.tp = given.tp.unwrap_or(spec.model.tp);
        spec.model.pp = given.pp.unwrap_or(spec.model.pp);
        spec.model.hicache_size_gb = given.hicache_size_gb;
        spec.segment.engines = size_or("--segment", given.segment, spec.segment.engines);
        spec.programs =
            choice("--programs", given.programs, &[("mcctl", Programs::Mcctl), ("upstream", Programs::Upstream)])?;
        spec.serving.mode = choice(
            "--mode",
            given.mode,
            &[("single", ServingMode::Single), ("distributed", ServingMode::Distributed), ("pd", ServingMode::Pd)],
        )?;
        spec.serving.device =
            choice("--device", given.device, &[("cuda", ComputeDevice::Cuda), ("cpu", ComputeDevice::Cpu)])?;
        spec.transfer.protocol =
            choice("--protocol", given.protocol, &[("tcp", StoreProtocol::Tcp), ("rdma", StoreProtocol::Rdma)])?;
        spec.metadata.kind =
            choice("--metadata", given.metadata, &[("p2p", MetadataKind::P2p), ("http", MetadataKind::Http)])?;
        spec.hugepages.size = choice(
            "--hugepages",
            given.hugepages,
            &[("none", HugePageSize::None), ("2MiB", HugePageSize::Mib2), ("1GiB", HugePageSize::Gib1)],
        )?;
        spec.transfer.devices = given.devices;
        if !given.master.is_empty() {
            spec.master.hosts = given.master;
        }
        // The file names the directory even if it is the default, so that an operator finds it. For several masters, it depends on the format.
        spec.master.data_dir = match (spec.programs, given.data_dir) {
            (Programs::Mcctl, None) if given.etcd.is_empty() => Some(spec.default_data_dir()),
            (_, path) => path,
        };
        if !given.etcd.is_empty() {
            let replicas = u32::try_from(spec.master.hosts.len()).unwrap_or(u32::MAX);
            // etcd:// addresses have semicolons.
            let etcd = given.etcd.iter().flat_map(|members| members.split(';')).map(str::to_owned).collect();
            spec.master.ha = Some(HighAvailability { etcd, replicas, ..HighAvailability::default() });
        }
        // Without --hosts, the servers run on the master's host.
        let master_host = spec.master.hosts.first().cloned().into_iter().collect::<Vec<_>>();
        let hosts = if given.hosts.is_empty() { master_host.clone() } else { given.hosts };
        let decode = if given.decode.is_empty() { hosts.clone() } else { given.decode.clone() };
        let count = |hosts: &[String]| u32::try_from(hosts.len()).unwrap_or(u32::MAX).max(1);
        let serving = &mut spec.serving;
        serving.nnodes = match (serving.mode, given.nnodes) {
            (ServingMode::Distributed, nnodes) => nnodes.unwrap_or(count(&hosts)),
            (_, nnodes) => nnodes.unwrap_or(1),
        };
        if serving.mode != ServingMode::Pd && (!given.decode.is_empty() || given.router.is_some()) {
            return Err(
                Failure::usage("--decode and --router require --mode pd").next("add --mode pd, or remove these flags")
            );
        }
        if serving.mode == ServingMode::Pd {
            serving.router.host = given.router.or(master_host.first().cloned()).unwrap_or_default();
            serving.prefill.replicas = count(&hosts);
            serving.decode.replicas = count(&decode);
            (serving.prefill.hosts, serving.decode.hosts) = (hosts, decode);
        } else {
            serving.replicas = (count(&hosts) / serving.nnodes.max(1)).max(1);
            serving.hosts = hosts;
        }
        spec.nodes.hosts = given.stores;
        spec.nodes.segment = size_or("--store-segment", given.store_segment, spec.nodes.segment);
        spec.nodes.numa = given.numa;
        spec.nodes.ssd_path = given.ssd.unwrap_or_default();
        spec.images.mcctl = given.mcctl_image.unwrap_or_default();
        Ok(spec)
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

fn format_of(path: &Path) -> Option<FileFormat> {
    FileFormat::of_extension(path.extension()?.to_str()?)
}

fn already_exists(path: &Path) -> Failure {
    Failure::usage(format!("{} already exists", path.display())).next("use --force to overwrite it")
}

/// Parses the answer for the output file, whose extension must match `format`. `None` means stdout.
fn out_file(text: &str, force: bool, format: Option<&str>) -> Result<Option<PathBuf>, AnswerError> {
    if text == "-" {
        return Ok(None);
    }
    let path = PathBuf::from(text);
    let Some(of_file) = format_of(&path) else { return Err(AnswerError::NotADeploymentFile) };
    if let Some(format) = format.filter(|format| FileFormat::of_extension(format) != Some(of_file)) {
        return Err(AnswerError::OtherFormat(format.to_owned()));
    }
    match path.symlink_metadata() {
        Ok(_) if !force => Err(AnswerError::Exists(text.to_owned())),
        _ => Ok(Some(path)),
    }
}

/// The value named `text` in `known`, or the first value if `text` is `None`.
fn choice<T: Copy>(flag: &str, text: Option<String>, known: &[(&str, T)]) -> Result<T, Failure> {
    let Some(text) = text else { return Ok(known[0].1) };
    let found = known.iter().find(|(name, _)| *name == text).map(|(_, value)| *value);
    found.ok_or_else(|| {
        let names: Vec<&str> = known.iter().map(|(name, _)| *name).collect();
        Failure::usage(format!("invalid value '{text}' for {flag}")).next(format!("use one of {}", names.join(", ")))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answered(answers: &str) -> (Args, String) {
        let mut prompter = Prompter { input: answers.as_bytes(), output: Vec::new() };
        let mut args = Args::default();
        args.ask(&mut prompter, "-").unwrap();
        (args, String::from_utf8(prompter.output).unwrap())
    }

    #[test]
    fn init_asks_again_and_asks_for_the_output_file() {
        let folder = tempfile::tempdir().unwrap();
        let (old, new) = (folder.path().join("a.toml"), folder.path().join("b.toml"));
        fs::write(&old, "").unwrap();
        let answers = format!("m\ntriple\n\nx\n2\n\n\n\n\ntcp\nx.ini\n{}\n{}\n", old.display(), new.display());
        let (args, text) = answered(&answers);
        assert_eq!((args.tp, args.mode.as_deref(), args.out.as_deref()), (Some(2), Some("single"), Some(&*new)));
        assert_eq!(text.matches("Output file").count(), 3, "{text}");
        assert_eq!(args.spec().unwrap().programs, Programs::Mcctl);
    }

    #[test]
    fn a_distributed_server_needs_two_hosts() {
        let (args, text) = answered("m\ndistributed\n2\n\na\n\na\na,b,c,d\n1\n3\n2\n\n\n\n");
        assert_eq!((args.nnodes, args.hosts.len()), (Some(2), 4));
        assert_eq!(text.matches("Server hosts (comma-separated): ").count(), 3, "{text}");
        assert_eq!(text.matches("Hosts per server [4]: ").count(), 3, "{text}");
    }

    #[test]
    fn invalid_answers_are_the_defaults_of_a_second_round() {
        let (args, text) = answered("m\n\n8\n\n\na\n\n\n\n\n\n\nb\n\n\n\n\n");
        assert!(text.contains("loopback") && text.contains("Tensor parallel size [8]"), "{text}");
        assert_eq!((args.tp, args.master, args.hosts), (Some(8), vec!["b".to_owned()], vec!["a".to_owned()]));
        let unchanged = format!("m\n\n8\n\n\na{}", "\n".repeat(20));
        let mut prompter = Prompter { input: unchanged.as_bytes(), output: Vec::new() };
        assert_eq!(Args::default().ask(&mut prompter, "-").unwrap_err().exit, Exit::Usage);
        assert!(!prompter.input.is_empty());
    }

    #[test]
    fn the_default_output_file_is_stdout_if_stdout_is_redirected() {
        let yaml = Args { format: Some("yaml".to_owned()), ..Args::default() };
        assert_eq!(["-", "deployment.toml"], [false, true].map(|terminal| Args::default().default_file(terminal)));
        assert_eq!(["-", "deployment.yaml"], [false, true].map(|terminal| yaml.default_file(terminal)));
        assert!(matches!(out_file("x.toml", false, Some("yaml")), Err(AnswerError::OtherFormat(_))));
        assert_eq!(answered("m\n\n\n\n\n\n\n\n\n").0.out, None);
    }

    #[test]
    fn init_offers_upstream_for_unsupported_features() {
        let answers = "m\n\n\n\n10.0.0.1\n\n10.0.0.2\n/ssd\nyes\n\n-\n";
        let (mut args, _) = answered(answers);
        args.choose_programs();
        assert_eq!(args.spec().unwrap().programs, Programs::Upstream);
        let (args, _) = answered(&answers.replace("yes", "no"));
        assert_eq!((args.ssd.clone(), args.spec().unwrap().programs), (None, Programs::Mcctl));
    }
}
