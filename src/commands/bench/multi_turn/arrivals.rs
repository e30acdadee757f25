//! Request arrival times. With the same seed, `bench serving` reproduces the arrival times of `bench_serving`.

use crate::commands::bench::multi_turn::Args;
use crate::commands::bench::multi_turn::args::{DatasetName, LoadArgs};
use crate::engine::load::numpy::{self, PriorDraws};
use crate::engine::load::{Arrivals, Pace};

impl Args {
    /// Returns the pace for `conversations` under `load`.
    pub(super) fn pace(&self, load: &LoadArgs, conversations: u32) -> Pace {
        if !self.serving || load.request_rate.is_infinite() || !load.is_poisson() {
            return load.pace(conversations);
        }
        let at = numpy::arrivals(load.seed, load.request_rate, conversations, &self.drawn(conversations));
        Pace::Conversations(Arrivals::Recorded { at, speed: 1.0 }.instants(self.seed().generator("arrivals", 0)))
    }

    /// Returns the random values that `bench_serving` draws before the arrival times: the lengths and, for random-ids, the first token IDs.
    fn drawn(&self, conversations: u32) -> Vec<PriorDraws> {
        let dataset = &self.workload.dataset;
        let count = dataset.num_prompts.unwrap_or(conversations);
        let length = |most: u32| {
            let least = ((f64::from(most) * dataset.random_range_ratio) as u32).max(1);
            PriorDraws { count, range: most.saturating_sub(least) }
        };
        let lengths = [length(dataset.random_input_len), length(dataset.random_output_len)];
        match dataset.dataset_name {
            Some(DatasetName::Random) => lengths.to_vec(),
            Some(DatasetName::RandomIds) => {
                let tokenizer = dataset.tokenizer().ok().flatten();
                let vocabulary = tokenizer.map_or(self.workload.vocab_size, |tokenizer| tokenizer.vocabulary());
                let ids = PriorDraws { count, range: vocabulary.saturating_sub(1) };
                lengths.into_iter().chain([ids]).collect()
            }
            _ => Vec::new(),
        }
    }
}
