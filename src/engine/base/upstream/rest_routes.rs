//! The HTTP routes of upstream's programs.

/// A route: what a program answers with something other than 404.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HttpRoute {
    pub method: &'static str,
    /// The path, with `{key}` for an object's key.
    pub path: &'static str,
    /// The first release that has the route, if an older release is known to lack it.
    pub since: Option<&'static str>,
}

const fn route(method: &'static str, path: &'static str) -> HttpRoute {
    HttpRoute { method, path, since: None }
}

impl HttpRoute {
    const fn since(mut self, release: &'static str) -> HttpRoute {
        self.since = Some(release);
        self
    }
}

/// Admin HTTP of a master. The routes of features that mcctl does not have (drain jobs, tenants)
/// come last.
pub const ADMIN_ROUTES: &[HttpRoute] = &[
    route("GET", "/metrics"),
    route("GET", "/metrics/summary"),
    route("GET", "/health"),
    route("GET", "/role").since("0.3.11"),
    route("GET", "/ha_status").since("0.3.11"),
    route("GET", "/leader").since("0.3.11"),
    route("GET", "/get_all_keys"),
    route("GET", "/get_all_segments"),
    route("GET", "/get_segments_detail").since("0.3.12"),
    route("GET", "/query_segment"),
    route("GET", "/query_key"),
    route("GET", "/batch_query_keys").since("0.3.9"),
    route("GET", "/api/v1/segments/status").since("0.3.11"),
    route("POST", "/api/v1/remove_all").since("0.3.12"),
    route("GET", "/kv_events/status").since("0.3.12"),
    route("POST", "/api/v1/drain_jobs").since("0.3.11"),
    route("GET", "/api/v1/drain_jobs/query").since("0.3.11"),
    route("POST", "/api/v1/drain_jobs/cancel").since("0.3.11"),
    route("GET", "/api/v1/tenant_quotas").since("0.3.12"),
];

/// REST API of the store service.
pub const STORE_ROUTES: &[HttpRoute] = &[
    route("POST", "/api/reconfigure"),
    route("POST", "/api/mount_shm"),
    route("POST", "/api/unmount_shm"),
    route("POST", "/api/mount"),
    route("POST", "/api/unmount"),
    route("POST", "/api/unmount_local_disk"),
    route("PUT", "/api/put"),
    route("GET", "/api/get/{key}"),
    route("GET", "/api/exist/{key}"),
    route("DELETE", "/api/remove/{key}"),
    route("DELETE", "/api/remove_all"),
];

/// HTTP server of a client.
pub const CLIENT_ROUTES: &[HttpRoute] =
    &[route("GET", "/health"), route("GET", "/metrics"), route("GET", "/metrics/summary")];

/// The metadata service, in the master or alone.
pub const METADATA_ROUTES: &[HttpRoute] =
    &[route("GET", "/metadata"), route("PUT", "/metadata"), route("DELETE", "/metadata")];
