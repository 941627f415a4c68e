//! The signals that end a command.

/// Completes on Ctrl-C, on SIGTERM, and on SIGHUP (a closed terminal) unless it is ignored, as `nohup` arranges. Listens
/// from the call on; needs a tokio runtime.
pub fn interrupted() -> impl Future<Output = ()> {
    use tokio::signal::unix::{SignalKind, signal};
    let hangup = (!is_ignored(SignalKind::hangup())).then(|| signal(SignalKind::hangup()).ok()).flatten();
    let signals = (signal(SignalKind::interrupt()), signal(SignalKind::terminate()));
    async {
        let (Ok(mut interrupt), Ok(mut terminate)) = signals else { return std::future::pending().await };
        let hung_up = async move {
            match hangup {
                Some(mut hangup) => drop(hangup.recv().await),
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
            () = hung_up => {}
        }
    }
}

/// Whether this process ignores the signal, as proc_pid_status(5) reports it.
fn is_ignored(kind: tokio::signal::unix::SignalKind) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    is_ignored_in(&status, kind.as_raw_value())
}

fn is_ignored_in(status: &str, signal: i32) -> bool {
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or_default();
    u32::try_from(signal - 1).is_ok_and(|bit| mask.checked_shr(bit).is_some_and(|rest| rest & 1 == 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ignored_signals_are_read_from_the_mask() {
        let status = "Name:\tx\nSigBlk:\t0000000000000000\nSigIgn:\t0000000000001001\n";
        assert!(is_ignored_in(status, 1));
        assert!(is_ignored_in(status, 13));
        assert!(!is_ignored_in(status, 2));
        assert!(!is_ignored_in("", 1));
    }
}
