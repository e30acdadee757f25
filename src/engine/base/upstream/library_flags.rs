//! The flags of the libraries that upstream's programs link to: glog and gflags. They are not keys
//! of a settings file.

use crate::upstream::flags::FlagKind::{Int32, Switch, Text};
use crate::upstream::flags::{FlagKind, UpstreamFlag, flag};

const fn library(name: &'static str, kind: FlagKind, default: &'static str) -> UpstreamFlag {
    flag(name, kind, default).not_a_key()
}

/// Flags of glog, then those of gflags.
#[rustfmt::skip]
pub const LIBRARY_FLAGS: &[UpstreamFlag] = &[
    library("alsologtoemail", Text, ""),
    library("alsologtostderr", Switch, "false"),
    library("colorlogtostderr", Switch, "false"),
    library("drop_log_memory", Switch, "true"),
    library("log_backtrace_at", Text, ""),
    library("log_dir", Text, ""),
    library("log_link", Text, ""),
    library("log_prefix", Switch, "true"),
    library("logbuflevel", Int32, "0"),
    library("logbufsecs", Int32, "30"),
    library("logemaillevel", Int32, "999"),
    library("logfile_mode", Int32, "436"),
    library("logmailer", Text, "/bin/mail"),
    library("logtostderr", Switch, "false"),
    library("max_log_size", Int32, "1800"),
    library("minloglevel", Int32, "0"),
    library("stderrthreshold", Int32, "2"),
    library("stop_logging_if_full_disk", Switch, "false"),
    library("symbolize_stacktrace", Switch, "true"),
    library("v", Int32, "0"),
    library("vmodule", Text, ""),
    library("flagfile", Text, ""),
    library("fromenv", Text, ""),
    library("tryfromenv", Text, ""),
    library("undefok", Text, ""),
    library("tab_completion_columns", Int32, "80"),
    library("tab_completion_word", Text, ""),
    library("help", Switch, "false"),
    library("helpfull", Switch, "false"),
    library("helpmatch", Text, ""),
    library("helpon", Text, ""),
    library("helppackage", Switch, "false"),
    library("helpshort", Switch, "false"),
    library("helpxml", Switch, "false"),
    library("version", Switch, "false"),
];
