//! The usual port of a service if it is free, else another.

use crate::commands::error::Failure;
use crate::commands::listen::{Listen, check_collisions};
use crate::engine::base::HostPort;
use crate::engine::sys::ports;

/// One listener, and the port that it wants.
#[derive(Clone, Copy, Debug)]
pub struct Wanted {
    /// What listens.
    pub what: &'static str,
    /// The flag that chooses its port.
    pub flag: &'static str,
    /// The port that the flag names.
    pub asked: Option<u16>,
    /// The port without the flag.
    pub usual: u16,
}

/// Where each of `wanted` listens on `host`: at the port that was asked for, or at its usual one if that is free, or at any. Says in
/// `notes` who has a usual one. A port may be lost between here and the bind, which is then an error as everywhere.
///
/// # Errors
/// Two are asked to listen on one port.
pub fn choose(host: &str, wanted: &[Wanted], notes: &mut Vec<String>) -> Result<Vec<Listen>, Failure> {
    let listens: Vec<Listen> = wanted.iter().map(|one| place(host, one, wanted, notes)).collect();
    check_collisions(&listens)?;
    Ok(listens)
}

fn place(host: &str, one: &Wanted, all: &[Wanted], notes: &mut Vec<String>) -> Listen {
    let Wanted { what, flag, asked, usual } = *one;
    let (port, origin) = if let Some(port) = asked {
        (port, format!("{flag} {port} (command line)"))
    } else if let Some(holder) = holder(host, usual, all) {
        notes.push(format!("port {usual} is taken by {holder}: {what} takes another one"));
        (0, format!("{flag}, any free port"))
    } else {
        (usual, format!("{flag} {usual} (default)"))
    };
    Listen { what, at: HostPort::new(host, port), origin, host_origin: format!("--host {host}") }
}

/// Who has `port`, or will.
fn holder(host: &str, port: u16, all: &[Wanted]) -> Option<String> {
    if let Some(other) = all.iter().find(|other| other.asked == Some(port)) {
        return Some(format!("{} {port}", other.flag));
    }
    let is_free = std::net::TcpListener::bind((host, port)).is_ok();
    (!is_free).then(|| ports::holder(port).map_or("another process".to_owned(), |holder| holder.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const RPC: Wanted = Wanted { what: "the RPC", flag: "--rpc-port", asked: None, usual: 0 };
    const ADMIN: Wanted = Wanted { what: "the admin HTTP", flag: "--metrics-port", asked: None, usual: 0 };

    fn choose_ports(wanted: &[Wanted]) -> Result<(Vec<u16>, Vec<String>), Failure> {
        let mut notes = Vec::new();
        let chosen = choose("127.0.0.1", wanted, &mut notes)?;
        Ok((chosen.iter().map(|listen| listen.at.port).collect(), notes))
    }

    #[test]
    fn a_taken_port_is_replaced_and_its_holder_named() {
        let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
        let port = taken.local_addr().expect("bound").port();
        let (ports, notes) = choose_ports(&[Wanted { usual: port, ..RPC }]).expect("one alone");
        assert_eq!(ports, [0]);
        assert!(notes[0].starts_with(&format!("port {port} is taken by pid {}", std::process::id())), "{notes:?}");
        let asked = choose_ports(&[Wanted { usual: port, asked: Some(port), ..RPC }]).expect("one alone");
        assert_eq!(asked, (vec![port], vec![]), "what was asked for is kept");
    }

    #[test]
    fn one_port_for_two_is_refused_and_both_flags_are_named() {
        let failure = choose_ports(&[Wanted { asked: Some(7), ..RPC }, Wanted { asked: Some(7), ..ADMIN }]);
        let failure = failure.expect_err("both want it");
        assert_eq!(failure.what, "the RPC and the admin HTTP are given one port, 7");
        assert_eq!(failure.found.as_deref(), Some("--rpc-port 7 (command line) and --metrics-port 7 (command line)"));
    }

    #[test]
    fn a_usual_port_gives_way_to_one_that_was_asked_for() {
        let found = choose_ports(&[Wanted { usual: 7, ..RPC }, Wanted { asked: Some(7), ..ADMIN }]);
        let notes = vec!["port 7 is taken by --metrics-port 7: the RPC takes another one".to_owned()];
        assert_eq!(found, Ok((vec![0, 7], notes)));
    }
}
