//! How long a server takes to answer the calls of each method.
//!
//! Each worker records into histograms of its own, so that workers do not share cache lines.

use std::sync::Arc;
use std::time::Duration;

use mcctl_base::{LatencyHistogram, LatencySnapshot};
use mcctl_wire::Method;

/// The histograms of all workers of a server. Cheap to clone.
#[derive(Clone, Debug)]
pub struct RpcLatency(Arc<[WorkerLatency]>);

/// The histograms of a worker, by method.
#[derive(Debug)]
struct WorkerLatency(Box<[LatencyHistogram]>);

impl RpcLatency {
    pub(super) fn new(workers: usize) -> RpcLatency {
        let methods = || Method::ALL.iter().map(|_| LatencyHistogram::default()).collect();
        RpcLatency((0..workers).map(|_| WorkerLatency(methods())).collect())
    }

    /// For a service without a server.
    pub fn none() -> RpcLatency {
        RpcLatency(Arc::new([]))
    }

    /// Records that worker `index` has answered `count` calls of `method` in `duration` each.
    #[inline]
    pub(super) fn record(&self, index: usize, method: Method, count: u32, duration: Duration) {
        let histogram = self.0.get(index).and_then(|worker| worker.0.get(method as usize));
        if let Some(histogram) = histogram {
            histogram.record(duration, u64::from(count));
        }
    }

    /// The histograms of the methods that were called, summed over the workers.
    pub fn by_method(&self) -> Vec<(Method, LatencySnapshot)> {
        let of_method = |method: &Method| {
            let mut all = LatencySnapshot::default();
            let histograms = self.0.iter().filter_map(|worker| worker.0.get(*method as usize));
            histograms.for_each(|histogram| all.merge(&histogram.snapshot()));
            (*method, all)
        };
        Method::ALL.iter().map(of_method).filter(|(_, all)| all.count() > 0).collect()
    }
}

/// The calls whose responses are ready, but for the storage of their changes. Consecutive calls of
/// the same method are one entry. The list keeps its memory, so that it allocates only for the
/// first calls of a connection.
#[derive(Debug, Default)]
pub(super) struct AnsweredCalls(Vec<(Method, u32)>);

impl AnsweredCalls {
    /// Adds a call of `method`.
    #[inline]
    pub(super) fn add(&mut self, method: Method) {
        match self.0.last_mut() {
            Some((last, count)) if *last == method => *count += 1,
            _ => self.0.push((method, 1)),
        }
    }

    /// Whether no call was answered since the last [`record`](Self::record).
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Records the calls, and empties the list.
    #[inline]
    pub(super) fn record(&mut self, latency: &RpcLatency, worker: usize, duration: Duration) {
        self.0.drain(..).for_each(|(method, count)| latency.record(worker, method, count, duration));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_method_is_the_index_of_its_histogram() {
        assert!(Method::ALL.iter().enumerate().all(|(index, method)| *method as usize == index));
    }

    #[test]
    fn workers_are_summed_and_methods_without_calls_are_left_out() {
        let latency = RpcLatency::new(2);
        let mut answered = AnsweredCalls::default();
        [Method::PutStart, Method::PutStart, Method::Ping].into_iter().for_each(|method| answered.add(method));
        answered.record(&latency, 0, Duration::from_millis(1));
        assert!(answered.is_empty());
        answered.add(Method::PutStart);
        answered.record(&latency, 1, Duration::from_millis(3));
        let found: Vec<_> = latency.by_method().iter().map(|(method, all)| (*method, all.count(), all.sum())).collect();
        let ms = Duration::from_millis;
        assert_eq!(found, [(Method::Ping, 1, ms(1)), (Method::PutStart, 3, ms(5))]);
        assert!(RpcLatency::none().by_method().is_empty());
    }
}
