//! What several kinds of traces share: distributions, growing contexts, rows, digests and times.

use std::error::Error;
use std::io::{self, BufWriter, Write};

use rand_distr::LogNormal;
use serde::Serialize;

pub(crate) type Result<T, E = Box<dyn Error>> = std::result::Result<T, E>;

/// Small writes go to the buffer without a dynamic call.
pub(crate) type Output<'a> = BufWriter<&'a mut dyn Write>;

/// A log-normal distribution with the mean 1.
pub(crate) fn spread(sigma: f64) -> Result<LogNormal<f64>> {
    Ok(LogNormal::new(-sigma * sigma / 2.0, sigma)?)
}

/// Divides `total` into `parts` with the proportions of `weights`; each part is at least 1.
pub(crate) fn divide(total: usize, weights: &[f64]) -> Vec<usize> {
    let sum: f64 = weights.iter().sum();
    let free = total.saturating_sub(weights.len()) as f64;
    let (mut upto, mut given) = (0.0, 0);
    let part = |weight: &f64| {
        upto += weight;
        let end = (free * upto / sum).round() as usize;
        let part = end - given;
        given = end;
        part + 1
    };
    weights.iter().map(part).collect()
}

/// The hash ids of a growing context. Full blocks keep their ids. A partial last block gets a new
/// id when tokens are added to it.
#[derive(Clone, Default)]
pub(crate) struct Context {
    pub(crate) tokens: u64,
    pub(crate) ids: Vec<u64>,
}

impl Context {
    pub(crate) fn grow(&mut self, tokens: u64, block: u64, mut fresh: impl FnMut() -> u64) {
        self.ids.truncate((self.tokens / block) as usize);
        self.tokens += tokens;
        self.ids.resize_with(self.tokens.div_ceil(block) as usize, &mut fresh);
    }
}

pub(crate) fn line(out: &mut Output, row: &impl Serialize) -> Result<()> {
    serde_json::to_writer(&mut *out, row).map_err(io::Error::from)?;
    out.write_all(b"\n")?;
    Ok(())
}

/// A bijective mix of the bits, so that different ids have different digests.
pub(crate) fn mix(mut x: u64) -> u64 {
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// 2026-06-01T00:00:00Z in milliseconds since the epoch.
pub(crate) const START_MS: u64 = 1_780_272_000_000;

/// A time of June or July 2026 in ISO 8601, with milliseconds.
pub(crate) fn timestamp(ms: u64) -> String {
    let since = ms.saturating_sub(START_MS);
    let (day, ms) = (since / 86_400_000, since % 86_400_000);
    let (month, day) = if day < 30 { (6, day + 1) } else { (7, (day - 30) % 31 + 1) };
    let (hour, minute, second) = (ms / 3_600_000, ms / 60_000 % 60, ms / 1000 % 60);
    format!("2026-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{:03}Z", ms % 1000)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_have_the_total_and_are_at_least_1() {
        assert_eq!(divide(10, &[1.0, 2.0, 1e-9]), [3, 6, 1]);
        assert_eq!(divide(2, &[1.0; 3]), [1; 3]);
    }

    #[test]
    fn a_partial_block_gets_a_new_id_when_it_grows() {
        let mut context = Context::default();
        let mut ids = 0..;
        let mut fresh = || ids.next().unwrap();
        context.grow(20, 16, &mut fresh);
        context.grow(1, 16, &mut fresh);
        assert_eq!((context.tokens, context.ids), (21, vec![0, 2]));
    }

    #[test]
    fn timestamps_continue_in_july() {
        assert_eq!(timestamp(START_MS + 86_399_999), "2026-06-01T23:59:59.999Z");
        assert_eq!(timestamp(START_MS + 30 * 86_400_000), "2026-07-01T00:00:00.000Z");
    }
}
