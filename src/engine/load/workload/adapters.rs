//! LoRA adapters: a workload whose conversations are dealt out to adapters by name.

use std::fmt;

use rand::Rng;
use serde_json::Value;

use crate::engine::load::answer::Dialect;
use crate::engine::load::workload::{Ask, Members, Prompt, Workload};
use crate::engine::load::{Answer, Script, Seed, Turn};

/// How conversations are dealt out to adapters, as `sglang.bench_serving` has it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Deal {
    /// Any adapter, each as likely.
    Uniform,
    /// One after the other, from the first again after the last.
    Distinct,
    /// Each adapter is this many times as likely as the next one.
    Skewed(f64),
}

/// See the module.
pub struct Adapters {
    of: Box<dyn Workload + Send>,
    names: Vec<String>,
    deal: Deal,
    dialect: Dialect,
    seed: Seed,
}

impl Adapters {
    /// The conversations of `of`, each with one of `names` (at least one), for a server of `dialect`.
    pub fn new(of: Box<dyn Workload + Send>, names: Vec<String>, deal: Deal, dialect: Dialect, seed: Seed) -> Adapters {
        Adapters { of, names, deal, dialect, seed }
    }

    fn name(&self, conversation: u32) -> &str {
        let count = self.names.len();
        let mut rng = self.seed.generator("adapters", u64::from(conversation));
        let at = match self.deal {
            Deal::Uniform => rng.random_range(0..count),
            Deal::Distinct => conversation as usize % count,
            Deal::Skewed(alpha) => {
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

impl Workload for Adapters {
    fn scripts(&self) -> Vec<Script> {
        self.of.scripts()
    }

    fn ask(&mut self, turn: Turn) -> Ask {
        let mut ask = self.of.ask(turn);
        let name = Value::from(self.name(turn.conversation)).to_string();
        // SGLang takes the adapter beside the model, vLLM in its place.
        let own = match self.dialect {
            Dialect::Generate => &["lora_path"][..],
            Dialect::Chat | Dialect::Completions | Dialect::TensorRt => &["model", "lora_path"],
        };
        let own = own.iter().map(|member| ((*member).to_owned(), name.clone()));
        let others = ask.extra.iter().map(|(name, value)| (name.to_owned(), value.to_owned()));
        ask.extra = Members::new(own.chain(others));
        ask
    }

    fn heard(&mut self, turn: Turn, answer: &Answer) {
        self.of.heard(turn, answer);
    }

    fn shared(&self) -> Vec<Prompt> {
        self.of.shared()
    }

    fn notes(&self) -> Vec<String> {
        self.of.notes()
    }

    fn fingerprint(&self, to: &mut dyn fmt::Write) -> fmt::Result {
        writeln!(to, "adapters {:?} {:?}", self.names, self.deal)?;
        self.of.fingerprint(to)
    }

    fn over(&mut self, turn: Turn) {
        self.of.over(turn);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::load::Distribution;
    use crate::engine::load::workload::Synthetic;

    fn dealt(deal: Deal) -> Vec<String> {
        let one = Distribution::Constant(1.0);
        let made = Box::new(Synthetic::new(300, one, one, one, Seed(1)));
        let names = ["a", "b", "c"].map(str::to_owned).to_vec();
        let mut adapters = Adapters::new(made, names, deal, Dialect::Chat, Seed(1));
        let name = |conversation| {
            let ask = adapters.ask(Turn { conversation, index: 0 });
            let members: Vec<(&str, &str)> = ask.extra.iter().collect();
            assert_eq!(members[0].1, members[1].1);
            members[0].1.to_owned()
        };
        (0..300).map(name).collect()
    }

    #[test]
    fn conversations_are_dealt_out_to_adapters_by_each_rule() {
        let count = |dealt: &[String], name: &str| dealt.iter().filter(|found| *found == name).count();
        assert_eq!(dealt(Deal::Distinct)[..4], ["\"a\"", "\"b\"", "\"c\"", "\"a\""]);
        let uniform = dealt(Deal::Uniform);
        assert!(["\"a\"", "\"b\"", "\"c\""].iter().all(|name| count(&uniform, name) > 60), "{uniform:?}");
        assert_eq!(uniform, dealt(Deal::Uniform), "the same seed, the same adapters");
        let skewed = dealt(Deal::Skewed(4.0));
        assert!(count(&skewed, "\"a\"") > 200 && count(&skewed, "\"b\"") > count(&skewed, "\"c\""));
    }
}
