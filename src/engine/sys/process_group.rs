//! A group of child processes that ends with its owner.

use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;

/// The processes of a group. Dropping it kills them, unless it was released.
#[derive(Debug)]
pub struct ProcessGroup(Option<Pid>);

impl ProcessGroup {
    /// The group whose leader has this process ID.
    pub fn led_by(leader: u32) -> ProcessGroup {
        // A process ID is positive. Group 0 would be that of the caller.
        ProcessGroup(i32::try_from(leader).ok().filter(|id| *id > 1).map(Pid::from_raw))
    }

    /// Lets the processes run.
    pub fn release(mut self) {
        self.0 = None;
    }
}

impl Drop for ProcessGroup {
    fn drop(&mut self) {
        if let Some(group) = self.0 {
            // The group does not exist if all of its processes have ended.
            let _ = killpg(group, Signal::SIGKILL);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;
    use std::os::unix::process::CommandExt;
    use std::process::{Command, Stdio};

    #[test]
    fn a_dropped_group_ends_with_its_children() {
        let mut command = Command::new("sh");
        command.args(["-c", "sleep 600 & echo started; wait"]).process_group(0).stdout(Stdio::piped());
        let mut shell = command.spawn().expect("a shell");
        let mut output = shell.stdout.take().expect("a pipe");
        output.read_exact(&mut [0; 8]).expect("its line");
        drop(ProcessGroup::led_by(shell.id()));
        // The pipe closes when the last process that holds it has ended.
        output.read_to_end(&mut Vec::new()).expect("the end");
        assert!(!shell.wait().expect("it ended").success());
    }
}
