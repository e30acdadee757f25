//! Quantiles of Student's t-distribution, used for confidence intervals around the means of small
//! samples.

/// At or above this many degrees of freedom, the normal distribution is used instead.
const MANY: u32 = 2_000;

/// Returns the probability that a t-distributed variable with `freedom` degrees of freedom lies
/// within `-t..t`, using the finite sums in Abramowitz and Stegun, 26.7.3 and 26.7.4.
fn within(t: f64, freedom: u32) -> f64 {
    let theta = (t / f64::from(freedom).sqrt()).atan();
    let (sin, cos) = theta.sin_cos();
    let odd = freedom % 2 == 1;
    // Each term is the previous one times cos^2 * (k-1)/k.
    let (mut term, mut sum) = if odd { (cos, cos) } else { (1.0, 1.0) };
    let mut k = if odd { 3 } else { 2 };
    while k <= freedom.saturating_sub(2) {
        term *= cos * cos * f64::from(k - 1) / f64::from(k);
        sum += term;
        k += 2;
    }
    match (odd, freedom) {
        (true, 1) => theta * std::f64::consts::FRAC_2_PI,
        (true, _) => std::f64::consts::FRAC_2_PI * (theta + sin * sum),
        (false, _) => sin * sum,
    }
}

/// Returns the bound `t` such that a share `level` of the t-distribution with `freedom` (at least
/// 1) degrees of freedom lies within `-t..t`.
pub(super) fn bound(level: f64, freedom: u32) -> f64 {
    let freedom = freedom.clamp(1, MANY);
    let mut low = 0.0;
    let mut high = 1.0;
    while within(high, freedom) < level && high < 1e9 {
        high *= 2.0;
    }
    for _ in 0..80 {
        let middle = f64::midpoint(low, high);
        if within(middle, freedom) < level {
            low = middle;
        } else {
            high = middle;
        }
    }
    high
}

/// Same as [`bound`], for the normal distribution.
pub(super) fn normal(level: f64) -> f64 {
    bound(level, MANY)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_match_the_published_tables() {
        let table = [
            (0.95, 1, 12.706),
            (0.95, 2, 4.303),
            (0.95, 3, 3.182),
            (0.95, 7, 2.365),
            (0.99, 1, 63.657),
            (0.99, 4, 4.604),
            (0.99, 7, 3.499),
            (0.99, 30, 2.750),
            (0.998, 10, 4.144),
        ];
        for (level, freedom, bound) in table {
            let found = super::bound(level, freedom);
            assert!((found - bound).abs() < 1e-3, "{level} {freedom}: {found}");
        }
        assert!((normal(0.95) - 1.960).abs() < 2e-3 && (normal(0.99) - 2.576).abs() < 4e-3);
    }
}
