//! Errors of commands: what failed, where, why, what to do, and the exit code.

use crate::client::{ClientError, Effect};

/// The operation failed.
pub const FAILED: u8 = 1;
/// The command line or a manifest is invalid.
pub const USAGE: u8 = 2;
/// The timeout elapsed before the goal was reached.
pub(super) const TIMED_OUT: u8 = 3;
/// A deployment failed, and the job reverted to a stable version.
pub(super) const REVERTED: u8 = 4;
/// Another client applied a newer version meanwhile.
pub(super) const SUPERSEDED: u8 = 5;
/// `run` and `exec`: herdlet failed, not the task.
pub const AGENT_FAILED: u8 = 125;
/// `run` and `exec`: the command exists, but cannot be started.
pub const CANNOT_RUN: u8 = 126;
/// `run` and `exec`: the command does not exist.
pub const NOT_FOUND: u8 = 127;
/// `exec`: 128 + SIGPIPE.
pub const NOBODY_READS: u8 = 141;
/// Ctrl-C: 128 + SIGINT.
pub(super) const INTERRUPTED: u8 = 130;

/// The parts of errors about programs that exist and cannot be started.
const CANNOT_RUN_TEXTS: [&str; 3] = ["permission denied", "exec format", "executable:"];

#[derive(Debug)]
pub struct Failure {
    pub code: u8,
    message: String,
    hint: Option<String>,
    source: Source,
}

/// Where a failure comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Source {
    /// No agent has answered.
    NoAnswer,
    Other,
}

impl Failure {
    pub fn new(message: impl Into<String>) -> Self {
        Self { code: FAILED, message: message.into(), hint: None, source: Source::Other }
    }

    /// What failed.
    pub(super) fn message(&self) -> &str {
        &self.message
    }

    /// Sets the exit code.
    pub fn code(self, code: u8) -> Self {
        Self { code, ..self }
    }

    /// Whether no agent has answered, so that nothing is known.
    pub(super) fn is_no_answer(&self) -> bool {
        self.source == Source::NoAnswer
    }

    /// Sets a code that can't be the task's own: 125, or the code of shells for a program that did not start.
    pub fn not_the_tasks(self) -> Self {
        let code = self.code.max(AGENT_FAILED);
        self.code(code)
    }

    /// Sets the exit code of a shell if the text is the agent's error about a command that did not start.
    pub fn of_command(self, command: &[String]) -> Self {
        let program = command.first().map(|program| program.to_ascii_lowercase()).unwrap_or_default();
        let text = self.message.to_ascii_lowercase();
        let code = if text.contains("no such file") || text.contains("not found") && text.contains(&program) {
            NOT_FOUND
        } else if CANNOT_RUN_TEXTS.iter().any(|part| text.contains(part)) {
            CANNOT_RUN
        } else {
            AGENT_FAILED
        };
        self.code(code)
    }

    /// Sets a hint on what to do.
    pub fn hint(self, hint: impl Into<String>) -> Self {
        Self { hint: Some(hint.into()), ..self }
    }

    #[cfg(test)]
    pub(super) fn hint_text(&self) -> &str {
        self.hint.as_deref().unwrap_or_default()
    }

    pub fn print(&self) {
        let bold = super::style::ERROR;
        herdlet_base::stderr_line!("{bold}error:{bold:#} {}", self.message);
        if let Some(hint) = &self.hint {
            herdlet_base::stderr_line!("  {hint}");
        }
    }
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.message)
    }
}

/// The hint for an error about certificates, recognized by the texts of rustls.
fn distrust(failure: &str) -> Option<&'static str> {
    if failure.contains("invalid peer certificate: Expired") {
        Some("the agent's certificate has expired: replace `tls.cert_file` of the agent's config")
    } else if failure.contains("CaUsedAsEndEntity") {
        Some(
            "the agent's certificate is a CA certificate, which a server may not use: create one with \
             basicConstraints=critical,CA:FALSE, and set it as `tls.cert_file` in the agent's config",
        )
    } else if failure.contains("NotValidForName") || failure.contains("not valid for name") {
        Some(
            "the agent's certificate is not valid for the host of the address: use a name or IP address that it \
             contains, or create one with that host in subjectAltName",
        )
    } else if failure.contains("invalid peer certificate") {
        Some("name the authority that signed the agent's certificate: --ca-cert FILE, or set HERDLET_CACERT")
    } else if failure.contains("fatal alert: CertificateRequired") {
        Some("the agent requires a client certificate: --client-cert FILE --client-key FILE")
    } else if failure.contains("fatal alert: CertificateExpired") {
        Some("the client certificate has expired: pass a new one with --client-cert")
    } else if REFUSED.iter().any(|alert| failure.contains(alert)) {
        Some(
            "the agent rejects the client certificate: --client-cert needs one for clients, \
             signed by an authority in `tls.ca_file` of the agent's config",
        )
    } else {
        None
    }
}

/// EACCES and EPERM in the texts of the standard library: the mode of the socket or of a directory above it.
fn is_refused_by_kernel(why: &str) -> bool {
    ["(os error 13)", "(os error 1)", "ermission denied", "not permitted"]
        .iter()
        .any(|text| why.contains(text))
}

/// The agent's answer to another user on a socket that is open to all.
const REFUSED_ON_SOCKET: &str = "this socket is for the agent's user and root";
/// The hint for both.
const OF_ANOTHER_USER: &str = "you may not use this socket: the agent there runs as another user. Use sudo, or pass the socket of \
    your own agent with --addr or HERDLET_ADDR (unix://PATH)";

