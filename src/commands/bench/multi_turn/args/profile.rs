//! The server's profiler, started before the measured run and stopped after it.

use clap::ValueEnum;
use serde_json::{Map, Value, json};

use crate::commands::error::Failure;
use crate::engine::load::server::Profile;
use crate::engine::load::session::Control;

/// Steps of a profile by stage where none are given, as in `bench_serving`.
const STAGE_STEPS: u32 = 5;

/// What is profiled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum Activity {
    /// Functions on the processor
    Cpu,
    /// Kernels on the GPU
    Gpu,
    /// The profiler of CUDA itself
    CudaProfiler,
    /// Kernels on GPUs of Intel
    Xpu,
    /// A snapshot of GPU memory
    Mem,
}

/// The profiler.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Profiler")]
pub struct ProfileArgs {
    /// Profile the server during the run (POST /start_profile and /stop_profile)
    #[arg(long)]
    pub profile: bool,
    /// What is profiled [default: CPU GPU]
    #[arg(long, value_enum, ignore_case = true, value_name = "ACTIVITY", num_args = 1..)]
    pub profile_activities: Vec<Activity>,
    /// Start after this many forward steps
    #[arg(long, value_name = "N")]
    pub profile_start_step: Option<u32>,
    /// Stop by itself after this many steps; /stop_profile is not called
    #[arg(long, value_name = "N")]
    pub profile_steps: Option<u32>,
    /// The same by its other name
    #[arg(long, value_name = "N")]
    pub profile_num_steps: Option<u32>,
    /// Profile prefill and decode apart
    #[arg(long)]
    pub profile_by_stage: bool,
    /// Stages to profile
    #[arg(long, value_name = "STAGE", num_args = 1..)]
    pub profile_stages: Vec<String>,
    /// Folder on the server for the traces [default: SGLANG_TORCH_PROFILER_DIR, or /tmp]
    #[arg(long, value_name = "DIR")]
    pub profile_output_dir: Option<String>,
    /// Prefix of the names of the traces
    #[arg(long, value_name = "PREFIX")]
    pub profile_prefix: Option<String>,
    /// Prefill and decode are separate servers: profile those of the next two flags
    #[arg(long)]
    pub pd_separated: bool,
    /// Prefill servers to profile
    #[arg(long, value_name = "URL", num_args = 0.., conflicts_with = "profile_decode_url")]
    pub profile_prefill_url: Vec<String>,
    /// Decode servers to profile
    #[arg(long, value_name = "URL", num_args = 0..)]
    pub profile_decode_url: Vec<String>,
}

impl ProfileArgs {
    /// Do the flags agree?
    ///
    /// # Errors
    /// No server to profile is named, or one that is not an address.
    pub fn agree(&self) -> Result<(), Failure> {
        if self.profile && self.pd_separated && self.workers().is_empty() {
            return Err(Failure::usage("--profile with --pd-separated has no server to profile")
                .next("add --profile-prefill-url or --profile-decode-url"));
        }
        let bad = |url: &&String| !url.starts_with("http://") && !url.starts_with("https://");
        match self.workers().iter().find(bad) {
            Some(url) => Err(Failure::usage(format!("'{url}' is not the address of a server to profile"))
                .next("write http://HOST:PORT")),
            None => Ok(()),
        }
    }

    /// The flags that are given beside `--profile`, with their dashes.
    pub fn details(&self) -> Vec<&'static str> {
        let flags = [
            ("--profile-activities", !self.profile_activities.is_empty()),
            ("--profile-start-step", self.profile_start_step.is_some()),
            ("--profile-steps", self.profile_steps.is_some()),
            ("--profile-num-steps", self.profile_num_steps.is_some()),
            ("--profile-by-stage", self.profile_by_stage),
            ("--profile-stages", !self.profile_stages.is_empty()),
            ("--profile-output-dir", self.profile_output_dir.is_some()),
            ("--profile-prefix", self.profile_prefix.is_some()),
            ("--pd-separated", self.pd_separated),
            ("--profile-prefill-url", !self.profile_prefill_url.is_empty()),
            ("--profile-decode-url", !self.profile_decode_url.is_empty()),
        ];
        flags.into_iter().filter_map(|(flag, is_given)| is_given.then_some(flag)).collect()
    }

    fn workers(&self) -> Vec<String> {
        self.profile_prefill_url.iter().chain(&self.profile_decode_url).cloned().collect()
    }

    /// The calls before the run and after it.
    pub fn calls(&self) -> (Option<Control>, Option<Control>) {
        if !self.profile {
            return (None, None);
        }
        let call = |route, body: Value| {
            let workers = if self.pd_separated { self.workers() } else { Vec::new() };
            Control::Profile(Profile { route, workers, body: body.to_string() })
        };
        // With a number of steps it stops by itself.
        let stops = self.profile_steps.is_none() && (self.pd_separated || self.profile_num_steps.is_none());
        let start = call("/start_profile", Value::Object(self.body()));
        (Some(start), stops.then(|| call("/stop_profile", json!({}))))
    }

    fn body(&self) -> Map<String, Value> {
        let name = |activity: &Activity| activity.to_possible_value().map(|value| value.get_name().to_owned());
        let activities: Vec<String> = match &self.profile_activities[..] {
            [] => vec!["CPU".to_owned(), "GPU".to_owned()],
            some => some.iter().filter_map(name).collect(),
        };
        let by_stage = (self.profile_by_stage && self.profile_num_steps.is_none()).then_some(STAGE_STEPS);
        let folder = self.profile_output_dir.clone().or_else(|| std::env::var("SGLANG_TORCH_PROFILER_DIR").ok());
        let stages = (!self.profile_stages.is_empty()).then_some(&self.profile_stages);
        let mut body = Map::new();
        body.insert("activities".to_owned(), json!(activities));
        body.insert("num_steps".to_owned(), json!(self.profile_steps.or(self.profile_num_steps).or(by_stage)));
        body.insert("profile_by_stage".to_owned(), json!(self.profile_by_stage));
        body.insert("profile_stages".to_owned(), json!(stages));
        body.insert("output_dir".to_owned(), json!(folder.unwrap_or_else(|| "/tmp".to_owned())));
        body.insert("profile_prefix".to_owned(), json!(self.profile_prefix));
        if let Some(step) = self.profile_start_step {
            body.insert("start_step".to_owned(), json!(step));
        }
        body
    }
}
