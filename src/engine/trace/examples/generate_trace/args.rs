//! The command line.

use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;

use crate::common::Result;

pub(crate) const KINDS: &str = "mooncake, bailian, weka, tracelab, litellm, vllm";

pub(crate) struct Options {
    pub(crate) kind: String,
    pub(crate) requests: Option<usize>,
    pub(crate) sessions: Option<usize>,
    pub(crate) seed: u64,
    pub(crate) scale: f64,
}

impl Options {
    pub(crate) fn parse(mut args: impl Iterator<Item = String>) -> Result<Options> {
        let kind = args.next().ok_or(format!("which kind? Use one of {KINDS}"))?;
        let mut options = Options { kind, requests: None, sessions: None, seed: 1, scale: 1.0 };
        while let Some(name) = args.next() {
            let value = args.next().ok_or(format!("{name} requires a value"))?;
            match name.as_str() {
                "--requests" => options.requests = Some(value.parse()?),
                "--sessions" => options.sessions = Some(value.parse()?),
                "--seed" => options.seed = value.parse()?,
                "--scale" => options.scale = value.parse()?,
                _ => return Err(format!("unknown argument '{name}'").into()),
            }
        }
        if !(options.scale.is_finite() && options.scale > 0.0) {
            return Err(format!("--scale must be positive, found {}", options.scale).into());
        }
        Ok(options)
    }

    pub(crate) fn rng(&self) -> ChaCha8Rng {
        ChaCha8Rng::seed_from_u64(self.seed)
    }

    /// A length of the published trace, divided by the scale; at least 1.
    pub(crate) fn tokens(&self, length: f64) -> u64 {
        ((length / self.scale).round() as u64).max(1)
    }
}
