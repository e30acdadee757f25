//! Joins names in a sentence.

/// Joins names with commas, and the last one with "and".
pub(super) fn joined(names: impl IntoIterator<Item = impl Into<String>>) -> String {
    let names: Vec<String> = names.into_iter().map(Into::into).collect();
    match names.as_slice() {
        [] => String::new(),
        [one] => one.clone(),
        [first @ .., last] => format!("{} and {last}", first.join(", ")),
    }
}
