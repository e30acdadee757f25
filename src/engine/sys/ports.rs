//! Who listens on a TCP port: `/proc/net/tcp{,6}` tells the socket, `/proc/*/fd` the process. Best effort: the processes of other
//! users and of other namespaces cannot be seen.
//!
//! Only reads; used for the words of an error, never for a decision.

use std::fmt;
use std::fs;
use std::io::{self, BufRead, BufReader, Read};
use std::path::Path;

/// A process that listens on a port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder {
    /// Its process id.
    pub pid: u32,
    /// Its command line, cut to a readable length.
    pub command: String,
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "pid {} ({})", self.pid, self.command)
    }
}

/// The longest command line that is shown, bytes.
const COMMAND_BYTES_MAX: usize = 120;
/// A process with more open files than this is not searched to the end.
const FDS_MAX: usize = 100_000;
/// `st` of a listening socket in `/proc/net/tcp`.
const LISTEN: &str = "0A";

/// The process that listens on TCP `port` of this machine, if it can be seen.
pub fn holder(port: u16) -> Option<Holder> {
    holder_under(Path::new("/proc"), port)
}

fn holder_under(proc: &Path, port: u16) -> Option<Holder> {
    let inodes: Vec<u64> = ["net/tcp", "net/tcp6"]
        .iter()
        .filter_map(|table| fs::File::open(proc.join(table)).ok())
        .flat_map(|file| listeners(file, port).unwrap_or_default())
        .collect();
    if inodes.is_empty() {
        return None;
    }
    let pids = fs::read_dir(proc).ok()?.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<u32>().ok());
    pids.filter(|pid| has_socket(&proc.join(pid.to_string()).join("fd"), &inodes))
        .map(|pid| Holder { pid, command: command_of(&proc.join(pid.to_string())) })
        .next()
}

/// The inodes of the sockets that listen on `port`, from the text of `/proc/net/tcp` or `tcp6`.
///
/// # Errors
/// The text cannot be read. Lines of another form are passed over.
fn listeners(table: impl Read, port: u16) -> io::Result<Vec<u64>> {
    let mut inodes = Vec::new();
    for line in BufReader::new(table).lines().skip(1) {
        let line = line?;
        // sl local_address rem_address st tx_queue:rx_queue tr:tm->when retrnsmt uid timeout inode
        let fields: Vec<&str> = line.split_whitespace().collect();
        let (Some(local), Some(state), Some(inode)) = (fields.get(1), fields.get(3), fields.get(9)) else { continue };
        let found = local.rsplit_once(':').and_then(|(_, hex)| u16::from_str_radix(hex, 16).ok());
        if *state == LISTEN && found == Some(port) {
            inodes.extend(inode.parse::<u64>());
        }
    }
    Ok(inodes)
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
   short line
";

    #[test]
    fn only_a_listening_socket_of_the_port_counts() {
        assert_eq!(listeners(TABLE.as_bytes(), 50051).expect("text"), [4242]);
        assert_eq!(listeners(TABLE.as_bytes(), 9003).expect("text"), [4244]);
        assert!(listeners(TABLE.as_bytes(), 1).expect("text").is_empty());
    }

    #[test]
    fn a_port_of_this_process_is_held_by_this_process() {
        for address in ["127.0.0.1:0", "[::1]:0"] {
            // A machine without IPv6 has no second case.
            let Ok(listener) = std::net::TcpListener::bind(address) else { continue };
            let port = listener.local_addr().expect("bound").port();
            let holder = holder(port).expect("our own sockets can be seen");
            assert_eq!(holder.pid, std::process::id());
            assert!(!holder.command.is_empty());
        }
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
