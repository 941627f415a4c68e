//! Which token a node presents. Servers of different versions expect different tokens; this order satisfies all of them:
//!
//! ```text
//! first registration               the stored identity of an earlier session, else an introduction token, if any, else none
//! all later calls                  the identity signed by servers (1.11 and later), else the secret
//! after a denied registration      start over
//! ```

use crate::wire::Secret;

/// The tokens of a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tokens {
    secret: Secret,
    introduction: Secret,
    signed: Option<Secret>,
    is_registered: bool,
    /// A new identity was requested.
    is_wanted: bool,
}

impl Tokens {
    /// A node that has not registered since its start. `introduction` may be empty, and so may `signed`, the identity that servers have
    /// signed earlier.
    #[must_use]
    pub fn new(secret: Secret, introduction: Secret, signed: Secret) -> Self {
        let signed = Some(signed).filter(|signed| !signed.is_empty());
        Self { secret, introduction, is_registered: signed.is_some(), signed, is_wanted: false }
    }

    /// The identity signed by servers; empty if there is none.
    #[must_use]
    pub fn signed(&self) -> Secret {
        self.signed.clone().unwrap_or_default()
    }

    /// The token for a registration.
    #[must_use]
    pub fn to_register(&self) -> Secret {
        if self.is_registered { self.to_call() } else { self.introduction.clone() }
    }

    /// The token for any other call.
    #[must_use]
    pub fn to_call(&self) -> Secret {
        self.signed.clone().unwrap_or_else(|| self.secret.clone())
    }

    /// Requests a new identity with each heartbeat until servers have signed one.
    pub fn renew(&mut self) {
        self.is_wanted = true;
    }

    /// Whether to request a new identity.
    #[must_use]
    pub fn is_due(&self) -> bool {
        self.is_wanted
    }

    /// Processes the response to a registration or heartbeat; it may hold a new identity.
    pub fn on_answer(&mut self, signed: Option<Secret>) {
        self.is_registered = true;
        if let Some(signed) = signed {
            self.signed = Some(signed);
            self.is_wanted = false;
        }
    }

    /// Processes a denied registration. Returns whether the next registration presents another token.
    pub fn denied(&mut self) -> Next {
        let shown = self.to_register();
        self.is_registered = false;
        self.signed = None;
        if self.to_register() == shown { Next::Same } else { Next::Another }
    }
}

/// The token of the next registration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Next {
    /// The same token as in the last one.
    Same,
    /// Another token.
    Another,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_follow_server_answers() {
        let mut tokens = Tokens::new("secret".into(), Secret::default(), Secret::default());
        assert_eq!((tokens.to_register(), tokens.to_call()), ("".into(), "secret".into()));
        tokens.on_answer(None);
        assert_eq!(tokens.to_register(), "secret".into());
        tokens.on_answer(Some("signed".into()));
        assert_eq!((tokens.to_register(), tokens.to_call()), ("signed".into(), "signed".into()));
        tokens.renew();
        tokens.on_answer(None);
        assert_eq!((tokens.to_call(), tokens.is_due()), ("signed".into(), true));
        tokens.on_answer(Some("another".into()));
        assert_eq!((tokens.to_call(), tokens.is_due()), ("another".into(), false));
        assert_eq!((tokens.denied(), tokens.denied()), (Next::Another, Next::Same));
        assert_eq!((tokens.to_register(), tokens.to_call()), ("".into(), "secret".into()));
        let introduced = Tokens::new("secret".into(), "intro".into(), Secret::default());
        assert_eq!(introduced.to_register(), "intro".into());
        let mut back = Tokens::new("secret".into(), "intro".into(), "kept".into());
        assert_eq!(
            (back.to_register(), back.to_call(), back.signed()),
            ("kept".into(), "kept".into(), "kept".into())
        );
        assert_eq!(back.denied(), Next::Another);
        assert_eq!((back.to_register(), back.signed().is_empty()), ("intro".into(), true));
    }
}
