//! Signals by name.

use herdlet_api_types::manifest::scalar;
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

/// The number of `SIGRTMIN` for programs that use glibc, as tasks do and as other supervisors send it. glibc keeps 32 and 33.
const REALTIME_MIN: i32 = 34;

/// The signal with this name; case-insensitive, with or without `SIG`.
///
/// # Errors
/// If there is none.
pub fn parse(name: &str) -> Result<Signal, UnknownSignal> {
    let name = full_name(name);
    let named = NAMES.iter().find(|(known, _)| *known == name).map(|(_, signal)| *signal);
    let signal = named.or_else(|| scalar::realtime(&name).map(realtime));
    signal.ok_or(UnknownSignal { name })
}

/// The usual form of a signal's name or number: `hup`, `SIGHUP` and `1` are `SIGHUP`. Unknown ones stay as they are.
pub fn full_name(text: &str) -> String {
    if let Ok(number) = text.parse::<i32>() {
        let named =
            NAMES.iter().find(|(_, signal)| signal.as_raw() == number).map(|(name, _)| (*name).to_owned());
        let is_realtime = (REALTIME_MIN..=64).contains(&number);
        let realtime = is_realtime.then(|| format!("SIGRTMIN+{}", number - REALTIME_MIN));
        return named.or(realtime).unwrap_or_else(|| text.to_owned());
    }
    let upper = text.to_ascii_uppercase();
    if upper.starts_with("SIG") { upper } else { format!("SIG{upper}") }
}

#[expect(unsafe_code, reason = "rustix has no names for real-time signals")]
fn realtime(position: u8) -> Signal {
    // SAFETY: the number is from 34 to 64: a valid signal that glibc does not keep for itself.
    unsafe { Signal::from_raw_unchecked(REALTIME_MIN + i32::from(position)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_found_in_every_usual_form() {
        assert_eq!(parse("SIGTERM"), Ok(Signal::TERM));
        assert_eq!(parse("hup"), Ok(Signal::HUP));
        assert_eq!(parse("SigInt"), Ok(Signal::INT));
        assert_eq!(parse("15"), Ok(Signal::TERM));
        for (name, number) in
            [("SIGRTMIN", 34), ("rtmin+3", 37), ("SIGRTMAX-1", 63), ("SIGRTMAX", 64), ("36", 36)]
        {
            assert_eq!(parse(name).map(Signal::as_raw), Ok(number), "{name}");
        }
        for name in ["", "SIG", "0", "65", "32", "SIGSIGTERM", "TERMINATE", "SIGRTMIN+31", "SIGRTMIN-1"] {
            assert!(parse(name).unwrap_err().to_string().contains(name));
        }
    }
}
