//! LoRA adapters: assigns one adapter to each conversation in a workload.

use std::fmt;

use rand::Rng;
use serde_json::Value;

use crate::answer::Dialect;
use crate::workload::{LoadWorkload, Members, TurnPrompt, TurnRequest};
use crate::{ModelAnswer, Script, Seed, Turn};

/// How adapters are assigned to conversations, as in `sglang.bench_serving`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum AdapterPolicy {
    /// Random, with equal probability for all adapters.
    Uniform,
    Distinct,
    /// Random, with each adapter this many times as likely as the next one.
    Skewed(f64),
}

/// A workload in which each conversation uses one adapter.
pub struct Adapters {
    of: Box<dyn LoadWorkload + Send>,
    names: Vec<String>,
    deal: AdapterPolicy,
    dialect: Dialect,
    seed: Seed,
}

impl Adapters {
    /// Assigns one of `names` (at least one) to each conversation in `of`, for a server with the
    /// API `dialect`.
    pub fn new(
        of: Box<dyn LoadWorkload + Send>,
        names: Vec<String>,
        deal: AdapterPolicy,
        dialect: Dialect,
        seed: Seed,
    ) -> Adapters {
        Adapters { of, names, deal, dialect, seed }
    }

    fn name(&self, conversation: u32) -> &str {
        let count = self.names.len();
        let mut rng = self.seed.generator("adapters", u64::from(conversation));
        let at = match self.deal {
            AdapterPolicy::Uniform => rng.random_range(0..count),
            AdapterPolicy::Distinct => conversation as usize % count,
            AdapterPolicy::Skewed(alpha) => {
                let weights: Vec<f64> =
                    (0..count).map(|at| alpha.powi(-i32::try_from(at).unwrap_or(i32::MAX))).collect();
                let mut left = rng.random_range(0.0..weights.iter().sum());
                let found = weights.iter().position(|weight| {
                    left -= weight;
                    left < 0.0
                });
                found.unwrap_or(count - 1)
            }
        };
        &self.names[at]
    }
}

impl LoadWorkload for Adapters {
    fn scripts(&self) -> Vec<Script> {
        self.of.scripts()
    }

    fn request(&mut self, turn: Turn) -> TurnRequest {
        let mut ask = self.of.request(turn);
        let name = Value::from(self.name(turn.conversation)).to_string();
        // SGLang accepts the adapter in addition to the model name; vLLM accepts it in place of the
        // model name.
        let own = match self.dialect {
            Dialect::Generate => &["lora_path"][..],
            Dialect::Chat | Dialect::Completions | Dialect::TensorRt => &["model", "lora_path"],
        };
        let own = own.iter().map(|member| ((*member).to_owned(), name.clone()));
        let others = ask.extra.iter().map(|(name, value)| (name.to_owned(), value.to_owned()));
        ask.extra = Members::new(own.chain(others));
        ask
    }

    fn on_response(&mut self, turn: Turn, answer: &ModelAnswer) {
        self.of.on_response(turn, answer);
    }

    fn shared(&self) -> Vec<TurnPrompt> {
        self.of.shared()
    }

    fn notes(&self) -> Vec<String> {
        self.of.notes()
    }

    fn fingerprint(&self, to: &mut dyn fmt::Write) -> fmt::Result {
        writeln!(to, "adapters {:?} {:?}", self.names, self.deal)?;
        self.of.fingerprint(to)
    }

    fn warmups(&self) -> u32 {
        self.of.warmups()
    }

    fn warmup(&mut self, index: u32) -> Option<TurnRequest> {
        self.of.warmup(index)
    }

    fn on_conversation_end(&mut self, turn: Turn) {
        self.of.on_conversation_end(turn);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Distribution;
    use crate::workload::Synthetic;

    fn dealt(deal: AdapterPolicy) -> Vec<String> {
        let one = Distribution::Constant(1.0);
        let made = Box::new(Synthetic::new(300, one, one, one, Seed(1)));
        let names = ["a", "b", "c"].map(str::to_owned).to_vec();
        let mut adapters = Adapters::new(made, names, deal, Dialect::Chat, Seed(1));
        let name = |conversation| {
            let ask = adapters.request(Turn { conversation, index: 0 });
            let members: Vec<(&str, &str)> = ask.extra.iter().collect();
            assert_eq!(members[0].1, members[1].1);
            members[0].1.to_owned()
        };
        (0..300).map(name).collect()
    }

    #[test]
    fn each_policy_assigns_adapters_as_documented() {
        let count = |dealt: &[String], name: &str| dealt.iter().filter(|found| *found == name).count();
        assert_eq!(dealt(AdapterPolicy::Distinct)[..4], ["\"a\"", "\"b\"", "\"c\"", "\"a\""]);
        let uniform = dealt(AdapterPolicy::Uniform);
        assert!(["\"a\"", "\"b\"", "\"c\""].iter().all(|name| count(&uniform, name) > 60), "{uniform:?}");
        assert_eq!(uniform, dealt(AdapterPolicy::Uniform), "the same seed produces the same adapters");
        let skewed = dealt(AdapterPolicy::Skewed(4.0));
        assert!(count(&skewed, "\"a\"") > 200 && count(&skewed, "\"b\"") > count(&skewed, "\"c\""));
    }
}
