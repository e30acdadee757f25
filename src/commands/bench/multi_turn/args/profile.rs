//! Flags for the server's profiler, which runs during the measured pass.

use clap::ValueEnum;
use serde_json::{Map, Value, json};

use crate::commands::cli::error::Failure;
use crate::engine::load::server::Profile;
use crate::engine::load::session::Control;

/// Default number of steps for `--profile-by-stage`, the same as in `bench_serving`.
const STAGE_STEPS: u32 = 5;

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum ProfileActivity {
    /// CPU functions
    Cpu,
    /// GPU kernels
    Gpu,
    /// CUDA profiler
    CudaProfiler,
    /// Intel GPU kernels
    Xpu,
    /// GPU memory snapshot
    Mem,
}

#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Profiler")]
pub struct ProfileArgs {
    /// Profile the server during the run (POST /start_profile and /stop_profile)
    #[arg(long)]
    pub profile: bool,
    /// Activities to profile [default: CPU GPU]
    #[arg(long, value_enum, ignore_case = true, value_name = "ACTIVITY", num_args = 1..)]
    pub profile_activities: Vec<ProfileActivity>,
    /// Start after this many forward steps [default: 0]
    #[arg(long, value_name = "N")]
    pub profile_start_step: Option<u32>,
    /// Number of forward steps to profile; /stop_profile is not called [default: until the run
    /// ends]
    #[arg(long, value_name = "N")]
    pub profile_steps: Option<u32>,
    /// Alias for --profile-steps
    #[arg(long, value_name = "N")]
    pub profile_num_steps: Option<u32>,
    /// Profile prefill and decode separately
    #[arg(long)]
    pub profile_by_stage: bool,
    /// Stages to profile [default: all]
    #[arg(long, value_name = "STAGE", num_args = 1..)]
    pub profile_stages: Vec<String>,
    /// Directory for the traces, on the server [default: $SGLANG_TORCH_PROFILER_DIR, else /tmp]
    #[arg(long, value_name = "DIR")]
    pub profile_output_dir: Option<String>,
    /// File name prefix for the traces
    #[arg(long, value_name = "PREFIX")]
    pub profile_prefix: Option<String>,
    /// Prefill and decode run on separate servers: profile the servers at --profile-prefill-url and
    /// --profile-decode-url
    #[arg(long)]
    pub pd_separated: bool,
    /// URLs of the prefill servers to profile
    #[arg(long, value_name = "URL", num_args = 0.., conflicts_with = "profile_decode_url")]
    pub profile_prefill_url: Vec<String>,
    /// URLs of the decode servers to profile
    #[arg(long, value_name = "URL", num_args = 0..)]
    pub profile_decode_url: Vec<String>,
}

impl ProfileArgs {
    /// Rejects conflicting flags.
    ///
    /// # Errors
    /// `--pd-separated` is set without a server to profile, or a URL is invalid.
    pub fn agree(&self) -> Result<(), Failure> {
        if self.profile && self.pd_separated && self.workers().is_empty() {
            return Err(Failure::usage("--profile with --pd-separated requires a server to profile")
                .next("set --profile-prefill-url or --profile-decode-url"));
        }
        let bad = |url: &&String| !url.starts_with("http://") && !url.starts_with("https://");
        match self.workers().iter().find(bad) {
            Some(url) => Err(Failure::usage(format!("'{url}' is not a valid server URL")).next("use http://HOST:PORT")),
            None => Ok(()),
        }
    }

    /// Returns the profiler flags that are set, other than `--profile`, with their dashes.
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

    /// Returns the profiler calls to make before and after the run.
    pub fn calls(&self) -> (Option<Control>, Option<Control>) {
        if !self.profile {
            return (None, None);
        }
        let call = |route, body: Value| {
            let workers = if self.pd_separated { self.workers() } else { Vec::new() };
            Control::Profile(Profile { route, workers, body: body.to_string() })
        };
        // With a fixed number of steps, the profiler stops automatically.
        let stops = self.profile_steps.is_none() && (self.pd_separated || self.profile_num_steps.is_none());
        let start = call("/start_profile", Value::Object(self.body()));
        (Some(start), stops.then(|| call("/stop_profile", json!({}))))
    }

    fn body(&self) -> Map<String, Value> {
        let name = |activity: &ProfileActivity| activity.to_possible_value().map(|value| value.get_name().to_owned());
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
