//! Conversations that are interleaved in time.

use std::collections::HashMap;

use rand::Rng;
use rand_distr::{Distribution, Exp, Geometric, Zipf};

use crate::args::Options;
use crate::common::{Context, Result, spread};

/// The shape of a trace of conversations.
pub(crate) struct Conversations {
    pub(crate) requests: usize,
    /// Length of the trace in seconds.
    pub(crate) seconds: f64,
    pub(crate) turns: f64,
    pub(crate) mean_input: f64,
    pub(crate) mean_output: f64,
    /// Mean tokens that a later turn adds, relative to the first turn's.
    pub(crate) later: f64,
    pub(crate) systems: usize,
    pub(crate) system_tokens: f64,
    pub(crate) block: u64,
}

struct Turn {
    at: f64,
    conversation: usize,
    turn: u32,
    /// New tokens of the prompt, without the system prompt and the previous turns.
    added: f64,
    output: u64,
    is_last: bool,
}

/// A request of a conversation, with the ids of all blocks of its prompt.
pub(crate) struct Prompt<'a> {
    pub(crate) at: f64,
    pub(crate) conversation: usize,
    /// Number of the turn, from 0.
    pub(crate) turn: u32,
    pub(crate) input: u64,
    pub(crate) output: u64,
    pub(crate) ids: &'a [u64],
}

/// Generates the requests in order of time. `mean_input` and `mean_output` are exact up to
/// rounding.
pub(crate) fn conversations(
    shape: &Conversations,
    options: &Options,
    mut emit: impl FnMut(Prompt) -> Result<()>,
) -> Result<()> {
    let rng = &mut options.rng();
    let (first, later, output) = (spread(0.9)?, spread(1.1)?, spread(0.9)?);
    let (gap, more) = (Exp::new(1.0 / 90.0)?, Geometric::new(1.0 / shape.turns)?);
    let system_of = Zipf::new(shape.systems as f64, 1.1)?;

    let mut turns: Vec<Turn> = Vec::with_capacity(shape.requests);
    let mut systems = Vec::new();
    while turns.len() < shape.requests {
        let conversation = systems.len();
        systems.push(system_of.sample(rng) as usize - 1);
        let mut at = rng.random::<f64>() * shape.seconds;
        for turn in 0..=more.sample(rng) as u32 {
            let added = if turn == 0 { first.sample(rng) } else { later.sample(rng) * shape.later };
            turns.push(Turn { at, conversation, turn, added, output: 0, is_last: false });
            at += gap.sample(rng);
        }
    }
    turns.truncate(shape.requests);
    let outputs: Vec<f64> = turns.iter().map(|_| output.sample(rng)).collect();
    let factor = shape.mean_output * turns.len() as f64 / outputs.iter().sum::<f64>();
    for (turn, output) in turns.iter_mut().zip(outputs) {
        turn.output = options.tokens(output * factor);
    }

    // The sum of all inputs is `fixed` + `added` * `unit`. `unit` is the mean of a first turn.
    let system_tokens: Vec<u64> =
        (0..shape.systems).map(|_| options.tokens(shape.system_tokens * later.sample(rng))).collect();
    let (mut fixed, mut added) = (0.0, 0.0);
    let mut so_far = (0.0, 0.0);
    for index in 0..turns.len() {
        let turn = &turns[index];
        if turn.turn == 0 {
            so_far = (system_tokens[systems[turn.conversation]] as f64, 0.0);
        }
        so_far.1 += turn.added;
        fixed += so_far.0;
        added += so_far.1;
        so_far.0 += turn.output as f64;
        let is_last = turns.get(index + 1).is_none_or(|next| next.turn == 0);
        turns[index].is_last = is_last;
    }
    let unit = (shape.mean_input / options.scale * turns.len() as f64 - fixed).max(0.0) / added;
    turns.sort_by(|a, b| a.at.total_cmp(&b.at));

    let mut next = 0;
    let mut fresh = || {
        next += 1;
        next - 1
    };
    let shared: Vec<Context> = system_tokens
        .iter()
        .map(|tokens| {
            let mut context = Context::default();
            context.grow(*tokens, shape.block, &mut fresh);
            context
        })
        .collect();
    let start = turns.first().map_or(0.0, |turn| turn.at);
    let mut open: HashMap<usize, Context> = HashMap::new();
    for Turn { at, conversation, turn, added, output, is_last } in turns {
        let mut context = open.remove(&conversation).unwrap_or_else(|| shared[systems[conversation]].clone());
        context.grow(((added * unit).round() as u64).max(1), shape.block, &mut fresh);
        emit(Prompt { at: at - start, conversation, turn, input: context.tokens, output, ids: &context.ids })?;
        if !is_last {
            // The reply becomes part of the next prompt.
            context.grow(output, shape.block, &mut fresh);
            open.insert(conversation, context);
        }
    }
    Ok(())
}
