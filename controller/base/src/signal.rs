//! Signals by name.

use rustix::process::Signal;

/// An unknown signal name. Reads after "failed to".
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("find a signal named {name:?}: use for instance SIGTERM, SIGINT or SIGHUP")]
pub struct UnknownSignal {
    name: String,
}

/// The signals that a task may receive, by their Linux names on x86-64 and AArch64.
const NAMES: [(&str, Signal); 31] = [
    ("SIGHUP", Signal::HUP),
    ("SIGINT", Signal::INT),
    ("SIGQUIT", Signal::QUIT),
    ("SIGILL", Signal::ILL),
    ("SIGTRAP", Signal::TRAP),
    ("SIGABRT", Signal::ABORT),
    ("SIGIOT", Signal::ABORT),
    ("SIGBUS", Signal::BUS),
    ("SIGFPE", Signal::FPE),
    ("SIGKILL", Signal::KILL),
    ("SIGUSR1", Signal::USR1),
    ("SIGSEGV", Signal::SEGV),
    ("SIGUSR2", Signal::USR2),
    ("SIGPIPE", Signal::PIPE),
    ("SIGALRM", Signal::ALARM),
    ("SIGTERM", Signal::TERM),
    ("SIGSTKFLT", Signal::STKFLT),
    ("SIGCHLD", Signal::CHILD),
    ("SIGCONT", Signal::CONT),
    ("SIGSTOP", Signal::STOP),
    ("SIGTSTP", Signal::TSTP),
    ("SIGTTIN", Signal::TTIN),
    ("SIGTTOU", Signal::TTOU),
    ("SIGURG", Signal::URG),
    ("SIGXCPU", Signal::XCPU),
    ("SIGXFSZ", Signal::XFSZ),
    ("SIGVTALRM", Signal::VTALARM),
    ("SIGPROF", Signal::PROF),
    ("SIGWINCH", Signal::WINCH),
    ("SIGIO", Signal::IO),
    ("SIGSYS", Signal::SYS),
];

/// The signal with this name; case-insensitive, with or without `SIG`.
///
/// # Errors
/// If there is none.
pub fn parse(name: &str) -> Result<Signal, UnknownSignal> {
    let upper = name.to_ascii_uppercase();
    let short = upper.strip_prefix("SIG").unwrap_or(&upper);
    NAMES
        .iter()
        .find(|(known, _)| known.strip_prefix("SIG") == Some(short))
        .map(|(_, signal)| *signal)
        .ok_or_else(|| UnknownSignal { name: name.to_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_found_in_every_usual_form() {
        assert_eq!(parse("SIGTERM"), Ok(Signal::TERM));
        assert_eq!(parse("hup"), Ok(Signal::HUP));
        assert_eq!(parse("SigInt"), Ok(Signal::INT));
        for name in ["", "SIG", "15", "SIGSIGTERM", "TERMINATE"] {
            assert!(parse(name).unwrap_err().to_string().contains(name));
        }
    }
}
