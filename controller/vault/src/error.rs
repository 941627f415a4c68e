//! Failures of requests to Vault, and whether a retry can help.
//!
//! In: a status and the text of an answer, or the reason why there is none. Out: an error without secrets. Facts about
//! statuses: <https://developer.hashicorp.com/vault/api-docs#http-status-codes>.

use std::time::Duration;

/// Why a request failed. The text continues "failed to".
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum VaultError {
    /// Status 403: the token is gone, or its policies do not allow this.
    #[error("{doing}: Vault denies it: {why}")]
    Denied { doing: String, why: String },
    /// Status 404.
    #[error("{doing}: nothing is there: {why}")]
    Missing { doing: String, why: String },
    /// Another status below 500: the request is wrong, or a role or a setting in Vault.
    #[error("{doing}: Vault refuses it with status {status}: {why}")]
    Refused { doing: String, status: u16, why: String },
    /// Sealed, overloaded, without an active node, or broken.
    #[error("{doing}: Vault is not ready (status {status}): {why}")]
    Unready { doing: String, status: u16, why: String, retry_after: Option<Duration> },
    /// No answer.
    #[error("{doing}: no answer from {address}: {why}")]
    Unreachable { doing: String, address: String, why: String },
    /// The answer can't be used.
    #[error("{doing}: the answer cannot be used: {why}")]
    Answer { doing: String, why: String },
    /// A redirect that is not followed.
    #[error("{doing}: Vault redirects to {target}, which is not followed: {why}")]
    Redirect { doing: String, target: String, why: String },
    /// The request was not sent.
    #[error("{doing}: {why}")]
    Invalid { doing: String, why: String },
}

/// What helps against a failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FailureClass {
    /// Another token, or other policies for it.
    Token,
    /// Data at this path.
    Absent,
    /// Another request, or another setting of Vault.
    Request,
    /// A retry, not before `retry_after` if the server sends one.
    Later { retry_after: Option<Duration> },
}

/// The meaning of a failed renewal for a lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LeaseFailure {
    /// The lease has ended, or can't be renewed any more.
    Lost,
    /// Nothing.
    Later { retry_after: Option<Duration> },
}

/// Texts of Vault for leases and tokens that are gone. Nomad compares them too: `client/vaultclient/vaultclient.go`.
const LOST: [&str; 7] = [
    "lease not found",
    "lease is not renewable",
    "invalid lease ID",
    "token not found",
    "lease expired",
    "cannot renew a token across namespaces",
    "no namespace",
];

impl VaultError {
    pub fn class(&self) -> FailureClass {
        match self {
            Self::Denied { .. } => FailureClass::Token,
            Self::Missing { .. } => FailureClass::Absent,
            Self::Refused { .. } | Self::Invalid { .. } => FailureClass::Request,
            Self::Unready { retry_after, .. } => FailureClass::Later { retry_after: *retry_after },
            // A server that moves or starts may send any of these for a while.
            Self::Unreachable { .. } | Self::Answer { .. } | Self::Redirect { .. } => {
                FailureClass::Later { retry_after: None }
            }
        }
    }

    /// Whether other requests to this server fail now too. An answer that can't be used is about one path.
    pub fn is_of_server(&self) -> bool {
        match self {
            Self::Unready { .. } | Self::Unreachable { .. } | Self::Redirect { .. } => true,
            Self::Denied { .. }
            | Self::Missing { .. }
            | Self::Refused { .. }
            | Self::Invalid { .. }
            | Self::Answer { .. } => false,
        }
    }

    /// The meaning of this failure of a renewal for the lease.
    pub fn lease_failure(&self) -> LeaseFailure {
        match self {
            Self::Denied { .. } => LeaseFailure::Lost,
            Self::Missing { why, .. } | Self::Refused { why, .. }
                if LOST.iter().any(|text| why.contains(text)) =>
            {
                LeaseFailure::Lost
            }
            Self::Missing { .. }
            | Self::Refused { .. }
            | Self::Unready { .. }
            | Self::Unreachable { .. }
            | Self::Answer { .. }
            | Self::Redirect { .. }
            | Self::Invalid { .. } => match self.class() {
                FailureClass::Later { retry_after } => LeaseFailure::Later { retry_after },
                FailureClass::Token | FailureClass::Absent | FailureClass::Request => {
                    LeaseFailure::Later { retry_after: None }
                }
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(status: u16, why: &str) -> VaultError {
        VaultError::Refused { doing: "renew".to_owned(), status, why: why.to_owned() }
    }

    #[test]
    fn only_some_refusals_lose_a_lease() {
        for text in [
            "lease not found or lease is not renewable",
            "1 error occurred:\n\t* lease is not renewable",
            "invalid lease ID",
            "token not found",
            "lease expired",
        ] {
            assert_eq!(refused(400, text).lease_failure(), LeaseFailure::Lost, "{text}");
        }
        let later = LeaseFailure::Later { retry_after: None };
        assert_eq!(refused(400, "unsupported operation").lease_failure(), later);
        let denied = VaultError::Denied { doing: "renew".to_owned(), why: "permission denied".to_owned() };
        assert_eq!(denied.lease_failure(), LeaseFailure::Lost);
    }

    #[test]
    fn a_server_that_is_not_ready_loses_no_lease() {
        let retry_after = Some(Duration::from_secs(7));
        // Even if a backend's text reads like a loss.
        let why = "lease not found".to_owned();
        let error = VaultError::Unready { doing: "renew".to_owned(), status: 500, why, retry_after };
        assert_eq!(error.lease_failure(), LeaseFailure::Later { retry_after });
        assert_eq!(error.class(), FailureClass::Later { retry_after });
    }
}
