//! `mcctl init`: writes a deployment file from flags, or from answers to interactive questions.

mod question;
mod spec;

use std::io::{self, BufRead, IsTerminal, Write};
use std::path::{Path, PathBuf};

use question::{
    AnswerError, Prompter, count, hosts, hosts_at_least, hosts_or_none, hosts_per_server, list, one_of, optional,
    required, size_or_none, size_text,
};

use crate::commands::cli::args;
use crate::commands::cli::deployment_file;
use crate::commands::cli::error::{Exit, Failure, Outcome};
use crate::commands::cli::extra_flags;
use crate::commands::cli::output;
use crate::commands::cli::whole_file::{self, IfExists};
use crate::engine::deploy::render::shell_quoted;
use crate::engine::deploy::{
    DeployError, DeploySize, DeploySizeError, DeploymentSpec, FILE_BYTES_MAX, FileFormat, commented, plan_processes,
};

/// Write a deployment file for `mcctl render`
#[derive(Clone, Debug, Default, PartialEq, clap::Args)]
#[command(before_help = "out model mode tp-size hicache-size segment-size master hosts")]
#[command(before_long_help = "mcctl init --out demo.toml  # answer questions, then write a deployment file\n\
    mcctl init --model Qwen/Qwen3-32B --tp-size 4 --hicache-size 64 --out demo.toml  # write a deployment file without questions")]
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
    /// Start from this deployment file: keep its values, add a comment to every key, and apply the
    /// other flags
    #[arg(long, value_name = "FILE")]
    from: Option<PathBuf>,
    /// Model directory, or model name on the Hugging Face Hub
    #[arg(long, value_name = "PATH")]
    model: Option<String>,
    /// Serving mode: single, distributed or pd (prefill-decode disaggregation)
    #[arg(long, value_name = "MODE", value_parser = ["single", "distributed", "pd"])]
    mode: Option<String>,
    /// Prefix for unit, container and object names
    #[arg(long)]
    name: Option<String>,
    /// Programs for the master and store nodes: mcctl or upstream [default: mcctl; upstream with
    /// --ssd]
    #[arg(long, value_name = "NAME", value_parser = ["mcctl", "upstream"])]
    programs: Option<String>,
    /// Tensor parallel size (number of ranks) of each server
    #[arg(long = "tp-size", alias = "tp", value_name = "N")]
    tp: Option<u64>,
    /// Pipeline parallel size (number of ranks) of each server
    #[arg(long = "pp-size", alias = "pp", value_name = "N")]
    pp: Option<u64>,
    /// L2 per rank in GB (10^9 bytes), the same as SGLang's --hicache-size
    #[arg(long = "hicache-size", alias = "hicache-size-gb", value_name = "GB", value_parser = args::gigabytes)]
    hicache_size_gb: Option<u64>,
    /// Memory that each server contributes to the store, e.g. 16gb; 0 for none
    #[arg(long = "segment-size", alias = "segment", value_name = "SIZE", value_parser = size)]
    segment: Option<String>,
    /// Master host; with --etcd, several hosts [default: the first of --hosts, otherwise 127.0.0.1]
    #[arg(long, value_name = "HOSTS", value_delimiter = ',')]
    master: Vec<String>,
    /// Directory for the log and snapshots of each mcctl master; '' for none: the state is in
    /// memory only [default: /var/lib/mcctl/NAME-master]
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
    /// Tensor parallel size (number of ranks) of prefill servers [default: --tp-size]
    #[arg(long, value_name = "N")]
    prefill_tp: Option<u64>,
    /// Tensor parallel size (number of ranks) of decode servers [default: --tp-size]
    #[arg(long, value_name = "N")]
    decode_tp: Option<u64>,
    /// Number of hosts per distributed server
    #[arg(long, value_name = "N")]
    nnodes: Option<u32>,
    /// Storage-only node hosts
    #[arg(long, value_name = "HOSTS", value_delimiter = ',')]
    stores: Vec<String>,
    /// Memory that each storage-only node contributes, e.g. 512gb
    #[arg(long = "store-segment-size", alias = "store-segment", value_name = "SIZE", requires = "stores", value_parser = size)]
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
    /// Memory of each host, including huge pages, e.g. 1TiB, to report sizes that do not fit
    /// [default: unknown]
    #[arg(long, value_name = "SIZE", value_parser = size)]
    host_memory: Option<String>,
    /// Part of this memory that may become huge pages, e.g. 512gb [default: unknown]
    #[arg(long, value_name = "SIZE", value_parser = size)]
    host_hugepages: Option<String>,
    /// Networks whose hosts may connect to masters and store nodes, e.g. 10.0.0.0/8,127.0.0.1
    /// [default: all hosts]
    #[arg(long, value_name = "NETWORKS", value_delimiter = ',')]
    allow_cidr: Vec<String>,
    /// File with the tokens for HTTP requests to masters and store nodes, on each host
    #[arg(long, value_name = "PATH")]
    token_file: Option<String>,
    /// PEM file with the certificate of these HTTP ports, on each host
    #[arg(long, value_name = "PATH", requires = "tls_key")]
    tls_cert: Option<String>,
    /// PEM file with the key of --tls-cert, on each host
    #[arg(long, value_name = "PATH", requires = "tls_cert")]
    tls_key: Option<String>,
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
    /// A required value is missing and stdin is not a terminal, the values contradict each other,
    /// or the file exists.
    pub fn run(mut self) -> Outcome {
        self.file_format()?;
        if let Some(path) = self.out.as_deref().filter(|path| !self.force && path.symlink_metadata().is_ok()) {
            return Err(already_exists(path));
        }
        let spec = if question::is_interactive() && self.model.is_none() && self.from.is_none() {
            let file = self.default_file(io::stdout().is_terminal());
            self.ask(&mut Prompter { input: io::stdin().lock(), output: io::stderr() }, file)?
        } else {
            self.choose_programs();
            self.checked_spec()?
        };
        deployment_file::say_misfits(&spec, spec.main_platform());
        let format = self.file_format()?;
        let text = commented(&spec, format);
        if text.len() > FILE_BYTES_MAX {
            let error = DeployError::TooLarge { bytes: u64::try_from(text.len()).ok(), most: FILE_BYTES_MAX };
            return Err(Failure::usage(format!("the deployment file would be {error}"))
                .next("describe the hosts in several deployment files"));
        }
        let Some(path) = &self.out else {
            output::data(text)?;
            return Ok(Exit::Done);
        };
        let if_exists = if self.force { IfExists::Replace } else { IfExists::Fail };
        whole_file::write(path, text.as_bytes(), if_exists).map_err(|error| match error.kind() {
            io::ErrorKind::AlreadyExists => already_exists(path),
            _ => Failure::host(format!("cannot write {}", path.display())).found(error.to_string()),
        })?;
        let shown = path.display().to_string();
        output::say(format!("wrote {shown}\nnext: mcctl render systemd {} --out units", shell_quoted(&shown)));
        Ok(Exit::Done)
    }

    fn file_format(&self) -> Result<FileFormat, Failure> {
        let of_file = self.out.as_deref().and_then(deployment_file::format_of);
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

    /// Selects upstream's programs if mcctl's programs do not support a requested feature, unless
    /// `--programs` is set.
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

    /// Asks for the most important values that are not set, and returns the resulting deployment.
    /// If it is invalid, asks again with the previous answers as defaults, until nothing is
    /// changed.
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
        if self.segment.is_none() {
            let question = "Memory that each server contributes to the store (0 for none)";
            self.segment = Some(prompt.ask(question, &text(&last.segment, "4GiB"), size_text)?);
        }
        if self.hugepages.is_none() {
            let sizes = one_of(&["none", "2MiB", "1GiB"]);
            self.hugepages =
                Some(prompt.ask("Huge pages (none, 2MiB, 1GiB)", &text(&last.hugepages, "none"), sizes)?);
        }
        if self.host_memory.is_none() {
            let question = "Memory of each host, e.g. 1TiB (- for unknown)";
            let answer = prompt.ask(question, &text(&last.host_memory, "-"), size_or_none)?;
            self.host_memory = Some(answer).filter(|answer| !answer.is_empty());
        }
        if self.mcctl_image.is_none() && self.programs.as_deref() != Some("upstream") {
            let question = "Image with mcctl, for containers (NAME:TAG, - for none)";
            let answer = prompt.ask(question, &text(&last.mcctl_image, "-"), optional)?;
            self.mcctl_image = Some(answer).filter(|answer| !answer.is_empty());
        }
        Ok(())
    }

    /// Returns the deployment after all checks.
    fn checked_spec(&self) -> Result<DeploymentSpec, Failure> {
        let spec = self.spec()?;
        extra_flags::check(&spec).map_err(|error| Failure::usage(error.to_string()))?;
        plan_processes(&spec, spec.main_platform()).map_err(|error| Failure::usage(error.to_string()))?;
        Ok(spec)
    }
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
    let Some(of_file) = deployment_file::format_of(&path) else { return Err(AnswerError::NotADeploymentFile) };
    if let Some(format) = format.filter(|format| FileFormat::of_extension(format) != Some(of_file)) {
        return Err(AnswerError::OtherFormat(format.to_owned()));
    }
    match path.symlink_metadata() {
        Ok(_) if !force => Err(AnswerError::Exists(text.to_owned())),
        _ => Ok(Some(path)),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::engine::deploy::Programs;

    fn answered(answers: &str) -> (Args, String) {
        let mut prompter = Prompter { input: answers.as_bytes(), output: Vec::new() };
        let mut args = Args::default();
        args.ask(&mut prompter, "-").unwrap();
        (args, String::from_utf8(prompter.output).unwrap())
    }

    #[test]
    fn init_asks_again_and_asks_for_the_output_file() {
        let folder = tempfile::tempdir().unwrap();
        let old = folder.path().join("a.toml");
        let new = folder.path().join("b.toml");
        fs::write(&old, "").unwrap();
        let answers = format!("m\ntriple\n\nx\n2\n\n\n\n\ntcp\n\n\n\n\nx.ini\n{}\n{}\n", old.display(), new.display());
        let (args, text) = answered(&answers);
        assert_eq!((args.tp, args.mode.as_deref(), args.out.as_deref()), (Some(2), Some("single"), Some(&*new)));
        assert_eq!(text.matches("Output file").count(), 3, "{text}");
        assert_eq!(args.spec().unwrap().programs, Programs::Mcctl);
    }

    #[test]
    fn a_distributed_server_needs_two_hosts() {
        let (args, text) = answered("m\ndistributed\n2\n\na\n\na\na,b,c,d\n1\n3\n2\n\n\n\n\n\n\n\n");
        assert_eq!((args.nnodes, args.hosts.len()), (Some(2), 4));
        assert_eq!(text.matches("Server hosts (comma-separated): ").count(), 3, "{text}");
        assert_eq!(text.matches("Hosts per server [4]: ").count(), 3, "{text}");
    }

    #[test]
    fn invalid_answers_are_the_defaults_of_a_second_round() {
        let (args, text) = answered("m\n\n8\n\n\na\n\n\n\n\n\n\n\n\n\n\nb\n\n\n\n\n\n\n\n\n");
        assert!(text.contains("loopback") && text.contains("Tensor parallel size [8]"), "{text}");
        assert_eq!((args.tp, args.master, args.hosts), (Some(8), vec!["b".to_owned()], vec!["a".to_owned()]));
        let unchanged = format!("m\n\n8\n\n\na{}", "\n".repeat(40));
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
        assert_eq!(answered("m\n\n\n\n\n\n\n\n\n\n\n\n\n").0.out, None);
    }

    #[test]
    fn init_offers_upstream_for_unsupported_features() {
        let answers = "m\n\n\n\n10.0.0.1\n\n10.0.0.2\n/ssd\nyes\n\n\n\n\n-\n";
        let (mut args, _) = answered(answers);
        args.choose_programs();
        assert_eq!(args.spec().unwrap().programs, Programs::Upstream);
        let (args, _) = answered(&answers.replace("yes\n", "no\n\n"));
        assert_eq!((args.ssd.clone(), args.spec().unwrap().programs), (None, Programs::Mcctl));
    }
}
