//! Finds the process that uses a TCP port. `/proc/net/tcp{,6}` lists the sockets, and `/proc/*/fd`
//! maps them to processes. Best effort: processes that belong to other users or namespaces are not
//! visible.
//!
//! Read-only. Used for error messages, never for decisions.

use std::fmt;
use std::fs;
use std::io::{self, BufRead, BufReader};
use std::net::{IpAddr, Ipv4Addr, ToSocketAddrs};
use std::os::fd::AsRawFd;
use std::path::Path;

use nix::sys::socket::{AddressFamily, SockFlag, SockType, SockaddrIn, bind, setsockopt, socket, sockopt};
use procfs_core::net::TcpState;

use crate::procfs;

/// How a process uses a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PortUse {
    Listens,
    /// The port is the local port of an outgoing connection, chosen by the kernel.
    Connects,
}

/// A process that uses a port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortOwner {
    pub port_use: PortUse,
    pub pid: u32,
    /// The command line, shortened for display.
    pub command: String,
}

impl fmt::Display for PortOwner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = match self.port_use {
            PortUse::Listens => "",
            PortUse::Connects => "an outgoing connection from ",
        };
        write!(f, "{what}pid {} ({})", self.pid, self.command)
    }
}

/// Maximum length of the displayed command line, in characters.
const COMMAND_BYTES_MAX: usize = 120;
/// Maximum number of open files searched per process.
const FDS_MAX: usize = 100_000;

/// The process that listens on TCP `port` on this host. If there is none, a process that has a
/// connection from that port. `None` if no such process is visible.
pub fn holder(port: u16) -> Option<PortOwner> {
    holder_under(Path::new("/proc"), port, &|_| true)
}

/// Like [`holder`], for a server on `host`. Processes that use the port on another address are not
/// in its way. Resolves `host`.
pub fn holder_at(host: &str, port: u16) -> Option<PortOwner> {
    let resolved = (host, port).to_socket_addrs().map(|found| found.map(|at| at.ip().to_canonical()).collect());
    let resolved: Vec<IpAddr> = resolved.unwrap_or_default();
    let is_any = resolved.is_empty() || resolved.iter().any(IpAddr::is_unspecified);
    let overlaps = |local: IpAddr| is_any || local.is_unspecified() || resolved.contains(&local.to_canonical());
    holder_under(Path::new("/proc"), port, &overlaps)
}

/// The kernel's port range for outgoing connections. A port in this range may already be in use
/// when a service starts.
pub fn outgoing_range() -> Option<(u16, u16)> {
    parse_outgoing_range(&fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range").ok()?)
}

/// Parses `/proc/sys/net/ipv4/ip_local_port_range` into the first and the last port.
pub fn parse_outgoing_range(text: &str) -> Option<(u16, u16)> {
    let mut numbers = text.split_whitespace().map_while(|number| number.parse().ok());
    Some((numbers.next()?, numbers.next()?))
}

/// Whether a server could listen on TCP `port` of `host`. Listens for a moment. Resolves `host`.
pub fn is_free(host: &str, port: u16) -> bool {
    std::net::TcpListener::bind((host, port)).is_ok()
}

/// Checks whether a server could listen on TCP `port` on all IPv4 addresses. Binds a socket and
/// closes it without listening, so no client can connect to it.
///
/// # Errors
/// Fails with `AddrInUse` if the port is in use, or with `PermissionDenied` for a privileged port
/// (below 1024).
pub fn can_listen(port: u16) -> io::Result<()> {
    let probe = socket(AddressFamily::Inet, SockType::Stream, SockFlag::SOCK_CLOEXEC, None)?;
    // Servers set this option too, so that connections in TIME_WAIT do not block the port.
    setsockopt(&probe, sockopt::ReuseAddr, &true)?;
    let all = SockaddrIn::from(std::net::SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, port));
    Ok(bind(probe.as_raw_fd(), &all)?)
}

/// `is_wanted` selects sockets by their local address.
fn holder_under(proc: &Path, port: u16, is_wanted: &dyn Fn(IpAddr) -> bool) -> Option<PortOwner> {
    let sockets: Vec<(PortUse, u64)> = ["net/tcp", "net/tcp6"]
        .iter()
        .filter_map(|table| fs::File::open(proc.join(table)).ok())
        .flat_map(|file| sockets(BufReader::new(file), port, is_wanted))
        .collect();
    [PortUse::Listens, PortUse::Connects].into_iter().find_map(|port_use| {
        let inodes: Vec<u64> = sockets.iter().filter(|(of, _)| *of == port_use).map(|(_, inode)| *inode).collect();
        owner(proc, &inodes).map(|pid| PortOwner { port_use, pid, command: command_of(&proc.join(pid.to_string())) })
    })
}

/// The first process that owns one of the sockets.
fn owner(proc: &Path, inodes: &[u64]) -> Option<u32> {
    if inodes.is_empty() {
        return None;
    }
    let mut pids = fs::read_dir(proc).ok()?.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<u32>().ok());
    pids.find(|pid| has_socket(&proc.join(pid.to_string()).join("fd"), inodes))
}

