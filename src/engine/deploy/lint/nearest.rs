//! The nearest known name, for suggestions.

/// The name most similar to `name`, if the difference is small enough for a typo.
pub(super) fn nearest<'n>(name: &str, names: impl IntoIterator<Item = &'n str>) -> Option<&'n str> {
    let most = |known: &str| 1 + known.len() / 5;
    // The edit distance costs O(n*m) and is at least the difference in length.
    let near = names.into_iter().filter(|known| known.len().abs_diff(name.len()) <= most(known));
    let scored = near.map(|known| (strsim::damerau_levenshtein(name, known), known));
    let (distance, known) = scored.min_by_key(|(distance, known)| (*distance, known.len()))?;
    (distance <= most(known)).then_some(known)
}
