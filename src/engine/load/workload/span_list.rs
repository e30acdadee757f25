//! The spans of a prompt. The prompts of a conversation share their memory.

use std::fmt;
use std::sync::Arc;

use crate::workload::TextSpan;

/// The spans of a prompt, in order.
///
/// In a trace, each prompt of a conversation repeats the one before. [`SpanList::share`] lets such
/// prompts use the same array, so that memory grows with the conversation and not with its square.
#[derive(Clone)]
pub struct SpanList {
    spans: Arc<[TextSpan]>,
    /// Number of leading spans of the array that belong to the prompt.
    count: usize,
    /// The span after them that is not in the array.
    last: Option<TextSpan>,
}

impl From<Vec<TextSpan>> for SpanList {
    fn from(spans: Vec<TextSpan>) -> SpanList {
        SpanList { count: spans.len(), spans: spans.into(), last: None }
    }
}

impl SpanList {
    /// Returns the spans in order.
    pub fn iter(&self) -> impl Iterator<Item = TextSpan> + Clone + '_ {
        self.spans[..self.count].iter().copied().chain(self.last)
    }

    /// Returns the number of tokens.
    pub fn tokens(&self) -> u32 {
        self.iter().map(TextSpan::tokens).fold(0, u32::saturating_add)
    }

    /// Returns the number of leading spans that `other` also has. Fast if the lists share an array.
    pub fn common(&self, other: &SpanList) -> usize {
        let both = self.count.min(other.count);
        match Arc::ptr_eq(&self.spans, &other.spans) {
            true => both,
            false => self.iter().zip(other.iter()).take_while(|(one, other)| one == other).count(),
        }
    }

    /// Lets lists use the array of the next list if they are its beginning, apart from their last
    /// span.
    pub fn share<'a>(lists: impl DoubleEndedIterator<Item = &'a mut SpanList>) {
        let mut next: Option<SpanList> = None;
        for list in lists.rev() {
            if let Some(next) = &next
                && let Some(count) = list.iter().count().checked_sub(1)
                && count <= next.spans.len()
                && list.iter().take(count).eq(next.spans[..count].iter().copied())
            {
                let last = list.iter().nth(count);
                *list = SpanList { spans: Arc::clone(&next.spans), count, last };
            }
            next = Some(list.clone());
        }
    }
}

impl PartialEq for SpanList {
    fn eq(&self, other: &SpanList) -> bool {
        self.iter().eq(other.iter())
    }
}

impl Eq for SpanList {}

impl fmt::Debug for SpanList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn block(number: u64, tokens: u32) -> TextSpan {
        TextSpan::Drawn { purpose: "block", number, tokens }
    }

    #[test]
    fn lists_that_continue_each_other_share_an_array() {
        let all = [
            vec![block(1, 16), block(2, 5)],
            vec![],
            vec![block(1, 16), block(2, 16), block(3, 7)],
            vec![block(1, 16), block(2, 16), block(3, 16), block(4, 1)],
            vec![block(9, 16)],
        ];
        let mut lists: Vec<SpanList> = all.iter().cloned().map(SpanList::from).collect();
        SpanList::share(lists.iter_mut());
        for (list, spans) in lists.iter().zip(&all) {
            assert_eq!(list, &SpanList::from(spans.clone()));
            assert_eq!(list.tokens(), spans.iter().map(|span| span.tokens()).sum::<u32>());
        }
        assert!(Arc::ptr_eq(&lists[2].spans, &lists[3].spans));
        assert!(!Arc::ptr_eq(&lists[3].spans, &lists[4].spans));
        let common: Vec<usize> = lists.windows(2).map(|two| two[0].common(&two[1])).collect();
        assert_eq!(common, [0, 0, 2, 0]);
    }
}