/// The inodes of the sockets with local port `port`, from the contents of `/proc/net/tcp` or
/// `tcp6`.
fn sockets(table: impl BufRead, port: u16, is_wanted: &dyn Fn(IpAddr) -> bool) -> Vec<(PortUse, u64)> {
    let port_use = |state| if state == TcpState::Listen { PortUse::Listens } else { PortUse::Connects };
    // A connection in TIME_WAIT has inode 0 and belongs to no process.
    procfs::tcp_sockets(table)
        .filter(|socket| socket.local_address.port() == port && socket.inode > 0)
        .filter(|socket| is_wanted(socket.local_address.ip()))
        .map(|socket| (port_use(socket.state), socket.inode))
        .collect()
}

fn has_socket(fds: &Path, inodes: &[u64]) -> bool {
    let Ok(entries) = fs::read_dir(fds) else { return false };
    entries.take(FDS_MAX).flatten().any(|entry| {
        let Ok(target) = fs::read_link(entry.path()) else { return false };
        let inode = target.to_str().and_then(|name| name.strip_prefix("socket:[")?.strip_suffix(']')?.parse().ok());
        inode.is_some_and(|inode: u64| inodes.contains(&inode))
    })
}

fn command_of(process: &Path) -> String {
    let mut line = fs::read(process.join("cmdline")).unwrap_or_default();
    while line.last() == Some(&0) {
        line.pop();
    }
    if line.is_empty() {
        line = fs::read(process.join("comm")).unwrap_or_default();
    }
    let text = String::from_utf8_lossy(&line).replace(|c: char| c == '\0' || c.is_control(), " ");
    let text = text.trim();
    match text.char_indices().nth(COMMAND_BYTES_MAX) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &str = "\
  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 0100007F:C383 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 4242 1 0000000000000000 100 0 0 10 0
   1: 0100007F:C383 0100007F:D431 01 00000000:00000000 00:00000000 00000000     0        0 4243 1 0000000000000000 20 4 30 10 -1
   2: 00000000:232B 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 4244 1 0000000000000000 100 0 0 10 0
    3: 0100007F:0002 0100007F:D431 06 00000000:00000000 03:00000F00 00000000     0        0 0 3 0000000000000000
  short line
";

    #[test]
    fn sockets_of_a_port_are_found_with_their_use() {
        let found = |port| sockets(TABLE.as_bytes(), port, &|_| true);
        assert_eq!(found(50051), [(PortUse::Listens, 4242), (PortUse::Connects, 4243)]);
        assert_eq!(found(9003), [(PortUse::Listens, 4244)]);
        assert!(found(1).is_empty() && found(2).is_empty());
    }

    #[test]
    fn the_owner_of_our_own_port_is_this_process() {
        for address in ["127.0.0.1:0", "[::1]:0"] {
            // Skipped on a machine without IPv6.
            let Ok(listener) = std::net::TcpListener::bind(address) else { continue };
            let port = listener.local_addr().expect("bound").port();
            let holder = holder(port).expect("our own sockets can be seen");
            assert_eq!((holder.pid, holder.port_use), (std::process::id(), PortUse::Listens));
            assert!(!holder.command.is_empty());
        }
    }

    #[test]
    fn a_listener_on_another_address_does_not_hold_the_port() {
        let listener = std::net::TcpListener::bind("127.0.0.2:0").expect("a port");
        let port = listener.local_addr().expect("bound").port();
        let pid = |host| holder_at(host, port).map(|holder| holder.pid);
        let own = Some(std::process::id());
        assert_eq!([pid("127.0.0.1"), pid("127.0.0.2"), pid("0.0.0.0"), pid("::")], [None, own, own, own]);
    }

    #[test]
    fn a_port_without_a_listener_is_free() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
        let port = listener.local_addr().expect("bound").port();
        assert_eq!(can_listen(port).expect_err("the port is in use").kind(), io::ErrorKind::AddrInUse);
        drop(listener);
        can_listen(port).expect("the port is free again");
    }

    #[test]
    fn an_outgoing_connection_owns_its_local_port() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
        let out = std::net::TcpStream::connect(listener.local_addr().expect("bound")).expect("it listens");
        let holder = holder(out.local_addr().expect("connected").port()).expect("our own sockets can be seen");
        assert_eq!(holder.port_use, PortUse::Connects);
        assert!(holder.to_string().starts_with("an outgoing connection from pid "));
    }

    #[test]
    fn a_long_command_line_is_cut() {
        let dir = tempfile::tempdir().expect("a folder");
        fs::write(dir.path().join("cmdline"), format!("prog\0{}\0", "é".repeat(500))).expect("written");
        let shown = command_of(dir.path());
        assert!(
            shown.starts_with("prog é") && shown.ends_with("...") && shown.chars().count() == COMMAND_BYTES_MAX + 3
        );
    }
}
