//! What a request needs, from its method and route.

use hyper::Method;

/// The route for unknown paths.
pub const OTHER_ROUTE: &str = "other";

/// What a request needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum RouteClass {
    /// Nothing, unless [`protect_metrics`](crate::http::AccessPolicy::protect_metrics) is set:
    /// `/health`, `/ready` and `/metrics`.
    Open,
    /// A token of any role.
    Read,
    /// A token with the role write: the request may change something.
    Write,
}

impl RouteClass {
    /// The class of a request to `route` (see [`Handler::route`](crate::http::Handler::route)). An
    /// unknown route may change something.
    pub fn of(method: &Method, route: &str) -> RouteClass {
        match (method, route) {
            (_, OTHER_ROUTE) => RouteClass::Write,
            (&Method::GET | &Method::HEAD, "/health" | "metadata:/health" | "/ready" | "/metrics") => RouteClass::Open,
            (&Method::GET | &Method::HEAD, _) => RouteClass::Read,
            _ => RouteClass::Write,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_routes_and_methods_may_change_something() {
        for (method, route, class) in [
            (Method::GET, "/metrics", RouteClass::Open),
            (Method::HEAD, "/ready", RouteClass::Open),
            (Method::GET, "metadata:/health", RouteClass::Open),
            (Method::POST, "/health", RouteClass::Write),
            (Method::GET, "/metadata", RouteClass::Read),
            (Method::GET, "/metrics/summary", RouteClass::Read),
            (Method::PUT, "/metadata", RouteClass::Write),
            (Method::OPTIONS, "/metadata", RouteClass::Write),
            (Method::GET, OTHER_ROUTE, RouteClass::Write),
        ] {
            assert_eq!(RouteClass::of(&method, route), class, "{method} {route}");
        }
    }
}
