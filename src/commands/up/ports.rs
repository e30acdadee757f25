//! The usual port of a service if it is free, else another.

use crate::commands::listen::Listen;
use crate::engine::base::HostPort;
use crate::engine::sys::ports;

/// Where `what` listens on `host`: at the port that `asked` names, or at its `usual` one if that is free, or at any. Says on
/// `note` who has the usual one. The port may be lost between here and the bind, which is then an error as everywhere.
pub fn choose(what: &'static str, host: &str, asked: Option<u16>, usual: u16, notes: &mut Vec<String>) -> Listen {
    let (port, origin) = match asked {
        Some(port) => (port, format!("port {port} (command line)")),
        None if is_free(host, usual) => (usual, format!("port {usual} (default)")),
        None => {
            let holder = ports::holder(usual).map_or("another process".to_owned(), |holder| holder.to_string());
            notes.push(format!("port {usual} is taken by {holder}: {what} takes another one"));
            (0, "any free port".to_owned())
        }
    };
    Listen { what, at: HostPort::new(host, port), origin, host_origin: format!("--host {host}") }
}

fn is_free(host: &str, port: u16) -> bool {
    std::net::TcpListener::bind((host, port)).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_taken_port_is_replaced_and_its_holder_named() {
        let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
        let port = taken.local_addr().expect("bound").port();
        let mut notes = Vec::new();
        assert_eq!(choose("the RPC", "127.0.0.1", None, port, &mut notes).at.port, 0);
        assert!(notes[0].starts_with(&format!("port {port} is taken by pid {}", std::process::id())), "{notes:?}");
        assert_eq!(
            choose("the RPC", "127.0.0.1", Some(port), port, &mut notes).at.port,
            port,
            "what was asked for is kept"
        );
        assert_eq!(notes.len(), 1);
    }
}
