//! When requests come: drawn as the flags say, and for `bench serving` at the instants of `bench_serving` with the same seed.

use crate::commands::bench::multi_turn::Args;
use crate::commands::bench::multi_turn::args::{LoadArgs, Name};
use crate::engine::load::numpy::{self, Drawn};
use crate::engine::load::{Arrivals, Pace};

impl Args {
    /// The pace of `conversations` under `load`.
    pub(super) fn pace(&self, load: &LoadArgs, conversations: u32) -> Pace {
        if !self.serving || load.request_rate.is_infinite() || !load.is_poisson() {
            return load.pace(conversations);
        }
        let at = numpy::arrivals(load.seed, load.request_rate, conversations, &self.drawn(conversations));
        Pace::Conversations(Arrivals::Recorded { at, speed: 1.0 }.instants(self.seed().generator("arrivals", 0)))
    }

    /// What the dataset draws there before the arrivals: lengths, and of random-ids the first ids.
    fn drawn(&self, conversations: u32) -> Vec<Drawn> {
        let dataset = &self.workload.dataset;
        let count = dataset.num_prompts.unwrap_or(conversations);
        let length = |most: u32| {
            let least = ((f64::from(most) * dataset.random_range_ratio) as u32).max(1);
            Drawn { count, range: most.saturating_sub(least) }
        };
        let lengths = [length(dataset.random_input_len), length(dataset.random_output_len)];
        match dataset.dataset_name {
            Some(Name::Random) => lengths.to_vec(),
            Some(Name::RandomIds) => {
                let tokenizer = dataset.tokenizer().ok().flatten();
                let vocabulary = tokenizer.map_or(self.workload.vocab_size, |tokenizer| tokenizer.vocabulary());
                let ids = Drawn { count, range: vocabulary.saturating_sub(1) };
                lengths.into_iter().chain([ids]).collect()
            }
            _ => Vec::new(),
        }
    }
}
