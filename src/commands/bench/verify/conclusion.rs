//! The conclusion of `bench verify`: one sentence.

use crate::commands::bench::joined::joined;
use crate::engine::load::verify::{AnswerVerdict, TierResult, VerifyPass, VerifyResult};

/// Returns the conclusion. `complete`: whether all passes ran.
pub(super) fn sentence(result: &VerifyResult, complete: bool) -> String {
    let with = |verdict: AnswerVerdict| result.tiers.iter().filter(move |tier| tier.verdict == verdict);
    let different: Vec<String> = with(AnswerVerdict::Different).map(difference).collect();
    let same: Vec<&str> = with(AnswerVerdict::Same).map(|tier| tier.tier.label()).collect();
    let void: Vec<String> = with(AnswerVerdict::Void).map(reason).collect();
    let slower: Vec<String> = result.tiers.iter().filter(|tier| tier.slower).map(slowdown).collect();
    let mut parts = Vec::new();
    if !different.is_empty() {
        parts.push(format!("The cache changes the answers: {}", different.join("; ")));
    }
    if !same.is_empty() {
        let wrong_share = with(AnswerVerdict::Same).filter_map(|tier| tier.wrong_share_max).fold(0.0, f64::max);
        // L2 and L3 are compared with L1.
        let is_l1_same = with(AnswerVerdict::Same).any(|tier| tier.tier == VerifyPass::Device);
        let reference = if is_l1_same { "computing" } else { "their reference" };
        parts.push(format!(
            "{}: same answers as {reference} (at most {:.1} % of prompts can be wrong, at 95 % confidence)",
            joined(same),
            wrong_share * 100.0
        ));
    }
    if !void.is_empty() {
        parts.push(format!("Not verified: {}", void.join("; ")));
    }
    if !slower.is_empty() {
        parts.push(format!("Decoding is slower: {}", slower.join("; ")));
    }
    if !complete {
        parts.push("The run is incomplete".to_owned());
    }
    parts.join(". ") + "."
}

/// Names what differs in a tier.
fn difference(tier: &TierResult) -> String {
    let label = tier.tier.label();
    let reference = tier.compared_with.map_or("computing", |pass| pass.label());
    let Some(first) = &tier.first else {
        return format!("{label}, slightly in most prompts (compared with {reference})");
    };
    let position = first.position.map_or(String::new(), |at| format!(" at token {at} after the cached ones"));
    let tokens = match (&first.expected_token, &first.found_token) {
        (Some(expected), Some(found)) => format!(", token {found} instead of {expected}"),
        _ => String::new(),
    };
    let TierResult { differing, verified, .. } = tier;
    format!(
        "{label}, {differing} of {verified} prompts compared with {reference} (first: prompt {}{position}{tokens})",
        first.prompt
    )
}

/// Names why a tier is void.
fn reason(tier: &TierResult) -> String {
    let label = tier.tier.label();
    let TierResult { planned, verified, failed, no_reference, .. } = tier;
    match &tier.first_not_reached {
        Some(first) => format!(
            "{label}, because {verified} of {planned} prompts came from it (prompt {}: {} of {} tokens from any cache)",
            first.prompt, first.cached_tokens, first.expected_tokens
        ),
        None if *failed > 0 => format!("{label}, because {failed} of {planned} requests failed"),
        None if *no_reference > 0 => {
            format!("{label}, because {no_reference} of {planned} prompts have no computed answer to compare with")
        }
        None if verified < planned => format!("{label}, because {verified} of {planned} prompts were sent"),
        None => format!("{label}, because the noise is not known"),
    }
}

fn slowdown(tier: &TierResult) -> String {
    let decode = tier.decode.filter(|ratio| ratio.is_slower());
    let accepted = tier.accept_length.filter(|ratio| ratio.is_slower());
    let parts: Vec<String> = [
        decode.map(|ratio| format!("{:.2} times the token rate", ratio.median)),
        accepted.map(|ratio| format!("{:.2} times the accepted draft length", ratio.median)),
    ]
    .into_iter()
    .flatten()
    .collect();
    format!("{} ({} of computing)", tier.tier.label(), parts.join(" and "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::load::verify::{Differences, Noise};

    fn same(tier: VerifyPass, wrong_share_max: f64) -> TierResult {
        TierResult {
            tier,
            verdict: AnswerVerdict::Same,
            planned: 150,
            verified: 150,
            not_reached: 0,
            failed: 0,
            no_reference: 0,
            compared_with: None,
            differing: 0,
            shifted: false,
            limit: None,
            first: None,
            differences: Differences::default(),
            from_computing: Differences::default(),
            wrong_share_max: Some(wrong_share_max),
            first_not_reached: None,
            decode: None,
            accept_length: None,
            slower: false,
        }
    }

    #[test]
    fn the_bound_is_the_largest_one_of_the_tiers() {
        let tiers = vec![same(VerifyPass::Device, 0.02), same(VerifyPass::Storage, 0.034)];
        let result = VerifyResult { noise: Noise::default(), tiers, cold_not_reached: 0, failed: Vec::new() };
        assert!(sentence(&result, true).contains("3.4 %"), "{}", sentence(&result, true));
    }
}
