//! The metric families that upstream's programs export.

/// The type of a metric family, as in its `# TYPE` line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetricType {
    Counter,
    Gauge,
    Histogram,
}

/// A metric family in a program's `/metrics`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MetricFamily {
    pub name: &'static str,
    pub kind: MetricType,
}

impl MetricType {
    /// The type as Prometheus writes it.
    pub fn text(self) -> &'static str {
        match self {
            MetricType::Counter => "counter",
            MetricType::Gauge => "gauge",
            MetricType::Histogram => "histogram",
        }
    }
}

const fn counter(name: &'static str) -> MetricFamily {
    MetricFamily { name, kind: MetricType::Counter }
}

const fn gauge(name: &'static str) -> MetricFamily {
    MetricFamily { name, kind: MetricType::Gauge }
}

const fn histogram(name: &'static str) -> MetricFamily {
    MetricFamily { name, kind: MetricType::Histogram }
}

/// Families at `/metrics` of a master, in its order. The four that end in `_mem` appear with the
/// first eviction.
#[rustfmt::skip]
pub const MASTER_METRICS: &[MetricFamily] = &[
    gauge("master_allocated_bytes"),
    gauge("master_total_capacity_bytes"),
    gauge("segment_allocated_bytes"),
    gauge("segment_total_capacity_bytes"),
    gauge("master_nof_allocated_bytes"),
    gauge("master_total_nof_capacity_bytes"),
    gauge("master_allocated_file_size_bytes"),
    gauge("master_total_file_capacity_bytes"),
    gauge("master_key_count"),
    gauge("master_soft_pin_key_count"),
    gauge("master_active_clients"),
    histogram("master_value_size_bytes"),
    counter("master_exist_key_requests_total"),
    counter("master_exist_key_failures_total"),
    counter("master_put_start_requests_total"),
    counter("master_put_start_failures_total"),
    counter("master_put_start_alloc_failures_total"),
    counter("master_put_start_partial_allocations_total"),
    counter("master_put_end_requests_total"),
    counter("master_put_end_failures_total"),
    counter("master_put_revoke_requests_total"),
    counter("master_put_revoke_failures_total"),
    counter("master_get_replica_list_requests_total"),
    counter("master_get_replica_list_failures_total"),
    counter("master_get_replica_list_by_regex_requests_total"),
    counter("master_get_replica_list_by_regex_failures_total"),
    counter("master_remove_requests_total"),
    counter("master_remove_failures_total"),
    counter("master_remove_by_regex_requests_total"),
    counter("master_remove_by_regex_failures_total"),
    counter("master_remove_all_requests_total"),
    counter("master_remove_all_failures_total"),
    counter("master_mount_segment_requests_total"),
    counter("master_mount_segment_failures_total"),
    counter("master_unmount_segment_requests_total"),
    counter("master_unmount_segment_failures_total"),
    counter("master_remount_segment_requests_total"),
    counter("master_remount_segment_failures_total"),
    counter("master_ping_requests_total"),
    counter("master_ping_failures_total"),
    counter("master_copy_start_requests_total"),
    counter("master_copy_start_failures_total"),
    counter("master_copy_end_requests_total"),
    counter("master_copy_end_failures_total"),
    counter("master_copy_revoke_requests_total"),
    counter("master_copy_revoke_failures_total"),
    counter("master_move_start_requests_total"),
    counter("master_move_start_failures_total"),
    counter("master_move_end_requests_total"),
    counter("master_move_end_failures_total"),
    counter("master_move_revoke_requests_total"),
    counter("master_move_revoke_failures_total"),
    counter("master_evict_disk_replica_requests_total"),
    counter("master_evict_disk_replica_failures_total"),
    counter("master_create_copy_task_requests_total"),
    counter("master_create_copy_task_failures_total"),
    counter("master_create_move_task_requests_total"),
    counter("master_create_move_task_failures_total"),
    counter("master_update_task_requests_total"),
    counter("master_update_task_failures_total"),
    counter("master_query_task_requests_total"),
    counter("master_query_task_failures_total"),
    counter("master_fetch_tasks_requests_total"),
    counter("master_fetch_tasks_failures_total"),
    counter("master_batch_exist_key_requests_total"),
    counter("master_batch_exist_key_failures_total"),
    counter("master_batch_exist_key_partial_successes_total"),
    counter("master_batch_exist_key_items_total"),
    counter("master_batch_exist_key_failed_items_total"),
    counter("master_batch_query_ip_requests_total"),
    counter("master_batch_query_ip_failures_total"),
    counter("master_batch_query_ip_partial_successes_total"),
    counter("master_batch_query_ip_items_total"),
    counter("master_batch_query_ip_failed_items_total"),
    counter("master_batch_replica_clear_requests_total"),
    counter("master_batch_replica_clear_failures_total"),
    counter("master_batch_replica_clear_partial_successes_total"),
    counter("master_batch_replica_clear_items_total"),
    counter("master_batch_replica_clear_failed_items_total"),
    counter("master_batch_get_replica_list_requests_total"),
    counter("master_batch_get_replica_list_failures_total"),
    counter("master_batch_get_replica_list_partial_successes_total"),
    counter("master_batch_get_replica_list_items_total"),
    counter("master_batch_get_replica_list_failed_items_total"),
    counter("master_batch_put_start_requests_total"),
    counter("master_batch_put_start_failures_total"),
    counter("master_batch_put_start_partial_successes_total"),
    counter("master_batch_put_start_items_total"),
    counter("master_batch_put_start_failed_items_total"),
    counter("master_batch_put_end_requests_total"),
    counter("master_batch_put_end_failures_total"),
    counter("master_batch_put_end_partial_successes_total"),
    counter("master_batch_put_end_items_total"),
    counter("master_batch_put_end_failed_items_total"),
    counter("master_batch_put_revoke_requests_total"),
    counter("master_batch_put_revoke_failures_total"),
    counter("master_batch_put_revoke_partial_successes_total"),
    counter("master_batch_put_revoke_items_total"),
    counter("master_batch_put_revoke_failed_items_total"),
    counter("mem_cache_hit_nums_"),
    counter("file_cache_hit_nums_"),
    counter("mem_cache_hit_bytes_total"),
    counter("file_cache_hit_bytes_total"),
    gauge("mem_cache_nums_"),
    gauge("file_cache_nums_"),
    counter("valid_get_nums_"),
    counter("total_get_nums_"),
    counter("master_successful_evictions_total"),
    counter("master_attempted_evictions_total"),
    counter("master_evicted_key_count"),
    counter("master_evicted_size_bytes"),
    counter("master_successful_evictions_mem"),
    counter("master_attempted_evictions_mem"),
    counter("master_evicted_key_count_mem"),
    counter("master_evicted_size_bytes_mem"),
    counter("master_put_start_discard_cnt"),
    counter("master_put_start_release_cnt"),
    gauge("master_put_start_discarded_staging_size"),
    gauge("master_promotion_in_flight"),
    counter("master_promotion_admitted_total"),
    counter("master_promotion_completed_total"),
    counter("master_promotion_completed_bytes_total"),
    counter("master_promotion_expired_total"),
    counter("master_promotion_failed_total"),
    counter("master_promotion_cancelled_total"),
    counter("master_promotion_rejected_frequency_total"),
    counter("master_promotion_rejected_watermark_total"),
    counter("master_promotion_rejected_cap_total"),
    counter("master_promotion_candidate_recorded_total"),
    counter("master_promotion_candidate_admitted_total"),
    counter("master_promotion_candidate_admission_rejected_total"),
    counter("master_promotion_candidate_expired_evaluated_total"),
    counter("master_promotion_candidate_expired_unevaluated_total"),
    counter("master_promotion_candidate_dropped_limit_total"),
    gauge("ha_oplog_last_sequence_id"),
    gauge("ha_oplog_applied_sequence_id"),
    gauge("ha_oplog_standby_lag"),
    gauge("ha_oplog_pending_entries"),
    gauge("ha_pending_mutation_queue_size"),
    gauge("ha_standby_state"),
];

/// Families at `/metrics` of a client's HTTP server, in its order.
#[rustfmt::skip]
pub const CLIENT_METRICS: &[MetricFamily] = &[
    counter("mooncake_transfer_read_bytes"),
    counter("mooncake_transfer_write_bytes"),
    histogram("mooncake_transfer_get_latency"),
    histogram("mooncake_transfer_put_latency"),
    counter("mooncake_client_rpc_count"),
    histogram("mooncake_client_rpc_latency"),
    counter("mooncake_transfer_read_operation_count"),
    counter("mooncake_transfer_read_operation_bytes"),
    histogram("mooncake_transfer_read_operation_latency"),
    counter("mooncake_transfer_write_operation_count"),
    counter("mooncake_transfer_write_operation_bytes"),
    histogram("mooncake_transfer_write_operation_latency"),
];