/// TLS alerts by which agents reject a client's certificate, in the texts of rustls.
const REFUSED: [&str; 8] = [
    "fatal alert: UnknownCA",
    "fatal alert: BadCertificate",
    "fatal alert: UnsupportedCertificate",
    "fatal alert: CertificateRevoked",
    "fatal alert: CertificateUnknown",
    "fatal alert: AccessDenied",
    "fatal alert: DecryptError",
    "fatal alert: DecodeError",
];

impl From<ClientError> for Failure {
    fn from(error: ClientError) -> Self {
        let hint = match &error {
            ClientError::Unreachable { address, why } if address.is_local() && is_refused_by_kernel(why) => {
                Some(OF_ANOTHER_USER)
            }
            ClientError::Status { status: 403, message } if message.contains(REFUSED_ON_SOCKET) => {
                Some(OF_ANOTHER_USER)
            }
            ClientError::Unreachable { address, .. } if address.is_local() => {
                Some("is the agent running? start it with: herdlet agent")
            }
            ClientError::Unreachable { .. } => Some("is the agent running, and does it --listen there?"),
            ClientError::Silent { effect: Effect::None, .. } => {
                Some("is it suspended, or is the machine overloaded?")
            }
            ClientError::Silent { effect: Effect::Open, .. } => {
                Some("is it suspended, or is the machine overloaded? the change may still take effect")
            }
            ClientError::Broken { effect: Effect::Open, .. } => {
                Some("the change may have taken effect, or still may; check with: herdlet status")
            }
            ClientError::Status { status: 401 | 403, message } if message.contains("token") => {
                Some("pass a file with the agent's token: --token-file FILE, or set HERDLET_TOKEN")
            }
            ClientError::Setup(_)
            | ClientError::Status { .. }
            | ClientError::Open(_)
            | ClientError::Problems(_)
            | ClientError::Broken { effect: Effect::None, .. }
            | ClientError::Answer { .. } => None,
        };
        let code = match &error {
            ClientError::Problems(_) => USAGE,
            // Not a definite failure: the agent may still do it, or may have done it.
            ClientError::Open(_)
            | ClientError::Silent { effect: Effect::Open, .. }
            | ClientError::Broken { effect: Effect::Open, .. } => TIMED_OUT,
            ClientError::Unreachable { .. }
            | ClientError::Silent { effect: Effect::None, .. }
            | ClientError::Broken { effect: Effect::None, .. }
            | ClientError::Setup(_)
            | ClientError::Status { .. }
            | ClientError::Answer { .. } => FAILED,
        };
        let source = match &error {
            ClientError::Unreachable { .. } | ClientError::Silent { .. } | ClientError::Broken { .. } => {
                Source::NoAnswer
            }
            ClientError::Setup(_)
            | ClientError::Status { .. }
            | ClientError::Open(_)
            | ClientError::Problems(_)
            | ClientError::Answer { .. } => Source::Other,
        };
        // Formats all causes in one line.
        let text = format!("{:#}", anyhow::Error::new(error));
        let failure = match (distrust(&text), hint) {
            (Some(hint), _) => Self::new(text).hint(hint),
            (None, Some(hint)) => Self::new(text).code(code).hint(hint),
            (None, None) => Self::new(text).code(code),
        };
        Self { source, ..failure }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::address::Address;

    fn hint(error: ClientError) -> String {
        Failure::from(error).hint.unwrap_or_default()
    }

    #[test]
    fn the_agent_of_another_user_is_named() {
        let address: Address = "unix:///run/herdlet/herdlet.sock".parse().unwrap();
        for code in [1, 13] {
            let why = std::io::Error::from_raw_os_error(code).to_string();
            assert!(hint(ClientError::Unreachable { address: address.clone(), why }).contains("sudo"));
        }
        let why = "Permission denied".to_owned();
        let refused = hint(ClientError::Unreachable { address: address.clone(), why });
        assert!(refused.contains("sudo") && refused.contains("HERDLET_ADDR"), "{refused}");
        let message = "Permission denied: this socket is for the agent's user and root".to_owned();
        assert_eq!(hint(ClientError::Status { status: 403, message }), refused);
        let why = std::io::Error::from_raw_os_error(2).to_string();
        assert!(hint(ClientError::Unreachable { address, why }).contains("herdlet agent"));
    }

    #[test]
    fn a_command_that_did_not_start_has_the_code_of_a_shell() {
        let command = ["noSuch".to_owned()];
        let code = |text: &str| Failure::new(text).of_command(&command).code;
        assert_eq!(code("exec \"noSuch\": not found in /bin"), NOT_FOUND);
        assert_eq!(code("exec \"noSuch\": permission denied: it is not executable for any user"), CANNOT_RUN);
        assert_eq!(code("the allocation was not found"), AGENT_FAILED);
    }

    #[test]
    fn authority_certificate_as_server_has_a_hint() {
        let hint = distrust("invalid peer certificate: Other(OtherError(CaUsedAsEndEntity))").unwrap();
        assert!(hint.contains("CA:FALSE"), "{hint}");
        assert!(distrust("invalid peer certificate: UnknownIssuer").unwrap().contains("--ca-cert"));
    }

    #[test]
    fn certificate_name_mismatch_has_its_own_hint() {
        let hint = "invalid peer certificate: certificate not valid for name \"localhost\"; certificate is only valid for DnsName(\"here\")";
        let hint = distrust(hint).unwrap();
        assert!(hint.contains("subjectAltName") && !hint.contains("--ca-cert"), "{hint}");
    }
}
